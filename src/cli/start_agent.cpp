// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cli/start_agent.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/file.h"
#include "base/unique_fd.h"
#include "cli/client.h"

namespace sluice::cli {
namespace {

constexpr int kProbeEvery_ms = 20;
constexpr std::size_t kLogTailBytes = 4000;

// What the agent wrote since it was started.
std::string log_since(const std::string& log, std::size_t offset) {
  auto text = read_file(log);
  if (!text || text->size() <= offset) return {};
  std::string tail = text->substr(offset);
  if (tail.size() > kLogTailBytes) tail.erase(0, tail.size() - kLogTailBytes);
  return tail;
}

bool has_unit(Session& session, const std::string& unit) {
  if (::access(session.env().systemd_run_dir.c_str(), F_OK) != 0) return false;
  const auto shown = run_program({"systemctl", "cat", unit}, session.deadline(), session.interrupt_fd());
  return shown && shown->status == 0;
}

Status start_unit(Session& session, const std::string& unit) {
  ProgressLine progress(session);
  progress.show("starting " + unit);
  SLUICE_TRY(started, run_program({"systemctl", "start", unit}, session.deadline(), session.interrupt_fd()));
  if (started.status != 0) {
    Error error;
    error.code = Code::kUnavailable;
    error.where = unit;
    error.what = "systemd could not start the agent";
    error.remedy = fmt::format("see `journalctl -u {}`", unit);
    error.detail = started.err;
    return fail(std::move(error));
  }
  return {};
}

Status start_process(Session& session) {
  const InstancePaths& paths = session.paths();
  SLUICE_CHECK(make_dirs(paths.state_dir, 0750));
  std::size_t log_before = 0;
  if (const auto before = read_file(paths.log)) log_before = before->size();

  std::vector<std::string> argv = {session.env().agent_program};
  if (paths.instance != kDefaultInstance) argv.insert(argv.end(), {"--instance", paths.instance});
  if (session.socket() != paths.socket) argv.insert(argv.end(), {"--socket", session.socket()});
  if (session.call().has("bundle-path"))
    for (const std::string& root : session.bundle_path()) argv.insert(argv.end(), {"--bundle-path", root});
  ProgressLine progress(session);
  progress.show("starting sluiced");
  auto started = start_detached(argv, paths.log);
  if (!started) return fail(std::move(started).error().within("the agent").fix("install sluiced beside sluice, or into PATH"));

  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, *started, 0)));
  if (!process) return fail_errno(errno, "cannot watch the agent start");
  while (!probe_agent(session.socket())) {
    std::array<pollfd, 2> fds = {{{process.get(), POLLIN, 0}, {session.interrupt_fd(), POLLIN, 0}}};
    ::poll(fds.data(), fds.size(), poll_ms(session.deadline(), kProbeEvery_ms));
    Error error;
    error.where = paths.log;
    error.detail = log_since(paths.log, log_before);
    if (fds[0].revents != 0) {
      ::waitpid(*started, nullptr, 0);
      if (probe_agent(session.socket())) return {};  // another `up` was faster, and ours has left the field to its agent
      error.code = Code::kUnavailable;
      error.what = "the agent ended while it started";
      error.remedy = "its log says why (--verbose shows the end of it); `sluice doctor` shows what this host lacks";
      return fail(std::move(error));
    }
    if (fds[1].revents != 0 || passed(session.deadline())) {
      error.code = Code::kTimeout;
      error.what = fds[1].revents != 0
                       ? "interrupted; the agent goes on starting"
                       : fmt::format("the agent did not answer within {} s; it goes on starting", session.timeout_s());
      error.remedy = "`sluice status --wait` waits for it";
      return fail(std::move(error));
    }
  }
  return {};
}

}  // namespace

Status ensure_agent(Session& session) {
  Status probe = probe_agent(session.socket());
  if (probe || probe.error().code != Code::kUnavailable) return probe;
  const bool named = session.paths().instance != kDefaultInstance;
  const std::string unit = named ? fmt::format("sluiced@{}.service", session.paths().instance) : "sluiced.service";
  // A unit knows nothing of another socket or other bundles than its own.
  const bool own_way = session.socket() != session.paths().socket || session.call().has("bundle-path");
  if (own_way || !has_unit(session, unit)) return start_process(session);
  SLUICE_CHECK(start_unit(session, unit));
  return probe_agent(session.socket());  // the unit is of type notify: started means that it listens
}

}  // namespace sluice::cli
