// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A kernel in memory, as far as the agent's engine can tell: pins, registered CCAs, two generation slots, a hook, sysctls, and
// sockets that are opened, closed, selected and migrated by what is really published. It survives the agent's crashes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/kernel.h"
#include "base/random.h"
#include "chaos.h"

namespace sluice::sim {

struct SimSocket {
  policy::Prefix remote;
  std::string cca;
  uint32_t map_id = 0;
  uint64_t generation = 0;
  uint32_t params = 0;
  uint64_t cgroup_id = 0;
  bool listener = false;
  bool locked = false;     // its route locks the congestion control
  bool fell_back = false;  // opened under a policy, and got the kernel's default all the same
};

struct SimCca {
  agent::LoadedCca loaded;
  bool complete = false;  // the pin that says so was made
  std::map<uint32_t, std::map<std::string, uint64_t>> params;
};

class SimKernel final : public agent::Kernel {
 public:
  SimKernel(Chaos& chaos, uint64_t seed);

  Result<agent::Observed> observe() override;
  std::string release() override { return "6.18.0-sim"; }
  Status require_feature(const std::string& name) override {
    if (missing_features.contains(name)) return fail(Code::kUnsupported, "{} is missing", name);
    return {};
  }
  Result<std::string> default_cca() override { return std::string("bbr"); }
  Result<std::vector<std::string>> available_ccas() override;
  Result<std::vector<std::string>> struct_ops_names() override { return foreign_ccas; }
  Status load_policy() override;
  Status unload_policy() override;
  Status attach_hooks() override;
  Status detach_hooks() override;
  Result<uint32_t> load_cca(const agent::CcaSpec& spec) override;
  Status retire_cca(const std::string& id) override;
  Status remove_debris() override;
  Result<std::map<uint32_t, std::map<std::string, uint64_t>>> read_params(const std::string& id) override;
  Status write_params(const std::string& id, uint32_t index, const std::map<std::string, uint64_t>& values) override;
  Status write_generation(const policy::Compiled& compiled) override;
  Status publish(uint64_t generation) override;
  Result<std::string> read_sysctl(const std::string& name) override;
  Status write_sysctl(const std::string& name, const std::string& value) override;
  Result<std::map<std::string, uint64_t>> cgroup_ids(const std::vector<std::string>&) override {
    return std::map<std::string, uint64_t>{};
  }
  Result<agent::MigratePass> migrate(Pass kind) override;
  Result<std::vector<agent::UsageCount>> usage() override;
  Status sockets(const std::function<bool(std::vector<agent::SocketReport>&&)>& sink) override;
  Result<std::map<std::string, std::vector<agent::OtherUser>>> other_users() override;
  Result<std::vector<std::pair<std::string, uint64_t>>> policy_counters() override {
    return std::vector<std::pair<std::string, uint64_t>>{};
  }
  Result<std::vector<std::pair<std::string, uint64_t>>> cca_counters(const std::string&) override {
    return std::vector<std::pair<std::string, uint64_t>>{};
  }
  Result<std::vector<std::string>> cca_programs(const std::string&) override { return std::vector<std::string>{}; }
  Result<agent::Audit> audit() override;
  Result<std::string> cgroup_path(uint64_t id) override;

  // ---- the world ----
  void churn();  // some connections close, some open
  void listen();
  SimSocket& open_connection(const std::string& remote);

  // What is there, for the test's judgement.
  const std::vector<SimSocket>& all_sockets() const { return sockets_; }
  std::vector<SimSocket>& all_sockets() { return sockets_; }
  const std::map<std::string, SimCca>& ccas() const { return ccas_; }
  std::map<std::string, std::string>& sysctls() { return sysctls_; }
  bool anything_pinned() const { return policy_ != Policy::kNone || !ccas_.empty() || hook_; }
  bool hook() const { return hook_; }
  void detach_by_somebody() { hook_ = false; }
  void unpin_by_somebody(const std::string& pin) { missing_pins_.push_back(pin); }
  bool whole() const { return policy_ == Policy::kLoaded && missing_pins_.empty(); }
  bool hook_full = false;                   // 64 programs of others
  std::vector<agent::HookProgram> foreign;  // on our hook
  std::map<uint64_t, std::string> cgroups;  // id -> folder
  uint64_t generation() const { return generation_; }
  std::string broken_invariant;  // the first one, with what was seen; empty = none
  std::set<std::string> missing_features;
  std::vector<std::string> foreign_ccas;
  std::map<std::string, std::vector<agent::OtherUser>> others;  // sysctl defaults and routes, by CCA name

 private:
  enum class Policy { kNone, kPartial, kLoaded };
  const sl_verdict* select(const policy::Prefix& remote) const;
  uint32_t map_id_of(const std::string& name) const;
  bool registered(const std::string& name) const;
  void violate(std::string what) {
    if (broken_invariant.empty()) broken_invariant = std::move(what);
  }

  Chaos& chaos_;
  SeededRandom random_;
  Policy policy_ = Policy::kNone;
  std::vector<std::string> missing_pins_;
  bool hook_ = false;
  uint64_t generation_ = 0;
  std::optional<policy::Compiled> slots_[SL_SLOTS];
  std::map<std::string, SimCca> ccas_;
  std::map<std::string, std::string> sysctls_;
  std::vector<SimSocket> sockets_;
  uint32_t next_map_id_ = 100;
};

}  // namespace sluice::sim
