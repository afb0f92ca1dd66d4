// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The aggregator of one job whose slots are in the kernel: bundle `aggregate` on the interfaces towards the members, and the
// answers that it leaves to user space. Driven like the model's, by what arrives at the job's UDP port and by time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bpfio/object.h"
#include "coll/kernel/interface.h"
#include "coll/model/coordinator.h"

namespace sluice::coll {

struct KernelAggregatorConfig {
  AggregatorConfig aggregator;                         // job.port: of the UDP socket that it is driven from
  std::vector<std::shared_ptr<Interface>> interfaces;  // by KEY: towards the member
  std::string object;                                  // path of aggregate.bpf.o
};

// Nothing outlives it.
class KernelAggregator : private Coordinator {
 public:
  // All or nothing. Called, like the constructor of the UDP socket, in the namespace of the interfaces.
  static Result<std::unique_ptr<KernelAggregator>> start(const KernelAggregatorConfig& config);

  void receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out);
  // To be called at next_tick_ns(), or later.
  void tick(std::uint64_t now_ns, Outbox& out);
  std::uint64_t next_tick_ns() const;
  void destroy(Outbox& out);

  using Coordinator::failed;
  using Coordinator::fallback;
  using Coordinator::joined;
  // Of the program and of user space: a packet is counted once.
  Result<std::uint64_t> counter(sl_coll_counter index) const;

 private:
  KernelAggregator(const KernelAggregatorConfig& config, bpfio::MapFd slots, bpfio::MapFd counters, bpfio::MapMemory job,
                   bpfio::MapMemory members);
  void contribute(const Header& header, ByteSpan payload, Outbox& out) override;
  bool missed(std::uint64_t bit) const override;
  sl_coll_entry entry(std::uint32_t index) const;
  void publish_state();

  bpfio::MapFd slots_, counters_map_;
  bpfio::MapMemory job_, members_;
  std::vector<Interface::Claim> claims_;
  std::uint64_t looked_ns_ = 0;
};

}  // namespace sluice::coll
