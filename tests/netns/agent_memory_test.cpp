// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The real agent when memory runs out: that of its cgroup, which maps and programs in the kernel count against, and its own, by
// a limit. A change is made, refused with what to do, or cut short by the agent's death; after the next start the host is on
// the old policy or on the new one, and connections have not noticed.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "netns/agent_fixture.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

const auto* const kBpffs = testing::AddGlobalTestEnvironment(new PrivateBpffs);

constexpr char kCubic[] = "cubic@1.0.0";
constexpr char kCubicNext[] = "cubic@1.0.1";
constexpr int kPrefixes = 20'000;  // tables of some MiB
const Uses kOld = {kNative, kCubic, kNative2, kNative};
const Uses kNew = {kCubicNext, kCubicNext, kNative, kCubic};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}
Status put(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) return fail_errno(errno, "cannot write {} to {}", text, path);
  return {};
}

// A cgroup that limits memory, of version 2 where that has the controller, else of version 1. It begins to count when a process
// enters.
class MemoryCgroup {
 public:
  static Result<MemoryCgroup> create() {
    MemoryCgroup made;
    SLUICE_TRY(unified, mounts_of("cgroup2"));
    const std::string name = unique_name();
    if (!unified.empty() && text_of(unified[0] + "/cgroup.controllers").find("memory") != std::string::npos) {
      made.control_ = unified[0] + "/cgroup.subtree_control";
      made.enabled_ = text_of(made.control_).find("memory") == std::string::npos;
      if (made.enabled_) SLUICE_CHECK(put(made.control_, "+memory"));
      made.folder_ = unified[0] + "/" + name;
      made.limit_ = "memory.max";
      made.usage_ = "memory.current";
      made.unlimited_ = "max";
    } else {
      SLUICE_TRY(mounted, mounts_of("cgroup"));
      for (const auto& mount : mounted)
        if (fs::exists(mount + "/memory.limit_in_bytes")) made.folder_ = mount + "/" + name;
      made.limit_ = "memory.limit_in_bytes";
      made.usage_ = "memory.usage_in_bytes";
      made.unlimited_ = "-1";
    }
    if (made.folder_.empty()) return fail(Code::kUnsupported, "no cgroup of this host limits memory");
    std::error_code error;
    fs::create_directory(made.folder_, error);
    if (error) return fail_errno(error.value(), "cannot make {}", made.folder_);
    return made;
  }
  MemoryCgroup(MemoryCgroup&& other) noexcept { *this = std::move(other); }
  MemoryCgroup& operator=(MemoryCgroup&& other) noexcept {
    std::swap(folder_, other.folder_);
    std::swap(control_, other.control_);
    std::swap(enabled_, other.enabled_);
    std::swap(limit_, other.limit_);
    std::swap(usage_, other.usage_);
    std::swap(unlimited_, other.unlimited_);
    return *this;
  }
  ~MemoryCgroup() {
    if (!folder_.empty()) ::rmdir(folder_.c_str());
    if (enabled_) (void)put(control_, "-memory");
  }

  Status enter(pid_t pid) const { return put(folder_ + "/cgroup.procs", std::to_string(pid)); }
  Status leave_room(long bytes) const {
    return put(folder_ + "/" + limit_, std::to_string(std::stol(text_of(folder_ + "/" + usage_)) + bytes));
  }
  Status lift() const { return put(folder_ + "/" + limit_, unlimited_); }

 private:
  MemoryCgroup() = default;
  std::string folder_, control_, limit_, usage_, unlimited_;
  bool enabled_ = false;
};

class AgentMemoryTest : public AgentWorldTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(AgentWorldTest::SetUp());
    ASSERT_OK(agent_->copy_bundle("cubic/1.0.0", "1.0.1"));
    Policy next{.uses = kNew};
    next.bundles.emplace_back(kCubicNext);
    std::string document = next.document();
    std::string prefixes;
    for (int i = 0; i < kPrefixes; ++i)
      prefixes += fmt::format("  - {{prefix: 11.{}.{}.0/24, region: us, datacenter: d{}}}\n", i / 256, i % 256, i % 50);
    document.insert(document.find("  - {prefix: 10.1.0.0/16"), prefixes);
    new_ = agent_->write_policy(document);
    ASSERT_OK(agent_->start());
    ASSERT_VALUE(applied, agent_->apply(Policy{.uses = kOld}));
    ASSERT_VALUE(open, Connections::open(*topology_, 2));
    open_.emplace(std::move(open));
    ASSERT_EQ(unlike(kOld), "");
  }
  bool running() const { return fs::exists(fmt::format("/proc/{}/exe", agent_->pid())); }

  // Applies the new policy with ever more room, until that succeeds.
  void with_ever_more_room(const std::function<Status(long)>& leave_room, const std::function<Status()>& lift) {
    int refused = 0, died = 0;
    for (long room = 1 << 20; room < 1L << 30; room *= 4) {
      SCOPED_TRACE(fmt::format("room for {} kB", room >> 10));
      ASSERT_OK(leave_room(room));
      ASSERT_VALUE(output, agent_->cli({"apply", new_}));
      ASSERT_OK(open_->more(*topology_, 1, {Where::kFar}));
      ASSERT_OK(lift());
      if (output.status == 0) {
        ASSERT_EQ(unlike(kNew), "");
        fmt::print("{} refusals, {} deaths, done with room for {} kB\n", refused, died, room >> 10);
        EXPECT_GT(refused + died, 0);
        return;
      }
      EXPECT_EQ(output.status, 1) << output.text;
      EXPECT_THAT(output.text,
                  AnyOf(HasSubstr("free memory"), HasSubstr("went away in the middle"), HasSubstr("closed the connection")))
          << agent_->log();
      // What was begun is finished or undone, at the latest before the next command; or at the next start, if it has died of
      // it.
      ASSERT_VALUE(settled, agent_->cli({"migrate"}));
      if (settled.status == 0) {
        ++refused;
      } else {
        ++died;
        ASSERT_OK(agent_->wait_exit());
        ASSERT_OK(agent_->start());
        ASSERT_VALUE(again, agent_->json({"migrate"}));
      }
      if (const std::string wrong = unlike(kOld); !wrong.empty()) {
        ASSERT_EQ(unlike(kNew), "") << wrong << output.text << agent_->log();
        return;
      }
      ASSERT_VALUE(status, agent_->json({"status", "--no-sockets"}, {0, 3}));
      ASSERT_EQ(status["state"], "active") << status["problems"] << agent_->log();
    }
    FAIL() << "the policy is never applied";
  }

  std::string new_;  // path of the policy
};

TEST_F(AgentMemoryTest, a_change_is_made_whole_or_not_at_all_in_a_cgroup_without_memory) {
  ASSERT_VALUE(cgroup, MemoryCgroup::create());
  ASSERT_NO_FATAL_FAILURE(with_ever_more_room(
      [&](long room) -> Status {
        SLUICE_CHECK(cgroup.enter(agent_->pid()));
        return cgroup.leave_room(room);
      },
      [&] { return cgroup.lift(); }));
  ASSERT_VALUE(down, agent_->json({"down"}));
  ASSERT_OK(agent_->wait_exit());
}

TEST_F(AgentMemoryTest, a_map_that_the_cgroup_has_no_memory_for_is_refused_and_nothing_is_left_of_it) {
  ASSERT_OK(agent_->make_bundle("hungry", "agent_hungry.o", "init, release, ssthresh, cong_avoid, undo_cwnd"));
  Policy policy{.uses = kOld};
  policy.bundles.emplace_back("hungry@1.0.0");
  policy.uses.near = "hungry@1.0.0";
  constexpr long kRoom = 96L << 20;  // for everything but its map
  ASSERT_VALUE(cgroup, MemoryCgroup::create());
  ASSERT_OK(cgroup.enter(agent_->pid()));
  ASSERT_OK(cgroup.leave_room(kRoom));
  ASSERT_VALUE(refused, agent_->try_apply(policy));
  ASSERT_TRUE(running()) << agent_->log();
  EXPECT_EQ(refused.status, 1) << refused.text;
  EXPECT_THAT(refused.text,
              AllOf(HasSubstr("load and register hungry@1.0.0"), HasSubstr("hungry_map"), HasSubstr("free memory")));
  EXPECT_FALSE(fs::exists(agent_->pin_dir() + "/cca/hungry"));
  EXPECT_EQ(unlike(kOld), "");
  ASSERT_VALUE(status, agent_->json({"status"}));
  EXPECT_EQ(status["state"], "active");
  ASSERT_OK(cgroup.lift());
  ASSERT_VALUE(applied, agent_->apply(policy));
  EXPECT_EQ(unlike(policy.uses), "");
  ASSERT_VALUE(down, agent_->json({"down"}));
  ASSERT_OK(agent_->wait_exit());
}

TEST_F(AgentMemoryTest, a_change_is_made_whole_or_not_at_all_when_the_agent_may_have_no_more) {
  const auto limit_to = [&](rlim_t bytes) -> Status {
    const rlimit limit{bytes, RLIM_INFINITY};
    if (running() && ::prlimit(agent_->pid(), RLIMIT_DATA, &limit, nullptr) != 0)
      return fail_errno(errno, "cannot limit the agent");
    return {};
  };
  ASSERT_NO_FATAL_FAILURE(with_ever_more_room(
      [&](long room) {
        const std::string status = text_of(fmt::format("/proc/{}/status", agent_->pid()));
        return limit_to(static_cast<rlim_t>(std::stol(status.substr(status.find("VmData:") + 7)) * 1024 + room));
      },
      [&] { return limit_to(RLIM_INFINITY); }));
  ASSERT_VALUE(down, agent_->json({"down"}));
  ASSERT_OK(agent_->wait_exit());
}

}  // namespace
}  // namespace sluice::test
