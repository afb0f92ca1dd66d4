// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The collective protocol under loss, duplication, reordering, damage, delay beyond the reuse of slots, death and restart,
// judged by an oracle that knows the inputs only. Each schedule is named by its seed; SLUICE_SIM_SEED repeats one,
// SLUICE_SIM_RUNS changes their number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "coll_oracle.h"
#include "coll_world.h"

namespace sluice::coll::sim {
namespace {

using oracle::Case;
using oracle::Op;
using oracle::Type;
using ::testing::HasSubstr;

constexpr std::uint64_t kSecond = 1'000'000'000;

sl_coll_op op_of(Op op) {
  static constexpr sl_coll_op kOps[] = {SL_COLL_SUM, SL_COLL_COUNT, SL_COLL_MAX, SL_COLL_MIN, SL_COLL_AVERAGE};
  return kOps[static_cast<int>(op)];
}
sl_coll_dtype dtype_of(Type type) {
  static constexpr sl_coll_dtype kTypes[] = {SL_COLL_I32, SL_COLL_I64, SL_COLL_F32, SL_COLL_F16, SL_COLL_BF16};
  return kTypes[static_cast<int>(type)];
}

// Values of every magnitude; `special`: chance of NaN and infinities.
std::vector<std::uint8_t> random_input(Type type, std::size_t elements, double special, Random& random) {
  std::vector<std::uint8_t> bytes(elements * oracle::size(type));
  const int around = static_cast<int>(random.below(30)) - 15;
  for (std::size_t i = 0; i < elements; i++) {
    std::uint8_t* at = bytes.data() + i * oracle::size(type);
    if (type == Type::kI32 || type == Type::kI64) {
      std::uint64_t value = random.next();
      if (random.chance(0.3)) value = random.below(3) - 1;
      if (type == Type::kI64 && !random.chance(0.5)) value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value) >> 24);
      std::memcpy(at, &value, oracle::size(type));
      continue;
    }
    double value = std::ldexp(random.unit() * 2 - 1, around + static_cast<int>(random.below(12)) - 6);
    if (random.chance(0.1)) value = 0;
    if (random.chance(special)) value = random.chance(0.4) ? NAN : random.chance(0.5) ? INFINITY : -INFINITY;
    const auto single = static_cast<float>(value);
    if (type == Type::kF32) {
      std::memcpy(at, &single, 4);
    } else if (type == Type::kF16) {
      const auto half = static_cast<oracle::Half>(single);
      std::memcpy(at, &half, 2);
    } else {
      std::uint32_t bits;
      std::memcpy(&bits, &single, 4);
      const auto high = static_cast<std::uint16_t>(bits >> 16 | (std::isnan(single) ? 0x40 : 0));
      std::memcpy(at, &high, 2);
    }
  }
  return bytes;
}

struct Plan {
  JobSpec job;
  NetworkSpec network;
  std::vector<Case> calls;
  std::vector<std::pair<std::size_t, std::size_t>> wanted;  // by member: rank within a reduce-scatter; empty = all-reduce
};

std::size_t block_of(const JobSpec& job, Op op, Type type) {
  const bool wide = op != Op::kCount && (type == Type::kI64 || (op == Op::kAverage && type == Type::kI32));
  return wide ? job.words / 2 : job.words;
}

Case random_case(const JobSpec& job, Random& random, std::size_t most_chunks) {
  Case c;
  c.op = static_cast<Op>(random.below(5));
  c.type = static_cast<Type>(random.below(5));
  if (c.type == Type::kI64 && c.op == Op::kAverage) c.type = Type::kI32;  // may overflow, and says so: a test of its own
  c.block = block_of(job, c.op, c.type);
  for (unsigned key = 0; key < job.members; key++)
    c.weights.push_back(c.op == Op::kSum || c.op == Op::kAverage ? job.weight(key) : 1);
  const std::size_t elements = random.below(c.block * most_chunks + 1);
  const double special = random.chance(0.3) ? 0.02 : 0;
  for (unsigned key = 0; key < job.members; key++) c.inputs.push_back(random_input(c.type, elements, special, random));
  return c;
}

Plan random_plan(std::uint64_t seed) {
  SeededRandom random(seed);
  Plan plan;
  plan.job.members = static_cast<std::uint16_t>(random.chance(0.04) ? random.between(17, 64) : random.between(2, 6));
  plan.job.window = static_cast<std::uint16_t>(1u << random.below(5));
  plan.job.words = static_cast<std::uint16_t>(random.chance(0.05) ? 352 : 16);
  if (plan.job.members > 16) plan.job.words = 16, plan.job.window = std::min<std::uint16_t>(plan.job.window, 4);
  if (random.chance(0.25))
    for (unsigned key = 0; key < plan.job.members; key++)
      plan.job.weights.push_back(static_cast<std::uint32_t>(random.between(1, 200)));
  static constexpr double kLoss[] = {0, 0.001, 0.01, 0.1};
  plan.network.loss = kLoss[random.below(4)];
  if (random.chance(0.5)) plan.network.duplicate = 0.1;
  if (random.chance(0.3)) plan.network.corrupt = 0.05;
  plan.network.jitter_ns = random.chance(0.5) ? 200'000 : 1'000;
  if (random.chance(0.5)) {
    plan.network.late = 0.03;
    plan.network.late_ns = 50'000'000;
  }
  const std::uint64_t calls = random.between(1, 4);
  for (std::uint64_t i = 0; i < calls; i++) plan.calls.push_back(random_case(plan.job, random, plan.job.members > 16 ? 4 : 12));
  return plan;
}

// Makes all calls; empty, or what was wrong. `digest`: all outputs.
std::string play(World& world, const std::vector<Case>& calls, std::uint64_t seed, std::string* digest = nullptr) {
  SeededRandom random(seed);
  if (!world.join_all()) return "joining took a minute";
  for (std::size_t number = 0; number < calls.size(); number++) {
    const Case& c = calls[number];
    const unsigned n = world.members();
    std::vector<std::vector<std::uint8_t>> outputs(n);
    std::vector<std::uint64_t> begins(n);
    std::vector<bool> ended(n, false);
    std::string wrong;
    for (unsigned key = 0; key < n; key++) {
      outputs[key] = c.inputs[key];  // in place
      begins[key] = random.chance(0.2) ? random.below(5'000'000) : random.below(50'000);
    }
    std::vector<unsigned> order(n);
    for (unsigned key = 0; key < n; key++) order[key] = key;
    std::sort(order.begin(), order.end(), [&](unsigned a, unsigned b) { return begins[a] < begins[b]; });
    const std::uint64_t start = world.now_ns();
    for (unsigned key : order) {
      world.run([&] { return world.now_ns() >= start + begins[key]; }, begins[key]);
      Call call;
      call.op = op_of(c.op);
      call.dtype = dtype_of(c.type);
      call.input = outputs[key];
      call.output = outputs[key];
      call.fixed_scale = static_cast<float>(c.fixed_scale);
      world.act(key, [&](Outbox& out) {
        if (auto begun = world.member(key).begin(call, world.now_ns(), out); !begun) wrong = begun.error().message();
      });
    }
    if (!wrong.empty()) return wrong;
    const bool in_time = world.run(
        [&] { return world.all([](const Member& m) { return m.state() != Member::State::kCalling; }); }, 40 * kSecond);
    if (!in_time) return "a call hangs";
    for (unsigned key = 0; key < n; key++) {
      auto outcome = world.member(key).take_outcome();
      if (!outcome) return "no outcome";
      if (!*outcome) return outcome->error().message();
      if (outputs[key] != outputs[0]) return "members differ";
    }
    if (wrong = oracle::judge(c, outputs[0]); !wrong.empty())
      return "call " + std::to_string(number) + ", " + op_name(op_of(c.op)) + " of " + dtype_name(dtype_of(c.type)) + ": " +
             wrong;
    if (digest) digest->append(outputs[0].begin(), outputs[0].end());
  }
  return {};
}

std::uint64_t base_seed() {
  const char* text = std::getenv("SLUICE_SIM_SEED");
  return text ? std::strtoull(text, nullptr, 0) : 0;
}
std::uint64_t runs(std::uint64_t usual) {
  const char* text = std::getenv("SLUICE_SIM_RUNS");
  return text ? std::strtoull(text, nullptr, 0) : base_seed() ? 1 : usual;
}

TEST(CollSim, EveryContributionCountsExactlyOnceInEverySchedule) {
  std::uint64_t schedules = 0, results = 0, retransmitted = 0, stale = 0, answered = 0, corrupt = 0;
  const std::uint64_t first = base_seed() ? base_seed() : 1;
  for (std::uint64_t seed = first; seed < first + runs(1000); seed++) {
    const Plan plan = random_plan(seed);
    World world(plan.job, plan.network, seed * 2 + 1);
    const std::string wrong = play(world, plan.calls, seed);
    ASSERT_EQ(wrong, "") << "SLUICE_SIM_SEED=" << seed << ": " << plan.job.members << " members, W " << plan.job.window
                         << ", loss " << plan.network.loss;
    schedules++;
    for (unsigned key = 0; key < world.members(); key++) {
      results += world.member(key).stats().results;
      retransmitted += world.member(key).stats().retransmitted;
      corrupt += world.member(key).stats().corrupt;
    }
    stale += world.aggregator().counter(SL_COLL_STALE);
    answered += world.aggregator().counter(SL_COLL_ANSWERED);
    corrupt += world.aggregator().counter(SL_COLL_CORRUPT);
    ASSERT_EQ(world.aggregator().counter(SL_COLL_FUTURE), 0u);
  }
  std::cout << schedules << " schedules, " << results << " results, " << retransmitted << " retransmissions, " << answered
            << " answered from a slot, " << stale << " stale, " << corrupt << " damaged\n";
  if (!base_seed()) {  // what makes this a test did happen
    EXPECT_GT(retransmitted, 0u);
    EXPECT_GT(answered, 0u);
    EXPECT_GT(stale, 0u);
    EXPECT_GT(corrupt, 0u);
  }
}

TEST(CollSim, TheBitsDependOnTheInputsAlone) {
  for (std::uint64_t seed = 5000; seed < 5050; seed++) {
    const Plan plan = random_plan(seed);
    std::string digests[2];
    for (std::uint64_t run = 0; run < 2; run++) {
      World world(plan.job, plan.network, seed * 2 + run);
      ASSERT_EQ(play(world, plan.calls, seed + run, &digests[run]), "") << "seed " << seed;
    }
    EXPECT_EQ(digests[0], digests[1]) << "seed " << seed;
  }
}

TEST(CollSim, AFixedScaleIsExactWithinHalfAUnitPerMember) {
  for (std::uint64_t seed = 1; seed <= 100; seed++) {
    SeededRandom random(seed);
    JobSpec job{.members = 3};
    Case c{.op = random.chance(0.5) ? Op::kSum : Op::kAverage,
           .type = Type::kF32,
           .inputs = {},
           .weights = {1, 1, 1},
           .block = 16,
           .fixed_scale = 1e5};
    for (unsigned key = 0; key < 3; key++) {
      std::vector<float> values(40);
      for (float& value : values) value = static_cast<float>(random.unit() * 2000 - 1000);
      if (random.chance(0.3)) values[3] = INFINITY;
      c.inputs.emplace_back(reinterpret_cast<std::uint8_t*>(values.data()),
                            reinterpret_cast<std::uint8_t*>(values.data() + 40));
    }
    World world(job, {.loss = 0.05}, seed);
    ASSERT_EQ(play(world, {c}, seed), "") << "seed " << seed;
  }
}

// Death, restart, disagreement: everybody learns it, with the name, and in time.

Call sum_of(std::vector<std::int32_t>& values, std::uint64_t timeout_ns = 30 * kSecond) {
  Call call;
  call.op = SL_COLL_SUM;
  call.dtype = SL_COLL_I32;
  call.input = {reinterpret_cast<std::uint8_t*>(values.data()), 4 * values.size()};
  call.output = {reinterpret_cast<std::uint8_t*>(values.data()), 4 * values.size()};
  call.timeout_ns = timeout_ns;
  return call;
}

void begin_all(World& world, std::vector<std::vector<std::int32_t>>& values, std::uint64_t timeout_ns = 30 * kSecond) {
  for (unsigned key = 0; key < world.members(); key++)
    if (world.alive(key))
      world.act(key, [&](Outbox& out) {
        EXPECT_TRUE(world.member(key).begin(sum_of(values[key], timeout_ns), world.now_ns(), out));
      });
}

bool all_ended(World& world, std::uint64_t limit_ns) {
  return world.run([&] { return world.all([](const Member& m) { return m.state() != Member::State::kCalling; }); }, limit_ns);
}

TEST(CollSim, ADeadMemberIsNamedToAllSurvivors) {
  for (std::uint64_t seed = 1; seed <= 100; seed++) {
    SeededRandom random(seed);
    JobSpec job{.members = static_cast<std::uint16_t>(random.between(3, 8))};
    World world(job, {.loss = 0.1, .duplicate = 0.1, .jitter_ns = 100'000}, seed);
    ASSERT_TRUE(world.join_all());
    std::vector<std::vector<std::int32_t>> values(job.members, std::vector<std::int32_t>(16 * 200, 1));
    begin_all(world, values);
    const std::uint64_t dies_at = world.now_ns() + random.below(3'000'000);
    world.run([&] { return world.now_ns() >= dies_at; }, 3'000'000);
    const auto victim = static_cast<unsigned>(random.below(job.members));
    ASSERT_EQ(world.member(victim).state(), Member::State::kCalling) << "seed " << seed;
    world.kill_member(victim);
    // Dead after 2 s without a sign; the message may be lost, the next heartbeat is answered with it.
    ASSERT_TRUE(all_ended(world, 10 * kSecond)) << "seed " << seed;
    for (unsigned key = 0; key < job.members; key++) {
      if (!world.alive(key)) continue;
      auto outcome = world.member(key).take_outcome();
      ASSERT_TRUE(outcome && !*outcome) << "seed " << seed;
      EXPECT_EQ(outcome->error().code, Code::kUnavailable);
      EXPECT_THAT(outcome->error().what, HasSubstr("KEY " + std::to_string(victim) + " is dead")) << "seed " << seed;
    }
  }
}

TEST(CollSim, ASlowMemberIsNamedAtTheDeadline) {
  for (std::uint64_t seed = 1; seed <= 50; seed++) {
    World world({.members = 4}, {.loss = 0.05}, seed);
    ASSERT_TRUE(world.join_all());
    std::vector<std::vector<std::int32_t>> values(4, std::vector<std::int32_t>(200, 1));
    for (unsigned key : {0u, 1u, 3u})
      world.act(key, [&](Outbox& out) {
        EXPECT_TRUE(world.member(key).begin(sum_of(values[key], (5 + key) * kSecond), world.now_ns(), out));
      });
    ASSERT_TRUE(all_ended(world, 9 * kSecond));
    for (unsigned key : {0u, 1u, 3u}) {
      auto outcome = world.member(key).take_outcome();
      ASSERT_TRUE(outcome && !*outcome);
      EXPECT_EQ(outcome->error().code, Code::kTimeout);
      // One chunk is sent again at 20, 40, 80, ... 1000, 1000 ms: a silent peer makes no storm.
      EXPECT_LT(world.member(key).stats().retransmitted, 4u * 15);
      EXPECT_THAT(outcome->error().what, key == 0 ? HasSubstr("KEY 2 did not contribute") : HasSubstr("KEY 2"))
          << "seed " << seed;
    }
    // The one that comes too late is told as well.
    world.act(2, [&](Outbox& out) { std::ignore = world.member(2).begin(sum_of(values[2]), world.now_ns(), out); });
    ASSERT_TRUE(all_ended(world, 9 * kSecond));
    EXPECT_EQ(world.member(2).state(), Member::State::kFailed);
  }
}

TEST(CollSim, ADeadAggregatorIsNamedAtTheDeadline) {
  World world({.members = 3}, {}, 1);
  ASSERT_TRUE(world.join_all());
  world.kill_aggregator();
  std::vector<std::vector<std::int32_t>> values(3, std::vector<std::int32_t>(200, 1));
  begin_all(world, values, 3 * kSecond);
  ASSERT_TRUE(all_ended(world, 4 * kSecond));
  for (unsigned key = 0; key < 3; key++)
    EXPECT_THAT(world.member(key).failure().what, HasSubstr("the aggregator did not answer"));
}

TEST(CollSim, ARestartedAggregatorGivesEachMemberOneErrorAndTheNextIncarnationIsClean) {
  for (std::uint64_t seed = 1; seed <= 100; seed++) {
    SeededRandom random(seed);
    const JobSpec job{.members = static_cast<std::uint16_t>(random.between(2, 5)), .window = 2};
    // Packets of the old incarnation arrive long into the new one.
    World world(job, {.loss = 0.02, .duplicate = 0.3, .jitter_ns = 100'000, .late = 0.2, .late_ns = 100'000'000}, seed);
    ASSERT_TRUE(world.join_all());
    std::vector<std::vector<std::int32_t>> values(job.members, std::vector<std::int32_t>(16 * 40, 1));
    begin_all(world, values);
    const std::uint64_t at = world.now_ns() + random.below(4'000'000);
    world.run([&] { return world.now_ns() >= at; }, 4'000'000);
    world.start_aggregator(2);
    ASSERT_TRUE(all_ended(world, 20 * kSecond));
    // Whoever had finished learns it at the next heartbeat.
    ASSERT_TRUE(world.run([&] { return world.all([](const Member& m) { return m.state() == Member::State::kFailed; }); },
                          20 * kSecond));
    for (unsigned key = 0; key < job.members; key++) {
      EXPECT_EQ(world.member(key).failure().code, Code::kUnavailable);
      EXPECT_THAT(world.member(key).failure().what, HasSubstr("restarted: incarnation 2, here 1"));
      world.start_member(key);
    }
    std::vector<Case> calls;
    for (int i = 0; i < 3; i++) calls.push_back(random_case(job, random, 8));
    ASSERT_EQ(play(world, calls, seed), "") << "seed " << seed;
  }
}

TEST(CollSim, ADestroyedJobIsToldToEveryMember) {
  for (std::uint64_t seed = 1; seed <= 50; seed++) {
    World world({.members = 5}, {.loss = 0.3}, seed);
    ASSERT_TRUE(world.join_all());
    world.act_aggregator([&](Outbox& out) { world.aggregator().destroy(out); });
    ASSERT_TRUE(world.run([&] { return world.all([](const Member& m) { return m.state() == Member::State::kFailed; }); },
                          20 * kSecond));
    for (unsigned key = 0; key < 5; key++) EXPECT_EQ(world.member(key).failure().code, Code::kNotFound);
  }
}

TEST(CollSim, DisagreementIsToldToAllAndNamesBothSides) {
  struct Row {
    std::function<void(Call&, std::vector<std::uint8_t>&)> change;  // of KEY 1
    std::vector<std::string> says;
  };
  const auto resize = [](std::size_t bytes) {
    return [bytes](Call&, std::vector<std::uint8_t>& memory) { memory.resize(bytes); };
  };
  const std::vector<Row> rows = {
      {[](Call& call, auto&) { call.op = SL_COLL_MAX; }, {"sum of f32", "max of f32", "KEY 1"}},
      {[](Call& call, auto&) { call.dtype = SL_COLL_I32; }, {"sum of f32", "sum of i32", "KEY 1"}},
      {[](Call& call, auto&) { call.fixed_scale = 100; }, {"sum of f32", "with a fixed scale", "KEY 1"}},
      {resize(4 * 16 * 9), {"KEY 1 has a vector of 144 elements", "has a vector of 160 elements"}},
      {resize(4 * 16 * 10 - 4), {"KEY 1 has a vector of 159 elements", "has a vector of 160 elements"}},
      {resize(0), {"KEY 1"}},
      {[](Call& call, auto& memory) { call.op = SL_COLL_BARRIER, call.dtype = SL_COLL_NONE, memory.clear(); },
       {"barrier", "sum of f32"}},
  };
  for (std::size_t i = 0; i < rows.size(); i++) {
    World world({.members = 3}, {.loss = 0.05}, i + 1);
    ASSERT_TRUE(world.join_all());
    std::vector<std::vector<std::uint8_t>> memory(3, std::vector<std::uint8_t>(4 * 16 * 10));
    for (unsigned key = 0; key < 3; key++) {
      Call call{.op = SL_COLL_SUM, .dtype = SL_COLL_F32};
      if (key == 1) rows[i].change(call, memory[key]);
      call.input = memory[key];
      call.output = memory[key];
      world.act(key, [&](Outbox& out) { ASSERT_TRUE(world.member(key).begin(call, world.now_ns(), out)); });
    }
    ASSERT_TRUE(all_ended(world, 20 * kSecond)) << "row " << i;
    for (unsigned key = 0; key < 3; key++) {
      EXPECT_EQ(world.member(key).failure().code, Code::kInvalid) << "row " << i;
      for (const std::string& text : rows[i].says)
        EXPECT_THAT(world.member(key).failure().what, HasSubstr(text)) << "row " << i;
    }
  }
}

TEST(CollSim, TwoFixedScalesAreAMismatch) {
  World world({.members = 2}, {}, 1);
  ASSERT_TRUE(world.join_all());
  std::vector<std::vector<std::uint8_t>> memory(2, std::vector<std::uint8_t>(64));
  for (unsigned key = 0; key < 2; key++) {
    // Differ in the lower half of the bits only.
    Call call{.op = SL_COLL_SUM,
              .dtype = SL_COLL_F32,
              .input = memory[key],
              .output = memory[key],
              .fixed_scale = key ? 1000.0f : 1000.0625f};
    world.act(key, [&](Outbox& out) { ASSERT_TRUE(world.member(key).begin(call, world.now_ns(), out)); });
  }
  ASSERT_TRUE(all_ended(world, kSecond));
  EXPECT_THAT(world.member(0).failure().what, testing::AllOf(HasSubstr("the scale 1000"), HasSubstr("1000.0625")));
}

TEST(CollSim, OverflowIsAnErrorOnAllMembersAndTheJobGoesOn) {
  World world({.members = 3}, {.loss = 0.05}, 3);
  ASSERT_TRUE(world.join_all());
  std::vector<std::vector<float>> values(3, std::vector<float>(64, 1));
  values[1][40] = 22;  // 22 * 1e8 * 3 > 2^31
  for (unsigned key = 0; key < 3; key++) {
    Call call{.op = SL_COLL_SUM, .dtype = SL_COLL_F32, .fixed_scale = 1e8};
    call.input = {reinterpret_cast<std::uint8_t*>(values[key].data()), 256};
    call.output = {reinterpret_cast<std::uint8_t*>(values[key].data()), 256};
    world.act(key, [&](Outbox& out) { ASSERT_TRUE(world.member(key).begin(call, world.now_ns(), out)); });
  }
  ASSERT_TRUE(all_ended(world, 10 * kSecond));
  for (unsigned key = 0; key < 3; key++) {
    auto outcome = world.member(key).take_outcome();
    ASSERT_TRUE(outcome && !*outcome);
    EXPECT_EQ(outcome->error().code, Code::kInvalid);
    EXPECT_THAT(outcome->error().what, HasSubstr("beyond 715827882"));
  }
  SeededRandom random(1);
  EXPECT_EQ(play(world, {random_case(world.spec(), random, 4)}, 1), "");
}

TEST(CollSim, OnlyWhoWantsValuesGetsThem) {
  World world({.members = 3}, {.loss = 0.1, .duplicate = 0.1}, 9);
  ASSERT_TRUE(world.join_all());
  // Reduce-scatter: member k wants chunks 3k to 3k + 2. In another array, so that what must not be written is seen.
  std::vector<std::vector<std::int32_t>> in(3, std::vector<std::int32_t>(16 * 9)),
      out_values(3, std::vector<std::int32_t>(16 * 9, -7));
  for (unsigned key = 0; key < 3; key++) {
    for (std::size_t i = 0; i < in[key].size(); i++) in[key][i] = static_cast<std::int32_t>(i * (key + 1));
    Call call = sum_of(in[key]);
    call.output = {reinterpret_cast<std::uint8_t*>(out_values[key].data()), 4 * out_values[key].size()};
    call.wanted_begin = 48 * key;
    call.wanted_end = 48 * (key + 1);
    world.act(key, [&](Outbox& out) { ASSERT_TRUE(world.member(key).begin(call, world.now_ns(), out)); });
  }
  ASSERT_TRUE(all_ended(world, 20 * kSecond));
  for (unsigned key = 0; key < 3; key++) {
    auto outcome = world.member(key).take_outcome();
    ASSERT_TRUE(outcome && *outcome);
    for (std::size_t i = 0; i < in[key].size(); i++)
      ASSERT_EQ(out_values[key][i], i / 48 == key ? static_cast<std::int32_t>(6 * i) : -7) << "KEY " << key << " element " << i;
  }
}

TEST(CollSim, NobodyLeavesABarrierBeforeAllHaveEntered) {
  for (std::uint64_t seed = 1; seed <= 50; seed++) {
    World world({.members = 4}, {.loss = 0.1, .jitter_ns = 100'000}, seed);
    ASSERT_TRUE(world.join_all());
    const Call barrier{.op = SL_COLL_BARRIER};
    for (unsigned key = 0; key < 4; key++) {
      for (unsigned other = 0; other < key; other++) ASSERT_EQ(world.member(other).state(), Member::State::kCalling);
      world.act(key, [&](Outbox& out) { ASSERT_TRUE(world.member(key).begin(barrier, world.now_ns(), out)); });
      if (key < 3) world.run([] { return false; }, 100'000'000);
    }
    ASSERT_TRUE(all_ended(world, 10 * kSecond));
    for (unsigned key = 0; key < 4; key++) EXPECT_EQ(world.member(key).state(), Member::State::kIdle);
  }
}

TEST(CollSim, AnApplicationThatLeavesIsMissedOnlyByThoseWhoStillCall) {
  World world({.members = 3}, {.loss = 0.3}, 1);
  ASSERT_TRUE(world.join_all());
  std::vector<std::vector<std::int32_t>> values(3, std::vector<std::int32_t>(100, 1));
  begin_all(world, values);
  ASSERT_TRUE(all_ended(world, 20 * kSecond));
  for (unsigned key = 0; key < 3; key++) ASSERT_TRUE(world.member(key).take_outcome().value().has_value());
  world.act(1, [&](Outbox& out) { world.member(1).leave(world.now_ns(), out); });
  ASSERT_TRUE(world.run([&] { return world.member(1).state() == Member::State::kLeft; }, 3 * kSecond));
  world.kill_member(1);
  world.run([] { return false; }, 5 * kSecond);
  EXPECT_FALSE(world.aggregator().failed());
  begin_all(world, values);
  ASSERT_TRUE(all_ended(world, 20 * kSecond));
  EXPECT_THAT(world.member(0).failure().what, HasSubstr("KEY 1 left"));
}

TEST(CollSim, AMixedJobSaysWhoRunsInFallback) {
  MakeMember kernel_like = [](MemberConfig config) {
    if (config.key != 1) config.mode = SL_COLL_KERNEL;
    return std::make_unique<Member>(config);
  };
  World world({.members = 3}, {}, 1, {}, kernel_like);
  ASSERT_TRUE(world.join_all());
  EXPECT_EQ(world.aggregator().fallback(), 2u);
  EXPECT_EQ(world.aggregator().joined(), 7u);
  world.run([] { return false; }, kSecond);  // a heartbeat
  for (unsigned key = 0; key < 3; key++) {
    EXPECT_EQ(world.member(key).fallback(), 2u);
    EXPECT_EQ(world.member(key).joined(), 7u);
  }
  SeededRandom random(1);
  EXPECT_EQ(play(world, {random_case(world.spec(), random, 4)}, 1), "");
}

// The judge sees what it is there for: each decision broken once.

class OneBitVersion : public Aggregator {
 public:
  using Aggregator::Aggregator;
  // One bit beyond the entry's own: positions 4 W apart look alike.
  bool holds(const sl_coll_entry& entry, std::uint64_t position) const override {
    return entry.position != 0 && ((entry.position - 1) ^ position) / (2 * window()) % 2 == 0;
  }
  static std::uint64_t window() { return 1; }
};
class CountsTwice : public Aggregator {
 public:
  using Aggregator::Aggregator;
  bool has(const sl_coll_entry& entry, std::uint64_t) const override { return complete(entry); }
};
class AnswersTheOtherVersion : public Aggregator {
 public:
  using Aggregator::Aggregator;
  std::size_t answer_index(std::uint64_t position) const override { return index(position + 1); }  // W = 1
};
class TrustsAnything : public Aggregator {
 public:
  using Aggregator::Aggregator;
  bool trusts(ByteSpan) const override { return true; }
};
class TakesAnyResult : public Member {
 public:
  using Member::Member;
  bool awaits(std::uint64_t, std::uint64_t) const override { return true; }
};
class TrustingMember : public Member {
 public:
  using Member::Member;
  bool trusts(ByteSpan) const override { return true; }
};

template <class T>
MakeAggregator aggregators() {
  return [](AggregatorConfig config) { return std::make_unique<T>(std::move(config)); };
}
template <class T>
MakeMember members() {
  return [](const MemberConfig& config) { return std::make_unique<T>(config); };
}

TEST(CollSim, EveryBrokenInvariantIsFound) {
  struct Mutant {
    const char* name;
    MakeAggregator aggregator;
    MakeMember member;
  };
  const std::vector<Mutant> mutants = {
      {"nothing broken", {}, {}},
      {"one-bit slot version", aggregators<OneBitVersion>(), {}},
      {"no deduplication", aggregators<CountsTwice>(), {}},
      {"answered from the other version", aggregators<AnswersTheOtherVersion>(), {}},
      {"aggregator ignores integrity", aggregators<TrustsAnything>(), {}},
      {"member takes any result", {}, members<TakesAnyResult>()},
      {"member ignores integrity", {}, members<TrustingMember>()},
  };
  for (const Mutant& mutant : mutants) {
    std::uint64_t found = 0;
    for (std::uint64_t seed = 1; seed <= 60 && !found; seed++) {
      SeededRandom random(seed);
      // Calls of one chunk that look alike on the wire: only the position tells them apart.
      const JobSpec job{.members = 3, .window = 1};
      std::vector<Case> calls;
      for (int i = 0; i < 30; i++) {
        Case c{.op = Op::kSum, .type = Type::kI32, .inputs = {}, .weights = {1, 1, 1}, .block = 16};
        for (unsigned key = 0; key < 3; key++) c.inputs.push_back(random_input(Type::kI32, 16, 0, random));
        calls.push_back(std::move(c));
      }
      World world(job,
                  {.loss = 0.05, .duplicate = 0.2, .corrupt = 0.05, .jitter_ns = 100'000, .late = 0.1, .late_ns = 30'000'000},
                  seed, mutant.aggregator, mutant.member);
      if (!play(world, calls, seed).empty()) found = seed;
    }
    EXPECT_EQ(found == 0, std::string_view(mutant.name) == "nothing broken") << mutant.name << ", seed " << found;
  }
}

}  // namespace
}  // namespace sluice::coll::sim
