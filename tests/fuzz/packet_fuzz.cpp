// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Fuzz target: what a probe of a path reads from the network. The first byte chooses the parser, the others are the packet.
// Whatever the bytes: nothing is read beyond them, a field that is told stands where the headers say, a packet cut short is
// none or the same, and what was understood, built anew and sent back, is understood the same.
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "net/probe_packet.h"

namespace {

using namespace sluice;
using namespace sluice::net;

constexpr std::size_t kIpv4Header = 20, kIpv6Header = 40, kTcpHeader = 20, kUdpHeader = 8, kIcmpHeader = 8;

// Bytes of their own: what is read beyond them is beyond the block.
std::vector<std::uint8_t> copy(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

std::uint32_t number(Bytes bytes, std::size_t at, int octets) {
  std::uint32_t value = 0;
  for (int i = 0; i < octets; ++i) value = value << 8 | bytes[at + static_cast<std::size_t>(i)];
  return value;
}

void check_ipv4(Bytes bytes) {
  const auto packet = parse_ipv4(bytes);
  if (!packet) return;
  const std::size_t header = std::size_t{bytes[0]} % 16 * 4;
  SLUICE_ASSERT(packet->payload.data() == bytes.data() + header && header >= kIpv4Header);
  SLUICE_ASSERT(header + packet->payload.size() <= std::min<std::size_t>(bytes.size(), number(bytes, 2, 2)));
  SLUICE_ASSERT(packet->marks.dscp < 64 && packet->marks.hop_limit == bytes[8] && packet->protocol == bytes[9]);
  SLUICE_ASSERT(packet->source.family == AF_INET && std::ranges::equal(packet->source.view(), bytes.subspan(12, 4)));
  SLUICE_ASSERT(std::ranges::equal(packet->destination.view(), bytes.subspan(16, 4)));
  SLUICE_ASSERT(!packet->source.text().empty() && !ecn_name(packet->marks.ecn).empty());
}

void check_tcp(Bytes bytes) {
  const auto segment = parse_tcp(bytes);
  if (!segment) return;
  const std::size_t options = bytes.size() - segment->payload_bytes - kTcpHeader;
  SLUICE_ASSERT(options <= 40 && segment->sacks.size() * 8 <= options);
  const TcpHeader& header = segment->header;
  SLUICE_ASSERT(header.source_port == number(bytes, 0, 2) && header.seq == number(bytes, 4, 4));
  SLUICE_ASSERT(header.ack == number(bytes, 8, 4) && header.window == number(bytes, 14, 2));
  const auto shorter = copy(bytes.first(bytes.size() - segment->payload_bytes));
  const auto bare = parse_tcp(shorter);
  SLUICE_ASSERT(bare && bare->payload_bytes == 0 && bare->sacks.size() == segment->sacks.size());

  const IpAddress from{AF_INET, {10, 0, 0, 1}}, to{AF_INET, {10, 0, 0, 2}};
  const auto built = build_tcp(from, to, {Ecn::kCe, 63, 255}, header, segment->payload_bytes);
  const auto packet = parse_ipv4(built);
  SLUICE_ASSERT(packet && packet->source == from && packet->destination == to);
  SLUICE_ASSERT((packet->marks == IpMarks{Ecn::kCe, 63, 255}));
  const auto again = parse_tcp(packet->payload);
  SLUICE_ASSERT(again && again->payload_bytes == segment->payload_bytes && again->sacks.empty());
  SLUICE_ASSERT(again->sack_permitted == ((header.flags & kSyn) != 0));
  SLUICE_ASSERT(again->header.seq == header.seq && again->header.ack == header.ack && again->header.flags == header.flags);
  SLUICE_ASSERT(again->header.source_port == header.source_port && again->header.window == header.window);
}

bool same(const IcmpError& a, const IcmpError& b) {
  return a.kind == b.kind && a.code == b.code && a.marks == b.marks && a.source == b.source && a.destination == b.destination &&
         a.protocol == b.protocol && a.source_port == b.source_port && a.destination_port == b.destination_port &&
         a.seq == b.seq && a.udp_length == b.udp_length;
}

void check_icmp(int family, Bytes bytes) {
  const auto error = parse_icmp_error(family, bytes);
  for (const std::size_t cut : {std::size_t{1}, std::size_t{4}, bytes.size() / 2}) {
    if (cut > bytes.size()) continue;
    const auto shorter = copy(bytes.first(bytes.size() - cut));
    const auto less = parse_icmp_error(family, shorter);
    SLUICE_ASSERT(!less || (error && same(*less, *error)));
  }
  if (!error) return;
  SLUICE_ASSERT(error->source.family == family && error->destination.family == family && error->marks.dscp < 64);
  SLUICE_ASSERT(!unreachable_text(family, error->code).empty());
  const std::size_t transport = kIcmpHeader + (family == AF_INET ? std::size_t{bytes[kIcmpHeader]} % 16 * 4 : kIpv6Header);
  SLUICE_ASSERT(transport + kUdpHeader <= bytes.size());
  SLUICE_ASSERT(error->source_port == number(bytes, transport, 2) &&
                error->destination_port == number(bytes, transport + 2, 2));

  const bool tcp = error->protocol == IPPROTO_TCP;
  SLUICE_ASSERT(tcp || error->protocol == IPPROTO_UDP);
  if (!tcp && error->udp_length < kUdpHeader) return;  // no such datagram was sent
  if (!tcp && family == AF_INET && error->udp_length > 65'535 - kIpv4Header) return;
  TcpHeader header;
  header.source_port = error->source_port;
  header.destination_port = error->destination_port;
  header.seq = error->seq;
  const auto sent = tcp ? build_tcp(error->source, error->destination, error->marks, header, 0)
                        : build_udp(error->source, error->destination, error->marks, error->source_port,
                                    error->destination_port, error->udp_length - kUdpHeader);
  auto returned = copy(bytes.first(kIcmpHeader));
  returned.insert(returned.end(), sent.begin(), sent.end());
  const auto again = parse_icmp_error(family, returned);
  SLUICE_ASSERT(again && same(*again, *error));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto packet = copy(Bytes(data, size).subspan(1));
  switch (data[0] % 4) {
    case 0:
      check_ipv4(packet);
      break;
    case 1:
      check_tcp(packet);
      break;
    case 2:
      check_icmp(AF_INET, packet);
      break;
    default:
      check_icmp(AF_INET6, packet);
  }
  return 0;
}
