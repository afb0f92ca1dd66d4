// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The agent's whole loop on a simulated host that dies, or refuses, at every point of every change, under connection churn.
// Each schedule is named by (seed, operation, point, mode); SLUICE_SIM_SEED repeats one base seed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "agent/audit.h"
#include "agent/engine.h"
#include "base/log.h"
#include "sim_host.h"

namespace sluice::sim {
namespace {

const std::vector<Op> kStory = {Op::kApplyFirst, Op::kMigrate, Op::kApplySecond, Op::kMigrate, Op::kRollback, Op::kDown};

class AgentSim : public testing::Test {
 protected:
  void SetUp() override {
    init_log({LogLevel::kOff, LogFormat::kText, nullptr});
    if (const char* text = std::getenv("SLUICE_SIM_SEED")) seed_ = std::strtoull(text, nullptr, 10);
    std::printf("SLUICE_SIM_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  }

  uint64_t points_of(size_t op) {
    Host host(bundles_, seed_);
    EXPECT_TRUE(host.start());
    for (size_t i = 0; i < op; ++i) EXPECT_TRUE(host.run(kStory[i]));
    const uint64_t before = host.chaos.passed();
    EXPECT_TRUE(host.run(kStory[op]));
    return host.chaos.passed() - before;
  }

  Bundles bundles_;
  uint64_t seed_ = 20261130;
};

TEST_F(AgentSim, the_story_without_trouble_ends_where_it_says) {
  Host host(bundles_, seed_);
  ASSERT_TRUE(host.start());
  State state = State::kNone;
  for (const Op op : kStory) {
    const auto status = host.run(op);
    ASSERT_TRUE(status) << status.error().message();
    state = after(op, state);
    expect_state(host, state, "no trouble");
  }
}

TEST_F(AgentSim, a_death_at_any_point_leaves_the_old_state_or_the_new_one) {
  constexpr int kRounds = 66;
  uint64_t schedules = 0;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    for (size_t op = 0; op < kStory.size(); ++op) {
      const uint64_t points = points_of(op);
      for (uint64_t point = 1; point <= points && !HasFailure(); ++point) {
        const uint64_t seed = seed_ + static_cast<uint64_t>(round) * 1000 + point;
        const std::string schedule = fmt::format("seed {} op {} dies at point {}", seed, op, point);
        Host host(bundles_, seed);
        ASSERT_TRUE(host.start());
        State state = State::kNone;
        for (size_t i = 0; i < op; ++i) {
          ASSERT_TRUE(host.run(kStory[i])) << schedule;
          state = after(kStory[i], state);
        }
        host.chaos.arm(Chaos::Mode::kCrash, point);
        try {
          if (host.run(kStory[op])) host.chaos.disarm();  // churn can shorten a change
        } catch (const SimCrash&) {
        }
        host.chaos.reset_fired();
        // The successor may die as well, any number of times in a row.
        SeededRandom random(seed);
        for (int deaths = 0; deaths < 3; ++deaths) {
          if (random.chance(0.5)) host.chaos.arm(Chaos::Mode::kCrash, 1 + random.below(12));
          try {
            const auto status = host.start();
            ASSERT_TRUE(status) << schedule << ": " << status.error().message();
            break;
          } catch (const SimCrash&) {
          }
        }
        host.chaos.disarm();
        const auto settled = host.start();
        ASSERT_TRUE(settled) << schedule << ": " << settled.error().message();

        // Old or new, and then the change can simply be repeated.
        const bool has_document = !host.engine->view()->desired.document.empty();
        if (state != State::kNone && kStory[op] != Op::kDown) {
          EXPECT_TRUE(has_document) << schedule;
        }
        if (kStory[op] == Op::kDown && !has_document) {
          expect_state(host, State::kNone, schedule);
        } else if (kStory[op] == Op::kRollback && !host.engine->view()->desired.rolled_back.empty()) {
          expect_state(host, State::kRolledBack, schedule);
        } else {
          const auto again = host.run(kStory[op]);
          ASSERT_TRUE(again) << schedule << ": " << again.error().message();
          expect_state(host, after(kStory[op], state), schedule);
        }
        ++schedules;
      }
    }
  }
  std::printf("%llu crash schedules\n", static_cast<unsigned long long>(schedules));
  EXPECT_GE(schedules, 10'000u);
}

TEST_F(AgentSim, a_refusal_at_any_point_leaves_the_old_state_or_the_new_one) {
  for (size_t op = 0; op < kStory.size(); ++op) {
    const uint64_t points = points_of(op);
    for (uint64_t point = 1; point <= points && !HasFailure(); ++point) {
      const std::string schedule = fmt::format("seed {} op {} is refused at point {}", seed_, op, point);
      Host host(bundles_, seed_ + point);
      ASSERT_TRUE(host.start());
      State state = State::kNone;
      for (size_t i = 0; i < op; ++i) {
        ASSERT_TRUE(host.run(kStory[i])) << schedule;
        state = after(kStory[i], state);
      }
      host.chaos.arm(Chaos::Mode::kFail, point);
      const auto status = host.run(kStory[op]);
      host.chaos.disarm();
      EXPECT_EQ(host.kernel.broken_invariant, "") << schedule;
      if (status) {
        expect_state(host, after(kStory[op], state), schedule);
        continue;
      }
      // The next command settles what this one left, whether or not the agent is restarted between.
      if (point % 2 == 0) {
        ASSERT_TRUE(host.start()) << schedule;
      }
      const auto again = host.run(kStory[op]);
      const bool rolled_back_already = kStory[op] == Op::kRollback && !again;
      if (!rolled_back_already) {
        ASSERT_TRUE(again) << schedule << ": " << again.error().message();
      }
      expect_state(host, after(kStory[op], state), schedule);
    }
  }
}

TEST_F(AgentSim, a_locked_socket_is_reported_and_keeps_its_cca_registered) {
  Host host(bundles_, seed_);
  ASSERT_TRUE(host.start());
  ASSERT_TRUE(host.run(Op::kApplyFirst));
  ASSERT_TRUE(host.run(Op::kApplySecond));
  host.kernel.open_connection("10.2.0.7").locked = true;
  const auto result = host.engine->rollback({}, [](const v1::Progress&) {});
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_FALSE(result->migration().complete());
  EXPECT_FALSE(result->retired());
  ASSERT_EQ(result->migration().left_size(), 1);
  EXPECT_THAT(result->migration().left(0).reason(), testing::HasSubstr("congctl"));
  ASSERT_EQ(result->retained_size(), 1);
  EXPECT_EQ(result->retained(0).cca(), "cubic@2.0.0");
  EXPECT_TRUE(host.kernel.ccas().contains("cubic@2.0.0"));

  const auto down = host.engine->down({}, [](const v1::Progress&) {});
  ASSERT_FALSE(down);
  EXPECT_EQ(down.error().code, Code::kConflict);
  EXPECT_TRUE(host.kernel.hook()) << "a refused down must leave the policy in force";

  // Its user gone, the next round retires it.
  for (auto& socket : host.kernel.all_sockets()) socket.locked = false;
  const auto pending = host.engine->maintain();
  ASSERT_TRUE(pending) << pending.error().message();
  EXPECT_FALSE(host.kernel.ccas().contains("cubic@2.0.0"));
}

TEST_F(AgentSim, down_is_refused_before_anything_changes_while_a_sysctl_or_route_names_ours) {
  Host host(bundles_, seed_);
  ASSERT_TRUE(host.start());
  ASSERT_TRUE(host.run(Op::kApplyFirst));
  const uint64_t generation = host.kernel.generation();
  host.kernel.others["cubic.1.0.0"] = {{"netns 4026531840: sysctl net.ipv4.tcp_congestion_control"}};
  const auto down = host.engine->down({}, [](const v1::Progress&) {});
  ASSERT_FALSE(down);
  EXPECT_EQ(down.error().code, Code::kConflict);
  EXPECT_THAT(down.error().message(), testing::HasSubstr("tcp_congestion_control"));
  EXPECT_EQ(host.kernel.generation(), generation);
}

TEST_F(AgentSim, a_foreign_cca_of_the_same_name_is_a_conflict_and_changes_nothing) {
  Host host(bundles_, seed_);
  ASSERT_TRUE(host.start());
  host.kernel.foreign_ccas = {"cubic.1.0.0"};
  const auto status = host.run(Op::kApplyFirst);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kConflict);
  EXPECT_FALSE(host.kernel.anything_pinned());
}

TEST_F(AgentSim, a_bundle_whose_feature_the_kernel_lacks_changes_nothing) {
  const Bundles needy("min: \"6.12\", features: [struct_ops]");
  Host host(needy, seed_);
  ASSERT_TRUE(host.start());
  host.kernel.missing_features = {"struct_ops"};
  const auto status = host.run(Op::kApplyFirst);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kUnsupported);
  EXPECT_THAT(status.error().message(), testing::StartsWith("bundle cubic@1.0.0, 'kernel.features': struct_ops is missing"));
  EXPECT_FALSE(host.kernel.anything_pinned());
}

TEST_F(AgentSim, a_rolled_back_version_needs_a_decision_to_return) {
  Host host(bundles_, seed_);
  ASSERT_TRUE(host.start());
  ASSERT_TRUE(host.run(Op::kApplyFirst));
  ASSERT_TRUE(host.run(Op::kApplySecond));
  ASSERT_TRUE(host.run(Op::kRollback));
  v1::ApplyRequest request;
  request.set_document(kSecondPolicy + "\n# touched\n");
  request.set_source_name("policy.yaml");
  const auto refused = host.engine->apply(request, [](const v1::Progress&) {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kConflict);
  EXPECT_THAT(refused.error().message(), testing::HasSubstr("--clear-rollbacks"));
  request.set_clear_rollbacks(true);
  const auto applied = host.engine->apply(request, [](const v1::Progress&) {});
  ASSERT_TRUE(applied) << applied.error().message();
  expect_state(host, State::kSecond, "after clear_rollbacks");
}

TEST_F(AgentSim, applying_the_same_document_again_changes_nothing) {
  Host host(bundles_, seed_);
  ASSERT_TRUE(host.start());
  ASSERT_TRUE(host.run(Op::kApplyFirst));
  const uint64_t generation = host.kernel.generation();
  v1::ApplyRequest request;
  request.set_document(kFirstPolicy);
  request.set_source_name("policy.yaml");
  const auto again = host.engine->apply(request, [](const v1::Progress&) {});
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_FALSE(again->changed());
  EXPECT_EQ(host.kernel.generation(), generation);
}

TEST_F(AgentSim, a_detached_hook_is_attached_again) {
  Host host(bundles_, seed_);
  ASSERT_TRUE(host.start());
  ASSERT_TRUE(host.run(Op::kApplyFirst));
  host.kernel.detach_by_somebody();
  const auto pending = host.engine->maintain();
  ASSERT_TRUE(pending) << pending.error().message();
  EXPECT_TRUE(host.kernel.hook());
}

// ---- damage by others ----

// What somebody can do to a host that runs the first policy.
struct Damage {
  const char* name;
  const char* kind;  // of v1::Repair
  void (*strike)(SimKernel& kernel);
};
constexpr Damage kDamages[] = {
    {"detached", "hook", [](SimKernel& kernel) { kernel.detach_by_somebody(); }},
    {"unpinned", "pins", [](SimKernel& kernel) { kernel.unpin_by_somebody("policy/iter/sl_iter_migrate"); }},
    {"detached and unpinned", "pins",
     [](SimKernel& kernel) {
       kernel.detach_by_somebody();
       kernel.unpin_by_somebody("policy/link/sockops");
       kernel.unpin_by_somebody("policy/programs/sl_selector");
     }},
};

uint64_t events_of(Host& host, const std::string& kind) {
  const auto events = host.store.events(0, 1000);
  return static_cast<uint64_t>(std::ranges::count(*events, kind, &agent::EventRecord::kind));
}
uint64_t found(Host& host, const std::string& kind) {
  for (const auto& repair : host.engine->repairs())
    if (repair.kind() == kind) return repair.found();
  ADD_FAILURE() << "no count of " << kind;
  return 0;
}

TEST_F(AgentSim, damage_is_told_of_counted_and_mended_at_the_next_look) {
  for (const auto& damage : kDamages) {
    SCOPED_TRACE(damage.name);
    Host host(bundles_, seed_);
    ASSERT_TRUE(host.start());
    ASSERT_TRUE(host.run(Op::kApplyFirst));
    EXPECT_EQ(found(host, damage.kind), 0u);
    damage.strike(host.kernel);
    const auto before = agent::status_report(*host.engine, false);
    ASSERT_TRUE(before);
    EXPECT_EQ(before->state(), "degraded");
    const auto audit = agent::audit_report(*host.engine, false);
    ASSERT_TRUE(audit);
    EXPECT_EQ(audit->verdict(), "detached");

    ASSERT_TRUE(host.engine->maintain());
    EXPECT_TRUE(host.kernel.whole());
    expect_state(host, State::kFirst, damage.name);
    EXPECT_EQ(events_of(host, "damaged"), 1u);
    EXPECT_EQ(events_of(host, "repaired"), 1u);
    EXPECT_EQ(found(host, damage.kind), 1u);
    const auto after = agent::status_report(*host.engine, false);
    ASSERT_TRUE(after);
    EXPECT_EQ(after->state(), "active") << after->problems(0);
    const auto again = agent::audit_report(*host.engine, false);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->verdict(), "repaired") << "somebody did it, and may do it again";
  }
}

TEST_F(AgentSim, a_repair_that_dies_or_is_refused_at_any_point_is_made_in_the_end) {
  uint64_t schedules = 0;
  for (const auto& damage : kDamages) {
    Host trial(bundles_, seed_);
    ASSERT_TRUE(trial.start());
    ASSERT_TRUE(trial.run(Op::kApplyFirst));
    damage.strike(trial.kernel);
    const uint64_t before = trial.chaos.passed();
    ASSERT_TRUE(trial.engine->maintain());
    const uint64_t points = trial.chaos.passed() - before;
    for (const auto mode : {Chaos::Mode::kCrash, Chaos::Mode::kFail}) {
      for (uint64_t point = 1; point <= points && !HasFailure(); ++point) {
        const std::string schedule = fmt::format("seed {} {}: {} at point {}", seed_ + point, damage.name,
                                                 mode == Chaos::Mode::kCrash ? "dies" : "is refused", point);
        Host host(bundles_, seed_ + point);
        ASSERT_TRUE(host.start()) << schedule;
        ASSERT_TRUE(host.run(Op::kApplyFirst)) << schedule;
        damage.strike(host.kernel);
        host.chaos.arm(mode, point);
        bool died = false;
        try {
          (void)host.engine->maintain();
        } catch (const SimCrash&) {
          died = true;
        }
        host.chaos.disarm();
        if (died) {
          ASSERT_TRUE(host.start()) << schedule;
        }
        const auto looked = host.engine->maintain();
        ASSERT_TRUE(looked) << schedule << ": " << looked.error().message();
        EXPECT_TRUE(host.kernel.whole()) << schedule;
        expect_state(host, State::kFirst, schedule);
        ++schedules;
      }
    }
  }
  EXPECT_GT(schedules, 100u);
}

TEST_F(AgentSim, a_repair_that_cannot_be_made_yet_is_told_of_once_and_tried_again) {
  Host host(bundles_, seed_);
  ASSERT_TRUE(host.start());
  ASSERT_TRUE(host.run(Op::kApplyFirst));
  host.kernel.detach_by_somebody();
  host.kernel.hook_full = true;
  for (int look = 0; look < 3; ++look) {
    const auto looked = host.engine->maintain();
    ASSERT_FALSE(looked);
    EXPECT_EQ(looked.error().code, Code::kExhausted);
  }
  EXPECT_EQ(events_of(host, "damaged"), 1u);
  EXPECT_EQ(events_of(host, "repair-failed"), 1u);
  EXPECT_EQ(found(host, "hook"), 1u);
  host.kernel.hook_full = false;
  ASSERT_TRUE(host.engine->maintain());
  expect_state(host, State::kFirst, "after somebody made room");
  EXPECT_EQ(events_of(host, "repaired"), 1u);
  // The next time is a new damage.
  host.kernel.detach_by_somebody();
  ASSERT_TRUE(host.engine->maintain());
  EXPECT_EQ(found(host, "hook"), 2u);
}

// ---- who overrules us ----

agent::HookProgram foreign_program(uint32_t id, const std::string& cgroup, agent::HookProgram::Order order,
                                   std::vector<bpfio::CallbackActs> acts) {
  agent::HookProgram program;
  program.prog_id = id;
  program.name = fmt::format("other_{}", id);
  program.cgroup = cgroup;
  program.order = order;
  program.acts = std::move(acts);
  program.holders = {"process 7 (other)"};
  return program;
}
bpfio::CallbackActs sets(const std::string& cca) {
  bpfio::CallbackActs at{4, "active_established", {}};
  at.acts.sets_cca = true;
  at.acts.cca_names = {cca};
  return at;
}

TEST_F(AgentSim, sockets_are_laid_at_the_door_of_the_program_that_can_have_done_it_and_no_other) {
  Host host(bundles_, seed_);
  ASSERT_TRUE(host.start());
  ASSERT_TRUE(host.run(Op::kApplyFirst));
  host.kernel.cgroups = {{1, "/cg/a"}, {2, "/cg/b"}, {3, "/elsewhere"}};
  using Order = agent::HookProgram::Order;
  host.kernel.foreign = {
      foreign_program(11, "/cg/a", Order::kAfter, {sets("vegas")}), foreign_program(12, "/cg", Order::kAfter, {sets("reno")}),
      foreign_program(13, "/cg", Order::kBefore, {sets("reno")}), foreign_program(14, "/cg/b", Order::kAfter, {sets("reno")})};
  const auto open = [&](uint64_t cgroup, const std::string& runs) {
    auto& socket = host.kernel.open_connection("10.2.0.7");  // cubic.1.0.0 by the policy
    socket.cgroup_id = cgroup;
    if (runs.empty()) return;
    socket.cca = runs;
    socket.map_id = 0;
  };
  open(1, "");
  open(1, "vegas");  // 11 alone
  open(1, "reno");   // 12 alone: 13 runs before ours, 14 is not theirs
  open(1, "reno");
  open(2, "reno");   // 12 or 14
  open(2, "vegas");  // nobody
  open(3, "reno");   // not ours to see

  const auto report = agent::audit_report(*host.engine, true);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->verdict(), "overridden");
  std::map<std::string, uint64_t> groups;
  for (const auto& group : report->overridden()) {
    EXPECT_EQ(group.kind(), "cca");
    EXPECT_THAT(group.rule(), testing::HasSubstr("far"));
    EXPECT_EQ(group.wanted(), "cubic.1.0.0");
    std::string key = group.runs();
    for (const uint32_t id : group.prog_ids()) key += fmt::format(" {}", id);
    groups[key] = group.sockets();
  }
  EXPECT_EQ(groups, (std::map<std::string, uint64_t>{{"vegas 11", 1}, {"reno 12", 2}, {"reno 12 14", 1}, {"vegas", 1}}));
  std::map<uint32_t, std::pair<std::string, uint64_t>> programs;
  for (const auto& program : report->hooks(0).list()) programs[program.prog_id()] = {program.verdict(), program.sockets()};
  EXPECT_EQ(programs[11], std::pair(std::string("overrides"), uint64_t{1}));
  EXPECT_EQ(programs[12], std::pair(std::string("overrides"), uint64_t{2}));
  EXPECT_EQ(programs[13], std::pair(std::string("harmless"), uint64_t{0}));
  EXPECT_EQ(programs[14], std::pair(std::string("can override"), uint64_t{0}));
  EXPECT_THAT(report->problems(), testing::Contains(testing::HasSubstr("own setsockopt(TCP_CONGESTION)")));
  EXPECT_THAT(report->problems(), testing::Contains(testing::HasSubstr("other_11 (id 11)")));
  EXPECT_THAT(report->problems(), testing::Contains(testing::HasSubstr("process 7 (other)")));
}

TEST_F(AgentSim, an_audit_of_a_host_without_others_is_clean_and_without_a_policy_idle) {
  Host host(bundles_, seed_);
  ASSERT_TRUE(host.start());
  auto report = agent::audit_report(*host.engine, true);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->verdict(), "idle");
  ASSERT_TRUE(host.run(Op::kApplyFirst));
  for (const auto& expected : kExpected) host.kernel.open_connection(expected.remote);
  host.kernel.listen();
  report = agent::audit_report(*host.engine, true);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->verdict(), "clean");
  EXPECT_EQ(report->problems_size(), 0);
  EXPECT_EQ(report->overridden_size(), 0);
  EXPECT_EQ(report->hooks(0).programs(), 1u);
}

}  // namespace
}  // namespace sluice::sim
