/// @file
/// The commands. Each one lies in the file of its name and adds itself to the program.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace course {

/// What the chosen command does; returns the exit code. A command's CLI11 callback sets it.
using Command = std::function<int()>;

void add_run(CLI::App& app, Command& chosen);
void add_list(CLI::App& app, Command& chosen);
void add_bench(CLI::App& app, Command& chosen);
void add_profile(CLI::App& app, Command& chosen);
void add_timeline(CLI::App& app, Command& chosen);
void add_diff(CLI::App& app, Command& chosen);
void add_doctor(CLI::App& app, Command& chosen);
void add_test(CLI::App& app, Command& chosen);
void add_docs(CLI::App& app, Command& chosen);

/// The command without a name: the ladder, and what to do next.
int show_ladder();

}  // namespace course
