/// @file
/// The command `exercise`.
#include "exercise.h"

#include <unistd.h>

#include <iostream>
#include <memory>

#include "exercise_desk.h"
#include "failure.h"

namespace course {
namespace {

// The command line's words.
struct Words {
  std::string action = "next", id;
  bool show = false;
};

int run(Words words) {
  ExerciseDesk desk = own_desk();
  if (words.action == "list") return desk.list(std::cout);
  if (words.action.find('.') != std::string::npos) {  // "exercise 10.3"
    words.id = words.action;
    words.action = "next";
  }
  if (words.action == "reset" && words.id.empty())
    throw Failure("Which exercise is to be reset? Say ./learn exercise reset 10.1, for example.");
  if (words.id.empty()) words.id = desk.next();
  if (words.id.empty() && !desk.exercises().empty()) {
    std::cout << "All " << desk.exercises().size()
              << " exercises are solved; ./learn exercise list names them.\n";
    return exit_right;
  }
  if (words.action == "next") return desk.show(words.id, std::cout);
  if (words.action == "hint") return desk.hint(words.id, std::cout);
  if (words.action == "answer") return desk.answer(words.id, words.show, std::cout);
  if (words.action == "reset") return desk.reset(words.id, std::cout);
  if (words.action != "check")
    throw Failure("'" + words.action +
                  "' is nothing that exercise can do; it can next, list, check, hint, answer and reset.");
  if (isatty(STDERR_FILENO))
    std::cerr << "Checking " << words.id << " on the simulated GPU; this takes some seconds." << std::endl;
  return desk.check(words.id, std::cout);
}

}  // namespace

void add_exercise(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("exercise", "Exercises with checked answers; you work in my/");
  const auto words = std::make_shared<Words>();
  command->add_option("what", words->action,
                      "next (the default), list, check, hint, answer, reset, or an exercise's number");
  command->add_option("id", words->id,
                      "The exercise, such as 10.1; the next one that is not solved if left out");
  command->add_flag("--show", words->show, "answer: before it is solved, too");
  command->callback([&chosen, words] { chosen = [words] { return run(*words); }; });
}

ExerciseCount count_exercises(const Step& step) {
  const ExerciseDesk desk = own_desk();
  ExerciseCount count;
  for (const Exercise& e : desk.exercises()) {
    if (e.step != step.name) continue;
    ++count.all;
    count.done += desk.solved(e);
  }
  return count;
}

std::string next_exercise() { return own_desk().next(); }

}  // namespace course
