// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bundle `member`, with what user space does beside it, against the model's member: both make the same calls under the same KEY
// and get the same packets, this one in frames through BPF_PROG_RUN. Whatever they send has to be the same, and so are the
// results. The seed is printed; SLUICE_SEED repeats a run, SLUICE_CALLS makes it longer.
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <net/if.h>

#include <deque>
#include <iostream>
#include <map>
#include <optional>
#include <set>

#include "base/random.h"
#include "bpf/coll_frames.h"
#include "coll/kernel/member.h"
#include "coll/model/aggregator.h"
#include "harness/assert.h"
#include "harness/topology.h"

namespace sluice::test {
namespace {

using coll::Aggregator;
using coll::AggregatorConfig;
using coll::Call;
using coll::Datagram;
using coll::Header;
using coll::KernelMember;
using coll::Member;
using coll::MemberConfig;
using coll::Outbox;

constexpr std::uint64_t kNow = 1'000'000'000;  // time stands still: nothing is sent again
constexpr std::uint32_t kVerifierBudget = 40'000;

struct Kind {
  sl_coll_op op;
  sl_coll_dtype dtype;
  float fixed_scale = 0;
};
constexpr Kind kKinds[] = {{SL_COLL_SUM, SL_COLL_I32},      {SL_COLL_SUM, SL_COLL_I64},     {SL_COLL_SUM, SL_COLL_F32},
                           {SL_COLL_SUM, SL_COLL_BF16},     {SL_COLL_AVERAGE, SL_COLL_F32}, {SL_COLL_AVERAGE, SL_COLL_I32},
                           {SL_COLL_AVERAGE, SL_COLL_I64},  {SL_COLL_MAX, SL_COLL_F16},     {SL_COLL_MIN, SL_COLL_I64},
                           {SL_COLL_SUM, SL_COLL_F32, 1e3}, {SL_COLL_COUNT, SL_COLL_F32},   {SL_COLL_BARRIER, SL_COLL_NONE}};

// A job of model members, the first of which has a double in the kernel.
class Doubles {
 public:
  Doubles(Random& random, std::shared_ptr<coll::Interface> interface) : random_(random) {
    static constexpr std::uint16_t kWords[] = {16, 18, 352, 832};
    form_ = {.v6 = random.chance(0.5), .vlan = random.chance(0.3)};
    center_ = ours(form_.v6);
    center_.ip[15] ^= 0x40;
    center_.port = 20009;
    AggregatorConfig config;
    sl_coll_job& job = config.job;
    job.token = random.next();
    job.job = static_cast<std::uint16_t>(random.next());
    job.members = job.contributors = static_cast<std::uint16_t>(random.between(1, 4));
    job.incarnation = static_cast<std::uint16_t>(random.between(1, 0xffff));
    job.window = static_cast<std::uint16_t>(1 << random.below(5));
    job.words = kWords[random.below(std::size(kWords))];
    for (std::uint32_t key = 0; key < job.members; key++) {
      Address address = ours(form_.v6);
      address.port = static_cast<std::uint16_t>(kPort + key);
      sl_coll_member member{};
      std::ranges::copy(address.ip, std::begin(member.addr));
      member.port = __builtin_bswap16(address.port);
      member.weight = static_cast<std::uint32_t>(random.chance(0.7) ? 1 : random.between(1, 50));
      job.weight_sum += member.weight;
      config.members.push_back(member);
    }
    words_ = job.words;
    aggregator_.emplace(config);
    for (std::uint32_t key = 0; key < job.members; key++) members_.push_back(std::make_unique<Member>(config_of(config, key)));
    in_pieces_ = random.chance(0.5);
    kernel_ = must(KernelMember::start({.member = config_of(config, 0),
                                        .port = kPort,
                                        .interface = interface,
                                        .carried_bytes = in_pieces_ ? 1 : std::size_t{1} << 20,
                                        .object = std::string(SLUICE_BUILD_DIR) + "/bundles/member/1.0.0/member.bpf.o"}));
  }

  std::uint32_t verified_insns() const { return must(kernel_->program().info()).verified_insns; }
  std::uint64_t sent_by_program() const { return must(kernel_->counter(SL_COLL_MEMBER_SENT)); }
  std::uint64_t in_values() const { return in_values_; }
  std::uint64_t corrupt() const { return must(kernel_->counter(SL_COLL_MEMBER_CORRUPT)); }

  void join() {
    Outbox out;
    kernel_->join(kNow, out);  // but for its mode, what the model says
    for (std::uint32_t key = 0; key < members_.size(); key++) {
      out.clear();
      members_[key]->join(kNow, out);
      if (key == 0) sent_.insert(out[0].bytes);
      give(key, out);
    }
    deliver();
    ASSERT_EQ(kernel_->state(), Member::State::kIdle);
  }

  void call() {
    const Kind kind = kKinds[random_.below(std::size(kKinds))];
    const std::size_t size = kind.op == SL_COLL_BARRIER ? 0 : coll::size_of(kind.dtype);
    const std::size_t elements = random_.chance(0.1) ? random_.below(3) : random_.below(std::size_t{5} * 40 * words_ / 4);
    std::vector<Bytes> memory(members_.size(), Bytes(size * elements));
    for (Bytes& bytes : memory) fill(kind, bytes);
    Bytes kernel_memory = memory[0];
    bool in_values = false;
    const bool wants = random_.chance(0.8);
    Outbox theirs, out;
    for (std::uint32_t key = 0; key < members_.size(); key++) {
      Call call{
          .op = kind.op, .dtype = kind.dtype, .input = memory[key], .output = memory[key], .fixed_scale = kind.fixed_scale};
      if (key == 0 && !wants) call.wanted_end = 0;
      out.clear();
      must(members_[key]->begin(call, kNow, out));
      if (key == 0) {
        std::span<std::uint8_t> memory_of_call = kernel_memory;
        const auto where_it_works = kernel_->values().first(std::min(kernel_memory.size(), kernel_->values().size()));
        const bool can_be_in_values = (kind.op == SL_COLL_SUM || kind.op == SL_COLL_MAX || kind.op == SL_COLL_MIN) &&
                                      !coll::is_float(kind.dtype) &&
                                      (words_ == SL_COLL_WORDS_DEFAULT || words_ == SL_COLL_WORDS_MAX);
        if (!can_be_in_values && !where_it_works.empty()) {
          Call refused = call;
          refused.input = refused.output = where_it_works;
          EXPECT_EQ(kernel_->begin(refused, kNow, theirs).error().code, Code::kInvalid);
        } else if (random_.chance(0.5) && where_it_works.size() == kernel_memory.size()) {
          std::ranges::copy(kernel_memory, where_it_works.begin());
          memory_of_call = where_it_works;
        }
        in_values = memory_of_call.data() != kernel_memory.data();
        in_values_ += in_values;
        call.input = call.output = memory_of_call;
        must(kernel_->begin(call, kNow, theirs));
        model_sent(out);
        ASSERT_NO_FATAL_FAILURE(kernel_sent(theirs));
      } else {
        give(key, out);
      }
    }
    ASSERT_NO_FATAL_FAILURE(deliver());
    EXPECT_TRUE(owed_.empty());
    for (const auto& member : members_) ASSERT_EQ(member->state(), Member::State::kIdle);
    ASSERT_EQ(kernel_->state(), Member::State::kIdle);
    const auto outcome = members_[0]->take_outcome(), kernel_outcome = kernel_->take_outcome();
    for (const auto& member : members_) std::ignore = member->take_outcome();
    ASSERT_TRUE(outcome && kernel_outcome);
    EXPECT_EQ(outcome->has_value(), kernel_outcome->has_value());
    if (in_values) std::ranges::copy(kernel_->values().first(kernel_memory.size()), kernel_memory.begin());
    EXPECT_TRUE(memory[0] == kernel_memory) << coll::op_name(kind.op) << " of " << coll::dtype_name(kind.dtype);
  }

 private:
  static MemberConfig config_of(const AggregatorConfig& config, std::uint32_t key) {
    return {.token = config.job.token,
            .weight_sum = config.job.weight_sum,
            .instance = key + 1,
            .job = config.job.job,
            .members = config.job.members,
            .window = config.job.window,
            .words = config.job.words,
            .key = static_cast<std::uint8_t>(key),
            .aggregator = center_};
  }
  // Numbers of very different size, NaN and infinities now and then.
  void fill(const Kind& kind, Bytes& bytes) {
    const bool special = random_.chance(0.2);
    for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4) {
      auto word = static_cast<std::uint32_t>(random_.next());
      if (coll::is_float(kind.dtype)) {
        const auto value = static_cast<float>(std::ldexp(random_.unit() * 2 - 1, static_cast<int>(random_.below(12))));
        word = std::bit_cast<std::uint32_t>(value);
        if (kind.dtype != SL_COLL_F32) word = word >> 16 | (word & 0x8fff0000);
        if (special && random_.chance(0.01)) word = random_.chance(0.5) ? 0x7fc07fc0 : 0xff80ff80;
      }
      std::memcpy(bytes.data() + at, &word, 4);
    }
  }

  void give(std::uint32_t key, const Outbox& out) {
    for (const Datagram& datagram : out) to_aggregator_.push_back({key, datagram.bytes});
  }
  // But not what it sent before and hurries.
  void model_sent(const Outbox& out) {
    for (const Datagram& datagram : out)
      if (sent_.insert(datagram.bytes).second) owed_.push_back(datagram);
  }
  static std::string described(const Datagram& datagram) {
    const Header h = *coll::parse(datagram.bytes);
    return fmt::format("position {} at {}, {} of {}, flags {:#x}, exponents {} and {}, {} bytes\n", h.position(), h.frag_offset,
                       coll::op_name(h.op), coll::dtype_name(h.dtype), h.flags, h.exponent, h.scale_low, datagram.bytes.size());
  }
  // At once, or when it has come to the next piece of a call. This is what the aggregator gets.
  void kernel_sent(const Outbox& out) {
    for (const Datagram& datagram : out) {
      const auto found = std::ranges::find_if(
          owed_, [&](const Datagram& owed) { return owed.to == datagram.to && owed.bytes == datagram.bytes; });
      ASSERT_TRUE(found != owed_.end()) << described(datagram) << "owed: " << (owed_.empty() ? "nothing" : described(owed_[0]));
      owed_.erase(found);
    }
    give(0, out);
    EXPECT_TRUE(in_pieces_ || owed_.empty());
  }

  // In any order, some twice; until nothing is under way.
  void deliver() {
    std::deque<std::pair<std::uint32_t, Bytes>> results;
    const auto any = [&](auto& queue) {
      std::swap(queue.front(), queue[random_.below(std::min<std::size_t>(queue.size(), 8))]);
      auto taken = queue.front();
      if (!random_.chance(0.05)) queue.pop_front();
      return taken;
    };
    while (!to_aggregator_.empty() || !results.empty()) {
      if (!to_aggregator_.empty() && (results.empty() || random_.chance(0.5))) {
        const auto [key, packet] = any(to_aggregator_);
        Outbox out;
        Address from = ours(form_.v6);
        from.port = static_cast<std::uint16_t>(kPort + key);
        aggregator_->receive(from, packet, kNow, out);
        for (Datagram& datagram : out) results.emplace_back(datagram.to.port - kPort, std::move(datagram.bytes));
      } else {
        const auto [key, packet] = any(results);
        if (key != 0) {
          Outbox out;
          members_[key]->receive(center_, packet, kNow, out);
          give(key, out);
          continue;
        }
        // In the order of positions, copies of old ones between them: the model sends the next chunk only in order, the program
        // as soon as its slot is free.
        const Header header = *coll::parse(packet);
        if (header.magic == SL_COLL_MAGIC_CONTROL || header.position() < next_) {
          ASSERT_NO_FATAL_FAILURE(both_receive(packet));
          continue;
        }
        held_[header.position()] = packet;
        for (auto at = held_.find(next_); at != held_.end(); at = held_.find(++next_)) {
          ASSERT_NO_FATAL_FAILURE(both_receive(at->second));
          held_.erase(at);
        }
      }
    }
  }

  // Something like this packet, which must not have any effect.
  void disturb(const Bytes& packet) {
    if (!random_.chance(0.2)) return;
    Address from = center_;
    Bytes bad = packet;
    if (random_.chance(0.2))
      from.port ^= 1;
    else
      bad = damaged(random_, packet, packet.size() > sizeof(sl_coll_header) ? random_.below(2) * sizeof(sl_coll_header) : 0);
    if (bad == packet && from == center_) return;
    const auto run = kernel_->program().test_run(test_run_of(frame_of(form_, from, ours(form_.v6), bad)));
    EXPECT_NE(must(run).value, static_cast<std::uint32_t>(XDP_REDIRECT));
  }

  void both_receive(const Bytes& packet) {
    disturb(packet);
    Outbox out, theirs;
    members_[0]->receive(center_, packet, kNow, out);
    members_[0]->tick(kNow, out);
    model_sent(out);
    const auto run = must(kernel_->program().test_run(test_run_of(frame_of(form_, center_, ours(form_.v6), packet))));
    if (run.value == XDP_REDIRECT) {
      const Bytes frame = bytes_of_run(run);
      theirs.push_back({center_, Bytes(frame.begin() + static_cast<std::ptrdiff_t>(form_.payload()), frame.end())});
      ASSERT_NO_FATAL_FAILURE(expect_datagram(frame, form_, theirs[0]));
    } else if (run.value == XDP_PASS) {
      kernel_->receive(center_, packet, kNow, theirs);
    } else {
      ASSERT_EQ(run.value, static_cast<std::uint32_t>(XDP_DROP));
    }
    kernel_->tick(kNow, theirs);
    kernel_sent(theirs);
  }
  bpfio::TestRun test_run_of(const Bytes& frame) {
    frame_ = frame;
    bpfio::TestRun what;
    what.data = std::as_bytes(std::span(frame_));
    what.data_out_max = frame.size() + std::size_t{4} * SL_COLL_WORDS_MAX;
    return what;
  }

  Random& random_;
  Form form_;
  static inline Address center_;
  std::uint16_t words_ = 0;
  std::optional<Aggregator> aggregator_;
  std::vector<std::unique_ptr<Member>> members_;
  std::unique_ptr<KernelMember> kernel_;
  std::deque<std::pair<std::uint32_t, Bytes>> to_aggregator_;
  std::set<Bytes> sent_;
  std::vector<Datagram> owed_;  // the model sent them, the kernel's member has not
  bool in_pieces_;
  std::uint64_t in_values_ = 0;          // calls in the memory that the program works in
  std::uint64_t next_ = 0;               // position whose result KEY 0 gets next
  std::map<std::uint64_t, Bytes> held_;  // results that came before it
  Bytes frame_;
};

class CollMember : public testing::Test {
 protected:
  // `body` in a network namespace with an interface that XDP can be attached to.
  static void on_a_wire(const std::function<void(std::uint32_t)>& body) {
    const Topology topology = must(Topology::create(pair()));
    must(topology.host("a").call([&]() -> Status {
      body(::if_nametoindex("eth0"));
      return {};
    }));
  }
  static Result<std::shared_ptr<coll::Interface>> attach(std::uint32_t index) {
    return coll::Interface::attach(index, std::string(SLUICE_BUILD_DIR) + "/bundles/dispatch/1.0.0/dispatch.bpf.o");
  }
};

TEST_F(CollMember, SendsWhatTheModelSends) {
  const std::uint64_t seed = environment("SLUICE_SEED", OsRandom().next()), calls = environment("SLUICE_CALLS", 300);
  std::cout << "seed " << seed << ", " << calls << " calls\n";
  SeededRandom random(seed);
  std::uint64_t sent = 0, corrupt = 0, in_values = 0;
  on_a_wire([&](std::uint32_t index) {
    const auto interface = must(attach(index));
    for (std::uint64_t made = 0; made < calls && !HasFatalFailure();) {
      Doubles doubles(random, interface);
      ASSERT_NO_FATAL_FAILURE(doubles.join()) << "seed " << seed;
      for (int i = 0; i < 10; i++, made++) {
        ASSERT_NO_FATAL_FAILURE(doubles.call()) << "seed " << seed << ", call " << made;
        ASSERT_FALSE(HasFailure()) << "seed " << seed << ", call " << made;
      }
      sent += doubles.sent_by_program();
      corrupt += doubles.corrupt();
      in_values += doubles.in_values();
    }
  });
  std::cout << sent << " chunks sent by the program, " << corrupt << " results refused\n";
  // Two that only ever did nothing would agree too.
  EXPECT_GT(sent, calls);
  EXPECT_GT(corrupt, calls / 4);
  EXPECT_GT(in_values, 0u);
}

TEST_F(CollMember, AnInterfaceThatHasAProgramSaysWhichAndKeepsIt) {
  on_a_wire([](std::uint32_t index) {
    const auto first = must(attach(index));
    const auto second = attach(index);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Code::kConflict);
    const std::string text = second.error().message();
    EXPECT_NE(text.find("eth0 has an XDP program already, id "), std::string::npos) << text;
    EXPECT_EQ(attach(4711).error().code, Code::kNotFound);
  });
}

TEST_F(CollMember, APortOfAnInterfaceIsOneJobsUntilThatEnds) {
  on_a_wire([](std::uint32_t index) {
    const auto interface = must(attach(index));
    const auto start = [&](std::uint16_t port) {
      return KernelMember::start({.member = {.weight_sum = 1, .members = 1, .window = 1, .aggregator = {}},
                                  .port = port,
                                  .interface = interface,
                                  .carried_bytes = 1,
                                  .object = std::string(SLUICE_BUILD_DIR) + "/bundles/member/1.0.0/member.bpf.o"});
    };
    auto first = start(kPort);
    ASSERT_TRUE(first);
    const auto second = start(kPort);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Code::kConflict);
    EXPECT_NE(second.error().message().find(std::to_string(kPort)), std::string::npos) << second.error().message();
    first->reset();
    std::vector<std::unique_ptr<KernelMember>> all;
    for (std::uint16_t i = 0; i < SL_COLL_PORTS_MAX; i++) all.push_back(must(start(static_cast<std::uint16_t>(kPort + i))));
    EXPECT_EQ(start(kPort + SL_COLL_PORTS_MAX).error().code, Code::kExhausted);
    all.erase(all.begin() + 5);
    EXPECT_TRUE(start(kPort + SL_COLL_PORTS_MAX));
  });
}

TEST_F(CollMember, KeepsItsVerifierBudget) {
  SeededRandom random(1);
  on_a_wire([&](std::uint32_t index) {
    const Doubles doubles(random, must(attach(index)));
    std::cout << "sl_coll_take: " << doubles.verified_insns() << " instructions verified\n";
    EXPECT_LT(doubles.verified_insns(), kVerifierBudget);
  });
}

}  // namespace
}  // namespace sluice::test
