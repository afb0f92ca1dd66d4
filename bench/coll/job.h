// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Jobs of `bench coll`, both ends in the kernel: one stream for each aggregator of the wires, vectors cut into as many parts.
#pragma once

#include <memory>
#include <vector>

#include "coll/kernel/aggregator.h"
#include "coll/kernel/member.h"
#include "coll/loop.h"
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
  // Where a vector has to lie: integers where the kernel works, in equal parts.
  Parts memory(const Calls& calls);
  // A sum in place of what lies there.
  Status all_reduce(const Calls& calls);
  Status leave();

 private:
  // On every stream; then goes on until none is in that state.
  Status act(const std::function<Status(std::size_t stream, coll::Outbox&)>& begin, coll::Member::State until_not_in);
  Status until_not(coll::Member::State state);
  std::vector<std::vector<std::uint8_t>> own_;  // of floats, by stream
};

class Job {
 public:
  static Result<std::unique_ptr<Job>> start(const Wires& wires, const JobSpec& spec);
  // Answers what the aggregators' programs leave to user space, until stop().
  Status serve();
  void stop() { stopped_ = true; }
  JobMember& member(unsigned member) { return members_[member]; }

 private:
  Job() = default;
  std::atomic<bool> stopped_ = false;
  std::vector<coll::UdpPort> ports_;  // by aggregator
  std::vector<std::unique_ptr<coll::KernelAggregator>> aggregators_;
  std::vector<JobMember> members_;
};

}  // namespace sluice::bench
