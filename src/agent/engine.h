// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The agent's loop: observe -> plan -> apply -> verify, over the Kernel and Store interfaces.
//
// A change is a transaction of steps. It is journalled before its first step runs, and each step before it runs. Publishing the
// new generation is the commit point: a change that fails, or a process that dies, before it is undone (in recover(), if need
// be); after it, it is finished. So a host is on the old policy or on the new one, never between.
//
// Thread-safe: changes take turns; reports run beside them on the last complete view.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/kernel.h"
#include "agent/plan.h"
#include "agent/store.h"
#include "agent/turns.h"
#include "base/clock.h"
#include "base/result.h"
#include "bundle/catalog.h"
#include "policy/compile.h"
#include "policy/document.h"
#include "wire/agent.pb.h"

namespace sluice::agent {

struct EngineOptions {
  std::string instance;  // "" = default; part of kernel names
  std::string agent_version;
  uint32_t migrate_timeout_ms = 30'000;
  int migrate_passes_max = 64;
};

// The policy in force, as reports need it. Immutable; replaced as a whole.
struct View {
  Desired desired;
  std::optional<policy::Document> document;  // nullopt = no policy
  policy::Compiled compiled;
  std::vector<v1::Retained> retained;  // CCAs that something still uses
  bool migration_complete = true;
  bool migration_unknown = false;           // the agent was started since; maintain() looks
  std::map<std::string, uint64_t> cgroups;  // ids that the tables were compiled with
  std::string problem;                      // why the stored policy could not be read at start; empty = it could
};

// What maintain() finds damaged: kinds of v1::Repair.
inline constexpr std::string_view kDamageHook = "hook";  // our program is not at its hook
inline constexpr std::string_view kDamagePins = "pins";  // pins of ours are gone
inline constexpr std::string_view kDamageCca = "cca";    // a CCA of ours is not registered
inline constexpr std::string_view kDamageKinds[] = {kDamageHook, kDamagePins, kDamageCca};

class Engine {
 public:
  using ProgressSink = std::function<void(const v1::Progress&)>;
  using CatalogSource = std::function<bundle::Catalog()>;
  static bool wait_for_ever() { return false; }

  Engine(Kernel& kernel, Store& store, const Clock& clock, CatalogSource catalog, EngineOptions options);

  // Finishes or undoes what a predecessor left, and loads the view. Call once, first.
  Status recover();

  // Each change waits for its turn (turns.h); until it has it, `given_up` takes it back.
  Result<v1::ApplyResult> apply(const v1::ApplyRequest& request, const ProgressSink& progress,
                                const GivenUp& given_up = wait_for_ever);
  Result<v1::DiffReply> diff(const v1::ApplyRequest& request);
  Result<v1::MigrateResult> migrate(const v1::MigrateRequest& request, const ProgressSink& progress,
                                    const GivenUp& given_up = wait_for_ever);
  Result<v1::RollbackResult> rollback(const v1::RollbackRequest& request, const ProgressSink& progress,
                                      const GivenUp& given_up = wait_for_ever);
  Result<v1::DownResult> down(const v1::DownRequest& request, const ProgressSink& progress,
                              const GivenUp& given_up = wait_for_ever);

  // Asks a change under way to end between two steps, and lets no other begin: the process is about to end.
  void stop() { stopping_ = true; }
  bool stopping() const { return stopping_; }

  // Periodic work: retires CCAs whose last user left, moves stragglers, repairs what somebody detached, notices cgroups that
  // appeared. Returns true when something is still pending.
  Result<bool> maintain();
  std::vector<v1::Repair> repairs() const;  // one for each of kDamageKinds
  std::string repair_failure() const;       // why the last repair failed; empty = it did not, or nothing is amiss

  std::shared_ptr<const View> view() const;
  Kernel& kernel() { return kernel_; }
  Store& store() { return store_; }
  const EngineOptions& options() const { return options_; }
  const Clock& clock() const { return clock_; }

  void event(std::string kind, std::string severity, std::string message);

 private:
  // A change in the making: everything decided, nothing done.
  struct Prepared {
    Transaction transaction;
    std::optional<policy::Document> document;
    policy::Compiled compiled;
    std::vector<CcaSpec> specs;
    bool changed = true;
  };
  struct Outcome {
    v1::MigrateResult migration;
    std::vector<v1::Retained> retained;
    std::vector<std::string> restored;  // sysctls
  };

  Result<Prepared> prepare(Desired target, const std::string& kind, bool migrate, bool force);
  Result<Prepared> prepare_removal(const std::string& native);
  Result<Outcome> run(Prepared& prepared, uint32_t timeout_ms, const ProgressSink& progress);
  Status run_step(const Step& step, const Prepared& prepared, uint64_t deadline_ns, Outcome& outcome);
  // The error of a step that can be undone later: something has run out. What fails for another reason is only told of.
  Status undo(const Transaction& transaction);
  Status undo_step(const Step& step);
  Status verify(const Prepared& prepared);
  Result<v1::MigrateResult> migrate_until_done(uint64_t deadline_ns, bool thorough);
  Status take_up(const Desired& desired);
  void tell_without_ecn(const v1::MigrateResult& result);
  Result<std::optional<v1::Retained>> try_retire(const std::string& id);
  Status check_other_users();
  // What keeps the policy from being in force; nullopt = nothing.
  struct Fault {
    std::string_view damage;  // one of kDamageKinds; empty = nobody's fault
    std::string text;
  };
  std::optional<Fault> find_fault(const View& view, const Observed& observed, const std::map<std::string, uint64_t>& cgroups);
  std::string set_repair_failure(std::string text);  // returns the one before
  Status repair(const View& view, const Fault& fault, bool& pending);
  Status load_policy_in_force(View& view);  // document and tables of view.desired
  // Ends a transaction that the journal still holds, forward or backward.
  Status settle();
  Status finish_interrupted(Transaction transaction);
  Result<std::map<std::string, std::string>> read_sysctls(const policy::Compiled& compiled, const Desired& desired);
  Result<policy::Compiled> compile(const policy::Document& document, const bundle::Catalog& catalog, const Desired& desired,
                                   uint64_t generation);
  Result<std::map<std::string, uint64_t>> cgroups_of(const policy::Document& document);
  // Bundles on disk. An error when not all could be looked at.
  Result<bundle::Catalog> catalog_on_disk() const;
  // Bundles on disk; those of `desired` that the kernel holds, or that the disk has lost, as they were when applied.
  Result<bundle::Catalog> catalog_for(const Desired& desired, const Observed& observed) const;
  Status check_request(const v1::ApplyRequest& request, Desired& target);
  Result<std::vector<CcaSpec>> specs_for(const policy::Compiled& compiled, const bundle::Catalog& catalog);
  void set_view(std::shared_ptr<const View> view);
  void set_view(const Prepared& prepared, const Outcome& outcome);

  Kernel& kernel_;
  Store& store_;
  const Clock& clock_;
  CatalogSource catalog_;
  EngineOptions options_;

  Turns turns_;
  std::string fault_told_;  // the fault that an event told of; empty = mended
  std::atomic<bool> stopping_ = false;
  mutable std::mutex view_mutex_;
  std::shared_ptr<const View> view_;
  mutable std::mutex repairs_mutex_;
  std::map<std::string_view, v1::Repair> repairs_;
  std::string repair_failure_;
};

// Reports: what the API answers about the host (report.cpp).
Result<v1::StatusReply> status_report(Engine& engine, bool count_sockets);
Result<v1::CcasReply> cca_report(Engine& engine, const std::string& name);
Result<v1::ExplainReply> explain_report(Engine& engine, const v1::ExplainRequest& request);
Status socket_report(Engine& engine, const v1::SocketsRequest& request, const std::function<bool(const v1::Sockets&)>& sink);
v1::Socket to_proto(const SocketReport& report, const View& view, const std::vector<LoadedCca>& ccas);
std::string outcome_text(const SocketReport& report);

}  // namespace sluice::agent
