/// @file
/// Runs work in a process of its own.
///
/// The child sends one JSON object through a pipe: {"value": ...} or {"error": "a sentence"}. If it ends
/// without, the parent reads the reason off its exit status. Time is up first in the child, which can still
/// say where it was, and a little later in the parent, which kills it.
#include "child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "failure.h"
#include "reference_cpu/simulator/simulator.h"
#include "units.h"

namespace course {
namespace {

using nlohmann::json;
constexpr double grace_seconds = 2;  // what the child gets beyond its limit to say where it is

int result_pipe = -1;       // in the child
std::string overtime_text;  // "The step 10_tiling did not end within 60 s"

void send(const json& message) {
  const std::string text = message.dump(-1, ' ', false, json::error_handler_t::replace);
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t n = write(result_pipe, text.data() + sent, text.size() - sent);
    if (n < 0 && errno != EINTR) _exit(1);
    if (n > 0) sent += static_cast<size_t>(n);
  }
}

void on_fatal(const char* text) {
  send({{"error", text}});
  _exit(0);
}

// Allocating in a signal handler can block if the signal came inside malloc; then the parent's limit ends the
// child.
void on_alarm(int) {
  const std::string where = simulator::where_now();
  send({{"error", overtime_text + (where.empty() ? "." : "; it was stopped in " + where + ".")}});
  _exit(0);
}

void prepare_child(double limit_seconds) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  if (const int nowhere = open("/dev/null", O_WRONLY); nowhere >= 0) dup2(nowhere, STDERR_FILENO);

  // A test program's handlers, say, are not the child's.
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGINT, SIGTERM}) signal(number, SIG_DFL);
  static unsigned char stack[64 << 10];  // the fibers' stacks are small
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_handler = on_alarm;
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGALRM, &action, nullptr);
  simulator::on_fatal(on_fatal);

  itimerval timer{};
  double whole = 0;
  timer.it_value.tv_usec = static_cast<suseconds_t>(std::modf(limit_seconds, &whole) * 1e6);
  timer.it_value.tv_sec = static_cast<time_t>(whole);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

[[noreturn]] void be_the_child(double limit_seconds, const std::function<json()>& work) {
  prepare_child(limit_seconds);
  json message;
  try {
    message = {{"value", work()}};
  } catch (const std::bad_alloc&) {
    message = {{"error", "The machine's memory is used up; make the problem smaller."}};
  } catch (const std::exception& e) {
    message = {{"error", e.what()}};
  } catch (...) {
    message = {{"error", "An exception of an unknown type was thrown."}};
  }
  itimerval off{};
  setitimer(ITIMER_REAL, &off, nullptr);
  send(message);
  std::fflush(nullptr);
  _exit(0);
}

std::string describe_end(const std::string& what, int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return what + " crashed: signal " + std::to_string(number) + " (" + strsignal(number) + ").";
  }
  return what + " ended the program by itself, with exit code " + std::to_string(WEXITSTATUS(status)) +
         ", before it had an answer.";
}

}  // namespace

ChildResult run_in_child(const std::string& what, double limit_seconds, const std::function<json()>& work,
                         const std::function<void(double)>& waiting) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Failure("No pipe could be made: " + std::string(std::strerror(errno)) + ".");
  overtime_text = what + " did not end within " + duration(limit_seconds);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw Failure("No process could be started: " + std::string(std::strerror(errno)) + ".");
  if (child == 0) {
    close(ends[0]);
    result_pipe = ends[1];
    be_the_child(limit_seconds, work);
  }
  close(ends[1]);

  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  std::string text;
  bool overtime = false;
  for (;;) {
    const double gone = std::chrono::duration<double>(Clock::now() - start).count();
    if (gone > limit_seconds + grace_seconds) {
      overtime = true;
      break;
    }
    if (waiting) waiting(gone);
    pollfd readable{ends[0], POLLIN, 0};
    if (poll(&readable, 1, 100) <= 0) continue;
    char buffer[65536];
    const ssize_t n = read(ends[0], buffer, sizeof buffer);
    if (n == 0) break;
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  if (overtime) kill(child, SIGKILL);
  int status = 0;
  // The pipe is closed, so the child has ended or is about to; a process that lingers is ended.
  for (int i = 0; waitpid(child, &status, WNOHANG) == 0; ++i) {
    if (i == 100) kill(child, SIGKILL);
    usleep(10000);
  }

  const json message = json::parse(text, nullptr, false);
  if (message.is_object() && message.contains("value")) return {true, message["value"], ""};
  if (message.is_object() && message.contains("error"))
    return {false, {}, message["error"].get<std::string>()};
  return {false, {}, overtime ? overtime_text + "." : describe_end(what, status)};
}

}  // namespace course
