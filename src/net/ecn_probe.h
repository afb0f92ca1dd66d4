// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The prober: what can be learned of a path's ECN from one end, with an ordinary TCP server at the other.
//
//   1. Handshake. A SYN with ECE and CWR; one without where the first is not accepted, so that loss of ECN is told from loss.
//   2. Delivery. On the connection, single octets beyond a hole in the sequence, without ECT and with each codepoint. The peer
//      acknowledges them selectively, so each is accounted for; its application never gets a byte.
//   3. Echo. CE on such a segment: ECE in the acknowledgement, gone again after CWR, proves that marks survive.
//   4. Path. Segments of the connection, and UDP datagrams, with growing hop limits: each hop that answers quotes what reached
//   it.
//   5. FIN, so that the peer sees an ordinary end.
//
// Bounds: at most 400 packets of 150 octets, 16 at once, each wait at most a second, the whole at most the timeout; memory
// is a few kilobytes. Where the time runs out, what is known so far is judged, and the rest is unknown.
//
// Everything outside is behind Wire: raw sockets (raw_wire.h), or in tests a path of their own making in virtual time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/ecn_path.h"
#include "net/probe_packet.h"

namespace sluice::net {

// What arrived: the payload of an IP packet.
struct Arrival {
  IpAddress source;
  IpMarks marks;
  std::uint8_t protocol = 0;  // IPPROTO_TCP, IPPROTO_ICMP, IPPROTO_ICMPV6
  std::vector<std::uint8_t> payload;
};

class Wire {
 public:
  virtual ~Wire() = default;
  virtual const IpAddress& source() const = 0;
  // Two local TCP ports that are the prober's alone: the kernel answers nothing that comes to them.
  virtual std::uint16_t port(unsigned which) const = 0;
  virtual Status send(Bytes packet) = 0;
  // The next arrival; nullopt at the deadline.
  virtual Result<std::optional<Arrival>> receive(std::uint64_t deadline_ns) = 0;
  virtual std::uint64_t now_ns() = 0;  // monotonic
};

struct EcnProbeOptions {
  IpAddress destination;
  std::uint16_t port = 0;
  std::uint8_t dscp = 0;  // of every probe
  std::uint32_t isn = 0;  // initial sequence number: random, so that nobody off the path can answer
  std::uint32_t timeout_ms = 30'000;
};

inline constexpr unsigned kEcnProbeSteps = 4;  // handshake, delivery, echo, path

struct EcnProbeControl {
  std::function<void(unsigned, const std::string&)> progress = [](unsigned, const std::string&) {};  // step, what it does
  std::function<bool()> stop = [] { return false; };  // asked ten times a second: true ends the probe with kUnavailable
};

// An error is one of this host (a send that fails), never of the path.
Result<EcnObservations> probe_ecn(Wire& wire, const EcnProbeOptions& options, const EcnProbeControl& control);

}  // namespace sluice::net
