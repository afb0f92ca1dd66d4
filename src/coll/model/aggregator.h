// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The aggregator of one job (docs/protocol.md): packets and time in, packets out. No I/O, no clock, no threads. The reference
// for the BPF program, the aggregator of last resort, and both ends of a test.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "coll/model/packet.h"

namespace sluice::coll {

struct AggregatorConfig {
  sl_coll_job job{};
  std::vector<sl_coll_member> members;  // by KEY; job.contributors of them. Weights count, heard_ns does not
  std::uint64_t dead_after_ns = 2'000'000'000;
};

Address address_of(const sl_coll_member& member);

class Aggregator {
 public:
  static Status check(const AggregatorConfig& config);
  explicit Aggregator(AggregatorConfig config);  // check() must have passed
  virtual ~Aggregator() = default;

  void receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out);
  // Looks for silent members. To be called at next_tick_ns(), or later.
  void tick(std::uint64_t now_ns, Outbox& out);
  std::uint64_t next_tick_ns() const;
  // The job is destroyed: all members are told, and whoever asks later.
  void destroy(Outbox& out);

  bool failed() const { return config_.job.state != SL_COLL_JOB_RUNS; }
  std::uint64_t joined() const { return joined_; }
  std::uint64_t fallback() const { return fallback_; }
  std::uint64_t counter(sl_coll_counter index) const { return counters_[index]; }

 protected:
  // The decisions that keep numbers right. Tests break them one by one to show that their judge sees it.
  virtual bool holds(const sl_coll_entry& entry, std::uint64_t position) const { return entry.position == position + 1; }
  virtual bool has(const sl_coll_entry& entry, std::uint64_t bit) const { return entry.bitmap & bit; }
  virtual bool may_open(std::uint64_t position) const;
  virtual std::size_t answer_index(std::uint64_t position) const { return index(position); }
  virtual bool trusts(ByteSpan packet) const { return intact(packet); }

  std::size_t index(std::uint64_t position) const { return position & (2 * config_.job.window - 1); }
  const sl_coll_entry& entry(std::size_t at) const { return slots_[at].head; }
  bool complete(const sl_coll_entry& entry) const { return entry.bitmap == all_; }

 private:
  struct Slot {
    sl_coll_entry head{};
    std::vector<std::uint32_t> words;
  };

  void contribute(const Header& header, ByteSpan payload, Outbox& out);
  void control(const Address& from, const Header& header, ByteSpan payload, std::uint64_t now_ns, Outbox& out);
  void join(const Address& from, const Header& header, const sl_coll_join& join, std::uint64_t now_ns, Outbox& out);
  void combine(Slot& slot, const Header& header, ByteSpan payload, bool first) const;
  void mismatch(const sl_coll_shape& a, std::uint8_t key_a, const sl_coll_shape& b, std::uint8_t key_b, Outbox& out);
  void fail(sl_coll_control kind, const sl_coll_failure& failure, Outbox& out);
  void send_failure(std::uint32_t key, Outbox& out) const;
  void send_result(const Slot& slot, const Header& asked, std::uint32_t key, bool values, Outbox& out) const;
  void send_control(std::uint32_t key, sl_coll_control kind, std::uint64_t position, ByteSpan payload, Outbox& out) const;
  void send_status(std::uint32_t key, sl_coll_control kind, std::uint64_t position, std::uint64_t bitmap, Outbox& out) const;
  Header header_to(std::uint32_t key) const;
  void count(sl_coll_counter index) { counters_[index]++; }

  AggregatorConfig config_;
  std::uint64_t all_;
  std::uint64_t joined_ = 0, confirmed_ = 0, fallback_ = 0, left_ = 0;
  std::array<std::uint64_t, SL_COLL_MEMBERS_MAX> instances_{};
  std::vector<Slot> slots_;
  sl_coll_control failure_kind_ = SL_COLL_JOB_GONE;
  sl_coll_failure failure_{};
  std::array<std::uint64_t, SL_COLL_COUNTER_COUNT> counters_{};
};

}  // namespace sluice::coll
