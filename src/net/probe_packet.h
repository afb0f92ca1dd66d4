// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The packets of a path probe, byte by byte: IPv4 and IPv6 packets with any TOS byte and hop limit around a TCP segment or a
// UDP datagram, what a TCP peer answers, and the part of a packet that an ICMP error quotes. Pure.
//
// What is parsed came from the network: a length is believed only as far as bytes are there, and what does not add up is no
// packet. Checksums of received packets are not verified: the kernel has done so, or the sender left it to hardware.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::net {

using Bytes = std::span<const std::uint8_t>;

struct IpAddress {
  int family = 0;                           // AF_INET, AF_INET6
  std::array<std::uint8_t, 16> bytes = {};  // the first 4, or all
  std::string text() const;
  Bytes view() const;
  bool operator==(const IpAddress&) const = default;
};
// "10.0.0.1", "fd00::1". Refuses what cannot be the far end of a connection (multicast, unspecified), scoped addresses, and
// IPv4-mapped ones, which are IPv4 on the wire.
Result<IpAddress> parse_address(std::string_view text);

// RFC 3168; the values are those of the two bits.
enum class Ecn : std::uint8_t { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCe = 3 };
std::string_view ecn_name(Ecn ecn);  // "not-ECT", "ECT(0)", "ECT(1)", "CE"

// What a path may change in an IP header.
struct IpMarks {
  Ecn ecn = Ecn::kNotEct;
  std::uint8_t dscp = 0;        // 0..63
  std::uint8_t hop_limit = 64;  // IPv4: time to live
  bool operator==(const IpMarks&) const = default;
};

// TCP flags.
inline constexpr std::uint8_t kFin = 1, kSyn = 2, kRst = 4, kAck = 16, kEce = 64, kCwr = 128;

struct TcpHeader {
  std::uint16_t source_port = 0, destination_port = 0;
  std::uint32_t seq = 0, ack = 0;
  std::uint8_t flags = 0;
  std::uint16_t window = 0;
};

// A whole packet, IP header first. A SYN carries the options MSS and SACK-permitted; `payload_bytes` zeros follow.
std::vector<std::uint8_t> build_tcp(const IpAddress& from, const IpAddress& to, const IpMarks& marks, const TcpHeader& header,
                                    std::size_t payload_bytes);
std::vector<std::uint8_t> build_udp(const IpAddress& from, const IpAddress& to, const IpMarks& marks, std::uint16_t source_port,
                                    std::uint16_t destination_port, std::size_t payload_bytes);

// An IPv4 packet taken apart. Its options are skipped; a fragment is nullopt.
struct Ipv4Packet {
  IpMarks marks;
  IpAddress source, destination;
  std::uint8_t protocol = 0;
  Bytes payload;  // as much of it as there is
};
std::optional<Ipv4Packet> parse_ipv4(Bytes packet);

struct SackBlock {
  std::uint32_t begin = 0, end = 0;  // [begin, end)
};
struct TcpSegment {
  TcpHeader header;
  bool sack_permitted = false;
  std::vector<SackBlock> sacks;  // at most 4, as many as fit into the options
  std::size_t payload_bytes = 0;
};
std::optional<TcpSegment> parse_tcp(Bytes segment);

// An ICMP error about a TCP or UDP packet, and how that packet looked where the error was sent. ICMPv6 in the same words.
struct IcmpError {
  enum class Kind { kTimeExceeded, kPortUnreachable, kUnreachable } kind{};
  std::uint8_t code = 0;
  IpMarks marks;  // of the quoted packet
  IpAddress source, destination;
  std::uint8_t protocol = 0;  // IPPROTO_TCP, IPPROTO_UDP
  std::uint16_t source_port = 0, destination_port = 0;
  std::uint32_t seq = 0;         // TCP
  std::uint16_t udp_length = 0;  // UDP: header and payload
};
std::optional<IcmpError> parse_icmp_error(int family, Bytes message);
// "host unreachable", "administratively prohibited", ... of Kind::kUnreachable.
std::string_view unreachable_text(int family, std::uint8_t code);

}  // namespace sluice::net
