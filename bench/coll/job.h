// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Jobs of `bench coll`, both ends in the kernel: one stream for each aggregator of the wires, vectors cut into as many parts.
#pragma once

#include <memory>
#include <vector>

#include "coll/kernel/aggregator.h"
#include "coll/kernel/member.h"
#include "coll/udp.h"
#include "coll/wires.h"

namespace sluice::bench {

struct JobSpec {
  std::uint16_t window = 64;
  std::uint16_t words = SL_COLL_WORDS_DEFAULT;
  std::size_t carried_bytes = 0;  // of a stream
};

// What one member has of a job.
struct JobMember {
  std::vector<coll::UdpPort> ports;  // by stream
  std::vector<std::unique_ptr<coll::KernelMember>> streams;

  Status join();
  // The first `bytes` of the streams' registered memories, in equal parts.
  std::vector<std::span<std::uint8_t>> memory(std::size_t bytes) const;
  // A sum in place; by stream.
  Status all_reduce(sl_coll_dtype dtype, const std::vector<std::span<std::uint8_t>>& memory);
  Status leave();

 private:
  Status until_not(coll::Member::State state);
};

class Job {
 public:
  static Result<std::unique_ptr<Job>> start(const Wires& wires, const JobSpec& spec);
  // Answers what the aggregators' programs leave to user space, until stop().
  Status serve();
  void stop() { stopped_ = true; }
  JobMember& member(unsigned member) { return members_[member]; }
  Result<std::uint64_t> counter(sl_coll_counter index) const;
  Result<std::uint64_t> counter(sl_coll_member_counter index) const;

 private:
  Job() = default;
  std::atomic<bool> stopped_ = false;
  std::vector<coll::UdpPort> ports_;  // by aggregator
  std::vector<std::unique_ptr<coll::KernelAggregator>> aggregators_;
  std::vector<JobMember> members_;
};

}  // namespace sluice::bench
