// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bundle `dctcp` in the kernel, against RFC 8257: alpha, what marks and losses cost, the receiver's ACKs, hand-over, and what a
// connection gets that has no ECN. What the window did comes from tracepoints, what was sent and acknowledged from the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <list>
#include <map>
#include <mutex>

#include "bpf/cca_fixture.h"
#include "bundle/manifest.h"

namespace sluice::test {
namespace {

// Own counters of dctcp (dctcp.bpf.c).
enum : std::uint32_t {
  kCountLoss = SL_CCA_COUNTER_OWN,
  kCountMark,
  kCountMarkThenLoss,
  kCountUndo,
  kCountBounded,
  kCountCeChange,
  kCountCeAck,
  kCountNoEcn,
  kCountNoEcnStayed
};

// The upper half of `alpha`, right behind struct sl_core: alpha in 1/1024.
constexpr std::uint32_t kAlphaOffset = 34;
// In cubic, the same of its own.
constexpr std::uint32_t kCubicAlphaOffset = 32;

constexpr PathSpec kEcnLine = {.one_way_us = kLine.one_way_us, .rate_bytes_per_s = kLine.rate_bytes_per_s, .ecn = true};

bool is_before(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) < 0; }

// One packet in `every`, picked by a hash of its number: neither periodic nor different from run to run.
bool picked(std::uint64_t number, std::uint32_t every) { return (number * 0x9e3779b97f4a7c15ull >> 33) % every == 0; }

Cca::Spec dctcp_with(std::uint64_t alpha_initial_1024) {
  Cca::Spec spec = Cca::dctcp(nullptr);
  spec.configure = [=](bpfio::Object& object) { must(object.set_rodata("alpha_initial_1024", alpha_initial_1024)); };
  return spec;
}

// RFC 8257 section 3.3 in real numbers, fed with what the kernel delivered: alpha (times 1024) before each ACK of the trace.
std::vector<double> alpha_of_rfc8257(const std::vector<Trace::Event>& events, double alpha, double g) {
  std::vector<double> out;
  const Trace::Event* previous = nullptr;
  std::uint32_t end = 0, delivered = 0, marked = 0;
  for (const auto& e : events) {
    if (e.kind != CCA_TRACE_ACK) continue;
    if (previous == nullptr) {  // the first RTT ends with the first ACK of data
      end = e.snd_una;
      delivered = e.delivered;
      marked = e.delivered_ce;
    } else if (!is_before(e.snd_una, end) && e.delivered != delivered) {  // ended with the ACK before this event
      const double m = static_cast<double>(e.delivered_ce - marked) / (e.delivered - delivered);
      alpha = alpha * (1 - g) + g * m;
      end = previous->snd_nxt;
      delivered = e.delivered;
      marked = e.delivered_ce;
    }
    previous = &e;
    out.push_back(alpha * 1024);
  }
  return out;
}

void expect_alpha_of_rfc8257(const Trace& trace, double alpha, double g) {
  ASSERT_EQ(trace.lost(), 0U);
  const auto expected = alpha_of_rfc8257(trace.events(), alpha, g);
  std::size_t i = 0, wrong = 0;
  for (const auto& e : trace.events()) {
    if (e.kind != CCA_TRACE_ACK) continue;
    wrong += std::fabs(e.private_word - expected[i]) > 2;
    EXPECT_TRUE(wrong != 1 || std::fabs(e.private_word - expected[i]) <= 2)
        << "ACK " << i << ": alpha " << e.private_word << ", RFC 8257 " << expected[i];
    ++i;
  }
  EXPECT_EQ(wrong, 0U) << "of " << i;
}

// cwnd (1 - alpha / 2), to the nearest segment; alpha is known to 1/1024.
testing::Matcher<std::uint32_t> after_mark(std::uint32_t cwnd, std::uint32_t alpha_1024) {
  const auto reduced = [&](double alpha) { return std::max(2.0, cwnd - std::floor(cwnd * alpha / 2048 + 0.5)); };
  return testing::AllOf(testing::Ge(reduced(std::min(alpha_1024 + 1, 1024U))), testing::Le(reduced(alpha_1024)));
}

bool left_slow_start(const std::vector<Trace::Event>& events) {
  return !events.empty() && events.back().ssthresh < 0x7fffffff && events.back().state == kOpen;
}

// ---- alpha -------------------------------------------------------------------------------------------------------------

struct Marks {
  const char* name;
  std::uint64_t window_rtts;
  std::uint64_t alpha_initial_1024;
};
class Alpha : public testing::TestWithParam<Marks> {};

TEST_P(Alpha, IsTheAverageOfRfc8257) {
  std::atomic<std::uint32_t> every = 10;
  Path path(kEcnLine);
  path.on_data([&](const Packet& p) { return Fate{.mark = every != 0 && p.number >= 100 && picked(p.number, every)}; });
  Cca dctcp(dctcp_with(GetParam().alpha_initial_1024));
  dctcp.set_params({1, GetParam().window_rtts});
  Trace trace(path, kAlphaOffset);
  Flow flow(path, dctcp.name(), dctcp.name());
  flow.start();
  const auto rtts = [&](std::uint64_t n) {
    const std::uint64_t before = dctcp.count(SL_CCA_RTT);
    return trace.until([&](const auto&) { return dctcp.count(SL_CCA_RTT) >= before + n; });
  };
  ASSERT_TRUE(rtts(40));  // 10 % marked
  every = 1;
  ASSERT_TRUE(rtts(20));  // all of them
  every = 0;
  ASSERT_TRUE(rtts(40));  // none
  expect_alpha_of_rfc8257(trace, GetParam().alpha_initial_1024 / 1024.0, 1.0 / static_cast<double>(GetParam().window_rtts));
}
INSTANTIATE_TEST_SUITE_P(Parameters, Alpha,
                         testing::Values(Marks{"defaults", 16, 1024}, Marks{"smallest", 1, 0}, Marks{"largest", 255, 1024},
                                         Marks{"begins_low", 16, 100}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Parameters, TheManifestSaysWhatTheProgramDoesWithoutParameters) {
  const auto manifest = must(bundle::read_manifest(Cca::path("bundles/dctcp/1.0.0/bundle.yaml")));
  ASSERT_NE(manifest.parameter("ecn_window_rtts"), nullptr);
  ASSERT_NE(manifest.parameter("alpha_initial_1024"), nullptr);
  EXPECT_EQ(manifest.parameter("ecn_window_rtts")->default_value, 16U);
  EXPECT_EQ(manifest.parameter("alpha_initial_1024")->default_value, 1024U);

  Path path(kEcnLine);
  Cca dctcp(Cca::dctcp(nullptr));
  Trace trace(path, kAlphaOffset);
  Flow flow(path, dctcp.name(), dctcp.name());
  flow.start();
  ASSERT_TRUE(trace.until([&](const auto&) { return dctcp.count(SL_CCA_RTT) >= 8; }));
  EXPECT_GT(dctcp.count(SL_CCA_NO_PARAMS), 0U);
  expect_alpha_of_rfc8257(trace, 1, 1.0 / 16);
}

// ---- marks -------------------------------------------------------------------------------------------------------------

TEST(Dctcp, AMarkCostsHalfOfAlphaAtMostOncePerRtt) {
  Path path(kEcnLine);
  path.on_data([](const Packet& p) { return Fate{.mark = p.number >= 100 && picked(p.number, 10)}; });
  Cca dctcp(Cca::dctcp(nullptr));
  Trace trace(path, kAlphaOffset);
  Flow flow(path, dctcp.name(), dctcp.name());
  ASSERT_TRUE(flow.ecn());
  flow.start();
  ASSERT_TRUE(trace.until([&](const auto&) { return trace.changes_to(kCwr).size() >= 40; }));
  const auto cuts = trace.changes_to(kCwr);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    EXPECT_THAT(cuts[i].ssthresh, after_mark(cuts[i].prior_cwnd, cuts[i].private_word)) << "cut " << i;
    if (i > 0) {
      EXPECT_FALSE(is_before(cuts[i].snd_una, cuts[i - 1].snd_nxt)) << "twice in one RTT, cut " << i;
    }
  }
  EXPECT_GT(cuts.front().private_word, 500U) << "the first mark is taken seriously";
  EXPECT_LT(cuts.back().private_word, 400U) << "40 RTTs later alpha knows the path";
  EXPECT_EQ(dctcp.count(kCountLoss), 0U);
  EXPECT_GE(dctcp.count(kCountMark), cuts.size());
}

TEST(Dctcp, WhenEverySegmentIsMarkedTheWindowIsTheSmallestAndTheTransferGoesOn) {
  Path path(kEcnLine);
  path.on_data([](const Packet&) { return Fate{.mark = true}; });
  Cca dctcp(Cca::dctcp(nullptr));
  Trace trace(path, kAlphaOffset);
  Flow flow(path, dctcp.name(), dctcp.name());
  flow.start();
  ASSERT_TRUE(trace.until(
      [](const auto& events) { return !events.empty() && events.back().cwnd == 2 && events.back().private_word == 1024; }));
  const std::uint64_t received = flow.received();
  EXPECT_TRUE(trace.until([&](const auto&) { return flow.received() > received + 100000; }));
  for (const auto& e : trace.events()) EXPECT_GE(e.cwnd, 2U);
  EXPECT_EQ(dctcp.count(kCountLoss), 0U);
}

TEST(Dctcp, WithoutMarksItGrowsAsRenoDoes) {
  PathSpec spec = kEcnLine;
  spec.rate_bytes_per_s = 0;  // no queue: every RTT takes 20 ms
  Path path(spec);
  path.on_data([](const Packet& p) { return Fate{.mark = p.number == 100}; });
  Cca dctcp(Cca::dctcp(nullptr));
  Trace trace(path, kAlphaOffset);
  Flow flow(path, dctcp.name(), dctcp.name());
  flow.start();
  ASSERT_TRUE(trace.until([](const auto& events) { return left_slow_start(events); }));
  const auto cut = *trace.entered(kCwr);
  EXPECT_GE(cut.prior_cwnd, 40U) << "slow start doubled the window";
  // By RTT since then, from the trace.
  const auto windows = [&] {
    std::vector<std::uint32_t> out;
    std::uint32_t end = cut.snd_nxt;
    for (const auto& e : trace.events()) {
      if (e.kind != CCA_TRACE_ACK || e.state != kOpen || e.time_ns < cut.time_ns || is_before(e.snd_una, end)) continue;
      out.push_back(e.cwnd);
      end = e.snd_nxt;
    }
    return out;
  };
  ASSERT_TRUE(trace.until([&](const auto&) { return windows().size() > 50; }));
  const auto grown = windows();
  // The ACK that completes a window's worth may fall to either side of the RTT's end.
  for (std::size_t i = 1; i < grown.size(); ++i) EXPECT_LE(grown[i] - grown[i - 1], 2U) << "RTT " << i;
  EXPECT_NEAR(grown[50] - grown[0], 50, 3);
  EXPECT_EQ(dctcp.count(kCountMark), 1U);
  EXPECT_LT(trace.events().back().private_word, 1024 * 0.05) << "alpha fades";
}

// ---- losses ------------------------------------------------------------------------------------------------------------

// A mark early on ends slow start; what comes later happens to a window of some tens of segments.
struct Losses : testing::Test {
  template <class Decide>
  void begin(Decide decide) {
    path.on_data([=](const Packet& p) {
      Fate fate = decide(p);
      fate.mark |= p.number == 60;
      return fate;
    });
    flow.emplace(path, dctcp.name(), dctcp.name());
    flow->start();
  }
  bool until_back_in_open_after(std::uint32_t state) {
    return trace.until([&](const auto& events) {
      const auto change = trace.entered(state);
      return change && events.back().kind == CCA_TRACE_ACK && events.back().state == kOpen &&
             events.back().time_ns > change->time_ns;
    });
  }
  std::atomic<bool> cut = true;  // the wire, for who asks
  Path path{kEcnLine};
  Cca dctcp{Cca::dctcp(nullptr)};
  Trace trace{path, kAlphaOffset};
  std::optional<Flow> flow;
};

TEST_F(Losses, ALossHalvesTheWindowWhateverAlphaSays) {
  begin([](const Packet& p) { return Fate{.drop = p.number == 2000}; });
  ASSERT_TRUE(until_back_in_open_after(kRecovery));
  const auto loss = *trace.entered(kRecovery);
  EXPECT_GE(loss.prior_cwnd, 20U);
  EXPECT_LT(loss.private_word, 700U) << "alpha would have taken less";
  EXPECT_EQ(loss.ssthresh, loss.prior_cwnd / 2);
  EXPECT_EQ(trace.events().back().ssthresh, loss.prior_cwnd / 2);
  EXPECT_EQ(dctcp.count(kCountLoss), 1U);
  EXPECT_EQ(dctcp.count(kCountMark), 1U);
  EXPECT_EQ(dctcp.count(kCountMarkThenLoss), 0U);
}

TEST_F(Losses, ALossBehindAMarkCompletesTheReductionInsteadOfAddingToIt) {
  begin([](const Packet& p) { return Fate{.drop = p.number == 2005, .mark = p.number == 2000}; });
  ASSERT_TRUE(until_back_in_open_after(kRecovery));
  const auto marks = trace.changes_to(kCwr);
  ASSERT_EQ(marks.size(), 2U) << "the mark came first";
  const auto& mark = marks[1];
  EXPECT_THAT(mark.ssthresh, after_mark(mark.prior_cwnd, mark.private_word));
  EXPECT_GT(mark.ssthresh, mark.prior_cwnd / 2);
  EXPECT_EQ(trace.events().back().ssthresh, mark.prior_cwnd / 2) << "half of the window before the mark";
  EXPECT_EQ(trace.changes_to(kRecovery).size(), 1U);
  EXPECT_EQ(dctcp.count(kCountMarkThenLoss), 1U);
  EXPECT_EQ(dctcp.count(kCountLoss), 0U);
}

TEST_F(Losses, AMarkBehindALossCostsNothingMore) {
  begin([](const Packet& p) { return Fate{.drop = p.number == 2000, .mark = p.number == 2010}; });
  ASSERT_TRUE(until_back_in_open_after(kRecovery));
  const auto loss = *trace.entered(kRecovery);
  EXPECT_EQ(trace.events().back().ssthresh, loss.prior_cwnd / 2);
  EXPECT_EQ(trace.changes_to(kCwr).size(), 1U) << "the one of slow start";
  EXPECT_EQ(dctcp.count(kCountMark), 1U);
  EXPECT_EQ(dctcp.count(kCountLoss), 1U);
  EXPECT_EQ(path.marked(), 2U);
}

TEST_F(Losses, AfterATimeoutTheWindowBeginsWithOneSegment) {
  begin([this](const Packet& p) { return Fate{.drop = p.number >= 2000 && cut}; });
  ASSERT_TRUE(trace.until([&](const auto&) { return trace.entered(kLoss).has_value(); }));
  cut = false;
  ASSERT_TRUE(until_back_in_open_after(kLoss));
  const auto timeout = *trace.entered(kLoss);
  EXPECT_EQ(timeout.ssthresh, timeout.prior_cwnd / 2);
  const auto* after = trace.at(timeout.time_ns);
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->cwnd, 1U);
}

TEST_F(Losses, ALossThatWasNoneGivesTheWindowBack) {
  // Late, not lost: the sender retransmits, then the original's acknowledgement shows that it need not have.
  begin([](const Packet& p) { return Fate{.hold_us = p.number == 2000 ? 15000u : 0u}; });
  ASSERT_TRUE(trace.until([&](const auto& events) {
    return dctcp.count(kCountUndo) > 0 && events.back().kind == CCA_TRACE_ACK && events.back().state == kOpen;
  }));
  const auto loss = *trace.entered(kRecovery);
  EXPECT_EQ(loss.ssthresh, loss.prior_cwnd / 2);
  EXPECT_GE(trace.events().back().cwnd, loss.prior_cwnd);
}

// ---- receiver ----------------------------------------------------------------------------------------------------------

// What a receiver's ACKs say about the segments they acknowledge.
struct Echoes {
  std::uint64_t segments = 0, marked = 0, acks = 0, changes = 0;
  std::uint64_t mixed = 0;  // ACKs of segments with and without a mark
  std::uint64_t wrong = 0;  // ACKs whose ECE is not the mark of what they acknowledge
};

// Runs of marked and unmarked packets, 1 to 12 long.
bool in_marked_run(std::uint64_t number) {
  static constexpr int kRuns[] = {1, 1, 2, 1, 3, 5, 1, 4, 8, 2, 2, 12, 1, 7, 6, 3};
  std::uint64_t at = number % 59;  // their sum
  for (std::size_t i = 0; i < std::size(kRuns); ++i) {
    if (at < static_cast<std::uint64_t>(kRuns[i])) return i % 2 == 0;
    at -= static_cast<std::uint64_t>(kRuns[i]);
  }
  return false;
}

Echoes echoes_of(Cca& dctcp, const std::string& receiver) {
  constexpr std::uint64_t kPackets = 2000;
  std::mutex mutex;
  std::optional<std::uint32_t> first;                            // sequence number; the rest counts from it
  std::map<std::uint32_t, std::pair<std::uint32_t, bool>> sent;  // seq -> its end, marked
  std::vector<Ack> acks;
  Path path({.one_way_us = 1000, .ecn = true});
  path.on_data([&](const Packet& p) {
    std::lock_guard lock(mutex);
    if (!first) first = p.seq;
    const std::uint32_t seq = p.seq - *first;
    // A probe for a tail loss that was none sends a segment again: its receiver has seen it, and its mark says nothing.
    if (sent.size() == kPackets || sent.contains(seq)) return Fate{};
    const bool mark = in_marked_run(sent.size());
    sent[seq] = {seq + p.payload_bytes, mark};
    return Fate{.mark = mark};
  });
  path.on_ack([&](const Ack& ack) {
    std::lock_guard lock(mutex);
    if (!ack.syn) acks.push_back(ack);
  });
  Trace trace(path);
  Flow flow(path, "reno", receiver);  // a SYN of DCTCP would be refused ECN by a receiver that does not need it
  must(flow.ecn(), "ECN");
  flow.set_cca(dctcp.name());
  flow.start();
  const auto all_acknowledged = [&] {
    std::lock_guard lock(mutex);
    return sent.size() == kPackets && !acks.empty() && !is_before(acks.back().ack - *first, sent.rbegin()->second.first);
  };
  must(trace.until([&](const auto&) { return all_acknowledged(); }), "2000 packets acknowledged");

  Echoes out;
  std::lock_guard lock(mutex);
  bool last = false;
  for (const auto& [seq, segment] : sent) {
    ++out.segments;
    out.marked += segment.second;
    out.changes += segment.second != last;
    last = segment.second;
  }
  auto next = sent.begin();
  for (const Ack& ack : acks) {
    if (next == sent.end()) break;
    ++out.acks;
    std::uint64_t with = 0, without = 0;
    for (; next != sent.end() && !is_before(ack.ack - *first, next->second.first); ++next)
      ++(next->second.second ? with : without);
    out.mixed += with > 0 && without > 0;
    out.wrong += (with > 0 && !ack.ece) || (without > 0 && ack.ece);
  }
  return out;
}

TEST(DctcpReceiver, AnAckNeverSpeaksOfMarkedAndUnmarkedSegmentsAndItsEceIsTheirMark) {
  Cca dctcp(Cca::dctcp(nullptr));
  const Echoes echoes = echoes_of(dctcp, dctcp.name());
  EXPECT_EQ(echoes.mixed, 0U);
  EXPECT_EQ(echoes.wrong, 0U);
  EXPECT_GT(echoes.marked, echoes.segments / 4);
  EXPECT_GE(dctcp.count(kCountCeChange), echoes.changes);
  EXPECT_GT(dctcp.count(kCountCeAck), 0U) << "an ACK was pending when the mark turned over";
  EXPECT_LT(echoes.acks, echoes.segments * 9 / 10) << "within a run ACKs are delayed";
}

TEST(DctcpReceiver, AReceiverOfRfc3168MixesAndRepeats) {  // the same judge, on what it has to find
  Cca dctcp(Cca::dctcp(nullptr));
  const Echoes echoes = echoes_of(dctcp, "reno");
  EXPECT_GT(echoes.mixed, 0U);
  EXPECT_GT(echoes.wrong, 100U);
  EXPECT_EQ(dctcp.count(kCountCeChange), 0U);
}

TEST(DctcpReceiver, TheSenderCountsEveryMarkOnce) {
  std::atomic<std::uint64_t> marked = 0;
  Path path({.one_way_us = 1000, .ecn = true});
  path.on_data([&marked, next = std::optional<std::uint32_t>()](const Packet& p) mutable {
    if (next && is_before(p.seq, *next)) return Fate{};  // sent again
    next = p.seq + p.payload_bytes;
    const bool mark = p.number <= 1500 && in_marked_run(p.number);
    marked += mark;
    return Fate{.mark = mark};
  });
  Cca dctcp(Cca::dctcp(nullptr));
  Trace trace(path);
  Flow flow(path, dctcp.name(), dctcp.name());
  flow.start();
  ASSERT_TRUE(trace.until([](const auto& events) { return !events.empty() && events.back().delivered > 1800; }));
  EXPECT_GT(marked, 500U);
  EXPECT_EQ(flow.info().tcpi_delivered_ce, marked);
}

// ---- without ECN -------------------------------------------------------------------------------------------------------

struct WithoutEcn : testing::Test {
  WithoutEcn() {
    path.on_data([this](const Packet& p) {
      ect += p.ect;
      return Fate{};
    });
  }
  std::atomic<std::uint64_t> ect = 0;  // data packets that carried ECT
  Path path{kLine};                    // tcp_ecn = 0: the server refuses
  PolicyObject policy;
};

TEST_F(WithoutEcn, ItGivesWayToRenoBeforeTheFirstDataIsSent) {
  Cca dctcp(Cca::dctcp(nullptr));
  Trace trace(path);
  Flow flow(path, dctcp.name());
  EXPECT_FALSE(flow.ecn());
  EXPECT_EQ(flow.cca(), "reno");
  flow.start();
  ASSERT_TRUE(trace.until([](const auto& events) { return events.size() > 100; }));
  EXPECT_EQ(ect, 0U);
  EXPECT_EQ(dctcp.count(kCountNoEcn), 1U);
  EXPECT_EQ(dctcp.count(kCountNoEcnStayed), 0U);
}

TEST_F(WithoutEcn, AnAcceptedConnectionDoesTheSame) {
  Cca dctcp(Cca::dctcp(nullptr));
  const Flow flow(path, "reno", dctcp.name());
  EXPECT_EQ(flow.server_cca(), "reno");
  EXPECT_EQ(dctcp.count(kCountNoEcn), 1U);
}

TEST_F(WithoutEcn, AConnectionThatIsPutOnItDoesNotStay) {
  Cca dctcp(Cca::dctcp(nullptr));
  Trace trace(path);
  Flow flow(path, "cubic");
  flow.start();
  ASSERT_TRUE(trace.until([](const auto& events) { return events.size() > 100; }));
  flow.set_cca(dctcp.name());
  EXPECT_EQ(flow.cca(), "reno");
  const std::uint64_t received = flow.received();
  EXPECT_TRUE(trace.until([&](const auto&) { return flow.received() > received + 200000; }));
  EXPECT_EQ(ect, 0U);
}

TEST_F(WithoutEcn, WhereThereIsAPolicyItsCcaIsTakenInstead) {
  Cca dctcp(Cca::dctcp(&policy)), cubic(Cca::cubic(&policy));
  publish_for_all(policy, verdict(dctcp.name(), 1, cubic.name()));
  const Flow flow(path, dctcp.name());
  EXPECT_EQ(flow.cca(), cubic.name());
  EXPECT_EQ(dctcp.count(SL_CCA_ECN_FALLBACK), 1U);
  EXPECT_EQ(dctcp.count(SL_CCA_SELF_MOVED), 1U);
  EXPECT_EQ(dctcp.count(kCountNoEcn), 0U);
}

TEST_F(WithoutEcn, WhereTheSwitchIsRefusedItIsTriedAgainAtTheNextAck) {
  Cca dctcp(Cca::dctcp(&policy));
  Trace trace(path);
  Flow flow(path, "reno");
  flow.start();
  ASSERT_TRUE(trace.until([](const auto& events) { return events.size() > 100; }));
  // A verdict that does not say that its CCA needs ECN: the iterator obeys, and a switch within its switch is refused.
  publish_for_all(policy, verdict(dctcp.name(), 1));
  policy.set_args(SL_ITER_MIGRATE, SL_ITER_REPORT_ALL);
  path.in(0, [&] { policy.iterate<sl_report>("sl_iter_migrate"); });
  ASSERT_TRUE(trace.until(
      [&](const auto& events) { return dctcp.count(kCountNoEcn) > 0 && events.back().cca == std::string("reno"); }));
  EXPECT_GE(dctcp.count(kCountNoEcnStayed), 1U);
  EXPECT_EQ(dctcp.count(SL_CCA_INIT), 1U);
  EXPECT_EQ(flow.cca(), "reno");
  const auto acks = std::count_if(trace.events().begin(), trace.events().end(),
                                  [&](const auto& e) { return e.kind == CCA_TRACE_ACK && e.cca == dctcp.name(); });
  EXPECT_LE(acks, 2);
}

// ---- hand-over ---------------------------------------------------------------------------------------------------------

class HandOver : public testing::Test {
 protected:
  // A connection with 10 % marks whose alpha has settled, on `first`.
  void settle(const std::string& first) {
    path.on_data([](const Packet& p) { return Fate{.mark = p.number >= 100 && picked(p.number, 10)}; });
    publish_for_all(policy, verdict(first, 1));
    flow.emplace(path, first, first);
    flow->start();
    ASSERT_TRUE(trace.until([&](const auto&) { return trace.changes_to(kCwr).size() >= 20; }));
  }
  bool until_on(const std::string& cca) {
    return trace.until([&](const auto& events) { return !events.empty() && events.back().cca == cca; });
  }
  // alpha_1024 of the last event on one CCA and the first on the next.
  std::pair<Trace::Event, Trace::Event> around_switch_to(const std::string& cca) const {
    const auto& events = trace.events();
    for (std::size_t i = 1; i < events.size(); ++i)
      if (events[i].cca == cca && events[i - 1].cca != cca) return {events[i - 1], events[i]};
    return {};
  }
  // Alpha moves so far at most in the RTT that ends with the switch; a new connection's 1024 is far away.
  static constexpr int kStep = 1024 / 16;
  void goes_on() {
    const std::uint64_t received = flow->received();
    EXPECT_TRUE(trace.until([&](const auto&) { return flow->received() > received + 200000; }));
  }

  Cca& load(const Cca::Spec& spec) { return ccas.emplace_back(spec); }

  PolicyObject policy;
  Path path{kEcnLine};
  Trace trace{path, kAlphaOffset};
  std::list<Cca> ccas;
  std::optional<Flow> flow;  // last: ends before its CCAs
};

TEST_F(HandOver, AlphaAndWindowGoFromVersionToVersion) {
  const Cca& old_version = load(Cca::dctcp(&policy, "a"));
  const Cca& new_version = load(Cca::dctcp(&policy, "b"));
  settle(old_version.name());
  publish_for_all(policy, verdict(new_version.name(), 1));
  ASSERT_TRUE(until_on(new_version.name()));
  const auto [before, after] = around_switch_to(new_version.name());
  EXPECT_NEAR(after.private_word, before.private_word, kStep);
  EXPECT_NEAR(after.cwnd, before.cwnd, 2);
  // Where the ACK that ends the old version's last RTT brings a mark, the first thing the new one does is to reduce.
  if (after.kind != CCA_TRACE_STATE || after.new_state != kCwr) {
    EXPECT_EQ(after.ssthresh, before.ssthresh);
  }
  EXPECT_GE(new_version.count(SL_CCA_STATE_ADOPTED), 1U);
  EXPECT_EQ(new_version.count(kCountBounded), 0U);
  goes_on();
}

TEST_F(HandOver, AlphaGoesToCubicAndComesBack) {
  const Cca& dctcp = load(Cca::dctcp(&policy));
  const Cca& cubic = load(Cca::cubic(&policy));
  settle(dctcp.name());
  const std::uint32_t learned = trace.events().back().private_word;
  ASSERT_GT(learned, 0U);
  publish_for_all(policy, verdict(cubic.name(), 1));
  ASSERT_TRUE(until_on(cubic.name()));
  EXPECT_GE(cubic.count(SL_CCA_STATE_ADOPTED), 1U);
  EXPECT_TRUE(flow->ecn());
  goes_on();
  publish_for_all(policy, verdict(dctcp.name(), 1, cubic.name()));
  ASSERT_TRUE(until_on(dctcp.name()));
  const auto& events = trace.events();
  const auto back = std::find_if(events.rbegin(), events.rend(), [&](const auto& e) { return e.cca != dctcp.name(); });
  ASSERT_NE(back, events.rend());
  EXPECT_LT(back.base()->private_word, 512U) << "not the 1 of a new connection";
  EXPECT_GE(dctcp.count(SL_CCA_STATE_ADOPTED), 1U);
  goes_on();
}

TEST_F(HandOver, CubicBeginsWithTheAlphaThatDctcpLeft) {
  Trace of_cubic(path, kCubicAlphaOffset);
  const Cca& dctcp = load(Cca::dctcp(&policy));
  const Cca& cubic = load(Cca::cubic(&policy));
  settle(dctcp.name());
  publish_for_all(policy, verdict(cubic.name(), 1));
  ASSERT_TRUE(until_on(cubic.name()));
  ASSERT_TRUE(of_cubic.until([&](const auto& events) { return !events.empty() && events.back().cca == cubic.name(); }));
  const auto first =
      std::find_if(of_cubic.events().begin(), of_cubic.events().end(), [&](const auto& e) { return e.cca == cubic.name(); });
  EXPECT_NEAR(first->private_word, around_switch_to(cubic.name()).first.private_word, kStep);
}

TEST_F(HandOver, ASocketWithoutSsthreshThatIsNotInSlowStartGetsOne) {
  const Cca& points = load({.file = "tests/bpf/cca_points.o",
                            .struct_ops = "points_avoid",
                            .suffix = "p",
                            .configure = [](bpfio::Object& object) { must(object.set_rodata("point", std::uint64_t{1})); },
                            .policy = &policy});
  const Cca& dctcp = load(Cca::dctcp(&policy));
  publish_for_all(policy, verdict(points.name(), 1));
  flow.emplace(path, points.name());
  ASSERT_TRUE(flow->ecn());
  flow->start();
  ASSERT_TRUE(trace.until([](const auto& events) { return events.size() > 200; }));
  publish_for_all(policy, verdict(dctcp.name(), 1));
  ASSERT_TRUE(until_on(dctcp.name()));
  EXPECT_EQ(dctcp.count(kCountBounded), 1U);
  EXPECT_LT(trace.events().back().ssthresh, 0x7fffffffU);
  EXPECT_EQ(around_switch_to(dctcp.name()).second.private_word, 256U) << "alpha as the other CCA had learned it";
  goes_on();
}

TEST_F(HandOver, ASocketFromBbrKeepsItsWindowAndLosesNothing) {
  const Cca& dctcp = load(Cca::dctcp(&policy));
  flow.emplace(path, "bbr", dctcp.name());
  ASSERT_TRUE(flow->ecn());
  flow->start();
  ASSERT_TRUE(trace.until([](const auto& events) { return events.size() > 1000; }));
  flow->set_cca(dctcp.name());
  ASSERT_TRUE(until_on(dctcp.name()));
  const auto [before, after] = around_switch_to(dctcp.name());
  EXPECT_GE(after.cwnd + 2, before.cwnd);
  goes_on();
  EXPECT_EQ(dctcp.count(kCountLoss), 0U);
}

// ---- cost --------------------------------------------------------------------------------------------------------------

TEST(Dctcp, TheVerifierReadsLittle) {
  Cca dctcp(Cca::dctcp(nullptr));
  std::uint32_t total = 0;
  for (const std::string& name : dctcp.object().program_names()) {
    const auto info = must(must(dctcp.object().program(name)).info());
    RecordProperty(name, std::to_string(info.verified_insns));
    EXPECT_LT(info.verified_insns, 15000U) << name;  // the limit is 1,000,000
    total += info.verified_insns;
  }
  EXPECT_GT(total, 0U);
  EXPECT_LT(total, 25000U);
}

}  // namespace
}  // namespace sluice::test
