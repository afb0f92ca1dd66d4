// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What a path does to ECN: from what a probe observed (ecn_probe.h) to typed findings and one verdict. Pure.
//
// A finding is what the observations prove and no more; what cannot be told from one end is kUnknown, with the reason. So it is
// with ECT(0) on its last hop (a peer echoes CE and nothing else), and with marks on the way back when the peer sends no data.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "net/probe_packet.h"

namespace sluice::net {

// ---- observations ----

// The answer to a SYN, its repetitions included.
enum class SynAnswer : std::uint8_t {
  kNotAsked,
  kSilence,
  kSynAck,     // without ECN
  kSynAckEcn,  // ECE alone: ECN is negotiated
  kReflected,  // ECE and CWR, as sent: not an answer to ECN (RFC 3168, 6.1.1)
  kReset,
  kUnreachable,  // an ICMP error
};

// One probe with a small hop limit, as the ICMP error of the hop where it ended quotes it.
struct HopSeen {
  std::uint8_t hop = 0;
  std::uint8_t protocol = 0;  // IPPROTO_TCP, IPPROTO_UDP
  Ecn sent = Ecn::kNotEct;
  Ecn seen = Ecn::kNotEct;
  std::uint8_t dscp = 0;  // seen
  IpAddress router;       // who sent the error
  bool at_destination = false;
};

struct EcnObservations {
  SynAnswer ecn_syn = SynAnswer::kNotAsked;    // SYN with ECE and CWR
  SynAnswer plain_syn = SynAnswer::kNotAsked;  // asked only where the first left a doubt
  std::string unreachable;                     // "host unreachable, says 10.0.0.1"
  std::uint32_t rtt_us = 0;                    // of the handshake; 0 = none
  std::uint8_t dscp = 0;                       // sent

  // Data beyond a hole in the sequence, which the peer acknowledges selectively and no application ever sees. By codepoint.
  bool sack = false;
  struct Delivery {
    std::uint32_t sent = 0, arrived = 0;
  };
  std::array<Delivery, 4> delivery = {};
  // Of the arrived CE segments: those whose acknowledgement carried ECE, when the one before (after our CWR) did not.
  std::uint32_t ce_judged = 0, ce_echoed = 0;
  bool ece_unasked = false;  // ECE came although nothing of ours was marked: congestion on the path, or a peer that always does

  // Of the peer's data segments, by codepoint as they arrived.
  std::array<std::uint32_t, 4> inbound = {};

  std::vector<HopSeen> hops;
  std::uint8_t hops_asked = 0;    // hop limits tried
  std::uint8_t hops_to_peer = 0;  // 0 = not found out
  bool out_of_time = false;
  std::uint32_t packets_sent = 0;
};

// ---- findings ----

enum class Fate : std::uint8_t { kUnknown, kIntact, kChanged, kCleared, kDropped, kNotEchoed };
std::string_view fate_name(Fate fate);  // "unknown", "intact", "changed", "cleared", "dropped", "not-echoed"

struct Finding {
  Fate fate = Fate::kUnknown;
  std::uint8_t hop = 0;         // first hop that saw the change; kIntact: last hop that saw it intact; 0 = not seen at a hop
  bool at_destination = false;  // seen at the destination itself
  std::string text;             // the evidence, or why it is unknown
};

enum class EcnVerdict : std::uint8_t {
  kUnknown,
  kUsable,       // negotiated, and marks come back
  kRefused,      // the peer accepts connections without ECN (or the flags are removed on the way)
  kReflected,    // the peer returns the flags it was sent
  kSynDropped,   // SYNs that ask for ECN are lost, others are not
  kSynReset,     // ... are reset
  kEctDropped,   // packets with ECT(0) or CE are lost, others are not
  kEctCleared,   // ECT(0) is removed: routers will drop where they should mark
  kCeCleared,    // CE is removed, or not echoed
  kClosed,       // nothing listens
  kSilent,       // no answer to any SYN
  kUnreachable,  // an ICMP error says so
};
std::string_view verdict_name(EcnVerdict verdict);    // "usable", "syn-dropped", ...
EcnVerdict verdict_from_name(std::string_view name);  // kUnknown for an unknown name

struct EcnFindings {
  EcnVerdict verdict = EcnVerdict::kUnknown;
  std::string summary;           // the verdict in one sentence
  Finding ect0, ect1, ce, dscp;  // outward
  Finding inbound;               // ECT of the peer's data
};

EcnFindings judge(const EcnObservations& seen);

}  // namespace sluice::net
