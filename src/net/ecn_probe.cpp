// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "net/ecn_probe.h"

#include <netinet/in.h>

#include <algorithm>
#include <array>

namespace sluice::net {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kWaitMin = 200 * kMs, kWaitMax = 1000 * kMs;
constexpr std::uint64_t kSlice = 100 * kMs;  // between two looks at control.stop
constexpr unsigned kSynTries = 3;
constexpr unsigned kRounds = 6;  // of delivery
constexpr unsigned kEchoes = 5;
constexpr unsigned kHopsMax = 30, kHopsAtOnce = 4, kHopTries = 2;
constexpr unsigned kSilentHopsMax = 8;     // in a row, before the path is given up
constexpr std::uint16_t kUdpPort = 33434;  // traceroute's: rarely open, often let through
constexpr std::uint16_t kUdpHeader = 8;
constexpr std::uint8_t kHopLimit = 64;
constexpr std::uint16_t kWindow = 8192;
constexpr unsigned kAnswersMax = 100;  // to what the peer sends of its own accord

enum Step : unsigned { kHandshake = 1, kDelivery, kEcho, kPath };

// One of our two connections, if it is one.
struct Connection {
  std::uint16_t port = 0;
  bool ecn = false;  // asked for
  SynAnswer answer = SynAnswer::kNotAsked;
  bool sack = false;
  bool reset = false, finished = false;  // by the peer
  bool echo = false;                     // the peer's data came with CE, and CWR has not come yet
  std::uint32_t receive_next = 0;
  std::uint64_t acks = 0;

  bool up() const { return answer == SynAnswer::kSynAck || answer == SynAnswer::kSynAckEcn || answer == SynAnswer::kReflected; }
};

// One octet of data at a place of its own: octet i lies at isn + 2 + i, behind the hole at isn + 1.
struct Octet {
  Ecn ecn = Ecn::kNotEct;
  bool full_distance = false;  // not sent to end at a hop
  bool arrived = false;
  bool ece = false;  // in the acknowledgement that told of it
};

struct PathProbe {
  std::uint8_t hop = 0;
  std::uint8_t protocol = 0;
  Ecn ecn = Ecn::kNotEct;
  std::uint32_t octet = 0;       // TCP
  std::uint16_t udp_length = 0;  // UDP
  bool answered = false;
};

class Prober {
 public:
  Prober(Wire& wire, const EcnProbeOptions& options, const EcnProbeControl& control)
      : wire_(wire), options_(options), control_(control), deadline_(wire.now_ns() + options.timeout_ms * kMs) {
    for (unsigned which = 0; which < connections_.size(); ++which) connections_[which].port = wire.port(which);
    connections_[0].ecn = true;
    seen_.dscp = options.dscp;
  }

  Result<EcnObservations> run() {
    SLUICE_CHECK(connect());
    if (connection_ != nullptr) {
      SLUICE_CHECK(deliver());
      SLUICE_CHECK(echo());
    }
    SLUICE_CHECK(follow_path());
    SLUICE_CHECK(close());
    for (const Octet& octet : octets_) {
      if (!octet.full_distance || !seen_.sack) continue;
      auto& delivery = seen_.delivery[static_cast<std::size_t>(octet.ecn)];
      ++delivery.sent;
      delivery.arrived += octet.arrived ? 1 : 0;
    }
    std::erase_if(seen_.hops, [&](const HopSeen& hop) { return beyond_end(hop.hop, hop.protocol); });
    std::ranges::stable_sort(seen_.hops, {}, &HopSeen::hop);
    return std::move(seen_);
  }

 private:
  // ---- sending ----

  Status send(Bytes packet) {
    ++seen_.packets_sent;
    return wire_.send(packet);
  }

  Status send_tcp(const Connection& connection, std::uint8_t flags, std::uint32_t seq, std::size_t payload = 0,
                  Ecn ecn = Ecn::kNotEct, std::uint8_t hop_limit = kHopLimit) {
    if (connection.echo) flags |= kEce;
    return send(build_tcp(
        wire_.source(), options_.destination, {ecn, options_.dscp, hop_limit},
        {connection.port, options_.port, seq, (flags & kAck) != 0 ? connection.receive_next : 0, flags, kWindow}, payload));
  }

  // The next octet behind the hole; returns its index.
  Result<std::size_t> send_octet(Ecn ecn, std::uint8_t flags = 0) {
    octets_.push_back({.ecn = ecn, .full_distance = true});
    SLUICE_CHECK(send_tcp(*connection_, kAck | flags, place_of(octets_.size() - 1), 1, ecn));
    return octets_.size() - 1;
  }

  std::uint32_t place_of(std::size_t octet) const { return options_.isn + 2 + static_cast<std::uint32_t>(octet); }

  // ---- receiving ----

  // What an answer may take.
  std::uint64_t wait() const {
    return seen_.rtt_us == 0 ? kWaitMax : std::clamp(std::uint64_t{seen_.rtt_us} * 2000 + 50 * kMs, kWaitMin, kWaitMax);
  }

  // Takes in what comes until done() or until `patience` is over. Out of time is no error: phases look at seen_.out_of_time.
  template <class Done>
  Status await(std::uint64_t patience, Done&& done) {
    const std::uint64_t until = wire_.now_ns() + patience;
    while (!done()) {
      if (control_.stop())
        return fail(make_error(Code::kUnavailable, "the probe was cut short: the agent is ending",
                               "repeat it when the agent runs again"));
      const std::uint64_t now = wire_.now_ns();
      if (now >= deadline_) seen_.out_of_time = true;
      if (now >= until || seen_.out_of_time) return {};
      SLUICE_TRY(arrival, wire_.receive(std::min({until, deadline_, now + kSlice})));
      if (!arrival) continue;
      if (arrival->protocol == IPPROTO_TCP)
        SLUICE_CHECK(take_tcp(*arrival));
      else
        take_icmp(*arrival);
    }
    return {};
  }

  Status take_tcp(const Arrival& arrival) {
    const auto segment = parse_tcp(arrival.payload);
    if (!segment || arrival.source != options_.destination || segment->header.source_port != options_.port) return {};
    const auto found = std::ranges::find(connections_, segment->header.destination_port, &Connection::port);
    if (found == connections_.end()) return {};
    Connection& connection = *found;
    const TcpHeader& header = segment->header;
    if (!connection.up()) {
      // As RFC 9293, 3.10.7.3: only what acknowledges our SYN answers it.
      if (connection.answer == SynAnswer::kNotAsked || (header.flags & kAck) == 0 || header.ack != options_.isn + 1) return {};
      if ((header.flags & kRst) != 0) {
        connection.answer = SynAnswer::kReset;
      } else if ((header.flags & kSyn) != 0) {
        const auto ecn = header.flags & (kEce | kCwr);
        connection.answer = !connection.ecn || ecn == 0 || ecn == kCwr ? SynAnswer::kSynAck
                            : ecn == kEce                              ? SynAnswer::kSynAckEcn
                                                                       : SynAnswer::kReflected;
        connection.receive_next = header.seq + 1;
        connection.sack = segment->sack_permitted;
        return send_tcp(connection, kAck, options_.isn + 1);
      }
      return {};
    }
    if ((header.flags & kRst) != 0) {
      connection.reset |= header.seq == connection.receive_next;  // RFC 5961: anything else is somebody's guess
      return {};
    }
    constexpr std::uint32_t kFinMax = 1;  // besides the SYN there is only our FIN to acknowledge
    if ((header.flags & kAck) == 0 || header.ack - (options_.isn + 1) > kFinMax) return {};
    if ((header.flags & kSyn) != 0) return answer(connection);  // our ACK was lost
    ++connection.acks;
    last_ece_ = (header.flags & kEce) != 0;
    if (&connection == connection_) take_sacks(*segment);
    return take_data(connection, *segment, arrival.marks.ecn);
  }

  void take_sacks(const TcpSegment& segment) {
    for (const SackBlock& block : segment.sacks) {
      const std::uint32_t begin = block.begin - place_of(0), end = block.end - place_of(0);
      if (begin >= end || end > octets_.size()) continue;
      for (std::uint32_t i = begin; i < end; ++i) {
        if (octets_[i].arrived) continue;
        octets_[i].arrived = true;
        octets_[i].ece = last_ece_;
      }
    }
  }

  // The peer's own data: counted as it came, acknowledged, and forgotten.
  Status take_data(Connection& connection, const TcpSegment& segment, Ecn ecn) {
    if ((segment.header.flags & kCwr) != 0) connection.echo = false;
    const auto bytes = static_cast<std::uint32_t>(segment.payload_bytes);
    const bool fin = (segment.header.flags & kFin) != 0;
    if (bytes == 0 && !fin) return {};
    if (segment.header.seq == connection.receive_next && !connection.finished) {
      if (bytes != 0) ++seen_.inbound[static_cast<std::size_t>(ecn)];
      connection.receive_next += bytes + (fin ? 1 : 0);
      connection.finished = fin;
    }
    if (ecn == Ecn::kCe && connection.answer == SynAnswer::kSynAckEcn) connection.echo = true;
    return answer(connection);
  }

  Status answer(const Connection& connection) {
    return ++answers_ > kAnswersMax ? Status() : send_tcp(connection, kAck, options_.isn + 1);
  }

  void take_icmp(const Arrival& arrival) {
    const auto error = parse_icmp_error(options_.destination.family, arrival.payload);
    if (!error || error->source != wire_.source() || error->destination != options_.destination) return;
    const auto connection = std::ranges::find(connections_, error->source_port, &Connection::port);
    if (connection == connections_.end()) return;
    const bool tcp = error->protocol == IPPROTO_TCP;
    if (error->destination_port != (tcp ? options_.port : kUdpPort)) return;

    if (tcp && error->seq == options_.isn) {  // a SYN. Only told when no SYN is answered: such errors may pass (RFC 5461)
      if (error->kind == IcmpError::Kind::kTimeExceeded) return;
      syn_unreachable_ = true;
      seen_.unreachable =
          fmt::format("{}, says {}", unreachable_text(options_.destination.family, error->code), arrival.source.text());
      return;
    }
    for (PathProbe& probe : path_) {
      if (probe.protocol != error->protocol) continue;
      if (tcp ? place_of(probe.octet) != error->seq : probe.udp_length != error->udp_length) continue;
      // This host's own errors tell of no hop.
      if (!probe.answered && arrival.source != wire_.source()) {
        const bool at_destination = error->kind == IcmpError::Kind::kPortUnreachable || arrival.source == options_.destination;
        seen_.hops.push_back(
            {probe.hop, probe.protocol, probe.ecn, error->marks.ecn, error->marks.dscp, arrival.source, at_destination});
        if (at_destination)
          reached(probe.hop);
        else if (error->kind == IcmpError::Kind::kUnreachable)
          end_at(tcp ? tcp_end_ : udp_end_, probe.hop);
      }
      probe.answered = true;
      return;
    }
  }

  static void end_at(std::uint8_t& end, std::uint8_t hop) {
    if (end == 0 || hop < end) end = hop;
  }
  void reached(std::uint8_t hop) { end_at(seen_.hops_to_peer, hop); }
  // Whoever answers a larger hop limit is no further away.
  bool beyond_end(std::uint8_t hop, std::uint8_t protocol) const {
    const std::uint8_t end = protocol == IPPROTO_TCP ? tcp_end_ : udp_end_;
    return (seen_.hops_to_peer != 0 && hop > seen_.hops_to_peer) || (end != 0 && hop > end);
  }

  // ---- phases ----

  Status shake_hands(Connection& connection) {
    connection.answer = SynAnswer::kSilence;
    for (unsigned attempt = 0; attempt < kSynTries && connection.answer == SynAnswer::kSilence && !seen_.out_of_time;
         ++attempt) {
      const std::uint64_t start = wire_.now_ns();
      syn_unreachable_ = false;
      SLUICE_CHECK(send_tcp(connection, connection.ecn ? kSyn | kEce | kCwr : kSyn, options_.isn));
      SLUICE_CHECK(await(kWaitMax, [&] { return connection.answer != SynAnswer::kSilence || syn_unreachable_; }));
      if (connection.up())
        seen_.rtt_us = std::max<std::uint32_t>(1, static_cast<std::uint32_t>((wire_.now_ns() - start) / 1000));
    }
    if (connection.answer == SynAnswer::kSilence && syn_unreachable_)
      connection.answer = SynAnswer::kUnreachable;
    else if (connection.answer == SynAnswer::kSilence && seen_.out_of_time)
      connection.answer = SynAnswer::kNotAsked;  // not to the end
    return {};
  }

  Status connect() {
    Connection &with = connections_[0], &without = connections_[1];
    control_.progress(kHandshake, "SYN with ECN");
    SLUICE_CHECK(shake_hands(with));
    if (!with.up() && !seen_.out_of_time) {
      control_.progress(kHandshake, "SYN without ECN");
      SLUICE_CHECK(shake_hands(without));
      // Was it loss, or loss of ECN? The first answer may also have come late.
      if (without.up() && !with.up()) {
        control_.progress(kHandshake, "SYN with ECN, again");
        SLUICE_CHECK(shake_hands(with));
      }
    }
    seen_.ecn_syn = with.answer;
    seen_.plain_syn = without.answer;
    connection_ = with.up() ? &with : without.up() ? &without : nullptr;
    seen_.sack = connection_ != nullptr && connection_->sack;
    return {};
  }

  bool usable() const { return connection_ != nullptr && !connection_->reset && !connection_->finished && !seen_.out_of_time; }

  Status deliver() {
    constexpr std::array<Ecn, 3> kMarks = {Ecn::kNotEct, Ecn::kEct0, Ecn::kEct1};
    for (unsigned round = 0; round < kRounds && seen_.sack && usable(); ++round) {
      control_.progress(kDelivery, fmt::format("ECT(0) and ECT(1) against not-ECT, round {} of {}", round + 1, kRounds));
      const std::size_t first = octets_.size();
      for (std::size_t i = 0; i < kMarks.size(); ++i)  // each comes first, second and last
        SLUICE_CHECK(send_octet(kMarks[(i + round) % kMarks.size()]));
      SLUICE_CHECK(await(wait(), [&] {
        return !usable() || std::all_of(octets_.begin() + static_cast<std::ptrdiff_t>(first), octets_.end(),
                                        [](const Octet& o) { return o.arrived; });
      }));
    }
    return {};
  }

  // Sends an octet and waits for its acknowledgement; whether that carried ECE, or nullopt if there was none. A peer without
  // SACK acknowledges all the same, once for each segment out of order.
  Result<std::optional<bool>> ask(Ecn ecn, std::uint8_t flags) {
    const std::uint64_t acks = connection_->acks;
    SLUICE_TRY(octet, send_octet(ecn, flags));
    const auto told = [&] { return seen_.sack ? octets_[octet].arrived : connection_->acks != acks; };
    SLUICE_CHECK(await(wait(), [&] { return !usable() || told(); }));
    if (!told()) return std::nullopt;
    return std::optional<bool>(seen_.sack ? octets_[octet].ece : last_ece_);
  }

  Status echo() {
    for (unsigned i = 0; i < kEchoes && usable(); ++i) {
      control_.progress(kEcho, fmt::format("CE, {} of {}", i + 1, kEchoes));
      // CWR ends the echo of any mark before. Without ECT nobody can mark this one.
      SLUICE_TRY(before, ask(Ecn::kNotEct, kCwr));
      SLUICE_TRY(after, ask(Ecn::kCe, 0));
      if (before && *before) seen_.ece_unasked = true;
      if (seen_.ecn_syn != SynAnswer::kSynAckEcn || !before || *before || !after) continue;
      ++seen_.ce_judged;
      if (*after) ++seen_.ce_echoed;
    }
    return {};
  }

  void plan_hop(std::uint8_t hop) {
    const auto add_udp = [&](Ecn ecn) {
      const auto id = static_cast<std::uint16_t>(hop * 3 + static_cast<int>(ecn) - 1);
      path_.push_back(
          {.hop = hop, .protocol = IPPROTO_UDP, .ecn = ecn, .udp_length = static_cast<std::uint16_t>(kUdpHeader + id)});
    };
    for (const Ecn ecn : {Ecn::kEct0, Ecn::kEct1, Ecn::kCe}) {
      if (!usable()) {
        add_udp(ecn);
        continue;
      }
      octets_.push_back({.ecn = ecn});
      path_.push_back(
          {.hop = hop, .protocol = IPPROTO_TCP, .ecn = ecn, .octet = static_cast<std::uint32_t>(octets_.size() - 1)});
    }
    if (usable()) add_udp(Ecn::kEct0);
  }

  Status send_probe(const PathProbe& probe) {
    if (probe.protocol == IPPROTO_TCP) return send_tcp(*connection_, kAck, place_of(probe.octet), 1, probe.ecn, probe.hop);
    return send(build_udp(wire_.source(), options_.destination, {probe.ecn, options_.dscp, probe.hop}, connections_[0].port,
                          kUdpPort, probe.udp_length - kUdpHeader));
  }

  // Nothing more is to be learned from this probe.
  bool settled(PathProbe& probe) {
    if (probe.protocol == IPPROTO_TCP && octets_[probe.octet].arrived) {
      reached(probe.hop);
      probe.answered = true;
    }
    return probe.answered || (probe.protocol == IPPROTO_TCP && !usable()) || beyond_end(probe.hop, probe.protocol);
  }

  Status follow_path() {
    unsigned silent = 0;
    const auto ended = [&] { return seen_.hops_to_peer != 0 || (udp_end_ != 0 && (tcp_end_ != 0 || !usable())); };
    for (unsigned first = 1; first <= kHopsMax && silent < kSilentHopsMax && !ended() && !seen_.out_of_time;
         first += kHopsAtOnce) {
      const unsigned last = std::min(first + kHopsAtOnce - 1, kHopsMax);
      control_.progress(kPath, fmt::format("hops {} to {}", first, last));
      path_.clear();
      for (unsigned hop = first; hop <= last; ++hop) plan_hop(static_cast<std::uint8_t>(hop));
      for (unsigned attempt = 0; attempt < kHopTries && !seen_.out_of_time; ++attempt) {
        for (PathProbe& probe : path_)
          if (!settled(probe)) SLUICE_CHECK(send_probe(probe));
        SLUICE_CHECK(await(wait(), [&] {
          bool all = true;
          for (PathProbe& probe : path_) all &= settled(probe);
          return all;
        }));
      }
      seen_.hops_asked = static_cast<std::uint8_t>(last);
      const bool answers = std::ranges::any_of(path_, &PathProbe::answered);
      silent = answers ? 0 : silent + kHopsAtOnce;
    }
    return {};
  }

  // An ordinary end where there is time for one. What comes later, the kernel answers with a reset.
  Status close() {
    for (Connection& connection : connections_) {
      if (!connection.up() || connection.reset) continue;
      const std::uint32_t fin = options_.isn + 1;  // closes the hole, and with it what lies behind
      SLUICE_CHECK(send_tcp(connection, kFin | kAck, fin));
      SLUICE_CHECK(await(wait(), [&] { return connection.reset || connection.finished; }));
      if (connection.reset) continue;
      SLUICE_CHECK(send_tcp(connection, connection.finished ? kAck : kRst | kAck, fin + 1));
    }
    return {};
  }

  Wire& wire_;
  const EcnProbeOptions& options_;
  const EcnProbeControl& control_;
  std::uint64_t deadline_;
  EcnObservations seen_;
  std::array<Connection, 2> connections_;  // that asks for ECN, that does not
  Connection* connection_ = nullptr;       // the one that is used
  std::vector<Octet> octets_;
  std::vector<PathProbe> path_;             // of the hops under way
  std::uint8_t tcp_end_ = 0, udp_end_ = 0;  // hop that says the destination is unreachable; 0 = none
  unsigned answers_ = 0;
  bool last_ece_ = false;         // in the last acknowledgement
  bool syn_unreachable_ = false;  // of the last SYN
};

}  // namespace

Result<EcnObservations> probe_ecn(Wire& wire, const EcnProbeOptions& options, const EcnProbeControl& control) {
  return Prober(wire, options, control).run();
}

}  // namespace sluice::net
