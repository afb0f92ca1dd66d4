// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The part of an aggregator (docs/protocol.md) that is not slots: whose packets are taken, who has joined, lives and leaves,
// and how a job fails. Where the slots are, in this process or in the kernel, is a derived class's business. No I/O, no clock,
// no threads.
#pragma once

#include <array>
#include <cstdint>
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

class Coordinator {
 public:
  static Status check(const AggregatorConfig& config);
  virtual ~Coordinator() = default;

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
  explicit Coordinator(AggregatorConfig config);  // check() must have passed

  // A contribution of a member, of this incarnation.
  virtual void contribute(const Header& header, ByteSpan payload, Outbox& out) = 0;
  // An entry is incomplete for want of this member.
  virtual bool missed(std::uint64_t bit) const = 0;
  // A decision that keeps numbers right. Tests break it to show that their judge sees it.
  virtual bool trusts(ByteSpan packet) const { return intact(packet); }

  bool complete(const sl_coll_entry& entry) const { return entry.bitmap == all_; }
  bool fits(const Header& header, ByteSpan payload);  // false: malformed, and counted
  // The job fails if this differs from what the entry's first contributor said, or, where there is none, from the job.
  bool mismatched(const sl_coll_entry* entry, const Header& header, ByteSpan payload, Outbox& out);
  void fail_left(std::uint64_t keys, Outbox& out);
  void send_status(std::uint32_t key, sl_coll_control kind, std::uint64_t position, std::uint64_t bitmap, Outbox& out) const;
  Header header_to(std::uint32_t key) const;
  void count(sl_coll_counter index) { counters_[index]++; }

  AggregatorConfig config_;
  std::uint64_t all_;
  std::uint64_t joined_ = 0, confirmed_ = 0, fallback_ = 0, left_ = 0;
  std::array<std::uint64_t, SL_COLL_COUNTER_COUNT> counters_{};

 private:
  void control(const Address& from, const Header& header, ByteSpan payload, std::uint64_t now_ns, Outbox& out);
  void join(const Address& from, const Header& header, const sl_coll_join& join, std::uint64_t now_ns, Outbox& out);
  void fail(sl_coll_control kind, const sl_coll_failure& failure, Outbox& out);
  void send_failure(std::uint32_t key, Outbox& out) const;
  void send_control(std::uint32_t key, sl_coll_control kind, std::uint64_t position, ByteSpan payload, Outbox& out) const;

  std::array<std::uint64_t, SL_COLL_MEMBERS_MAX> instances_{};
  sl_coll_control failure_kind_ = SL_COLL_JOB_GONE;
  sl_coll_failure failure_{};
};

}  // namespace sluice::coll
