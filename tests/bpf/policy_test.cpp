// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Promises of bundle `policy`, kept by real sockets: every callback of the connection state table, services, replacement of a
// policy, ECN, and the iterators. Each test has its own network namespace, cgroup and load of the bundle.
#include <linux/filter.h>
#include <poll.h>

#include <algorithm>
#include <set>

#include "policy_fixture.h"

namespace sluice::test {
namespace {

constexpr uint16_t kClientClass = 1;  // of 127.1/16, fd01::/16: what a server sees
constexpr uint16_t kServerClass = 2;  // of 127.2/16, fd02::/16: what a client sees

class PolicyTest : public testing::Test {
 protected:
  PolicyTest() : cgroup_("sluice_policy_test_" + std::to_string(getpid())) {
    enter_new_netns();
    default_ = cca_of(tcp_socket(AF_INET));
    other_ = default_ == "reno" ? "cubic" : "reno";
    third_ = default_ == "bbr" ? "cubic" : "bbr";
    for (const std::string& cca : {other_, third_})
      must(is_available(cca), cca + " is not available in this kernel (a module? modprobe tcp_" + cca + ")");
    cgroup_.enter();
  }
  ~PolicyTest() override {
    hook_.reset();
    Cgroup::enter_root();
  }

  static bool is_available(const std::string& cca) {
    std::ifstream in("/proc/sys/net/ipv4/tcp_available_congestion_control");
    for (std::string name; in >> name;)
      if (name == cca) return true;
    return false;
  }

  void attach() { hook_ = policy_.attach(cgroup_); }

  // What an application's setsockopt answers: 0 or its errno.
  static int ask(const UniqueFd& fd, const std::string& cca) {
    return setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, cca.c_str(), static_cast<socklen_t>(cca.size())) == 0 ? 0 : errno;
  }
  static sl_verdict with(sl_verdict verdict, uint16_t flags) {
    verdict.flags = static_cast<__u16>(verdict.flags | flags);
    return verdict;
  }

  // Servers give their clients `to_client`, clients their servers `to_server`.
  static Tables tables(const sl_verdict& to_client, const sl_verdict& to_server, const std::string& listener = "") {
    Tables t;
    t.places = {{prefix("127.1.0.0/16"), place(11, kClientClass, SL_LOCALITY_INTRA_REGION)},
                {prefix("fd01::/16"), place(12, kClientClass, SL_LOCALITY_INTRA_REGION)},
                {prefix("127.2.0.0/16"), place(21, kServerClass, SL_LOCALITY_CROSS_REGION)},
                {prefix("127.0.0.0/8"), place(99, 9, SL_LOCALITY_EXTERNAL)},
                {prefix("fd02::/16"), place(22, kServerClass, SL_LOCALITY_CROSS_REGION)}};
    t.rules = {{{0, kClientClass}, to_client}, {{0, kServerClass}, to_server}};
    t.listener_cca = listener;
    return t;
  }

  // Bumps of a counter since the last question about it.
  uint64_t bumps(sl_policy_counter which) {
    const uint64_t now = policy_.counter(which);
    return now - std::exchange(asked_[which], now);
  }

  // The listener drops every SYN until SO_DETACH_FILTER; a client stays in SYN_SENT.
  static void make_deaf(const Listener& listener) {
    sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
    const sock_fprog filter{1, &drop_all};
    must(setsockopt(listener.fd.get(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0, "SO_ATTACH_FILTER");
  }
  static UniqueFd start_connecting(const Listener& listener) {
    UniqueFd client = tcp_socket(AF_INET, SOCK_NONBLOCK);
    Address from = address(Ip::kV4, 1, 0), to = listener.where;
    must(bind(client.get(), from.get(), from.size) == 0, "bind client");
    must(connect(client.get(), to.get(), to.size) == -1 && errno == EINPROGRESS, "start to connect");
    return client;
  }

  void expect_untouched(const UniqueFd& fd) {
    EXPECT_EQ(cca_of(fd), default_);
    EXPECT_FALSE(has_storage(fd));
  }

  static std::vector<sl_report> of_socket(const std::vector<sl_report>& all, uint64_t cookie) {
    std::vector<sl_report> out;
    std::copy_if(all.begin(), all.end(), std::back_inserter(out), [&](const sl_report& r) { return r.cookie == cookie; });
    return out;
  }
  // The one record of a socket.
  static sl_report report_of(const std::vector<sl_report>& all, const UniqueFd& fd) {
    const auto found = of_socket(all, cookie_of(fd));
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? sl_report{} : found.front();
  }
  // What the kernel reports of a socket now.
  sl_report observed(const UniqueFd& fd) const {
    cookie_of(fd);
    return report_of(policy_.iterate<sl_report>("sl_iter_observe"), fd);
  }
  bool has_storage(const UniqueFd& fd) const { return policy_.storage(fd.get()).has_value(); }
  // As user space does for the logger.
  void select_for_log(const UniqueFd& fd) const {
    const sl_sock value{.flags = SL_SOCK_LOG, .pad = 0};
    const int key = fd.get();
    must(bpf_map_update_elem(policy_.map("sl_sock"), &key, &value, BPF_ANY) == 0, "sl_sock");
  }
  std::vector<sl_report> migrate(uint32_t flags = SL_ITER_REPORT_ALL, uint32_t only_map_id = 0) {
    policy_.set_args(SL_ITER_MIGRATE, flags, only_map_id);
    return policy_.iterate<sl_report>("sl_iter_migrate");
  }

  Cgroup cgroup_;
  PolicyObject policy_;
  Link hook_;
  std::string default_, other_, third_;
  uint64_t asked_[SL_POLICY_COUNTER_COUNT] = {};
};

class PolicyByFamily : public PolicyTest, public testing::WithParamInterface<Ip> {};
INSTANTIATE_TEST_SUITE_P(Families, PolicyByFamily, testing::Values(Ip::kV4, Ip::kV6, Ip::kMapped), [](const auto& param) {
  return std::string(param.param == Ip::kV4 ? "v4" : param.param == Ip::kV6 ? "v6" : "mapped");
});

TEST_P(PolicyByFamily, BothEndsGetWhatTheirOwnViewOfTheOtherSays) {
  const uint64_t generation = policy_.publish(tables(verdict(other_, 7, "", 0, 3), verdict(third_, 8, "", 0, 4)));
  attach();
  const Listener listener(GetParam());
  const Connection c(listener);
  EXPECT_EQ(cca_of(c.server), other_);
  EXPECT_EQ(cca_of(c.client), third_);

  const sl_report client = observed(c.client), server = observed(c.server);
  EXPECT_EQ(client.generation, generation);
  EXPECT_EQ(client.rule_id, 8u);
  EXPECT_EQ(client.params, 4u);
  EXPECT_EQ(client.place_id, GetParam() == Ip::kV6 ? 22u : 21u);
  EXPECT_EQ(client.locality, SL_LOCALITY_CROSS_REGION);
  EXPECT_EQ(server.generation, generation);
  EXPECT_EQ(server.rule_id, 7u);
  EXPECT_EQ(server.params, 3u);
  EXPECT_EQ(server.place_id, GetParam() == Ip::kV6 ? 12u : 11u);
  EXPECT_FALSE(has_storage(c.client));
  EXPECT_FALSE(has_storage(c.server));

  EXPECT_EQ(bumps(SL_POLICY_CONNECT), 1u);
  EXPECT_EQ(bumps(SL_POLICY_ACTIVE), 1u);
  EXPECT_EQ(bumps(SL_POLICY_PASSIVE), 1u);
  EXPECT_EQ(bumps(SL_POLICY_LISTEN), 1u);
  EXPECT_EQ(bumps(SL_POLICY_SELECTED), 2u);  // CONNECT and PASSIVE; ACTIVE finds it there
  EXPECT_EQ(bumps(SL_POLICY_KEPT), 1u);
  EXPECT_EQ(bumps(SL_POLICY_LPM_FALLBACK), 0u);
  EXPECT_EQ(bumps(SL_POLICY_RECONCILED), 0u);
}

TEST_F(PolicyTest, ConnectDecidesBeforeTheHandshake) {
  policy_.publish(tables(verdict(other_, 1), verdict(third_, 2)));
  attach();
  const Listener listener;
  make_deaf(listener);
  const UniqueFd client = start_connecting(listener);
  EXPECT_EQ(info_of(client).tcpi_state, BPF_TCP_SYN_SENT);
  EXPECT_EQ(cca_of(client), third_);
  EXPECT_EQ(observed(client).rule_id, 2u);
}

TEST_F(PolicyTest, ASocketThatIsConnectedAnewIsResolvedAnew) {
  policy_.publish(tables(verdict(other_, 1), verdict(third_, 2)));
  attach();
  const Listener listener;
  Connection c(listener);
  EXPECT_EQ(observed(c.client).place_id, 21u);
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  ASSERT_EQ(connect(c.client.get(), &nowhere, sizeof(nowhere)), 0);
  Address home = address(Ip::kV4, 1, 0);
  const UniqueFd other = tcp_socket(AF_INET);
  ASSERT_EQ(bind(other.get(), home.get(), home.size), 0);
  ASSERT_EQ(listen(other.get(), 1), 0);
  ASSERT_EQ(getsockname(other.get(), home.get(), &home.size), 0);
  ASSERT_EQ(connect(c.client.get(), home.get(), home.size), 0);
  EXPECT_EQ(observed(c.client).place_id, 11u);
  EXPECT_EQ(observed(c.client).rule_id, 1u);
  EXPECT_EQ(cca_of(c.client), other_);
  EXPECT_EQ(bumps(SL_POLICY_RECONCILED), 0u);
}

TEST_P(PolicyByFamily, AServiceIsFoundBySourcePortAndCgroupAndTheEarliestWins) {
  constexpr uint16_t kPort = 7443;
  const Cgroup outer(cgroup_, "outer"), inner(outer, "inner");
  Tables t = tables(verdict(default_, 1), verdict(default_, 2));
  t.sources = {{prefix("127.1.0.0/16"), 3}, {prefix("fd01::/16"), 3}};
  t.services = {{{SL_SERVICE_PORT, 0, kPort}, 4}, {{SL_SERVICE_CGROUP, 0, outer.id()}, 2}};
  for (const uint32_t service : {2u, 3u, 4u}) {
    t.rules.push_back({{service, kClientClass}, verdict(other_, 10 + service)});
    t.rules.push_back({{service, kServerClass}, verdict(third_, 20 + service)});
  }
  policy_.publish(t);
  attach();
  {
    const Listener listener(GetParam(), kPort);
    const Connection c(listener);
    EXPECT_EQ(observed(c.client).service_id, 3u);  // by source
    EXPECT_EQ(observed(c.client).rule_id, 23u);
    EXPECT_EQ(observed(c.server).service_id, 4u);  // by local port
    EXPECT_EQ(observed(c.server).rule_id, 14u);
    EXPECT_EQ(cca_of(c.server), other_);
    EXPECT_EQ(cca_of(c.client), third_);
  }
  for (const Cgroup* where : {&outer, &inner}) {
    where->enter();
    const Listener listener(GetParam());
    const Connection c(listener);
    EXPECT_EQ(observed(c.client).service_id, 2u);  // cgroup 2 stands before source 3
    EXPECT_EQ(observed(c.server).service_id, 2u);
    EXPECT_EQ(cca_of(c.client), third_);
    EXPECT_EQ(cca_of(c.server), other_);
    cgroup_.enter();
  }
  const Listener listener(GetParam());
  const Connection c(listener);
  EXPECT_EQ(observed(c.server).service_id, 0u);
  EXPECT_EQ(observed(c.server).rule_id, 1u);
  EXPECT_EQ(cca_of(c.server), default_);
}

TEST_F(PolicyTest, AncestorsBeyondSixteenAreNotAskedAndThatIsCounted) {
  std::vector<std::unique_ptr<Cgroup>> levels;
  levels.push_back(std::make_unique<Cgroup>(cgroup_, "l"));
  for (int i = 0; i < 16; ++i) levels.push_back(std::make_unique<Cgroup>(*levels.back(), "l"));
  Tables t = tables(verdict(other_, 1), verdict(other_, 2));
  t.services = {{{SL_SERVICE_CGROUP, 0, cgroup_.id()}, 5}, {{SL_SERVICE_CGROUP, 0, levels[2]->id()}, 6}};
  for (const uint16_t place_class : {kClientClass, kServerClass}) {
    t.rules.push_back({{5, place_class}, verdict(third_, 15)});
    t.rules.push_back({{6, place_class}, verdict(third_, 16)});
  }
  policy_.publish(t);
  attach();
  const Listener listener;
  levels.back()->enter();
  const Connection c(listener);
  EXPECT_EQ(bumps(SL_POLICY_CGROUP_DEEP), 2u);  // CONNECT and ACTIVE
  EXPECT_EQ(observed(c.client).service_id, 6u);
  EXPECT_EQ(observed(c.server).service_id, 5u);  // a child has its listener's cgroup
  cgroup_.enter();
  while (!levels.empty()) levels.pop_back();
}

TEST_F(PolicyTest, AnAddressThatNoPrefixHoldsIsOfTheUnknownClass) {
  Tables t;
  t.rules = {{{0, 0}, verdict(other_, 1)}};
  policy_.publish(t);
  attach();
  const Listener listener;
  const Connection c(listener);
  EXPECT_EQ(cca_of(c.client), other_);
  EXPECT_EQ(observed(c.client).rule_id, 1u);
  EXPECT_EQ(observed(c.client).locality, SL_LOCALITY_UNKNOWN);
  EXPECT_EQ(observed(c.client).place_id, 0u);
}

TEST_F(PolicyTest, TheLongestPrefixDecides) {
  Tables t = tables(verdict(default_, 1), verdict(other_, 2));
  t.places.push_back({prefix("127.2.0.1/32"), place(33, 3, SL_LOCALITY_INTRA_RACK)});
  t.rules.push_back({{0, 3}, verdict(third_, 3)});
  policy_.publish(t);
  attach();
  const Listener listener;
  const Connection c(listener);
  EXPECT_EQ(cca_of(c.client), third_);
  EXPECT_EQ(observed(c.client).locality, SL_LOCALITY_INTRA_RACK);
}

TEST_F(PolicyTest, WithoutAPolicyNothingIsTouched) {
  attach();
  const Listener listener;
  const Connection c(listener);
  expect_untouched(c.client);
  expect_untouched(c.server);
  expect_untouched(listener.fd);
  EXPECT_EQ(bumps(SL_POLICY_NO_GENERATION), 4u);
}

TEST_F(PolicyTest, AGenerationWhoseSlotIsNotThereLeavesSocketsAlone) {
  policy_.publish(tables(verdict(other_, 1), verdict(other_, 2), other_));
  policy_.set_generation_entry(policy_.generation(), {});
  attach();
  const Listener listener;
  const Connection c(listener);
  expect_untouched(c.client);
  expect_untouched(c.server);
  expect_untouched(listener.fd);
  EXPECT_GE(bumps(SL_POLICY_TORN), 4u);
}

TEST_F(PolicyTest, AnotherSchemaVersionLeavesSocketsAlone) {
  policy_.publish(tables(verdict(other_, 1), verdict(other_, 2), other_));
  attach();
  policy_.set_schema(SL_SCHEMA_POLICY, SL_SCHEMA_POLICY_VERSION + 1);
  const Listener listener;
  const Connection c(listener);
  expect_untouched(c.client);
  expect_untouched(c.server);
  expect_untouched(listener.fd);
  EXPECT_GE(bumps(SL_POLICY_SCHEMA_MISMATCH), 4u);
}

TEST_F(PolicyTest, WithoutARuleTheSocketKeepsItsCcaAndThatIsCounted) {
  Tables t = tables(verdict(other_, 1), verdict(other_, 2));
  t.rules.pop_back();  // none for the server's class
  policy_.publish(t);
  attach();
  const Listener listener;
  const Connection c(listener);
  expect_untouched(c.client);
  EXPECT_EQ(observed(c.client).generation, 0u);
  EXPECT_EQ(bumps(SL_POLICY_NO_RULE), 3u);  // CONNECT, ACTIVE; the listener has no CCA named either
}

TEST_F(PolicyTest, AnUnknownCcaIsRefusedAndTheSocketKeepsItsOwn) {
  policy_.publish(tables(verdict(other_, 1), verdict("no_such_cca", 2)));
  attach();
  const Listener listener;
  const Connection c(listener);
  expect_untouched(c.client);
  EXPECT_EQ(observed(c.client).generation, 0u) << "it does not run what was decided";
  EXPECT_EQ(bumps(SL_POLICY_SET_FAILED), 2u);
  EXPECT_EQ(report_of(migrate(), c.client).outcome, SL_OUTCOME_SET_FAILED);
  expect_untouched(c.client);
}

TEST_F(PolicyTest, AListenerCarriesItsOwnCcaAndChildrenTheirs) {
  const uint64_t generation = policy_.publish(tables(verdict(default_, 1), verdict(default_, 2), third_));
  attach();
  const Listener listener;
  EXPECT_EQ(cca_of(listener.fd), third_);
  const sl_report seen = observed(listener.fd);
  EXPECT_EQ(seen.generation, generation);
  EXPECT_TRUE(seen.flags & SL_REPORT_LISTENER);
  select_for_log(listener.fd);
  const Connection c(listener);
  EXPECT_FALSE(has_storage(c.server)) << "never cloned";
  EXPECT_EQ(cca_of(c.server), default_);
  EXPECT_FALSE(observed(c.server).flags & SL_REPORT_LISTENER);
}

TEST_F(PolicyTest, TheInitialWindowIsSetOnceEstablished) {
  policy_.publish(tables(verdict(other_, 1, "", 33), verdict(third_, 2, "", 44)));
  attach();
  const Listener listener;
  const Connection c(listener);
  EXPECT_EQ(info_of(c.server).tcpi_snd_cwnd, 33u);
  EXPECT_EQ(info_of(c.client).tcpi_snd_cwnd, 44u);
  EXPECT_EQ(bumps(SL_POLICY_IW_FAILED), 0u);
}

TEST_F(PolicyTest, MptcpSubflowsAreLeftAlone) {
  policy_.publish(tables(verdict(other_, 1), verdict(other_, 2), other_));
  attach();
  const Listener listener(Ip::kV4, 0, IPPROTO_MPTCP);
  const Connection c(listener, IPPROTO_MPTCP);
  EXPECT_GE(bumps(SL_POLICY_MPTCP), 3u);
  EXPECT_EQ(bumps(SL_POLICY_SELECTED), 0u);
  const auto records = migrate();
  EXPECT_FALSE(records.empty());
  for (const auto& r : records) EXPECT_EQ(r.outcome, SL_OUTCOME_MPTCP);
}

TEST_F(PolicyTest, ADispatcherWithoutStagesSaysSo) {
  policy_.publish(tables(verdict(other_, 1), verdict(other_, 2)));
  const uint32_t first = 0;
  ASSERT_EQ(bpf_map_delete_elem(policy_.map("sl_stages"), &first), 0);
  attach();
  const Listener listener;
  const Connection c(listener);
  expect_untouched(c.client);
  EXPECT_EQ(bumps(SL_POLICY_NO_STAGE), 4u);
}

TEST_F(PolicyTest, TheSelectorLooksUpWhatTheResolverDidNotLeave) {
  policy_.publish(tables(verdict(other_, 1), verdict(third_, 2)));
  const uint32_t first = 0;
  const int selector = bpf_program__fd(policy_.program("sl_selector"));
  ASSERT_EQ(bpf_map_update_elem(policy_.map("sl_stages"), &first, &selector, BPF_ANY), 0);
  attach();
  const Listener listener;
  const Connection c(listener);
  EXPECT_EQ(cca_of(c.client), third_);
  EXPECT_EQ(cca_of(c.server), other_);
  EXPECT_EQ(bumps(SL_POLICY_LPM_FALLBACK), 3u);  // CONNECT, ACTIVE and PASSIVE
}

TEST_F(PolicyTest, WhatTheResolverLeftForAnotherSocketIsNotTaken) {
  policy_.publish(tables(verdict(other_, 1), verdict(third_, 2)));
  attach();
  // As if a program for another socket had been interrupted between the two stages, on every CPU: it is the owner (the first
  // word).
  const auto cpus = static_cast<size_t>(libbpf_num_possible_cpus());
  bpf_map_info info{};
  uint32_t size = sizeof(info);
  ASSERT_EQ(bpf_map_get_info_by_fd(policy_.map("sl_handed"), &info, &size), 0);
  const size_t words = info.value_size / sizeof(uint64_t);
  std::vector<uint64_t> left(cpus * words, 0x1234567);
  const uint32_t zero = 0;
  ASSERT_EQ(bpf_map_update_elem(policy_.map("sl_handed"), &zero, left.data(), BPF_ANY), 0);
  const Listener listener;
  const Connection c(listener);
  EXPECT_EQ(cca_of(c.client), third_);
  EXPECT_EQ(cca_of(c.server), other_);
  EXPECT_EQ(bumps(SL_POLICY_LPM_FALLBACK), 3u);
  std::vector<uint64_t> now(left.size());
  ASSERT_EQ(bpf_map_lookup_elem(policy_.map("sl_handed"), &zero, now.data()), 0);
  EXPECT_EQ(now, left) << "it is the other socket's";
}

TEST_F(PolicyTest, APolicyReplacedDuringTheHandshakeHoldsAsAWhole) {
  policy_.publish(tables(verdict(other_, 1, "", 0, 1), verdict(third_, 2, "", 0, 2)));
  attach();
  const Listener listener;
  make_deaf(listener);
  const UniqueFd client = start_connecting(listener);
  ASSERT_EQ(cca_of(client), third_);

  Tables newer = tables(verdict(third_, 3, "", 0, 3), verdict(other_, 4, "", 0, 4));
  newer.places[2].second.place_id = 77;
  const uint64_t generation = policy_.publish(newer);
  const int none = 0;
  ASSERT_EQ(setsockopt(listener.fd.get(), SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof(none)), 0);
  pollfd wait{client.get(), POLLOUT, 0};
  ASSERT_EQ(poll(&wait, 1, 20000), 1);  // the SYN is sent again after a second
  const UniqueFd server = listener.accept();

  EXPECT_EQ(cca_of(client), other_);
  EXPECT_EQ(cca_of(server), third_);
  const sl_report seen = observed(client);
  EXPECT_EQ(seen.generation, generation);
  EXPECT_EQ(seen.rule_id, 4u);
  EXPECT_EQ(seen.params, 4u);
  EXPECT_EQ(seen.place_id, 77u);
  EXPECT_EQ(bumps(SL_POLICY_RECONCILED), 1u);
}

TEST_F(PolicyTest, TheCcasInitLearnsItsParametersFromThePolicy) {
  const CcaObject cca(policy_);
  const Link plain = cca.attach("slt_plain");
  policy_.publish(tables(verdict(other_, 1), verdict(CcaObject::plain_name(), 2, "", 0, 6)));
  attach();
  const Listener listener;
  const Connection c(listener);
  EXPECT_EQ(cca_of(c.client), CcaObject::plain_name());
  EXPECT_EQ(cca.global<uint64_t>(".bss", "slt_init_params"), 7u);
  EXPECT_EQ(cca.global<int>(".data", "slt_init_selected"), 0);
}

// ---- ECN ---------------------------------------------------------------------------------------------------------------

TEST_P(PolicyByFamily, ServersAcceptEcnFromPlacesWhoseCcaNeedsIt) {
  const CcaObject cca(policy_);
  const Link ecn = cca.attach("slt_ecn");
  const sl_verdict needs = verdict(CcaObject::ecn_name(), 1, other_);
  policy_.publish(tables(needs, needs, other_));
  attach();
  const Listener listener(GetParam());
  const Connection c(listener);
  EXPECT_TRUE(has_ecn(c.client));
  EXPECT_TRUE(has_ecn(c.server));
  EXPECT_EQ(cca_of(c.client), CcaObject::ecn_name());
  EXPECT_EQ(cca_of(c.server), CcaObject::ecn_name());
  EXPECT_EQ(bumps(SL_POLICY_NEEDS_ECN), 2u);  // for the SYN and for the SYN-ACK
  EXPECT_EQ(bumps(SL_POLICY_NEEDS_ECN_YES), 2u);
  EXPECT_EQ(bumps(SL_POLICY_ECN_FALLBACK), 0u);
}

TEST_P(PolicyByFamily, WithoutEcnTheFallbackIsTaken) {
  const CcaObject cca(policy_);
  const Link ecn = cca.attach("slt_ecn");
  policy_.publish(tables(verdict(default_, 1), verdict(CcaObject::ecn_name(), 2, other_, 0, 5, 6), default_));
  attach();
  const Listener listener(GetParam());
  const Connection c(listener);
  EXPECT_FALSE(has_ecn(c.client));
  EXPECT_EQ(cca_of(c.client), other_);
  EXPECT_TRUE(observed(c.client).flags & SL_REPORT_ECN_FALLBACK);
  EXPECT_EQ(observed(c.client).params, 6u);
  EXPECT_EQ(bumps(SL_POLICY_NEEDS_ECN), 2u);
  EXPECT_EQ(bumps(SL_POLICY_NEEDS_ECN_YES), 0u);
  EXPECT_EQ(bumps(SL_POLICY_ECN_FALLBACK), 1u);
}

TEST_F(PolicyTest, ASynAckIsNotSentAsEctToAPeerThatDidNotOfferEcn) {
  const CcaObject cca(policy_);
  const Link ecn = cca.attach("slt_ecn");
  policy_.publish(tables(verdict(CcaObject::ecn_name(), 1, other_), verdict(default_, 2), other_));
  attach();
  const Listener listener;
  const Connection c(listener);
  EXPECT_FALSE(has_ecn(c.server));
  EXPECT_EQ(cca_of(c.server), other_);
  EXPECT_EQ(bumps(SL_POLICY_NEEDS_ECN), 1u);  // for the SYN-ACK
  EXPECT_EQ(bumps(SL_POLICY_NEEDS_ECN_YES), 0u);
}

TEST_F(PolicyTest, NeedsEcnIsAnsweredForTheListenersService) {
  const CcaObject cca(policy_);
  const Link ecn = cca.attach("slt_ecn");
  const Cgroup servers(cgroup_, "servers");
  const sl_verdict needs = verdict(CcaObject::ecn_name(), 1, other_);
  Tables t = tables(verdict(default_, 2), needs, default_);
  t.services = {{{SL_SERVICE_CGROUP, 0, servers.id()}, 1}};
  t.rules.push_back({{1, kClientClass}, needs});
  policy_.publish(t);
  attach();
  servers.enter();
  const Listener listener;
  cgroup_.enter();
  const Connection c(listener);
  EXPECT_TRUE(has_ecn(c.server));
  EXPECT_EQ(cca_of(c.server), CcaObject::ecn_name());
  const Listener elsewhere;
  const Connection d(elsewhere);
  EXPECT_FALSE(has_ecn(d.server));
}

TEST_F(PolicyTest, WithoutAFallbackNobodyIsPutOnACcaThatNeedsEcn) {
  const CcaObject cca(policy_);
  const Link ecn = cca.attach("slt_ecn");
  sl_verdict needs = verdict(CcaObject::ecn_name(), 1);
  needs.flags = SL_VERDICT_NEEDS_ECN;
  policy_.publish(tables(needs, verdict(default_, 2)));  // clients ask for no ECN
  attach();
  const Listener listener;
  const Connection c(listener);
  EXPECT_EQ(cca_of(c.server), default_);
  EXPECT_EQ(bumps(SL_POLICY_ECN_NO_FALLBACK), 1u);
  const auto records = migrate();
  EXPECT_EQ(report_of(records, c.server).outcome, SL_OUTCOME_NO_FALLBACK);
}

// ---- iterators ---------------------------------------------------------------------------------------------------------

TEST_P(PolicyByFamily, MigrateMovesEstablishedSocketsAndListenersThatAreOlderThanThePolicy) {
  const Listener listener(GetParam());
  const Connection c(listener);
  const uint64_t generation = policy_.publish(tables(verdict(other_, 1, "", 0, 1), verdict(third_, 2, "", 0, 2), third_));
  const auto dry = migrate(SL_ITER_REPORT_ALL | SL_ITER_DRY_RUN);
  EXPECT_EQ(report_of(dry, c.client).outcome, SL_OUTCOME_MOVED);
  expect_untouched(c.client);
  expect_untouched(listener.fd);

  const auto first = migrate();
  for (const UniqueFd* fd : {&c.client, &c.server, &listener.fd}) {
    EXPECT_EQ(report_of(first, *fd).outcome, SL_OUTCOME_MOVED);
    EXPECT_EQ(report_of(first, *fd).generation, generation);
    EXPECT_FALSE(has_storage(*fd));
  }
  EXPECT_EQ(cca_of(c.client), third_);
  EXPECT_EQ(cca_of(c.server), other_);
  EXPECT_EQ(cca_of(listener.fd), third_);
  EXPECT_TRUE(report_of(first, listener.fd).flags & SL_REPORT_LISTENER);

  const sl_report client = report_of(first, c.client);
  EXPECT_EQ(client.params, 2u);
  EXPECT_EQ(client.rule_id, 2u);
  const Address local = address(GetParam(), 1, 0), remote = listener.where;
  const sl_prefix local_prefix = prefix(GetParam() == Ip::kV6 ? "fd01::1/128" : "127.1.0.1/32");
  EXPECT_EQ(memcmp(client.local_addr, local_prefix.addr, 16), 0);
  EXPECT_EQ(client.remote_port, remote.port());
  EXPECT_EQ(client.family, local.family);
  EXPECT_EQ(client.state, BPF_TCP_ESTABLISHED);
  EXPECT_EQ(client.cca, third_);
  EXPECT_EQ(client.struct_ops_id, 0u);
  EXPECT_EQ(client.cgroup_id, cgroup_.id());

  const auto second = migrate();
  EXPECT_EQ(second.size(), first.size());
  for (const auto& r : second) EXPECT_EQ(r.outcome, SL_OUTCOME_CURRENT);
  EXPECT_TRUE(migrate(0).empty());  // nothing that the agent must know
  EXPECT_EQ(bumps(SL_POLICY_ITER_MOVED), 3u);
  EXPECT_EQ(bumps(SL_POLICY_ITER_SEEN), 12u);
}

TEST_F(PolicyTest, WhereTheCcaStaysMigrateHasNothingToDo) {
  policy_.publish(tables(verdict(other_, 1), verdict(third_, 2), other_));
  attach();
  const Listener listener;
  const Connection c(listener);
  select_for_log(c.client);
  Tables newer = tables(verdict(other_, 1), verdict(third_, 3, "", 0, 9), other_);
  newer.places[2].second.place_id = 88;
  const uint64_t generation = policy_.publish(newer);
  const auto records = migrate();
  for (const UniqueFd* fd : {&c.client, &c.server, &listener.fd}) {
    EXPECT_EQ(report_of(records, *fd).outcome, SL_OUTCOME_CURRENT);
    EXPECT_EQ(report_of(records, *fd).generation, generation);
  }
  EXPECT_EQ(report_of(records, c.client).place_id, 88u);
  EXPECT_EQ(report_of(records, c.client).rule_id, 3u);
  EXPECT_EQ(report_of(records, c.client).params, 9u);
  EXPECT_EQ(policy_.storage(c.client.get())->flags, static_cast<uint32_t>(SL_SOCK_LOG)) << "what user space noted stays";
  EXPECT_EQ(bumps(SL_POLICY_ITER_MOVED), 0u);
}

TEST_F(PolicyTest, MigrateMovesSocketsOffAReplacedVersionOfTheSameName) {
  const CcaObject older(policy_), newer(policy_);
  const std::string name = CcaObject::plain_name();
  const Link link = older.attach("slt_plain");
  policy_.set_cca_id(name, older.map_id("slt_plain"));
  policy_.publish(tables(verdict(name, 1), verdict(name, 2), name));
  attach();
  const Listener listener;
  const Connection c(listener);
  EXPECT_EQ(report_of(migrate(), c.client).outcome, SL_OUTCOME_CURRENT);

  ASSERT_EQ(bpf_link__update_map(link.get(), newer.map("slt_plain")), 0);
  policy_.set_cca_id(name, newer.map_id("slt_plain"));
  const auto before = policy_.iterate<sl_report>("sl_iter_observe");
  EXPECT_EQ(report_of(before, c.client).struct_ops_id, older.map_id("slt_plain"));

  const auto records = migrate(SL_ITER_REPORT_ALL, older.map_id("slt_plain"));
  EXPECT_EQ(records.size(), 3u);
  for (const auto& r : records) {
    EXPECT_EQ(r.outcome, SL_OUTCOME_MOVED);
    EXPECT_EQ(r.struct_ops_id, newer.map_id("slt_plain"));
  }
  EXPECT_TRUE(migrate(SL_ITER_REPORT_ALL, older.map_id("slt_plain")).empty());
}

TEST_F(PolicyTest, AConnectionAcceptedFromAListenerOnAReplacedVersionGetsTheNewOne) {
  const CcaObject older(policy_), newer(policy_);
  const std::string name = CcaObject::plain_name();
  const Link link = older.attach("slt_plain");
  policy_.publish(tables(verdict(name, 1), verdict(default_, 2), name));
  attach();
  const Listener listener;
  ASSERT_EQ(bpf_link__update_map(link.get(), newer.map("slt_plain")), 0);
  const Connection c(listener);
  const auto records = policy_.iterate<sl_report>("sl_iter_observe");
  EXPECT_EQ(report_of(records, listener.fd).struct_ops_id, older.map_id("slt_plain"));
  EXPECT_EQ(report_of(records, c.server).struct_ops_id, newer.map_id("slt_plain"));
}

TEST_F(PolicyTest, MigrateTakesTheFallbackOnConnectionsWithoutEcn) {
  const CcaObject cca(policy_);
  const Link ecn = cca.attach("slt_ecn");
  const Listener listener;
  const Connection c(listener);
  const sl_verdict needs = verdict(CcaObject::ecn_name(), 1, other_);
  policy_.publish(tables(needs, needs));
  const auto records = migrate();
  for (const UniqueFd* fd : {&c.client, &c.server}) {
    EXPECT_EQ(report_of(records, *fd).outcome, SL_OUTCOME_MOVED);
    EXPECT_EQ(cca_of(*fd), other_);
    EXPECT_TRUE(report_of(records, *fd).flags & SL_REPORT_ECN_FALLBACK);
  }
}

TEST_F(PolicyTest, MigrateReportsWhyTheKernelRefuses) {
  run("ip route replace local 127.2.0.0/16 dev lo table local congctl lock " + default_);
  const Listener listener;
  const Connection c(listener);
  policy_.publish(tables(verdict(default_, 1), verdict(other_, 2), default_));
  const auto records = migrate(0);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].cookie, cookie_of(c.client));
  EXPECT_EQ(records[0].outcome, SL_OUTCOME_SET_FAILED);
  EXPECT_EQ(records[0].error, -EPERM);
  EXPECT_EQ(bumps(SL_POLICY_ITER_FAILED), 1u);
}

TEST_F(PolicyTest, MigrateReportsEachSocketOnceHoweverSmallTheReads) {
  constexpr size_t kConnections = 300;  // more records than the kernel's buffer holds
  const Listener listener;
  std::vector<std::unique_ptr<Connection>> connections;
  for (size_t i = 0; i < kConnections; ++i) connections.push_back(std::make_unique<Connection>(listener));
  policy_.publish(tables(verdict(other_, 1), verdict(third_, 2), other_));
  policy_.set_args(SL_ITER_MIGRATE, SL_ITER_REPORT_ALL);
  const auto records = policy_.iterate<sl_report>("sl_iter_migrate", 1000);
  std::set<uint64_t> seen;
  for (const auto& r : records) {
    EXPECT_EQ(r.outcome, SL_OUTCOME_MOVED);
    seen.insert(r.cookie);
  }
  EXPECT_EQ(records.size(), 2 * kConnections + 1);
  EXPECT_EQ(seen.size(), records.size());
  EXPECT_EQ(bumps(SL_POLICY_ITER_MOVED), 2 * kConnections + 1);
}

TEST_F(PolicyTest, CountAddsUpSocketsByWhatTheyRun) {
  policy_.publish(tables(verdict(other_, 1), verdict(third_, 2), third_));
  attach();
  const Listener listener;
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < 5; ++i) connections.push_back(std::make_unique<Connection>(listener));
  policy_.publish(tables(verdict(other_, 1), verdict(other_, 2), third_));  // clients are not current now
  const Connection late(listener);
  policy_.iterate<char>("sl_iter_count");
  uint64_t clients = 0, servers = 0, listeners = 0, current = 0;
  sl_usage_key key{};
  const int map = policy_.map("sl_usage");
  for (const void* at = nullptr; bpf_map_get_next_key(map, at, &key) == 0; at = &key) {
    sl_usage usage{};
    ASSERT_EQ(bpf_map_lookup_elem(map, &key, &usage), 0);
    if (key.listener)
      listeners += usage.sockets;
    else if (key.rule_id == 1 && other_ == key.cca && key.locality == SL_LOCALITY_INTRA_REGION)
      servers += usage.sockets;
    else if (key.rule_id == 2 && third_ == key.cca && key.locality == SL_LOCALITY_CROSS_REGION && !key.current_generation)
      clients += usage.sockets;
    if (key.current_generation) current += usage.sockets;
    if (!key.listener) {
      EXPECT_GE(usage.cwnd_segments_sum, usage.sockets);
    }
  }
  EXPECT_EQ(listeners, 1u);
  EXPECT_EQ(servers, 6u);
  EXPECT_EQ(clients, 5u);  // the late one runs other_
  EXPECT_EQ(current, 8u);  // listener, servers, the client of the late one
}

TEST_F(PolicyTest, FilesFindsSocketsOfEveryNamespaceByProcessAndDescriptor) {
  policy_.publish(tables(verdict(other_, 1), verdict(third_, 2)));
  attach();
  const Listener listener;
  const Connection c(listener);
  const uint32_t inode = report_of(policy_.iterate<sl_report>("sl_iter_observe"), c.client).netns_ino;
  enter_new_netns();
  const auto files = policy_.iterate<sl_file>("sl_iter_files");
  const auto found = [&](const UniqueFd& fd) {
    return std::find_if(files.begin(), files.end(), [&](const sl_file& f) {
      return f.pid == static_cast<uint32_t>(getpid()) && f.fd == static_cast<uint32_t>(fd.get());
    });
  };
  for (const UniqueFd* fd : {&c.client, &c.server, &listener.fd}) ASSERT_NE(found(*fd), files.end());
  EXPECT_EQ(found(c.client)->socket.netns_ino, inode);
  EXPECT_EQ(found(c.client)->socket.cca, third_);
  EXPECT_EQ(found(c.server)->socket.cca, other_);
  EXPECT_EQ(found(c.client)->socket.cookie, cookie_of(c.client));
  EXPECT_EQ(found(c.client)->socket.generation, policy_.generation());
  EXPECT_EQ(found(c.client)->socket.state, BPF_TCP_ESTABLISHED);
  EXPECT_EQ(found(listener.fd)->socket.state, BPF_TCP_LISTEN);
}

// ---- an application's own choice -----------------------------------------------------------------------------------------

class ApplicationTest : public PolicyTest {
 protected:
  // A generation in which clients have `flags`; everything gets other_, and what an application wants is third_.
  void publish(uint16_t flags) {
    Tables t = tables(with(verdict(other_, 1), flags), with(verdict(other_, 2), flags), other_);
    const uint64_t generation = policy_.publish(t);
    sl_generation entry{};
    entry.generation = generation;
    entry.flags = flags & SL_VERDICT_RESPECT ? SL_GEN_RESPECT : 0;
    other_.copy(entry.listener_cca, sizeof(entry.listener_cca) - 1);
    policy_.set_generation_entry(generation, entry);
  }
  void attach() {
    PolicyTest::attach();
    setsockopt_ = policy_.attach(cgroup_, "sl_setsockopt");
  }
  Link setsockopt_;
};

TEST_F(ApplicationTest, AnEstablishedConnectionGetsWhatItsRuleSays) {
  attach();
  publish(0);
  const Listener listener;
  const Connection c(listener);
  EXPECT_EQ(ask(c.client, third_), 0);
  EXPECT_EQ(cca_of(c.client), other_) << "overridden: success, and no effect";
  EXPECT_EQ(bumps(SL_POLICY_APPLICATION_OVERRIDDEN), 1u);

  publish(SL_VERDICT_REFUSE);
  EXPECT_EQ(ask(c.client, third_), EPERM);
  EXPECT_EQ(cca_of(c.client), other_);
  EXPECT_EQ(bumps(SL_POLICY_APPLICATION_REFUSED), 1u);

  publish(SL_VERDICT_RESPECT);
  EXPECT_EQ(ask(c.client, "no_such_cca"), ENOENT) << "the kernel's own answer";
  EXPECT_EQ(cca_of(c.client), other_);
  EXPECT_FALSE(observed(c.client).flags & SL_REPORT_APPLICATION) << "a note that nothing came of";
  EXPECT_EQ(ask(c.client, third_), 0);
  EXPECT_EQ(cca_of(c.client), third_);
  EXPECT_EQ(bumps(SL_POLICY_APPLICATION_NOTED), 2u);
  const auto records = migrate();
  EXPECT_EQ(report_of(records, c.client).outcome, SL_OUTCOME_CURRENT);
  EXPECT_EQ(report_of(records, c.client).generation, policy_.generation());
  EXPECT_TRUE(report_of(records, c.client).flags & SL_REPORT_APPLICATION);
  EXPECT_FALSE(report_of(records, c.server).flags & SL_REPORT_APPLICATION);
  EXPECT_EQ(cca_of(c.client), third_);

  publish(0);
  EXPECT_EQ(report_of(migrate(), c.client).outcome, SL_OUTCOME_MOVED) << "the rule changed its mind";
  EXPECT_EQ(cca_of(c.client), other_);
}

TEST_F(ApplicationTest, AChoiceBeforeConnectWaitsForTheRule) {
  attach();
  const Listener listener;
  for (const uint16_t flags : {uint16_t{0}, uint16_t{SL_VERDICT_REFUSE}, uint16_t{SL_VERDICT_RESPECT}}) {
    publish(flags);
    const UniqueFd client = tcp_socket(AF_INET);
    Address from = address(Ip::kV4, 1, 0), to = listener.where;
    ASSERT_EQ(bind(client.get(), from.get(), from.size), 0);
    EXPECT_EQ(ask(client, third_), 0);
    ASSERT_EQ(connect(client.get(), to.get(), to.size), 0);
    EXPECT_EQ(cca_of(client), flags == SL_VERDICT_RESPECT ? third_ : other_);
    EXPECT_EQ(bumps(SL_POLICY_APPLICATION_KEPT), flags == SL_VERDICT_RESPECT ? 2u : 0u);
  }
}

TEST_F(ApplicationTest, WhatAListenerWasGivenHoldsForWhatItAccepts) {
  attach();
  publish(SL_VERDICT_RESPECT);
  const Listener listener;
  EXPECT_EQ(cca_of(listener.fd), other_);
  EXPECT_EQ(ask(listener.fd, third_), 0);
  EXPECT_EQ(cca_of(listener.fd), third_);
  const Connection c(listener);
  EXPECT_EQ(cca_of(c.server), third_);
  EXPECT_EQ(cca_of(c.client), other_);
  const auto records = migrate();
  for (const UniqueFd* fd : {&listener.fd, &c.server, &c.client})
    EXPECT_EQ(report_of(records, *fd).outcome, SL_OUTCOME_CURRENT);
  publish(0);
  const Connection d(listener);
  EXPECT_EQ(cca_of(d.server), other_);
  migrate();
  EXPECT_EQ(cca_of(listener.fd), other_);
  EXPECT_EQ(cca_of(c.server), other_);
}

TEST_F(ApplicationTest, AVersionOfOursIsNeverTheApplications) {
  const CcaObject ours(policy_);
  const std::string name = CcaObject::plain_name();
  const Link link = ours.attach("slt_plain");
  policy_.set_cca_id(name, ours.map_id("slt_plain"));
  attach();
  publish(SL_VERDICT_RESPECT);
  const Listener listener;
  const Connection c(listener);
  EXPECT_EQ(ask(c.client, name), 0);
  EXPECT_EQ(cca_of(c.client), other_);
  EXPECT_EQ(bumps(SL_POLICY_APPLICATION_OVERRIDDEN), 1u);
  EXPECT_EQ(ask(listener.fd, name), 0) << "no remote, no rule";
  EXPECT_EQ(cca_of(listener.fd), name);
  migrate();
  EXPECT_EQ(cca_of(listener.fd), other_) << "or it could not be retired";
}

TEST_F(ApplicationTest, WithoutAPolicyAndForOtherOptionsTheKernelAnswers) {
  attach();
  const Listener listener;
  const Connection c(listener);
  EXPECT_EQ(ask(c.client, third_), 0);
  EXPECT_EQ(cca_of(c.client), third_);
  publish(SL_VERDICT_REFUSE);
  const int one = 1;
  EXPECT_EQ(setsockopt(c.client.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), 0);
  // More than the page that the kernel hands to programs; it is read as far as the option goes.
  std::vector<char> large(3 * 4096, 1);
  EXPECT_EQ(setsockopt(c.client.get(), SOL_SOCKET, SO_PRIORITY, large.data(), static_cast<socklen_t>(large.size())), 0);
  EXPECT_EQ(setsockopt(c.client.get(), IPPROTO_TCP, TCP_CONGESTION, "", 0), -1);
  EXPECT_EQ(errno, EINVAL);
}

// ---- budget --------------------------------------------------------------------------------------------------------------

TEST_F(PolicyTest, TheVerifierNeedsLittle) {
  for (const char* name : {"sl_sockops", "sl_resolver", "sl_selector", "sl_setsockopt", "sl_iter_observe", "sl_iter_count",
                           "sl_iter_migrate", "sl_iter_files"}) {
    bpf_prog_info info{};
    uint32_t size = sizeof(info);
    ASSERT_EQ(bpf_prog_get_info_by_fd(bpf_program__fd(policy_.program(name)), &info, &size), 0);
    RecordProperty(name, std::to_string(info.verified_insns));
    printf("%-16s %6u verified instructions, %5u bytes of machine code\n", name, info.verified_insns, info.jited_prog_len);
    EXPECT_LT(info.verified_insns, 30000u) << name;
  }
}

}  // namespace
}  // namespace sluice::test
