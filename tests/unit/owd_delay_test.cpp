// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// From TCP timestamps to one-way delays: the arithmetic of examples/owd.
#include <gtest/gtest.h>
#include <linux/types.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "owd/delay.h"

namespace {

// A connection whose clocks and delays the test sets. Times in milliseconds since it began.
class Connection {
 public:
  std::uint32_t ours = 0, theirs = 0;     // what the clocks show at the beginning
  double our_ticks = 1, their_ticks = 1;  // per millisecond

  // A segment that leaves at `sent_ms` takes `there_ms`, its acknowledgement `back_ms`.
  owd_verdict acknowledge(std::uint64_t sent_ms, std::uint64_t there_ms, std::uint64_t back_ms = 5,
                          std::uint32_t bytes = 1000) {
    ack_ += bytes;
    const auto tick = [](std::uint32_t start, double ticks, std::uint64_t at_ms) {
      return start + static_cast<std::uint32_t>(static_cast<std::uint64_t>(ticks * static_cast<double>(at_ms)));
    };
    return owd_take(&state_, ack_, tick(theirs, their_ticks, sent_ms + there_ms), tick(ours, our_ticks, sent_ms),
                    kStartNs + (sent_ms + there_ms + back_ms) * 1000000, &delay_us);
  }
  // The delay of the last of several, 10 ms apart from `from_ms` on; nothing if it was no sample.
  std::optional<std::uint32_t> after(std::uint64_t from_ms, std::uint64_t to_ms, std::uint64_t there_ms) {
    owd_verdict last = OWD_NOTHING_NEW;
    for (std::uint64_t at = from_ms; at <= to_ms; at += 10) last = acknowledge(at, there_ms);
    return last == OWD_SAMPLE ? std::optional(delay_us) : std::nullopt;
  }

  std::uint32_t delay_us = 0;

 private:
  static constexpr std::uint64_t kStartNs = 7'000'000'000;
  owd_state state_{};
  std::uint32_t ack_ = 0xffffff00;  // wraps early on
};

TEST(Delay, IsWhatExceedsTheSmallest) {
  Connection c;
  c.theirs = 123456789;
  EXPECT_EQ(c.after(0, 200, 30), 0U);
  EXPECT_EQ(c.after(210, 300, 47), 17000U);
  EXPECT_EQ(c.after(310, 400, 30), 0U);
  EXPECT_EQ(c.after(410, 420, 28), 0U) << "a new smallest";
  EXPECT_EQ(c.after(430, 500, 30), 2000U);
}

TEST(Delay, OfAcknowledgementsIsNotInIt) {
  Connection c;
  ASSERT_EQ(c.after(0, 200, 30), 0U);
  ASSERT_EQ(c.acknowledge(210, 30, 500), OWD_SAMPLE);
  EXPECT_EQ(c.delay_us, 0U);
}

TEST(Delay, DoesNotDependOnWhatTheClocksShow) {
  for (const std::uint32_t ours : {0U, 0xffffffe0U, 0x7ffffff0U})
    for (const std::uint32_t theirs : {0U, 0xffffffe0U, 0x7ffffff0U}) {
      Connection c;
      c.ours = ours;
      c.theirs = theirs;
      EXPECT_EQ(c.after(0, 200, 30), 0U) << ours << ' ' << theirs;
      EXPECT_EQ(c.after(210, 300, 90), 60000U) << ours << ' ' << theirs;
    }
}

TEST(Delay, OnlyOfAcknowledgementsOfSomethingNew) {
  Connection c;
  ASSERT_EQ(c.after(0, 200, 30), 0U);
  EXPECT_EQ(c.acknowledge(100, 230, 5, 0), OWD_NOTHING_NEW) << "a duplicate, with the timestamp of before the hole";
  EXPECT_EQ(c.acknowledge(100, 230, 5, static_cast<std::uint32_t>(-3000)), OWD_NOTHING_NEW) << "late";
  EXPECT_EQ(c.acknowledge(210, 30, 5, 4000), OWD_SAMPLE);
  EXPECT_EQ(c.delay_us, 0U) << "they left no trace";
}

TEST(Delay, NeedsTheClocksToProveThemselves) {
  Connection c;
  EXPECT_EQ(c.acknowledge(0, 30), OWD_CLOCK_UNPROVEN);
  EXPECT_EQ(c.after(10, OWD_PROOF_MS - 20, 40), std::nullopt);
  EXPECT_EQ(c.after(OWD_PROOF_MS, OWD_PROOF_MS + 20, 40), 10000U) << "what came before counts for the smallest";
}

TEST(Delay, OfClocksOfOtherUnitsThereIsNone) {
  for (const double ticks : {0.1, 0.001, 4.0, 1000.0})
    for (const bool ours : {false, true}) {
      Connection c;
      (ours ? c.our_ticks : c.their_ticks) = ticks;
      EXPECT_EQ(c.after(0, OWD_PATIENCE_MS - 100, 30), std::nullopt) << ticks << ours;
      EXPECT_EQ(c.after(OWD_PATIENCE_MS, OWD_PATIENCE_MS + 1000, 30), std::nullopt);
      EXPECT_EQ(c.acknowledge(OWD_PATIENCE_MS + 2000, 30), OWD_CLOCK_FOREIGN) << "for good";
    }
}

TEST(Delay, SurvivesClocksThatDriftApart) {
  Connection c;
  c.their_ticks = 1.0001;  // 6 ms in a minute
  std::uint32_t most_us = 0;
  for (std::uint64_t at = 0; at < 20 * OWD_WINDOW_MS; at += 50)
    if (c.acknowledge(at, 30) == OWD_SAMPLE) most_us = std::max(most_us, c.delay_us);
  EXPECT_GE(most_us, 5000U) << "it does drift";
  EXPECT_LE(most_us, 13000U) << "by two windows at most, not by twenty";
}

TEST(Delay, TooLongForMicrosecondsIsTheLongestThereIs) {
  Connection c;
  ASSERT_EQ(c.after(0, 200, 30), 0U);
  ASSERT_EQ(c.acknowledge(210, 5'000'000), OWD_SAMPLE);
  EXPECT_EQ(c.delay_us, 0xffffffffU);
}

}  // namespace
