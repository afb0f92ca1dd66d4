// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What the agent must remember across its own death: the desired state, the journal of the change under way, saved sysctls,
// events, and what probes found out about paths. The kernel's pins are the truth about the kernel; nothing here repeats them.
//
// Implementations: SqliteStore (sqlite_store.h) and, in tests/sim, one in memory that loses what was not committed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::agent {

// A bundle of the document, as it was when it was applied: so that a rollback, a repair or a restart need no file that somebody
// may have removed or rebuilt since.
struct StoredBundle {
  std::string manifest;  // text of bundle.yaml
  std::string folder;
  std::string digest;
};

// The state the host should be in. Stored as one JSON document.
struct Desired {
  uint64_t revision = 0;  // of the document, counting from 1; 0 = no document
  std::string document;   // YAML text as given
  std::string source_name;
  int64_t applied_at_ns = 0;
  uint64_t generation = 0;                           // that carries it
  std::set<std::string> rolled_back;                 // NAME@VERSION replaced by the transitional CCA
  std::map<std::string, std::string> saved_sysctls;  // value before our first change
  std::string allocation;                            // parameter sets in use: policy::ParamAllocation, serialized
  std::map<std::string, StoredBundle> bundles;       // NAME@VERSION -> what was applied

  std::string to_json() const;
  static Result<Desired> from_json(const std::string& text);
};

enum class StepKind {
  kRemoveDebris,
  kLoadPolicy,
  kLoadCca,
  kWriteParams,
  kSetSysctl,
  kWriteGeneration,
  kAttachHooks,
  kPublish,  // the commit point: before it a change is undone, after it it is finished
  kMigrate,
  kRetireCca,
  kDetachHooks,
  kUnloadPolicy,
};
std::string_view step_kind_name(StepKind kind);

// One step of a plan. Which fields mean something follows from the kind; `owned` says that this plan created the thing, so that
// undoing may remove it.
struct Step {
  StepKind kind{};
  std::string subject;                     // NAME@VERSION, or a sysctl's name
  std::string value;                       // kSetSysctl: new value
  std::string before;                      // kSetSysctl: old value
  uint64_t number = 0;                     // kWriteParams: index; kWriteGeneration, kPublish: generation
  std::map<std::string, uint64_t> params;  // kWriteParams
  bool owned = false;

  std::string describe() const;
  std::string describe_inverse() const;  // empty = nothing to undo
};

// A change under way. `target` is what Desired becomes when it is complete.
struct Transaction {
  int64_t id = 0;
  std::string kind;  // "apply", "rollback", "down"
  Desired target;
  std::vector<Step> steps;
  size_t started = 0;               // steps [0, started) may have run, in part for the last
  bool removes_everything = false;  // down

  std::string to_json() const;
  static Result<Transaction> from_json(const std::string& text);
};

struct EventRecord {
  uint64_t id = 0;
  int64_t time_ns = 0;
  std::string kind, severity, message;
};

// What a probe found out about the path to a destination.
struct EcnRecord {
  std::string destination;  // address
  uint32_t port = 0;
  uint32_t dscp = 0;
  std::string place;  // of the destination; empty = not known
  int64_t time_ns = 0;
  std::string report;  // serialized sluice.v1.EcnProbe
};

class Store {
 public:
  virtual ~Store() = default;

  virtual Result<Desired> desired() = 0;

  // The journal holds at most one transaction. begin() is durable when it returns; so is every started().
  virtual Result<std::optional<Transaction>> open_transaction() = 0;
  virtual Result<int64_t> begin(const Transaction& transaction) = 0;
  virtual Status started(int64_t id, size_t steps) = 0;
  // Ends the transaction and stores the desired state in one commit.
  virtual Status finish(int64_t id, const Desired& desired) = 0;

  virtual Status add_event(const EventRecord& event) = 0;
  // Oldest first, after `after_id`; the newest `limit` when after_id is 0.
  virtual Result<std::vector<EventRecord>> events(uint64_t after_id, uint32_t limit) = 0;

  // Replaces the record of the same destination, port and DSCP. Those of too long before it, and the oldest of too many, go.
  virtual Status put_ecn(const EcnRecord& record) = 0;
  // Newest first; of a destination or a place unless that is empty, none older than kEcnAgeMax_ns before `now_ns`.
  virtual Result<std::vector<EcnRecord>> ecn(const std::string& destination, const std::string& place, int64_t now_ns) = 0;

  // A path changes: what was found a month ago says nothing.
  static constexpr int64_t kEcnAgeMax_ns = int64_t{30} * 86'400 * 1'000'000'000;
  static constexpr int kEcnRecordsMax = 1'000;
};

}  // namespace sluice::agent
