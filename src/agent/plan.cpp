// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/plan.h"

#include <algorithm>

#include "agent/stored_json.h"

namespace sluice::agent {
namespace {

bool in_document(const PlanInput& input, const std::string& id) {
  return std::ranges::any_of(input.compiled.bundles,
                             [&](const auto& bundle) { return bundle.ref.text() == id && !bundle.rolled_back; });
}

// Names that the document's bundles would take in the kernel, against who has them now.
Status check_conflicts(const PlanInput& input) {
  for (const auto& spec : input.specs) {
    const LoadedCca* loaded = input.observed.find(spec.id());
    if (!in_document(input, spec.id())) continue;  // rolled back: it is on its way out
    if (loaded != nullptr) {
      if (loaded->digest == spec.digest) continue;
      Error error;
      error.code = Code::kConflict;
      error.where = spec.object;
      error.what = fmt::format("{} is in the kernel with other content or other load-time parameters", spec.id());
      error.remedy = "a version never changes: give the bundle a new version and apply that";
      return fail(std::move(error));
    }
    if (std::ranges::find(input.available_ccas, spec.kernel_name) == input.available_ccas.end()) continue;
    Error error;
    error.code = Code::kConflict;
    error.where = spec.object;
    error.what = fmt::format("the kernel already has a congestion control named {}, and it is not ours", spec.kernel_name);
    error.remedy = fmt::format("find its owner with `bpftool struct_ops show` and remove it, or rename bundle {}", spec.name);
    return fail(std::move(error));
  }
  return {};
}

void plan_sysctls(const PlanInput& input, std::vector<Step>& steps) {
  const auto set = [&](const std::string& name, const std::string& value) {
    const auto now = input.sysctls.find(name);
    if (now == input.sysctls.end() || now->second == value) return;
    Step step;
    step.kind = StepKind::kSetSysctl;
    step.subject = name;
    step.value = value;
    step.before = now->second;
    steps.push_back(std::move(step));
  };
  for (const auto& [name, value] : input.compiled.sysctls) set(name, value);
  for (const auto& [name, value] : input.saved_sysctls)
    if (!input.compiled.sysctls.contains(name)) set(name, value);
}

Step simple(StepKind kind, bool owned = false) {
  Step step;
  step.kind = kind;
  step.owned = owned;
  return step;
}

Step numbered(StepKind kind, uint64_t number) {
  Step step;
  step.kind = kind;
  step.number = number;
  return step;
}

Step named(StepKind kind, const std::string& subject, bool owned = false) {
  Step step;
  step.kind = kind;
  step.subject = subject;
  step.owned = owned;
  return step;
}

}  // namespace

Result<std::vector<Step>> plan_policy(const PlanInput& input) {
  SLUICE_CHECK(check_conflicts(input));
  std::vector<Step> steps;
  const uint64_t generation = input.compiled.generation.generation;

  if (!input.observed.debris.empty()) steps.push_back(simple(StepKind::kRemoveDebris));
  if (!input.observed.policy_current) steps.push_back(simple(StepKind::kLoadPolicy, !input.observed.policy_loaded));
  for (size_t i = 0; i < input.specs.size(); ++i) {
    const auto& spec = input.specs[i];
    const LoadedCca* loaded = input.observed.find(spec.id());
    if (!in_document(input, spec.id())) continue;
    // A pipeline made anew has new maps, and CCAs are bound to the maps they were loaded with.
    if (loaded == nullptr || !loaded->registered || !input.observed.policy_loaded)
      steps.push_back(named(StepKind::kLoadCca, spec.id(), loaded == nullptr));
  }
  for (const auto& bundle : input.compiled.bundles) {
    if (bundle.rolled_back) continue;
    for (const auto& [index, values] : bundle.params) {
      Step step = named(StepKind::kWriteParams, bundle.ref.text());
      step.number = index;
      step.params = values;
      steps.push_back(std::move(step));
    }
  }
  plan_sysctls(input, steps);
  steps.push_back(numbered(StepKind::kWriteGeneration, generation));
  if (!input.observed.hooks_attached) steps.push_back(simple(StepKind::kAttachHooks, true));
  steps.push_back(numbered(StepKind::kPublish, generation));
  if (input.migrate) {
    steps.push_back(simple(StepKind::kMigrate));
    for (const auto& loaded : input.observed.ccas)
      if (!in_document(input, loaded.id())) steps.push_back(named(StepKind::kRetireCca, loaded.id()));
  }
  return steps;
}

Result<std::vector<Step>> plan_removal(const PlanInput& input) {
  std::vector<Step> steps;
  const uint64_t generation = input.compiled.generation.generation;
  if (input.observed.policy_loaded) {
    steps.push_back(numbered(StepKind::kWriteGeneration, generation));
    steps.push_back(numbered(StepKind::kPublish, generation));
    steps.push_back(simple(StepKind::kMigrate));
  }
  for (const auto& loaded : input.observed.ccas) steps.push_back(named(StepKind::kRetireCca, loaded.id()));
  steps.push_back(simple(StepKind::kDetachHooks));
  plan_sysctls(input, steps);
  steps.push_back(simple(StepKind::kUnloadPolicy));
  if (!input.observed.debris.empty()) steps.push_back(simple(StepKind::kRemoveDebris));
  return steps;
}

std::optional<size_t> commit_index(const std::vector<Step>& steps) {
  const auto it = std::ranges::find(steps, StepKind::kPublish, &Step::kind);
  if (it == steps.end()) return std::nullopt;
  return static_cast<size_t>(it - steps.begin());
}

std::string allocation_to_json(const policy::ParamAllocation& allocation) {
  nlohmann::json j = nlohmann::json::object();
  for (const auto& [ref, sets] : allocation)
    for (const auto& [index, values] : sets) j[ref.text()][std::to_string(index)] = values;
  return j.dump();
}

Result<policy::ParamAllocation> allocation_from_json(const std::string& text) {
  policy::ParamAllocation allocation;
  if (text.empty()) return allocation;
  try {
    const auto parsed = nlohmann::json::parse(text);
    for (const auto& [name, sets] : parsed.items()) {
      const auto ref = bundle::parse_bundle_ref(name);
      if (!ref) return fail(Code::kCorrupt, "the stored parameter allocation names a bundle '{}'", name);
      for (const auto& [index, values] : sets.items())
        allocation[*ref][static_cast<uint32_t>(std::stoul(index))] = stored_numbers(values);
    }
  } catch (const std::exception& e) {
    return fail(Code::kCorrupt, "the stored parameter allocation cannot be read: {}", e.what());
  }
  return allocation;
}

}  // namespace sluice::agent
