// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The aggregator of one job (docs/protocol.md) with slots of its own: the reference for the BPF program, the aggregator of last
// resort, and both ends of a test.
#pragma once

#include "coll/model/coordinator.h"

namespace sluice::coll {

class Aggregator : public Coordinator {
 public:
  explicit Aggregator(AggregatorConfig config);  // check() must have passed

 protected:
  // The decisions that keep numbers right. Tests break them one by one to show that their judge sees it.
  virtual bool holds(const sl_coll_entry& entry, std::uint64_t position) const { return entry.position == position + 1; }
  virtual bool has(const sl_coll_entry& entry, std::uint64_t bit) const { return entry.bitmap & bit; }
  virtual bool may_open(std::uint64_t position) const;
  virtual std::size_t answer_index(std::uint64_t position) const { return index(position); }

  std::size_t index(std::uint64_t position) const { return position & (2 * config_.job.window - 1); }
  const sl_coll_entry& entry(std::size_t at) const { return slots_[at].head; }

 private:
  struct Slot {
    sl_coll_entry head{};
    std::vector<std::uint32_t> words;
  };

  void contribute(const Header& header, ByteSpan payload, Outbox& out) override;
  bool missed(std::uint64_t bit) const override;
  void combine(Slot& slot, const Header& header, ByteSpan payload, bool first) const;
  void send_result(const Slot& slot, const Header& asked, std::uint32_t key, bool values, Outbox& out) const;

  std::vector<Slot> slots_;
};

}  // namespace sluice::coll
