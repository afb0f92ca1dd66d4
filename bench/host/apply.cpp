// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// apply.ms: a large policy on a host where nothing of ours is in the kernel, from the command to its end.
#include "base/file.h"
#include "host/host.h"

namespace sluice::bench {
namespace {

constexpr int kPrefixes = 10'000;
constexpr int kRules = 200;
constexpr test::Millis kTimeout(60000);

// Each rule but the last has a datacenter of its own, so that none is unreachable; every prefix is a rack of one of them.
std::string large_document(const std::string& bundle) {
  const auto at = bundle.find('@');
  std::string text = "apiVersion: sluice/v1\nkind: Host\nplace: {region: eu, datacenter: eu1}\ntopology:\n";
  for (int i = 0; i < kPrefixes; ++i)
    text += fmt::format("  - {{prefix: 10.{}.{}.0/24, region: us, datacenter: d{}, rack: r{}}}\n", i / 256, i % 256,
                        i % (kRules - 1), i);
  text += fmt::format("bundles:\n  - {{name: {}, version: {}}}\nrules:\n", bundle.substr(0, at), bundle.substr(at + 1));
  for (int i = 0; i < kRules - 1; ++i)
    text += fmt::format("  - {{match: {{place: us/d{}}}, use: \"{}\", init_cwnd: {}}}\n", i, bundle, 10 + i % 20);
  return text + fmt::format("  - {{use: \"{}\"}}\n", bundle);
}

}  // namespace

Status measure_apply(Run& run) {
  SLUICE_TRY(topology, test::Topology::create({.hosts = {{.name = "a"}}}));
  const test::Host& host = topology.host("a");
  SLUICE_TRY(agent, Agent::start(run.workspace, host, {"apply", {netns_path(host.netns_fd())}, host.cgroup()}));
  const std::string file = run.workspace.dir() + "/large.yaml";
  SLUICE_CHECK(write_file_atomic(file, large_document(run.workspace.old_cubic())));
  Measurement apply{
      .id = "apply.ms",
      .params = {{"prefixes", kPrefixes}, {"rules", kRules}, {"from", "nothing"}},
      .unit = "ms",
      .goal = Goal{"value", "<=", 1000},
      .note = "`sluice apply` from its start to its end: parse, compile, load both bundles, fill, publish, verify"};
  for (int i = 0; i < run.size(9, 3); ++i) {
    if (i > 0) {
      SLUICE_CHECK(agent.down());
      SLUICE_CHECK(agent.resume());
    }
    SLUICE_TRY(ms, agent.timed_command({"apply", file}, kTimeout));
    apply.samples.push_back(ms);
  }
  apply.value = median(apply.samples);
  run.report.add(std::move(apply));
  return {};
}

}  // namespace sluice::bench
