// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The real agent when descriptors run out: by a limit that is nearly used up, and by peers that hold connections. A command
// works or says what to do; the host is on the old policy or on the new one; no connection changes its CCA; and when there are
// descriptors again, so is the agent.
//
// SLUICE_LIMIT_STRIDE: every so many descriptors of room are tried (7), from a start that SLUICE_LIMIT_START repeats.
#include <gmock/gmock.h>
#include <grp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

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
constexpr int kRoomMax = 400;         // what no command needs
constexpr int kConnectionsMax = 256;  // that the agent serves of each kind of peer
constexpr int kNobody = 65534;
constexpr char kGroup[] = "sluice";
constexpr int kGroupId = 64242;

const Uses kOld = {kNative, kCubic, kNative2, kNative};
const Uses kNew = {kCubicNext, kCubicNext, kNative, kCubic};
const Uses kRolledBack = {kCubic, kCubic, kNative, kCubic};
const Uses kNone = {kFallbackUse, kFallbackUse, kFallbackUse, kFallbackUse};

std::string document(const Uses& uses) {
  Policy policy{.uses = uses};
  if (uses.near == kCubicNext) policy.bundles.emplace_back(kCubicNext);
  return policy.document();
}

// A descriptor of a connection to a unix socket; an error when nobody accepts or it is closed at once.
Result<Fd> connect_to(const std::string& path) {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return fail_errno(errno, "cannot connect to {}", path);
  return fd;
}

class AgentDescriptorsTest : public AgentWorldTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(AgentWorldTest::SetUp());
    agent_.emplace(*topology_, Agent::Options{.watchdog_us = 400'000});
    ASSERT_OK(agent_->copy_bundle("cubic/1.0.0", "1.0.1"));
    ASSERT_VALUE(open, Connections::open(*topology_, 2));
    open_.emplace(std::move(open));
    if (const char* stride = std::getenv("SLUICE_LIMIT_STRIDE")) stride_ = std::atoi(stride);
    const char* start = std::getenv("SLUICE_LIMIT_START");
    start_ = start != nullptr ? std::atoi(start) : static_cast<int>(std::random_device()() % static_cast<unsigned>(stride_));
    fmt::print("SLUICE_LIMIT_START={} SLUICE_LIMIT_STRIDE={}\n", start_, stride_);
  }

  // The agent can open so many descriptors more; kRoomMax and beyond: as many as it wants.
  void leave_room(int room) {
    rlimit limit{};
    ASSERT_EQ(::prlimit(agent_->pid(), RLIMIT_NOFILE, nullptr, &limit), 0) << std::strerror(errno);
    std::set<rlim_t> used;
    for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", agent_->pid())))
      used.insert(std::stoul(entry.path().filename()));
    rlim_t number = 0;
    for (int left = room; left > 0 || used.contains(number); ++number)
      if (!used.contains(number)) --left;
    limit.rlim_cur = room < kRoomMax ? number : limit.rlim_max;
    ASSERT_EQ(::prlimit(agent_->pid(), RLIMIT_NOFILE, &limit, nullptr), 0) << std::strerror(errno);
  }

  // Pins that no policy of the moment explains are a change half made.
  std::set<std::string> versions_loaded() const {
    std::set<std::string> found;
    std::error_code none;
    for (const auto& pin : fs::directory_iterator(agent_->pin_dir() + "/cca/cubic", none)) found.insert(pin.path().filename());
    return found;
  }

  // `command` with ever more room, until it is done; each time before, the host must be whole, on `before` or on `after`.
  void with_ever_more_room(const std::vector<std::string>& command, const Uses& before, const Uses& after) {
    const bool from_nothing = &before == &kNone;
    const auto versions = versions_loaded();
    int refused = 0;
    for (int room = start_; room < kRoomMax; room += stride_) {
      SCOPED_TRACE(fmt::format("{} with room for {} descriptors", command.front(), room));
      ASSERT_NO_FATAL_FAILURE(leave_room(room));
      ASSERT_VALUE(output, agent_->cli(command));
      ASSERT_NO_FATAL_FAILURE(leave_room(kRoomMax));
      if (output.status == 0) {
        ASSERT_EQ(unlike(after), "") << agent_->log();
        fmt::print("{}: {} refusals, done with room for {}\n", command.front(), refused, room);
        EXPECT_GT(refused, 0);
        return;
      }
      ++refused;
      EXPECT_EQ(output.status, 1) << output.text;
      EXPECT_THAT(output.text, AllOf(HasSubstr("fix: "),
                                     AnyOf(HasSubstr("no descriptors left"), HasSubstr("the agent closed the connection"))));
      // The next look of the agent, or the next command, ends what this one could not. No policy, no migration.
      ASSERT_VALUE(settled, agent_->cli({"migrate"}));
      ASSERT_TRUE(settled.status == 0 || from_nothing) << settled.text << agent_->log();
      const std::string unlike_before = from_nothing ? unlike(before, kFallbackUse) : unlike(before);
      if (!unlike_before.empty()) {
        // Committed, and then finished.
        ASSERT_EQ(unlike(after), "") << unlike_before << output.text << agent_->log();
        return;
      }
      ASSERT_EQ(versions_loaded(), versions) << output.text << agent_->log();
      ASSERT_VALUE(status, agent_->json({"status", "--no-sockets"}, {0, 3}));
      ASSERT_EQ(status["state"], from_nothing ? "idle" : "active") << status["problems"] << agent_->log();
    }
    FAIL() << command.front() << " is never done";
  }

  int stride_ = 7, start_ = 0;
};

TEST_F(AgentDescriptorsTest, a_change_is_made_whole_or_refused_whatever_room_there_is) {
  ASSERT_OK(agent_->start());
  const std::string first = agent_->write_policy(document(kOld));
  const std::string second = agent_->write_policy(document(kNew));
  ASSERT_NO_FATAL_FAILURE(with_ever_more_room({"apply", first}, kNone, kOld));
  ASSERT_NO_FATAL_FAILURE(with_ever_more_room({"apply", second}, kOld, kNew));
  ASSERT_NO_FATAL_FAILURE(with_ever_more_room({"rollback", kCubicNext}, kNew, kRolledBack));
  // What reads: an answer or an error, and never a change.
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"status"}, {"sockets"}, {"explain", "10.2.0.2"}, {"audit"}, {"cca", "list"}, {"diff", first}, {"events"}}) {
    bool answered = false;
    for (int room = start_; room < kRoomMax && !answered; room += stride_) {
      SCOPED_TRACE(fmt::format("{} with room for {} descriptors", command.front(), room));
      ASSERT_NO_FATAL_FAILURE(leave_room(room));
      ASSERT_VALUE(output, agent_->cli(command));
      ASSERT_NO_FATAL_FAILURE(leave_room(kRoomMax));
      answered = output.status == 0 || output.status == 3;
      if (answered) continue;
      EXPECT_EQ(output.status, 1) << output.text;
      EXPECT_THAT(output.text, AllOf(HasSubstr("fix: "),
                                     AnyOf(HasSubstr("no descriptors left"), HasSubstr("the agent closed the connection"))));
    }
    EXPECT_TRUE(answered) << command.front();
    ASSERT_EQ(unlike(kRolledBack), "");
  }
  ASSERT_VALUE(status, agent_->json({"status"}, {0, 3}));
  for (const auto& repair : status["repairs"]) EXPECT_EQ(repair["found"], "0") << repair << " by nobody";
  ASSERT_VALUE(down, agent_->json({"down"}));
  ASSERT_OK(agent_->wait_exit());
  EXPECT_FALSE(fs::exists(agent_->pin_dir()));
}

TEST_F(AgentDescriptorsTest, a_peer_that_holds_all_of_them_is_no_harm_and_others_hear_of_it_at_once) {
  ASSERT_OK(agent_->start());
  ASSERT_VALUE(applied, agent_->apply_text(document(kOld)));
  ASSERT_VALUE(identities, agent_->identities({kNative, kNative2, kCubic}));  // asks the agent
  constexpr int kRoom = 8;
  ASSERT_NO_FATAL_FAILURE(leave_room(kRoom));
  std::vector<Fd> held;
  for (int i = 0; i < 2 * kRoom; ++i) {
    ASSERT_VALUE(fd, connect_to(agent_->socket()));
    held.push_back(std::move(fd));
  }
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {
    ASSERT_VALUE(refused, agent_->cli({"status"}));
    ASSERT_EQ(refused.status, 1) << refused.text;
    EXPECT_THAT(refused.text,
                AllOf(HasSubstr(agent_->socket()), HasSubstr("the agent closed the connection"), HasSubstr("log")));
  }
  // Told of once, not with every attempt or turn of a loop.
  const std::string log = agent_->log();
  const auto told = [&](const std::string& what) {
    int times = 0;
    for (auto at = log.find(what); at != std::string::npos; at = log.find(what, at + 1)) ++times;
    return times;
  };
  EXPECT_EQ(told("no descriptors or memory left to accept"), 1) << log;
  EXPECT_LE(told("systemd could not be told"), 1) << log;  // nobody reads the notices meanwhile
  // The service manager does not take it for dead, and connections are selected as before.
  ASSERT_OK(agent_->await_watchdog());
  ASSERT_OK(open_->more(*topology_, 1, {std::begin(kEverywhere), std::end(kEverywhere)}));
  ASSERT_VALUE(wrong, differences(*recorder_, *topology_, kOld, kCubic, identities));
  EXPECT_EQ(wrong, "");
  held.clear();
  // Whatever the agent's own look at the host made of it meanwhile, nothing was damaged.
  Output status{1, ""};
  while (status.status == 1) {  // gRPC notices the end of a connection a moment later
    ASSERT_VALUE(again, agent_->cli({"status"}));
    status = std::move(again);
  }
  EXPECT_EQ(status.status, 0) << status.text;
  EXPECT_EQ(agent_->log().find("damaged"), std::string::npos) << agent_->log();
  ASSERT_NO_FATAL_FAILURE(leave_room(kRoomMax));
  ASSERT_VALUE(changed, agent_->apply_text(document(kNew)));
  EXPECT_EQ(unlike(kNew), "");
  ASSERT_VALUE(down, agent_->json({"down"}));
}

TEST_F(AgentDescriptorsTest, readers_cannot_take_the_connections_of_root) {
  const std::string groups = agent_->dir() + "/group";
  std::ofstream(groups) << "root:x:0:\n" << kGroup << ":x:" << kGroupId << ":\n";
  ASSERT_OK(agent_->start({}, "mount --bind " + groups + " /etc/group"));
  // A member of the group that connects until it is closed, and says how often it was let in.
  ASSERT_VALUE(reader, topology_->host("a").fork(
                           [&]() -> int {
                             const gid_t group = kGroupId;
                             if (::setgroups(1, &group) != 0 || ::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) return errno;
                             std::vector<Fd> held;
                             for (int i = 0; i < 2 * kConnectionsMax; ++i) {
                               auto fd = connect_to(agent_->socket());
                               if (!fd) return 1;
                               // An HTTP/2 server speaks first: its settings, or the end.
                               char byte = 0;
                               if (::recv(fd->get(), &byte, 1, 0) == 1) held.push_back(std::move(*fd));
                             }
                             fmt::print("{}\n", held.size());
                             std::fflush(stdout);
                             return std::getchar() == EOF ? 0 : 1;
                           },
                           {.pipe_stdin = true, .pipe_stdout = true}));
  ASSERT_VALUE(let_in, reader.read_line(kSoon));
  EXPECT_EQ(let_in, std::to_string(kConnectionsMax));
  ASSERT_VALUE(applied, agent_->apply_text(document(kOld)));
  EXPECT_EQ(unlike(kOld), "");
  const std::vector<std::string> as_reader = {"setpriv",
                                              fmt::format("--reuid={}", kNobody),
                                              fmt::format("--regid={}", kNobody),
                                              fmt::format("--groups={}", kGroupId),
                                              std::string(SLUICE_BUILD_DIR) + "/bin/sluice",
                                              "--socket",
                                              agent_->socket(),
                                              "status",
                                              "--no-sockets"};
  ASSERT_VALUE(refused, topology_->host("a").run(as_reader));
  EXPECT_EQ(refused.status, 1) << refused.text;
  EXPECT_THAT(refused.text, HasSubstr("the agent closed the connection"));
  EXPECT_THAT(agent_->log(), HasSubstr(fmt::format("connections={}", kConnectionsMax)));
  reader.close_input();
  ASSERT_VALUE(ended, reader.wait(kSoon));
  EXPECT_EQ(ended, 0);
  Output status{1, ""};
  while (status.status == 1) {
    ASSERT_VALUE(again, topology_->host("a").run(as_reader));
    status = std::move(again);
  }
  EXPECT_EQ(status.status, 0) << status.text;
  ASSERT_VALUE(down, agent_->json({"down"}));
}

}  // namespace
}  // namespace sluice::test
