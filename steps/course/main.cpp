/// @file
/// The program behind ./learn.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "command.h"
#include "exercise.h"
#include "failure.h"

namespace {

using namespace course;

// CLI11's message about a wrong command line, as a sentence.
std::string sentence(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&error);
  if (unknown && app.get_subcommands().empty()) {
    std::string names;
    for (const CLI::App* command : app.get_subcommands({}))
      names += (names.empty() ? "" : ", ") + command->get_name();
    return "There is no command or option '" + std::string(argc > 1 ? argv[1] : "") + "'; the commands are " +
           names + ".";
  }
  std::string text = error.what();
  text.erase(text.find_last_not_of("\n.") + 1);
  const size_t colon = std::min(text.find(':'), text.size());
  if (unknown) text = "Nothing is known about" + text.substr(colon + 1);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) text = text.substr(0, colon) + " needs a value";
  const std::string command =
      app.get_subcommands().empty() ? "" : " " + app.get_subcommands().front()->get_name();
  return text + "; see ./learn" + command + " --help.";
}

int run(int argc, char** argv) {
  CLI::App app("FlashAttention, step by step.");
  app.name("./learn");
  app.footer(
      "Without a command: the ladder of steps, and what to do next.\nExit code: 0 right, 1 wrong, 77 nothing "
      "could run.");
  Command chosen = show_ladder;
  for (auto add :
       {add_run, add_list, add_bench, add_profile, add_timeline, add_diff, add_exercise, add_doctor, add_test,
        add_docs})
    add(app, chosen);
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    throw Failure(sentence(app, error, argc, argv));
  }
  return chosen();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const course::Failure& failure) {
    std::cout.flush();
    std::cerr << failure.what() << "\n";
    return failure.exit_code;
  } catch (const std::bad_alloc&) {
    std::cerr << "The machine's memory is used up; make the problem smaller.\n";
  } catch (const std::exception& error) {
    std::cout.flush();
    std::cerr << error.what() << "\n";
  }
  return course::exit_wrong;
}
