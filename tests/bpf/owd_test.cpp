// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The shared map sl_owd on the running kernel: what a CCA makes of the samples that it finds (delay_follower, samples written
// by the test), and what the producer of examples/owd writes for real connections, or makes of packets that it does not
// understand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <sched.h>
#include <sluice/abi/owd.h>

#include <algorithm>
#include <random>

#include "bpf/cca_fixture.h"
#include "owd/counters.h"
#include "owd/delay.h"

namespace sluice::test {
namespace {

const std::string kFollower = SLUICE_BUILD_DIR "/tests/bundles/delay_follower/1.0.0/delay_follower.bpf.o";
const std::string kProducer = SLUICE_BUILD_DIR "/examples/owd/owd.bpf.o";
constexpr std::uint32_t kQueueOffset = 32;  // delay_follower's queue_units, right behind struct sl_core
constexpr std::uint32_t kNoSample = 0xffff;
constexpr PathSpec kTwentyMs = {.one_way_us = 10000};

std::uint32_t window_for(std::uint32_t queue_us) { return std::max(64U * 20000U / (20000U + queue_us / 64 * 64), 2U); }

std::uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000000000U + static_cast<std::uint64_t>(now.tv_nsec);
}

void write_contract(int schemas, std::uint32_t version, std::uint64_t hash) {
  const std::uint32_t key = SL_SCHEMA_OWD;
  sl_schema_entry entry{};
  entry.version = version;
  entry.btf_hash = hash;
  must(bpf_map_update_elem(schemas, &key, &entry, BPF_ANY) == 0, "sl_schemas");
}

std::optional<sl_owd> read_owd(int map, int socket) {
  sl_owd value{};
  if (bpf_map_lookup_elem(map, &socket, &value) != 0) return std::nullopt;
  return value;
}

std::uint32_t verified_insns(const bpfio::Object& object) {
  std::uint32_t total = 0;
  for (const std::string& name : object.program_names()) {
    const auto info = must(must(object.program(name)).info());
    testing::Test::RecordProperty(name, std::to_string(info.verified_insns));
    printf("%s: %u instructions verified\n", name.c_str(), info.verified_insns);
    total += info.verified_insns;
  }
  return total;
}

// ---- the contract ------------------------------------------------------------------------------------------------------

TEST(Contract, TheHeaderNamesTheLayoutThatTheAgentAndTheProducerCompute) {
  for (const std::string& file : {PolicyObject::path("policy.bpf.o"), kProducer, kFollower}) {
    const auto type = must(must(bpfio::Object::open_file(file)).value_type("sl_owd"));
    EXPECT_EQ(type.hash, SL_SCHEMA_OWD_HASH) << file << fmt::format(": 0x{:016x}", type.hash);
    EXPECT_EQ(type.size_bytes, sizeof(sl_owd));
    EXPECT_EQ(type.name, "sl_owd");
  }
}

// ---- the consumer ------------------------------------------------------------------------------------------------------

class Consumer : public testing::Test {
 protected:
  void SetUp() override {
    policy.set_schema(SL_SCHEMA_OWD, SL_SCHEMA_OWD_VERSION);
    follower.emplace(
        Cca::Spec{.file = kFollower,
                  .struct_ops = "follower",
                  .configure =
                      [this](bpfio::Object& object) {
                        must(object.reuse_map("sl_owd", must(bpfio::MapFd::adopt(UniqueFd(::dup(policy.map("sl_owd")))))));
                      },
                  .policy = &policy});
    flow.emplace(path, follower->name());
    flow->start();
  }
  void write(sl_owd value) {
    const int socket = flow->fd();
    must(bpf_map_update_elem(policy.map("sl_owd"), &socket, &value, BPF_ANY) == 0, "sl_owd");
  }
  static sl_owd sample(std::uint32_t last_us, std::uint32_t min_us) {
    // A minute ahead: it stays new for the whole test.
    return {now_ns() + 60'000'000'000, last_us, min_us, 1, SL_SCHEMA_OWD_VERSION, 0};
  }
  // Follows the trace until the CCA has passed that many more per-RTT points.
  void rtts(std::uint64_t n) {
    const std::uint64_t from = follower->count(SL_CCA_RTT);
    ASSERT_TRUE(trace.until([&](const auto&) { return follower->count(SL_CCA_RTT) >= from + n; }));
  }
  void expect_window_for(std::uint32_t queue_us) {
    ASSERT_TRUE(trace.until([&](const auto& events) {
      return !events.empty() && events.back().private_word == queue_us / 64 && events.back().cwnd == window_for(queue_us);
    })) << queue_us;
  }

  Path path{kTwentyMs};
  PolicyObject policy;
  std::optional<Cca> follower;
  Trace trace{path, kQueueOffset};
  std::optional<Flow> flow;
};

TEST_F(Consumer, TakesTheQueueFromAbsoluteAndFromRelativeDelays) {
  write(sample(30000, 10000));
  expect_window_for(20000);
  sl_owd relative = sample(60000, 0);
  relative.flags = SL_OWD_RELATIVE;
  write(relative);
  expect_window_for(60000);
  write(sample(10000, 10000));
  expect_window_for(0);
  write(sample(9000, 10000));  // two writers' moments: not yet a new minimum
  rtts(2);
  expect_window_for(0);
  EXPECT_EQ(follower->count(SL_CCA_OWD_SCHEMA), 0U);
  EXPECT_EQ(follower->count(SL_CCA_OWD_STALE), 0U);
}

TEST_F(Consumer, DoesWithoutASample) {
  rtts(3);
  EXPECT_GE(follower->count(SL_CCA_OWD_NONE), 3U);
  write({});  // an element that no producer has filled yet
  rtts(2);
  EXPECT_EQ(trace.events().back().private_word, kNoSample);
  EXPECT_EQ(follower->count(SL_CCA_OWD_NONE), follower->count(SL_CCA_RTT));
  const std::uint64_t received = flow->received();
  EXPECT_TRUE(trace.until([&](const auto&) { return flow->received() > received; }));
}

TEST_F(Consumer, DoesWithoutAStaleSample) {
  write(sample(60000, 0));
  expect_window_for(60000);
  const std::uint32_t before = trace.events().back().cwnd;
  sl_owd old = sample(60000, 0);
  old.time_ns = now_ns() - 10'000'000'000;
  write(old);
  // Reno from the window that it has.
  ASSERT_TRUE(trace.until([&](const auto& events) { return events.back().cwnd > before + 3; }));
  EXPECT_EQ(trace.events().back().private_word, kNoSample);
  EXPECT_GE(follower->count(SL_CCA_OWD_STALE), 3U);
  write(sample(60000, 0));
  expect_window_for(60000);
}

TEST_F(Consumer, DoesWithoutSamplesOfAnotherContract) {
  write(sample(60000, 0));
  expect_window_for(60000);
  EXPECT_EQ(follower->count(SL_CCA_OWD_SCHEMA), 0U);
  policy.set_schema(SL_SCHEMA_OWD, SL_SCHEMA_OWD_VERSION + 1);
  ASSERT_TRUE(trace.until([&](const auto& events) { return events.back().private_word == kNoSample; }));
  EXPECT_GE(follower->count(SL_CCA_OWD_SCHEMA), 1U);
  policy.set_schema(SL_SCHEMA_OWD, SL_SCHEMA_OWD_VERSION);
  expect_window_for(60000);
  // A value that a producer of another version left behind.
  sl_owd other = sample(1000, 0);
  other.version = SL_SCHEMA_OWD_VERSION + 1;
  const std::uint64_t counted = follower->count(SL_CCA_OWD_SCHEMA);
  write(other);
  ASSERT_TRUE(trace.until([&](const auto& events) { return events.back().private_word == kNoSample; }));
  EXPECT_GT(follower->count(SL_CCA_OWD_SCHEMA), counted);
}

TEST_F(Consumer, CostsTheVerifierLittle) {
  const std::uint32_t total = verified_insns(follower->object());
  EXPECT_GT(total, 0U);
  EXPECT_LT(total, 15000U);  // the limit is 1,000,000 for each program
}

// ---- the producer ------------------------------------------------------------------------------------------------------

class ProducerObject {
 public:
  ProducerObject() : object_(must(bpfio::Object::open_file(kProducer))) {
    must(object_.load());
    write_contract(map("sl_schemas"), SL_SCHEMA_OWD_VERSION, SL_SCHEMA_OWD_HASH);
  }
  int map(const std::string& name) {
    const auto [at, fresh] = maps_.try_emplace(name, -1);
    if (fresh) at->second = ::dup(must(object_.map(name)).fd());
    return at->second;
  }
  ~ProducerObject() {
    for (const auto& [name, fd] : maps_) ::close(fd);
  }
  ProducerObject(const ProducerObject&) = delete;
  ProducerObject& operator=(const ProducerObject&) = delete;

  const bpfio::Object& object() const { return object_; }
  std::uint64_t count(owd_counter which) const { return must(bpfio::sum_per_cpu(must(object_.map("owd_counters"))))[which]; }
  // One packet; which counter it bumped.
  int judge(std::vector<std::uint8_t> packet) {
    const auto before = must(bpfio::sum_per_cpu(must(object_.map("owd_counters"))));
    bpf_test_run_opts options{};
    options.sz = sizeof(options);
    options.data_in = packet.data();
    options.data_size_in = static_cast<std::uint32_t>(packet.size());
    const bpfio::Program program = must(object_.program("owd_ingress"));
    must(bpf_prog_test_run_opts(program.fd(), &options) == 0, "BPF_PROG_TEST_RUN");
    EXPECT_EQ(options.retval, 1U) << "it lets every packet pass";
    const auto after = must(bpfio::sum_per_cpu(must(object_.map("owd_counters"))));
    int bumped = -1;
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (after[i] == before[i]) continue;
      EXPECT_EQ(after[i], before[i] + 1);
      EXPECT_EQ(bumped, -1) << "more than one counter";
      bumped = static_cast<int>(i);
    }
    EXPECT_NE(bumped, -1) << "not counted";
    return bumped;
  }

 private:
  bpfio::Object object_;
  std::map<std::string, int> maps_;
};

using Bytes = std::vector<std::uint8_t>;
constexpr std::uint8_t kAck = 0x10, kSyn = 0x02, kRst = 0x04;
const Bytes kTimestamps = {1, 1, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0};

// An Ethernet frame with an IPv4 or IPv6 packet of TCP. The kernel takes the first header off before it runs the program.
Bytes frame(Ip ip, std::uint8_t flags, const Bytes& options, int doff = -1) {
  Bytes out(ETH_HLEN, 0);
  const bool v4 = ip == Ip::kV4;
  out[12] = v4 ? 0x08 : 0x86;
  out[13] = v4 ? 0x00 : 0xdd;
  const std::size_t at = out.size();
  out.resize(at + (v4 ? 20 : 40), 0);
  if (v4) {
    out[at] = 0x45;
    out[at + 9] = IPPROTO_TCP;
  } else {
    out[at] = 0x60;
    out[at + 6] = IPPROTO_TCP;
  }
  const std::size_t tcp = out.size();
  out.resize(tcp + 20, 0);
  out[tcp + 12] = static_cast<std::uint8_t>((doff < 0 ? 5 + options.size() / 4 : static_cast<std::size_t>(doff)) << 4);
  out[tcp + 13] = flags;
  out.insert(out.end(), options.begin(), options.end());
  return out;
}

TEST(Producer, FindsTimestampsWhereverTheyAre) {
  ProducerObject producer;
  // BPF_PROG_TEST_RUN's socket is in no state that sends, and that is asked after the timestamps were found.
  for (const Ip ip : {Ip::kV4, Ip::kV6}) {
    EXPECT_EQ(producer.judge(frame(ip, kAck, kTimestamps)), OWD_COUNT_NOT_ESTABLISHED);
    const Bytes sack_first = {1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0};
    EXPECT_EQ(producer.judge(frame(ip, kAck, sack_first)), OWD_COUNT_NOT_ESTABLISHED);
    Bytes at_the_end(30, 1);
    at_the_end.insert(at_the_end.end(), kTimestamps.begin() + 2, kTimestamps.end());
    EXPECT_EQ(producer.judge(frame(ip, kAck, at_the_end)), OWD_COUNT_NOT_ESTABLISHED);
  }
}

TEST(Producer, CountsAndPassesWhatItDoesNotUnderstand) {
  ProducerObject producer;
  for (const Ip ip : {Ip::kV4, Ip::kV6}) {
    EXPECT_EQ(producer.judge(frame(ip, kAck, {})), OWD_COUNT_NO_TIMESTAMPS);
    EXPECT_EQ(producer.judge(frame(ip, 0, kTimestamps)), OWD_COUNT_NO_ACK);
    EXPECT_EQ(producer.judge(frame(ip, kAck | kSyn, kTimestamps)), OWD_COUNT_NO_ACK);
    EXPECT_EQ(producer.judge(frame(ip, kAck | kRst, kTimestamps)), OWD_COUNT_NO_ACK);
    EXPECT_EQ(producer.judge(frame(ip, kAck, {0, 0, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0})), OWD_COUNT_NO_TIMESTAMPS)
        << "ended before";
    EXPECT_EQ(producer.judge(frame(ip, kAck, {30, 0, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0})), OWD_COUNT_NO_TIMESTAMPS) << "no length";
    EXPECT_EQ(producer.judge(frame(ip, kAck, {30, 255, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0})), OWD_COUNT_NO_TIMESTAMPS) << "too long";
    EXPECT_EQ(producer.judge(frame(ip, kAck, {1, 1, 1, 1, 8, 10, 0, 0})), OWD_COUNT_NO_TIMESTAMPS) << "cut off";
    EXPECT_EQ(producer.judge(frame(ip, kAck, kTimestamps, 4)), OWD_COUNT_NO_TIMESTAMPS) << "header shorter than a header";
    EXPECT_EQ(producer.judge(frame(ip, kAck, kTimestamps, 15)), OWD_COUNT_NO_TIMESTAMPS) << "options longer than the packet";
    Bytes short_one = frame(ip, kAck, {});
    short_one.resize(short_one.size() - 10);
    EXPECT_EQ(producer.judge(short_one), OWD_COUNT_NOT_TCP);
    Bytes udp = frame(ip, kAck, kTimestamps);
    udp[ETH_HLEN + (ip == Ip::kV4 ? 9 : 6)] = IPPROTO_UDP;
    EXPECT_EQ(producer.judge(udp), OWD_COUNT_NOT_TCP);
  }
  EXPECT_EQ(producer.count(OWD_COUNT_SAMPLE), 0U);
}

TEST(Producer, SurvivesAnyOptions) {
  ProducerObject producer;
  std::mt19937 random(20261130);
  for (int i = 0; i < 2000; ++i) {
    Bytes options(4 * (random() % 11));
    // Few values, so that lengths and kinds fit often.
    for (auto& byte : options) byte = static_cast<std::uint8_t>(random() % 4 == 0 ? random() : random() % 13);
    const int bumped =
        producer.judge(frame(i % 2 == 0 ? Ip::kV4 : Ip::kV6, kAck, options, random() % 8 == 0 ? random() % 16 : -1));
    ASSERT_TRUE(bumped == OWD_COUNT_NO_TIMESTAMPS || bumped == OWD_COUNT_NOT_ESTABLISHED) << bumped;
  }
  EXPECT_GT(producer.count(OWD_COUNT_NO_TIMESTAMPS), 100U);
  EXPECT_GT(producer.count(OWD_COUNT_NOT_ESTABLISHED), 10U) << "some of them were timestamps";
}

TEST(Producer, CostsTheVerifierLittle) {
  ProducerObject producer;
  const std::uint32_t total = verified_insns(producer.object());
  EXPECT_GT(total, 0U);
  EXPECT_LT(total, 5000U);
}

// Real connections of a cgroup of the test's own.
class Measured : public testing::Test {
 protected:
  void SetUp() override {
    cgroup.enter();
    const bpfio::Program program = must(producer.object().program("owd_ingress"));
    link.reset(bpf_link_create(program.fd(), cgroup.fd(), BPF_CGROUP_INET_INGRESS, nullptr));
    must(link.valid(), "attach owd_ingress");
    flow.emplace(path, "");
    flow->start();
  }
  std::optional<sl_owd> value() { return read_owd(producer.map("sl_owd"), flow->fd()); }
  // Follows the trace until a sample is as wanted. Woken by acknowledgements.
  testing::AssertionResult until(const std::function<bool(const sl_owd&)>& wanted) {
    std::optional<sl_owd> last;
    if (trace.until([&](const auto&) {
          last = value();
          return last && wanted(*last);
        }))
      return testing::AssertionSuccess();
    return testing::AssertionFailure() << "last sample: " << (last ? fmt::format("{} us", last->last_us) : "none");
  }

  Path path{{.one_way_us = 10000, .rate_bytes_per_s = 2000000, .queue_bytes = 20000}};  // 10 ms of queue at most
  Cgroup cgroup{"sluice-owd-" + std::to_string(getpid())};
  ProducerObject producer;
  UniqueFd link;
  Trace trace{path};
  std::optional<Flow> flow;
};

TEST_F(Measured, TheWayOfTheDataAndNotOfItsAcknowledgements) {
  ASSERT_TRUE(until([](const sl_owd& owd) { return owd.count > 5 && owd.last_us <= 15000; }));
  const sl_owd first = *value();
  EXPECT_EQ(first.version, SL_SCHEMA_OWD_VERSION);
  EXPECT_EQ(first.flags, SL_OWD_RELATIVE);
  EXPECT_EQ(first.min_us, 0U);
  EXPECT_LE(first.time_ns, now_ns());
  path.delay(0, 80000);
  ASSERT_TRUE(until([](const sl_owd& owd) { return owd.last_us >= 75000 && owd.last_us < 150000; }));
  path.delay(0, 0);
  path.delay(1, 80000);
  const std::uint64_t changed = now_ns();
  ASSERT_TRUE(until([&](const sl_owd& owd) { return owd.time_ns > changed + 200'000'000 && owd.last_us <= 40000; }));
  EXPECT_EQ(producer.count(OWD_COUNT_SCHEMA), 0U);
  EXPECT_EQ(producer.count(OWD_COUNT_NO_MEMORY), 0U);
}

TEST_F(Measured, NothingOnceTheContractIsAnother) {
  ASSERT_TRUE(until([](const sl_owd& owd) { return owd.count > 5; }));
  for (const auto& [version, hash] : {std::pair<std::uint32_t, std::uint64_t>{SL_SCHEMA_OWD_VERSION + 1, SL_SCHEMA_OWD_HASH},
                                      {SL_SCHEMA_OWD_VERSION, SL_SCHEMA_OWD_HASH + 1}}) {
    write_contract(producer.map("sl_schemas"), version, hash);
    // Runs that began before are over once it has been refused for some packets.
    const std::uint64_t from = producer.count(OWD_COUNT_SCHEMA);
    ASSERT_TRUE(trace.until([&](const auto&) { return producer.count(OWD_COUNT_SCHEMA) > from + 5; }));
    const std::uint32_t written = value()->count;
    ASSERT_TRUE(trace.until([&](const auto&) { return producer.count(OWD_COUNT_SCHEMA) > from + 50; }));
    EXPECT_EQ(value()->count, written);
    write_contract(producer.map("sl_schemas"), SL_SCHEMA_OWD_VERSION, SL_SCHEMA_OWD_HASH);
    ASSERT_TRUE(until([&](const sl_owd& owd) { return owd.count > written; }));
  }
}

}  // namespace
}  // namespace sluice::test
