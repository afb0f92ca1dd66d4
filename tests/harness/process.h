// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A child process that cannot outlive its owner: destroying a Process kills and reaps it, and the kernel kills it if the
// test itself dies. Where it runs (network namespace, cgroup) is Host's business: see topology.h.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace sluice::test {

using Millis = std::chrono::milliseconds;

// What takes longer has hung, in a guest on a busy machine as well.
inline constexpr Millis kSoon{300000};

struct SpawnOptions {
  bool pipe_stdin = false;                    // write() and close_input(); otherwise /dev/null
  bool pipe_stdout = false;                   // read_line(), read_all(); otherwise the test's own stdout
  bool merge_stderr = false;                  // stderr goes where stdout goes; otherwise the test's own stderr
  std::vector<std::string> environment = {};  // "NAME=value", added to the test's own
};

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

// Keeps this thread, and the children it starts, on the CPU it runs on: veth then delivers in the order of sending.
class OneCpu {
 public:
  OneCpu() {
    ::sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
    ::sched_setaffinity(0, sizeof(one), &one);
  }
  ~OneCpu() { ::sched_setaffinity(0, sizeof(before_), &before_); }
  OneCpu(const OneCpu&) = delete;
  OneCpu& operator=(const OneCpu&) = delete;

 private:
  cpu_set_t before_;
};

class Process {
 public:
  // Forks from the calling thread. `prepare` runs in the child first (join namespaces, cgroup); an errno other than 0 it
  // returns is reported here as this function's error, as is a failed exec.
  static Result<Process> exec(const std::vector<std::string>& argv, const SpawnOptions& options,
                              const std::function<int()>& prepare = {});
  // The child runs `body` and exits with its value. Keep it to what a fork of a single-threaded program may do.
  static Result<Process> fork(const std::function<int()>& body, const SpawnOptions& options,
                              const std::function<int()>& prepare = {});

  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }
  Status signal(int signal_number);
  // Exit status, or 128 + signal as in a shell. kTimeout leaves the process running.
  Result<int> wait(Millis timeout);

  Status write(std::string_view text);
  void close_input() { input_.reset(); }
  // The next line of stdout without its newline; kUnavailable at the end of the output.
  Result<std::string> read_line(Millis timeout);
  // Everything up to the end of the output.
  Result<std::string> read_all(Millis timeout);

 private:
  Process() = default;
  Result<bool> fill(std::chrono::steady_clock::time_point deadline);  // false = end of output
  void end();

  pid_t pid_ = -1;
  Fd pidfd_;
  Fd input_;
  Fd output_;
  std::string buffer_;
  int exit_status_ = -1;
};

}  // namespace sluice::test
