// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Both ends of a broadcast stream (docs/protocol.md, Broadcast): packets and time in, packets and messages out. No I/O, no
// clock, no threads. A packet with several bits in its MASK is one Datagram to kEveryone: whoever carries it makes the copies.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/result.h"
#include "coll/model/limits.h"
#include "coll/model/packet.h"

namespace sluice::coll {

struct BroadcastConfig {
  std::uint64_t token = 0;
  std::uint16_t job = 0;
  std::uint16_t members = 0;
  std::uint16_t incarnation = 0;
  std::uint16_t words = SL_COLL_WORDS_DEFAULT;
  std::uint8_t sender = 0;                           // its KEY
  std::uint16_t group = SL_COLL_GROUP_DEFAULT;       // 1 = per-packet mode
  std::uint32_t window = 2 * SL_COLL_GROUP_DEFAULT;  // packets; at least one group
  std::uint64_t rto_initial_ns = 20'000'000;
  std::uint64_t rto_min_ns = 1'000'000;
  std::uint64_t rto_max_ns = 1'000'000'000;
  std::uint64_t reorder_min_ns = 200'000;
  std::uint64_t reorder_max_ns = 20'000'000;
  std::uint64_t timeout_ns = 30'000'000'000;  // without an acknowledgement of something new
};

Status check(const BroadcastConfig& config);

// Stands for the destinations in the MASK of a broadcast packet.
inline const Address kEveryone{};

struct BroadcastStats {
  std::uint64_t sent = 0, retransmitted = 0, probes = 0, acks = 0, duplicates = 0, beyond_window = 0, foreign = 0, corrupt = 0;
};

class BroadcastSender {
 public:
  // receivers: bitmap of KEYs, 0 to 31; addresses by KEY, from which they acknowledge.
  BroadcastSender(const BroadcastConfig& config, std::uint32_t receivers, std::vector<Address> addresses);

  // Queues one message of elements of `dtype`; the bytes are copied.
  void send(std::uint8_t dtype, ByteSpan message, std::uint64_t now_ns, Outbox& out);
  void receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out);
  void tick(std::uint64_t now_ns, Outbox& out);
  std::uint64_t next_tick_ns() const;

  bool done() const { return packets_.empty() && queue_.empty(); }  // everybody has everything
  const std::optional<Error>& failure() const { return failure_; }  // names the silent receivers
  const BroadcastStats& stats() const { return stats_; }

 private:
  struct Packet {
    Header header;
    Bytes payload;
    std::uint32_t have = 0;     // receivers that acknowledged it
    std::uint32_t missing = 0;  // receivers that reported it missing since it was last sent
    std::uint64_t sent_ns = 0;
    unsigned tries = 0;
  };
  void pump(std::uint64_t now_ns, Outbox& out);
  void transmit(Packet& packet, std::uint32_t mask, bool ask, std::uint64_t now_ns, Outbox& out);
  void take_ack(std::uint8_t key, std::uint64_t next, const sl_coll_group_ack& ack, std::uint64_t now_ns);
  void arm(std::uint64_t now_ns);
  std::uint64_t limit() const;  // first position that may not be sent yet

  BroadcastConfig config_;
  std::uint32_t receivers_;
  std::vector<Address> addresses_;
  std::deque<Packet> packets_;  // sent, positions first_ on
  std::deque<Packet> queue_;    // not sent yet
  std::uint64_t first_ = 0, queued_ = 0;
  std::array<std::uint64_t, SL_COLL_DESTINATIONS_MAX> next_{};
  std::array<std::uint64_t, SL_COLL_DESTINATIONS_MAX> room_{};
  std::array<std::uint64_t, SL_COLL_DESTINATIONS_MAX> news_ns_{};  // when it last acknowledged something new, or had nothing to
  RttEstimator rtt_;
  unsigned probes_ = 0;  // in a row without news
  std::uint64_t repair_due_ns_ = kNever, probe_due_ns_ = kNever;
  std::optional<Error> failure_;
  BroadcastStats stats_;
};

class BroadcastReceiver {
 public:
  struct Message {
    std::uint8_t dtype = 0;
    Bytes bytes;
  };
  BroadcastReceiver(const BroadcastConfig& config, std::uint8_t key, const Address& sender);

  void receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out);
  void tick(std::uint64_t now_ns, Outbox& out);
  std::uint64_t next_tick_ns() const { return ack_due_ns_; }

  std::optional<Message> take();  // messages in the order in which they were sent
  std::size_t buffered() const { return held_.size(); }
  const BroadcastStats& stats() const { return stats_; }

 private:
  struct Held {
    Header header;
    Bytes payload;
  };
  std::uint64_t patience_ns() const;
  void deliver(const Held& packet);
  void acknowledge(std::uint64_t now_ns, Outbox& out);

  BroadcastConfig config_;
  std::uint8_t key_;
  Address sender_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, Held> held_;  // out of order, within the window
  Message partial_;
  std::deque<Message> messages_;
  std::uint64_t ack_due_ns_ = kNever, last_ack_ns_ = 0;
  bool acked_ = false;                   // last_ack_ns_ counts
  bool asked_ = false;                   // ACK_REQUEST came and was not answered
  std::optional<std::uint64_t> gap_ns_;  // since when there is a gap that was not reported
  std::uint64_t gap_average_ns_ = 0;
  BroadcastStats stats_;
};

}  // namespace sluice::coll
