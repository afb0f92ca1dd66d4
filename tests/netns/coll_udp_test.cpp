// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The collective model over real sockets: four members and an aggregator, each in a namespace of its own, on wires that drop,
// double and reorder. Judged by the oracle of tests/sim, which knows the inputs only.
#include <arpa/inet.h>

#include <atomic>
#include <thread>

#include "base/random.h"
#include "coll/model/aggregator.h"
#include "coll/model/member.h"
#include "coll/udp.h"
#include "harness/assert.h"
#include "harness/impairment.h"
#include "harness/topology.h"
#include "sim/coll_oracle.h"

namespace sluice::coll {
namespace {

using test::Impairment;
using test::Topology;

constexpr std::uint16_t kMembers = 4;
constexpr std::uint64_t kToken = 0x0123456789abcdef;

Address address_of_host(const test::Host& host) {
  Address address;
  address.ip[10] = address.ip[11] = 0xff;
  inet_pton(AF_INET, host.address(AF_INET).c_str(), &address.ip[12]);
  return address;
}

Result<UdpPort> open_in(const test::Host& host) {
  std::optional<Result<UdpPort>> port;
  Status status = host.call([&]() -> Status {
    port = UdpPort::open(address_of_host(host));
    return {};
  });
  if (!status) return tl::unexpected<Error>(status.error());
  return std::move(*port);
}

struct Work {
  sl_coll_op op;
  sl_coll_dtype dtype;
  oracle::Case expected;
};

std::vector<Work> work(Random& random) {
  std::vector<Work> list;
  const auto add = [&](sl_coll_op op, oracle::Op oracle_op, sl_coll_dtype dtype, oracle::Type type, std::size_t elements) {
    Work item{op,
              dtype,
              {.op = oracle_op, .type = type, .inputs = {}, .weights = std::vector<std::uint32_t>(kMembers, 1), .block = 352}};
    for (unsigned key = 0; key < kMembers; key++) {
      std::vector<std::uint8_t> bytes(elements * oracle::size(type));
      for (std::size_t i = 0; i < elements; i++) {
        const auto value = static_cast<float>(random.unit() * 2 - 1);
        const auto integer = static_cast<std::int32_t>(random.next());
        std::memcpy(bytes.data() + 4 * i, oracle::is_float(type) ? static_cast<const void*>(&value) : &integer, 4);
      }
      item.expected.inputs.push_back(std::move(bytes));
    }
    list.push_back(std::move(item));
  };
  add(SL_COLL_SUM, oracle::Op::kSum, SL_COLL_I32, oracle::Type::kI32, 352 * 500 + 7);
  add(SL_COLL_SUM, oracle::Op::kSum, SL_COLL_F32, oracle::Type::kF32, 352 * 300);
  add(SL_COLL_AVERAGE, oracle::Op::kAverage, SL_COLL_F32, oracle::Type::kF32, 1);
  add(SL_COLL_MAX, oracle::Op::kMax, SL_COLL_F32, oracle::Type::kF32, 352 * 20);
  return list;
}

void run(const test::ImpairmentSpec& spec, std::uint64_t* retransmitted) {
  std::vector<test::LinkEnd> ends;
  for (unsigned i = 0; i <= kMembers; i++) ends.push_back({fmt::format("h{}", i), {fmt::format("10.9.0.{}/24", i + 1)}});
  ASSERT_VALUE(topology, Topology::create(test::star(ends)));
  std::vector<Impairment> wires;
  for (unsigned i = 0; i <= kMembers; i++) {
    test::ImpairmentSpec own = spec;
    own.seed += i;
    ASSERT_VALUE(wire, Impairment::attach(topology.host(fmt::format("h{}", i)), "eth0", own));
    wires.push_back(std::move(wire));
  }
  ASSERT_VALUE(aggregator_port, open_in(topology.host(fmt::format("h{}", kMembers))));
  AggregatorConfig config;
  config.job.token = kToken;
  config.job.weight_sum = kMembers;
  config.job.job = 1;
  config.job.members = config.job.contributors = kMembers;
  config.job.incarnation = 1;
  config.job.window = 32;
  config.job.words = SL_COLL_WORDS_DEFAULT;
  std::vector<UdpPort> ports;
  for (unsigned key = 0; key < kMembers; key++) {
    ASSERT_VALUE(port, open_in(topology.host(fmt::format("h{}", key))));
    sl_coll_member member{};
    std::copy(port.local().ip.begin(), port.local().ip.end(), member.addr);
    member.port = htons(port.local().port);
    member.weight = 1;
    config.members.push_back(member);
    ports.push_back(std::move(port));
  }
  config.dead_after_ns = 60'000'000'000;  // a busy machine is not a dead member
  ASSERT_OK(Aggregator::check(config));

  SeededRandom random(spec.seed);
  const std::vector<Work> calls = work(random);
  std::vector<std::vector<std::vector<std::uint8_t>>> outputs(kMembers);
  std::vector<std::string> wrong(kMembers + 1);
  std::vector<std::uint64_t> again(kMembers);
  std::atomic<unsigned> left = kMembers;
  const RealClock clock;
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    Aggregator aggregator(config);
    if (Status status = drive(aggregator_port, aggregator, clock, [&] { return left == 0; }); !status)
      wrong[kMembers] = status.error().message();
  });
  for (unsigned key = 0; key < kMembers; key++)
    threads.emplace_back([&, key] {
      Member member({.token = kToken,
                     .weight_sum = kMembers,
                     .instance = key + 1,
                     .job = 1,
                     .members = kMembers,
                     .window = 32,
                     .key = static_cast<std::uint8_t>(key),
                     .aggregator = aggregator_port.local(),
                     .join_timeout_ns = 120'000'000'000});
      const auto until = [&](const std::function<bool()>& done) {
        if (Status status = drive(ports[key], member, clock, done); !status) wrong[key] = status.error().message();
      };
      Outbox out;
      member.join(clock.monotonic_ns(), out);
      std::ignore = ports[key].send(out);
      until([&] { return member.state() != Member::State::kJoining || !wrong[key].empty(); });
      for (const Work& item : calls) {
        if (member.state() != Member::State::kIdle || !wrong[key].empty()) break;
        outputs[key].push_back(item.expected.inputs[key]);
        std::vector<std::uint8_t>& memory = outputs[key].back();
        out.clear();
        Status begun =
            member.begin({.op = item.op, .dtype = item.dtype, .input = memory, .output = memory, .timeout_ns = 120'000'000'000},
                         clock.monotonic_ns(), out);
        if (begun) begun = ports[key].send(out);
        if (!begun) wrong[key] = begun.error().message();
        until([&] { return member.state() != Member::State::kCalling || !wrong[key].empty(); });
        if (auto outcome = member.take_outcome(); outcome && !*outcome) wrong[key] = outcome->error().message();
      }
      if (member.state() == Member::State::kFailed && wrong[key].empty()) wrong[key] = member.failure().message();
      again[key] = member.stats().retransmitted;
      left--;
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : wrong) ASSERT_EQ(text, "");
  for (std::size_t i = 0; i < calls.size(); i++) {
    EXPECT_EQ(oracle::judge(calls[i].expected, outputs[0][i]), "") << "call " << i;
    for (unsigned key = 1; key < kMembers; key++) EXPECT_EQ(outputs[key][i], outputs[0][i]) << "call " << i;
  }
  for (std::uint64_t count : again) *retransmitted += count;
}

TEST(CollUdp, FourMembersAgreeOnACleanWire) {
  std::uint64_t retransmitted = 0;
  run({.seed = 1}, &retransmitted);
}

TEST(CollUdp, FourMembersAgreeOnWiresThatDropDoubleAndReorder) {
  std::uint64_t retransmitted = 0;
  run({.seed = 2, .drop = 0.01, .duplicate = 0.02, .reorder = 0.02}, &retransmitted);
  EXPECT_GT(retransmitted, 0u);
}

TEST(CollUdp, APortThatIsTakenSaysSo) {
  Address loopback;
  loopback.ip[15] = 1;
  ASSERT_VALUE(first, UdpPort::open(loopback));
  const auto second = UdpPort::open(first.local());
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message().find(std::to_string(first.local().port)), std::string::npos);
}

}  // namespace
}  // namespace sluice::coll
