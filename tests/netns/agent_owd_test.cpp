// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The shared-map contract from end to end: the agent pins sl_owd, the program of examples/owd fills it for real connections,
// and a bundle that declares it (delay_follower) takes its window from it. Each side does without the other, and each refuses
// another version.
//
// "a" sends to "b" over a path whose delay the test sets for each direction. The window is read from the kernel's tracepoints.
#include <bpf/bpf.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sluice/abi/owd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "bpf/cca_fixture.h"
#include "netns/agent_fixture.h"

namespace sluice::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const auto* const kBpffs = testing::AddGlobalTestEnvironment(new PrivateBpffs);

const std::string kBundles = SLUICE_BUILD_DIR "/tests/bundles";
const std::string kFollower = "delay_follower@1.0.0";
constexpr std::uint32_t kQueueOffset = 32;  // delay_follower's queue_units, right behind struct sl_core
constexpr std::uint32_t kNoSample = 0xffff;

TopologySpec two_hosts() {
  TopologySpec spec;
  for (const char* name : {"a", "b"})
    spec.hosts.push_back({.name = name, .sysctls = {{"net.ipv4.tcp_congestion_control", kFallback}}});
  spec.bind_names = true;
  return spec;
}

std::uint32_t window_for(std::uint32_t queue_units) { return std::max(64U * 20000U / (20000U + queue_units * 64U), 2U); }

class OwdTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_VALUE(topology, Topology::create(two_hosts()));
    topology_.emplace(std::move(topology));
    path_.emplace(PathSpec{.one_way_us = 10000, .netns = {topology_->host("a").netns_fd(), topology_->host("b").netns_fd()}});
    agent_.emplace(*topology_);
  }

  static Policy policy(const std::string& bundle = kFollower) {
    return {.uses = {.near = kNative, .far = kNative, .external = kNative, .unknown = bundle},
            .bundles = {"cubic@1.0.0", bundle}};
  }
  void start_agent() {
    ASSERT_OK(agent_->start({"--bundle-path", kBundles}));
    ASSERT_VALUE(applied, agent_->apply(policy()));
  }
  std::string maps() const { return agent_->pin_dir() + "/policy/maps"; }
  std::vector<std::string> producer() const {
    return {SLUICE_BUILD_DIR "/bin/owd", "--maps", maps(), "--cgroup", topology_->host("a").cgroup()};
  }
  // Outside the host's cgroup, in the mounts of the test.
  Result<Process> start_producer() const { return Process::exec(producer(), {.pipe_stdout = true, .merge_stderr = true}); }
  static void expect_line(Process& process, const testing::Matcher<std::string>& wanted) {
    ASSERT_VALUE(line, process.read_line(kSoon));
    EXPECT_THAT(line, wanted);
  }
  // Programs that see what the host's sockets receive.
  std::size_t ingress_programs() const {
    Fd folder(::open(topology_->host("a").cgroup().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    std::uint32_t ids[64], count = std::size(ids);
    EXPECT_EQ(::bpf_prog_query(folder.get(), BPF_CGROUP_INET_INGRESS, 0, nullptr, ids, &count), 0) << std::strerror(errno);
    return count;
  }
  // One connection that always has something to send.
  void start_traffic() {
    const auto with_port = [](int side) { return fmt::format("10.90.0.{}:{}", side + 1, Path::kPort); };
    ASSERT_VALUE(server, Traffic::server(topology_->host("b"), {"--listen", with_port(1), "--max-seconds", "280"}));
    server_.emplace(std::move(server));
    trace_.emplace(*path_, kQueueOffset);
    ASSERT_VALUE(client, Traffic::client(topology_->host("a"), {"--connect", with_port(1), "--connections", "1", "--bytes",
                                                                "50000000", "--requests", "1000", "--max-seconds", "280"}));
    client_.emplace(std::move(client));
  }
  bool until(const std::function<bool(const Trace::Event&)>& wanted) {
    return trace_->until([&](const auto& events) { return !events.empty() && wanted(events.back()); });
  }
  // The window is what the bundle makes of a queueing delay between these.
  bool follows(std::uint32_t from_us, std::uint32_t to_us) {
    return until([&](const Trace::Event& event) {
      return event.private_word != kNoSample && event.private_word * 64 >= from_us && event.private_word * 64 <= to_us &&
             event.cwnd == window_for(event.private_word);
    });
  }
  // ... is Reno's, and grows.
  bool goes_on_alone() {
    if (!until([](const Trace::Event& event) { return event.private_word == kNoSample; })) return false;
    const auto from = trace_->events().back();
    return until([&](const Trace::Event& event) {
      return event.private_word == kNoSample && event.cwnd > from.cwnd && event.delivered > from.delivered + 100;
    });
  }
  std::uint64_t counter(const std::string& name) const {
    auto shown = agent_->json({"cca", "show", kFollower});
    EXPECT_OK(shown);
    if (!shown) return 0;
    for (const auto& counter : (*shown)["ccas"][0]["counters"])
      if (counter["name"] == name) return std::stoull(counter["value"].get<std::string>());
    ADD_FAILURE() << "no counter " << name << " in " << shown->dump();
    return 0;
  }
  sl_schema_entry schema() const {
    sl_schema_entry entry{};
    const std::uint32_t key = SL_SCHEMA_OWD;
    Fd map(::bpf_obj_get((maps() + "/sl_schemas").c_str()));
    EXPECT_EQ(::bpf_map_lookup_elem(map.get(), &key, &entry), 0) << std::strerror(errno);
    return entry;
  }
  // As an agent of another release would.
  void replace_schema(const sl_schema_entry& entry) const {
    const std::uint32_t key = SL_SCHEMA_OWD;
    Fd map(::bpf_obj_get((maps() + "/sl_schemas").c_str()));
    ASSERT_EQ(::bpf_map_update_elem(map.get(), &key, &entry, BPF_ANY), 0) << std::strerror(errno);
  }

  std::optional<Topology> topology_;
  std::optional<Path> path_;
  std::optional<Agent> agent_;
  std::optional<Traffic> server_, client_;
  std::optional<Trace> trace_;
};

TEST_F(OwdTest, the_window_follows_the_samples_of_a_producer_that_comes_and_goes) {
  // The producer is there first.
  ASSERT_VALUE(early, start_producer());
  expect_line(early, HasSubstr("waiting for an agent"));
  start_agent();
  expect_line(early, HasSubstr("writing sl.owd@1"));
  EXPECT_EQ(ingress_programs(), 1U);
  start_traffic();
  ASSERT_TRUE(follows(0, 10000));

  path_->delay(0, 60000);
  ASSERT_TRUE(follows(50000, 100000)) << "the data's way is longer";
  path_->delay(0, 0);
  path_->delay(1, 60000);
  ASSERT_TRUE(follows(0, 10000)) << "only the way back is";
  EXPECT_EQ(counter("owd_schema"), 0U);

  // Killed in the middle of it.
  path_->delay(1, 0);
  const std::uint64_t stale = counter("owd_stale");
  ASSERT_OK(early.signal(SIGKILL));
  ASSERT_VALUE(killed, early.wait(kSoon));
  EXPECT_EQ(killed, 128 + SIGKILL);
  ASSERT_TRUE(goes_on_alone());
  EXPECT_GT(counter("owd_stale"), stale);
  EXPECT_EQ(ingress_programs(), 0U);

  // Another one, after the agent this time, ends in good order: no sample stays on the connection.
  ASSERT_VALUE(late, start_producer());
  expect_line(late, HasSubstr("writing sl.owd@1"));
  ASSERT_TRUE(follows(0, 10000));
  path_->delay(0, 60000);
  ASSERT_TRUE(follows(50000, 100000));
  const std::uint64_t none = counter("owd_none");
  ASSERT_OK(late.signal(SIGTERM));
  ASSERT_VALUE(rest, late.read_all(kSoon));
  EXPECT_THAT(rest, AllOf(HasSubstr("samples "), HasSubstr("removed 1")));
  ASSERT_VALUE(ended, late.wait(kSoon));
  EXPECT_EQ(ended, 0);
  ASSERT_TRUE(goes_on_alone());
  EXPECT_GT(counter("owd_none"), none);
  EXPECT_EQ(ingress_programs(), 0U);

  ASSERT_VALUE(sent, client_->stop(kSoon));
  EXPECT_EQ(sent.opened, 1U);
  ASSERT_VALUE(down, agent_->json({"down"}));
}

TEST_F(OwdTest, a_bundle_for_another_version_is_refused) {
  start_agent();
  ASSERT_OK(agent_->copy_bundle("delay_follower/1.0.0", "1.0.1", {{"sl.owd@1", "sl.owd@2"}}, kBundles));
  ASSERT_OK(agent_->copy_bundle("delay_follower/1.0.0", "1.0.2", {{"sl.owd@1", "sl.nobodys@1"}}, kBundles));
  ASSERT_VALUE(before, agent_->json({"status", "--no-sockets"}));
  ASSERT_VALUE(other, agent_->try_apply(policy("delay_follower@1.0.1")));
  EXPECT_EQ(other.status, 4) << other.text;
  EXPECT_THAT(other.text, AllOf(HasSubstr("delay_follower@1.0.1"), HasSubstr("sl_owd"), HasSubstr("sl.owd@2"),
                                HasSubstr("sl.owd@1"), HasSubstr("rebuild the bundle")));
  ASSERT_VALUE(unknown, agent_->try_apply(policy("delay_follower@1.0.2")));
  EXPECT_EQ(unknown.status, 4) << unknown.text;
  EXPECT_THAT(unknown.text, AllOf(HasSubstr("delay_follower@1.0.2"), HasSubstr("sl.nobodys@1")));

  // A layout that nobody declared another version for. (What is loaded already asks at run time.)
  const sl_schema_entry right = schema();
  sl_schema_entry moved = right;
  moved.btf_hash ^= 1;
  replace_schema(moved);
  ASSERT_OK(agent_->copy_bundle("delay_follower/1.0.0", "1.0.3", {}, kBundles));
  ASSERT_VALUE(layout, agent_->try_apply(policy("delay_follower@1.0.3")));
  EXPECT_EQ(layout.status, 4) << layout.text;
  EXPECT_THAT(layout.text,
              AllOf(HasSubstr("delay_follower@1.0.3"), HasSubstr("sl_owd"), HasSubstr(fmt::format("{:016x}", right.btf_hash)),
                    HasSubstr(fmt::format("{:016x}", moved.btf_hash))));
  replace_schema(right);

  ASSERT_VALUE(after, agent_->json({"status", "--no-sockets"}));
  EXPECT_EQ(after["generation"], before["generation"]);
  ASSERT_VALUE(down, agent_->json({"down"}));
}

TEST_F(OwdTest, the_producer_refuses_another_version_or_layout) {
  start_agent();
  const sl_schema_entry right = schema();
  EXPECT_EQ(right.version, SL_SCHEMA_OWD_VERSION);
  EXPECT_EQ(right.btf_hash, SL_SCHEMA_OWD_HASH);
  sl_schema_entry version = right, layout = right;
  version.version = 7;
  layout.btf_hash = 0x1234;
  for (const auto& [entry, named] :
       {std::pair(version, std::string("sl.owd@7")), std::pair(layout, std::string("0000000000001234"))}) {
    replace_schema(entry);
    ASSERT_VALUE(refused, start_producer());
    ASSERT_VALUE(text, refused.read_all(kSoon));
    EXPECT_THAT(text, AllOf(HasSubstr(named), HasSubstr("sl.owd@1"), HasSubstr(fmt::format("{:016x}", SL_SCHEMA_OWD_HASH))));
    EXPECT_THAT(text, testing::Not(HasSubstr("writing")));
    ASSERT_VALUE(status, refused.wait(kSoon));
    EXPECT_EQ(status, 1);
    EXPECT_EQ(ingress_programs(), 0U);
  }
  replace_schema(right);
  ASSERT_VALUE(down, agent_->json({"down"}));
}

TEST_F(OwdTest, a_contract_that_is_replaced_stops_both_sides) {
  start_agent();
  ASSERT_VALUE(process, start_producer());
  expect_line(process, HasSubstr("writing sl.owd@1"));
  start_traffic();
  ASSERT_TRUE(follows(0, 10000));
  const sl_schema_entry right = schema();
  sl_schema_entry newer = right;
  newer.version = 2;
  replace_schema(newer);
  ASSERT_VALUE(text, process.read_all(kSoon));
  EXPECT_THAT(text, AllOf(HasSubstr("sl.owd@2"), HasSubstr("sl.owd@1")));
  ASSERT_VALUE(status, process.wait(kSoon));
  EXPECT_EQ(status, 1);
  EXPECT_EQ(ingress_programs(), 0U);
  ASSERT_TRUE(goes_on_alone());
  EXPECT_GT(counter("owd_schema"), 0U);
  replace_schema(right);
  ASSERT_VALUE(sent, client_->stop(kSoon));
  ASSERT_VALUE(down, agent_->json({"down"}));
}

TEST_F(OwdTest, the_producer_waits_where_the_agent_took_its_maps_away) {
  ASSERT_VALUE(process, start_producer());
  expect_line(process, HasSubstr("waiting for an agent"));
  for (int round = 0; round < 2; ++round) {
    start_agent();
    expect_line(process, HasSubstr("writing sl.owd@1"));
    ASSERT_VALUE(down, agent_->json({"down"}));
    ASSERT_OK(agent_->wait_exit());
    expect_line(process, HasSubstr("waiting for an agent"));
    EXPECT_EQ(ingress_programs(), 0U);
  }
  ASSERT_OK(process.signal(SIGINT));
  ASSERT_VALUE(status, process.wait(kSoon));
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace sluice::test
