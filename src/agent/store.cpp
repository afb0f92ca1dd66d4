// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/store.h"

#include "agent/stored_json.h"

namespace sluice::agent {
namespace {

using nlohmann::json;

constexpr std::string_view kStepNames[] = {
    "remove-debris", "load-policy", "load-cca", "write-parameters", "set-sysctl",   "write-generation",
    "attach-hooks",  "publish",     "migrate",  "retire-cca",       "detach-hooks", "unload-policy",
};

Result<StepKind> step_kind_from_name(const std::string& name) {
  for (size_t i = 0; i < std::size(kStepNames); ++i)
    if (kStepNames[i] == name) return static_cast<StepKind>(i);
  return fail(Code::kCorrupt, "the journal holds a step '{}' that this version does not know", name);
}

json desired_json(const Desired& d) {
  json bundles = json::object();
  for (const auto& [id, bundle] : d.bundles)
    bundles[id] = {{"manifest", bundle.manifest}, {"folder", bundle.folder}, {"digest", bundle.digest}};
  return {{"revision", d.revision},           {"document", d.document},     {"source_name", d.source_name},
          {"applied_at_ns", d.applied_at_ns}, {"generation", d.generation}, {"rolled_back", d.rolled_back},
          {"saved_sysctls", d.saved_sysctls}, {"allocation", d.allocation}, {"bundles", bundles}};
}

Desired desired_from(const json& j) {
  Desired d;
  d.revision = stored_number(j.at("revision"));
  d.document = j.at("document");
  d.source_name = j.at("source_name");
  d.applied_at_ns = j.at("applied_at_ns").get_ref<const json::number_integer_t&>();
  d.generation = stored_number(j.at("generation"));
  d.rolled_back = j.at("rolled_back").get<std::set<std::string>>();
  d.saved_sysctls = j.at("saved_sysctls").get<std::map<std::string, std::string>>();
  d.allocation = j.at("allocation");
  for (const auto& [id, bundle] : j.at("bundles").items())
    d.bundles[id] = {bundle.at("manifest"), bundle.at("folder"), bundle.at("digest")};
  return d;
}

}  // namespace

std::string_view step_kind_name(StepKind kind) { return kStepNames[static_cast<size_t>(kind)]; }

std::string Step::describe() const {
  switch (kind) {
    case StepKind::kRemoveDebris:
      return "remove what an interrupted load left pinned";
    case StepKind::kLoadPolicy:
      return "load the selection pipeline (maps and programs)";
    case StepKind::kLoadCca:
      return fmt::format("load and register {}", subject);
    case StepKind::kWriteParams:
      return fmt::format("write parameter set {} of {}", number, subject);
    case StepKind::kSetSysctl:
      return fmt::format("set {} = {} (was {})", subject, value, before);
    case StepKind::kWriteGeneration:
      return fmt::format("write the tables of generation {}", number);
    case StepKind::kAttachHooks:
      return "attach the sockops program";
    case StepKind::kPublish:
      return fmt::format("switch to generation {}", number);
    case StepKind::kMigrate:
      return "migrate existing sockets";
    case StepKind::kRetireCca:
      return fmt::format("retire {}", subject);
    case StepKind::kDetachHooks:
      return "detach the sockops program";
    case StepKind::kUnloadPolicy:
      return "unload the selection pipeline";
  }
  panic("a step without a description", __FILE__, __LINE__);
}

std::string Step::describe_inverse() const {
  if (kind == StepKind::kSetSysctl) return fmt::format("set {} = {}", subject, before);
  if (!owned) return "";
  switch (kind) {
    case StepKind::kLoadPolicy:
      return "unload the selection pipeline";
    case StepKind::kLoadCca:
      return fmt::format("retire {}", subject);
    case StepKind::kAttachHooks:
      return "detach the sockops program";
    default:
      return "";
  }
}

std::string Desired::to_json() const { return desired_json(*this).dump(); }

Result<Desired> Desired::from_json(const std::string& text) {
  try {
    return desired_from(json::parse(text));
  } catch (const json::exception& e) {
    return fail(Code::kCorrupt, "the stored desired state cannot be read: {}", e.what());
  }
}

std::string Transaction::to_json() const {
  json list = json::array();
  for (const auto& step : steps)
    list.push_back({{"kind", step_kind_name(step.kind)},
                    {"subject", step.subject},
                    {"value", step.value},
                    {"before", step.before},
                    {"number", step.number},
                    {"params", step.params},
                    {"owned", step.owned}});
  return json{{"kind", kind}, {"target", desired_json(target)}, {"steps", list}, {"removes_everything", removes_everything}}
      .dump();
}

Result<Transaction> Transaction::from_json(const std::string& text) {
  try {
    const json j = json::parse(text);
    Transaction t;
    t.kind = j.at("kind");
    t.target = desired_from(j.at("target"));
    t.removes_everything = j.at("removes_everything");
    for (const auto& s : j.at("steps")) {
      Step step;
      SLUICE_TRY(kind, step_kind_from_name(s.at("kind").get<std::string>()));
      step.kind = kind;
      step.subject = s.at("subject");
      step.value = s.at("value");
      step.before = s.at("before");
      step.number = stored_number(s.at("number"));
      step.params = stored_numbers(s.at("params"));
      step.owned = s.at("owned");
      t.steps.push_back(std::move(step));
    }
    return t;
  } catch (const json::exception& e) {
    return fail(Code::kCorrupt, "the journal cannot be read: {}", e.what());
  }
}

}  // namespace sluice::agent
