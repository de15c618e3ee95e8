/// @file
/// Other programs: asking them, and running them.
#pragma once

#include <string>
#include <vector>

namespace course {

/// The whole path of a program, or "" if it is neither a path nor found in PATH.
std::string find_program(const std::string& name);

/// What a program prints to standard output; "" if it is absent or fails.
std::string output_of(const std::vector<std::string>& command);

/// Runs a program with this one's input and output, and waits.
/// @return its exit code; 128 + the signal's number if a signal ended it
/// @throws Failure  if it cannot be started
int run_program(const std::vector<std::string>& command);

/// As a shell would take it, for printing.
std::string command_line(const std::vector<std::string>& command);

}  // namespace course
