// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "base/file.h"
#include "base/unique_fd.h"

extern char** environ;

namespace sluice::cli {
namespace {

struct Spawn {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  Spawn() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);  // ours may block SIGINT
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  ~Spawn() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;

  Result<pid_t> start(const std::vector<std::string>& argv, short flags) {
    posix_spawnattr_setflags(&attributes, static_cast<short>(flags | POSIX_SPAWN_SETSIGMASK));
    std::vector<char*> words;
    for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));  // POSIX promises not to write
    words.push_back(nullptr);
    pid_t pid = 0;
    const int error = posix_spawnp(&pid, words[0], &actions, &attributes, words.data(), environ);
    if (error != 0) return fail_errno(error, "cannot start {}", argv[0]);
    return pid;
  }
};

int wait_status(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

bool passed(const Deadline& deadline) { return deadline && std::chrono::steady_clock::now() >= *deadline; }

int poll_ms(const Deadline& deadline, std::optional<int> most) {
  if (!deadline) return most.value_or(-1);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, most.value_or(INT32_MAX)));
}

Result<Output> run_program(const std::vector<std::string>& argv, const Deadline& deadline, int interrupt_fd) {
  std::array<int, 2> out{}, err{};
  if (::pipe2(out.data(), O_CLOEXEC) != 0) return fail_errno(errno, "cannot make a pipe");
  UniqueFd out_read(out[0]), out_write(out[1]);
  if (::pipe2(err.data(), O_CLOEXEC) != 0) return fail_errno(errno, "cannot make a pipe");
  UniqueFd err_read(err[0]), err_write(err[1]);
  Spawn spawn;
  posix_spawn_file_actions_adddup2(&spawn.actions, out_write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&spawn.actions, err_write.get(), STDERR_FILENO);
  SLUICE_TRY(pid, spawn.start(argv, 0));
  out_write.reset();
  err_write.reset();

  Output output;
  while (out_read || err_read) {
    std::array<pollfd, 3> fds = {{{out_read.get(), POLLIN, 0}, {err_read.get(), POLLIN, 0}, {interrupt_fd, POLLIN, 0}}};
    const int ready = ::poll(fds.data(), fds.size(), poll_ms(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || fds[2].revents != 0) {
      ::kill(pid, SIGKILL);
      wait_status(pid);
      return fail(Code::kTimeout, "{} was stopped: {}", argv[0], ready == 0 ? "it did not end in time" : "interrupted");
    }
    const auto drain = [](UniqueFd& fd, short events, std::string& into) {
      if (events == 0) return;
      std::array<char, 16384> buffer;
      const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
      if (got > 0)
        into.append(buffer.data(), static_cast<std::size_t>(got));
      else if (got == 0 || errno != EINTR)
        fd.reset();
      if (into.size() > kFileBytesMax) fd.reset();
    };
    drain(out_read, fds[0].revents, output.out);
    drain(err_read, fds[1].revents, output.err);
  }
  output.status = wait_status(pid);
  return output;
}

Result<pid_t> start_detached(const std::vector<std::string>& argv, const std::string& log) {
  Spawn spawn;
  SLUICE_TRY(log_fd, open_file(log, O_WRONLY | O_CREAT | O_APPEND, 0640));
  posix_spawn_file_actions_adddup2(&spawn.actions, log_fd.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&spawn.actions, log_fd.get(), STDERR_FILENO);
  return spawn.start(argv, POSIX_SPAWN_SETSID);
}

}  // namespace sluice::cli
