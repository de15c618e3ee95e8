/// @file
/// Compiles a student's kernel file.
#include "exercise_build.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <vector>

#include "failure.h"
#include "paths.h"
#include "units.h"

namespace course {
namespace {

namespace fs = std::filesystem;

// What a program printed, and how it ended.
struct Ran {
  std::string output;
  int exit_code = -1;  // -1: a signal
  bool overtime = false;
};

// Runs a program in a process group of its own, so that a compiler's helpers end with it.
Ran run_limited(const std::vector<std::string>& arguments, double limit_seconds) {
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Failure("No pipe could be made: " + std::string(std::strerror(errno)) + ".");
  const pid_t child = fork();
  if (child < 0) throw Failure("No process could be started: " + std::string(std::strerror(errno)) + ".");
  if (child == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    setenv("LC_ALL", "C", 1);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);

  Ran ran;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(limit_seconds);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd readable{ends[0], POLLIN, 0};
    if (left <= 0) {
      ran.overtime = true;
      kill(-child, SIGKILL);
      break;
    }
    if (poll(&readable, 1, static_cast<int>(left)) <= 0) continue;
    char buffer[65536];
    const ssize_t n = read(ends[0], buffer, sizeof buffer);
    if (n == 0) break;
    if (n > 0) ran.output.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) ran.exit_code = WEXITSTATUS(status);
  return ran;
}

std::string shown(const fs::path& file) {
  const fs::path inside = file.lexically_relative(source_dir());
  return inside.empty() || *inside.begin() == ".." ? file.string() : inside.string();
}

// "path/attention.cu:118:7: error: text" becomes "my/10.3/attention.cu:118: text".
std::string first_error(const std::string& output) {
  const std::regex form(R"(^(.*?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$)");
  const std::regex undefined(R"(undefined reference to `(.*)')");
  std::istringstream lines(output);
  std::string last = "the compiler gives no reason";
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, form))
      return shown(match[1].str()) + ":" + match[2].str() + ": " + match[3].str();
    if (std::regex_search(line, match, undefined))
      return match[1].str() + " is declared, but defined nowhere";
    if (!line.empty()) last = line;
  }
  return last;
}

// "" or the sentence.
std::string compile(std::vector<std::string> arguments, double limit_seconds) {
  arguments.insert(arguments.begin(), FLASH_COMPILER);
  const Ran ran = run_limited(arguments, limit_seconds);
  if (ran.overtime) return "The compiler did not end within " + duration(limit_seconds) + ".";
  if (ran.exit_code == 127 && ran.output.empty())
    throw Failure("The compiler " + arguments[0] +
                  " cannot be started; install it or configure the build again.");
  return ran.exit_code == 0 ? "" : "It does not compile: " + first_error(ran.output) + ".";
}

}  // namespace

std::string build_kernel(const fs::path& source, const std::string& step, const fs::path& library,
                         double limit_seconds) {
  std::error_code error;
  fs::create_directories(library.parent_path(), error);
  const fs::path unit = fs::path(library).replace_extension(".cpp"),
                 object = fs::path(library).replace_extension(".o");
  fs::remove(library, error);
  std::ofstream file(unit);
  file << "#include \"" << fs::absolute(source).string()
       << "\"\n#include <steps/course/step_interface_body.h>\n";
  file.close();
  if (!file) throw Failure("The file " + unit.string() + " cannot be written.");

  std::vector<std::string> arguments;
  std::istringstream flags(FLASH_KERNEL_FLAGS);
  for (std::string flag; std::getline(flags, flag, '|');) arguments.push_back(flag);
  const std::string root = source_dir();
  // No warnings: an unused variable in a half-finished kernel is nobody's business.
  for (const std::string& more :
       {std::string("-w"), std::string("-Wfatal-errors"), "-DSTEP=step_" + step.substr(0, 2),
        "-I" + root + "/reference_cpu/simulator", "-I" + root, std::string("-c"), unit.string(),
        std::string("-o"), object.string()})
    arguments.push_back(more);
  std::string sentence = compile(arguments, limit_seconds);
  if (!sentence.empty()) return sentence;
  const std::string simulator = FLASH_SIMULATOR;
  return compile({"-shared", "-Wl,-z,defs", "-Wl,--version-script=" + root + "/steps/exports.map",
                  object.string(), simulator, FLASH_REFERENCE,
                  "-Wl,-rpath," + fs::path(simulator).parent_path().string(), "-o", library.string()},
                 limit_seconds);
}

}  // namespace course
