// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bundle `aggregate` against the model: the same packets, in frames, through BPF_PROG_RUN; every verdict, every byte of every
// answer and every counter has to be the model's. The seed is printed; SLUICE_SEED repeats a run, SLUICE_PACKETS makes it
// longer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>
#include <set>

#include "base/random.h"
#include "bpf/coll_frames.h"
#include "bpfio/object.h"
#include "coll/model/aggregator.h"
#include "harness/assert.h"

namespace sluice::test {
namespace {

using coll::Aggregator;
using coll::AggregatorConfig;
using coll::Header;
using coll::Outbox;

const std::string kObject = std::string(SLUICE_BUILD_DIR) + "/bundles/aggregate/1.0.0/aggregate.bpf.o";
constexpr std::uint32_t kLoopback = 1;  // ifindex: a test run sends nothing
constexpr std::uint32_t kVerifierBudget = 600'000;

// ---- a job at both
// -----------------------------------------------------------------------------------------------------------

struct Counters {
  std::uint64_t of[SL_COLL_COUNTER_COUNT];
};

class Kernel {
 public:
  explicit Kernel(std::uint16_t window) : object_(must(bpfio::Object::open_file(kObject))) {
    must(object_.set_max_entries("sl_coll_slots", 2U * window));
    must(object_.load());
    program_.emplace(must(object_.program("sl_coll_aggregate")));
    const bpf_devmap_val somewhere{.ifindex = kLoopback, .bpf_prog = {.fd = -1}};
    for (std::uint32_t i = 0; i < SL_COLL_MEMBERS_MAX; i++) must(map("sl_coll_fan").update(key(i), bpfio::bytes_of(somewhere)));
  }

  void start(const AggregatorConfig& config) const {
    sl_coll_job job = config.job;
    job.port = __builtin_bswap16(kPort);
    must(map("sl_coll_job").update(key(0), bpfio::bytes_of(job)));
    const auto members = map("sl_coll_members");
    for (std::uint32_t i = 0; i < config.members.size(); i++) must(members.update(key(i), bpfio::bytes_of(config.members[i])));
    const auto slots = map("sl_coll_slots");
    const std::vector<std::byte> empty(slots.info().value_size);
    for (std::uint32_t i = 0; i < slots.info().max_entries; i++) must(slots.update(key(i), empty));
  }

  bpfio::TestRunResult run(const Bytes& frame) const {
    bpfio::TestRun what;
    what.data = std::as_bytes(std::span(frame));
    what.data_out_max = frame.size() + 64;
    return must(program_->test_run(what));
  }

  Counters counters() const {
    const auto sums = must(bpfio::sum_per_cpu(map("sl_coll_counters")));
    Counters sum{};
    std::ranges::copy(sums, std::begin(sum.of));
    return sum;
  }
  std::uint8_t state() const {
    sl_coll_job job{};
    must(map("sl_coll_job").lookup(key(0), std::as_writable_bytes(std::span(&job, 1))));
    return job.state;
  }
  std::uint32_t verified_insns() const { return must(program_->info()).verified_insns; }

 private:
  static std::span<const std::byte> key(const std::uint32_t& value) {
    static thread_local std::uint32_t copy;
    copy = value;
    return bpfio::bytes_of(copy);
  }
  bpfio::MapFd map(const std::string& name) const { return must(object_.map(name)); }

  bpfio::Object object_;
  std::optional<bpfio::Program> program_;
};

// What members of one job send: always the same for the same KEY and position.
class Job {
 public:
  Job(Random& random, std::uint16_t window, bool v6) : v6_(v6) {
    static constexpr std::uint16_t kWords[] = {16, 18, 352, 832};
    config_.job.token = random.next();
    config_.job.job = static_cast<std::uint16_t>(random.next());
    config_.job.contributors = static_cast<std::uint16_t>(random.chance(0.1) ? 64 : random.between(1, 9));
    config_.job.members = static_cast<std::uint16_t>(config_.job.contributors + random.below(3));
    config_.job.incarnation = static_cast<std::uint16_t>(random.between(1, 0xffff));
    config_.job.window = window;
    config_.job.words = kWords[random.below(std::size(kWords))];
    const bool weighted = random.chance(0.3);
    config_.job.weight_sum = static_cast<std::uint64_t>(config_.job.members - config_.job.contributors);
    for (std::uint32_t i = 0; i < config_.job.contributors; i++) {
      sl_coll_member member{};
      Address address = ours(v6);
      address.ip[15] = static_cast<std::uint8_t>(10 + i);
      std::copy(address.ip.begin(), address.ip.end(), std::begin(member.addr));
      member.port = __builtin_bswap16(static_cast<std::uint16_t>(20000 + i));
      member.weight = weighted ? static_cast<std::uint32_t>(random.between(1, 900)) : 1;
      config_.job.weight_sum += member.weight;
      config_.members.push_back(member);
    }
    seed_ = random.next();
    // One call after the other: what a chunk is follows from its position.
    kinds_ = {{SL_COLL_SUM, SL_COLL_I32},      {SL_COLL_SUM, SL_COLL_F32},     {SL_COLL_SUM, SL_COLL_I64},
              {SL_COLL_AVERAGE, SL_COLL_I32},  {SL_COLL_MAX, SL_COLL_I32},     {SL_COLL_MIN, SL_COLL_I64},
              {SL_COLL_MAX, SL_COLL_F16},      {SL_COLL_MIN, SL_COLL_BF16},    {SL_COLL_COUNT, SL_COLL_I32},
              {SL_COLL_MAX, SL_COLL_I64},      {SL_COLL_MIN, SL_COLL_F32},     {SL_COLL_SUM, SL_COLL_F16 | SL_COLL_FIXED_SCALE},
              {SL_COLL_AVERAGE, SL_COLL_BF16}, {SL_COLL_BARRIER, SL_COLL_NONE}};
  }

  const AggregatorConfig& config() const { return config_; }
  std::uint32_t members() const { return config_.job.contributors; }
  bool v6() const { return v6_; }
  Address address(std::uint32_t key) const { return coll::address_of(config_.members[key]); }

  Bytes packet(std::uint32_t key, std::uint64_t position) const {
    SeededRandom shape(seed_ ^ position * 0x9e3779b97f4a7c15), own(seed_ ^ (position << 7 | key) * 0xbf58476d1ce4e5b9);
    const auto& [op, dtype] = kinds_[shape.below(kinds_.size())];
    Header header;
    header.magic = SL_COLL_MAGIC_AGGREGATE;
    header.key = key;
    header.op = op;
    header.dtype = dtype;
    header.job = config_.job.job;
    header.members = config_.job.members;
    header.token = config_.job.token;
    header.place(config_.job.incarnation, position);
    header.exponent = static_cast<std::int16_t>(shape.next());
    header.scale_low = static_cast<std::int16_t>(shape.next());
    const bool adds_floats = coll::is_float(dtype) && (op == SL_COLL_SUM || op == SL_COLL_AVERAGE);
    if (op != SL_COLL_BARRIER) header.frag_offset = static_cast<std::uint32_t>(shape.below(1 << 20));
    if (adds_floats && shape.chance(0.2)) header.frag_offset |= SL_COLL_FRAG_SPECIAL;
    if (adds_floats && !(dtype & SL_COLL_FIXED_SCALE) && shape.chance(0.2)) header.frag_offset = SL_COLL_FRAG_EXPONENTS;
    if (shape.chance(0.2)) header.flags |= SL_COLL_LAST_FRAGMENT;
    if (own.chance(0.2)) header.flags |= SL_COLL_NO_VALUES;
    if (own.chance(0.1)) header.flags |= SL_COLL_ACK_REQUEST;
    for (const auto flag : {SL_COLL_NAN, SL_COLL_POS_INF, SL_COLL_NEG_INF, SL_COLL_OVERFLOW})
      if (own.chance(0.05)) header.flags |= static_cast<std::uint8_t>(flag);
    const std::size_t element = coll::wire_size(header), most = std::size_t{4} * config_.job.words / element;
    const std::size_t elements = op == SL_COLL_BARRIER ? 0 : shape.chance(0.7) ? most : shape.between(0, most);
    Bytes payload(elements * element);
    for (std::size_t at = 0; at < payload.size(); at += 4) {
      const auto word = static_cast<std::uint32_t>(own.next());
      std::memcpy(payload.data() + at, &word, 4);
    }
    return coll::encode(header, payload);
  }

  // Where members are: each may contribute up to the window behind what is complete.
  std::uint64_t some_position(Random& random, std::uint64_t complete_below) const {
    const double kind = random.unit();
    const std::uint64_t window = config_.job.window;
    if (kind < 0.8) return complete_below + random.below(window);
    if (kind < 0.95) return complete_below - std::min(complete_below, random.below(2 * window + 1));  // asked for again
    if (kind < 0.98) return complete_below + window + random.below(2 * window);                       // too early
    return random.next() & 0xffffffffffff;
  }

 private:
  bool v6_;
  AggregatorConfig config_;
  std::uint64_t seed_ = 0;
  std::vector<std::pair<std::uint8_t, std::uint8_t>> kinds_;
};

// What sl_coll_copy does to a broadcast frame for one KEY, of what the header holds; in plain 64-bit numbers.
Bytes copy_for(const Bytes& frame, const Form& form, std::uint32_t key) {
  Bytes packet(frame.begin() + static_cast<std::ptrdiff_t>(form.payload()), frame.end());
  Header header = *coll::parse(packet);
  EXPECT_EQ(header.version, 0);
  header.version = SL_COLL_VERSION;
  header.key = key;
  return coll::encode(header, coll::payload_of(packet));
}

class Differential {
 public:
  Differential(const Kernel& kernel, const Job& job) : kernel_(kernel), job_(job), model_(job.config()) {}

  // Nothing more to be said once the job has failed.
  bool failed() const { return model_.failed(); }
  std::uint64_t complete_below() const { return complete_below_; }
  // What the kernel should have counted. A corrupt packet that opens an entry costs it the result that nobody can need any
  // more, which the model still has: packets for it are stale.
  std::uint64_t expected(sl_coll_counter which) const {
    return model_.counter(which) + (which == SL_COLL_STALE ? lost_ : 0) - (which == SL_COLL_ANSWERED ? lost_ : 0);
  }

  void feed(const Form& form, const Address& from, const Bytes& packet) {
    Outbox out;
    const auto before = counts();
    model_.receive(from, packet, 1, out);
    const auto run = kernel_.run(frame_of(form, from, ours(form.v6), packet));
    const Bytes frame = bytes_of_run(run);
    const auto grew = [&](sl_coll_counter which) { return model_.counter(which) != before[which]; };
    if (grew(SL_COLL_CORRUPT)) corrupt(packet);
    if (grew(SL_COLL_ANSWERED) && run.value == XDP_DROP && may_be_lost_.contains(coll::parse(packet)->position())) {
      lost_++;
    } else if (grew(SL_COLL_COMPLETED)) {
      const std::uint64_t position = coll::parse(packet)->position();
      complete_[position % complete_.size()] = position + 1;
      while (complete_[complete_below_ % complete_.size()] == complete_below_ + 1) complete_below_++;
      ASSERT_EQ(run.value, XDP_REDIRECT);
      ASSERT_EQ(out.size(), job_.members());
      // The residue that is handed on, and the sum for UDP's checksum.
      for (std::uint32_t key = 0; key < job_.members(); key++)
        if (!(coll::parse(out[key].bytes)->flags & SL_COLL_NO_VALUES)) {
          ASSERT_EQ(copy_for(frame, form, key), out[key].bytes) << "KEY " << key;
        }
    } else if (grew(SL_COLL_ANSWERED)) {
      ASSERT_EQ(run.value, XDP_REDIRECT);
      ASSERT_EQ(out.size(), 1U);
      ASSERT_NO_FATAL_FAILURE(expect_datagram(frame, form, out[0]));
    } else if (!out.empty() || grew(SL_COLL_BAD_TOKEN)) {
      EXPECT_EQ(run.value, XDP_PASS) << "user space answers";
    } else {
      EXPECT_EQ(run.value, XDP_DROP) << "magic " << coll::parse(packet)->magic << ", flags " << int{coll::parse(packet)->flags};
    }
  }
  // The kernel sees, or has seen, this one.
  void corrupt(const Bytes& packet) {
    if (const auto header = coll::parse(packet)) may_be_lost_.insert(header->position() - 2 * job_.config().job.window);
  }

 private:
  std::array<std::uint64_t, SL_COLL_COUNTER_COUNT> counts() const {
    std::array<std::uint64_t, SL_COLL_COUNTER_COUNT> counts{};
    for (std::size_t i = 0; i < counts.size(); i++) counts[i] = model_.counter(static_cast<sl_coll_counter>(i));
    return counts;
  }

  const Kernel& kernel_;
  const Job& job_;
  Aggregator model_;
  std::array<std::uint64_t, 4 * SL_COLL_WINDOW_MAX> complete_{};  // by position; + 1
  std::uint64_t complete_below_ = 0, lost_ = 0;
  std::set<std::uint64_t> may_be_lost_;
};

Bytes changed(ByteSpan packet, const std::function<void(Header&)>& change) {
  Header header = *coll::parse(packet);
  change(header);
  return coll::encode(header, coll::payload_of(packet));
}

// One packet of what may arrive: mostly what members send, sometimes with one fault.
void feed_one(Random& random, const Job& job, Differential& both) {
  const Form form{.v6 = job.v6(), .vlan = random.chance(0.3)};
  const auto key = static_cast<std::uint32_t>(random.below(job.members()));
  Address from = job.address(key);
  Bytes packet = job.packet(key, job.some_position(random, both.complete_below()));
  // Packets of a job that has failed pass unread: user space sees what is wrong with them.
  const double fault = both.failed() ? 100 : random.unit() * 100;
  if (fault < 2)
    packet = damaged(random, std::move(packet), packet.size() > sizeof(sl_coll_header) ? sizeof(sl_coll_header) : 32);
  else if (fault < 2.5)
    packet[8 + random.below(4)] ^= 1;  // seq
  else if (fault < 3)
    from.ip[15] ^= 1;
  else if (fault < 3.5)
    from.port ^= 1;
  else if (fault < 4)
    packet = changed(packet, [&](Header& h) { h.token ^= std::uint64_t{1} << random.below(64); });
  else if (fault < 4.5)
    packet = changed(packet, [](Header& h) { h.version++; });
  else if (fault < 5)
    packet = changed(packet, [](Header& h) { h.flags |= SL_COLL_RESULT; });
  else if (fault < 5.5)
    packet = changed(packet, [&](Header& h) { h.key = job.members() + static_cast<std::uint32_t>(random.below(100)); });
  else if (fault < 6)
    packet = changed(packet, [](Header& h) { h.epoch ^= 1 << 16; });
  else if (fault < 6.5)
    packet = changed(packet, [](Header& h) {
      h.magic = SL_COLL_MAGIC_CONTROL;
      h.op = SL_COLL_ALIVE;
    });
  else if (fault < 7)
    packet = coll::encode(*coll::parse(packet), Bytes(random.between(1, 3)));
  else if (fault < 7.02)
    packet = changed(packet, [&](Header& h) { random.chance(0.5) ? h.op = SL_COLL_COUNT : h.exponent++; });
  both.feed(form, from, packet);
}

TEST(CollAggregate, AgreesWithTheModel) {
  const std::uint64_t seed = environment("SLUICE_SEED", OsRandom().next()), packets = environment("SLUICE_PACKETS", 1'000'000);
  std::cout << "seed " << seed << ", " << packets << " packets\n";
  SeededRandom random(seed);
  std::uint64_t fed = 0, completed = 0, answered = 0, failed = 0;
  while (fed < packets) {
    const auto window = static_cast<std::uint16_t>(1 << random.below(8));
    const Kernel kernel(window);
    for (int jobs = 0; jobs < 12; jobs++) {
      const Job job(random, window, random.chance(0.5));
      kernel.start(job.config());
      const Counters before = kernel.counters();
      Differential both(kernel, job);
      std::uint64_t after_failure = 0;
      for (std::uint64_t i = 0; i < 4000 && after_failure < 20; i++, fed++) {
        ASSERT_NO_FATAL_FAILURE(feed_one(random, job, both)) << "seed " << seed << ", packet " << fed;
        ASSERT_FALSE(HasFailure()) << "seed " << seed << ", packet " << fed;
        after_failure += both.failed();
      }
      EXPECT_EQ(kernel.state() == SL_COLL_JOB_FAILED, both.failed());
      const Counters after = kernel.counters();
      for (std::size_t i = 0; i < SL_COLL_COUNTER_COUNT; i++)
        if (i != SL_COLL_STATUS_SENT) {  // user space sends it
          EXPECT_EQ(after.of[i] - before.of[i], both.expected(static_cast<sl_coll_counter>(i))) << "counter " << i;
        }
      completed += both.expected(SL_COLL_COMPLETED);
      answered += both.expected(SL_COLL_ANSWERED);
      failed += both.failed();
      ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
  }
  std::cout << fed << " packets, " << completed << " results, " << answered << " answers again, " << failed << " jobs failed\n";
  // A test that only ever saw refusals would agree too.
  EXPECT_GT(completed, packets / 50);
  EXPECT_GT(answered, packets / 200);
  EXPECT_GT(failed, 0U);
}

// Damage anywhere behind the UDP header, so that any check may be the one that sees it: no number changes, nothing is answered.
TEST(CollAggregate, CorruptPacketsChangeNothing) {
  const std::uint64_t seed = environment("SLUICE_SEED", OsRandom().next());
  std::cout << "seed " << seed << "\n";
  SeededRandom random(seed);
  const std::uint16_t window = 8;
  const Kernel kernel(window);
  for (int jobs = 0; jobs < 5; jobs++) {
    const Job job(random, window, random.chance(0.5));
    kernel.start(job.config());
    Differential both(kernel, job);
    for (int i = 0; i < 4000; i++) {
      const Form form{.v6 = job.v6(), .vlan = false};
      const auto key = static_cast<std::uint32_t>(random.below(job.members()));
      const Bytes packet = job.packet(key, job.some_position(random, both.complete_below()));
      const Bytes bad = damaged(random, packet, 0);
      if (bad != packet) {
        both.corrupt(bad);
        const auto run = kernel.run(frame_of(form, job.address(key), ours(form.v6), bad));
        ASSERT_THAT(run.value, testing::AnyOf(XDP_PASS, XDP_DROP)) << "seed " << seed;
      }
      ASSERT_NO_FATAL_FAILURE(both.feed(form, job.address(key), packet)) << "seed " << seed;
      ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
    EXPECT_EQ(kernel.state(), SL_COLL_JOB_RUNS);
  }
}

TEST(CollAggregate, LeavesWhatIsNotItsOwnToTheHost) {
  SeededRandom random(1);
  const Kernel kernel(4);
  const Job job(random, 4, false);
  kernel.start(job.config());
  const Form form;
  const Bytes good = frame_of(form, job.address(0), ours(false), job.packet(0, 0));
  const auto passes = [&](const char* what, const std::function<void(Bytes&)>& change) {
    Bytes frame = good;
    change(frame);
    const auto run = kernel.run(frame);
    EXPECT_EQ(run.value, XDP_PASS) << what;
    EXPECT_EQ(bytes_of_run(run), frame) << what;
  };
  const Counters before = kernel.counters();
  passes("ARP", [](Bytes& f) { put16(f, 12, 0x0806); });
  passes("IPv4 options", [](Bytes& f) { f[14] = 0x46; });
  passes("a fragment", [](Bytes& f) { put16(f, 20, 0x2000); });
  passes("the end of a fragmented datagram", [](Bytes& f) { put16(f, 20, 185); });
  passes("TCP", [](Bytes& f) { f[23] = 6; });
  passes("another port", [](Bytes& f) { put16(f, 36, kPort + 1); });
  passes("another magic", [](Bytes& f) { f[42] ^= 1; });
  passes("a broadcast packet", [](Bytes& f) { f[45] = 'B'; });
  passes("too short for a header", [](Bytes& f) { f.resize(85); });
  passes("an IPv4 header alone", [](Bytes& f) { f.resize(34); });
  const Counters after = kernel.counters();
  EXPECT_EQ(after.of[SL_COLL_RECEIVED], before.of[SL_COLL_RECEIVED]);
  EXPECT_EQ(kernel.run(good).value, job.members() == 1 ? XDP_REDIRECT : XDP_DROP);
}

TEST(CollAggregate, KeepsItsVerifierBudget) {
  const Kernel kernel(1);
  std::cout << "sl_coll_aggregate: " << kernel.verified_insns() << " instructions verified\n";
  EXPECT_LT(kernel.verified_insns(), kVerifierBudget);
}

}  // namespace
}  // namespace sluice::test
