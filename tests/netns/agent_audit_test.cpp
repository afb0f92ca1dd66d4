// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// `sluice audit` on the running kernel: real programs of others on the hook of a real agent, real sockets that they take away,
// and every way to take the agent's own program off its hook. The other programs are those of tests/bpf/foreign_sockops.bpf.c.
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/bpf.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "netns/agent_fixture.h"

namespace sluice::test {
namespace {

using testing::Contains;
using testing::HasSubstr;

const auto* const kBpffs = testing::AddGlobalTestEnvironment(new PrivateBpffs);
const std::string kObject = SLUICE_BUILD_DIR "/tests/bpf/foreign_sockops.o";
const std::string kCubic = "cubic@1.0.0";
const Policy kPolicy{.uses = {.near = kNative, .far = kCubic, .external = kNative2, .unknown = kNative}};

std::uint32_t id_of_program(int fd) {
  bpf_prog_info info{};
  std::uint32_t length = sizeof info;
  return ::bpf_obj_get_info_by_fd(fd, &info, &length) == 0 ? info.id : 0;
}

// The other team: its programs, and its links while it lives.
class Foreign {
 public:
  Foreign() : object_(::bpf_object__open_file(kObject.c_str(), nullptr)) {
    if (object_ == nullptr || ::bpf_object__load(object_) != 0) panic("the programs of others do not load", __FILE__, __LINE__);
  }
  ~Foreign() { ::bpf_object__close(object_); }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;

  // The program's id.
  Result<std::uint32_t> attach(const std::string& program, const std::string& cgroup) {
    const int fd = ::bpf_program__fd(::bpf_object__find_program_by_name(object_, program.c_str()));
    Fd folder(::open(cgroup.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    Fd link(::bpf_link_create(fd, folder.get(), BPF_CGROUP_SOCK_OPS, nullptr));
    if (!link) return fail_errno(errno, "cannot attach {} to {}", program, cgroup);
    links_.push_back(std::move(link));
    return id_of_program(fd);
  }
  void let_go() { links_.pop_back(); }
  void let_go_of_all() { links_.clear(); }

 private:
  bpf_object* object_;
  std::vector<Fd> links_;
};

class AgentAuditTest : public AgentWorldTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(AgentWorldTest::SetUp());
    ASSERT_OK(agent_->start());
  }

  void expect_in_force(Agent& agent, const Uses& uses) {
    ASSERT_VALUE(identities, agent.identities({uses.near, uses.far, uses.external, uses.unknown, kCubic}));
    ASSERT_VALUE(wrong, differences(*recorder_, *topology_, uses, kCubic, identities));
    EXPECT_EQ(wrong, "");
  }
  static void await_event(const Agent& agent, const std::string& kind, const std::string& text) {
    ASSERT_VALUE(events, agent.start_cli({"--output", "json", "events", "--follow"}));
    while (true) {
      ASSERT_VALUE(line, events.read_line(kSoon));
      const auto event = nlohmann::json::parse(line, nullptr, false);
      ASSERT_FALSE(event.is_discarded()) << line;
      if (event["kind"] == kind && event["message"].get<std::string>().find(text) != std::string::npos) return;
    }
  }
  static nlohmann::json program_of(const nlohmann::json& audit, std::uint32_t id) {
    for (const auto& program : audit["hooks"][0]["list"])
      if (program["prog_id"] == id) return program;
    ADD_FAILURE() << "program " << id << " is not in " << audit;
    return {};
  }
  Result<std::string> pin(const std::string& name) const {
    const std::string path = agent_->pin_dir() + "/policy/" + name;
    if (!std::filesystem::exists(path)) return fail(Code::kNotFound, "there is no pin {}", path);
    return path;
  }
  Host& a() { return topology_->host("a"); }
  Host& b() { return topology_->host("b"); }
};

TEST_F(AgentAuditTest, without_others_an_audit_is_clean) {
  ASSERT_VALUE(idle, agent_->json({"audit"}));
  EXPECT_EQ(idle["verdict"], "idle");
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_VALUE(open, Connections::open(*topology_, 2));
  ASSERT_VALUE(audit, agent_->json({"audit"}));
  EXPECT_EQ(audit["verdict"], "clean") << audit;
  EXPECT_EQ(audit["hooks"][0]["programs"], 1);
  EXPECT_EQ(audit["hooks"][0]["list"][0]["order"], "ours");
  EXPECT_THAT(audit["hooks"][0]["list"][0]["holders"].get<std::vector<std::string>>(),
              Contains("pin " + agent_->pin_dir() + "/policy/link/sockops"));
}

TEST_F(AgentAuditTest, a_program_that_sets_a_cca_after_ours_is_found_and_named_with_its_sockets) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  Foreign foreign;
  ASSERT_VALUE(harmless, foreign.attach("f_harmless", topology_->cgroup()));
  ASSERT_VALUE(before, foreign.attach("f_asks_for_ecn", a().cgroup()));
  ASSERT_VALUE(guilty, foreign.attach("f_sets_reno", topology_->cgroup()));
  ASSERT_VALUE(open, Connections::open(*topology_, 2));
  ASSERT_VALUE(sockets, established(*recorder_, *topology_));
  for (const auto& socket : sockets) EXPECT_EQ(socket.cca, "reno") << to_json(socket);

  ASSERT_VALUE(audit, agent_->json({"audit"}, {3}));
  EXPECT_EQ(audit["verdict"], "overridden");
  const auto program = program_of(audit, guilty);
  EXPECT_EQ(program["name"], "f_sets_reno");
  EXPECT_EQ(program["order"], "after");
  EXPECT_EQ(program["verdict"], "overrides") << audit;
  EXPECT_EQ(program["sockets"], std::to_string(sockets.size()));
  EXPECT_THAT(program["overrides"].dump(), HasSubstr("sets CCA reno (active_established, passive_established)"));
  EXPECT_THAT(program["holders"].dump(), HasSubstr(fmt::format("process {} ", ::getpid())));
  EXPECT_EQ(program_of(audit, harmless)["verdict"], "harmless");
  EXPECT_EQ(program_of(audit, before)["order"], "before");
  EXPECT_EQ(program_of(audit, before)["cgroup"], a().cgroup());
  for (const auto& group : audit["overridden"]) {
    EXPECT_EQ(group["runs"], "reno");
    EXPECT_EQ(group["prog_ids"], nlohmann::json::array({guilty})) << group;
  }
  EXPECT_THAT(audit["problems"].dump(), HasSubstr(fmt::format("f_sets_reno (id {})", guilty)));

  foreign.let_go_of_all();
  ASSERT_VALUE(migrated, agent_->json({"migrate"}));
  expect_in_force(*agent_, kPolicy.uses);
  ASSERT_VALUE(clean, agent_->json({"audit"}));
  EXPECT_EQ(clean["verdict"], "clean") << clean;
}

TEST_F(AgentAuditTest, a_program_that_clears_ecn_is_found_and_named_with_its_sockets) {
  ASSERT_OK(agent_->make_bundle("wantsecn", "agent_ecn_reno.o", "init, release, ssthresh, cong_avoid, pkts_acked, undo_cwnd",
                                "requires"));
  Policy policy = kPolicy;
  policy.bundles = {kCubic, "wantsecn@1.0.0"};
  policy.uses.near = "wantsecn@1.0.0";
  ASSERT_VALUE(applied, agent_->apply(policy));
  ASSERT_VALUE(wants, agent_->identity("wantsecn@1.0.0"));
  // Host b does ECN only because ours says that it has to.
  ASSERT_OK(b().set_sysctl("net.ipv4.tcp_ecn", "0"));
  ASSERT_VALUE(open, Connections::open(*topology_, 2, kPort, {Where::kNear}));
  ASSERT_VALUE(with_ecn, established(*recorder_, *topology_));
  for (const auto& socket : with_ecn) EXPECT_EQ(socket.cca, wants.name) << to_json(socket);
  ASSERT_VALUE(clean, agent_->json({"audit"}));
  EXPECT_EQ(clean["verdict"], "clean") << clean;

  Foreign foreign;
  ASSERT_VALUE(guilty, foreign.attach("f_clears_ecn", topology_->cgroup()));
  ASSERT_OK(open.more(*topology_, 3, {Where::kNear}));
  ASSERT_VALUE(audit, agent_->json({"audit"}, {3}));
  EXPECT_EQ(audit["verdict"], "overridden");
  const auto program = program_of(audit, guilty);
  EXPECT_EQ(program["name"], "f_clears_ecn");
  EXPECT_EQ(program["verdict"], "overrides") << audit;
  EXPECT_THAT(program["overrides"].dump(), HasSubstr("answers 0 (needs_ecn)"));
  ASSERT_EQ(audit["overridden"].size(), 1u) << audit["overridden"];
  const auto& group = audit["overridden"][0];
  EXPECT_EQ(group["kind"], "ecn");
  EXPECT_EQ(group["wanted"], wants.name);
  EXPECT_EQ(group["sockets"], "6") << "both ends of three connections";
  EXPECT_THAT(group["cause"].get<std::string>(), HasSubstr("f_clears_ecn"));
  EXPECT_THAT(group["cause"].get<std::string>(), HasSubstr("peer"));
}

TEST_F(AgentAuditTest, an_application_that_chooses_itself_overrides_nothing) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_VALUE(open, Connections::open(*topology_, 1));
  ASSERT_VALUE(application, a().fork(
                                [] {
                                  sockaddr_in to{};
                                  to.sin_family = AF_INET;
                                  to.sin_port = htons(kPort);
                                  ::inet_pton(AF_INET, address("b", Where::kNear).c_str(), &to.sin_addr);
                                  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
                                  if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return 1;
                                  if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) != 0) return 2;
                                  char runs[16] = {};
                                  socklen_t size = sizeof runs;
                                  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, runs, &size) != 0) return 3;
                                  if (::dprintf(STDOUT_FILENO, "%s\n", runs) < 0) return 4;
                                  ::pause();
                                  return 0;
                                },
                                {.pipe_stdout = true}));
  ASSERT_VALUE(runs, application.read_line(kSoon));
  EXPECT_EQ("kernel:" + runs, kPolicy.uses.near);
  ASSERT_VALUE(audit, agent_->json({"audit"}));
  EXPECT_EQ(audit["verdict"], "clean") << audit;
}

TEST_F(AgentAuditTest, a_detached_program_shows_until_it_is_back_and_the_finding_stays) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_VALUE(path, pin("link/sockops"));
  Fd link(::bpf_obj_get(path.c_str()));
  ASSERT_TRUE(link);
  ASSERT_EQ(::bpf_link_detach(link.get()), 0);
  ASSERT_NO_FATAL_FAILURE(await_event(*agent_, "damaged", "the sockops program is not attached"));
  ASSERT_NO_FATAL_FAILURE(await_event(*agent_, "repaired", "detached"));
  ASSERT_VALUE(audit, agent_->json({"audit"}, {3}));
  EXPECT_EQ(audit["verdict"], "repaired");
  EXPECT_TRUE(audit["hooks"][0]["attached"].get<bool>());
  EXPECT_EQ(audit["repairs"][0]["kind"], "hook");
  EXPECT_EQ(audit["repairs"][0]["found"], "1");
  ASSERT_VALUE(status, agent_->json({"status"}));
  EXPECT_EQ(status["state"], "active") << status["problems"];
  ASSERT_VALUE(doctor, agent_->json({"doctor"}, {0, 3}));
  const auto ours = std::ranges::find(doctor["checks"], "our-hooks", [](const auto& check) { return check["name"]; });
  ASSERT_NE(ours, doctor["checks"].end());
  EXPECT_EQ((*ours)["verdict"], "warning") << *ours;
}

TEST_F(AgentAuditTest, pins_that_somebody_removed_are_made_anew_under_a_hook_that_stays) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_VALUE(open, Connections::open(*topology_, 2));
  ASSERT_VALUE(before, sockops_programs(topology_->cgroup()));
  // Without its pin the kernel empties the array of stages: the program goes on, and decides nothing.
  for (const char* name : {"maps/sl_stages", "iter/sl_iter_migrate", "programs/sl_selector"}) {
    ASSERT_VALUE(path, pin(name));
    ASSERT_EQ(::unlink(path.c_str()), 0);
  }
  ASSERT_NO_FATAL_FAILURE(await_event(*agent_, "damaged", "sl_iter_migrate"));
  ASSERT_NO_FATAL_FAILURE(await_event(*agent_, "repaired", "sl_iter_migrate"));
  for (const char* name : {"maps/sl_stages", "iter/sl_iter_migrate", "programs/sl_selector"}) {
    ASSERT_VALUE(path, pin(name));
  }
  ASSERT_OK(open.more(*topology_, 2, {std::begin(kEverywhere), std::end(kEverywhere)}));
  expect_in_force(*agent_, kPolicy.uses);
  ASSERT_VALUE(after, sockops_programs(topology_->cgroup()));
  EXPECT_EQ(after.size(), before.size());
  ASSERT_VALUE(audit, agent_->json({"audit"}, {3}));
  EXPECT_EQ(audit["verdict"], "repaired");
  EXPECT_EQ(audit["repairs"][0]["kind"], "pins");
  ASSERT_VALUE(status, agent_->json({"status"}));
  EXPECT_EQ(status["state"], "active") << status["problems"];
}

TEST_F(AgentAuditTest, a_link_without_its_pin_is_taken_back_and_never_doubled) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  ASSERT_VALUE(path, pin("link/sockops"));
  Fd held(::bpf_obj_get(path.c_str()));
  ASSERT_TRUE(held);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_NO_FATAL_FAILURE(await_event(*agent_, "repaired", "the pin of its link is gone"));
  ASSERT_VALUE(again, pin("link/sockops"));
  ASSERT_VALUE(programs, sockops_programs(topology_->cgroup()));
  EXPECT_EQ(programs.size(), 1u);
  ASSERT_VALUE(open, Connections::open(*topology_, 1));
  expect_in_force(*agent_, kPolicy.uses);
}

TEST_F(AgentAuditTest, a_cgroup_that_went_is_missed_and_its_hook_is_back_when_it_is_made_again) {
  ASSERT_VALUE(idle, agent_->json({"down"}));
  ASSERT_OK(agent_->wait_exit());
  const std::string cgroup = topology_->cgroup() + "/gone";
  ASSERT_EQ(::mkdir(cgroup.c_str(), 0755), 0);
  {
    Agent agent(*topology_, {.tag = "g", .cgroup = cgroup});
    ASSERT_OK(agent.start());
    ASSERT_VALUE(applied, agent.apply(kPolicy));
    ASSERT_EQ(::rmdir(cgroup.c_str()), 0);
    ASSERT_NO_FATAL_FAILURE(await_event(agent, "damaged", "is gone"));
    ASSERT_NO_FATAL_FAILURE(await_event(agent, "repair-failed", cgroup));
    ASSERT_VALUE(status, agent.json({"status"}, {3}));
    EXPECT_THAT(status["problems"].dump(), HasSubstr("is gone"));
    ASSERT_VALUE(audit, agent.json({"audit"}, {3}));
    EXPECT_EQ(audit["verdict"], "detached");
    ASSERT_EQ(::mkdir(cgroup.c_str(), 0755), 0);
    ASSERT_NO_FATAL_FAILURE(await_event(agent, "repaired", ""));
    ASSERT_VALUE(programs, sockops_programs(cgroup));
    EXPECT_EQ(programs.size(), 1u);
    ASSERT_VALUE(down, agent.json({"down"}));
    ASSERT_OK(agent.wait_exit());
  }
  ASSERT_EQ(::rmdir(cgroup.c_str()), 0);
}

TEST_F(AgentAuditTest, a_full_hook_is_said_to_be_so_and_the_program_is_back_when_there_is_room) {
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  Foreign foreign;
  for (int i = 0; i < 63; ++i) ASSERT_TRUE(foreign.attach("f_harmless", topology_->cgroup()));
  ASSERT_VALUE(audit, agent_->json({"audit"}));
  EXPECT_EQ(audit["hooks"][0]["programs"], 64);
  // Its place is taken; should the agent be quicker, again.
  bool taken = false;
  while (!taken) {
    ASSERT_VALUE(path, pin("link/sockops"));
    Fd link(::bpf_obj_get(path.c_str()));
    ASSERT_TRUE(link);
    ASSERT_EQ(::bpf_link_detach(link.get()), 0);
    taken = foreign.attach("f_harmless", topology_->cgroup()).has_value();
  }
  ASSERT_NO_FATAL_FAILURE(await_event(*agent_, "repair-failed", "64 programs are there, such as f_harmless"));
  ASSERT_VALUE(full, agent_->json({"audit"}, {3}));
  EXPECT_EQ(full["verdict"], "detached");
  EXPECT_THAT(full["problems"].dump(), HasSubstr("holds 64 programs, as many as it takes"));
  foreign.let_go();
  ASSERT_NO_FATAL_FAILURE(await_event(*agent_, "repaired", "not attached"));
  ASSERT_VALUE(open, Connections::open(*topology_, 1));
  expect_in_force(*agent_, kPolicy.uses);
}

}  // namespace
}  // namespace sluice::test
