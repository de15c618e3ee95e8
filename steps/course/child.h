/// @file
/// Runs work in a process of its own, so that whatever it does ends in a sentence.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace course {

/// What a child process came to.
struct ChildResult {
  bool ok = false;
  nlohmann::json value;  ///< what the work returned, if ok
  std::string sentence;  ///< what went wrong, if not: an exception's text, a crash, too much time
};

/// Forks, runs `work` in the child and hands back what it returns. An exception, a crash, an exit and a hang
/// each become a sentence; nothing that the child prints to standard error is seen, and what it prints to
/// standard output (a student's printf) goes to standard error. If the simulated GPU is running when time is
/// up, the sentence says where.
/// @param what           begins the sentences: "The step 10_tiling"
/// @param limit_seconds  the child is killed after this long
/// @param waiting        called about ten times a second with the seconds gone; may be empty
ChildResult run_in_child(const std::string& what, double limit_seconds,
                         const std::function<nlohmann::json()>& work,
                         const std::function<void(double)>& waiting = {});

}  // namespace course
