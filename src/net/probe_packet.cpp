// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "net/probe_packet.h"

#include <arpa/inet.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>

#include <algorithm>
#include <cstring>

namespace sluice::net {
namespace {

constexpr std::size_t kIpv4Header = 20, kIpv6Header = 40, kTcpHeader = 20, kUdpHeader = 8, kIcmpHeader = 8;
constexpr std::size_t kQuotedMin = 8;  // octets behind the IP header that every error quotes (RFC 792)
constexpr std::uint8_t kOptionEnd = 0, kOptionNop = 1, kOptionMss = 2, kOptionSackPermitted = 4, kOptionSack = 5;
constexpr std::uint16_t kMss = 536;  // nobody needs to send us more

std::uint16_t u16(Bytes b, std::size_t at) { return static_cast<std::uint16_t>(b[at] << 8 | b[at + 1]); }
std::uint32_t u32(Bytes b, std::size_t at) { return std::uint32_t{u16(b, at)} << 16 | u16(b, at + 2); }
void put16(std::vector<std::uint8_t>& b, std::size_t at, std::uint32_t value) {
  b[at] = static_cast<std::uint8_t>(value >> 8);
  b[at + 1] = static_cast<std::uint8_t>(value);
}
void put32(std::vector<std::uint8_t>& b, std::size_t at, std::uint32_t value) {
  put16(b, at, value >> 16);
  put16(b, at + 2, value);
}

std::uint32_t sum(Bytes b) {
  std::uint32_t total = 0;
  for (std::size_t i = 0; i < b.size(); i += 2) total += std::uint32_t{b[i]} << 8 | (i + 1 < b.size() ? b[i + 1] : 0);
  return total;
}
std::uint16_t checksum(std::uint32_t total) {
  while (total >> 16 != 0) total = (total & 0xffff) + (total >> 16);
  return static_cast<std::uint16_t>(~total);
}

IpMarks marks_of(std::uint8_t tos, std::uint8_t hop_limit) {
  return {static_cast<Ecn>(tos & 3), static_cast<std::uint8_t>(tos >> 2), hop_limit};
}

IpAddress address_at(int family, Bytes b, std::size_t at) {
  IpAddress address{family, {}};
  std::copy_n(b.begin() + static_cast<std::ptrdiff_t>(at), address.view().size(), address.bytes.begin());
  return address;
}

// An IP header with room for `length` octets of `protocol` behind it.
std::vector<std::uint8_t> ip_packet(const IpAddress& from, const IpAddress& to, const IpMarks& marks, std::uint8_t protocol,
                                    std::size_t length) {
  SLUICE_ASSERT(from.family == to.family);
  const auto tos = static_cast<std::uint8_t>(marks.dscp << 2 | static_cast<std::uint8_t>(marks.ecn));
  std::vector<std::uint8_t> packet((from.family == AF_INET ? kIpv4Header : kIpv6Header) + length);
  std::size_t addresses = 0;
  if (from.family == AF_INET) {
    packet[0] = 0x45;
    packet[1] = tos;
    put16(packet, 2, static_cast<std::uint32_t>(packet.size()));
    put16(packet, 6, 0x4000);  // do not fragment
    packet[8] = marks.hop_limit;
    packet[9] = protocol;
    addresses = 12;
  } else {
    put32(packet, 0, 6U << 28 | std::uint32_t{tos} << 20);
    put16(packet, 4, static_cast<std::uint32_t>(length));
    packet[6] = protocol;
    packet[7] = marks.hop_limit;
    addresses = 8;
  }
  std::ranges::copy(from.view(), packet.begin() + static_cast<std::ptrdiff_t>(addresses));
  std::ranges::copy(to.view(), packet.begin() + static_cast<std::ptrdiff_t>(addresses + from.view().size()));
  if (from.family == AF_INET) put16(packet, 10, checksum(sum(Bytes(packet).first(kIpv4Header))));
  return packet;
}

// Fills in the checksum of a transport header that starts at `at`; the field is `field` octets behind.
void seal(std::vector<std::uint8_t>& packet, const IpAddress& from, const IpAddress& to, std::uint8_t protocol, std::size_t at,
          std::size_t field) {
  const Bytes transport = Bytes(packet).subspan(at);
  std::uint16_t value =
      checksum(sum(from.view()) + sum(to.view()) + protocol + static_cast<std::uint32_t>(transport.size()) + sum(transport));
  if (protocol == IPPROTO_UDP && value == 0) value = 0xffff;  // 0 would mean "none"
  put16(packet, at + field, value);
}

// False if the options do not add up.
bool parse_options(Bytes options, TcpSegment& segment) {
  for (std::size_t at = 0; at < options.size();) {
    if (options[at] == kOptionEnd) return true;
    if (options[at] == kOptionNop) {
      ++at;
      continue;
    }
    if (options.size() - at < 2) return false;
    const std::size_t length = options[at + 1];
    if (length < 2 || length > options.size() - at) return false;
    if (options[at] == kOptionSackPermitted) segment.sack_permitted = true;
    if (options[at] == kOptionSack)
      for (std::size_t block = at + 2; block + 8 <= at + length; block += 8)
        segment.sacks.push_back({u32(options, block), u32(options, block + 4)});
    at += length;
  }
  return true;
}

std::optional<IcmpError::Kind> kind_of(int family, std::uint8_t type, std::uint8_t code) {
  using Kind = IcmpError::Kind;
  if (family == AF_INET) {
    if (type == ICMP_TIME_EXCEEDED && code == ICMP_EXC_TTL) return Kind::kTimeExceeded;
    if (type == ICMP_DEST_UNREACH && code == ICMP_PORT_UNREACH) return Kind::kPortUnreachable;
    if (type == ICMP_DEST_UNREACH && code != ICMP_FRAG_NEEDED) return Kind::kUnreachable;
  } else {
    if (type == ICMP6_TIME_EXCEEDED && code == ICMP6_TIME_EXCEED_TRANSIT) return Kind::kTimeExceeded;
    if (type == ICMP6_DST_UNREACH && code == ICMP6_DST_UNREACH_NOPORT) return Kind::kPortUnreachable;
    if (type == ICMP6_DST_UNREACH) return Kind::kUnreachable;
  }
  return std::nullopt;
}

}  // namespace

Bytes IpAddress::view() const { return Bytes(bytes).first(family == AF_INET ? 4 : 16); }

std::string IpAddress::text() const {
  char buffer[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(family, bytes.data(), buffer, sizeof buffer);
  return buffer;
}

Result<IpAddress> parse_address(std::string_view text) {
  IpAddress address;
  const std::string copy(text);
  const auto refuse = [&](std::string_view why) {
    return fail(
        make_error(Code::kInvalid, fmt::format("'{}' {}", text, why), "give a unicast address, such as 10.2.0.7 or fd00:2::7"));
  };
  if (::inet_pton(AF_INET, copy.c_str(), address.bytes.data()) == 1)
    address.family = AF_INET;
  else if (::inet_pton(AF_INET6, copy.c_str(), address.bytes.data()) == 1)
    address.family = AF_INET6;
  else
    return refuse("is not an IP address");
  in6_addr v6;
  std::memcpy(&v6, address.bytes.data(), sizeof v6);
  if (address.family == AF_INET ? address.bytes[0] == 0 || address.bytes[0] >= 224
                                : IN6_IS_ADDR_MULTICAST(&v6) || IN6_IS_ADDR_UNSPECIFIED(&v6))
    return refuse("is not an address of one host");
  if (address.family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6))
    return refuse("is link-local and means nothing without its interface");
  if (address.family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6)) return refuse("is IPv4 written as IPv6");
  return address;
}

std::string_view ecn_name(Ecn ecn) {
  static constexpr std::string_view kNames[] = {"not-ECT", "ECT(1)", "ECT(0)", "CE"};
  return kNames[static_cast<std::size_t>(ecn)];
}

std::vector<std::uint8_t> build_tcp(const IpAddress& from, const IpAddress& to, const IpMarks& marks, const TcpHeader& header,
                                    std::size_t payload_bytes) {
  const bool syn = (header.flags & kSyn) != 0;
  const std::size_t length = kTcpHeader + (syn ? 8 : 0);
  auto packet = ip_packet(from, to, marks, IPPROTO_TCP, length + payload_bytes);
  const std::size_t at = packet.size() - length - payload_bytes;
  put16(packet, at, header.source_port);
  put16(packet, at + 2, header.destination_port);
  put32(packet, at + 4, header.seq);
  put32(packet, at + 8, header.ack);
  packet[at + 12] = static_cast<std::uint8_t>(length / 4 << 4);
  packet[at + 13] = header.flags;
  put16(packet, at + 14, header.window);
  if (syn) {
    put32(packet, at + 20, std::uint32_t{kOptionMss} << 24 | 4U << 16 | kMss);
    put32(packet, at + 24, std::uint32_t{kOptionSackPermitted} << 24 | 2U << 16 | kOptionNop << 8 | kOptionNop);
  }
  seal(packet, from, to, IPPROTO_TCP, at, 16);
  return packet;
}

std::vector<std::uint8_t> build_udp(const IpAddress& from, const IpAddress& to, const IpMarks& marks, std::uint16_t source_port,
                                    std::uint16_t destination_port, std::size_t payload_bytes) {
  const std::size_t length = kUdpHeader + payload_bytes;
  auto packet = ip_packet(from, to, marks, IPPROTO_UDP, length);
  const std::size_t at = packet.size() - length;
  put16(packet, at, source_port);
  put16(packet, at + 2, destination_port);
  put16(packet, at + 4, static_cast<std::uint32_t>(length));
  seal(packet, from, to, IPPROTO_UDP, at, 6);
  return packet;
}

std::optional<Ipv4Packet> parse_ipv4(Bytes packet) {
  if (packet.size() < kIpv4Header || packet[0] >> 4 != 4) return std::nullopt;
  const std::size_t header = std::size_t{packet[0]} % 16 * 4;
  if (header < kIpv4Header || header > packet.size()) return std::nullopt;
  if ((u16(packet, 6) & 0x3fff) != 0) return std::nullopt;  // an offset, or more to come
  // An error quotes less than the total length says; a whole packet may be padded to more.
  const std::size_t total = u16(packet, 2);
  if (total < header) return std::nullopt;
  return Ipv4Packet{marks_of(packet[1], packet[8]), address_at(AF_INET, packet, 12), address_at(AF_INET, packet, 16), packet[9],
                    packet.subspan(header, std::min(packet.size(), total) - header)};
}

std::optional<TcpSegment> parse_tcp(Bytes segment) {
  if (segment.size() < kTcpHeader) return std::nullopt;
  const std::size_t length = std::size_t{segment[12]} / 16 * 4;
  if (length < kTcpHeader || length > segment.size()) return std::nullopt;
  TcpSegment out;
  out.header = {u16(segment, 0), u16(segment, 2), u32(segment, 4), u32(segment, 8), segment[13], u16(segment, 14)};
  out.payload_bytes = segment.size() - length;
  if (!parse_options(segment.subspan(kTcpHeader, length - kTcpHeader), out)) return std::nullopt;
  return out;
}

std::optional<IcmpError> parse_icmp_error(int family, Bytes message) {
  if (message.size() < kIcmpHeader) return std::nullopt;
  const auto kind = kind_of(family, message[0], message[1]);
  if (!kind) return std::nullopt;
  IcmpError error;
  error.kind = *kind;
  error.code = message[1];
  const Bytes quoted = message.subspan(kIcmpHeader);
  Bytes transport;
  if (family == AF_INET) {
    const auto packet = parse_ipv4(quoted);
    if (!packet) return std::nullopt;
    error.marks = packet->marks;
    error.source = packet->source;
    error.destination = packet->destination;
    error.protocol = packet->protocol;
    transport = packet->payload;
  } else {
    if (quoted.size() < kIpv6Header || quoted[0] >> 4 != 6) return std::nullopt;
    error.marks = marks_of(static_cast<std::uint8_t>(u16(quoted, 0) >> 4), quoted[7]);
    error.source = address_at(AF_INET6, quoted, 8);
    error.destination = address_at(AF_INET6, quoted, 24);
    error.protocol = quoted[6];  // what we send has no extension headers
    transport = quoted.subspan(kIpv6Header);
  }
  if (transport.size() < kQuotedMin) return std::nullopt;
  error.source_port = u16(transport, 0);
  error.destination_port = u16(transport, 2);
  if (error.protocol == IPPROTO_TCP)
    error.seq = u32(transport, 4);
  else if (error.protocol == IPPROTO_UDP)
    error.udp_length = u16(transport, 4);
  else
    return std::nullopt;
  return error;
}

std::string_view unreachable_text(int family, std::uint8_t code) {
  if (family == AF_INET) {
    switch (code) {
      case ICMP_NET_UNREACH:
      case ICMP_NET_UNKNOWN:
        return "network unreachable";
      case ICMP_HOST_UNREACH:
      case ICMP_HOST_UNKNOWN:
        return "host unreachable";
      case ICMP_NET_ANO:
      case ICMP_HOST_ANO:
      case ICMP_PKT_FILTERED:
        return "administratively prohibited";
      default:
        return "unreachable";
    }
  }
  switch (code) {
    case ICMP6_DST_UNREACH_NOROUTE:
      return "network unreachable";
    case ICMP6_DST_UNREACH_ADDR:
      return "host unreachable";
    case ICMP6_DST_UNREACH_ADMIN:
      return "administratively prohibited";
    default:
      return "unreachable";
  }
}

}  // namespace sluice::net
