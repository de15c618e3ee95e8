/// @file
/// Runs the program behind ./learn in a folder of its own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

/// What a run of the program came to.
struct Answer {
  int code;
  std::string out, err;
};

inline std::string content(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A folder that is gone at the end, and the program in it.
class Program {
public:
  explicit Program(std::string executable) : executable_(std::move(executable)) {
    char name[] = "/tmp/flash_program_XXXXXX";
    folder = mkdtemp(name);
  }
  ~Program() { std::filesystem::remove_all(folder); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Runs it in its folder, through a shell, without a terminal.
  /// @param environment  "NAME=value ..."
  Answer operator()(const std::string& arguments, const std::string& environment = "") const {
    const std::string command = "cd " + folder + " && " + environment + " timeout 120 " + executable_ + " " +
                                arguments + " >stdout 2>stderr </dev/null";
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), content(folder + "/stdout"), content(folder + "/stderr")};
  }

  std::string folder;

private:
  std::string executable_;
};
