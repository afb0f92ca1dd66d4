// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A member of one job, on one stream (docs/protocol.md): calls, packets and time in, packets and outcomes out. No I/O, no
// clock, no threads. The fallback on hosts without eBPF, and the reference for the kernel's member.
//
//   member.join(now, out);                          // then receive() and tick() until state() is kIdle
//   member.begin({.op = SL_COLL_SUM, ...}, now, out);
//   member.receive(from, packet, now, out);         // for each packet
//   member.tick(now, out);                          // at next_tick_ns(), or later
//   if (auto outcome = member.take_outcome()) ...
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "coll/model/limits.h"
#include "coll/model/packet.h"

namespace sluice::coll {

struct MemberConfig {
  std::uint64_t token = 0;
  std::uint64_t weight_sum = 0;  // of the job
  std::uint64_t instance = 0;    // random, of this process
  std::uint16_t job = 0;
  std::uint16_t members = 0;
  std::uint16_t window = 0;
  std::uint16_t words = SL_COLL_WORDS_DEFAULT;
  std::uint8_t key = 0;
  sl_coll_mode mode = SL_COLL_FALLBACK;
  Address aggregator;
  std::uint64_t rto_initial_ns = 20'000'000;
  std::uint64_t rto_min_ns = 1'000'000;
  std::uint64_t rto_max_ns = 1'000'000'000;
  std::uint64_t heartbeat_ns = 500'000'000;
  std::uint64_t join_timeout_ns = 30'000'000'000;
  std::uint64_t leave_timeout_ns = 2'000'000'000;
};

struct Call {
  sl_coll_op op = SL_COLL_SUM;
  sl_coll_dtype dtype = SL_COLL_NONE;
  std::span<const std::uint8_t> input = {};  // elements of dtype; both spans live until the outcome
  std::span<std::uint8_t> output = {};       // as long as input; may be the same memory
  // Elements of the result that this member wants, in whole chunks; the others of output are left alone. None: not the root.
  std::size_t wanted_begin = 0;
  std::size_t wanted_end = SIZE_MAX;
  float fixed_scale = 0;  // 0 = block floating point
  std::uint64_t timeout_ns = 30'000'000'000;
};

struct MemberStats {
  std::uint64_t sent = 0, retransmitted = 0, overtaken = 0, results = 0, unexpected = 0, corrupt = 0, foreign = 0;
};

class Member {
 public:
  enum class State { kNew, kJoining, kIdle, kCalling, kFailed, kLeaving, kLeft };

  static Status check(const MemberConfig& config);
  explicit Member(const MemberConfig& config);  // check() must have passed
  virtual ~Member() = default;

  void join(std::uint64_t now_ns, Outbox& out);
  // When idle. Goes on until the aggregator knows, or leave_timeout_ns have passed: then kLeft.
  void leave(std::uint64_t now_ns, Outbox& out);
  // One call at a time. An error changes nothing: the others may still make the call.
  Status begin(const Call& call, std::uint64_t now_ns, Outbox& out);
  virtual void receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out);
  virtual void tick(std::uint64_t now_ns, Outbox& out);
  virtual std::uint64_t next_tick_ns() const;
  // Readable when tick() has something to do besides; -1 = never.
  virtual int wake_fd() const { return -1; }

  State state() const { return state_; }
  // Of the call that ended, or why joining failed; once. After kFailed nothing works any more but a new Member.
  std::optional<Status> take_outcome();
  const Error& failure() const { return failure_; }  // when kFailed
  std::uint64_t joined() const { return joined_; }
  std::uint64_t fallback() const { return fallback_; }
  std::uint64_t calls_completed() const { return calls_completed_; }
  std::uint16_t incarnation() const { return incarnation_; }
  const RttEstimator& rtt() const { return rtt_; }
  const MemberStats& stats() const { return stats_; }

 protected:
  // Tests break these to show that their judge sees it; see Aggregator.
  virtual bool awaits(std::uint64_t awaited, std::uint64_t position) const { return awaited == position; }
  virtual bool trusts(ByteSpan packet) const { return intact(packet); }

  // The chunks of a call may be carried by somebody else than packets through this class, who gives them positions from
  // next_position_ on and says carried() when all results are there.
  // Whether it can work in the memory of a call; an error changes nothing.
  virtual Status check_memory(const Call& /*call*/) const { return {}; }
  virtual bool carry(std::uint64_t /*now_ns*/, Outbox& /*out*/) { return false; }
  void carried(std::uint64_t now_ns, Outbox& out) { end_phase(now_ns, out); }
  virtual bool outstanding(std::uint64_t position) const;

  struct Chunk {
    int own_exponent = SL_COLL_EXPONENT_NONE;
    int agreed_exponent = SL_COLL_EXPONENT_NONE;
    std::uint8_t result_flags = 0;
  };
  // Of the call's vector.
  std::size_t elements() const { return element_ ? call_.input.size() / element_ : 0; }
  std::size_t first_of(std::size_t chunk) const { return chunk * chunk_elements_; }
  std::size_t count_of(std::size_t chunk) const { return std::min(chunk_elements_, elements() - first_of(chunk)); }
  std::size_t element() const { return element_; }
  bool wants(std::size_t chunk) const;
  static bool plain(const Call& call);  // the caller's numbers travel as they are
  bool scaled() const;                  // block floating point
  Header call_header(std::uint64_t position) const;
  std::uint8_t flags_of(std::size_t chunk) const;  // but for what its numbers say
  void fill_chunk(std::size_t chunk, Header& header, Bytes& payload);
  void store_chunk(std::size_t chunk, ByteSpan payload);

  static constexpr unsigned kStatusFromTry = 4;  // the third retransmission asks who is missing

  MemberConfig config_;
  RttEstimator rtt_;
  MemberStats stats_;
  std::uint64_t next_position_ = 0;
  Call call_;
  std::size_t chunk_elements_ = 0;
  std::vector<Chunk> chunks_;
  bool overflow_ = false;

 private:
  enum class Phase { kExponents, kChunks, kSpecials };
  struct Flight {  // a contribution whose result is missing
    std::uint64_t position = 0;
    Phase phase = Phase::kChunks;
    std::size_t chunk = 0;
    Header header;
    Bytes payload;
    std::uint64_t sent_ns = 0, due_ns = 0, order = 0;
    unsigned tries = 0, overtaken = 0;
    bool hurried = false;
  };

  void enter(Phase phase);
  void pump(std::uint64_t now_ns, Outbox& out);
  void contribute(std::size_t item, std::uint64_t now_ns, Outbox& out);
  void send(Flight& flight, std::uint64_t now_ns, Outbox& out);
  void take_result(const Header& header, ByteSpan payload, std::uint64_t now_ns, Outbox& out);
  bool exponents_possible(std::size_t first_chunk, ByteSpan payload) const;
  void store_special(std::size_t chunk, ByteSpan payload);
  void end_phase(std::uint64_t now_ns, Outbox& out);
  void take_control(const Header& header, ByteSpan payload, std::uint64_t now_ns);
  void take_accept(const Header& header, const sl_coll_accept& accept, std::uint64_t now_ns);
  std::uint64_t until_repeated(unsigned& tries) const;
  void send_control(sl_coll_control kind, ByteSpan payload, Outbox& out);
  void send_join(std::uint64_t now_ns, Outbox& out);
  void send_leave(std::uint64_t now_ns, Outbox& out);
  void end_leaving();
  void fail(Error error);
  void pass_deadline(Outbox& out);
  Header header() const;

  State state_ = State::kNew;
  Error failure_;
  std::optional<Status> outcome_;
  std::uint16_t incarnation_ = 0;
  std::uint64_t joined_ = 0, fallback_ = 0;
  std::uint64_t calls_completed_ = 0;
  std::uint64_t sends_ = 0;
  std::uint64_t heartbeat_due_ns_ = kNever, repeat_due_ns_ = kNever, deadline_ns_ = kNever;
  unsigned repeat_tries_ = 0, heartbeat_tries_ = 0;

  std::size_t element_ = 0;  // bytes of one in the caller's memory
  Phase phase_ = Phase::kChunks;
  bool carrying_ = false;  // the chunks of this call
  std::size_t next_item_ = 0, done_items_ = 0, items_ = 0;
  std::vector<std::size_t> flagged_;                           // chunks with a special result, in order
  std::map<std::size_t, std::vector<std::int32_t>> specials_;  // own counts: the input may be overwritten by then
  std::vector<std::optional<Flight>> flights_;                 // by slot
  std::uint64_t heard_ns_ = 0, began_ns_ = 0;                  // from the aggregator; the call
  std::optional<std::pair<std::uint64_t, std::uint64_t>>
      last_status_;  // position, bitmap: the last STATUS of the oldest flight
};

}  // namespace sluice::coll
