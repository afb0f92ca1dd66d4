// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "netns/coll_job.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "coll/kernel/aggregator.h"
#include "coll/kernel/member.h"
#include "coll/model/aggregator.h"
#include "coll/udp.h"
#include "harness/assert.h"
#include "harness/topology.h"
#include "harness/traffic.h"

namespace sluice::test {
namespace {

using coll::Address;
using coll::Aggregator;
using coll::AggregatorConfig;
using coll::Bytes;
using coll::Interface;
using coll::KernelAggregator;
using coll::KernelMember;
using coll::Member;
using coll::Outbox;
using coll::UdpPort;

constexpr std::uint64_t kToken = 0x0123456789abcdef;
constexpr std::uint64_t kPatience_ns = 120'000'000'000;

Address address_of_host(const Host& host, bool v6, std::size_t interface = 0) {
  Address address;
  for (const std::string& text : host.interfaces().at(interface).addresses) {
    const std::string bare = text.substr(0, text.find('/'));
    if (v6 && inet_pton(AF_INET6, bare.c_str(), address.ip.data()) == 1) return address;
    if (!v6 && inet_pton(AF_INET, bare.c_str(), &address.ip[12]) == 1) {
      address.ip[10] = address.ip[11] = 0xff;
      return address;
    }
  }
  ADD_FAILURE() << host.name() << " has no such address";
  return address;
}

template <class T>
T in_host(const Host& host, const std::function<Result<T>()>& make) {
  std::optional<T> made;
  must(host.call([&]() -> Status {
    SLUICE_TRY(value, make());
    made.emplace(std::move(value));
    return {};
  }));
  return std::move(*made);
}

// Nothing else receives what XDP sends into a veth.
void receive_by_napi(const Host& host, const std::string& interface) {
  const Output output = must(host.run({"ethtool", "-K", interface, "gro", "on"}));
  EXPECT_EQ(output.status, 0) << output.text;
}

// Hosts h0, h1, ..., the aggregator's, an intruder's, and the switch between them.
Topology wires(const CollJobSpec& spec, unsigned hosts) {
  const int mtu = spec.words > SL_COLL_WORDS_DEFAULT ? 3500 : 1500;
  if (spec.direct) {
    TopologySpec described{.hosts = {{.name = "aggregator"}}};
    for (unsigned i = 0; i < hosts; i++) {
      const std::string name = fmt::format("h{}", i);
      described.hosts.push_back({.name = name});
      described.links.push_back({.a = {name, {fmt::format("10.9.{}.1/24", i), fmt::format("fd09:{:x}::1/64", i)}},
                                 .b = {"aggregator", {fmt::format("10.9.{}.2/24", i), fmt::format("fd09:{:x}::2/64", i)}},
                                 .mtu = mtu});
    }
    Topology topology = must(Topology::create(described));
    for (unsigned i = 0; i < hosts; i++) receive_by_napi(topology.host(fmt::format("h{}", i)), "eth0");
    return topology;
  }
  std::vector<LinkEnd> ends;
  for (unsigned i = 0; i <= hosts + 1; i++) {
    const std::string name = i < hosts ? fmt::format("h{}", i) : i == hosts ? "aggregator" : "intruder";
    ends.push_back({name, {fmt::format("10.9.0.{}/24", i + 1), fmt::format("fd09::{:x}/64", i + 1)}});
  }
  TopologySpec described = star(ends);
  for (LinkSpec& link : described.links) link.mtu = mtu;
  Topology topology = must(Topology::create(described));
  for (unsigned i = 0; i <= hosts; i++) receive_by_napi(topology.host("switch"), fmt::format("eth{}", i));
  return topology;
}

// UDP over IPv4, from whomever.
Bytes forged(const Address& from, const Address& to, coll::ByteSpan packet) {
  Bytes bytes(sizeof(iphdr) + sizeof(udphdr) + packet.size());
  iphdr ip{};
  ip.version = 4;
  ip.ihl = 5;
  ip.ttl = 64;
  ip.protocol = IPPROTO_UDP;
  ip.tot_len = htons(static_cast<std::uint16_t>(bytes.size()));
  std::memcpy(&ip.saddr, &from.ip[12], 4);
  std::memcpy(&ip.daddr, &to.ip[12], 4);
  udphdr udp{};
  udp.source = htons(from.port);
  udp.dest = htons(to.port);
  udp.len = htons(static_cast<std::uint16_t>(sizeof udp + packet.size()));
  std::memcpy(bytes.data(), &ip, sizeof ip);
  std::memcpy(bytes.data() + sizeof ip, &udp, sizeof udp);
  std::memcpy(bytes.data() + sizeof ip + sizeof udp, packet.data(), packet.size());
  return bytes;
}

// Contributions and results of the job that is under way, but for what the intruder cannot know or be.
Status intrude(const Host& host, const AggregatorConfig& config, const Address& center, const std::atomic<unsigned>& left) {
  const Fd wire(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW));
  if (!wire) return fail_errno(errno, "cannot open a raw socket");
  SeededRandom random(99);
  Address own = address_of_host(host, false);
  while (left != 0) {
    coll::Header header;
    const auto key = static_cast<std::uint32_t>(random.below(config.members.size()));
    header.magic = SL_COLL_MAGIC_AGGREGATE;
    header.key = key;
    header.op = SL_COLL_SUM;
    header.dtype = SL_COLL_I32;
    header.job = config.job.job;
    header.members = config.job.members;
    header.place(config.job.incarnation, random.below(std::uint64_t{2} * config.job.window));
    header.frag_offset = static_cast<std::uint32_t>(header.position()) * config.job.words;
    const bool stolen = random.chance(0.5), to_member = random.chance(0.5);
    header.token = stolen ? config.job.token ^ std::uint64_t{1} << random.below(64) : config.job.token;
    if (to_member) header.flags = SL_COLL_RESULT;
    const Address member = coll::address_of(config.members[key]);
    const Address from = !stolen ? own : to_member ? center : member, to = to_member ? member : center;
    own.port = from.port;
    const Bytes datagram = forged(from, to, coll::encode(header, Bytes(std::size_t{4} * config.job.words, 7)));
    sockaddr_in where{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
    std::memcpy(&where.sin_addr, &to.ip[12], 4);
    if (::sendto(wire.get(), datagram.data(), datagram.size(), 0, reinterpret_cast<sockaddr*>(&where), sizeof where) < 0 &&
        errno != ENOBUFS)
      return fail_errno(errno, "cannot send");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return {};
}

Status carry_ordinary(const Topology& topology, std::uint64_t bytes) {
  const std::string at = topology.host("aggregator").address(AF_INET) + ":5000";
  SLUICE_TRY(server, Traffic::server(topology.host("aggregator"), {"--listen", at}));
  SLUICE_TRY(client, Traffic::client(topology.host("h0"), {"--connect", at, "--connections", "1", "--bytes",
                                                           std::to_string(bytes), "--reply-bytes", "1"}));
  SLUICE_TRY(sent, client.finish(kSoon));
  if (sent.closed != 1 || sent.bytes != bytes + 1)
    return fail(Code::kInternal, "{} bytes of {} arrived", sent.bytes, bytes + 1);
  return {};
}

struct Slot {
  Status status;
  std::uint64_t retransmitted = 0;
  std::vector<std::vector<std::uint8_t>> outputs = {};
};

// One member: joins, makes the calls, leaves.
void work_through(Member& member, UdpPort& port, unsigned key, const std::vector<CollWork>& calls, Slot& slot,
                  const std::function<void()>& then = {}) {
  const RealClock clock;
  Outbox out;
  const auto until_not = [&](Member::State state) -> Status {
    SLUICE_CHECK(port.send(out));
    out.clear();
    return coll::drive(port, member, clock, [&] { return member.state() != state; });
  };
  const auto all = [&]() -> Status {
    member.join(clock.monotonic_ns(), out);
    SLUICE_CHECK(until_not(Member::State::kJoining));
    for (const CollWork& call : calls) {
      if (call.absent.contains(key)) return {};
      if (member.state() != Member::State::kIdle) break;
      slot.outputs.push_back(call.expected.inputs[key]);
      std::span<std::uint8_t> memory = slot.outputs.back();
      if (const auto less = call.fewer.find(key); less != call.fewer.end()) memory = memory.first(memory.size() - less->second);
      coll::Call made{.op = call.op, .dtype = call.dtype, .input = memory, .output = memory, .timeout_ns = kPatience_ns};
      if (call.root >= 0 && call.root != static_cast<int>(key)) made.wanted_end = 0;
      SLUICE_CHECK(member.begin(made, clock.monotonic_ns(), out));
      SLUICE_CHECK(until_not(Member::State::kCalling));
      if (auto outcome = member.take_outcome(); outcome && !*outcome) return *outcome;
    }
    if (member.state() == Member::State::kFailed) return tl::unexpected<Error>(member.failure());
    if (then) then();
    member.leave(clock.monotonic_ns(), out);
    return until_not(Member::State::kLeaving);
  };
  slot.status = all();
  slot.retransmitted = member.stats().retransmitted;
}

}  // namespace

CollWork coll_work(Random& random, const CollJobSpec& spec, sl_coll_op op, sl_coll_dtype dtype, std::size_t elements) {
  using namespace coll::oracle;
  static const std::map<sl_coll_op, Op> kOps = {{SL_COLL_SUM, Op::kSum},
                                                {SL_COLL_COUNT, Op::kCount},
                                                {SL_COLL_MAX, Op::kMax},
                                                {SL_COLL_MIN, Op::kMin},
                                                {SL_COLL_AVERAGE, Op::kAverage}};
  static const std::map<sl_coll_dtype, Type> kTypes = {{SL_COLL_I32, Type::kI32},
                                                       {SL_COLL_I64, Type::kI64},
                                                       {SL_COLL_F32, Type::kF32},
                                                       {SL_COLL_F16, Type::kF16},
                                                       {SL_COLL_BF16, Type::kBf16}};
  CollWork work{.op = op, .dtype = dtype, .expected = {}};
  work.expected.op = kOps.at(op);
  work.expected.type = kTypes.at(dtype);
  work.expected.weights = spec.weights.empty() ? std::vector<std::uint32_t>(spec.members, 1) : spec.weights;
  work.expected.block = spec.words;
  const std::size_t size = coll::oracle::size(work.expected.type);
  for (unsigned key = 0; key < spec.members; key++) {
    std::vector<std::uint8_t> bytes(elements * size);
    for (std::size_t at = 0; at < bytes.size(); at += size) {
      const auto value = static_cast<float>(random.unit() * 2 - 1);
      const auto half = static_cast<Half>(value);
      // An average of 64 bits has to leave room for the sum of weights.
      std::uint64_t integer = random.chance(0.2) ? 0 : random.next();
      if (op == SL_COLL_AVERAGE && dtype == SL_COLL_I64) integer >>= 16;
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      const auto high = static_cast<std::uint16_t>(bits >> 16);
      const void* from = dtype == SL_COLL_F32    ? static_cast<const void*>(&value)
                         : dtype == SL_COLL_F16  ? static_cast<const void*>(&half)
                         : dtype == SL_COLL_BF16 ? static_cast<const void*>(&high)
                                                 : static_cast<const void*>(&integer);
      std::memcpy(bytes.data() + at, from, size);
    }
    work.expected.inputs.push_back(std::move(bytes));
  }
  return work;
}

namespace {

// Interfaces by host: those that have our program already.
class Interfaces {
 public:
  std::shared_ptr<Interface> get(const Host& host, const std::string& name) {
    auto& found = attached_[host.name() + " " + name];
    if (!found)
      found = in_host<std::shared_ptr<Interface>>(host, [&] {
        return Interface::attach(::if_nametoindex(name.c_str()),
                                 std::string(SLUICE_BUILD_DIR) + "/bundles/dispatch/1.0.0/dispatch.bpf.o");
      });
    return found;
  }

 private:
  std::map<std::string, std::shared_ptr<Interface>> attached_;
};

// One job on the wires; its members make all calls.
class RunningJob {
 public:
  RunningJob(const CollJobSpec& spec, const Topology& topology, Interfaces& interfaces, std::uint16_t number)
      : spec_(spec),
        center_(topology.host("aggregator")),
        left(spec.members),
        slots(spec.members + 1U),
        members_(spec.members) {
    ports_.push_back(
        in_host<UdpPort>(center_, [&] { return UdpPort::open(spec.direct ? Address{} : address_of_host(center_, spec.v6)); }));
    config.job.token = kToken + number;
    config.job.job = number;
    config.job.incarnation = 1;
    config.job.members = config.job.contributors = spec.members;
    config.job.window = spec.window;
    config.job.words = spec.words;
    config.job.port = htons(ports_[0].local().port);
    config.dead_after_ns = spec.dead_after_ns;
    coll::KernelAggregatorConfig kernel;
    kernel.object = std::string(SLUICE_BUILD_DIR) + "/bundles/aggregate/1.0.0/aggregate.bpf.o";
    for (unsigned key = 0; key < spec.members; key++) {
      const Host& host = topology.host(fmt::format("h{}", key / spec.members_per_host));
      ports_.push_back(in_host<UdpPort>(host, [&] { return UdpPort::open(address_of_host(host, spec.v6)); }));
      sl_coll_member member{};
      member.port = htons(ports_.back().local().port);
      member.weight = spec.weights.empty() ? 1 : spec.weights[key];
      std::ranges::copy(ports_.back().local().ip, std::begin(member.addr));
      config.members.push_back(member);
      config.job.weight_sum += member.weight;
    }
    if (spec.aggregator == CollSide::kKernel) {
      kernel.aggregator = config;
      for (unsigned key = 0; key < spec.members; key++)
        kernel.interfaces.push_back(
            interfaces.get(center_, fmt::format("eth{}", spec.direct ? key / spec.members_per_host : 0)));
      aggregator_ = in_host<std::unique_ptr<KernelAggregator>>(center_, [&] { return KernelAggregator::start(kernel); });
    }
    for (unsigned key = 0; key < spec.members; key++) {
      Address aggregator = address_of_host(center_, spec.v6, spec.direct ? key / spec.members_per_host : 0);
      aggregator.port = ports_[0].local().port;
      const coll::MemberConfig member{.token = config.job.token,
                                      .weight_sum = config.job.weight_sum,
                                      .instance = key + 1,
                                      .job = number,
                                      .members = spec.members,
                                      .window = spec.window,
                                      .words = spec.words,
                                      .key = static_cast<std::uint8_t>(key),
                                      .aggregator = aggregator,
                                      .join_timeout_ns = kPatience_ns};
      if (spec.members_are != CollSide::kKernel || std::ranges::count(spec.fallback, key))
        members_[key] = std::make_unique<Member>(member);
      else
        members_[key] =
            must(KernelMember::start({.member = member,
                                      .port = ports_[key + 1].local().port,
                                      .interface = interfaces.get(topology.host(fmt::format("h{}", key)), "eth0"),
                                      .carried_bytes = spec.carried_bytes,
                                      .object = std::string(SLUICE_BUILD_DIR) + "/bundles/member/1.0.0/member.bpf.o"}));
    }
  }

  void start(std::vector<std::thread>& threads, const std::vector<CollWork>& calls) {
    threads.emplace_back([this] {
      if (aggregator_) return serve(*aggregator_);
      Aggregator model(config);
      serve(model);
    });
    for (unsigned key = 0; key < spec_.members; key++)
      threads.emplace_back([this, key, &calls] {
        if (static_cast<int>(key) == spec_.victim)
          slots[key].status = fail(Code::kUnavailable, "the victim");
        else
          work_through(*members_[key], ports_[key + 1], key, calls, slots[key]);
        left--;
      });
  }

  // Before there are threads: the victim's process. It stops itself behind its first call, as if somebody else had done it.
  void fork_victim(const Topology& topology, const std::vector<CollWork>& calls) {
    if (spec_.victim < 0) return;
    const auto key = static_cast<unsigned>(spec_.victim);
    victim_.emplace(must(topology.host(fmt::format("h{}", key / spec_.members_per_host)).fork([&] {
      Slot slot;
      work_through(*members_[key], ports_[key + 1], key, {calls[0]}, slot, [this] { ::kill(::getpid(), spec_.victim_signal); });
      return 1;
    })));
  }

  Address center() const {
    Address address = address_of_host(center_, spec_.v6);
    address.port = ports_[0].local().port;
    return address;
  }

  void report_to(CollReport& report, const std::vector<CollWork>& calls) const {
    for (const auto& [index, count] : counters_) report.counters[index] += count;
    for (const auto& member : members_)
      if (const auto* kernel = dynamic_cast<const KernelMember*>(member.get()))
        for (int i = 0; i < SL_COLL_MEMBER_COUNTER_COUNT; i++)
          report.member_counters[static_cast<sl_coll_member_counter>(i)] +=
              must(kernel->counter(static_cast<sl_coll_member_counter>(i)));
    for (const Slot& slot : slots) {
      report.errors.push_back(slot.status ? "" : slot.status.error().message());
      report.retransmitted += slot.retransmitted;
    }
    for (std::size_t i = 0; i < calls.size(); i++) judge(calls[i], i);
  }

 private:
  void serve(auto& aggregator) {
    slots.back().status = coll::drive(ports_[0], aggregator, RealClock(), [&] { return left == 0; });
    for (int i = 0; i < SL_COLL_COUNTER_COUNT; i++) {
      const auto index = static_cast<sl_coll_counter>(i);
      if constexpr (requires { aggregator.counter(index).value(); })
        counters_[index] = must(aggregator.counter(index));
      else
        counters_[index] = aggregator.counter(index);
    }
  }

  void judge(const CollWork& call, std::size_t number) const {
    const auto first = static_cast<unsigned>(std::max(call.root, 0));
    for (unsigned key = 0; key < spec_.members; key++) {
      if (!slots[key].status || number >= slots[key].outputs.size()) continue;
      const auto& output = slots[key].outputs[number];
      if (call.root >= 0 && key != first)
        EXPECT_EQ(output, call.expected.inputs[key]) << "call " << number << ", KEY " << key << " wants nothing";
      else if (key == first)
        EXPECT_EQ(coll::oracle::judge(call.expected, output), "") << "call " << number;
      else
        EXPECT_EQ(output == slots[first].outputs[number], true) << "call " << number << ", KEYs " << first << " and " << key;
    }
  }

  const CollJobSpec& spec_;
  const Host& center_;

 public:
  AggregatorConfig config;
  std::atomic<unsigned> left;  // members
  std::vector<Slot> slots;     // by KEY, then the aggregator's

 private:
  std::vector<UdpPort> ports_;  // the aggregator's, then by KEY
  std::unique_ptr<KernelAggregator> aggregator_;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<sl_coll_counter, std::uint64_t> counters_;
  std::optional<Process> victim_;  // ends with it
};

}  // namespace

CollReport run_coll_job(const CollJobSpec& spec, const std::vector<CollWork>& calls) {
  const unsigned hosts = (spec.members + spec.members_per_host - 1U) / spec.members_per_host;
  const Topology topology = wires(spec, hosts);
  std::vector<Impairment> impairments;
  const bool clean = spec.wire.drop + spec.wire.duplicate + spec.wire.corrupt + spec.wire.reorder == 0;
  for (unsigned i = 0; i <= hosts && !clean; i++) {
    ImpairmentSpec own = spec.wire;
    own.seed += i;
    impairments.push_back(must(Impairment::attach(topology.host("switch"), fmt::format("eth{}", i), own)));
  }

  Interfaces interfaces;
  std::vector<std::unique_ptr<RunningJob>> jobs;
  for (std::uint16_t number = 1; number <= spec.jobs; number++)
    jobs.push_back(std::make_unique<RunningJob>(spec, topology, interfaces, number));
  for (const auto& job : jobs) job->fork_victim(topology, calls);
  std::vector<std::thread> threads;
  for (const auto& job : jobs) job->start(threads, calls);
  Status intruded, carried;
  if (spec.intruder)
    threads.emplace_back([&] {
      const Host& host = topology.host("intruder");
      intruded = host.call([&] { return intrude(host, jobs[0]->config, jobs[0]->center(), jobs[0]->left); });
    });
  if (spec.ordinary_bytes != 0) threads.emplace_back([&] { carried = carry_ordinary(topology, spec.ordinary_bytes); });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : {intruded, carried}) EXPECT_TRUE(status) << status.error().message();

  CollReport report;
  for (const auto& job : jobs) job->report_to(report, calls);
  return report;
}

}  // namespace sluice::test
