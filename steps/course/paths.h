/// @file
/// Where the program's own files lie.
#pragma once

#include <filesystem>

namespace course {

/// The root of the repository.
std::filesystem::path source_dir();
/// The CMake build folder.
std::filesystem::path build_dir();
/// Where programs and libraries of the build lie; its folder steps/ holds the steps.
std::filesystem::path bin_dir();

}  // namespace course
