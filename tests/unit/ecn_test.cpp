// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Probing a path for ECN, without a network: packets byte by byte, hostile ones included; findings from observations; and the
// whole prober on paths of sim_path.h, which shares no code with it, in virtual time.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "base/random.h"
#include "net/ecn_path.h"
#include "net/ecn_probe.h"
#include "net/probe_packet.h"
#include "sim_path.h"

namespace sluice::net {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

IpAddress address(std::string_view text) {
  auto parsed = parse_address(text);
  EXPECT_TRUE(parsed.has_value()) << text;
  return *parsed;
}

std::vector<std::uint8_t> hex(std::string_view text) {
  std::vector<std::uint8_t> bytes;
  std::string digits;
  for (const char c : text)
    if (c != ' ' && c != '\n') digits += c;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  return bytes;
}

// ---- addresses

TEST(Address, IsOneHostOfOneFamily) {
  EXPECT_EQ(address("10.2.0.7").text(), "10.2.0.7");
  EXPECT_EQ(address("fd00:0:0::7").text(), "fd00::7");
  for (const char* bad : {"", "10.2.0", "10.2.0.7:80", "name", "0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1",
                          "fe80::1", "fe80::1%eth0", "::ffff:10.0.0.1"}) {
    const auto refused = parse_address(bad);
    ASSERT_FALSE(refused.has_value()) << bad;
    EXPECT_EQ(refused.error().code, Code::kInvalid) << bad;
    EXPECT_NE(refused.error().remedy, "") << bad;
  }
}

// ---- building. The checksums were computed by another program; that the kernel takes them is for tests/netns.

TEST(Build, SynOverIpv4) {
  const TcpHeader header{
      .source_port = 40000, .destination_port = 443, .seq = 0x01020304, .flags = kSyn | kEce | kCwr, .window = 8192};
  EXPECT_EQ(build_tcp(address("10.0.0.1"), address("10.0.0.2"), {Ecn::kNotEct, 10, 64}, header, 0), hex(R"(
    45 28 00 30 00 00 40 00 40 06 26 9e 0a 00 00 01 0a 00 00 02
    9c 40 01 bb 01 02 03 04 00 00 00 00 70 c2 20 00 af f7 00 00
    02 04 02 18 04 02 01 01)"));
}

TEST(Build, OctetOverIpv6) {
  const TcpHeader header{.source_port = 40000, .destination_port = 443, .seq = 5, .ack = 9, .flags = kAck, .window = 1};
  EXPECT_EQ(build_tcp(address("fd00::1"), address("fd00::2"), {Ecn::kCe, 0, 3}, header, 1), hex(R"(
    60 30 00 00 00 15 06 03 fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02
    9c 40 01 bb 00 00 00 05 00 00 00 09 50 10 00 01 17 c5 00 00 00)"));
}

TEST(Build, UdpOverIpv4) {
  EXPECT_EQ(build_udp(address("10.0.0.1"), address("10.0.0.2"), {Ecn::kEct0, 0, 1}, 40000, 33434, 2), hex(R"(
    45 02 00 1e 00 00 40 00 01 11 65 cb 0a 00 00 01 0a 00 00 02 9c 40 82 9a 00 0a cc fc 00 00)"));
}

// ---- what a TCP peer answers

TEST(ParseTcp, FindsOptionsInAnyOrder) {
  const auto segment = parse_tcp(hex(R"(
    01 bb 9c 40 00 00 00 10 00 00 00 20 c0 52 01 00 00 00 00 00
    02 04 05 b4 01 04 02 05 12 00 00 00 22 00 00 00 23 00 00 00 30 00 00 00 31 01 01 01 aa bb)"));
  ASSERT_TRUE(segment.has_value());
  EXPECT_EQ(segment->header.source_port, 443);
  EXPECT_EQ(segment->header.destination_port, 40000);
  EXPECT_EQ(segment->header.seq, 0x10U);
  EXPECT_EQ(segment->header.ack, 0x20U);
  EXPECT_EQ(segment->header.flags, kSyn | kAck | kEce);
  EXPECT_TRUE(segment->sack_permitted);
  ASSERT_EQ(segment->sacks.size(), 2U);
  EXPECT_EQ(segment->sacks[1].begin, 0x30U);
  EXPECT_EQ(segment->sacks[1].end, 0x31U);
  EXPECT_EQ(segment->payload_bytes, 2U);
}

TEST(ParseTcp, BelievesNoLengthBeyondItsBytes) {
  const auto good = hex("01bb9c40 00000010 00000020 70100100 00000000 050a000000220000 0023 0101");
  ASSERT_FALSE(parse_tcp(good).has_value());  // 7 words are 28 octets: the SACK option reaches to 30
  auto fits = good;
  fits[12] = 0x80;
  ASSERT_TRUE(parse_tcp(fits).has_value());
  EXPECT_EQ(parse_tcp(fits)->sacks.size(), 1U);
  for (std::size_t length = 0; length < fits.size(); ++length)
    EXPECT_FALSE(parse_tcp(Bytes(fits).first(length)).has_value()) << length;

  for (const int offset : {0x00, 0x40, 0x90, 0xf0}) {  // less than a header, more than there is
    auto bad = fits;
    bad[12] = static_cast<std::uint8_t>(offset);
    EXPECT_FALSE(parse_tcp(bad).has_value()) << offset;
  }
  for (const int length : {0, 1, 13, 255}) {
    auto bad = fits;
    bad[21] = static_cast<std::uint8_t>(length);
    EXPECT_FALSE(parse_tcp(bad).has_value()) << length;
  }
  auto half = fits;  // a SACK option with half a block
  half[21] = 6;
  half[26] = 0;
  ASSERT_TRUE(parse_tcp(half).has_value());
  EXPECT_TRUE(parse_tcp(half)->sacks.empty());
}

TEST(ParseIpv4, RefusesFragmentsAndLengthsThatDoNotAddUp) {
  const auto good = hex("46 02 00 1c 00 00 40 00 07 06 00 00 0a 00 00 01 0a 00 00 02 01 01 01 00 de ad be ef 99 99");
  const auto packet = parse_ipv4(good);
  ASSERT_TRUE(packet.has_value());
  EXPECT_EQ(packet->marks, (IpMarks{Ecn::kEct0, 0, 7}));
  EXPECT_EQ(packet->source, address("10.0.0.1"));
  EXPECT_THAT(packet->payload, ElementsAre(0xde, 0xad, 0xbe, 0xef));  // options skipped, padding cut off
  for (const auto& [at, value] : {std::pair{0, 0x66}, {0, 0x44}, {0, 0x40}, {0, 0x4f}, {3, 0x10}, {6, 0x20}, {7, 0x01}}) {
    auto bad = good;
    bad[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(value);
    EXPECT_FALSE(parse_ipv4(bad).has_value()) << at << " " << value;
  }
}

// ---- ICMP errors: type, code, rest; then the quoted packet

const char* const kQuote4 =
    "0b 00 00 00 00 00 00 00  45 29 00 40 00 00 40 00 01 06 00 00 0a 00 00 01 0a 02 00 02  9c 40 01 bb 01 02 03 04";
const char* const kQuote6 =
    "03 00 00 00 00 00 00 00  62 a3 00 00 00 09 11 01 fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01"
    " fd 02 00 00 00 00 00 00 00 00 00 00 00 00 00 02  9c 40 82 9a 00 09 00 00";

TEST(ParseIcmpError, ReadsTheMarksOfTheQuotedPacket) {
  const auto v4 = parse_icmp_error(AF_INET, hex(kQuote4));
  ASSERT_TRUE(v4.has_value());
  EXPECT_EQ(v4->kind, IcmpError::Kind::kTimeExceeded);
  EXPECT_EQ(v4->marks, (IpMarks{Ecn::kEct1, 10, 1}));
  EXPECT_EQ(v4->source, address("10.0.0.1"));
  EXPECT_EQ(v4->destination, address("10.2.0.2"));
  EXPECT_EQ(v4->protocol, IPPROTO_TCP);
  EXPECT_EQ(v4->source_port, 40000);
  EXPECT_EQ(v4->destination_port, 443);
  EXPECT_EQ(v4->seq, 0x01020304U);

  const auto v6 = parse_icmp_error(AF_INET6, hex(kQuote6));
  ASSERT_TRUE(v6.has_value());
  EXPECT_EQ(v6->kind, IcmpError::Kind::kTimeExceeded);
  EXPECT_EQ(v6->marks, (IpMarks{Ecn::kEct0, 10, 1}));
  EXPECT_EQ(v6->destination, address("fd02::2"));
  EXPECT_EQ(v6->protocol, IPPROTO_UDP);
  EXPECT_EQ(v6->destination_port, 33434);
  EXPECT_EQ(v6->udp_length, 9);
}

TEST(ParseIcmpError, TellsUnreachablePortsFromUnreachableHosts) {
  const auto kind = [](int family, const char* quote, int type, int code) {
    auto bytes = hex(quote);
    bytes[0] = static_cast<std::uint8_t>(type);
    bytes[1] = static_cast<std::uint8_t>(code);
    const auto error = parse_icmp_error(family, bytes);
    return error ? std::optional(error->kind) : std::nullopt;
  };
  using Kind = IcmpError::Kind;
  EXPECT_EQ(kind(AF_INET, kQuote4, 3, 3), Kind::kPortUnreachable);
  EXPECT_EQ(kind(AF_INET, kQuote4, 3, 1), Kind::kUnreachable);
  EXPECT_EQ(kind(AF_INET, kQuote4, 3, 4), std::nullopt);   // fragmentation needed
  EXPECT_EQ(kind(AF_INET, kQuote4, 11, 1), std::nullopt);  // reassembly time
  EXPECT_EQ(kind(AF_INET, kQuote4, 0, 0), std::nullopt);   // echo reply
  EXPECT_EQ(kind(AF_INET6, kQuote6, 1, 4), Kind::kPortUnreachable);
  EXPECT_EQ(kind(AF_INET6, kQuote6, 1, 1), Kind::kUnreachable);
  EXPECT_EQ(kind(AF_INET6, kQuote6, 2, 0), std::nullopt);  // packet too big
  EXPECT_EQ(kind(AF_INET6, kQuote6, 129, 0), std::nullopt);
  EXPECT_EQ(unreachable_text(AF_INET, 13), "administratively prohibited");
  EXPECT_EQ(unreachable_text(AF_INET6, 1), "administratively prohibited");
}

TEST(ParseIcmpError, RefusesWhatIsCutShortOrLies) {
  for (const auto& [family, text] : {std::pair{AF_INET, kQuote4}, {AF_INET6, kQuote6}}) {
    const auto whole = hex(text);
    for (std::size_t length = 0; length < whole.size(); ++length)
      EXPECT_FALSE(parse_icmp_error(family, Bytes(whole).first(length)).has_value()) << length;
    EXPECT_FALSE(parse_icmp_error(family == AF_INET ? AF_INET6 : AF_INET, whole).has_value());
  }
  const auto with = [](const char* quote, std::size_t at, int value) {
    auto bytes = hex(quote);
    bytes[at] = static_cast<std::uint8_t>(value);
    return bytes;
  };
  EXPECT_FALSE(parse_icmp_error(AF_INET, with(kQuote4, 8, 0x4f)));      // options that are not there
  EXPECT_FALSE(parse_icmp_error(AF_INET, with(kQuote4, 8, 0x41)));      // a header of 4 octets
  EXPECT_FALSE(parse_icmp_error(AF_INET, with(kQuote4, 8 + 3, 0x1b)));  // a packet of 27
  EXPECT_FALSE(parse_icmp_error(AF_INET, with(kQuote4, 8 + 7, 0x01)));  // a later fragment
  EXPECT_FALSE(parse_icmp_error(AF_INET, with(kQuote4, 8 + 9, 1)));     // about an ICMP packet
  EXPECT_FALSE(parse_icmp_error(AF_INET6, with(kQuote6, 8, 0x42)));     // not IPv6
  EXPECT_FALSE(parse_icmp_error(AF_INET6, with(kQuote6, 8 + 6, 44)));   // behind an extension header, which is none of ours
}

TEST(Parse, SurvivesAnyBytes) {
  SeededRandom random(7);
  for (int i = 0; i < 200'000; ++i) {
    std::vector<std::uint8_t> bytes(random.below(100));
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
    if (!bytes.empty() && random.chance(0.5)) bytes[0] = random.chance(0.5) ? 11 : 3;
    if (bytes.size() > 8 && random.chance(0.5)) bytes[8] = random.chance(0.5) ? 0x45 : 0x60;
    const auto packet = parse_ipv4(bytes);
    if (packet) {
      EXPECT_LE(packet->payload.size() + 20, bytes.size());
    }
    const auto segment = parse_tcp(bytes);
    if (segment) {
      EXPECT_LE(segment->payload_bytes + 20, bytes.size());
      EXPECT_LE(segment->sacks.size(), 4U);
    }
    (void)parse_icmp_error(AF_INET, bytes);
    (void)parse_icmp_error(AF_INET6, bytes);
  }
}

// ---- findings

// A path on which all is well: two routers, and a peer that echoes.
EcnObservations good() {
  EcnObservations seen;
  seen.ecn_syn = SynAnswer::kSynAckEcn;
  seen.rtt_us = 1000;
  seen.sack = true;
  for (auto& delivery : seen.delivery) delivery = {6, 6};
  seen.ce_judged = seen.ce_echoed = 5;
  for (const std::uint8_t hop : {1, 2})
    for (const Ecn ecn : {Ecn::kEct0, Ecn::kEct1, Ecn::kCe})
      seen.hops.push_back({hop, IPPROTO_TCP, ecn, ecn, 0, address("10.0.0.9"), false});
  seen.hops.push_back({3, IPPROTO_UDP, Ecn::kEct0, Ecn::kEct0, 0, address("10.2.0.2"), true});
  return seen;
}
EcnObservations::Delivery& delivery(EcnObservations& seen, Ecn ecn) { return seen.delivery[static_cast<std::size_t>(ecn)]; }
void on_hop(EcnObservations& seen, std::uint8_t hop, Ecn sent, Ecn now) {
  for (auto& one : seen.hops)
    if (one.hop == hop && one.sent == sent) one.seen = now;
}

TEST(Judge, AGoodPathIsUsable) {
  const auto found = judge(good());
  EXPECT_EQ(found.verdict, EcnVerdict::kUsable);
  EXPECT_EQ(found.ect0.fate, Fate::kIntact);
  EXPECT_TRUE(found.ect0.at_destination);
  EXPECT_EQ(found.ect1.fate, Fate::kIntact);
  EXPECT_EQ(found.ect1.hop, 2);
  EXPECT_FALSE(found.ect1.at_destination);
  EXPECT_EQ(found.ce.fate, Fate::kIntact);
  EXPECT_EQ(found.dscp.fate, Fate::kIntact);
  EXPECT_EQ(found.inbound.fate, Fate::kUnknown);
  EXPECT_EQ(found.inbound.text, "the peer sent no data");
}

TEST(Judge, LossOfMarkedPacketsAloneIsADrop) {
  auto seen = good();
  delivery(seen, Ecn::kEct0).arrived = 0;
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kEctDropped);
  EXPECT_EQ(judge(seen).ect0.text, "0 of 6 arrived, 6 of 6 without ECT");
  delivery(seen, Ecn::kEct0).arrived = 1;  // lost like anything else
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kUsable);
  for (auto& all : seen.delivery) all.arrived = 0;  // nothing arrives: not because of its marks
  seen.ce_judged = seen.ce_echoed = 0;
  EXPECT_EQ(judge(seen).ect0.fate, Fate::kIntact);
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kUnknown);
  auto ect1 = good();
  delivery(ect1, Ecn::kEct1).arrived = 0;  // a finding, but classic ECN does not use it
  EXPECT_EQ(judge(ect1).ect1.fate, Fate::kDropped);
  EXPECT_EQ(judge(ect1).verdict, EcnVerdict::kUsable);
}

TEST(Judge, NamesTheHopThatFirstSawAChange) {
  auto seen = good();
  on_hop(seen, 2, Ecn::kEct0, Ecn::kNotEct);
  auto found = judge(seen);
  EXPECT_EQ(found.verdict, EcnVerdict::kEctCleared);
  EXPECT_EQ(found.ect0.fate, Fate::kCleared);
  EXPECT_EQ(found.ect0.hop, 2);
  EXPECT_EQ(found.ect0.text, "ECT(0) is not-ECT at hop 2 (10.0.0.9); 6 of 6 arrived, 6 of 6 without ECT");
  EXPECT_EQ(found.ect1.fate, Fate::kIntact);

  seen = good();
  on_hop(seen, 1, Ecn::kEct1, Ecn::kEct0);
  EXPECT_EQ(judge(seen).ect1.fate, Fate::kIntact);  // hop 2 saw it whole, so only the quotation was wrong
  on_hop(seen, 2, Ecn::kEct1, Ecn::kEct0);
  EXPECT_EQ(judge(seen).ect1.fate, Fate::kChanged);
  EXPECT_EQ(judge(seen).ect1.hop, 1);

  seen = good();
  on_hop(seen, 2, Ecn::kEct0, Ecn::kCe);  // congestion, marked as it should be
  EXPECT_EQ(judge(seen).ect0.fate, Fate::kIntact);

  seen = good();
  for (auto& hop : seen.hops) hop.dscp = hop.hop >= 2 ? 8 : 0;
  EXPECT_EQ(judge(seen).dscp.fate, Fate::kChanged);
  EXPECT_EQ(judge(seen).dscp.hop, 2);
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kUsable);
  seen = good();
  seen.dscp = 46;
  EXPECT_EQ(judge(seen).dscp.fate, Fate::kCleared);
}

TEST(Judge, MarksThatAreNotEchoedAreNotUsable) {
  auto seen = good();
  seen.ce_echoed = 0;
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kCeCleared);
  EXPECT_EQ(judge(seen).ce.fate, Fate::kNotEchoed);
  EXPECT_THAT(judge(seen).ce.text, HasSubstr("cleared behind hop 2, or the peer ignores marks"));
  on_hop(seen, 2, Ecn::kCe, Ecn::kNotEct);
  EXPECT_EQ(judge(seen).ce.fate, Fate::kCleared);
  EXPECT_EQ(judge(seen).ce.hop, 2);
  seen = good();
  seen.ce_judged = 1;
  seen.ce_echoed = 0;
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kUnknown);  // once is not enough
  seen.ce_judged = 0;
  seen.ece_unasked = true;
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kUnknown);
  EXPECT_THAT(judge(seen).summary, HasSubstr("an echo tells nothing"));
  seen = good();
  delivery(seen, Ecn::kCe).arrived = 0;
  seen.ce_judged = seen.ce_echoed = 0;
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kEctDropped);
}

TEST(Judge, HowConnectionsBeginComesFirst) {
  using A = SynAnswer;
  using V = EcnVerdict;
  const std::tuple<A, A, bool, V> cases[] = {
      {A::kSilence, A::kSynAck, false, V::kSynDropped},
      {A::kReset, A::kSynAck, false, V::kSynReset},
      {A::kReset, A::kReset, false, V::kClosed},
      {A::kSilence, A::kReset, false, V::kClosed},
      {A::kSilence, A::kSilence, false, V::kSilent},
      {A::kUnreachable, A::kUnreachable, false, V::kUnreachable},
      {A::kSilence, A::kUnreachable, false, V::kUnreachable},
      {A::kNotAsked, A::kNotAsked, true, V::kUnknown},
      {A::kSilence, A::kNotAsked, true, V::kUnknown},
  };
  for (const auto& [ecn, plain, out_of_time, verdict] : cases) {
    EcnObservations seen;
    seen.ecn_syn = ecn;
    seen.plain_syn = plain;
    seen.out_of_time = out_of_time;
    seen.unreachable = "host unreachable, says 10.0.0.9";
    EXPECT_EQ(judge(seen).verdict, verdict) << static_cast<int>(ecn) << " " << static_cast<int>(plain);
    EXPECT_NE(judge(seen).summary, "");
  }
  auto refused = good();
  refused.ecn_syn = A::kSynAck;
  refused.ce_judged = refused.ce_echoed = 0;
  EXPECT_EQ(judge(refused).verdict, V::kRefused);
  refused.ecn_syn = A::kReflected;
  EXPECT_EQ(judge(refused).verdict, V::kReflected);
}

TEST(Judge, MarksOfThePeersData) {
  auto seen = good();
  seen.inbound = {1, 0, 3, 1};
  EXPECT_EQ(judge(seen).inbound.fate, Fate::kIntact);
  EXPECT_EQ(judge(seen).inbound.text, "4 of 5 data segments came with ECT, 1 of them CE");
  seen.inbound = {5, 0, 0, 0};
  EXPECT_EQ(judge(seen).inbound.fate, Fate::kUnknown);  // the peer need not set it
}

TEST(Judge, EveryVerdictHasANameOfItsOwn) {
  for (int i = 0; i <= static_cast<int>(EcnVerdict::kUnreachable); ++i) {
    const auto verdict = static_cast<EcnVerdict>(i);
    EXPECT_EQ(verdict_from_name(verdict_name(verdict)), verdict);
  }
  EXPECT_EQ(verdict_from_name("no such"), EcnVerdict::kUnknown);
}

// ---- the prober, on made-up paths

class Prober : public testing::TestWithParam<int> {
 protected:
  Prober() : path(GetParam()) {}

  EcnObservations probe(std::uint32_t timeout_ms = 30'000) {
    EcnProbeOptions options;
    options.destination = path.peer_address();
    options.port = SimPath::kPort;
    options.isn = 0xfffffff0;  // sequence numbers wrap on the way
    options.timeout_ms = timeout_ms;
    auto seen = probe_ecn(path, options, {});
    EXPECT_TRUE(seen.has_value()) << seen.error().message();
    EXPECT_LE(path.packets(), 400U);
    EXPECT_LE(path.longest_packet(), 150U);
    EXPECT_LE(path.now_ns() - SimPath::kStart_ns, (timeout_ms + 1) * 1'000'000ULL);
    EXPECT_EQ(path.application_bytes(), 0U);  // the application never sees a probe
    return seen ? *seen : EcnObservations{};
  }
  EcnFindings judged(std::uint32_t timeout_ms = 30'000) { return judge(probe(timeout_ms)); }

  SimPath path;
};
INSTANTIATE_TEST_SUITE_P(, Prober, testing::Values(AF_INET, AF_INET6),
                         [](const auto& family) { return family.param == AF_INET ? "ipv4" : "ipv6"; });

TEST_P(Prober, FindsAGoodPathUsable) {
  const auto seen = probe();
  const auto found = judge(seen);
  EXPECT_EQ(found.verdict, EcnVerdict::kUsable) << found.summary;
  EXPECT_EQ(seen.ce_echoed, 5U);
  for (const auto& delivery : seen.delivery) EXPECT_EQ(delivery.arrived, delivery.sent);
  EXPECT_EQ(seen.hops_to_peer, 4);
  EXPECT_LE(seen.hops.back().hop, 4);
  EXPECT_TRUE(found.ect0.at_destination);
  EXPECT_EQ(found.ect1.hop, 3);
  EXPECT_EQ(found.dscp.fate, Fate::kIntact);
  EXPECT_GE(seen.rtt_us, 8000U);
  EXPECT_EQ(path.ended_in_order(), 1U);
  EXPECT_LT(path.now_ns() - SimPath::kStart_ns, 1'500'000'000ULL);
}

TEST_P(Prober, PeerWithoutEcn) {
  path.peer.ecn = false;
  const auto found = judged();
  EXPECT_EQ(found.verdict, EcnVerdict::kRefused);
  EXPECT_EQ(found.ect0.fate, Fate::kIntact);
  EXPECT_EQ(found.ce.fate, Fate::kIntact);  // as far as a hop tells
  EXPECT_FALSE(found.ce.at_destination);
}

TEST_P(Prober, PeerThatReflects) {
  path.peer.reflects = true;
  EXPECT_EQ(judged().verdict, EcnVerdict::kReflected);
}

TEST_P(Prober, SynWithEcnDropped) {
  path.routers[1].pass = [](SimPacket& packet) { return !packet.ecn_syn(); };
  const auto found = judged();
  EXPECT_EQ(found.verdict, EcnVerdict::kSynDropped);
  EXPECT_EQ(found.ect0.fate, Fate::kIntact);  // found out on the connection without ECN
  EXPECT_EQ(path.ended_in_order(), 1U);
}

TEST_P(Prober, LostSynIsNotADroppedOne) {
  int syns = 0;
  path.routers[1].pass = [&](SimPacket& packet) { return !packet.ecn_syn() || ++syns > 3; };
  const auto seen = probe();
  EXPECT_EQ(seen.plain_syn, SynAnswer::kSynAck);
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kUsable);
  EXPECT_EQ(path.ended_in_order(), 2U);
}

TEST_P(Prober, EctClearedAtAHop) {
  path.routers[1].pass = [](SimPacket& packet) { return packet.ecn() == 3 || (packet.set_ecn(0), true); };
  const auto found = judged();
  EXPECT_EQ(found.verdict, EcnVerdict::kEctCleared);
  EXPECT_EQ(found.ect0.hop, 2);
  EXPECT_EQ(found.ect1.hop, 2);
}

TEST_P(Prober, CeClearedBehindTheLastHopThatTells) {
  path.routers[2].pass = [](SimPacket& packet) { return packet.ecn() != 3 || (packet.set_ecn(0), true); };
  path.routers[2].answers = false;
  const auto found = judged();
  EXPECT_EQ(found.verdict, EcnVerdict::kCeCleared);
  EXPECT_EQ(found.ce.fate, Fate::kNotEchoed);
  EXPECT_EQ(found.ce.hop, 2);
}

TEST_P(Prober, EctDropped) {
  path.routers[0].pass = [](SimPacket& packet) { return packet.ecn() == 0; };
  const auto found = judged();
  EXPECT_EQ(found.verdict, EcnVerdict::kEctDropped);
  EXPECT_EQ(found.ect0.fate, Fate::kDropped);
  EXPECT_EQ(found.ect1.fate, Fate::kDropped);
  EXPECT_EQ(found.ce.fate, Fate::kDropped);
}

TEST_P(Prober, DscpRewritten) {
  path.routers[2].pass = [](SimPacket& packet) { return packet.set_dscp(34), true; };
  const auto found = judged();
  EXPECT_EQ(found.verdict, EcnVerdict::kUsable);
  EXPECT_EQ(found.dscp.fate, Fate::kChanged);
  EXPECT_EQ(found.dscp.hop, 3);
}

TEST_P(Prober, RoutersThatQuoteTheLeastAllowed) {
  for (auto& router : path.routers) router.quotes_transport = 8;
  EXPECT_EQ(judged().ect1.hop, 3);
}

TEST_P(Prober, FirewallThatRefusesUdpDoesNotEndThePathOfTcp) {
  path.routers[1].refuses_udp = true;
  const auto seen = probe();
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kUsable);
  EXPECT_EQ(judge(seen).ect1.hop, 3);
  EXPECT_EQ(seen.hops_to_peer, 4);
  for (const auto& hop : seen.hops) EXPECT_TRUE(hop.protocol == IPPROTO_TCP || hop.hop <= 2) << int{hop.hop};
}

TEST_P(Prober, NothingListens) {
  path.peer.listens = false;
  const auto found = judged();
  EXPECT_EQ(found.verdict, EcnVerdict::kClosed);
  EXPECT_EQ(found.ect0.fate, Fate::kIntact);  // UDP tells
  EXPECT_TRUE(found.ect0.at_destination);
}

TEST_P(Prober, NobodyAnswers) {
  path.peer.silent = true;
  for (auto& router : path.routers) router.answers = false;
  const auto found = judged();
  EXPECT_EQ(found.verdict, EcnVerdict::kSilent);
  EXPECT_EQ(found.ect0.fate, Fate::kUnknown);
  EXPECT_LT(path.now_ns() - SimPath::kStart_ns, 11'000'000'000ULL);
}

TEST_P(Prober, TimeRunsOut) {
  path.peer.silent = true;
  const auto seen = probe(1500);
  EXPECT_TRUE(seen.out_of_time);
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kUnknown);
  EXPECT_THAT(judge(seen).summary, HasSubstr("the time ran out"));
}

TEST_P(Prober, PeerWithoutSackIsStillJudgedByItsEcho) {
  path.peer.sack = false;
  const auto seen = probe();
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kUsable);
  EXPECT_EQ(seen.delivery[0].sent, 0U);
}

TEST_P(Prober, PeerThatAlwaysEchoesProvesNothing) {
  path.peer.always_ece = true;
  const auto seen = probe();
  EXPECT_TRUE(seen.ece_unasked);
  EXPECT_EQ(judge(seen).verdict, EcnVerdict::kUnknown);
}

TEST_P(Prober, PeerThatSpeaksFirst) {
  path.peer.banner_bytes = 20;
  const auto found = judged();
  EXPECT_EQ(found.verdict, EcnVerdict::kUsable);
  EXPECT_EQ(found.inbound.fate, Fate::kIntact);
  EXPECT_TRUE(path.banner_acknowledged());
}

TEST_P(Prober, PeerThatResetsInTheMiddle) {
  path.peer.resets_at_data = true;
  EXPECT_EQ(judged().verdict, EcnVerdict::kUnknown);
}

TEST_P(Prober, RandomLossIsNeverTakenForADrop) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SimPath lossy(GetParam());
    lossy.loss = 0.1;
    lossy.seed(seed);
    EcnProbeOptions options;
    options.destination = lossy.peer_address();
    options.port = SimPath::kPort;
    const auto seen = probe_ecn(lossy, options, {});
    ASSERT_TRUE(seen.has_value());
    const auto found = judge(*seen);
    EXPECT_TRUE(found.verdict == EcnVerdict::kUsable || found.verdict == EcnVerdict::kUnknown)
        << "seed " << seed << ": " << found.summary;
    EXPECT_EQ(lossy.application_bytes(), 0U);
  }
}

TEST_P(Prober, CongestionOnThePathIsNotTakenForAnEcho) {
  // Every ECT packet is marked: a mark of ours cannot be told by ECE alone, but CWR on a segment without ECT clears it first.
  path.routers[0].pass = [](SimPacket& packet) { return packet.ecn() == 0 || (packet.set_ecn(3), true); };
  const auto found = judged();
  EXPECT_EQ(found.verdict, EcnVerdict::kUsable);
  EXPECT_EQ(found.ect0.fate, Fate::kIntact);
}

TEST_P(Prober, AStrangersPacketsChangeNothing) {
  path.stranger = true;  // answers every packet with segments and errors of wrong ports, sequence numbers and sources
  EXPECT_EQ(judged().verdict, EcnVerdict::kUsable);
  path.peer.silent = true;
  EXPECT_EQ(judged().verdict, EcnVerdict::kSilent);
}

TEST_P(Prober, AFloodOfDataIsNotAnsweredWithoutEnd) {
  path.peer.floods = true;
  probe();  // the bound on packets is checked there
}

TEST_P(Prober, EndsWhenItIsToldTo) {
  path.peer.silent = true;
  EcnProbeOptions options;
  options.destination = path.peer_address();
  options.port = SimPath::kPort;
  EcnProbeControl control;
  control.stop = [&] { return path.now_ns() - SimPath::kStart_ns >= 500'000'000; };
  const auto seen = probe_ecn(path, options, control);
  ASSERT_FALSE(seen.has_value());
  EXPECT_EQ(seen.error().code, Code::kUnavailable);
  EXPECT_LE(path.now_ns() - SimPath::kStart_ns, 600'000'000ULL);
}

}  // namespace
}  // namespace sluice::net
