/// @file
/// Compiles a student's kernel file for the simulated GPU, just as step.cmake compiles a step's.
#pragma once

#include <filesystem>
#include <string>

namespace course {

/// Compiles and links.
/// @param source         the student's attention.cu
/// @param step           whose place it takes: "10_tiling"
/// @param library        the shared library to write
/// @param limit_seconds  the compiler is stopped after this long
/// @return               "", or one sentence: the first error with its line, or that the time was up
/// @throws Failure       no compiler, or nothing can be written
std::string build_kernel(const std::filesystem::path& source, const std::string& step,
                         const std::filesystem::path& library, double limit_seconds);

}  // namespace course
