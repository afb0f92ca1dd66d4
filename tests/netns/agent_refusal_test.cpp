// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bad input and bad surroundings for the real agent: each is refused with a message that names the place and the way out, and
// the kernel is as it was.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "bundle/manifest.h"
#include "harness/test_cca.h"
#include "netns/agent_fixture.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const auto* const kBpffs = testing::AddGlobalTestEnvironment(new PrivateBpffs);

const std::string kCubic = "cubic@1.0.0";
constexpr int kExitState = 78;  // EX_CONFIG
const Policy kPolicy{.uses = {.near = kNative, .far = kCubic, .external = kNative2, .unknown = kNative}};

class AgentRefusalTest : public AgentWorldTest {
 protected:
  // A policy is in force and connections are open.
  void start_with_policy() {
    ASSERT_OK(agent_->start());
    ASSERT_VALUE(applied, agent_->apply(kPolicy));
    ASSERT_VALUE(open, Connections::open(*topology_, 2));
    open_.emplace(std::move(open));
    ASSERT_NO_FATAL_FAILURE(expect_in_force());
  }
  void expect_in_force() { EXPECT_EQ(unlike(kPolicy.uses), ""); }
  // All of ours in the kernel: nothing may have been loaded anew. The registry of CCAs is the whole machine's, so only names
  // that this agent would take count.
  std::set<std::string> footprint() const {
    std::set<std::string> all;
    std::error_code none;
    for (const auto& pin : fs::recursive_directory_iterator(agent_->pin_dir(), none)) all.insert(pin.path());
    for (const char* bundle : {"cubic@1.0.0", "cubic@1.0.1", "cubic@2.0.0", "refused@1.0.0"})
      if (registered(*agent_, bundle)) all.insert(fmt::format("cca {}", bundle));
    if (auto programs = sockops_programs(topology_->cgroup()))
      for (const auto id : *programs) all.insert(fmt::format("sockops {}", id));
    return all;
  }
  static bool registered(const Agent& agent, const std::string& target) {
    const auto ref = bundle::parse_bundle_ref(target);
    return ref && available_ccas().contains(bundle::kernel_name(ref->name, ref->version, agent.instance()));
  }
  // The policy is refused as it says, and nothing has changed.
  void expect_refused(const Policy& policy, int status, const testing::Matcher<std::string>& message) {
    const auto before = footprint();
    const std::string generation = status_field("generation");
    ASSERT_VALUE(output, agent_->try_apply(policy));
    EXPECT_EQ(output.status, status) << output.text;
    EXPECT_THAT(output.text, message);
    EXPECT_EQ(footprint(), before);
    EXPECT_EQ(status_field("generation"), generation);
    expect_in_force();
  }
  std::string status_field(const std::string& field) const {
    auto status = agent_->json({"status", "--no-sockets"}, {0, 3});
    if (!status) ADD_FAILURE() << status.error().message();
    return status ? (*status)[field].get<std::string>() : "";
  }
};

TEST_F(AgentRefusalTest, a_bundle_that_the_verifier_refuses) {
  ASSERT_NO_FATAL_FAILURE(start_with_policy());
  ASSERT_OK(agent_->make_bundle("refused", "agent_refused.o", "init, release, ssthresh, cong_avoid, undo_cwnd"));
  Policy policy = kPolicy;
  policy.bundles = {kCubic, "refused@1.0.0"};
  policy.uses.near = "refused@1.0.0";
  expect_refused(policy, 1, AllOf(HasSubstr("refused@1.0.0"), HasSubstr("sl_cong_avoid"), HasSubstr(agent_->state_dir())));
  // The whole log is where the message says.
  bool saved = false;
  for (const auto& file : fs::directory_iterator(agent_->state_dir()))
    saved |= file.path().filename().string().starts_with("verifier-") && file.file_size() > 100;
  EXPECT_TRUE(saved);
}

TEST_F(AgentRefusalTest, a_bundle_that_needs_a_newer_kernel) {
  ASSERT_NO_FATAL_FAILURE(start_with_policy());
  ASSERT_OK(agent_->copy_bundle("cubic/1.0.0", "2.0.0", {{"min: \"6.12\"", "min: \"99.1\""}}));
  Policy policy = kPolicy;
  policy.bundles = {kCubic, "cubic@2.0.0"};
  policy.uses.near = "cubic@2.0.0";
  expect_refused(policy, 1, AllOf(HasSubstr("cubic@2.0.0"), HasSubstr("99.1"), HasSubstr("kernel")));
}

TEST_F(AgentRefusalTest, a_bundle_that_needs_a_feature_that_no_kernel_has) {
  ASSERT_NO_FATAL_FAILURE(start_with_policy());
  ASSERT_OK(agent_->copy_bundle("cubic/1.0.0", "2.0.0", {{"features: [struct_ops]", "features: [struct_ops, warp-drive]"}}));
  Policy policy = kPolicy;
  policy.bundles = {kCubic, "cubic@2.0.0"};
  policy.uses.near = "cubic@2.0.0";
  expect_refused(policy, 1, AllOf(HasSubstr("cubic@2.0.0"), HasSubstr("'warp-drive'"), HasSubstr("sluice doctor")));
}

TEST_F(AgentRefusalTest, an_unknown_bundle_or_version) {
  ASSERT_NO_FATAL_FAILURE(start_with_policy());
  Policy policy = kPolicy;
  policy.bundles = {kCubic, "nosuch@1.0.0"};
  policy.uses.near = "nosuch@1.0.0";
  expect_refused(policy, 1, AllOf(HasSubstr("nosuch"), HasSubstr(".yaml:12:")));
  policy.bundles = {kCubic, "cubic@7.0.0"};
  policy.uses.near = "cubic@7.0.0";
  expect_refused(policy, 1, AllOf(HasSubstr("7.0.0"), HasSubstr("1.0.0"), HasSubstr(".yaml:12:")));
}

TEST_F(AgentRefusalTest, a_kernel_name_that_a_foreign_cca_has) {
  ASSERT_OK(agent_->copy_bundle("cubic/1.0.0", "1.0.1"));
  ASSERT_NO_FATAL_FAILURE(start_with_policy());
  Policy policy = kPolicy;
  policy.bundles = {kCubic, "cubic@1.0.1"};
  policy.uses.near = "cubic@1.0.1";
  ASSERT_VALUE(applied, agent_->apply(policy));
  ASSERT_VALUE(ours, agent_->identity("cubic@1.0.1"));
  ASSERT_TRUE(registered(*agent_, "cubic@1.0.1"));  // the name that footprint() looks for
  ASSERT_VALUE(without, agent_->apply(kPolicy));
  ASSERT_FALSE(available_ccas().contains(ours.name)) << without;
  ASSERT_VALUE(foreign, TestCca::register_as(ours.name));
  expect_refused(policy, 4, AllOf(HasSubstr(ours.name), HasSubstr("bpftool struct_ops show")));
  EXPECT_TRUE(available_ccas().contains(ours.name));
}

TEST_F(AgentRefusalTest, a_version_with_other_content) {
  ASSERT_NO_FATAL_FAILURE(start_with_policy());
  ASSERT_OK(agent_->copy_bundle("cubic/1.0.0", "1.0.0", {{"summary: CUBIC", "summary: Another CUBIC"}}));
  Policy policy = kPolicy;
  policy.uses.near = kCubic;
  expect_refused(policy, 4, AllOf(HasSubstr(kCubic), HasSubstr("new version")));
}

TEST_F(AgentRefusalTest, a_corrupt_state_database) {
  ASSERT_NO_FATAL_FAILURE(start_with_policy());
  ASSERT_OK(agent_->kill());
  const std::string database = agent_->state_dir() + "/agent.db";
  for (const char* suffix : {"-wal", "-shm"}) fs::remove(database + suffix);
  std::ofstream(database, std::ios::trunc) << std::string(8192, 'x');
  const auto before = footprint();
  ASSERT_VALUE(refused, agent_->run_daemon({}));
  EXPECT_EQ(refused.status, kExitState) << refused.text;
  EXPECT_THAT(refused.text, AllOf(HasSubstr(database), HasSubstr("--reset-state")));
  EXPECT_EQ(footprint(), before);
  ASSERT_OK(open_->more(*topology_, 1, {std::begin(kEverywhere), std::end(kEverywhere)}));
  expect_in_force();  // connections do not depend on the database

  ASSERT_OK(agent_->start({"--reset-state"}));
  bool kept = false;
  for (const auto& file : fs::directory_iterator(agent_->state_dir()))
    kept |= file.path().filename().string().starts_with("agent.db.corrupt");
  EXPECT_TRUE(kept);
  expect_in_force();
  EXPECT_EQ(status_field("state"), "degraded");  // what is in the kernel is not hidden, though the agent forgot why
  ASSERT_VALUE(applied, agent_->apply(kPolicy));
  expect_in_force();
  EXPECT_EQ(status_field("state"), "active");
  ASSERT_VALUE(down, agent_->json({"down"}));
  EXPECT_FALSE(fs::exists(agent_->pin_dir()));
}

TEST_F(AgentRefusalTest, a_full_disk) {
  const std::string disk = agent_->dir() + "/disk";
  fs::create_directory(disk);
  ASSERT_EQ(::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=16m"), 0) << std::strerror(errno);
  {
    Agent agent(*topology_, {.tag = "full", .state_dir = disk + "/state"});
    ASSERT_OK(agent.start());
    ASSERT_VALUE(applied, agent.apply(kPolicy));
    const std::string ballast = disk + "/ballast";
    {
      std::ofstream file(ballast);
      const std::string block(4096, 'x');
      while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
      }
    }
    ASSERT_VALUE(before, agent.json({"status"}, {0, 3}));
    Policy policy = kPolicy;
    policy.uses.near = kCubic;
    policy.extra = "# " + std::string(60000, 'x') + "\n";  // more than what SQLite's files have room for
    ASSERT_VALUE(refused, agent.try_apply(policy));
    EXPECT_EQ(refused.status, 1) << refused.text;
    EXPECT_THAT(refused.text, AllOf(HasSubstr(disk), HasSubstr("free space")));
    ASSERT_VALUE(after, agent.json({"status"}, {0, 3}));
    EXPECT_EQ(after["generation"], before["generation"]);
    ASSERT_VALUE(identities, agent.identities({kNative, kNative2, kCubic}));
    ASSERT_VALUE(open, Connections::open(*topology_, 1));
    ASSERT_VALUE(wrong, differences(*recorder_, *topology_, kPolicy.uses, kCubic, identities));
    EXPECT_EQ(wrong, "");
    // Space again: the same command succeeds.
    fs::remove(ballast);
    ASSERT_VALUE(again, agent.apply(policy));
    ASSERT_VALUE(down, agent.json({"down"}));
    ASSERT_OK(agent.wait_exit());
  }
  ASSERT_EQ(::umount2(disk.c_str(), 0), 0) << std::strerror(errno);
}

TEST_F(AgentRefusalTest, no_bpffs) {
  // The agent runs, and says what is missing when it is to pin something.
  const std::string socket = agent_->socket();
  ASSERT_OK(agent_->start({}, "while umount /sys/fs/bpf 2>/dev/null; do :; done"));
  ASSERT_VALUE(refused, agent_->try_apply(kPolicy));
  EXPECT_EQ(refused.status, 1) << refused.text;
  EXPECT_THAT(refused.text, AllOf(HasSubstr("bpffs"), HasSubstr("mount -t bpf bpf /sys/fs/bpf")));
  ASSERT_VALUE(programs, sockops_programs(topology_->cgroup()));
  EXPECT_TRUE(programs.empty());
  ASSERT_VALUE(status, agent_->json({"status"}));
  EXPECT_EQ(status["state"], "idle");
}

TEST_F(AgentRefusalTest, no_cgroup2) {
  ASSERT_OK(agent_->start({}, "for m in $(awk '$3 == \"cgroup2\" {print $2}' /proc/mounts); do umount -l $m || exit 9; done"));
  ASSERT_VALUE(refused, agent_->try_apply(kPolicy));
  EXPECT_EQ(refused.status, 1) << refused.text;
  EXPECT_THAT(refused.text, AllOf(HasSubstr("cgroup2"), HasSubstr("mount -t cgroup2")));
  EXPECT_FALSE(fs::exists(agent_->pin_dir() + "/policy"));
  ASSERT_VALUE(programs, sockops_programs(topology_->cgroup()));
  EXPECT_TRUE(programs.empty());
}

TEST_F(AgentRefusalTest, a_cgroup_that_is_none) {
  Agent agent(*topology_, {.tag = "dir", .cgroup = agent_->dir()});
  ASSERT_OK(agent.start());
  ASSERT_VALUE(refused, agent.try_apply(kPolicy));
  EXPECT_EQ(refused.status, 1) << refused.text;
  EXPECT_THAT(refused.text, AllOf(HasSubstr(agent_->dir()), HasSubstr("cgroup2")));
  // What had been loaded went again.
  EXPECT_FALSE(fs::exists(agent.pin_dir() + "/policy"));
  ASSERT_VALUE(status, agent.json({"status"}));
  EXPECT_EQ(status["state"], "idle");
  EXPECT_FALSE(registered(agent, kCubic));
}

TEST_F(AgentRefusalTest, no_permission) {
  ASSERT_NO_FATAL_FAILURE(start_with_policy());
  const auto before = footprint();
  const std::string policy = agent_->write_policy(kPolicy.document());
  const std::string sluice = std::string(SLUICE_BUILD_DIR) + "/bin/sluice";
  // As nobody: a foreign user may not even read.
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"status"}, std::vector<std::string>{"down"}, std::vector<std::string>{"apply", "/dev/null"}}) {
    std::vector<std::string> words = {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                                      sluice,    "--socket",      agent_->socket()};
    words.insert(words.end(), command.begin(), command.end());
    ASSERT_VALUE(refused, topology_->host("a").run(words, kSoon));
    EXPECT_EQ(refused.status, 1) << refused.text;
    EXPECT_THAT(refused.text, AllOf(HasSubstr(agent_->socket()), HasSubstr("sudo")));
  }
  ASSERT_VALUE(daemon, topology_->host("a").run({"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                                                 std::string(SLUICE_BUILD_DIR) + "/bin/sluiced", "--instance", "nobody",
                                                 "--state-dir", agent_->dir() + "/nobody"},
                                                kSoon));
  EXPECT_EQ(daemon.status, 1) << daemon.text;
  EXPECT_THAT(daemon.text, AllOf(HasSubstr("root"), HasSubstr("sudo")));
  EXPECT_EQ(footprint(), before);
  expect_in_force();
}

TEST_F(AgentRefusalTest, an_agent_that_runs_already) {
  ASSERT_NO_FATAL_FAILURE(start_with_policy());
  const auto before = footprint();
  ASSERT_VALUE(same, agent_->run_daemon({}));
  EXPECT_EQ(same.status, 4) << same.text;
  EXPECT_THAT(same.text,
              AllOf(HasSubstr("running already"), HasSubstr(agent_->state_dir() + "/lock"), HasSubstr("--instance")));
  // Also when only the socket is the same.
  ASSERT_VALUE(socket, agent_->run_daemon({"--state-dir", agent_->dir() + "/other"}));
  EXPECT_EQ(socket.status, 4) << socket.text;
  EXPECT_THAT(socket.text, AllOf(HasSubstr("running already"), HasSubstr(agent_->socket())));
  EXPECT_EQ(footprint(), before);
  EXPECT_EQ(status_field("state"), "active");
}

TEST_F(AgentRefusalTest, an_agent_that_goes_in_the_middle_of_a_command) {
  ASSERT_NO_FATAL_FAILURE(start_with_policy());
  Policy policy = kPolicy;
  policy.uses = {.near = kCubic, .far = kNative, .external = kNative, .unknown = kNative2};
  ASSERT_VALUE(command, agent_->start_cli({"--verbose", "apply", agent_->write_policy(policy.document())}));
  ASSERT_VALUE(line, command.read_line(kSoon));
  EXPECT_THAT(line, HasSubstr("[1/"));
  ASSERT_OK(agent_->kill());
  ASSERT_VALUE(rest, command.read_all(kSoon));
  ASSERT_VALUE(status, command.wait(kSoon));
  if (status != 0) {  // it may have been through
    EXPECT_EQ(status, 1);
    EXPECT_THAT(rest, AllOf(HasSubstr("went away in the middle"), HasSubstr("sluice status"), HasSubstr(agent_->socket())));
  }
  ASSERT_VALUE(gone, agent_->cli({"status"}));
  EXPECT_EQ(gone.status, 1) << gone.text;
  EXPECT_THAT(gone.text, AllOf(HasSubstr(agent_->socket()), HasSubstr("sluice up")));

  ASSERT_OK(agent_->start());
  ASSERT_VALUE(identities, agent_->identities({kNative, kNative2, kCubic}));
  ASSERT_VALUE(unlike_old, differences(*recorder_, *topology_, kPolicy.uses, kCubic, identities));
  ASSERT_VALUE(unlike_new, differences(*recorder_, *topology_, policy.uses, kCubic, identities));
  EXPECT_TRUE(unlike_old.empty() || unlike_new.empty()) << unlike_old << "\n" << unlike_new;
  ASSERT_VALUE(report, agent_->json({"status"}, {0, 3}));
  EXPECT_EQ(report["state"], "active") << report["problems"] << agent_->log();
}

}  // namespace
}  // namespace sluice::test
