// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// rollback.ms: `sluice rollback` with live connections on the version that goes, from the command to its end; the independent
// recorder says whether anything was left.
#include "harness/recorder.h"
#include "host/host.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kPeriod_ms = 2000;  // between two requests of a connection
constexpr test::Millis kTimeout(60000);

}  // namespace

Status measure_rollback(Run& run) {
  const std::uint64_t sockets = run.size<std::uint64_t>(10'000, 2'000);
  const auto& [old_cubic, new_cubic] = std::pair(run.workspace.old_cubic(), run.workspace.new_cubic());
  SLUICE_TRY(topology, test::Topology::create({.hosts = {{.name = "a"}}}));
  const test::Host& host = topology.host("a");
  SLUICE_TRY(recorder, test::Recorder::load());
  SLUICE_TRY(agent, Agent::start(run.workspace, host, {"rollback", {netns_path(host.netns_fd())}, host.cgroup()}));
  const std::string document = document_for({old_cubic, new_cubic}, new_cubic);
  SLUICE_TRY(first, agent.apply(document, true));
  SLUICE_TRY(held, hold_connections(host, sockets / 2, kPeriod_ms));
  Measurement rollback{
      .id = "rollback.ms",
      .params = {{"sockets", sockets}, {"requests_per_s", sockets / 2 * 1000 / kPeriod_ms}},
      .unit = "ms",
      .goal = Goal{"value", "<=", 300},
      .note = "`sluice rollback` from its start to its end; afterwards the recorder found no socket on the version"};
  for (int i = 0; i < run.size(9, 3); ++i) {
    if (i > 0) SLUICE_CHECK(agent.apply(document, true));
    SLUICE_TRY(faulty, agent.map_id(new_cubic));
    SLUICE_TRY(good, agent.map_id(old_cubic));
    SLUICE_TRY(ms, agent.timed_command({"rollback"}, kTimeout));
    SLUICE_TRY(seen, recorder.list(host.netns_fd()));
    std::uint64_t left = 0, moved = 0;
    for (const test::SocketRecord& socket : seen) {
      left += socket.full && socket.struct_ops_id == faulty;
      moved += socket.full && socket.struct_ops_id == good && socket.state == "ESTABLISHED";
    }
    if (left != 0 || moved < sockets)
      return fail(Code::kInternal, "after a rollback {} sockets run the version that was rolled back, {} of {} the other", left,
                  moved, sockets);
    rollback.samples.push_back(ms);
  }
  rollback.value = median(rollback.samples);
  run.report.add(std::move(rollback));
  return {};
}

}  // namespace sluice::bench
