// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// migrate.ms_per_netns: a host full of containers, each with a process, a listener and one connection to itself.
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host/host.h"
#include "net/netns.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kSocketsPerNetns = 3;
constexpr test::Millis kReadyTimeout(30000);

// A container's one process: three sockets, then nothing until it is killed. Only system calls: it is a fork of a program with
// threads.
int contain() {
  // The program's own descriptors, or each container would hold every other one's namespace.
  if (::close_range(STDERR_FILENO + 1, ~0U, 0) != 0) return 1;
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0), client = ::socket(AF_INET, SOCK_STREAM, 0);
  ifreq loopback{{"lo"}, {}};
  loopback.ifr_flags = IFF_UP | IFF_RUNNING;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(80);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* address = reinterpret_cast<const sockaddr*>(&at);
  if (::ioctl(listener, SIOCSIFFLAGS, &loopback) != 0 || ::bind(listener, address, sizeof at) != 0 ||
      ::listen(listener, 16) != 0 || ::connect(client, address, sizeof at) != 0 || ::accept(listener, nullptr, nullptr) < 0 ||
      ::write(STDOUT_FILENO, "ready\n", 6) != 6)
    return 1;
  for (;;) ::pause();
}

}  // namespace

Status measure_many_netns(Run& run) {
  const std::size_t count = run.size<std::size_t>(300, 60);
  const auto& [old_cubic, new_cubic] = std::pair(run.workspace.old_cubic(), run.workspace.new_cubic());
  SLUICE_TRY(topology, test::Topology::create({.hosts = {{.name = "a"}}}));
  std::vector<test::Fd> namespaces;
  std::vector<test::Process> containers;
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < count; ++i) {
    SLUICE_TRY(netns, test::new_netns());
    paths.push_back(netns_path(netns.get()));
    SLUICE_TRY(container, test::Process::fork(contain, {.pipe_stdout = true},
                                              [&netns] { return ::setns(netns.get(), CLONE_NEWNET) == 0 ? 0 : errno; }));
    namespaces.push_back(std::move(netns));
    containers.push_back(std::move(container));
  }
  for (auto& container : containers) SLUICE_CHECK(container.read_line(kReadyTimeout));

  // Only these namespaces, because the machine's own connections are nobody's to move. What finding them costs is added below.
  SLUICE_TRY(agent, Agent::start(run.workspace, topology.host("a"), {"netns", paths, topology.host("a").cgroup()}));
  SLUICE_CHECK(agent.apply(document_for({old_cubic, new_cubic}, old_cubic), true));
  Measurement migrate{.id = "migrate.ms_per_netns",
                      .params = {{"netns", count}, {"sockets_per_netns", kSocketsPerNetns}},
                      .unit = "ms",
                      .goal = Goal{"value", "<=", 1.0}};
  std::vector<double> found_ms;
  std::string passes;
  for (int i = 0; i < run.size(9, 3); ++i) {
    const std::string& use = i % 2 == 0 ? new_cubic : old_cubic;
    const std::uint64_t start = now_ns();
    SLUICE_TRY(found, net::find_netns());
    found_ms.push_back(static_cast<double>(now_ns() - start) / 1e6);
    if (found.namespaces.size() < count)
      return fail(Code::kInternal, "{} of {} namespaces are found", found.namespaces.size(), count);
    // The first one in the list is what listeners carry: it changes with the rule.
    SLUICE_TRY(applied, agent.apply(document_for({use, use == new_cubic ? old_cubic : new_cubic}, use), true));
    const v1::MigrateResult& done = applied.migration();
    if (!done.complete() || done.moved() < count * kSocketsPerNetns)
      return fail(Code::kInternal, "{} of {} sockets moved", done.moved(), count * kSocketsPerNetns);
    passes = std::to_string(done.passes());
    migrate.samples.push_back((done.duration_ms() + found_ms.back() * done.passes()) / static_cast<double>(count));
  }
  migrate.value = median(migrate.samples);
  SLUICE_TRY(thorough, agent.migrate());
  migrate.note = fmt::format(
      "the migration of an `apply`, {} passes, the last of which verifies; of it {:.3f} ms for finding the namespaces of the "
      "whole "
      "machine, measured apart, in each pass. The command `migrate`, which walks every namespace's hash table: {:.3f} ms, {} "
      "passes",
      passes, median(found_ms) / static_cast<double>(count), thorough.duration_ms() / static_cast<double>(count),
      thorough.passes());
  run.report.add(std::move(migrate));
  return {};
}

}  // namespace sluice::bench
