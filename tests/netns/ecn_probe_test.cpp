// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// `sluice ecn probe` on real sockets: a path of two routers, each of which can do to packets what middleboxes do, and an
// ordinary TCP server behind them. Every verdict over both families; then the agent: what it keeps, shows and refuses.
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include "harness/impairment.h"
#include "net/ecn_path.h"
#include "net/ecn_probe.h"
#include "net/raw_wire.h"
#include "netns/agent_fixture.h"

namespace sluice::test {
namespace {

using net::EcnVerdict;
using net::Fate;
using testing::HasSubstr;

const auto* const kBpffs = testing::AddGlobalTestEnvironment(new PrivateBpffs);

constexpr int kDrop = ImpairmentSpec::kDrop;

// a - r1 - r2 - b
TopologySpec path_spec() {
  // Routers that answer every probe: how often they do is theirs to limit, and not what is tested.
  const std::map<std::string, std::string> talkative = {{"net.ipv4.icmp_ratelimit", "0"}, {"net.ipv6.icmp.ratelimit", "0"}};
  TopologySpec spec;
  spec.hosts = {{.name = "a", .sysctls = {{"net.ipv4.tcp_congestion_control", kFallback}}},
                {.name = "r1", .forwarding = true, .sysctls = talkative},
                {.name = "r2", .forwarding = true, .sysctls = talkative},
                {.name = "b", .sysctls = talkative}};
  spec.links = {{.a = {"a", {"10.1.0.1/24", "fd01::1/64"}}, .b = {"r1", {"10.1.0.254/24", "fd01::fe/64"}}},
                {.a = {"r1", {"10.12.0.1/24", "fd12::1/64"}}, .b = {"r2", {"10.12.0.2/24", "fd12::2/64"}}},
                {.a = {"r2", {"10.2.0.254/24", "fd02::fe/64"}}, .b = {"b", {"10.2.0.2/24", "fd02::2/64"}}}};
  spec.routes = {{"a", "10.2.0.0/16", "10.1.0.254"}, {"a", "fd02::/16", "fd01::fe"},     {"a", "10.9.0.0/16", "10.1.0.254"},
                 {"a", "fd09::/16", "fd01::fe"},     {"r1", "10.2.0.0/16", "10.12.0.2"}, {"r1", "fd02::/16", "fd12::2"},
                 {"r2", "10.1.0.0/16", "10.12.0.1"}, {"r2", "fd01::/16", "fd12::1"},     {"b", "10.1.0.0/16", "10.2.0.254"},
                 {"b", "fd01::/16", "fd02::fe"}};
  spec.bind_names = true;
  return spec;
}

// A server for one connection, which must bring no data and end in good order: its exit status says so.
Result<Process> serve_once(const Host& host, int family, bool speaks_first) {
  Fd listener;
  SLUICE_CHECK(host.call([&]() -> Status {
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    socklen_t length = sizeof(sockaddr_in);
    if (family == AF_INET) {
      reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(kPort);
    } else {
      reinterpret_cast<sockaddr_in6*>(&address)->sin6_port = htons(kPort);
      length = sizeof(sockaddr_in6);
    }
    listener = Fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener.get(), 8) != 0)
      return fail_errno(errno, "cannot listen");
    return {};
  }));
  return host.fork(
      [&]() -> int {
        const int connection = ::accept(listener.get(), nullptr, nullptr);
        if (connection < 0) return 2;
        char buffer[4096] = {};
        if (speaks_first && ::write(connection, buffer, 2000) != 2000) return 3;
        const ssize_t got = ::read(connection, buffer, sizeof buffer);
        return got == 0 ? 0 : got > 0 ? 4 : 5;
      },
      {});
}

class EcnPath : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ASSERT_VALUE(topology, Topology::create(path_spec()));
    topology_.emplace(std::move(topology));
  }

  Host& host(const std::string& name) { return topology_->host(name); }
  std::string destination() { return host("b").address(GetParam()); }

  Result<net::EcnObservations> probe(const std::string& destination, const std::string& source = "") {
    Result<net::EcnObservations> seen = fail(Code::kInternal, "not run");
    SLUICE_CHECK(host("a").call([&]() -> Status {
      net::EcnProbeOptions options;
      SLUICE_TRY(address, net::parse_address(destination));
      options.destination = address;
      options.port = kPort;
      options.isn = 0x51000000;
      std::optional<net::IpAddress> from;
      if (!source.empty()) {
        SLUICE_TRY(given, net::parse_address(source));
        from = given;
      }
      SLUICE_TRY(wire, net::RawWire::open(address, kPort, from));
      seen = net::probe_ecn(*wire, options, {});
      return {};
    }));
    return seen;
  }
  // Probes a server that must see an ordinary connection without data.
  void probe_server(net::EcnFindings& found, bool speaks_first = false) {
    ASSERT_VALUE(server, serve_once(host("b"), GetParam(), speaks_first));
    ASSERT_VALUE(seen, probe(destination()));
    found = net::judge(seen);
    ASSERT_VALUE(status, server.wait(kSoon));
    EXPECT_EQ(status, 0) << "the server got data, or a reset";
    ASSERT_VALUE(listening, host("a").run({"ss", "-Htan"}));
    EXPECT_EQ(listening.text, "") << "left behind";
  }

  std::optional<Topology> topology_;
};
INSTANTIATE_TEST_SUITE_P(, EcnPath, testing::Values(AF_INET, AF_INET6),
                         [](const auto& family) { return family.param == AF_INET ? "ipv4" : "ipv6"; });

TEST_P(EcnPath, clean) {
  net::EcnFindings found;
  probe_server(found);
  EXPECT_EQ(found.verdict, EcnVerdict::kUsable) << found.summary;
  EXPECT_EQ(found.ect0.fate, Fate::kIntact);
  EXPECT_TRUE(found.ect0.at_destination) << found.ect0.text;
  EXPECT_EQ(found.ect1.fate, Fate::kIntact);
  EXPECT_EQ(found.ect1.hop, 2) << found.ect1.text;
  EXPECT_EQ(found.ce.text, "5 of 5 echoed by the peer");
  EXPECT_EQ(found.dscp.fate, Fate::kIntact);
  EXPECT_EQ(found.inbound.fate, Fate::kUnknown);
}

TEST_P(EcnPath, peer_that_speaks_first_shows_what_arrives) {
  net::EcnFindings found;
  probe_server(found, true);
  EXPECT_EQ(found.verdict, EcnVerdict::kUsable) << found.summary;
  EXPECT_EQ(found.inbound.fate, Fate::kIntact) << found.inbound.text;
  ASSERT_VALUE(wire, Impairment::attach(host("a"), "eth0", {.ecn = {0, 0, 0, 0}}));
  probe_server(found, true);
  EXPECT_EQ(found.verdict, EcnVerdict::kUsable) << found.summary;
  EXPECT_EQ(found.inbound.fate, Fate::kUnknown) << found.inbound.text;
  EXPECT_THAT(found.inbound.text, HasSubstr("without ECT"));
}

TEST_P(EcnPath, refused_by_the_peer) {
  ASSERT_OK(host("b").set_sysctl("net.ipv4.tcp_ecn", "0"));
  net::EcnFindings found;
  probe_server(found);
  EXPECT_EQ(found.verdict, EcnVerdict::kRefused) << found.summary;
  EXPECT_EQ(found.ect0.fate, Fate::kIntact);
  EXPECT_EQ(found.ce.fate, Fate::kIntact);
  EXPECT_EQ(found.ce.hop, 2) << found.ce.text;
}

TEST_P(EcnPath, syn_with_ecn_dropped) {
  ASSERT_VALUE(wire, Impairment::attach(host("r2"), "eth0", {.drop_ecn_syn = true}));
  net::EcnFindings found;
  probe_server(found);
  EXPECT_EQ(found.verdict, EcnVerdict::kSynDropped) << found.summary;
  EXPECT_EQ(wire.counters().dropped, 6u);
  EXPECT_EQ(found.ect0.fate, Fate::kIntact);
}

TEST_P(EcnPath, ce_cleared) {
  ASSERT_VALUE(wire, Impairment::attach(host("r2"), "eth0", {.ecn = {0, 1, 2, 0}}));
  net::EcnFindings found;
  probe_server(found);
  EXPECT_EQ(found.verdict, EcnVerdict::kCeCleared) << found.summary;
  EXPECT_EQ(found.ce.fate, Fate::kCleared);
  EXPECT_EQ(found.ce.hop, 2) << found.ce.text;
  EXPECT_EQ(found.ect0.fate, Fate::kIntact);
}

TEST_P(EcnPath, ce_cleared_behind_the_last_router) {
  ASSERT_VALUE(wire, Impairment::attach(host("b"), "eth0", {.ecn = {0, 1, 2, 2}}));
  net::EcnFindings found;
  probe_server(found);
  EXPECT_EQ(found.verdict, EcnVerdict::kCeCleared) << found.summary;
  EXPECT_EQ(found.ce.fate, Fate::kNotEchoed) << found.ce.text;
  EXPECT_EQ(found.ect0.fate, Fate::kIntact);
}

TEST_P(EcnPath, ect_cleared) {
  ASSERT_VALUE(wire, Impairment::attach(host("r1"), "eth0", {.ecn = {0, 0, 0, 3}}));
  net::EcnFindings found;
  probe_server(found);
  EXPECT_EQ(found.verdict, EcnVerdict::kEctCleared) << found.summary;
  EXPECT_EQ(found.ect0.fate, Fate::kCleared);
  EXPECT_EQ(found.ect0.hop, 1) << found.ect0.text;
  EXPECT_EQ(found.ect1.fate, Fate::kCleared);
}

TEST_P(EcnPath, ect_dropped) {
  ASSERT_VALUE(wire, Impairment::attach(host("r2"), "eth0", {.ecn = {0, kDrop, kDrop, kDrop}}));
  net::EcnFindings found;
  probe_server(found);
  EXPECT_EQ(found.verdict, EcnVerdict::kEctDropped) << found.summary;
  EXPECT_EQ(found.ect0.text, "0 of 6 arrived, 11 of 11 without ECT");
  EXPECT_EQ(found.ect1.fate, Fate::kDropped);
  EXPECT_EQ(found.ce.fate, Fate::kDropped);
}

TEST_P(EcnPath, dscp_rewritten_at_hop_1) {
  ASSERT_VALUE(wire, Impairment::attach(host("r1"), "eth0", {.dscp = 34}));
  net::EcnFindings found;
  probe_server(found);
  EXPECT_EQ(found.verdict, EcnVerdict::kUsable) << found.summary;
  EXPECT_EQ(found.dscp.fate, Fate::kChanged);
  EXPECT_EQ(found.dscp.hop, 1) << found.dscp.text;
  EXPECT_THAT(found.dscp.text, HasSubstr("0 is 34 at hop 1"));
}

TEST_P(EcnPath, congested_path_is_usable) {
  ASSERT_VALUE(wire, Impairment::attach(host("r2"), "eth0", {.seed = 5, .ce = 0.5}));
  net::EcnFindings found;
  probe_server(found);
  EXPECT_EQ(found.verdict, EcnVerdict::kUsable) << found.summary;
  EXPECT_EQ(found.ect0.fate, Fate::kIntact) << found.ect0.text;
}

TEST_P(EcnPath, nothing_listens) {
  ASSERT_VALUE(seen, probe(destination()));
  const auto found = net::judge(seen);
  EXPECT_EQ(found.verdict, EcnVerdict::kClosed) << found.summary;
  EXPECT_EQ(found.ect0.fate, Fate::kIntact) << found.ect0.text;  // UDP tells
  EXPECT_TRUE(found.ect0.at_destination);
}

TEST_P(EcnPath, host_that_never_answers) {
  ASSERT_VALUE(wire, Impairment::attach(host("b"), "eth0", {.drop = 1}));
  ASSERT_VALUE(seen, probe(destination()));
  const auto found = net::judge(seen);
  EXPECT_EQ(found.verdict, EcnVerdict::kSilent) << found.summary;
  EXPECT_EQ(found.ect0.hop, 2) << found.ect0.text;
}

TEST_P(EcnPath, router_without_a_route) {
  ASSERT_VALUE(seen, probe(GetParam() == AF_INET ? "10.9.0.9" : "fd09::9"));
  const auto found = net::judge(seen);
  EXPECT_EQ(found.verdict, EcnVerdict::kUnreachable) << found.summary;
  EXPECT_EQ(found.ect0.hop, 1) << found.ect0.text;
  EXPECT_EQ(found.summary, "network unreachable, says " + std::string(GetParam() == AF_INET ? "10.1.0.254" : "fd01::fe"));
}

TEST_P(EcnPath, host_without_a_route_or_with_another_source) {
  const auto no_route = probe(GetParam() == AF_INET ? "192.0.2.1" : "2001:db8::1");
  ASSERT_FALSE(no_route.has_value());
  EXPECT_EQ(no_route.error().code, Code::kNotFound);
  EXPECT_THAT(no_route.error().message(), HasSubstr("there is no route to"));
  const auto stranger = probe(destination(), GetParam() == AF_INET ? "10.99.0.1" : "fd99::1");
  ASSERT_FALSE(stranger.has_value());
  EXPECT_EQ(stranger.error().code, Code::kInvalid);
  const auto other_family = probe(destination(), host("a").address(GetParam() == AF_INET ? AF_INET6 : AF_INET));
  ASSERT_FALSE(other_family.has_value());
  EXPECT_EQ(other_family.error().code, Code::kInvalid);
}

// ---- the agent

class EcnAgent : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_VALUE(topology, Topology::create(path_spec()));
    topology_.emplace(std::move(topology));
    agent_.emplace(*topology_);
  }
  Host& b() { return topology_->host("b"); }
  std::string target() { return fmt::format("{}:{}", b().address(AF_INET), kPort); }

  std::optional<Topology> topology_;
  std::optional<Agent> agent_;
};

const Policy kPlaces{
    .uses = {.near = kNative, .far = kNative, .external = kNative, .unknown = kNative}, .bundles = {}, .transitional = ""};

TEST_F(EcnAgent, keeps_what_it_found_and_explains_it) {
  ASSERT_OK(agent_->start());
  ASSERT_VALUE(applied, agent_->apply(kPlaces));
  ASSERT_VALUE(before, agent_->json({"explain", "10.2.0.2"}));
  EXPECT_TRUE(before["ecn"].is_null());

  ASSERT_VALUE(server, serve_once(b(), AF_INET, false));
  ASSERT_VALUE(probed, agent_->json({"ecn", "probe", target()}));
  EXPECT_EQ(probed["verdict"], "usable");
  EXPECT_EQ(probed["place"], "us");
  EXPECT_EQ(probed["source"], "10.1.0.1");
  EXPECT_EQ(probed["hops_to_peer"], 3);
  EXPECT_EQ(probed["ect0"]["fate"], "intact");
  ASSERT_VALUE(status, server.wait(kSoon));
  EXPECT_EQ(status, 0);

  ASSERT_OK(b().set_sysctl("net.ipv4.tcp_ecn", "0"));
  ASSERT_VALUE(second, serve_once(b(), AF_INET6, false));
  ASSERT_VALUE(refused,
               agent_->json({"ecn", "probe", fmt::format("[fd02::2]:{}", kPort), "--dscp", "10", "--from", "fd01::1"}, {3}));
  EXPECT_EQ(refused["verdict"], "refused");
  EXPECT_EQ(refused["dscp"], 10);
  EXPECT_EQ(refused["dscp_kept"]["fate"], "intact");
  ASSERT_VALUE(closed, agent_->json({"ecn", "probe", "10.2.0.2", "--port", "1"}, {1}));
  EXPECT_EQ(closed["verdict"], "closed");

  ASSERT_OK(agent_->kill());
  ASSERT_OK(agent_->start());
  ASSERT_VALUE(list, agent_->json({"ecn", "list"}));
  ASSERT_EQ(list["probes"].size(), 3u);
  EXPECT_EQ(list["probes"][0]["verdict"], "closed");  // newest first
  EXPECT_EQ(list["probes"][2], probed);
  ASSERT_VALUE(v6, agent_->json({"explain", "fd02::2"}));
  EXPECT_EQ(v6["ecn"]["verdict"], "refused");
  EXPECT_FALSE(v6["ecn"].contains("hops") && !v6["ecn"]["hops"].empty());
  ASSERT_VALUE(neighbour, agent_->json({"explain", "10.2.0.77"}));  // of the same place
  EXPECT_EQ(neighbour["ecn"]["destination"], "10.2.0.2");
  ASSERT_VALUE(elsewhere, agent_->json({"explain", "10.3.0.1"}));
  EXPECT_TRUE(elsewhere["ecn"].is_null());
  ASSERT_VALUE(events, agent_->cli({"events"}));
  EXPECT_THAT(events.text, HasSubstr(fmt::format("ecn-probed    10.2.0.2 port {} (us): usable: ECN is negotiated", kPort)));
  ASSERT_VALUE(down, agent_->cli({"down"}));
  EXPECT_EQ(down.status, 0) << down.text;
}

TEST_F(EcnAgent, refuses_a_second_probe_of_a_destination_and_ends_the_first_with_itself) {
  ASSERT_OK(agent_->start());
  ASSERT_VALUE(wire, Impairment::attach(b(), "eth0", {.drop = 1}));
  ASSERT_VALUE(first, agent_->start_cli({"--verbose", "ecn", "probe", target()}));
  ASSERT_VALUE(line, first.read_line(kSoon));
  EXPECT_EQ(line, "[1/4] SYN with ECN");
  ASSERT_VALUE(second, agent_->cli({"ecn", "probe", "10.2.0.2", "--port", "7"}));
  EXPECT_EQ(second.status, 4) << second.text;
  EXPECT_THAT(second.text, HasSubstr("10.2.0.2 is being probed already"));
  // The agent is asked to end: so does the probe, long before its time.
  ASSERT_OK(agent_->stop());
  ASSERT_VALUE(rest, first.read_all(kSoon));
  ASSERT_VALUE(status, first.wait(kSoon));
  EXPECT_EQ(status, 1) << rest;
}

TEST_F(EcnAgent, says_what_is_wrong) {
  ASSERT_OK(agent_->start());
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"ecn", "probe", "192.0.2.1"}, "there is no route to 192.0.2.1"},
      {{"ecn", "probe", "224.0.0.1"}, "is not an address of one host"},
      {{"ecn", "probe", "10.2.0.2", "--from", "10.99.0.1"}, "is not an address of the agent's host"},
      {{"ecn", "probe", "10.2.0.2", "--port", "0"}, "0 is not a TCP port"},
      {{"ecn", "list", "somewhere"}, "is not an IP address"},
  };
  for (const auto& [words, text] : cases) {
    ASSERT_VALUE(said, agent_->cli(words));
    EXPECT_EQ(said.status, 1) << said.text;
    EXPECT_THAT(said.text, HasSubstr(text));
    EXPECT_THAT(said.text, HasSubstr("fix:"));
  }
}

TEST_F(EcnAgent, without_the_right_to_send_raw_packets_says_so) {
  ASSERT_OK(agent_->start({}, "set -- setpriv --bounding-set -net_raw --inh-caps -net_raw \"$@\""));
  ASSERT_VALUE(said, agent_->cli({"ecn", "probe", target()}));
  EXPECT_EQ(said.status, 1);
  EXPECT_THAT(said.text, HasSubstr("CAP_NET_RAW is missing"));
  ASSERT_VALUE(doctor, agent_->cli({"doctor"}));
  EXPECT_THAT(doctor.text, testing::ContainsRegex("cap_net_raw +warning"));
}

}  // namespace
}  // namespace sluice::test
