// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A path of three routers and a TCP server behind them, in virtual time, for tests of the ECN prober. It reads packets by
// offsets of its own: nothing here is of the code it judges but the interface.
#pragma once

#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "net/ecn_probe.h"

namespace sluice::net {

// A packet of the prober, on its way.
struct SimPacket {
  std::vector<std::uint8_t> bytes;

  bool v4() const { return bytes[0] >> 4 == 4; }
  std::size_t l4() const { return v4() ? 20 : 40; }
  bool tcp() const { return bytes[v4() ? 9 : 6] == 6; }
  std::uint8_t tos() const { return v4() ? bytes[1] : static_cast<std::uint8_t>((bytes[0] & 15) << 4 | bytes[1] >> 4); }
  void set_tos(std::uint8_t tos) {
    if (v4()) {
      bytes[1] = tos;
    } else {
      bytes[0] = static_cast<std::uint8_t>(0x60 | tos >> 4);
      bytes[1] = static_cast<std::uint8_t>((tos & 15) << 4 | (bytes[1] & 15));
    }
  }
  std::uint8_t ecn() const { return tos() & 3; }
  void set_ecn(int ecn) { set_tos(static_cast<std::uint8_t>((tos() & ~3) | ecn)); }
  void set_dscp(int dscp) { set_tos(static_cast<std::uint8_t>(dscp << 2 | (tos() & 3))); }
  std::uint8_t& hop_limit() { return bytes[v4() ? 8 : 7]; }
  std::uint16_t u16(std::size_t at) const { return static_cast<std::uint16_t>(bytes[at] << 8 | bytes[at + 1]); }
  std::uint32_t u32(std::size_t at) const { return std::uint32_t{u16(at)} << 16 | u16(at + 2); }
  std::uint8_t tcp_flags() const { return bytes[l4() + 13]; }
  bool ecn_syn() const { return tcp() && (tcp_flags() & 0xc2) == 0xc2; }
};

class SimPath final : public Wire {
 public:
  static constexpr std::uint16_t kPort = 5000;
  static constexpr std::uint64_t kStart_ns = 1'000'000'000, kHop_ns = 1'000'000;

  struct Router {
    std::function<bool(SimPacket&)> pass = [](SimPacket&) { return true; };  // false: dropped. May change it
    bool answers = true;
    bool refuses_udp = false;  // with "administratively prohibited"
    std::size_t quotes_transport = 1000;
  };
  struct Peer {
    bool listens = true, silent = false;
    bool ecn = true, sack = true, reflects = false, always_ece = false, resets_at_data = false, floods = false;
    std::uint32_t banner_bytes = 0;
  };

  explicit SimPath(int family) : routers(3) {
    source_.family = peer_.family = family;
    source_.bytes = {10, 0, 0, 1};
    peer_.bytes = {10, 9, 0, 2};
    if (family == AF_INET6) {
      source_.bytes = {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
      peer_.bytes = {0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
    }
  }

  std::vector<Router> routers;
  Peer peer;
  double loss = 0;  // of each packet, either way
  bool stranger = false;
  void seed(std::uint64_t value) { random_ = SeededRandom(value); }

  const IpAddress& peer_address() const { return peer_; }
  unsigned packets() const { return packets_; }
  std::size_t longest_packet() const { return longest_; }
  unsigned application_bytes() const { return application_bytes_; }
  unsigned ended_in_order() const { return ended_; }
  bool banner_acknowledged() const { return banner_acknowledged_; }

  const IpAddress& source() const override { return source_; }
  std::uint16_t port(unsigned which) const override { return static_cast<std::uint16_t>(40001 + which); }
  std::uint64_t now_ns() override { return now_; }

  Result<std::optional<Arrival>> receive(std::uint64_t deadline_ns) override {
    if (arrivals_.empty() || arrivals_.begin()->first > deadline_ns) {
      now_ = std::max(now_, deadline_ns);
      return std::nullopt;
    }
    now_ = std::max(now_, arrivals_.begin()->first);
    Arrival first = std::move(arrivals_.begin()->second);
    arrivals_.erase(arrivals_.begin());
    return std::optional<Arrival>(std::move(first));
  }

  Status send(Bytes bytes) override {
    SimPacket packet{{bytes.begin(), bytes.end()}};
    ++packets_;
    longest_ = std::max(longest_, bytes.size());
    if (stranger) send_nonsense(packet);
    if (random_.chance(loss)) return {};
    for (std::size_t i = 0; i < routers.size(); ++i) {
      const std::uint64_t back = now_ + 2 * (i + 1) * kHop_ns;
      if (!routers[i].pass(packet)) return {};
      if (routers[i].refuses_udp && !packet.tcp()) {
        quote(back, router_address(i), packet, source_.family == AF_INET ? 3 : 1, source_.family == AF_INET ? 13 : 1,
              routers[i].quotes_transport);
        return {};
      }
      if (packet.hop_limit() == 1) {
        if (routers[i].answers)
          quote(back, router_address(i), packet, source_.family == AF_INET ? 11 : 3, 0, routers[i].quotes_transport);
        return {};
      }
      --packet.hop_limit();
    }
    if (!peer.silent) arrive(packet, now_ + 2 * (routers.size() + 1) * kHop_ns);
    return {};
  }

 private:
  struct Connection {
    std::uint32_t next = 0;
    std::set<std::uint32_t> beyond;  // octets behind the hole, by distance from the initial sequence number
    std::uint32_t isn = 0;
    bool ecn = false, echo = false, ended = false;
  };
  static constexpr std::uint32_t kPeerIsn = 0xffffffff;

  IpAddress router_address(std::size_t i) const {
    IpAddress address = source_;
    address.bytes[1] = static_cast<std::uint8_t>(i + 1);
    address.bytes[source_.family == AF_INET ? 3 : 15] = 254;
    return address;
  }

  void deliver(std::uint64_t at, const IpAddress& from, std::uint8_t protocol, int ecn, std::vector<std::uint8_t> payload) {
    if (random_.chance(loss)) return;
    Arrival arrival;
    arrival.source = from;
    arrival.protocol = protocol;
    arrival.marks.ecn = static_cast<Ecn>(ecn);
    arrival.payload = std::move(payload);
    arrivals_.emplace(at, std::move(arrival));
  }

  void quote(std::uint64_t at, const IpAddress& from, const SimPacket& packet, int type, int code, std::size_t transport) {
    std::vector<std::uint8_t> message(8);
    message[0] = static_cast<std::uint8_t>(type);
    message[1] = static_cast<std::uint8_t>(code);
    const std::size_t length = std::min(packet.bytes.size(), packet.l4() + transport);
    message.insert(message.end(), packet.bytes.begin(), packet.bytes.begin() + static_cast<std::ptrdiff_t>(length));
    deliver(at, from, source_.family == AF_INET ? 1 : 58, 0, std::move(message));
  }

  static void put(std::vector<std::uint8_t>& out, std::uint32_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<std::uint8_t>(value >> 8 * i));
  }
  void reply(std::uint64_t at, const SimPacket& to, std::uint32_t seq, std::uint32_t ack, int flags,
             const std::vector<std::uint8_t>& options = {}, std::size_t payload = 0, int ecn = 0) {
    std::vector<std::uint8_t> segment;
    put(segment, to.u16(to.l4() + 2), 2);
    put(segment, to.u16(to.l4()), 2);
    put(segment, seq, 4);
    put(segment, ack, 4);
    put(segment, static_cast<std::uint32_t>((20 + options.size()) / 4 << 4), 1);
    put(segment, static_cast<std::uint32_t>(flags), 1);
    put(segment, 1000, 2);
    put(segment, 0, 4);
    segment.insert(segment.end(), options.begin(), options.end());
    segment.resize(segment.size() + payload);
    deliver(at, peer_, 6, ecn, std::move(segment));
  }

  void arrive(const SimPacket& packet, std::uint64_t back) {
    if (!packet.tcp())
      return quote(back, peer_, packet, source_.family == AF_INET ? 3 : 1, source_.family == AF_INET ? 3 : 4, 1000);
    const std::size_t l4 = packet.l4();
    const std::uint32_t seq = packet.u32(l4 + 4), ack = packet.u32(l4 + 8);
    const int flags = packet.tcp_flags();
    const std::size_t payload = packet.bytes.size() - l4 - packet.bytes[l4 + 12] / 16 * 4;
    if ((flags & 2) != 0) {
      if (!peer.listens) return reply(back, packet, 0, seq + 1, 0x14);
      Connection& connection = connections_[packet.u16(l4)];
      connection = {.next = seq + 1, .beyond = {}, .isn = seq, .ecn = peer.ecn && !peer.reflects && (flags & 0xc0) == 0xc0};
      const int answer = peer.reflects ? flags & 0xc0 : connection.ecn ? 0x40 : 0;
      return reply(back, packet, kPeerIsn, seq + 1, 0x12 | answer,
                   peer.sack ? std::vector<std::uint8_t>{4, 2, 1, 1} : std::vector<std::uint8_t>{});
    }
    const auto found = connections_.find(packet.u16(l4));
    if (found == connections_.end()) return;
    Connection& connection = found->second;
    if ((flags & 4) != 0) {
      connections_.erase(found);
      return;
    }
    const std::uint32_t own_next = kPeerIsn + 1 + peer.banner_bytes;
    if (peer.banner_bytes != 0 && ack == kPeerIsn + 1 && payload == 0 && (flags & 1) == 0)  // the handshake's last, or a loss
      reply(back, packet, kPeerIsn + 1, connection.next, 0x18, {}, peer.banner_bytes, connection.ecn ? 2 : 0);
    if (peer.banner_bytes != 0 && ack == own_next) banner_acknowledged_ = true;
    if (connection.ended) return;
    if (peer.floods)  // two segments for each that comes: it would never end by itself
      for (const int octet : {1, 2})
        reply(back, packet, own_next + static_cast<std::uint32_t>(octet), connection.next, 0x18, {}, 1, 2);
    if (payload != 0) {
      if (peer.resets_at_data) return reply(back, packet, own_next, 0, 0x14);
      if ((flags & 0x80) != 0) connection.echo = false;
      if (connection.ecn && packet.ecn() == 3) connection.echo = true;
      if (seq == connection.next)
        application_bytes_ += static_cast<unsigned>(payload);
      else
        connection.beyond.insert(seq - connection.isn);
      std::vector<std::uint8_t> options;
      if (peer.sack) {
        std::uint32_t begin = seq - connection.isn, end = begin + 1;
        while (connection.beyond.contains(begin - 1)) --begin;
        while (connection.beyond.contains(end)) ++end;
        options = {1, 1, 5, 10};
        put(options, connection.isn + begin, 4);
        put(options, connection.isn + end, 4);
      }
      reply(back, packet, own_next, connection.next, 0x10 | (connection.echo || peer.always_ece ? 0x40 : 0), options);
    } else if ((flags & 1) != 0 && seq == connection.next) {
      connection.ended = true;
      ++ended_;
      reply(back, packet, own_next, seq + 1, 0x11);
    }
  }

  void send_nonsense(const SimPacket& packet) {
    if (!packet.tcp()) return;
    const std::uint32_t seq = packet.u32(packet.l4() + 4);
    reply(now_ + 1, packet, 7, seq + 1000, 0x12);  // acknowledges what was never sent
    reply(now_ + 1, packet, 7, seq + 1000, 0x14);
    SimPacket other = packet;  // an error about a packet of somebody else
    other.bytes[other.l4() + 1] ^= 0x40;
    other.set_ecn(0);
    quote(now_ + 1, router_address(0), other, source_.family == AF_INET ? 11 : 3, 0, 8);
    other = packet;  // and one about a sequence number we never used
    other.bytes[other.l4() + 4] ^= 0x40;
    other.set_ecn(0);
    quote(now_ + 1, router_address(0), other, source_.family == AF_INET ? 11 : 3, 0, 8);
    deliver(now_ + 1, peer_, 6, 0, {1, 2, 3});
    deliver(now_ + 1, router_address(0), source_.family == AF_INET ? 1 : 58, 0, {3, 3});
  }

  IpAddress source_, peer_;
  std::uint64_t now_ = kStart_ns;
  std::multimap<std::uint64_t, Arrival> arrivals_;
  std::map<std::uint16_t, Connection> connections_;
  SeededRandom random_{1};
  unsigned packets_ = 0, application_bytes_ = 0, ended_ = 0;
  std::size_t longest_ = 0;
  bool banner_acknowledged_ = false;
};

}  // namespace sluice::net
