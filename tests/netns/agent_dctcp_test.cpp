// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bundle `dctcp` as the product delivers it: selected by a policy where both ends need ECN, replaced where the other end does
// not, and carrying traffic over a wire that marks and loses. Judged by the recorder and by what the wire counted.
#include <gmock/gmock.h>

#include <fstream>

#include "harness/impairment.h"
#include "netns/agent_fixture.h"

namespace sluice::test {
namespace {

const auto* const kBpffs = testing::AddGlobalTestEnvironment(new PrivateBpffs);

const std::string kCubic = "cubic@1.0.0";
const std::string kDctcp = "dctcp@1.0.0";
const Policy kPolicy{.uses = {.near = kDctcp, .far = kCubic, .external = kNative, .unknown = kNative},
                     .bundles = {kCubic, kDctcp}};

class AgentDctcpTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_VALUE(topology, Topology::create(world_spec()));
    topology_.emplace(std::move(topology));
    ASSERT_VALUE(recorder, Recorder::load());
    recorder_.emplace(std::move(recorder));
  }
  // The near ends of host a run that; true in `ecn` if every one of them has ECN, false if none.
  void expect_near_on(Agent& agent, const std::string& target, bool ecn, std::size_t count) {
    ASSERT_VALUE(want, agent.identity(target));
    ASSERT_VALUE(sockets, recorder_->list(topology_->host("a").netns_fd()));
    std::size_t seen = 0;
    for (const SocketRecord& socket : sockets) {
      if (!socket.full || socket.state != "ESTABLISHED" || where_is(socket.remote) != Where::kNear) continue;
      ++seen;
      EXPECT_EQ((Identity{socket.cca, socket.struct_ops_id}), want) << to_json(socket);
      EXPECT_EQ(socket.ecn_ok, ecn) << to_json(socket);
    }
    EXPECT_EQ(seen, count);
  }

  std::optional<Topology> topology_;
  std::optional<Recorder> recorder_;
};

TEST_F(AgentDctcpTest, peers_under_the_policy_get_it_at_both_ends) {
  Agent agent(*topology_);
  ASSERT_OK(agent.start());
  ASSERT_VALUE(applied, agent.apply(kPolicy));
  ASSERT_VALUE(open, Connections::open(*topology_, 4));
  expect_near_on(agent, kDctcp, true, 4);
  ASSERT_VALUE(identities, agent.identities({kDctcp, kCubic, kNative}));
  ASSERT_VALUE(wrong, differences(*recorder_, *topology_, kPolicy.uses, kCubic, identities));
  EXPECT_EQ(wrong, "");
}

// Refuses by tcp_ecn = 0; or accepts ECN, but not from a SYN with ECT, as a CCA that needs ECN makes the kernel send it.
class AgentDctcpPeer : public AgentDctcpTest, public testing::WithParamInterface<const char*> {};

TEST_P(AgentDctcpPeer, a_peer_that_does_not_agree_gets_the_transitional_cca) {
  ASSERT_OK(topology_->host("b").set_sysctl("net.ipv4.tcp_ecn", GetParam()));
  Agent agent(*topology_, {.hosts = {"a"}, .cgroup = topology_->host("a").cgroup()});
  ASSERT_OK(agent.start());
  ASSERT_VALUE(applied, agent.apply(kPolicy));
  ASSERT_VALUE(open, Connections::open(*topology_, 4, kPort, {Where::kNear}));
  expect_near_on(agent, kCubic, false, 4);
}
INSTANTIATE_TEST_SUITE_P(TcpEcn, AgentDctcpPeer, testing::Values("0", "1", "2"),
                         [](const auto& test) { return std::string(test.param); });

struct Wire {
  const char* name;
  double ce, drop;
};
class AgentDctcpWire : public AgentDctcpTest, public testing::WithParamInterface<Wire> {};

TEST_P(AgentDctcpWire, every_mark_is_echoed_once_and_every_byte_arrives) {
  constexpr std::uint64_t kBytes = 3'000'000;
  const OneCpu ordered;  // an ACK that overtakes another speaks for its segments too
  Agent agent(*topology_);
  ASSERT_OK(agent.start());
  ASSERT_VALUE(applied, agent.apply(kPolicy));
  ASSERT_VALUE(wire, Impairment::attach(topology_->host("b"), "eth0",
                                        {.seed = 3, .ce = GetParam().ce, .drop = GetParam().drop, .port = kPort}));
  const std::string at = address("b", Where::kNear) + ":" + std::to_string(kPort);
  ASSERT_VALUE(server, Traffic::server(topology_->host("b"), {"--listen", at}));
  ASSERT_VALUE(client, Traffic::client(topology_->host("a"),
                                       {"--bind", address("a", Where::kNear), "--connect", at, "--connections", "1", "--bytes",
                                        std::to_string(kBytes), "--reply-bytes", "1", "--record", agent.dir() + "/client"}));
  ASSERT_VALUE(sent, client.finish(Millis(60000)));
  EXPECT_EQ(sent.closed, 1u);
  EXPECT_EQ(sent.failed, 0u);
  EXPECT_EQ(sent.bytes, kBytes + 1);
  ASSERT_VALUE(records, read_traffic_records(agent.dir() + "/client"));
  ASSERT_EQ(records.back().event, "close");
  const TrafficRecord& end = records.back();
  ASSERT_VALUE(dctcp, agent.identity(kDctcp));
  EXPECT_EQ(end.cca, dctcp.name);
  EXPECT_TRUE(end.ecn);

  // Marked, but not data of the first time: SYN, handshake, ACKs of the reply, FIN, retransmissions.
  const ImpairmentCounters counters = wire.counters();
  const std::uint64_t others = 8 + end.retransmits;
  // A lost ACK at the edge of a marked run lets the next one speak for the segments of both sides.
  EXPECT_LE(end.delivered_ce, counters.ce + 2 * counters.dropped);
  EXPECT_GE(end.delivered_ce + others, counters.ce);
  EXPECT_NEAR(static_cast<double>(counters.ce), GetParam().ce * static_cast<double>(counters.packets - counters.dropped),
              GetParam().ce == 0.1 ? 80 : 2);
  EXPECT_LE(counters.ce_not_ect, 2u) << "all but TIME_WAIT sends ECT";
  if (GetParam().drop > 0) {
    EXPECT_GT(counters.dropped, 5u);
    EXPECT_GE(end.retransmits, 1u);
  }
}
INSTANTIATE_TEST_SUITE_P(Marks, AgentDctcpWire,
                         testing::Values(Wire{"none", 0, 0}, Wire{"a_tenth", 0.1, 0}, Wire{"all", 1, 0},
                                         Wire{"a_tenth_and_losses", 0.1, 0.01}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(AgentDctcpTest, parameters_out_of_range_are_refused_with_their_range) {
  Agent agent(*topology_);
  ASSERT_OK(agent.start());
  for (const auto& [parameter, range] : {std::pair("ecn_window_rtts: 0", "1..255"), std::pair("ecn_window_rtts: 256", "1..255"),
                                         std::pair("alpha_initial_1024: 1025", "0..1024")}) {
    Policy policy = kPolicy;
    std::string document = policy.document();
    const std::string plain = "{name: dctcp, version: 1.0.0}";
    document.replace(document.find(plain), plain.size(),
                     fmt::format("{{name: dctcp, version: 1.0.0, parameters: {{{}}}}}", parameter));
    ASSERT_VALUE(output, agent.cli({"apply", agent.write_policy(document)}));
    EXPECT_NE(output.status, 0);
    EXPECT_THAT(output.text, testing::HasSubstr(range)) << parameter;
  }
}

}  // namespace
}  // namespace sluice::test
