// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The CCA SDK and bundle `cubic` in the kernel: registration, window, marks, migration, hand-over, and every way in which
// something is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "bpf/cca_fixture.h"
#include "harness/process.h"

namespace sluice::test {
namespace {

// Own counters of cubic (cubic.bpf.c).
enum : std::uint32_t {
  kCountLoss = SL_CCA_COUNTER_OWN,
  kCountMark,
  kCountMarkThenLoss,
  kCountUndo,
  kCountTrain,
  kCountDelay,
  kCountBounded
};

// sl_present, beta, c, fast_convergence, reno_friendly, ecn_reduction, ecn_drain, ecn_window, hystart, min_segments, spacing
const std::vector<std::uint64_t> kDefaults = {1, 70, 400, 1, 1, 30, 110, 16, 3, 16, 2000};
constexpr std::size_t kC = 2, kRenoFriendly = 4, kEcnDrain = 6;

// In the private state: sl_core.params, and cubic's alpha_1024 right behind struct sl_core.
constexpr std::uint32_t kParamsOffset = 28, kAlphaOffset = 32;

// ---- registration ------------------------------------------------------------------------------------------------------

bpfio::Object open_points() { return must(bpfio::Object::open_file(Cca::path("tests/bpf/cca_points.o"))); }

TEST(Registration, TwoVersionsLiveSideBySideAndANameIsTakenOnce) {
  Cca a(Cca::cubic(nullptr, "a"));
  Cca b(Cca::cubic(nullptr, "b"));
  bpfio::Object again = must(bpfio::Object::open_file(Cca::path(Cca::kCubic)));
  must(again.set_struct_ops_name("cubic", a.name()));
  must(again.load());
  auto link = again.attach_struct_ops("cubic");
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().code, Code::kConflict) << link.error().message();
}

TEST(Registration, ANativeNameIsTaken) {
  bpfio::Object object = must(bpfio::Object::open_file(Cca::path(Cca::kCubic)));
  must(object.set_struct_ops_name("cubic", "cubic"));
  must(object.load());
  auto link = object.attach_struct_ops("cubic");
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().code, Code::kConflict) << link.error().message();
}

TEST(Registration, NamesThatTheKernelDoesNotTakeAreRefused) {
  for (const char* name : {"", "has-hyphen", "sixteen_letters_", "a b"}) {
    bpfio::Object object = must(bpfio::Object::open_file(Cca::path(Cca::kCubic)));
    auto set = object.set_struct_ops_name("cubic", name);
    EXPECT_FALSE(set) << name;
  }
}

TEST(Registration, AHookThatTheKernelRequiresMustBeThere) {
  bpfio::Object object = open_points();
  for (const std::string& map : object.struct_ops_names())
    must(object.set_struct_ops_name(map, "sltr" + std::to_string(getpid())));
  must(object.load());
  for (const char* refused : {"no_ssthresh", "no_undo", "no_growth", "bad_flags"}) {
    auto link = object.attach_struct_ops(refused);
    EXPECT_FALSE(link) << refused;
  }
  EXPECT_TRUE(object.attach_struct_ops("points_avoid"));
}

TEST(Registration, TheVerifierReadsLittle) {
  Cca cubic(Cca::cubic(nullptr));
  std::uint32_t total = 0;
  for (const std::string& name : cubic.object().program_names()) {
    const auto info = must(must(cubic.object().program(name)).info());
    RecordProperty(name, std::to_string(info.verified_insns));
    EXPECT_LT(info.verified_insns, 15000U) << name;  // the limit is 1,000,000
    total += info.verified_insns;
  }
  EXPECT_GT(total, 0U);
  EXPECT_LT(total, 25000U);
}

// ---- the window --------------------------------------------------------------------------------------------------------

TEST(Cubic, KeepsBetaOfTheWindowAtALossAndGrowsOnFromThere) {
  Path path(kLine);
  path.on_data([](const Packet& p) { return Fate{.drop = p.number == 600}; });
  Cca cubic(Cca::cubic(nullptr));
  Trace trace(path);
  Flow flow(path, cubic.name());
  flow.start();
  ASSERT_TRUE(trace.until([&](const auto&) { return trace.entered(kRecovery).has_value(); }));
  const auto loss = *trace.entered(kRecovery);
  EXPECT_GE(loss.prior_cwnd, 20U);
  EXPECT_EQ(loss.ssthresh, loss.prior_cwnd * 70 / 100);
  EXPECT_EQ(cubic.count(kCountLoss), 1U);
  EXPECT_EQ(cubic.count(kCountMark), 0U);
  // After recovery the window is ssthresh, and grows beyond where it was.
  EXPECT_TRUE(trace.until([&](const auto& events) {
    return events.back().state == kOpen && events.back().time_ns > loss.time_ns && events.back().cwnd > loss.prior_cwnd;
  }));
  EXPECT_GE(cubic.count(SL_CCA_RTT), 20U);
  EXPECT_EQ(cubic.count(SL_CCA_INIT), 1U);
}

TEST(Cubic, ReturnsConcavelyToWMaxAndLeavesItConvexly) {
  Path path({.one_way_us = 10000, .rate_bytes_per_s = 6000000});
  path.on_data([](const Packet& p) { return Fate{.drop = p.number == 1500}; });
  Cca cubic(Cca::cubic(nullptr));
  auto params = kDefaults;
  params[kC] = 4000;
  params[kRenoFriendly] = 0;
  cubic.set_params(params);
  Trace trace(path);
  Flow flow(path, cubic.name());
  flow.start();
  ASSERT_TRUE(trace.until([&](const auto&) { return trace.entered(kRecovery) && trace.entered(kOpen); }));
  const auto loss = *trace.entered(kRecovery);
  const std::uint64_t start = trace.entered(kOpen)->time_ns;
  const double w_max = loss.prior_cwnd;
  const double k_s = std::cbrt(w_max * 0.3 / 4.0);
  auto at = [&](double k) { return start + static_cast<std::uint64_t>(k * k_s * 1e9); };
  ASSERT_TRUE(trace.until([&](const auto& events) { return events.back().time_ns > at(2.1); }));
  ASSERT_EQ(trace.changes_to(kRecovery).size(), 1U) << "a loss nobody asked for";
  auto w = [&](double k) { return static_cast<double>(trace.at(at(k))->cwnd); };
  EXPECT_NEAR(w(0), 0.7 * w_max, 2);
  EXPECT_NEAR(w(1), w_max, 0.05 * w_max);
  EXPECT_GT(w(2), 1.2 * w_max);
  EXPECT_GT(w(0.5) - w(0), 2 * (w(1) - w(0.5))) << "concave below W_max";
  EXPECT_GT(w(2) - w(1.5), 2 * (w(1.5) - w(1))) << "convex above it";
  EXPECT_EQ(cubic.count(SL_CCA_NO_PARAMS), 0U);
}

TEST(Cubic, LeavesSlowStartBeforeTheQueueIsFull) {
  Path path(kLine);  // an endless queue: without HyStart nothing would end slow start
  Cca cubic(Cca::cubic(nullptr));
  Trace trace(path);
  Flow flow(path, cubic.name());
  flow.start();
  ASSERT_TRUE(trace.until([](const auto& events) { return !events.empty() && events.back().ssthresh < 0x7fffffff; }));
  EXPECT_EQ(cubic.count(kCountTrain) + cubic.count(kCountDelay), 1U);
  EXPECT_LT(trace.events().back().ssthresh, 400U);  // ten times what the path holds
  EXPECT_EQ(cubic.count(kCountLoss), 0U);
}

TEST(Cubic, AnUndoneReductionGivesTheWindowBack) {
  Path path(kLine);
  // Late, not lost: the sender retransmits, then the original's acknowledgement shows that it need not have.
  path.on_data([](const Packet& p) { return Fate{.hold_us = p.number == 600 ? 15000u : 0u}; });
  Cca cubic(Cca::cubic(nullptr));
  Trace trace(path);
  Flow flow(path, cubic.name());
  flow.start();
  ASSERT_TRUE(trace.until([&](const auto&) { return trace.entered(kRecovery).has_value(); }));
  const auto loss = *trace.entered(kRecovery);
  EXPECT_EQ(loss.ssthresh, loss.prior_cwnd * 70 / 100);
  ASSERT_TRUE(trace.until([&](const auto& events) { return cubic.count(kCountUndo) > 0 && events.back().state == kOpen; }));
  EXPECT_GE(trace.events().back().cwnd, loss.prior_cwnd);
}

// ---- marks -------------------------------------------------------------------------------------------------------------

std::uint32_t after_mark(std::uint32_t cwnd, std::uint32_t alpha) {
  return std::max<std::uint32_t>(cwnd - std::max<std::uint32_t>(static_cast<std::uint64_t>(cwnd) * alpha * 30 / 102400, 1), 2);
}

// The marked fraction alone decides.
std::vector<std::uint64_t> without_drain() {
  auto params = kDefaults;
  params[kEcnDrain] = 0;
  return params;
}

TEST(Cubic, AMarkCostsItsShareAtMostOncePerRtt) {
  PathSpec spec = kLine;
  spec.ecn = true;
  Path path(spec);
  std::atomic<bool> mark_all = false;
  path.on_data([&](const Packet& p) { return Fate{.mark = p.number == 2500 || mark_all}; });
  Cca cubic(Cca::cubic(nullptr));
  cubic.set_params(without_drain());
  Trace trace(path, kAlphaOffset);
  Flow flow(path, cubic.name());
  ASSERT_TRUE(flow.ecn());
  flow.start();

  // One mark on a path without marks: next to nothing.
  ASSERT_TRUE(trace.until([&](const auto&) { return trace.entered(kCwr).has_value(); }));
  const auto first = *trace.entered(kCwr);
  EXPECT_GE(first.prior_cwnd, 20U);
  EXPECT_LT(first.private_word, 200U);
  EXPECT_EQ(first.ssthresh, after_mark(first.prior_cwnd, first.private_word));
  EXPECT_GT(first.ssthresh, first.prior_cwnd * 94 / 100);

  // Every packet marked: more each RTT, never more than a loss would, and exactly alpha's share.
  mark_all = true;
  ASSERT_TRUE(trace.until([&](const auto&) { return trace.changes_to(kCwr).size() >= 12; }));
  const auto cuts = trace.changes_to(kCwr);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    EXPECT_EQ(cuts[i].ssthresh, after_mark(cuts[i].prior_cwnd, cuts[i].private_word)) << "cut " << i;
    if (i == 0) continue;
    EXPECT_GE(static_cast<std::int32_t>(cuts[i].snd_una - cuts[i - 1].snd_nxt), 0) << "twice in one RTT, cut " << i;
    if (i > 1) {
      EXPECT_GE(cuts[i].private_word, cuts[i - 1].private_word);
    }
  }
  EXPECT_GT(cuts.back().private_word, 300U);
  EXPECT_GT(path.marked(), 20U);
  EXPECT_GE(cubic.count(kCountMark), cuts.size());
  EXPECT_EQ(cubic.count(kCountLoss), 0U);
  EXPECT_EQ(flow.info().tcpi_total_retrans, 0U);
}

// An RTT above the least one is a queue, and the own part of it goes at a mark, up to 65 % of the window.
TEST(Cubic, AMarkGivesUpTheOwnQueue) {
  for (const std::uint32_t queue_us : {1000, 60000}) {
    PathSpec spec = kLine;
    spec.ecn = true;
    Path path(spec);
    const std::uint32_t least_us = 2 * spec.one_way_us;
    path.on_data([&](const Packet& p) {
      if (p.number == 1000) path.delay(0, queue_us);
      return Fate{.mark = p.number == 2500};
    });
    Cca cubic(Cca::cubic(nullptr));
    cubic.set_params(kDefaults);
    Trace trace(path, kAlphaOffset);
    Flow flow(path, cubic.name());
    flow.start();
    ASSERT_TRUE(trace.until([&](const auto&) { return trace.entered(kCwr).has_value(); }));
    const auto mark = *trace.entered(kCwr);
    const std::uint32_t most = mark.prior_cwnd * 65 / 100, cut = mark.prior_cwnd - mark.ssthresh;
    EXPECT_LE(cut, std::max(most, 1U));
    if (queue_us > least_us) {
      EXPECT_EQ(cut, most) << "a window of which three quarters wait";
    } else {
      EXPECT_LE(cut, std::max(mark.prior_cwnd * (mark.srtt_us - least_us) / mark.srtt_us * 11 / 10 + 2,
                              mark.prior_cwnd - after_mark(mark.prior_cwnd, mark.private_word)));
    }
  }
}

TEST(Cubic, ALossBehindAMarkIsALoss) {
  PathSpec spec = kLine;
  spec.ecn = true;
  Path path(spec);
  path.on_data([](const Packet& p) { return Fate{.drop = p.number == 2505, .mark = p.number == 2500}; });
  Cca cubic(Cca::cubic(nullptr));
  cubic.set_params(without_drain());
  Trace trace(path, kAlphaOffset);
  Flow flow(path, cubic.name());
  flow.start();
  ASSERT_TRUE(trace.until([&](const auto& events) {
    return !events.empty() && events.back().kind == CCA_TRACE_ACK && events.back().state == kRecovery;
  }));
  const auto mark = trace.entered(kCwr);
  ASSERT_TRUE(mark) << "the mark came first";
  EXPECT_GT(mark->ssthresh, mark->prior_cwnd * 94 / 100);
  EXPECT_EQ(trace.events().back().ssthresh, mark->prior_cwnd * 70 / 100);
  EXPECT_EQ(cubic.count(kCountMarkThenLoss), 1U);
  EXPECT_EQ(cubic.count(kCountMark), 1U);
  EXPECT_EQ(cubic.count(kCountLoss), 0U);
}

// ---- migration ---------------------------------------------------------------------------------------------------------

class Migration : public testing::Test {
 protected:
  // Everything to `cca`; with self-migration.
  std::uint64_t publish(const sl_verdict& verdict, bool self = true) { return publish_for_all(policy, verdict, self); }
  // Gives the socket a storage, as user space does for the logger.
  void store(const Flow& flow, std::uint32_t flags) const {
    sl_sock storage{};
    storage.flags = flags;
    const int fd = flow.fd();
    must(bpf_map_update_elem(policy.map("sl_sock"), &fd, &storage, BPF_ANY) == 0, "sl_sock");
  }
  static bool runs(const std::vector<Trace::Event>& events, const std::string& cca) {
    return !events.empty() && events.back().cca == cca;
  }
  static std::uint64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000000000 + static_cast<std::uint64_t>(now.tv_nsec);
  }
  // RTTs (windows of data) from `since` to the first event of `cca`, counted in the trace.
  static int rtts_until(const std::vector<Trace::Event>& events, std::uint64_t since, const std::string& cca) {
    int rtts = 0;
    std::optional<std::uint32_t> end;
    for (const auto& e : events) {
      if (e.time_ns < since || e.kind != CCA_TRACE_ACK) continue;
      if (e.cca == cca) return rtts;
      if (!end || static_cast<std::int32_t>(e.snd_una - *end) >= 0) {
        end = e.snd_nxt;
        ++rtts;
      }
    }
    return -1;
  }
  static void grown(Trace& trace) {
    ASSERT_TRUE(trace.until([](const auto& events) { return events.size() > 300 && events.back().ssthresh < 0x7fffffff; }));
  }

  PolicyObject policy;
};

TEST_F(Migration, ABusySocketMovesItselfAndKeepsWindowAndKnowledge) {
  Path path(kLine);
  Cca old_version(Cca::cubic(&policy, "a")), new_version(Cca::cubic(&policy, "b"));
  Trace trace(path);
  publish(verdict(old_version.name(), 1));
  Flow flow(path, old_version.name());
  flow.start();
  grown(trace);
  EXPECT_EQ(new_version.count(SL_CCA_INIT), 0U);

  publish(verdict(new_version.name(), 7, "", 0, 3));
  const std::uint64_t since = now_ns();
  ASSERT_TRUE(trace.until([&](const auto& events) { return runs(events, new_version.name()); }));

  const auto& events = trace.events();
  const int rtts = rtts_until(events, since, new_version.name());
  EXPECT_GE(rtts, 0);
  EXPECT_LE(rtts, 2);
  for (std::size_t i = 1; i < events.size(); ++i) {
    if (events[i].cca != new_version.name() || events[i - 1].cca == new_version.name()) continue;
    EXPECT_NEAR(events[i].cwnd, events[i - 1].cwnd, 2) << "the window survives";
    EXPECT_EQ(events[i].ssthresh, events[i - 1].ssthresh);
  }
  EXPECT_EQ(flow.cca(), new_version.name());
  EXPECT_EQ(old_version.count(SL_CCA_SELF_MOVED), 1U);
  EXPECT_EQ(old_version.count(SL_CCA_RELEASE), 1U);
  EXPECT_EQ(new_version.count(SL_CCA_INIT), 1U);
  EXPECT_EQ(new_version.count(SL_CCA_STATE_ADOPTED), 1U);
  EXPECT_EQ(new_version.count(kCountBounded), 0U);
  EXPECT_EQ(policy.counter(SL_POLICY_SELF_MOVED), 1U);
  EXPECT_FALSE(policy.storage(flow.fd()));

  const std::uint64_t received = flow.received();
  EXPECT_TRUE(trace.until([&](const auto&) { return flow.received() > received + 200000; })) << "the transfer goes on";
}

struct Point {
  const char* name;
  const char* struct_ops;
  std::uint64_t point;
};
class MigrationFrom : public Migration, public testing::WithParamInterface<Point> {};

TEST_P(MigrationFrom, ASwitchFromInsideTheHookWorksAndHandsOver) {
  Path path(kLine);
  const Point& where = GetParam();
  Cca points({.file = "tests/bpf/cca_points.o",
              .struct_ops = where.struct_ops,
              .suffix = "p",
              .configure = [&](bpfio::Object& object) { must(object.set_rodata("point", where.point)); },
              .policy = &policy});
  Cca cubic(Cca::cubic(&policy, "b"));
  Trace trace(path, kAlphaOffset);
  publish(verdict(points.name(), 1));
  Flow flow(path, points.name());
  flow.start();
  ASSERT_TRUE(trace.until([](const auto& events) { return events.size() > 200; }));
  publish(verdict(cubic.name(), 1));
  ASSERT_TRUE(trace.until([&](const auto& events) { return runs(events, cubic.name()); }));
  EXPECT_EQ(points.count(SL_CCA_SELF_MOVED), 1U);
  EXPECT_EQ(points.count(SL_CCA_SELF_FAILED), 0U);
  EXPECT_EQ(cubic.count(SL_CCA_STATE_ADOPTED), 1U);
  EXPECT_EQ(trace.events().back().private_word, 256U) << "alpha as the other CCA had learned it";
  EXPECT_EQ(cubic.count(kCountBounded), 1U) << "no ssthresh, and not in slow start";
  EXPECT_LT(trace.events().back().ssthresh, 0x7fffffffU);
  const std::uint64_t received = flow.received();
  EXPECT_TRUE(trace.until([&](const auto&) { return flow.received() > received + 200000; }));
}
INSTANTIATE_TEST_SUITE_P(Hooks, MigrationFrom,
                         testing::Values(Point{"cong_avoid", "points_avoid", 1}, Point{"cong_control", "points_ctl", 2},
                                         Point{"in_ack_event", "points_avoid", 3}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(Migration, TheIteratorHandsOverAlike) {
  Path path(kLine);
  Cca old_version(Cca::cubic(&policy, "a")), new_version(Cca::cubic(&policy, "b"));
  Trace trace(path);
  publish(verdict(old_version.name(), 1), false);
  Flow flow(path, old_version.name());
  flow.start();
  grown(trace);
  publish(verdict(new_version.name(), 1), false);
  const std::uint64_t rtts = old_version.count(SL_CCA_RTT);
  ASSERT_TRUE(trace.until([&](const auto&) { return old_version.count(SL_CCA_RTT) > rtts + 3; }));
  policy.set_args(SL_ITER_MIGRATE, SL_ITER_REPORT_ALL);
  path.in(0, [&] { policy.iterate<sl_report>("sl_iter_migrate"); });
  ASSERT_TRUE(trace.until([&](const auto& events) { return runs(events, new_version.name()); }));
  EXPECT_EQ(old_version.count(SL_CCA_SELF_MOVED), 0U) << "self-migration is off in this generation";
  EXPECT_EQ(old_version.count(SL_CCA_NO_VERDICT), 0U);
  EXPECT_EQ(new_version.count(SL_CCA_STATE_ADOPTED), 1U);
  EXPECT_EQ(new_version.count(kCountBounded), 0U);
}

TEST_F(Migration, ASocketFromBbrKeepsItsWindowAndComesBackOutOfCubic) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy));
  Trace trace(path);
  Flow flow(path, "bbr");
  flow.start();
  ASSERT_TRUE(trace.until([](const auto& events) { return events.size() > 1000; }));
  flow.set_cca(cubic.name());
  ASSERT_TRUE(trace.until([&](const auto& events) { return runs(events, cubic.name()); }));
  const auto& events = trace.events();
  const auto last_of_bbr =
      std::find_if(events.rbegin(), events.rend(), [](const auto& e) { return std::string("bbr") == e.cca; });
  ASSERT_NE(last_of_bbr, events.rend());
  EXPECT_GE(events.back().cwnd + 2, last_of_bbr->cwnd);
  EXPECT_LT(events.back().ssthresh, 0x7fffffffU) << "not a slow start without an end";
  EXPECT_GE(events.back().ssthresh, 10U);
  const std::uint64_t received = flow.received();
  EXPECT_TRUE(trace.until([&](const auto&) { return flow.received() > received + 200000; }));
  EXPECT_EQ(cubic.count(kCountLoss), 0U) << "no burst";
  flow.set_cca("reno");
  EXPECT_EQ(cubic.count(SL_CCA_RELEASE), 1U);
}

class Rescoping : public Migration, public testing::WithParamInterface<bool> {};

TEST_P(Rescoping, ANewGenerationWithTheSameCcaBringsItsParametersWithoutAnIterator) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy));
  Trace trace(path, kParamsOffset);
  publish(verdict(cubic.name(), 1, "", 0, 4), GetParam());
  Flow flow(path, cubic.name());
  flow.start();
  ASSERT_TRUE(trace.until([](const auto& events) { return !events.empty(); }));
  ASSERT_TRUE(trace.until([](const auto& events) { return events.back().private_word == 4; }));
  for (const auto& e : trace.events()) {
    if (e.private_word == 4) break;
    EXPECT_LE(e.delivered, 1U) << "before the first ACK of data";
  }
  grown(trace);
  EXPECT_EQ(cubic.count(SL_CCA_RESCOPED), 0U);
  publish(verdict(cubic.name(), 2, "", 0, 9), GetParam());
  const std::uint64_t since = now_ns();
  ASSERT_TRUE(trace.until([&](const auto& events) { return events.back().private_word == 9; }));
  EXPECT_EQ(cubic.count(SL_CCA_RESCOPED), 1U);
  // One RTT until the point, one until the trace shows it.
  int rtts = 0;
  std::optional<std::uint32_t> end;
  for (const auto& e : trace.events()) {
    if (e.time_ns < since || e.kind != CCA_TRACE_ACK || e.private_word == 9) continue;
    if (!end || static_cast<std::int32_t>(e.snd_una - *end) >= 0) end = e.snd_nxt, ++rtts;
  }
  EXPECT_LE(rtts, 2);
  const std::uint64_t rounds = cubic.count(SL_CCA_RTT);
  ASSERT_TRUE(trace.until([&](const auto&) { return cubic.count(SL_CCA_RTT) > rounds + 5; }));
  EXPECT_EQ(cubic.count(SL_CCA_RESCOPED), 1U) << "asked once per generation";
  EXPECT_EQ(cubic.count(SL_CCA_INIT), 1U);
  EXPECT_EQ(cubic.count(SL_CCA_RELEASE), 0U);
  EXPECT_FALSE(policy.storage(flow.fd()));
}
INSTANTIATE_TEST_SUITE_P(SelfMigration, Rescoping, testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "on" : "off"); });

TEST_F(Migration, ACcaThatNeedsEcnIsNotTakenWithoutIt) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy, "a")), fallback(Cca::cubic(&policy, "b"));
  Cca needs_ecn({.file = "tests/bpf/cca_points.o", .struct_ops = "points_ecn", .suffix = "e", .policy = &policy});
  Trace trace(path);
  publish(verdict(cubic.name(), 1));
  Flow flow(path, cubic.name());
  flow.start();
  grown(trace);
  publish(verdict(needs_ecn.name(), 1, fallback.name()));
  ASSERT_TRUE(trace.until([&](const auto& events) { return runs(events, fallback.name()); }));
  EXPECT_EQ(needs_ecn.count(SL_CCA_INIT), 0U);
  EXPECT_EQ(cubic.count(SL_CCA_ECN_FALLBACK), 1U);
}

TEST_F(Migration, ARefusedSwitchLeavesTheSocketToTheIterator) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy));
  Trace trace(path);
  publish(verdict(cubic.name(), 1));
  Flow flow(path, cubic.name());
  flow.start();
  grown(trace);
  publish(verdict("slt_nobody", 1));
  ASSERT_TRUE(trace.until([&](const auto&) { return cubic.count(SL_CCA_SELF_FAILED) > 0; }));
  EXPECT_EQ(flow.cca(), cubic.name());
  policy.set_args(SL_ITER_MIGRATE, SL_ITER_DRY_RUN | SL_ITER_REPORT_ALL);
  path.in(0, [&] {
    const auto records = policy.iterate<sl_report>("sl_iter_migrate");
    ASSERT_EQ(records.size(), 1U);
    EXPECT_EQ(records[0].outcome, SL_OUTCOME_MOVED) << "still to do";
    EXPECT_EQ(records[0].generation, 0U);
  });
}

TEST_F(Migration, NothingMovesWithoutARule) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy));
  Trace trace(path);
  publish(verdict(cubic.name(), 1));
  Flow flow(path, cubic.name());
  flow.start();
  grown(trace);
  const std::uint64_t empty = policy.publish({});
  policy.set_generation_entry(empty, {empty, SL_GEN_SELF_MIGRATE, 0, {}});
  ASSERT_TRUE(trace.until([&](const auto&) { return cubic.count(SL_CCA_NO_VERDICT) > 1; }));
  EXPECT_EQ(flow.cca(), cubic.name());
}

TEST_F(Migration, WhomThePolicyDidNotChooseLeavesAtItsFirstRtt) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy, "a")), other(Cca::cubic(&policy, "b"));
  Trace trace(path, kParamsOffset);
  publish(verdict(other.name(), 1, "", 0, 5));
  Flow flow(path, cubic.name());  // as an application may
  EXPECT_EQ(flow.cca(), cubic.name()) << "not within the handshake";
  flow.start();
  ASSERT_TRUE(trace.until([&](const auto& events) { return runs(events, other.name()); }));
  EXPECT_EQ(trace.events().front().private_word, 0U) << "the global set meanwhile";
  ASSERT_TRUE(trace.until([&](const auto& events) { return events.back().private_word == 5; }));
  EXPECT_EQ(cubic.count(SL_CCA_SELF_MOVED), 1U);
}

TEST_F(Migration, ASocketThatIsMovedInHasItsParametersAfterOneRtt) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy));
  Trace trace(path, kParamsOffset);
  publish(verdict(cubic.name(), 1, "", 0, 6), false);
  Flow flow(path, "reno");
  flow.start();
  ASSERT_TRUE(trace.until([](const auto& events) { return events.size() > 300; }));
  const std::uint64_t since = now_ns();
  flow.set_cca(cubic.name());
  ASSERT_TRUE(trace.until([&](const auto& events) { return runs(events, cubic.name()) && events.back().private_word == 6; }));
  int rtts = 0;
  std::optional<std::uint32_t> end;
  for (const auto& e : trace.events()) {
    if (e.time_ns < since || cubic.name() != e.cca || e.private_word == 6) continue;
    if (!end || static_cast<std::int32_t>(e.snd_una - *end) >= 0) end = e.snd_nxt, ++rtts;
  }
  EXPECT_LE(rtts, 1);
  EXPECT_EQ(cubic.count(SL_CCA_RESCOPED), 0U);
}

// Between a release and an init that are not of one switch; on one CPU, as in one.
class HandOver : public Migration {
 protected:
  // Runs `change` on what every CPU has on its way.
  void change(const std::function<void(sl_handover&)>& change) const {
    std::vector<sl_handover> slots(static_cast<std::size_t>(libbpf_num_possible_cpus()));
    const std::uint32_t zero = 0;
    must(bpf_map_lookup_elem(policy.map("sl_handover"), &zero, slots.data()) == 0, "sl_handover");
    for (sl_handover& slot : slots) change(slot);
    must(bpf_map_update_elem(policy.map("sl_handover"), &zero, slots.data(), BPF_ANY) == 0, "sl_handover");
  }
  // A connection that learned something, then left cubic for reno.
  void leave(Flow& flow, Trace& trace) const {
    flow.start();
    grown(trace);
    flow.set_cca("reno");
  }

 private:
  OneCpu pinned_;
};

TEST_F(HandOver, NothingIsLeftBeforeAnythingWasLearned) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy));
  Trace trace(path);
  Flow flow(path, cubic.name());
  flow.set_cca("reno");
  EXPECT_EQ(cubic.count(SL_CCA_RELEASE), 1U);
  change([](const sl_handover& slot) { EXPECT_EQ(slot.owner, 0U) << "only the handshake was acknowledged"; });
  flow.set_cca(cubic.name());
  leave(flow, trace);
  int left = 0;
  change([&](const sl_handover& slot) { left += slot.owner != 0; });
  EXPECT_EQ(left, 1);
  flow.set_cca(cubic.name());
  EXPECT_EQ(cubic.count(SL_CCA_STATE_ADOPTED), 1U);
  change([](const sl_handover& slot) { EXPECT_EQ(slot.owner, 0U) << "taken"; });
  EXPECT_EQ(cubic.count(SL_CCA_STATE_LOST), 0U);
}

TEST_F(HandOver, WhatIsTooOldIsRefused) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy));
  Trace trace(path);
  Flow flow(path, cubic.name());
  leave(flow, trace);
  change([](sl_handover& slot) { slot.time_ns -= (SL_HANDOVER_MS_MAX + 100) * 1'000'000ULL; });
  flow.set_cca(cubic.name());
  EXPECT_EQ(cubic.count(SL_CCA_STATE_REFUSED), 1U);
  EXPECT_EQ(cubic.count(SL_CCA_STATE_ADOPTED), 0U);
}

TEST_F(HandOver, WhatWasLeftByASocketThatHadTheSameAddressIsRefused) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy));
  Trace trace(path);
  Flow flow(path, cubic.name());
  leave(flow, trace);
  change([](sl_handover& slot) { slot.ports += 1; });
  flow.set_cca(cubic.name());
  EXPECT_EQ(cubic.count(SL_CCA_STATE_REFUSED), 1U);
  EXPECT_EQ(cubic.count(SL_CCA_STATE_ADOPTED), 0U);
}

TEST_F(HandOver, WhatBelongsToAnotherSocketIsLeftThere) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy));
  Trace trace(path);
  Flow flow(path, cubic.name());
  leave(flow, trace);
  std::uint64_t other = 0;
  change([&](sl_handover& slot) {
    if (slot.owner != 0) other = slot.owner += 64;
  });
  ASSERT_NE(other, 0U);
  flow.set_cca(cubic.name());
  EXPECT_EQ(cubic.count(SL_CCA_STATE_REFUSED), 0U);
  EXPECT_EQ(cubic.count(SL_CCA_STATE_ADOPTED), 0U);
  int there = 0;
  change([&](const sl_handover& slot) { there += slot.owner == other; });
  EXPECT_EQ(there, 1);
}

// ---- what is missing ---------------------------------------------------------------------------------------------------

TEST_F(Migration, WithoutPolicyAndParametersTheDefaultsHoldAndAreCounted) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy));
  Trace trace(path);
  Flow flow(path, cubic.name());
  flow.start();
  grown(trace);
  EXPECT_GT(cubic.count(SL_CCA_NO_PARAMS), 0U);
  EXPECT_EQ(cubic.count(SL_CCA_SCHEMA_MISMATCH), 0U);
  cubic.set_params(kDefaults);
  // Wait until no run of a hook from before can be under way.
  const std::uint64_t rtts = cubic.count(SL_CCA_RTT);
  ASSERT_TRUE(trace.until([&](const auto&) { return cubic.count(SL_CCA_RTT) > rtts + 1; }));
  const std::uint64_t missing = cubic.count(SL_CCA_NO_PARAMS);
  ASSERT_TRUE(trace.until([&](const auto&) { return cubic.count(SL_CCA_RTT) > rtts + 5; }));
  EXPECT_EQ(cubic.count(SL_CCA_NO_PARAMS), missing);
}

TEST_F(Migration, AnotherSchemaMeansNoSharedState) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy, "a")), other(Cca::cubic(&policy, "b"));
  Trace trace(path);
  publish(verdict(cubic.name(), 1));
  policy.set_schema(SL_SCHEMA_HANDOVER, SL_SCHEMA_HANDOVER_VERSION + 1);
  Flow flow(path, cubic.name());
  EXPECT_EQ(cubic.count(SL_CCA_SCHEMA_MISMATCH), 1U);
  flow.start();
  publish(verdict(other.name(), 1));
  grown(trace);
  EXPECT_EQ(flow.cca(), cubic.name());
  flow.set_cca(other.name());
  EXPECT_EQ(other.count(SL_CCA_STATE_ADOPTED), 0U) << "nothing was left to it";
}

TEST_F(Migration, TheLoggerWritesOneRecordPerRttForSelectedSocketsOnly) {
  Path path(kLine);
  Cca cubic(Cca::cubic(&policy));
  Trace trace(path);
  publish(verdict(cubic.name(), 1));
  Flow flow(path, cubic.name());
  flow.start();
  grown(trace);
  EXPECT_GT(cubic.count(SL_CCA_RTT), 5U);
  store(flow, 0);
  publish(verdict(cubic.name(), 1));  // a storage of which the CCA did not know is seen when the generation moves
  ASSERT_TRUE(trace.until([&](const auto&) { return cubic.count(SL_CCA_RESCOPED) > 0; }));
  const std::uint64_t rtts = cubic.count(SL_CCA_RTT);
  ASSERT_TRUE(trace.until([&](const auto&) { return cubic.count(SL_CCA_RTT) > rtts + 3; }));
  EXPECT_EQ(cubic.count(SL_CCA_LOG), 0U);
  store(flow, SL_SOCK_LOG);
  ASSERT_TRUE(trace.until([&](const auto&) { return cubic.count(SL_CCA_LOG) >= 5; }));
  EXPECT_LE(cubic.count(SL_CCA_LOG), cubic.count(SL_CCA_RTT));

  std::vector<sl_log_record> slots(static_cast<std::size_t>(libbpf_num_possible_cpus()));
  const std::uint32_t zero = 0;
  must(bpf_map_lookup_elem(must(cubic.object().map("sl_log_last")).fd(), &zero, slots.data()) == 0, "sl_log_last");
  std::uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  must(getsockopt(flow.fd(), SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0, "SO_COOKIE");
  bool found = false;
  for (const sl_log_record& record : slots) {
    if (record.time_ns == 0) continue;
    found = true;
    EXPECT_GE(record.cwnd_segments, 10U);
    EXPECT_GE(record.rtt_min_us, 20000U);
    EXPECT_GT(record.delivered, 0U);
    EXPECT_EQ(record.delivered_ce, 0U);
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace sluice::test
