// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A simulated host with an agent: kernel, store and clock that outlive the agent's deaths; two policies, and what each socket
// must run under them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "agent/engine.h"
#include "base/clock.h"
#include "chaos.h"
#include "sim_bundles.h"
#include "sim_kernel.h"
#include "sim_store.h"

namespace sluice::sim {

using agent::Engine;

inline constexpr char kHead[] = R"(
apiVersion: sluice/v1
kind: Host
place: {region: eu, datacenter: eu1, rack: r1}
)";
inline const std::string kFirstPolicy = std::string(kHead) + R"(
topology:
  - {prefix: 10.1.0.0/16, region: eu, datacenter: eu1}
  - {prefix: 10.2.0.0/16, region: us}
  - {prefix: 2001:db8::/32, region: us}
bundles:
  - {name: cubic, version: 1.0.0, parameters: {beta: 700}}
rules:
  - {name: near, match: {locality: [intra_rack, intra_dc, intra_region]}, use: "kernel:reno"}
  - {name: far, match: {locality: cross_region}, use: "cubic@1.0.0"}
  - {name: rest, match: {locality: [unknown, external]}, use: "kernel:bbr"}
)";
// A new version, other parameters, a moved prefix, a sysctl.
inline const std::string kSecondPolicy = std::string(kHead) + R"(
topology:
  - {prefix: 10.1.0.0/16, region: eu, datacenter: eu1}
  - {prefix: 10.2.0.0/16, region: us}
  - {prefix: 10.2.9.0/24, region: us, datacenter: us9}
  - {prefix: 2001:db8::/32, external: true}
bundles:
  - {name: cubic, version: 1.0.0, parameters: {beta: 800}}
  - name: cubic
    version: 2.0.0
    parameters: {beta: 600}
    overrides:
      - {match: {place: us/us9}, parameters: {beta: 500}}
rules:
  - {name: near, match: {locality: [intra_rack, intra_dc, intra_region]}, use: "kernel:reno"}
  - {name: far, match: {locality: cross_region}, use: "cubic@2.0.0"}
  - {name: rest, match: {locality: [unknown, external]}, use: "cubic@1.0.0"}
sysctls: {net.ipv4.tcp_ecn: 1}
)";

// What each remote runs under which policy: written by hand, so that nothing of the product judges itself.
struct Expectation {
  const char* remote;
  const char* first;
  const char* second;
  const char* rolled_back;
};
inline constexpr Expectation kExpected[] = {
    {"10.1.0.7", "reno", "reno", "reno"},
    {"10.2.0.7", "cubic.1.0.0", "cubic.2.0.0", "cubic.1.0.0"},
    {"10.2.9.7", "cubic.1.0.0", "cubic.2.0.0", "cubic.1.0.0"},
    {"192.0.2.1", "bbr", "cubic.1.0.0", "cubic.1.0.0"},
    {"2001:db8::7", "cubic.1.0.0", "cubic.1.0.0", "cubic.1.0.0"},
};

enum class Op { kApplyFirst, kApplySecond, kRollback, kMigrate, kDown };
enum class State { kNone, kFirst, kSecond, kRolledBack };

class Host {
 public:
  // `instead` is the store the agent uses; nullptr = `store`.
  Host(const Bundles& bundles, uint64_t seed, agent::Store* instead = nullptr)
      : bundles_(bundles), kernel(chaos, seed), store(chaos), used_store_(instead != nullptr ? instead : &store) {
    chaos.world = [this] { kernel.churn(); };
  }

  // Starts an agent, as systemd would after a death.
  Status start() {
    engine = std::make_unique<Engine>(kernel, *used_store_, clock, [this] { return bundles_.scan(); }, agent::EngineOptions{});
    return engine->recover();
  }

  Status run(Op op) {
    const auto drop = [](auto&& result) -> Status {
      if (!result) return tl::unexpected<Error>(result.error());
      return {};
    };
    const auto quiet = [](const v1::Progress&) {};
    v1::ApplyRequest apply;
    apply.set_source_name("policy.yaml");
    switch (op) {
      case Op::kApplyFirst:
        apply.set_document(kFirstPolicy);
        return drop(engine->apply(apply, quiet));
      case Op::kApplySecond:
        apply.set_document(kSecondPolicy);
        return drop(engine->apply(apply, quiet));
      case Op::kRollback:
        return drop(engine->rollback({}, quiet));
      case Op::kMigrate:
        return drop(engine->migrate({}, quiet));
      case Op::kDown:
        return drop(engine->down({}, quiet));
    }
    return {};
  }

  const Bundles& bundles_;
  Chaos chaos;
  FakeClock clock;
  SimKernel kernel;
  SimStore store;
  agent::Store* used_store_;
  std::unique_ptr<Engine> engine;
};

// Every socket, old and new, runs what `state` says, and nothing else is left in the kernel.
inline void expect_state(Host& host, State state, const std::string& schedule) {
  SCOPED_TRACE(schedule);
  EXPECT_EQ(host.kernel.broken_invariant, "");
  EXPECT_FALSE(host.store.journal_open());
  if (state == State::kNone) {
    EXPECT_FALSE(host.kernel.anything_pinned());
    EXPECT_EQ(host.kernel.sysctls().at("net.ipv4.tcp_ecn"), "2");
    for (const auto& socket : host.kernel.all_sockets()) EXPECT_EQ(socket.map_id, 0u) << socket.cca;
    return;
  }
  EXPECT_TRUE(host.kernel.hook());
  EXPECT_EQ(host.kernel.sysctls().at("net.ipv4.tcp_ecn"), state == State::kFirst ? "2" : "1");
  std::set<std::string> ids;
  for (const auto& [id, cca] : host.kernel.ccas()) ids.insert(id);
  const std::set<std::string> expected_ids =
      state == State::kSecond ? std::set<std::string>{"cubic@1.0.0", "cubic@2.0.0"} : std::set<std::string>{"cubic@1.0.0"};
  EXPECT_EQ(ids, expected_ids);
  for (const auto& expected : kExpected) {
    const auto& socket = host.kernel.open_connection(expected.remote);
    EXPECT_EQ(socket.cca, state == State::kFirst    ? expected.first
                          : state == State::kSecond ? expected.second
                                                    : expected.rolled_back)
        << expected.remote;
  }
  for (const auto& socket : host.kernel.all_sockets()) {
    if (socket.listener) {
      EXPECT_EQ(socket.cca, "cubic.1.0.0");
      continue;
    }
    for (const auto& expected : kExpected) {
      if (*policy::parse_prefix(expected.remote) != socket.remote) continue;
      EXPECT_EQ(socket.cca, state == State::kFirst    ? expected.first
                            : state == State::kSecond ? expected.second
                                                      : expected.rolled_back)
          << "a socket to " << expected.remote << " was left behind";
    }
  }
}

inline State after(Op op, State before) {
  switch (op) {
    case Op::kApplyFirst:
      return State::kFirst;
    case Op::kApplySecond:
      return State::kSecond;
    case Op::kRollback:
      return State::kRolledBack;
    case Op::kMigrate:
      return before;
    case Op::kDown:
      return State::kNone;
  }
  return before;
}

}  // namespace sluice::sim
