// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The wall clock set forward and back by days while the agent works: what it does, in which order, and what it tells is the
// same, but for the times in its records. And what waits, waits by the monotonic clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "agent/sqlite_store.h"
#include "base/log.h"
#include "sim_host.h"

namespace sluice::sim {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDay_ns = int64_t{86'400} * 1'000'000'000;
constexpr uint64_t kSeeds = 6;

class AgentClock : public testing::Test {
 protected:
  void SetUp() override {
    init_log({LogLevel::kOff, LogFormat::kText, nullptr});
    std::string pattern = testing::TempDir() + "sluice-clock-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Changes, damage and its repair, a death and a recovery, and the end; what the agent told of it, oldest first.
  std::vector<std::string> live(uint64_t seed, bool jumps) {
    const std::string path = fmt::format("{}/{}-{}.db", folder_, seed, jumps);
    auto store = agent::SqliteStore::open(path);
    if (!store) {
      ADD_FAILURE() << store.error().message();
      return {};
    }
    Host host(bundles_, seed, store->get());
    SeededRandom random(seed);
    host.chaos.world = [&] {
      host.kernel.churn();
      host.clock.advance_ns(1'000'000);
      if (jumps) host.clock.jump_wall_ns((static_cast<int64_t>(random.below(5)) - 2) * kDay_ns);
    };
    State state = State::kNone;
    EXPECT_TRUE(host.start());
    for (const Op op : {Op::kApplyFirst, Op::kMigrate, Op::kApplySecond, Op::kRollback}) {
      const auto status = host.run(op);
      EXPECT_TRUE(status) << status.error().message();
      state = after(op, state);
      expect_state(host, state, fmt::format("seed {}", seed));
    }
    host.kernel.detach_by_somebody();
    EXPECT_TRUE(host.engine->maintain());
    host.chaos.arm(Chaos::Mode::kCrash, 2);
    EXPECT_THROW((void)host.run(Op::kMigrate), SimCrash);
    EXPECT_TRUE(host.start());
    EXPECT_TRUE(host.run(Op::kDown));
    expect_state(host, State::kNone, fmt::format("seed {}", seed));
    const auto events = (*store)->events(0, 1000);
    EXPECT_TRUE(events);
    std::vector<std::string> told;
    uint64_t last = 0;
    for (const auto& event : *events) {
      EXPECT_GT(event.id, last);
      last = event.id;
      told.push_back(event.kind + " " + event.severity + " " + event.message);
    }
    return told;
  }

  Bundles bundles_;
  std::string folder_;
};

TEST_F(AgentClock, a_wall_clock_that_is_set_changes_nothing_but_the_times_in_records) {
  for (uint64_t seed = 1; seed <= kSeeds && !HasFailure(); ++seed) {
    const auto told = live(seed, false);
    EXPECT_GE(told.size(), 6u);
    EXPECT_EQ(live(seed, true), told) << "seed " << seed;
  }
}

// A migration that never comes to its end stops at its deadline, and that is one of the monotonic clock.
TEST_F(AgentClock, a_deadline_is_one_of_the_monotonic_clock) {
  for (const int64_t jump : {-kDay_ns, int64_t{0}, kDay_ns}) {
    Host host(bundles_, 1);
    ASSERT_TRUE(host.start());
    ASSERT_TRUE(host.run(Op::kApplyFirst));
    constexpr uint64_t kPass_ns = 100'000'000, kTimeout_ms = 1'000;
    // Each walk takes 100 ms, and meanwhile somebody puts a connection on another CCA.
    host.chaos.world = [&] {
      host.clock.advance_ns(kPass_ns);
      host.clock.jump_wall_ns(jump);
      auto& socket = host.kernel.open_connection("10.2.0.7");
      socket.cca = "reno";
      socket.map_id = 0;
    };
    v1::MigrateRequest request;
    request.set_timeout_ms(kTimeout_ms);
    const uint64_t start = host.clock.monotonic_ns();
    const auto result = host.engine->migrate(request, [](const v1::Progress&) {});
    ASSERT_TRUE(result) << result.error().message();
    EXPECT_GT(result->passes(), 1u);
    EXPECT_LE(host.clock.monotonic_ns() - start, kTimeout_ms * 1'000'000 + 4 * kPass_ns);
    EXPECT_DOUBLE_EQ(result->duration_ms(), static_cast<double>(host.clock.monotonic_ns() - start) / 1e6);
  }
}

}  // namespace
}  // namespace sluice::sim
