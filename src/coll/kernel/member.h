// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A member whose chunks are carried in the kernel: bundle `member` on the interface towards the aggregator takes results and
// sends what comes next; this lays out calls, sends the first window and what was lost, and does all else as the model does.
// Driven like it; besides, wake_fd() says when a call's chunks are done.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bpfio/object.h"
#include "bpfio/ring_buffer.h"
#include "coll/kernel/interface.h"
#include "coll/model/member.h"

namespace sluice::coll {

struct KernelMemberConfig {
  MemberConfig member;
  std::uint16_t port = 0;                // of the UDP socket that it is driven from
  std::shared_ptr<Interface> interface;  // towards the aggregator
  std::size_t carried_bytes = 0;  // of numbers that are carried at once; longer calls are carried piece by piece. 0: 64 MiB
  std::string object;             // path of member.bpf.o
};

// Nothing outlives it.
class KernelMember : public Member {
 public:
  // All or nothing.
  static Result<std::unique_ptr<KernelMember>> start(KernelMemberConfig config);

  void receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out) override;
  void tick(std::uint64_t now_ns, Outbox& out) override;
  std::uint64_t next_tick_ns() const override;
  int wake_fd() const override { return ended_.fd(); }
  // Memory that the program itself reads and writes, as long as what is carried at once. A call that adds or compares integers
  // in full chunks of 352 or 832 words, in place and from its beginning on, copies nothing; no other call may be made in it. To
  // be left alone during calls.
  std::span<std::uint8_t> values() {
    return {reinterpret_cast<std::uint8_t*>(maps_.values.bytes().data()), maps_.values.bytes().size()};
  }
  Result<std::uint64_t> counter(sl_coll_member_counter index) const;
  const bpfio::Program& program() const { return program_; }

 private:
  struct Maps {
    bpfio::MapMemory call, flights, chunks, values;
    bpfio::MapFd counters;
  };
  struct Sent {                  // what user space did about the flight in a slot
    std::uint64_t position = 0;  // + 1
    std::uint64_t due_ns = 0;
    unsigned tries = 0;
  };
  KernelMember(const KernelMemberConfig& config, std::size_t place, std::size_t capacity, Maps maps, bpfio::RingBuffer ended,
               bpfio::Program program, Interface::Claim claim);

  bool carry(std::uint64_t now_ns, Outbox& out) override;
  bool outstanding(std::uint64_t position) const override;
  void begin_piece(std::uint64_t now_ns, Outbox& out);
  void end_piece();
  void look(std::uint64_t now_ns, Outbox& out);
  void contribute(std::size_t index, unsigned tries, Outbox& out);
  void stop_if_over();

  std::span<std::uint8_t> values_of(std::size_t index) { return values().subspan(index * place_, place_); }
  Status check_memory(const Call& call) const override;
  bool contiguous(const Call& call) const;  // its chunks lie in the maps as they do in the caller's memory
  sl_coll_call& call_in_kernel() { return *reinterpret_cast<sl_coll_call*>(maps_.call.bytes().data()); }
  sl_coll_chunk& about(std::size_t index) { return reinterpret_cast<sl_coll_chunk*>(maps_.chunks.bytes().data())[index]; }
  std::uint64_t flight(std::uint64_t slot) const { return maps_.flights.load_u64(slot * sizeof(sl_coll_flight)); }

  std::uint16_t port_;
  std::size_t place_;     // bytes of a chunk in the maps
  std::size_t capacity_;  // chunks
  Maps maps_;
  bpfio::RingBuffer ended_;
  bpfio::Program program_;
  Interface::Claim claim_;
  std::vector<Sent> sent_;             // by slot
  std::size_t piece_ = 0, count_ = 0;  // chunks under way: from piece_ on; 0 = none
  std::uint64_t position_ = 0;         // of the first
  std::uint64_t look_due_ns_ = kNever;
};

}  // namespace sluice::coll
