// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What the agent promises, on the running kernel with real sockets: sluiced and sluice as they are installed, judged by the
// recorder and by what the traffic program saw at both ends of each connection.
#include <bpf/bpf.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/bpf.h>

#include <algorithm>
#include <fstream>

#include "netns/agent_fixture.h"

namespace sluice::test {
namespace {

using testing::HasSubstr;

const auto* const kBpffs = testing::AddGlobalTestEnvironment(new PrivateBpffs);

const std::string kCubic = "cubic@1.0.0";
const std::string kCubicNext = "cubic@1.0.1";

class AgentTest : public AgentWorldTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(AgentWorldTest::SetUp());
    ASSERT_OK(agent_->copy_bundle("cubic/1.0.0", "1.0.1"));
    ASSERT_OK(agent_->start());
  }

  // Every socket of both hosts is on what the rules say.
  void expect_in_force(Agent& agent, const Uses& uses, const std::string& listener) {
    ASSERT_VALUE(identities, agent.identities({uses.near, uses.far, uses.external, uses.unknown, listener}));
    ASSERT_VALUE(wrong, differences(*recorder_, *topology_, uses, listener, identities));
    EXPECT_EQ(wrong, "");
  }
  // Reads events, from the first on, until one of that kind tells of that.
  void await_event(const std::string& kind, const std::string& text) {
    ASSERT_VALUE(events, agent_->start_cli({"--output", "json", "events", "--follow"}));
    while (true) {
      ASSERT_VALUE(line, events.read_line(kSoon));
      const auto event = nlohmann::json::parse(line, nullptr, false);
      ASSERT_FALSE(event.is_discarded()) << line;
      if (event["kind"] == kind && event["message"].get<std::string>().find(text) != std::string::npos) return;
    }
  }
  void expect_in_force(const Uses& uses, const std::string& listener = kCubic) { expect_in_force(*agent_, uses, listener); }

  Host& a() { return topology_->host("a"); }
  Host& b() { return topology_->host("b"); }
};

const Policy kPolicy{.uses = {.near = kNative, .far = kCubic, .external = kNative2, .unknown = kNative}};
const Uses kNobody{.near = kFallbackUse, .far = kFallbackUse, .external = kFallbackUse, .unknown = kFallbackUse};

TEST_F(AgentTest, new_connections_follow_the_policy_at_both_ends) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_VALUE(open, Connections::open(*topology_, 5));
  expect_in_force(kPolicy.uses);
  ASSERT_VALUE(sockets, established(*recorder_, *topology_));
  EXPECT_EQ(sockets.size(), 2u * 5 * std::size(kEverywhere));
}

TEST_F(AgentTest, apply_migrates_established_and_listening_sockets) {
  ASSERT_VALUE(open, Connections::open(*topology_, 5));
  expect_in_force(kNobody, kFallbackUse);
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  EXPECT_TRUE(applied["migration"]["complete"].get<bool>()) << applied;
  // 60 ends and a listener for each address.
  EXPECT_EQ(applied["migration"]["moved"], std::to_string(2 * open.count() + std::size(kEverywhere)));
  expect_in_force(kPolicy.uses);

  Policy next = kPolicy;
  next.uses = {.near = kCubic, .far = kNative2, .external = kNative, .unknown = kNative2};
  ASSERT_VALUE(again, agent_->apply(next));
  expect_in_force(next.uses);
}

// What a's ends of the connections to one place of b run, and who chose it: "reno application".
Result<std::set<std::string>> chosen(const Agent& agent, Where where) {
  SLUICE_TRY(reply, agent.json({"sockets"}));
  std::set<std::string> found;
  for (const auto& socket : reply["sockets"])
    if (without_port(socket["remote"]) == address("b", where) && socket["state"] == "established")
      found.insert(fmt::format("{} {}", socket["cca"].get<std::string>(), socket["origin"].get<std::string>()));
  return found;
}

TEST_F(AgentTest, an_applications_own_choice_is_what_its_rule_makes_of_it) {
  ASSERT_VALUE(open, Connections::open(*topology_, 1));
  ASSERT_OK(open.more(*topology_, 1, {Where::kNear}, "reno"));  // older than the agent's hooks: nobody knows who chose
  Policy policy = kPolicy;
  policy.rules_before =
      "  - {name: free, match: {locality: [intra_rack, intra_dc, intra_region]}, use: \"cubic@1.0.0\", application: respect}\n";
  policy.uses.near = kCubic;
  const std::string document = policy.document();
  // The free rule takes what the near one would: it has to go.
  const auto near = document.find("  - {name: near");
  ASSERT_VALUE(applied, agent_->apply_text(document.substr(0, near) + document.substr(document.find('\n', near) + 1)));
  EXPECT_TRUE(applied["migration"]["complete"].get<bool>()) << applied;
  ASSERT_VALUE(cubic, agent_->identity(kCubic));
  ASSERT_VALUE(before, chosen(*agent_, Where::kNear));
  EXPECT_THAT(before, testing::ElementsAre(cubic.name + " policy"));

  ASSERT_OK(open.more(*topology_, 2, {Where::kNear, Where::kNear6, Where::kFar}, "reno"));
  for (const Where where : {Where::kNear, Where::kNear6}) {
    ASSERT_VALUE(found, chosen(*agent_, where));
    EXPECT_THAT(found, testing::ElementsAre(cubic.name + " policy", "reno application"));
  }
  ASSERT_VALUE(far, chosen(*agent_, Where::kFar));
  EXPECT_THAT(far, testing::ElementsAre(cubic.name + " policy")) << "overridden";
  ASSERT_VALUE(migrated, agent_->json({"migrate"}));
  EXPECT_EQ(migrated["moved"], "0") << migrated;

  ASSERT_VALUE(taken, agent_->apply(kPolicy));
  ASSERT_VALUE(after, chosen(*agent_, Where::kNear));
  EXPECT_THAT(after, testing::ElementsAre(kNative.substr(7) + " policy")) << "no rule respects it any more";
  ASSERT_VALUE(down, agent_->json({"down"}));
}

TEST_F(AgentTest, two_versions_live_side_by_side_and_are_told_apart) {
  Policy policy = kPolicy;
  policy.bundles = {kCubic, kCubicNext};
  policy.uses.near = kCubicNext;
  ASSERT_VALUE(open, Connections::open(*topology_, 3));
  ASSERT_VALUE(applied, agent_->apply(policy));
  ASSERT_OK(open.more(*topology_, 3, {Where::kNear, Where::kFar6}));
  ASSERT_VALUE(old_one, agent_->identity(kCubic));
  ASSERT_VALUE(new_one, agent_->identity(kCubicNext));
  EXPECT_NE(old_one.struct_ops_id, new_one.struct_ops_id);
  EXPECT_NE(old_one.name, new_one.name);
  expect_in_force(policy.uses);
  ASSERT_VALUE(status, agent_->json({"status"}));
  std::map<std::string, std::string> sockets;  // version -> sockets
  for (const auto& cca : status["ccas"]) sockets[cca["version"].get<std::string>()] = cca["sockets"];
  EXPECT_EQ(sockets["1.0.1"], std::to_string(2 * (3 + 3 + 3)));  // near, near6, and three more near
  EXPECT_EQ(sockets["1.0.0"], std::to_string(2 * (3 + 3 + 3)));
}

TEST_F(AgentTest, a_moved_prefix_rescopes_existing_sockets) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_VALUE(open, Connections::open(*topology_, 3));
  expect_in_force(kPolicy.uses);
  // Region us moves from 10.2 to 10.9: those of 10.2 are unknown now.
  Policy moved = kPolicy;
  moved.far_prefixes = "10.9.0.0/16";
  ASSERT_VALUE(again, agent_->apply(moved));
  ASSERT_VALUE(cubic, agent_->identity(kCubic));
  ASSERT_VALUE(sockets, established(*recorder_, *topology_));
  int judged = 0;
  for (const auto& socket : sockets) {
    const Where where = where_is(socket.remote);
    if (where != Where::kFar && where != Where::kUnknown) continue;
    ++judged;
    EXPECT_EQ(socket.cca, where == Where::kUnknown ? cubic.name : kNative.substr(7)) << to_json(socket);
  }
  EXPECT_EQ(judged, 12);
}

TEST_F(AgentTest, a_moved_service_rescopes_existing_sockets) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_VALUE(open, Connections::open(*topology_, 2));
  ASSERT_VALUE(cubic, agent_->identity(kCubic));
  // Sockets of the service run cubic, all others what they ran. `of_service` is the definition by hand.
  const auto expect_service = [&](const std::string& definition, const std::function<bool(const SocketRecord&)>& of_service) {
    Policy policy = kPolicy;
    policy.extra = fmt::format("services:\n  - {{name: web, {}}}\n", definition);
    policy.rules_before = "  - {name: web, match: {service: web}, use: \"cubic@1.0.0\"}\n";
    ASSERT_VALUE(again, agent_->apply(policy));
    ASSERT_VALUE(sockets, established(*recorder_, *topology_));
    ASSERT_EQ(sockets.size(), 2u * 2 * std::size(kEverywhere));
    int inside = 0;
    for (const auto& socket : sockets) {
      const std::string& use = kPolicy.uses.of(where_is(socket.remote));
      const std::string want = of_service(socket) || use == kCubic ? cubic.name : use.substr(7);
      inside += of_service(socket);
      EXPECT_EQ(socket.cca, want) << definition << ": " << to_json(socket);
    }
    EXPECT_GT(inside, 0) << definition;
  };
  expect_service("sources: [10.1.0.1/32]", [](const auto& s) { return s.local == "10.1.0.1"; });
  expect_service("sources: [10.3.0.0/16, \"fd01::2/128\"]",
                 [](const auto& s) { return s.local.starts_with("10.3.") || s.local == "fd01::2"; });
  expect_service(fmt::format("ports: [{}]", kPort), [](const auto& s) { return s.local_port == kPort; });
  const auto below_mount = [&](const Host& host) { return "/" + topology_->name() + "/" + host.name(); };
  for (const Host* host : {&a(), &b()})
    expect_service(fmt::format("cgroups: [{}]", below_mount(*host)),
                   [&](const auto& s) { return s.cgroup_id == host->cgroup_id(); });
}

TEST_F(AgentTest, a_killed_agent_changes_nothing_and_finds_everything_again) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_VALUE(open, Connections::open(*topology_, 3));
  ASSERT_VALUE(before, agent_->identity(kCubic));
  ASSERT_OK(agent_->kill());
  expect_in_force(kPolicy.uses);
  ASSERT_OK(open.more(*topology_, 4, {std::begin(kEverywhere), std::end(kEverywhere)}));
  expect_in_force(kPolicy.uses);

  ASSERT_OK(agent_->start());
  ASSERT_VALUE(after, agent_->identity(kCubic));
  EXPECT_EQ(before, after);
  ASSERT_VALUE(status, agent_->json({"status"}));
  EXPECT_EQ(status["state"], "active") << status["problems"];
  EXPECT_EQ(status["generation"], applied["generation"]);
  ASSERT_VALUE(sockets, established(*recorder_, *topology_));
  std::map<std::string, std::uint64_t> counted, told;
  for (const auto& socket : sockets) ++counted[socket.cca];
  for (const auto& cca : status["ccas"])
    if (cca["sockets"] != "0") told[cca["kernel_name"].get<std::string>()] = std::stoull(cca["sockets"].get<std::string>());
  EXPECT_EQ(told, counted);
  ASSERT_VALUE(unchanged, agent_->apply(kPolicy));
  EXPECT_FALSE(unchanged["changed"].get<bool>());
}

TEST_F(AgentTest, an_agent_with_another_pipeline_takes_over_under_churn) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_VALUE(open, Connections::open(*topology_, 3));
  Churn churn(*topology_, agent_->dir());
  ASSERT_OK(churn.start(150));
  const auto program = [&]() -> std::uint32_t {
    auto attached = sockops_programs(topology_->cgroup());
    return attached && attached->size() == 1 ? attached->front() : 0;
  };
  const std::uint32_t before = program();
  ASSERT_NE(before, 0u);
  ASSERT_OK(agent_->kill());
  ASSERT_OK(agent_->copy_bundle("policy/1.0.0", "1.0.1"));
  ASSERT_OK(agent_->start());
  ASSERT_VALUE(again, agent_->apply(kPolicy));
  EXPECT_NE(program(), 0u);
  EXPECT_NE(program(), before);
  expect_in_force(kPolicy.uses);
  ASSERT_VALUE(cubic, agent_->identity(kCubic));
  ASSERT_VALUE(records, churn.stop());
  const std::set<std::string> names = {cubic.name, kNative.substr(7), kNative2.substr(7)};
  for (const auto& record : records) EXPECT_TRUE(names.contains(record.cca)) << record.cca << " to " << record.remote;
  EXPECT_GT(records.size(), 100u);
  ASSERT_VALUE(status, agent_->json({"status"}));
  EXPECT_EQ(status["state"], "active") << status["problems"];
}

TEST_F(AgentTest, upgrade_and_rollback_under_churn_have_no_third_cca) {
  Policy policy = kPolicy;
  policy.uses = {.near = kCubic, .far = kCubic, .external = kCubic, .unknown = kCubic};
  ASSERT_VALUE(applied, agent_->apply(policy));
  ASSERT_VALUE(open, Connections::open(*topology_, 10));
  Churn churn(*topology_, agent_->dir());
  ASSERT_OK(churn.start(150));

  Policy next = policy;
  next.bundles = {kCubic, kCubicNext};
  next.uses = {.near = kCubicNext, .far = kCubicNext, .external = kCubicNext, .unknown = kCubicNext};
  std::set<std::string> names;
  for (int round = 0; round < 3; ++round) {
    ASSERT_VALUE(upgraded, agent_->apply(next));
    EXPECT_TRUE(upgraded["migration"]["complete"].get<bool>()) << upgraded;
    expect_in_force(next.uses);
    ASSERT_VALUE(both, agent_->identities({kCubic, kCubicNext}));
    for (const auto& [target, identity] : both) names.insert(identity.name);
    ASSERT_VALUE(back, agent_->json({"rollback", kCubicNext}));
    EXPECT_EQ(back["to"], kCubic);
    EXPECT_TRUE(back["retired"].get<bool>()) << back;
    expect_in_force(policy.uses);
    // Naming it again is a decision that must be said.
    Policy other = next;
    other.extra = "options: {self_migrate: true}\n";
    ASSERT_VALUE(refused, agent_->try_apply(other));
    EXPECT_EQ(refused.status, 4) << refused.text;
    EXPECT_THAT(refused.text, HasSubstr("--clear-rollbacks"));
    ASSERT_VALUE(old, agent_->apply(policy));
    expect_in_force(policy.uses);
  }
  ASSERT_VALUE(records, churn.stop());
  EXPECT_EQ(names.size(), 2u);
  std::map<std::string, int> others;
  for (const auto& record : records)
    if (!names.contains(record.cca)) ++others[record.event + " " + record.cca];
  EXPECT_TRUE(others.empty()) << testing::PrintToString(others);
  EXPECT_GT(records.size(), 1000u);
}

TEST_F(AgentTest, a_route_and_a_namespace_default_keep_a_cca_and_refuse_down) {
  ASSERT_OK(agent_->make_bundle("unrestricted", "agent_unrestricted.o", "init, release, ssthresh, cong_avoid, undo_cwnd"));
  Policy policy = kPolicy;
  policy.bundles = {kCubic, "unrestricted@1.0.0"};
  policy.uses.far = "unrestricted@1.0.0";
  ASSERT_VALUE(applied, agent_->apply(policy));
  ASSERT_VALUE(ours, agent_->identity("unrestricted@1.0.0"));
  ASSERT_OK(b().set_sysctl("net.ipv4.tcp_congestion_control", ours.name));
  ASSERT_VALUE(routed, a().run({"ip", "route", "add", "192.0.2.0/24", "dev", "eth0", "congctl", ours.name}));
  ASSERT_EQ(routed.status, 0) << routed.text;

  const auto expect_users = [&](const std::string& text) {
    EXPECT_THAT(text, HasSubstr(fmt::format("netns {}", b().netns_inode())));
    EXPECT_THAT(text, HasSubstr("tcp_congestion_control"));
    EXPECT_THAT(text, HasSubstr(fmt::format("netns {}", a().netns_inode())));
    EXPECT_THAT(text, HasSubstr("192.0.2.0/24"));
  };
  ASSERT_VALUE(down, agent_->cli({"down"}));
  EXPECT_EQ(down.status, 4) << down.text;
  expect_users(down.text);
  ASSERT_VALUE(open, Connections::open(*topology_, 1));
  expect_in_force(policy.uses);

  // A document without it migrates the sockets; the CCA stays, with its users listed.
  ASSERT_VALUE(without, agent_->apply(kPolicy));
  ASSERT_EQ(without["retained"].size(), 1u) << without;
  EXPECT_EQ(without["retained"][0]["cca"], "unrestricted@1.0.0");
  expect_users(without["retained"][0]["users"].dump());
  EXPECT_TRUE(available_ccas().contains(ours.name));
  // A listener made by the namespace's default gets the policy's CCA all the same.
  ASSERT_VALUE(more, Connections::open(*topology_, 1, kPort + 1));
  expect_in_force(kPolicy.uses);

  ASSERT_OK(b().set_sysctl("net.ipv4.tcp_congestion_control", kFallback));
  ASSERT_VALUE(gone, a().run({"ip", "route", "del", "192.0.2.0/24"}));
  // Nobody uses it any more: the agent retires it by itself.
  ASSERT_NO_FATAL_FAILURE(await_event("retired", "unrestricted@1.0.0"));
  EXPECT_FALSE(available_ccas().contains(ours.name));
  expect_in_force(kPolicy.uses);
  ASSERT_VALUE(now, agent_->json({"down"}));
  ASSERT_OK(agent_->wait_exit());
}

TEST_F(AgentTest, a_program_that_somebody_detached_is_attached_again) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_VALUE(cubic, agent_->identity(kCubic));
  Fd link(::bpf_obj_get((agent_->pin_dir() + "/policy/link/sockops").c_str()));
  ASSERT_TRUE(link);
  ASSERT_EQ(::bpf_link_detach(link.get()), 0);
  ASSERT_VALUE(open, Connections::open(*topology_, 2));  // perhaps unselected
  ASSERT_NO_FATAL_FAILURE(await_event("repaired", "detached"));
  ASSERT_OK(open.more(*topology_, 2, {std::begin(kEverywhere), std::end(kEverywhere)}));
  // Whoever came in the gap was migrated.
  ASSERT_VALUE(migrated, agent_->json({"migrate"}));
  expect_in_force(kPolicy.uses);
  ASSERT_VALUE(status, agent_->json({"status"}));
  EXPECT_EQ(status["state"], "active") << status["problems"];
  ASSERT_VALUE(programs, sockops_programs(topology_->cgroup()));
  EXPECT_EQ(programs.size(), 1u);
}

TEST_F(AgentTest, a_route_that_locks_its_congctl_is_a_leftover_with_its_reason) {
  ASSERT_VALUE(locked, a().run({"ip", "route", "add", address("b", Where::kFar) + "/32", "dev", "eth0", "src",
                                address("a", Where::kFar), "congctl", "lock", "reno"}));
  ASSERT_EQ(locked.status, 0) << locked.text;
  ASSERT_VALUE(open, Connections::open(*topology_, 2));
  ASSERT_VALUE(applied, agent_->apply(kPolicy, {3}));
  EXPECT_FALSE(applied["migration"]["complete"].get<bool>());
  ASSERT_EQ(applied["migration"]["left"].size(), 1u) << applied;
  const auto& left = applied["migration"]["left"][0];
  EXPECT_THAT(left["reason"].get<std::string>(), HasSubstr("congctl lock"));
  EXPECT_EQ(left["sockets"], "2");
  ASSERT_VALUE(cubic, agent_->identity(kCubic));
  ASSERT_VALUE(sockets, established(*recorder_, *topology_));
  for (const auto& socket : sockets) {
    if (socket.remote == address("b", Where::kFar)) {
      EXPECT_EQ(socket.cca, "reno") << to_json(socket);
    } else if (where_is(socket.remote) == Where::kFar) {
      EXPECT_EQ(socket.cca, cubic.name) << to_json(socket);
    }
  }
}

TEST_F(AgentTest, down_restores_sysctls_and_leaves_nothing) {
  ASSERT_OK(a().set_sysctl("net.ipv4.tcp_ecn", "0"));
  ASSERT_OK(a().set_sysctl("net.ipv4.tcp_slow_start_after_idle", "1"));
  Policy policy = kPolicy;
  policy.bundles = {kCubic, kCubicNext};
  policy.uses.near = kCubicNext;
  policy.extra = "sysctls: {net.ipv4.tcp_ecn: 1, net.ipv4.tcp_slow_start_after_idle: 0}\n";
  ASSERT_VALUE(open, Connections::open(*topology_, 3));
  ASSERT_VALUE(applied, agent_->apply(policy));
  ASSERT_VALUE(ecn, a().sysctl("net.ipv4.tcp_ecn"));
  EXPECT_EQ(ecn, "1");
  ASSERT_VALUE(ours, agent_->identities({kCubic, kCubicNext}));
  EXPECT_TRUE(std::filesystem::exists(agent_->pin_dir()));

  ASSERT_VALUE(down, agent_->json({"down"}));
  ASSERT_OK(agent_->wait_exit());
  ASSERT_VALUE(restored, a().sysctl("net.ipv4.tcp_ecn"));
  EXPECT_EQ(restored, "0");
  ASSERT_VALUE(idle, a().sysctl("net.ipv4.tcp_slow_start_after_idle"));
  EXPECT_EQ(idle, "1");
  ASSERT_VALUE(wrong, differences(*recorder_, *topology_, kNobody, kFallbackUse, {{kFallbackUse, {kFallback, 0}}}));
  EXPECT_EQ(wrong, "");
  EXPECT_FALSE(std::filesystem::exists("/sys/fs/bpf/sluice"));
  EXPECT_FALSE(std::filesystem::exists(agent_->socket()));
  for (const auto& [target, identity] : ours) {
    EXPECT_FALSE(available_ccas().contains(identity.name));
    Fd map(::bpf_map_get_fd_by_id(identity.struct_ops_id));
    EXPECT_FALSE(map) << target << " is still in the kernel as map " << identity.struct_ops_id;
  }
  ASSERT_VALUE(programs, sockops_programs(topology_->cgroup()));
  EXPECT_TRUE(programs.empty());
  // And up again from nothing, by the state that is left.
  ASSERT_OK(agent_->start());
  ASSERT_VALUE(status, agent_->json({"status"}));
  EXPECT_EQ(status["state"], "idle");
  ASSERT_VALUE(again, agent_->apply(policy));
  expect_in_force(policy.uses);
}

TEST_F(AgentTest, two_agents_in_one_kernel_do_not_disturb_each_other) {
  // The fixture's agent makes way for one for each host.
  ASSERT_VALUE(idle, agent_->json({"down"}));
  ASSERT_OK(agent_->wait_exit());
  Agent left(*topology_, {.tag = "l", .hosts = {"a"}, .cgroup = a().cgroup()});
  Agent right(*topology_, {.tag = "r", .hosts = {"b"}, .cgroup = b().cgroup()});
  ASSERT_OK(left.start());
  ASSERT_OK(right.start());
  ASSERT_VALUE(open, Connections::open(*topology_, 3));
  Policy other = kPolicy;
  other.uses = {.near = kCubic, .far = kNative2, .external = kNative, .unknown = kNative2};
  ASSERT_VALUE(first, left.apply(kPolicy));
  ASSERT_VALUE(second, right.apply(other));
  ASSERT_OK(open.more(*topology_, 2, {std::begin(kEverywhere), std::end(kEverywhere)}));
  ASSERT_VALUE(mine, left.identity(kCubic));
  ASSERT_VALUE(yours, right.identity(kCubic));
  EXPECT_NE(mine.name, yours.name);
  const auto expect_host = [&](const Host& host, const Uses& uses, const Identity& cubic) {
    ASSERT_VALUE(sockets, recorder_->list(host.netns_fd()));
    int judged = 0;
    for (const auto& socket : sockets) {
      if (socket.state != "ESTABLISHED") continue;
      const std::string& use = uses.of(where_is(socket.remote));
      EXPECT_EQ(socket.cca, use == kCubic ? cubic.name : use.substr(7)) << to_json(socket);
      ++judged;
    }
    EXPECT_EQ(judged, open.count());
  };
  expect_host(a(), kPolicy.uses, mine);
  expect_host(b(), other.uses, yours);

  ASSERT_VALUE(down, left.json({"down"}));
  ASSERT_OK(left.wait_exit());
  expect_host(a(), kNobody, {});
  expect_host(b(), other.uses, yours);
  ASSERT_OK(open.more(*topology_, 1, {Where::kNear, Where::kFar}));
  expect_host(a(), kNobody, {});
  expect_host(b(), other.uses, yours);
  ASSERT_VALUE(status, right.json({"status"}));
  EXPECT_EQ(status["state"], "active") << status["problems"];
  ASSERT_VALUE(end, right.json({"down"}));
}

// Another team's sockops program: counts its calls.
class ForeignSockops {
 public:
  Status attach(const std::string& cgroup) {
    map_ = Fd(::bpf_map_create(BPF_MAP_TYPE_ARRAY, "foreign", 4, 8, 1, nullptr));
    if (!map_) return fail_errno(errno, "cannot make a map");
    bpf_insn code[] = {
        {.code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_VALUE, .off = 0, .imm = map_.get()},
        {.code = 0, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 2, .src_reg = 0, .off = 0, .imm = 1},
        {.code = BPF_STX | BPF_DW | BPF_ATOMIC, .dst_reg = 1, .src_reg = 2, .off = 0, .imm = BPF_ADD},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 1},
        {.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
    };
    program_ = Fd(::bpf_prog_load(BPF_PROG_TYPE_SOCK_OPS, "foreign", "GPL", code, std::size(code), nullptr));
    if (!program_) return fail_errno(errno, "cannot load a program");
    Fd folder(::open(cgroup.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    link_ = Fd(::bpf_link_create(program_.get(), folder.get(), BPF_CGROUP_SOCK_OPS, nullptr));
    if (!link_) return fail_errno(errno, "cannot attach to {}", cgroup);
    return {};
  }
  std::uint64_t calls() const {
    std::uint64_t value = 0;
    const std::uint32_t zero = 0;
    ::bpf_map_lookup_elem(map_.get(), &zero, &value);
    return value;
  }

 private:
  Fd map_, program_, link_;
};

TEST_F(AgentTest, a_foreign_sockops_program_on_the_same_cgroup_keeps_working) {
  ForeignSockops foreign;
  ASSERT_OK(foreign.attach(topology_->cgroup()));
  ASSERT_VALUE(open, Connections::open(*topology_, 1));
  const auto alone = foreign.calls();
  EXPECT_GT(alone, 0u);
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_OK(open.more(*topology_, 1, {std::begin(kEverywhere), std::end(kEverywhere)}));
  expect_in_force(kPolicy.uses);
  const auto beside = foreign.calls();
  EXPECT_GT(beside, alone);
  ASSERT_VALUE(status, agent_->json({"status"}));
  EXPECT_TRUE(std::ranges::any_of(status["hooks"], [](const auto& hook) {
    return !hook["ours"].template get<bool>() && hook["name"].template get<std::string>().find("foreign") != std::string::npos;
  })) << status["hooks"];
  ASSERT_VALUE(down, agent_->json({"down"}));
  ASSERT_VALUE(programs, sockops_programs(topology_->cgroup()));
  EXPECT_EQ(programs.size(), 1u);
  ASSERT_OK(open.more(*topology_, 1, {Where::kNear}));
  EXPECT_GT(foreign.calls(), beside);
}

}  // namespace
}  // namespace sluice::test
