// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The aggregator packet by packet: every row of the slot table of docs/protocol.md, who is believed, who is told what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coll/model/aggregator.h"
#include "coll/model/member.h"

namespace sluice::coll {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kToken = 42;

Address host(unsigned number) {
  Address address;
  address.ip[15] = static_cast<std::uint8_t>(number);
  address.port = 9000;
  return address;
}

AggregatorConfig config(std::uint16_t members, std::uint16_t window, std::vector<std::uint32_t> weights = {}) {
  AggregatorConfig config;
  config.job.token = kToken;
  config.job.job = 1;
  config.job.members = config.job.contributors = members;
  config.job.incarnation = 3;
  config.job.window = window;
  config.job.words = 16;
  for (unsigned key = 0; key < members; key++) {
    sl_coll_member member{};
    member.addr[15] = static_cast<std::uint8_t>(key + 1);
    member.port = __builtin_bswap16(9000);
    member.weight = weights.empty() ? 1 : weights[key];
    config.job.weight_sum += member.weight;
    config.members.push_back(member);
  }
  return config;
}

struct Reply {
  unsigned host;
  Header header;
  Bytes payload;
};

class Bench {
 public:
  explicit Bench(AggregatorConfig config) : aggregator(std::move(config)) {}

  Header contribution(unsigned key, std::uint64_t position) const {
    Header header;
    header.magic = SL_COLL_MAGIC_AGGREGATE;
    header.key = key;
    header.op = SL_COLL_SUM;
    header.dtype = SL_COLL_I32;
    header.job = 1;
    header.members = members;
    header.token = kToken;
    header.place(3, position);
    return header;
  }
  std::vector<Reply> send(const Header& header, const std::vector<std::int32_t>& values = {}, int from = -1) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(values.data());
    return send_bytes(encode(header, {bytes, 4 * values.size()}), from < 0 ? header.key + 1 : static_cast<unsigned>(from));
  }
  std::vector<Reply> send_bytes(const Bytes& bytes, unsigned from) {
    Outbox out;
    aggregator.receive(host(from), bytes, now, out);
    return replies(out);
  }
  static std::vector<Reply> replies(const Outbox& out) {
    std::vector<Reply> list;
    for (const Datagram& datagram : out) {
      EXPECT_TRUE(intact(datagram.bytes));
      const ByteSpan payload = payload_of(datagram.bytes);
      list.push_back({datagram.to.ip[15], *parse(datagram.bytes), Bytes(payload.begin(), payload.end())});
      EXPECT_TRUE(list.back().header.flags & SL_COLL_RESULT);
    }
    return list;
  }
  std::uint64_t counted(sl_coll_counter index) const { return aggregator.counter(index); }
  // All members contribute `value` to `position`.
  void complete(std::uint64_t position, std::int32_t value) {
    for (unsigned key = 0; key < members; key++) send(contribution(key, position), {value});
  }

  Aggregator aggregator;
  std::uint16_t members = 3;
  std::uint64_t now = 1'000'000'000;
};

std::vector<std::int32_t> words(const Reply& reply) {
  std::vector<std::int32_t> values(reply.payload.size() / 4);
  std::memcpy(values.data(), reply.payload.data(), reply.payload.size());
  return values;
}

TEST(CollAggregator, TheLastContributionSendsTheResultToAll) {
  Bench bench(config(3, 2));
  EXPECT_TRUE(bench.send(bench.contribution(0, 0), {1, 10}).empty());
  EXPECT_TRUE(bench.send(bench.contribution(2, 0), {2, 20}).empty());
  const auto replies = bench.send(bench.contribution(1, 0), {3, -7});
  ASSERT_EQ(replies.size(), 3u);
  for (unsigned key = 0; key < 3; key++) {
    EXPECT_EQ(replies[key].host, key + 1);
    EXPECT_EQ(replies[key].header.key, key);
    EXPECT_EQ(replies[key].header.position(), 0u);
    EXPECT_EQ(replies[key].header.magic, SL_COLL_MAGIC_AGGREGATE);
    EXPECT_THAT(words(replies[key]), ElementsAre(6, 23));
  }
}

TEST(CollAggregator, ADuplicateIsNeverAddedAndACompleteSlotAnswersItAlone) {
  Bench bench(config(3, 2));
  bench.send(bench.contribution(0, 0), {1});
  EXPECT_TRUE(bench.send(bench.contribution(0, 0), {1}).empty());
  EXPECT_EQ(bench.counted(SL_COLL_DUPLICATE), 1u);
  bench.send(bench.contribution(1, 0), {1});
  bench.send(bench.contribution(2, 0), {1});
  const auto replies = bench.send(bench.contribution(1, 0), {1});
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].host, 2u);
  EXPECT_THAT(words(replies[0]), ElementsAre(3));
  EXPECT_EQ(bench.counted(SL_COLL_ANSWERED), 1u);
}

TEST(CollAggregator, BothVersionsOfASlotAnswerAndTheOneBeforeIsStale) {
  Bench bench(config(3, 2));
  bench.complete(0, 1);
  bench.complete(2, 10);  // the other version of slot 0
  EXPECT_THAT(words(bench.send(bench.contribution(0, 0), {1}).at(0)), ElementsAre(3));
  EXPECT_THAT(words(bench.send(bench.contribution(0, 2), {10}).at(0)), ElementsAre(30));
  bench.send(bench.contribution(1, 4), {100});  // takes the place of 0
  EXPECT_TRUE(bench.send(bench.contribution(0, 0), {1}).empty());
  EXPECT_EQ(bench.counted(SL_COLL_STALE), 1u);
  EXPECT_THAT(words(bench.send(bench.contribution(0, 2), {10}).at(0)), ElementsAre(30));
  bench.send(bench.contribution(0, 4), {100});
  EXPECT_THAT(words(bench.send(bench.contribution(2, 4), {100}).at(0)), ElementsAre(300));
}

TEST(CollAggregator, WhatBreaksTheWindowRuleCannotOverwriteWhatOthersNeed) {
  Bench bench(config(3, 2));
  bench.complete(0, 1);
  EXPECT_TRUE(bench.send(bench.contribution(2, 4), {5}).empty());  // 2 is not complete
  EXPECT_TRUE(bench.send(bench.contribution(2, 3), {5}).empty());  // 1 is not
  EXPECT_TRUE(bench.send(bench.contribution(2, 400), {5}).empty());
  EXPECT_EQ(bench.counted(SL_COLL_FUTURE), 3u);
  EXPECT_THAT(words(bench.send(bench.contribution(0, 0), {1}).at(0)), ElementsAre(3));
}

TEST(CollAggregator, PositionsGoOnWhereSeqWraps) {
  Bench bench(config(3, 1));
  // As if 2^32 - 2 chunks had passed: only the two entries of the slot matter.
  for (std::uint64_t position = 0; position < 6; position++) bench.complete(position, 1);
  Header header = bench.contribution(0, (std::uint64_t{1} << 32) + 6);
  EXPECT_EQ(header.seq, 6u);
  EXPECT_TRUE(bench.send(header, {1}).empty());
  EXPECT_EQ(bench.counted(SL_COLL_FUTURE), 1u);  // the same seq, another position
  bench.complete(6, 2);
  EXPECT_THAT(words(bench.send(bench.contribution(0, 6), {2}).at(0)), ElementsAre(6));
}

TEST(CollAggregator, WeightsMultiplyExactlyAndOnlySums) {
  Bench bench(config(3, 2, {1, 1000, 7}));
  bench.send(bench.contribution(0, 0), {1, INT32_MAX});
  bench.send(bench.contribution(1, 0), {2, 0});
  EXPECT_THAT(words(bench.send(bench.contribution(2, 0), {3, 1}).at(0)), ElementsAre(2022, INT32_MIN + 6));  // wraps, as MPI's
  for (unsigned key = 0; key < 3; key++) {
    Header header = bench.contribution(key, 1);
    header.op = SL_COLL_MAX;
    const auto replies = bench.send(header, {static_cast<std::int32_t>(key)});
    EXPECT_EQ(replies.size(), key == 2 ? 3u : 0u);
    if (key == 2) {
      EXPECT_THAT(words(replies.at(0)), ElementsAre(2));
    }
  }
}

TEST(CollAggregator, FlagsAndExponentsOfAllReachTheResult) {
  Bench bench(config(3, 2));
  for (unsigned key = 0; key < 3; key++) {
    Header header = bench.contribution(key, 0);
    header.dtype = SL_COLL_F32;
    header.exponent = -5;
    header.scale_low = 9;
    header.flags = key == 0   ? SL_COLL_NAN
                   : key == 1 ? SL_COLL_NEG_INF | SL_COLL_ACK_REQUEST
                              : SL_COLL_OVERFLOW | SL_COLL_NO_VALUES;
    const auto replies = bench.send(header, {1});
    if (key < 2) continue;
    ASSERT_EQ(replies.size(), 3u);
    constexpr int kAll = SL_COLL_RESULT | SL_COLL_NAN | SL_COLL_NEG_INF | SL_COLL_OVERFLOW;
    EXPECT_EQ(replies[0].header.flags, kAll);
    EXPECT_EQ(replies[2].header.flags, kAll | SL_COLL_NO_VALUES);
    EXPECT_EQ(replies[0].header.exponent, -5);
    EXPECT_EQ(replies[0].header.scale_low, 9);
    EXPECT_EQ(replies[0].payload.size(), 4u);
    EXPECT_TRUE(replies[2].payload.empty());
  }
}

TEST(CollAggregator, AckRequestIsAnsweredWithWhoHasContributed) {
  Bench bench(config(3, 2));
  bench.send(bench.contribution(2, 1), {1});
  Header header = bench.contribution(2, 1);
  header.flags = SL_COLL_ACK_REQUEST;
  const auto replies = bench.send(header, {1});
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].header.op, SL_COLL_STATUS);
  EXPECT_EQ(replies[0].header.position(), 1u);
  EXPECT_EQ(from_bytes<sl_coll_status>(replies[0].payload)->bitmap, 0b100u);
}

TEST(CollAggregator, WhoeverLacksTokenAddressVersionOrIntegrityChangesNothingAndGetsNoAnswer) {
  Bench bench(config(3, 2));
  Header header = bench.contribution(0, 0);
  header.token++;
  EXPECT_TRUE(bench.send(header, {1}).empty());
  EXPECT_EQ(bench.counted(SL_COLL_BAD_TOKEN), 1u);
  header = bench.contribution(0, 0);
  header.job++;
  EXPECT_TRUE(bench.send(header, {1}).empty());
  EXPECT_EQ(bench.counted(SL_COLL_BAD_TOKEN), 2u);
  EXPECT_TRUE(bench.send(bench.contribution(0, 0), {1}, 2).empty());
  EXPECT_EQ(bench.counted(SL_COLL_BAD_SOURCE), 1u);
  header = bench.contribution(0, 0);
  header.version++;
  EXPECT_TRUE(bench.send(header, {1}).empty());
  EXPECT_EQ(bench.counted(SL_COLL_BAD_VERSION), 1u);
  Bytes bytes = encode(bench.contribution(0, 0), Bytes{1, 0, 0, 0});
  bytes.back() = 1;
  EXPECT_TRUE(bench.send_bytes(bytes, 1).empty());
  EXPECT_EQ(bench.counted(SL_COLL_CORRUPT), 1u);
  header = bench.contribution(3, 0);
  EXPECT_TRUE(bench.send(header, {1}).empty());
  header = bench.contribution(0, 0);
  header.flags = SL_COLL_RESULT;
  EXPECT_TRUE(bench.send(header, {1}).empty());
  header = bench.contribution(0, 0);
  header.dtype = SL_COLL_DTYPE_COUNT;
  EXPECT_TRUE(bench.send(header, {1}).empty());
  EXPECT_TRUE(bench.send(bench.contribution(0, 0), std::vector<std::int32_t>(17)).empty());
  EXPECT_TRUE(bench.send_bytes(encode(bench.contribution(0, 0), Bytes{1}), 1).empty());
  EXPECT_EQ(bench.counted(SL_COLL_MALFORMED), 5u);
  EXPECT_EQ(bench.counted(SL_COLL_FIRST), 0u);
}

TEST(CollAggregator, AnotherShapeFailsTheJobForAllAndForWhatComesLater) {
  struct Row {
    std::function<void(Header&)> change;
    std::string says;
  };
  for (const Row& row : {
           Row{[](Header& h) { h.op = SL_COLL_MAX; }, "KEY 0 has sum of i32, KEY 2 has max of i32"},
           Row{[](Header& h) { h.dtype = SL_COLL_F32; }, "KEY 0 has sum of i32, KEY 2 has sum of f32"},
           Row{[](Header& h) { h.members = 4; }, "KEY 0 has 3 members, KEY 2 has 4 members"},
           Row{[](Header& h) { h.frag_offset = 16; }, "KEY 0 has elements 0 to 1, KEY 2 has elements 16 to 17"},
           Row{[](Header& h) { h.flags = SL_COLL_LAST_FRAGMENT; },
               "KEY 0 has elements 0 to 1, KEY 2 has elements 0 to 1, its last"},
           Row{[](Header& h) { h.exponent = 4; }, "KEY 0 has the exponent 0, KEY 2 has the exponent 4"},
       }) {
    Bench bench(config(3, 2));
    bench.send(bench.contribution(0, 0), {1});
    Header header = bench.contribution(2, 0);
    row.change(header);
    const auto replies = bench.send(header, {1});
    ASSERT_EQ(replies.size(), 3u);
    for (const Reply& reply : replies) {
      EXPECT_EQ(reply.header.op, SL_COLL_MISMATCH);
      const auto failure = from_bytes<sl_coll_failure>(reply.payload);
      EXPECT_EQ(difference(failure->a, failure->key_a, failure->b, failure->key_b), row.says);
    }
    const auto late = bench.send(bench.contribution(1, 0), {1});
    ASSERT_EQ(late.size(), 1u);
    EXPECT_EQ(late[0].header.op, SL_COLL_MISMATCH);
    EXPECT_EQ(bench.counted(SL_COLL_AFTER_FAILURE), 1u);
  }
}

TEST(CollAggregator, APacketOfAnotherIncarnationIsAnsweredWithThisOne) {
  Bench bench(config(3, 2));
  Header header = bench.contribution(1, 0);
  header.place(2, 0);
  const auto replies = bench.send(header, {1});
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].header.op, SL_COLL_EPOCH);
  EXPECT_EQ(replies[0].header.incarnation(), 3);
  EXPECT_EQ(bench.counted(SL_COLL_OLD_EPOCH), 1u);
  EXPECT_EQ(bench.counted(SL_COLL_FIRST), 0u);
}

TEST(CollAggregator, ASilentMemberIsDeclaredDeadToAll) {
  Bench bench(config(3, 2));
  Header header = bench.contribution(1, 0);
  header.magic = SL_COLL_MAGIC_CONTROL;
  header.op = SL_COLL_JOIN;
  const sl_coll_join join{.instance = 5, .weight_sum = 3, .window = 2, .words = 16, .mode = SL_COLL_FALLBACK, .pad = {}};
  EXPECT_EQ(bench.aggregator.next_tick_ns(), kNever);
  EXPECT_EQ(bench.send_bytes(encode(header, as_bytes(join)), 2).at(0).header.op, SL_COLL_ACCEPT);
  EXPECT_EQ(bench.aggregator.next_tick_ns(), 3'000'000'000u);
  Outbox out;
  bench.aggregator.tick(2'999'999'999, out);
  EXPECT_TRUE(out.empty());
  header.op = SL_COLL_ALIVE;
  bench.now = 2'500'000'000;
  EXPECT_EQ(bench.send(header).at(0).header.op, SL_COLL_ALIVE);
  bench.aggregator.tick(4'499'999'999, out);
  EXPECT_TRUE(out.empty());
  bench.aggregator.tick(4'500'000'000, out);
  const auto replies = Bench::replies(out);
  ASSERT_EQ(replies.size(), 3u);
  EXPECT_EQ(replies[0].header.op, SL_COLL_MEMBER_DEAD);
  EXPECT_EQ(from_bytes<sl_coll_failure>(replies[0].payload)->missing, 0b10u);
}

TEST(CollAggregator, JoinIsRefusedWithItsReason) {
  struct Row {
    unsigned key;
    std::function<void(Header&, sl_coll_join&)> change;
    sl_coll_reason reason;
  };
  for (const Row& row : {
           Row{1, [](Header&, sl_coll_join&) {}, SL_COLL_OK},
           Row{1, [](Header& h, sl_coll_join&) { h.version = 2; }, SL_COLL_REASON_VERSION},
           Row{64, [](Header&, sl_coll_join&) {}, SL_COLL_REASON_MEMBERS},
           Row{1, [](Header& h, sl_coll_join&) { h.members = 9; }, SL_COLL_REASON_GEOMETRY},
           Row{1, [](Header&, sl_coll_join& j) { j.window = 4; }, SL_COLL_REASON_GEOMETRY},
           Row{1, [](Header&, sl_coll_join& j) { j.words = 32; }, SL_COLL_REASON_GEOMETRY},
           Row{1, [](Header&, sl_coll_join& j) { j.weight_sum = 5; }, SL_COLL_REASON_GEOMETRY},
           Row{0, [](Header&, sl_coll_join&) {}, SL_COLL_REASON_TAKEN},
       }) {
    Bench bench(config(3, 2));
    sl_coll_join join{.instance = 5, .weight_sum = 3, .window = 2, .words = 16, .mode = SL_COLL_KERNEL, .pad = {}};
    Header header = bench.contribution(0, 0);
    header.magic = SL_COLL_MAGIC_CONTROL;
    header.op = SL_COLL_JOIN;
    bench.send_bytes(encode(header, as_bytes(join)), 1);
    header.op = SL_COLL_ALIVE;
    bench.send(header);  // KEY 0 is taken
    header.op = SL_COLL_JOIN;
    join.instance = 6;
    header.key = row.key;
    row.change(header, join);
    const auto replies = bench.send_bytes(encode(header, as_bytes(join)), row.key + 1);
    ASSERT_EQ(replies.size(), 1u);
    EXPECT_EQ(replies[0].header.op, row.reason == SL_COLL_OK ? SL_COLL_ACCEPT : SL_COLL_REFUSED);
    const auto accept = from_bytes<sl_coll_accept>(replies[0].payload);
    EXPECT_EQ(accept->reason, row.reason);
    EXPECT_EQ(accept->instance, 6u);
    EXPECT_EQ(accept->joined, row.reason == SL_COLL_OK ? 0b11u : 0b1u);
  }
}

TEST(CollAggregator, WhoComesAfterTheEndIsTold) {
  Bench bench(config(3, 2));
  Header header = bench.contribution(1, 0);
  header.magic = SL_COLL_MAGIC_CONTROL;
  header.op = SL_COLL_ABORT;
  EXPECT_EQ(bench.send_bytes(encode(header, as_bytes(sl_coll_failure{})), 2).size(), 3u);
  header.op = SL_COLL_JOIN;
  const sl_coll_join join{.instance = 1, .weight_sum = 3, .window = 2, .words = 16, .mode = SL_COLL_KERNEL, .pad = {}};
  const auto reason = [&] {
    return from_bytes<sl_coll_accept>(bench.send_bytes(encode(header, as_bytes(join)), 2).at(0).payload)->reason;
  };
  EXPECT_EQ(reason(), SL_COLL_REASON_FAILED);
  Outbox out;
  bench.aggregator.destroy(out);
  EXPECT_EQ(reason(), SL_COLL_REASON_GONE);
}

// Late copies of an earlier process's JOIN come first, and between JOIN and ACCEPT.
TEST(CollAggregator, AJoinThatNobodyConfirmsTakesNoKey) {
  Bench bench(config(3, 2));
  Header header = bench.contribution(1, 0);
  header.magic = SL_COLL_MAGIC_CONTROL;
  header.op = SL_COLL_JOIN;
  sl_coll_join stale{.instance = 1, .weight_sum = 3, .window = 2, .words = 16, .mode = SL_COLL_FALLBACK, .pad = {}};
  sl_coll_join fresh = stale;
  fresh.instance = 2;
  fresh.mode = SL_COLL_KERNEL;
  for (const sl_coll_join& join : {stale, fresh, stale, fresh})
    EXPECT_EQ(bench.send_bytes(encode(header, as_bytes(join)), 2).at(0).header.op, SL_COLL_ACCEPT);
  EXPECT_EQ(bench.aggregator.fallback(), 0u);
  header.op = SL_COLL_ALIVE;
  bench.send(header);
  header.op = SL_COLL_JOIN;
  EXPECT_EQ(bench.send_bytes(encode(header, as_bytes(stale)), 2).at(0).header.op, SL_COLL_REFUSED);
  EXPECT_EQ(bench.send_bytes(encode(header, as_bytes(fresh)), 2).at(0).header.op, SL_COLL_ACCEPT);
}

TEST(CollAggregator, AJobThatCannotWorkIsRefusedAndTheSixtyFifthMemberIsTold) {
  EXPECT_TRUE(Aggregator::check(config(64, 16)));
  const auto too_many = Aggregator::check(config(65, 1));
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().code, Code::kExhausted);
  EXPECT_THAT(too_many.error().message(),
              testing::AllOf(HasSubstr("member 65 is one too many"), HasSubstr("64 members"), HasSubstr("tree")));
  MemberConfig member{.token = 1, .weight_sum = 65, .job = 1, .members = 65, .window = 1, .key = 64, .aggregator = {}};
  EXPECT_THAT(Member::check(member).error().message(), HasSubstr("member 65 is one too many"));
  EXPECT_FALSE(Aggregator::check(config(0, 1)));
  EXPECT_FALSE(Aggregator::check(config(2, 3)));
  EXPECT_FALSE(Aggregator::check(config(2, 256)));
  EXPECT_FALSE(Aggregator::check(config(2, 1, {0, 1})));
  AggregatorConfig bad = config(2, 1);
  bad.job.incarnation = 0;
  EXPECT_FALSE(Aggregator::check(bad));
  bad = config(2, 1);
  bad.job.words = 833;
  EXPECT_FALSE(Aggregator::check(bad));
  bad = config(2, 1);
  bad.job.weight_sum++;
  EXPECT_FALSE(Aggregator::check(bad));
}

// Calls that a member refuses by itself: nothing is sent.
TEST(CollMember, ImpossibleCallsAreRefusedBeforeAnythingIsSent) {
  Aggregator aggregator(config(1, 2));
  MemberConfig config{
      .token = kToken, .weight_sum = 1, .job = 1, .members = 1, .window = 2, .words = 16, .key = 0, .aggregator = host(99)};
  Member member(config);
  Outbox out;
  std::uint8_t memory[8] = {};
  const std::span<std::uint8_t> eight(memory);
  EXPECT_EQ(member.begin({.op = SL_COLL_BARRIER}, 0, out).error().code, Code::kConflict);  // has not joined
  member.join(0, out);
  Outbox answers;
  aggregator.receive(host(1), out.at(0).bytes, 0, answers);
  member.receive(host(99), answers.at(0).bytes, 0, out);
  ASSERT_EQ(member.state(), Member::State::kIdle);
  out.clear();
  for (const Call& call : {
           Call{.op = SL_COLL_SUM, .dtype = SL_COLL_NONE, .input = eight, .output = eight},
           Call{.op = static_cast<sl_coll_op>(0), .dtype = SL_COLL_I32, .input = eight, .output = eight},
           Call{.op = SL_COLL_SUM, .dtype = SL_COLL_I64, .input = eight.first(4), .output = eight.first(4)},
           Call{.op = SL_COLL_SUM, .dtype = SL_COLL_I32, .input = eight, .output = eight.first(4)},
           Call{.op = SL_COLL_BARRIER, .input = eight, .output = eight},
           Call{.op = SL_COLL_SUM, .dtype = SL_COLL_I32, .input = eight, .output = eight, .fixed_scale = 2},
           Call{.op = SL_COLL_SUM, .dtype = SL_COLL_F32, .input = eight, .output = eight, .fixed_scale = -2},
       }) {
    const auto refused = member.begin(call, 0, out);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kInvalid);
  }
  EXPECT_TRUE(out.empty());
  EXPECT_TRUE(member.begin({.op = SL_COLL_SUM, .dtype = SL_COLL_I32, .input = eight, .output = eight}, 0, out));
  EXPECT_EQ(out.size(), 1u);
  EXPECT_EQ(member.begin({.op = SL_COLL_BARRIER}, 0, out).error().code, Code::kConflict);  // one call at a time
}

TEST(CollMember, AverageOfI64RefusesWhatMightOverflow) {
  Aggregator aggregator(config(1, 2, {4}));
  MemberConfig config{
      .token = kToken, .weight_sum = 4, .job = 1, .members = 1, .window = 2, .words = 16, .key = 0, .aggregator = host(99)};
  Member member(config);
  const auto exchange = [&](Outbox out) {
    while (!out.empty()) {
      Outbox answers, next;
      for (const Datagram& datagram : out) aggregator.receive(host(1), datagram.bytes, 0, answers);
      for (const Datagram& datagram : answers) member.receive(host(99), datagram.bytes, 0, next);
      out = std::move(next);
    }
  };
  Outbox out;
  member.join(0, out);
  exchange(out);
  for (const bool over : {false, true}) {
    std::int64_t value = INT64_MAX / 4 + over;
    const std::span<std::uint8_t> memory(reinterpret_cast<std::uint8_t*>(&value), 8);
    out.clear();
    ASSERT_TRUE(member.begin({.op = SL_COLL_AVERAGE, .dtype = SL_COLL_I64, .input = memory, .output = memory}, 0, out));
    exchange(out);
    const auto outcome = member.take_outcome();
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->has_value(), !over);
    if (!over) {
      EXPECT_EQ(value, INT64_MAX / 4);
    }
  }
}

}  // namespace
}  // namespace sluice::coll
