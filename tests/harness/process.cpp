// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "harness/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/file.h"

namespace sluice::test {
namespace {

using Clock = std::chrono::steady_clock;

int poll_until(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    auto left = std::chrono::ceil<Millis>(deadline - Clock::now()).count();
    pollfd entry{fd, events, 0};
    int ready = ::poll(&entry, 1, static_cast<int>(std::max<decltype(left)>(left, 0)));
    if (ready >= 0 || errno != EINTR) return ready;
  }
}

Result<std::pair<Fd, Fd>> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return fail_errno(errno, "cannot make a pipe");
  return std::pair<Fd, Fd>(Fd(ends[0]), Fd(ends[1]));
}

// Where each thread of a process is in the kernel: what one wants to know of a process that does not end.
std::string threads_of(pid_t pid) {
  std::string text;
  std::error_code none;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), none)) {
    const auto read = [&](const char* file) { return read_file(task.path() / file).value_or(""); };
    text += fmt::format("\n{} {}syscall {}{}", task.path().filename().string(), read("comm"), read("syscall"), read("stack"));
  }
  return text;
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Fd::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<Process> Process::fork(const std::function<int()>& body, const SpawnOptions& options,
                              const std::function<int()>& prepare) {
  Process process;
  Fd child_input;
  Fd child_output;
  if (options.pipe_stdin) {
    SLUICE_TRY(ends, make_pipe());
    child_input = std::move(ends.first);
    process.input_ = std::move(ends.second);
  } else {
    child_input = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  if (options.pipe_stdout) {
    SLUICE_TRY(ends, make_pipe());
    process.output_ = std::move(ends.first);
    child_output = std::move(ends.second);
  }
  SLUICE_TRY(report, make_pipe());  // carries the errno of `prepare`; closed by exec or when the body starts

  std::fflush(nullptr);  // or the child would print our buffers again
  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid < 0) return fail_errno(errno, "cannot fork");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    int err = prepare ? prepare() : 0;
    if (err == 0 && ::dup2(child_input.get(), STDIN_FILENO) < 0) err = errno;
    if (err == 0 && child_output && ::dup2(child_output.get(), STDOUT_FILENO) < 0) err = errno;
    if (err == 0 && options.merge_stderr && ::dup2(STDOUT_FILENO, STDERR_FILENO) < 0) err = errno;
    for (const std::string& variable : options.environment) ::putenv(const_cast<char*>(variable.c_str()));
    if (err == 0) {
      process.input_.reset();
      process.output_.reset();
      child_input.reset();
      child_output.reset();
      report.second.reset();
      int status = body();
      std::fflush(nullptr);
      ::_exit(status);
    }
    [[maybe_unused]] auto written = ::write(report.second.get(), &err, sizeof(err));
    ::_exit(127);
  }
  process.pid_ = pid;
  process.pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process.pidfd_) return fail_errno(errno, "cannot open a pidfd of process {}", pid);
  report.second.reset();
  int child_errno = 0;
  ssize_t got;
  do {
    got = ::read(report.first.get(), &child_errno, sizeof(child_errno));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(child_errno)) return fail_errno(child_errno, "a child could not join its namespace or cgroup");
  return process;
}

Result<Process> Process::exec(const std::vector<std::string>& argv, const SpawnOptions& options,
                              const std::function<int()>& prepare) {
  SLUICE_ASSERT(!argv.empty());
  SLUICE_TRY(report, make_pipe());  // closed by a successful exec, else carries its errno
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  auto body = [&] {
    ::execvp(words[0], words.data());
    int err = errno;
    [[maybe_unused]] auto written = ::write(report.second.get(), &err, sizeof(err));
    return 127;
  };
  SLUICE_TRY(process, fork(body, options, prepare));
  report.second.reset();
  int exec_errno = 0;
  ssize_t got;
  do {
    got = ::read(report.first.get(), &exec_errno, sizeof(exec_errno));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(exec_errno)) return fail_errno(exec_errno, "cannot run {}", argv[0]);
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      buffer_(std::move(other.buffer_)),
      exit_status_(other.exit_status_) {}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    input_ = std::move(other.input_);
    output_ = std::move(other.output_);
    buffer_ = std::move(other.buffer_);
    exit_status_ = other.exit_status_;
  }
  return *this;
}

Process::~Process() { end(); }

void Process::end() {
  if (pid_ <= 0 || exit_status_ >= 0) return;
  ::kill(pid_, SIGKILL);  // not reaped yet, so the pid is still ours
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

Status Process::signal(int signal_number) {
  if (exit_status_ >= 0) return fail(Code::kConflict, "process {} has ended", pid_);
  if (::kill(pid_, signal_number) < 0) return fail_errno(errno, "cannot signal process {}", pid_);
  return {};
}

Result<int> Process::wait(Millis timeout) {
  if (exit_status_ >= 0) return exit_status_;
  int ready = poll_until(pidfd_.get(), POLLIN, Clock::now() + timeout);
  if (ready < 0) return fail_errno(errno, "cannot wait for process {}", pid_);
  if (ready == 0)
    return fail(Code::kTimeout, "process {} still runs after {} ms, its threads:{}", pid_, timeout.count(), threads_of(pid_));
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) return fail_errno(errno, "cannot reap process {}", pid_);
  exit_status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_status_;
}

Status Process::write(std::string_view text) {
  // The peer may be gone: SIGPIPE must not end the test.
  struct sigaction ignore{};
  struct sigaction before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);
  int err = 0;
  while (!text.empty() && err == 0) {
    ssize_t sent = ::write(input_.get(), text.data(), text.size());
    if (sent >= 0)
      text.remove_prefix(static_cast<std::size_t>(sent));
    else if (errno != EINTR)
      err = errno;
  }
  ::sigaction(SIGPIPE, &before, nullptr);
  if (err != 0) return fail_errno(err, "cannot write to process {}", pid_);
  return {};
}

Result<bool> Process::fill(Clock::time_point deadline) {
  int ready = poll_until(output_.get(), POLLIN, deadline);
  if (ready < 0) return fail_errno(errno, "cannot wait for output of process {}", pid_);
  if (ready == 0) return fail(Code::kTimeout, "no more output from process {} in time; so far: {}", pid_, buffer_);
  char chunk[16384];
  ssize_t got = ::read(output_.get(), chunk, sizeof(chunk));
  if (got < 0) return fail_errno(errno, "cannot read from process {}", pid_);
  buffer_.append(chunk, static_cast<std::size_t>(got));
  return got > 0;
}

Result<std::string> Process::read_line(Millis timeout) {
  auto deadline = Clock::now() + timeout;
  for (;;) {
    if (auto end_of_line = buffer_.find('\n'); end_of_line != std::string::npos) {
      std::string line = buffer_.substr(0, end_of_line);
      buffer_.erase(0, end_of_line + 1);
      return line;
    }
    SLUICE_TRY(more, fill(deadline));
    if (!more) return fail(Code::kUnavailable, "process {} ended its output; left over: '{}'", pid_, buffer_);
  }
}

Result<std::string> Process::read_all(Millis timeout) {
  auto deadline = Clock::now() + timeout;
  for (;;) {
    SLUICE_TRY(more, fill(deadline));
    if (!more) return std::exchange(buffer_, {});
  }
}

}  // namespace sluice::test
