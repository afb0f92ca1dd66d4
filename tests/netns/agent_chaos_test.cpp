// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The agent killed (SIGKILL) at every step of every change, while connections come and go. After each kill it starts again, and
// then the host must be on the policy before or on the one after, whole: every socket by the recorder's word, every sysctl, no
// journal left open. And every connection that was opened meanwhile must have had, at both ends, what one of the two policies
// says. What the policies say is the table below, written by hand.
//
// SLUICE_CHAOS_KILLS: how many kills (12). From 100 on, each step of each change must have been hit at least three times; where
// a kill landed is read from the dead agent's journal. SLUICE_CHAOS_SEED repeats a run.
#include <SQLiteCpp/SQLiteCpp.h>
#include <bpf/bpf.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <random>

#include "netns/agent_fixture.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using Micros = std::chrono::microseconds;

const auto* const kBpffs = testing::AddGlobalTestEnvironment(new PrivateBpffs);

constexpr char kCubic[] = "cubic@1.0.0";
constexpr char kCubicNext[] = "cubic@1.0.1";
constexpr char kSysctl[] = "net.ipv4.tcp_slow_start_after_idle";
constexpr int kHitsEach = 3;
constexpr int kEveryStepFrom = 100;  // kills

// ------------------------------------------------------------------------------------------- what the policies say

struct State {
  Uses uses;
  std::string listener;
  std::string sysctl;  // of kSysctl on host a
};
const std::map<std::string, State> kStates = {
    {"none", {{kFallbackUse, kFallbackUse, kFallbackUse, kFallbackUse}, kFallbackUse, "1"}},
    {"old", {{kNative, kCubic, kNative2, kNative}, kCubic, "1"}},
    {"new", {{kCubicNext, kCubicNext, kNative, kCubic}, kCubic, "0"}},
    {"rolled-back", {{kCubic, kCubic, kNative, kCubic}, kCubic, "0"}},
};

std::string document(const std::string& state) {
  Policy policy{.uses = kStates.at(state).uses};
  if (state == "new") {
    policy.bundles.emplace_back(kCubicNext);
    policy.extra = fmt::format("sysctls: {{{}: 0}}\n", kSysctl);
  }
  return policy.document();
}

// ------------------------------------------------------------------------------------------------- steps of a change

struct Target {
  std::string change;  // "apply", "rollback", "down", "migrate"; "upgrade": apply by an agent with another pipeline
  std::string step;    // as in the journal
  bool operator<(const Target& other) const { return std::tie(change, step) < std::tie(other.change, other.step); }
};
const std::vector<Target> kTargets = {
    {"apply", "remove-debris"},
    {"apply", "load-policy"},
    {"apply", "load-cca"},
    {"apply", "write-parameters"},
    {"apply", "set-sysctl"},
    {"apply", "write-generation"},
    {"apply", "attach-hooks"},
    {"apply", "publish"},
    {"apply", "migrate"},
    {"apply", "retire-cca"},
    {"rollback", "write-parameters"},
    {"rollback", "write-generation"},
    {"rollback", "publish"},
    {"rollback", "migrate"},
    {"rollback", "retire-cca"},
    {"down", "write-generation"},
    {"down", "publish"},
    {"down", "migrate"},
    {"down", "retire-cca"},
    {"down", "detach-hooks"},
    {"down", "set-sysctl"},
    {"down", "unload-policy"},
    {"migrate", "walk"},
    {"upgrade", "load-policy"},
};
// How a step's line of progress begins.
const std::map<std::string, std::string> kLines = {
    {"remove-debris", "remove what"},  {"load-policy", "load the selection"},
    {"load-cca", "load and register"}, {"write-parameters", "write parameter"},
    {"set-sysctl", "set net."},        {"write-generation", "write the tables"},
    {"attach-hooks", "attach the"},    {"publish", "switch to"},
    {"migrate", "migrate existing"},   {"retire-cca", "retire "},
    {"detach-hooks", "detach the"},    {"unload-policy", "unload the"},
    {"walk", "walking the sockets"},
};

std::uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class AgentChaosTest : public testing::Test {
 protected:
  // Which policies may have decided, from a moment on.
  struct Phase {
    std::uint64_t from_ns;
    std::set<std::string> states;
  };

  void SetUp() override {
    ASSERT_VALUE(topology, Topology::create(world_spec()));
    topology_.emplace(std::move(topology));
    ASSERT_VALUE(recorder, Recorder::load());
    recorder_.emplace(std::move(recorder));
    agent_.emplace(*topology_);
    ASSERT_OK(agent_->copy_bundle("cubic/1.0.0", "1.0.1"));
    ASSERT_OK(topology_->host("a").set_sysctl(kSysctl, "1"));
  }

  void enter(std::set<std::string> states) { phases_.push_back({now_ns(), std::move(states)}); }

  // Why the host is not in that state; empty = it is.
  std::string unlike(const std::string& name) {
    const State& state = kStates.at(name);
    auto identities =
        agent_->identities({state.uses.near, state.uses.far, state.uses.external, state.uses.unknown, state.listener});
    if (!identities) return identities.error().message();
    for (const auto& [target, identity] : *identities) {
      names_[target] = identity.name;
      if (identity.struct_ops_id != 0) ids_.insert(identity.struct_ops_id);
    }
    auto wrong = differences(*recorder_, *topology_, state.uses, state.listener, *identities);
    if (!wrong) return wrong.error().message();
    auto sysctl = topology_->host("a").sysctl(kSysctl);
    if (!sysctl || *sysctl != state.sysctl) *wrong += fmt::format("{} is not {}\n", kSysctl, state.sysctl);
    auto status = agent_->json({"status", "--no-sockets"}, {0, 3});
    if (!status) return status.error().message();
    if ((*status)["state"] != (name == "none" ? "idle" : "active")) *wrong += "status: " + (*status)["problems"].dump() + "\n";
    return *wrong;
  }

  void settle_in(const std::string& state) {
    const std::string wrong = unlike(state);
    ASSERT_EQ(wrong, "") << "should be " << state << "\nagent's log:\n" << agent_->log();
    state_ = state;
    enter({state});
  }

  // The command that leads from the state at hand to another; "walk" repeats a migration.
  std::vector<std::string> command(const std::string& to) {
    if (to == "none") return {"--verbose", "down"};
    if (to == "rolled-back") return {"--verbose", "rollback", kCubicNext};
    return {"--verbose", "apply", "--clear-rollbacks", agent_->write_policy(document(to))};
  }

  void go_to(const std::string& to) {
    if (state_ == to) return;
    enter({state_, to});
    ASSERT_VALUE(output, agent_->cli(command(to)));
    ASSERT_EQ(output.status, 0) << output.text << agent_->log();
    if (to == "none") {
      ASSERT_OK(agent_->wait_exit());
      ASSERT_OK(agent_->start());
    }
    ASSERT_NO_FATAL_FAILURE(settle_in(to));
  }

  // What a load cut short, with the journal lost, leaves: a pinned map and no mark that all is there.
  void plant_debris() {
    const std::string folder = agent_->pin_dir() + "/cca/debris/1_0_0";
    if (fs::exists(folder + "/ops")) return;
    std::error_code error;
    fs::create_directories(folder, error);
    Fd map(::bpf_map_create(BPF_MAP_TYPE_ARRAY, "debris", 4, 4, 1, nullptr));
    ASSERT_TRUE(map);
    ASSERT_EQ(::bpf_obj_pin(map.get(), (folder + "/ops").c_str()), 0);
  }

  // The step that a dead agent had journalled last; "" = no change was open. Reads a copy, so that what the next agent finds is
  // what the dead one left.
  Result<std::string> journalled() {
    const std::string copy = agent_->dir() + "/journal";
    for (const char* suffix : {"", "-wal"}) {
      std::error_code error;
      fs::remove(copy + suffix, error);
      if (fs::exists(agent_->state_dir() + "/agent.db" + suffix))
        fs::copy_file(agent_->state_dir() + "/agent.db" + suffix, copy + suffix, error);
      if (error) return fail_errno(error.value(), "cannot copy the journal");
    }
    try {
      SQLite::Database database(copy, SQLite::OPEN_READWRITE);
      SQLite::Statement query(database, "SELECT txn, started FROM journal");
      if (!query.executeStep()) return std::string();
      const auto steps = nlohmann::json::parse(query.getColumn(0).getString())["steps"];
      const int started = query.getColumn(1).getInt();
      return started == 0 ? std::string("begin") : steps[static_cast<std::size_t>(started - 1)]["kind"].get<std::string>();
    } catch (const std::exception& e) {
      return fail(Code::kCorrupt, "the journal cannot be read: {}", e.what());
    }
  }

  void pause_up_to(Micros limit) {
    const auto delay = Micros(static_cast<long>(random_() % static_cast<std::uint64_t>(limit.count() + 1)));
    const timespec time{delay.count() / 1'000'000, delay.count() % 1'000'000 * 1000};
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
  }

  // The next agent comes with another version of the selection pipeline than this one.
  void exchange_pipeline() {
    const std::string other = agent_->dir() + "/bundles/policy";
    if (fs::exists(other)) {
      fs::remove_all(other);
    } else {
      ASSERT_OK(agent_->copy_bundle("policy/1.0.0", "1.0.1"));
    }
  }

  // Runs the command and kills the agent around that step; then everything must be old or new.
  void kill_at(const Target& target, const std::string& to) {
    const std::string from = state_;
    auto words = command(to);
    if (target.change == "migrate") {
      // New connections follow at once; open ones are left to the migration that is killed.
      enter({from, to});
      auto first = words;
      first.insert(first.end() - 1, "--no-migrate");
      ASSERT_VALUE(applied, agent_->cli(first));
      ASSERT_EQ(applied.status, 0) << applied.text;
      words = {"--verbose", "migrate"};
    } else {
      enter({from, to});
    }
    if (target.change == "upgrade") {
      ASSERT_OK(agent_->kill());
      ASSERT_NO_FATAL_FAILURE(exchange_pipeline());
      ASSERT_OK(agent_->start());
    }
    if (target.step == "remove-debris") {
      ASSERT_NO_FATAL_FAILURE(plant_debris());
    }
    ASSERT_VALUE(client, agent_->start_cli(words));
    Micros& spread = spread_.try_emplace(target, Micros(1500)).first->second;
    while (true) {
      auto line = client.read_line(kSoon);
      if (!line) break;  // the command is through
      const auto text = line->find("] ");
      if (text == std::string::npos || line->substr(text + 2).starts_with(kLines.at(target.step))) break;
    }
    pause_up_to(spread);
    ASSERT_OK(agent_->kill());
    ++kills_;
    ASSERT_VALUE(rest, client.read_all(kSoon));
    ASSERT_VALUE(step, journalled());
    const std::string hit = target.change == "migrate" && rest.find("went away") != std::string::npos ? "walk" : step;
    ++hits_[{target.change, hit.empty() ? "(between changes)" : hit}];
    // Aim: later when it was early, earlier when it was late.
    if (hit != target.step) {
      const auto index = [&](const std::string& name) {
        return std::ranges::find(kTargets, name, &Target::step) - kTargets.begin();
      };
      const bool early = hit == "begin" || (!hit.empty() && index(hit) < index(target.step));
      spread = std::clamp(early ? spread * 3 / 2 : spread / 2, Micros(50), Micros(200'000));
    }

    // Now and then it dies again while it recovers.
    while (random_() % 5 == 0) {
      ASSERT_OK(agent_->launch());
      pause_up_to(Micros(60'000));
      ASSERT_OK(agent_->kill());
      ++kills_;
      ++hits_[{"recovery", "start"}];
    }
    if (target.change == "upgrade" && random_() % 2 == 0) {
      ASSERT_NO_FATAL_FAILURE(exchange_pipeline());  // taken back
    }
    ASSERT_OK(agent_->start());
    if (target.change == "migrate") {
      ASSERT_VALUE(again, agent_->json({"migrate"}));
      ASSERT_NO_FATAL_FAILURE(settle_in(to));
      return;
    }
    ASSERT_VALUE(open, journalled());
    EXPECT_EQ(open, "") << "a change is still open after the start";
    const std::string unlike_old = unlike(from);
    const std::string unlike_new = unlike(to);
    ASSERT_TRUE(unlike_old.empty() || unlike_new.empty())
        << from << " -> " << to << ", killed in " << step << "\nunlike " << from << ":\n"
        << unlike_old << "unlike " << to << ":\n"
        << unlike_new << "agent's log:\n"
        << agent_->log();
    if (target.change == "upgrade") {
      // Whatever mixture of versions the dead one left, an apply makes it whole: walks work again.
      ASSERT_VALUE(applied, agent_->json(command(to)));
      ASSERT_VALUE(walked, agent_->json({"migrate"}));
      EXPECT_TRUE(walked["complete"].get<bool>()) << walked;
      ASSERT_VALUE(counted, agent_->json({"status"}));
    }
    state_ = unlike_new.empty() ? to : from;
    enter({state_});
  }

  // A start and an end whose change has that step.
  std::pair<std::string, std::string> way(const Target& target) {
    if (target.change == "upgrade") {
      const char* state = random_() % 2 == 0 ? "old" : "new";
      return {state, state};
    }
    if (target.change == "rollback") return {"new", "rolled-back"};
    if (target.change == "down") return {target.step == "set-sysctl" || random_() % 2 == 0 ? "new" : "old", "none"};
    if (target.step == "load-policy" || target.step == "attach-hooks") return {"none", random_() % 2 == 0 ? "old" : "new"};
    if (target.step == "load-cca") return {"old", "new"};
    if (target.step == "retire-cca") return {"new", "old"};
    return random_() % 2 == 0 ? std::pair<std::string, std::string>{"old", "new"}
                              : std::pair<std::string, std::string>{"new", "old"};
  }

  // The steps that were hit least.
  Target next_target() {
    int least = hits_[kTargets[0]];
    for (const auto& target : kTargets) least = std::min(least, hits_[target]);
    std::vector<Target> wanted;
    for (const auto& target : kTargets)
      if (hits_[target] == least) wanted.push_back(target);
    return wanted[random_() % wanted.size()];
  }
  bool every_step_hit() {
    return std::ranges::all_of(kTargets, [&](const Target& target) { return hits_[target] >= kHitsEach; });
  }

  std::optional<Topology> topology_;
  std::optional<Recorder> recorder_;
  std::optional<Agent> agent_;
  std::mt19937_64 random_;
  std::string state_ = "none";
  std::vector<Phase> phases_;
  std::map<Target, int> hits_;
  std::map<Target, Micros> spread_;
  std::map<std::string, std::string> names_;  // words of a policy -> name in the kernel
  std::set<std::uint32_t> ids_;               // every struct_ops map of ours that was seen
  std::uint64_t kills_ = 0;
};

TEST_F(AgentChaosTest, a_host_is_on_the_old_policy_or_on_the_new_whenever_the_agent_dies) {
  const std::uint64_t wanted = number_from("SLUICE_CHAOS_KILLS", 12);
  const std::uint64_t seed = number_from("SLUICE_CHAOS_SEED", std::random_device()());
  fmt::print("SLUICE_CHAOS_SEED={} SLUICE_CHAOS_KILLS={}\n", seed, wanted);
  random_.seed(seed);
  ASSERT_OK(agent_->start());
  enter({"none"});
  ASSERT_VALUE(held, Connections::open(*topology_, 5));
  Churn churn(*topology_, agent_->dir());
  ASSERT_OK(churn.start(40));

  const bool every_step = wanted >= kEveryStepFrom;
  while (kills_ < wanted || (every_step && !every_step_hit())) {
    ASSERT_LT(kills_, 4 * wanted) << "some steps are never hit: " << testing::PrintToString(hits_.size());
    const Target target = next_target();
    const auto [from, to] = way(target);
    ASSERT_NO_FATAL_FAILURE(go_to(from));
    ASSERT_NO_FATAL_FAILURE(kill_at(target, to));
  }
  for (const auto& [target, count] : hits_)
    if (count > 0) fmt::print("{:>5} kills in {}: {}\n", count, target.change, target.step);

  // Down, and everything is gone.
  ASSERT_NO_FATAL_FAILURE(go_to("new"));
  ASSERT_NO_FATAL_FAILURE(go_to("none"));
  ASSERT_VALUE(records, churn.stop());
  EXPECT_FALSE(fs::exists("/sys/fs/bpf/sluice"));
  ASSERT_VALUE(programs, sockops_programs(topology_->cgroup()));
  EXPECT_TRUE(programs.empty());
  const auto available = available_ccas();
  for (const auto& [target, name] : names_) EXPECT_FALSE(target.find('@') != std::string::npos && available.contains(name));
  ::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0);  // maps are freed a grace period after their last user
  for (const auto id : ids_) EXPECT_FALSE(Fd(::bpf_map_get_fd_by_id(id))) << "struct_ops map " << id << " is left";

  // Every connection at both ends, against what the policies of its moment say.
  std::map<std::string, int> different;
  std::uint64_t judged = 0;
  for (const auto& record : records) {
    auto phase = std::ranges::upper_bound(phases_, record.time_ns, {}, &Phase::from_ns);
    ASSERT_NE(phase, phases_.begin());
    --phase;
    const Where where = where_is(without_port(record.remote));
    ++judged;
    const bool right = std::ranges::any_of(
        phase->states, [&](const std::string& state) { return names_.at(kStates.at(state).uses.of(where)) == record.cca; });
    if (right) continue;
    std::string moment;
    for (const auto& state : phase->states) moment += " " + state;
    ++different[fmt::format("{} at the {} on {} to {} in{}", record.event, record.role, record.cca, without_port(record.remote),
                            moment)];
  }
  for (const auto& [what, count] : different) ADD_FAILURE() << count << " times: " << what;
  fmt::print("{} kills, {} records of connections judged, {} differences\n", kills_, judged, different.size());
  EXPECT_GT(judged, 200u);
}

}  // namespace
}  // namespace sluice::test
