/// @file
/// Other programs: asking them, and running them.
#include "process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "failure.h"

extern char** environ;

namespace course {
namespace {

// Starts a program; `out` and `err` are file descriptors for its output, or -1 to share this program's.
pid_t start(const std::vector<std::string>& command, int out, int err) {
  std::vector<char*> arguments;
  for (const std::string& a : command) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (out >= 0) posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  if (err >= 0) posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  pid_t child = -1;
  std::fflush(nullptr);
  const int error = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  errno = error;
  return error ? -1 : child;
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const std::string file = folder + "/" + name; access(file.c_str(), X_OK) == 0) return file;
  return "";
}

std::string output_of(const std::vector<std::string>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const pid_t child = start(command, ends[1], nowhere);
  close(ends[1]);
  close(nowhere);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; child > 0 && (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  return child > 0 && wait_for(child) == 0 ? text : "";
}

int run_program(const std::vector<std::string>& command) {
  const pid_t child = start(command, -1, -1);
  if (child < 0)
    throw Failure("The program " + command[0] + " cannot be started: " + std::strerror(errno) + ".");
  return wait_for(child);
}

std::string command_line(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& a : command) {
    const bool plain =
        a.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+@%") ==
            std::string::npos &&
        !a.empty();
    text += (text.empty() ? "" : " ") + (plain ? a : "'" + a + "'");
  }
  return text;
}

}  // namespace course
