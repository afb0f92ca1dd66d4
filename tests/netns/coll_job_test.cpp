// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Collective jobs over real sockets, with the aggregator in user space and in the kernel, on wires that drop, double, reorder
// and corrupt.
#include <gmock/gmock.h>
#include <signal.h>

#include "coll/udp.h"
#include "harness/assert.h"
#include "netns/coll_job.h"

namespace sluice::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

struct Sides {
  const char* name;
  CollSide aggregator, members;
};
void PrintTo(const Sides& sides, std::ostream* out) { *out << sides.name; }

class CollJob : public testing::TestWithParam<Sides> {
 protected:
  CollJob() {
    spec_.aggregator = GetParam().aggregator;
    spec_.members_are = GetParam().members;
  }
  CollWork work(sl_coll_op op, sl_coll_dtype dtype, std::size_t elements) {
    return coll_work(random_, spec_, op, dtype, elements);
  }
  // A chunk or less, several windows, and not whole chunks.
  std::vector<CollWork> some_of_everything() {
    const std::size_t words = spec_.words;
    std::vector<CollWork> calls = {work(SL_COLL_SUM, SL_COLL_I32, words * 500 + 7), work(SL_COLL_SUM, SL_COLL_F32, words * 300),
                                   work(SL_COLL_AVERAGE, SL_COLL_F32, 1), work(SL_COLL_MAX, SL_COLL_F32, words * 20)};
    for (const auto op : {SL_COLL_SUM, SL_COLL_COUNT, SL_COLL_MAX, SL_COLL_MIN, SL_COLL_AVERAGE})
      for (const auto dtype : {SL_COLL_I32, SL_COLL_I64, SL_COLL_F32, SL_COLL_F16, SL_COLL_BF16})
        calls.push_back(work(op, dtype, words * 3 + 1));
    calls.push_back(work(SL_COLL_SUM, SL_COLL_I32, words * 40 + 3));
    calls.back().root = spec_.members - 1;
    return calls;
  }
  // All is well, or says who is not.
  static void expect_no_errors(const CollReport& report) { EXPECT_THAT(report.errors, Each(std::string())); }

  SeededRandom random_{1};
  CollJobSpec spec_;
};
INSTANTIATE_TEST_SUITE_P(Sides, CollJob,
                         testing::Values(Sides{"model", CollSide::kModel, CollSide::kModel},
                                         Sides{"kernel_aggregator", CollSide::kKernel, CollSide::kModel},
                                         Sides{"kernel", CollSide::kKernel, CollSide::kKernel}),
                         [](const auto& test) { return test.param.name; });

TEST_P(CollJob, every_operator_and_type_on_a_clean_wire) {
  const CollReport report = run_coll_job(spec_, some_of_everything());
  expect_no_errors(report);
  const std::uint64_t chunks = report.counters.at(SL_COLL_FIRST);
  EXPECT_GT(chunks, 900u);
  EXPECT_EQ(report.counters.at(SL_COLL_ADDED), 3 * chunks);
  EXPECT_EQ(report.counters.at(SL_COLL_COMPLETED), chunks);
  EXPECT_EQ(report.counters.at(SL_COLL_CORRUPT), 0u);
  if (GetParam().members == CollSide::kKernel) {  // all but exponents, and the first window of each call
    EXPECT_GT(report.member_counters.at(SL_COLL_MEMBER_SENT), 4 * 600u);
    EXPECT_EQ(report.member_counters.at(SL_COLL_MEMBER_NO_ROOM), 0u);
  }
}

TEST_P(CollJob, on_wires_that_drop_double_reorder_and_corrupt) {
  spec_.wire = {.seed = 2, .drop = 0.01, .duplicate = 0.02, .corrupt = 0.01, .reorder = 0.02};
  const CollReport report = run_coll_job(spec_, some_of_everything());
  expect_no_errors(report);
  EXPECT_GT(report.retransmitted, 0u);
  EXPECT_GT(report.counters.at(SL_COLL_ANSWERED), 0u);
  EXPECT_GT(report.counters.at(SL_COLL_DUPLICATE), 0u);
}

TEST_P(CollJob, over_ipv6_with_chunks_of_a_larger_mtu) {
  spec_.v6 = true;
  spec_.words = SL_COLL_WORDS_MAX;
  spec_.wire = {.seed = 3, .drop = 0.01};
  expect_no_errors(run_coll_job(spec_, some_of_everything()));
}

TEST_P(CollJob, weights_are_the_aggregators) {
  spec_.weights = {1, 900, 3, 77};
  expect_no_errors(run_coll_job(spec_, {work(SL_COLL_AVERAGE, SL_COLL_F32, 5000), work(SL_COLL_SUM, SL_COLL_I64, 5000),
                                        work(SL_COLL_MAX, SL_COLL_I32, 5000), work(SL_COLL_AVERAGE, SL_COLL_I32, 5000)}));
}

TEST_P(CollJob, sixty_four_members_on_eight_hosts) {
  spec_.members_are = CollSide::kModel;
  spec_.members = 64;
  spec_.members_per_host = 8;
  spec_.window = 2;
  expect_no_errors(run_coll_job(spec_, {work(SL_COLL_SUM, SL_COLL_F32, 5000), work(SL_COLL_MAX, SL_COLL_I32, 5000)}));
}

TEST_P(CollJob, calls_are_carried_in_pieces_and_beside_members_in_fallback) {
  spec_.carried_bytes = 1;  // a window at a time
  spec_.fallback = {1};
  spec_.window = 8;
  spec_.wire = {.seed = 4, .drop = 0.002};
  const std::vector<CollWork> calls = {work(SL_COLL_SUM, SL_COLL_F32, 352 * 100 + 5), work(SL_COLL_SUM, SL_COLL_I32, 352 * 80),
                                       work(SL_COLL_AVERAGE, SL_COLL_I64, 176 * 17 + 1),
                                       work(SL_COLL_MIN, SL_COLL_F16, 352 * 16)};
  expect_no_errors(run_coll_job(spec_, calls));
}

TEST_P(CollJob, an_aggregator_with_an_address_for_each_member) {
  spec_.direct = true;
  for (const bool v6 : {false, true}) {
    spec_.v6 = v6;
    spec_.members_per_host = spec_.members_are == CollSide::kModel ? 2 : 1;
    const CollReport report = run_coll_job(spec_, some_of_everything());
    expect_no_errors(report);
    if (spec_.members_are != CollSide::kKernel) continue;
    // A slow machine asks again, too; three members whose results do not come ask for each.
    EXPECT_LT(report.counters.at(SL_COLL_ANSWERED), 2 * report.counters.at(SL_COLL_COMPLETED)) << "results do not arrive";
  }
}

TEST_P(CollJob, jobs_share_hosts_and_interfaces) {
  spec_.jobs = 3;
  spec_.wire = {.seed = 8, .drop = 0.001};
  expect_no_errors(run_coll_job(spec_, some_of_everything()));
}

TEST_P(CollJob, an_intruder_changes_nothing_and_ordinary_traffic_flows) {
  spec_.intruder = true;
  spec_.ordinary_bytes = 2'000'000;
  std::vector<CollWork> calls;
  for (int i = 0; i < 4; i++) calls.push_back(work(SL_COLL_SUM, SL_COLL_I32, 352 * 200));
  const CollReport report = run_coll_job(spec_, calls);
  expect_no_errors(report);
  EXPECT_GT(report.counters.at(SL_COLL_BAD_TOKEN), 0u);
  EXPECT_GT(report.counters.at(SL_COLL_BAD_SOURCE), 0u);
}

TEST_P(CollJob, another_length_is_an_error_of_all_that_names_both) {
  std::vector<CollWork> calls = {work(SL_COLL_SUM, SL_COLL_I32, 5000), work(SL_COLL_SUM, SL_COLL_I32, 5000)};
  calls[1].fewer[2] = 4;
  const CollReport report = run_coll_job(spec_, calls);
  EXPECT_EQ(report.errors.back(), "");
  for (unsigned key = 0; key < spec_.members; key++)
    EXPECT_THAT(report.errors[key], AllOf(HasSubstr("KEY 2"), HasSubstr("elements"))) << key;
}

TEST_P(CollJob, a_member_that_falls_silent_is_named) {
  spec_.dead_after_ns = 3'000'000'000;
  std::vector<CollWork> calls = {work(SL_COLL_SUM, SL_COLL_I32, 5000), work(SL_COLL_SUM, SL_COLL_I32, 5000)};
  calls[1].absent[1] = true;
  const CollReport report = run_coll_job(spec_, calls);
  for (const unsigned key : {0U, 2U, 3U}) EXPECT_THAT(report.errors[key], HasSubstr("KEY 1")) << key;
}

TEST_P(CollJob, a_member_that_is_killed_or_stopped_is_named) {
  spec_.dead_after_ns = 3'000'000'000;
  spec_.victim = 2;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    spec_.victim_signal = signal;
    const CollReport report =
        run_coll_job(spec_, {work(SL_COLL_SUM, SL_COLL_F32, 50'000), work(SL_COLL_SUM, SL_COLL_F32, 50'000)});
    for (const unsigned key : {0U, 1U, 3U}) EXPECT_THAT(report.errors[key], HasSubstr("KEY 2 is dead")) << key;
    EXPECT_EQ(report.errors.back(), "");
  }
}

TEST(CollUdp, APortThatIsTakenSaysSo) {
  coll::Address loopback;
  loopback.ip[15] = 1;
  ASSERT_VALUE(first, coll::UdpPort::open(loopback));
  const auto second = coll::UdpPort::open(first.local());
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message().find(std::to_string(first.local().port)), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
