// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/engine.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "base/kernel_version.h"
#include "base/log.h"
#include "bundle/sha256.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;

double ms_since(const Clock& clock, uint64_t start_ns) {
  return static_cast<double>(clock.monotonic_ns() - start_ns) / kNsPerMs;
}

void put_name(char (&field)[SL_CCA_NAME_LEN], const std::string& name) {
  SLUICE_ASSERT(name.size() < SL_CCA_NAME_LEN);
  std::memset(field, 0, sizeof field);
  std::memcpy(field, name.data(), name.size());
}

// The same tables, whatever generation they belong to.
bool same_tables(const policy::Compiled& a, const policy::Compiled& b) {
  const auto equal = [](const auto& x, const auto& y) {
    return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin(), [](const auto& l, const auto& r) {
             return std::memcmp(&l.first, &r.first, sizeof l.first) == 0 &&
                    std::memcmp(&l.second, &r.second, sizeof l.second) == 0;
           });
  };
  sl_generation ga = a.generation, gb = b.generation;
  ga.generation = gb.generation = 0;
  return equal(a.places, b.places) && equal(a.sources, b.sources) && equal(a.services, b.services) && equal(a.rules, b.rules) &&
         std::memcmp(&ga, &gb, sizeof ga) == 0 && a.sysctls == b.sysctls;
}

// Every locality, one native CCA: the policy under which a host forgets us.
std::string removal_document(const std::string& native) {
  return fmt::format(
      "apiVersion: sluice/v1\n"
      "kind: Host\n"
      "place: {{region: none}}\n"
      "rules:\n"
      "  - {{name: leave, match: {{}}, use: \"kernel:{}\"}}\n",
      native);
}

// Targets of the form kernel:NAME that this kernel does not have: BPF never loads a module, so their connections would stay on
// whatever they had.
Status check_natives(const policy::Document& document, const std::vector<std::string>& available) {
  const auto check = [&](const policy::Target& target, const std::string& where) -> Status {
    if (!target.native || std::ranges::find(available, target.name) != available.end()) return {};
    std::string names;
    for (const auto& name : available) names += (names.empty() ? "" : ", ") + name;
    return fail(make_error(Code::kNotFound, fmt::format("this kernel has no congestion control '{}'", target.name),
                           fmt::format("load its module (modprobe tcp_{}), or name one of: {}", target.name, names))
                    .at(where));
  };
  for (const auto& rule : document.rules) SLUICE_CHECK(check(rule.use, document.where(rule.use_mark)));
  if (document.transitional) SLUICE_CHECK(check(*document.transitional, document.where(document.transitional_mark)));
  return {};
}

Error rolled_back_conflict(const std::string& id, const std::string& source) {
  return make_error(Code::kConflict, fmt::format("{} was rolled back on this host", id),
                    "name another version, or insist with --clear-rollbacks")
      .at(source);
}

}  // namespace

Engine::Engine(Kernel& kernel, Store& store, const Clock& clock, CatalogSource catalog, EngineOptions options)
    : kernel_(kernel),
      store_(store),
      clock_(clock),
      catalog_(std::move(catalog)),
      options_(std::move(options)),
      view_(std::make_shared<View>()) {}

std::shared_ptr<const View> Engine::view() const {
  const std::lock_guard lock(view_mutex_);
  return view_;
}

void Engine::set_view(std::shared_ptr<const View> view) {
  const std::lock_guard lock(view_mutex_);
  view_ = std::move(view);
}

void Engine::set_view(const Prepared& prepared, const Outcome& outcome) {
  auto view = std::make_shared<View>();
  view->desired = prepared.transaction.target;
  view->document = prepared.document;
  view->compiled = prepared.compiled;
  view->retained = outcome.retained;
  view->migration_complete = outcome.migration.complete();
  if (prepared.document)
    if (auto cgroups = cgroups_of(*prepared.document)) view->cgroups = std::move(*cgroups);
  set_view(std::move(view));
}

void Engine::event(std::string kind, std::string severity, std::string message) {
  if (severity == "error")
    log_error(message, {{"event", kind}});
  else if (severity == "warning")
    log_warning(message, {{"event", kind}});
  else
    log_info(message, {{"event", kind}});
  EventRecord record;
  record.time_ns = clock_.wall_ns();
  record.kind = std::move(kind);
  record.severity = std::move(severity);
  record.message = std::move(message);
  // An event that cannot be stored stands in the log; the change it tells of is not undone for it.
  if (auto status = store_.add_event(record); !status) log_warning("an event could not be stored", status.error());
}

// ---- deciding ----

Result<std::map<std::string, uint64_t>> Engine::cgroups_of(const policy::Document& document) {
  std::vector<std::string> paths;
  for (const auto& service : document.services) paths.insert(paths.end(), service.cgroups.begin(), service.cgroups.end());
  return kernel_.cgroup_ids(paths);
}

Result<bundle::Catalog> Engine::catalog_on_disk() const {
  bundle::Catalog catalog = catalog_();
  for (const auto& error : catalog.errors())
    if (error.code == Code::kExhausted) return fail(Error(error).within("the bundle folders"));
  return catalog;
}

Result<bundle::Catalog> Engine::catalog_for(const Desired& desired, const Observed& observed) const {
  SLUICE_TRY(catalog, catalog_on_disk());
  for (const auto& [id, stored] : desired.bundles) {
    const auto ref = bundle::parse_bundle_ref(id);
    if (!ref || (observed.find(id) == nullptr && catalog.find(ref->name, ref->version) != nullptr)) continue;
    auto manifest = bundle::parse_manifest(stored.manifest, id);
    if (manifest) catalog.put({std::move(*manifest), stored.folder, stored.digest});
  }
  return catalog;
}

Result<policy::Compiled> Engine::compile(const policy::Document& document, const bundle::Catalog& catalog,
                                         const Desired& desired, uint64_t generation) {
  policy::CompileInput input;
  input.manifests = catalog.manifests();
  input.generation = generation;
  input.instance = options_.instance;
  SLUICE_CHECK(policy::check(document, input.manifests));
  SLUICE_TRY(cgroups, cgroups_of(document));
  input.cgroups = std::move(cgroups);
  SLUICE_TRY(allocation, allocation_from_json(desired.allocation));
  if (allocation.empty()) {
    // The state was lost, the kernel was not: what it holds may be in use.
    SLUICE_TRY(observed, kernel_.observe());
    for (const auto& cca : observed.ccas) {
      SLUICE_TRY(ref, bundle::parse_bundle_ref(cca.id()));
      SLUICE_TRY(entries, kernel_.read_params(cca.id()));
      allocation[ref] = std::move(entries);
    }
  }
  input.in_use = std::move(allocation);
  for (const auto& id : desired.rolled_back) {
    SLUICE_TRY(ref, bundle::parse_bundle_ref(id));
    input.rolled_back.insert(ref);
  }
  SLUICE_TRY(compiled, policy::compile(document, input));
  if (compiled.generation.listener_cca[0] == '\0') {
    // Without a transitional CCA listeners carry the host's own default, so that no listener holds a CCA we retire.
    SLUICE_TRY(native, kernel_.default_cca());
    put_name(compiled.generation.listener_cca, native);
  }
  return compiled;
}

Result<std::vector<CcaSpec>> Engine::specs_for(const policy::Compiled& compiled, const bundle::Catalog& catalog) {
  std::vector<CcaSpec> specs;
  const auto running = parse_kernel_version(kernel_.release());
  for (const auto& item : compiled.bundles) {
    const bundle::Bundle* found = catalog.find(item.ref.name, item.ref.version);
    SLUICE_ASSERT(found != nullptr);  // policy::check() looked it up in the same catalog
    if (!item.rolled_back && running && *running < found->manifest.kernel_min) {
      const std::string oldest = found->manifest.kernel_min.text();
      Error error = make_error(
          Code::kUnsupported,
          fmt::format("bundle {} needs Linux {} or newer, this kernel is {}", item.ref.text(), oldest, kernel_.release()),
          "use another version of the bundle, or a newer kernel");
      error.min_kernel = oldest;
      return fail(std::move(error));
    }
    if (!item.rolled_back)
      for (const auto& feature : found->manifest.kernel_features)
        if (auto status = kernel_.require_feature(feature); !status)
          return fail(std::move(status).error().within(fmt::format("bundle {}, 'kernel.features'", item.ref.text())));
    CcaSpec spec;
    spec.name = item.ref.name;
    spec.version = item.ref.version.text();
    spec.kernel_name = item.kernel_name;
    spec.object = found->object_path();
    spec.needs_ecn = item.needs_ecn;
    spec.load_params = item.load_values;
    spec.shared_maps = found->manifest.shared_maps;
    std::string content = found->digest;
    for (const auto& [name, value] : item.load_values) content += fmt::format("\n{}={}", name, value);
    spec.digest = bundle::sha256_hex(content).substr(0, 16);
    specs.push_back(std::move(spec));
  }
  return specs;
}

Result<std::map<std::string, std::string>> Engine::read_sysctls(const policy::Compiled& compiled, const Desired& desired) {
  std::map<std::string, std::string> values;
  const auto read = [&](const std::string& name) -> Status {
    SLUICE_TRY(value, kernel_.read_sysctl(name));
    values[name] = value;
    return {};
  };
  for (const auto& [name, value] : compiled.sysctls) SLUICE_CHECK(read(name));
  for (const auto& [name, value] : desired.saved_sysctls) SLUICE_CHECK(read(name));
  return values;
}

Result<Engine::Prepared> Engine::prepare(Desired target, const std::string& kind, bool migrate, bool force) {
  const auto current = view();
  Prepared prepared;
  SLUICE_TRY(document, policy::parse_document(target.document, target.source_name));
  SLUICE_TRY(observed, kernel_.observe());
  // What somebody applies is what lies on the disk now; everything else goes on with what was applied.
  SLUICE_TRY(catalog, kind == "apply" ? catalog_on_disk() : catalog_for(target, observed));
  const uint64_t generation = std::max(observed.generation, current->desired.generation) + 1;
  SLUICE_TRY(compiled, compile(document, catalog, target, generation));
  std::map<std::string, StoredBundle> bundles;
  for (const auto& item : compiled.bundles) {
    const bundle::Bundle* found = catalog.find(item.ref.name, item.ref.version);
    if (const auto stored = target.bundles.find(item.ref.text());
        stored != target.bundles.end() && stored->second.digest == found->digest)
      bundles.insert(*stored);
    else {
      SLUICE_TRY(text, read_file(found->folder + "/bundle.yaml"));
      bundles[item.ref.text()] = {std::move(text), found->folder, found->digest};
    }
  }
  target.bundles = std::move(bundles);
  SLUICE_TRY(specs, specs_for(compiled, catalog));
  SLUICE_TRY(available, kernel_.available_ccas());
  SLUICE_TRY(sysctls, read_sysctls(compiled, target));

  const auto saved = target.saved_sysctls;
  target.saved_sysctls.clear();
  for (const auto& [name, value] : compiled.sysctls) {
    const auto before = saved.find(name);
    target.saved_sysctls[name] = before != saved.end() ? before->second : sysctls.at(name);
  }
  target.generation = generation;
  target.allocation = allocation_to_json(compiled.params);
  target.applied_at_ns = clock_.wall_ns();

  const PlanInput input{observed, compiled, specs, available, sysctls, saved, migrate};
  SLUICE_TRY(steps, plan_policy(input));

  const bool in_force =
      current->document && observed.policy_current && observed.hooks_attached && observed.debris.empty() &&
      observed.generation == current->desired.generation && same_tables(current->compiled, compiled) &&
      current->desired.document == target.document && current->desired.rolled_back == target.rolled_back &&
      std::ranges::none_of(steps, [](const Step& step) {
        return step.kind == StepKind::kLoadCca || step.kind == StepKind::kSetSysctl || step.kind == StepKind::kRetireCca;
      });
  prepared.changed = force || !in_force;
  prepared.transaction.kind = kind;
  prepared.transaction.target = std::move(target);
  prepared.transaction.steps = std::move(steps);
  prepared.document = std::move(document);
  prepared.compiled = std::move(compiled);
  prepared.specs = std::move(specs);
  return prepared;
}

Result<Engine::Prepared> Engine::prepare_removal(const std::string& native) {
  const auto current = view();
  Prepared prepared;
  SLUICE_TRY(document, policy::parse_document(removal_document(native), "(down)"));
  SLUICE_TRY(observed, kernel_.observe());
  const uint64_t generation = std::max(observed.generation, current->desired.generation) + 1;
  SLUICE_TRY(compiled, compile(document, bundle::Catalog{}, Desired{}, generation));
  put_name(compiled.generation.listener_cca, native);
  SLUICE_TRY(sysctls, read_sysctls(compiled, current->desired));
  SLUICE_TRY(available, kernel_.available_ccas());
  const PlanInput input{observed, compiled, prepared.specs, available, sysctls, current->desired.saved_sysctls, true};
  SLUICE_TRY(steps, plan_removal(input));
  prepared.transaction.kind = "down";
  prepared.transaction.removes_everything = true;
  prepared.transaction.target.generation = generation;
  prepared.transaction.target.revision = current->desired.revision;
  prepared.transaction.steps = std::move(steps);
  prepared.compiled = std::move(compiled);
  return prepared;
}

// ---- doing ----

Result<Engine::Outcome> Engine::run(Prepared& prepared, uint32_t timeout_ms, const ProgressSink& progress) {
  Transaction& transaction = prepared.transaction;
  const auto& steps = transaction.steps;
  const auto commit = commit_index(steps);
  const uint64_t deadline =
      clock_.monotonic_ns() + uint64_t{timeout_ms != 0 ? timeout_ms : options_.migrate_timeout_ms} * kNsPerMs;

  SLUICE_TRY(id, store_.begin(transaction));
  transaction.id = id;
  Outcome outcome;
  outcome.migration.set_complete(true);
  for (size_t i = 0; i < steps.size(); ++i) {
    v1::Progress line;
    line.set_step(static_cast<uint32_t>(i + 1));
    line.set_steps(static_cast<uint32_t>(steps.size()));
    line.set_message(steps[i].describe());
    progress(line);

    Status status;
    if (stopping_)
      status =
          fail(make_error(Code::kUnavailable, "the agent is ending", "it is finished or undone when the agent starts again"));
    if (status) status = store_.started(id, i + 1);
    if (status) transaction.started = i + 1;
    if (status) status = run_step(steps[i], prepared, deadline, outcome);
    if (status && steps[i].kind == StepKind::kPublish) status = verify(prepared);
    if (status) continue;

    Error error = std::move(status).error().within(steps[i].describe());
    if (commit && i <= *commit && !transaction.removes_everything) {
      // Not committed, unless publishing itself is in doubt; the kernel knows.
      const auto observed = kernel_.observe();
      if (!observed || observed->generation != transaction.target.generation) {
        auto ended = undo(transaction);
        if (ended) ended = store_.finish(id, view()->desired);
        // The journal stays open then, and settle() ends it.
        if (!ended) error.within("what was begun is undone later, not yet: " + ended.error().message());
        // A repair, or putting a policy in force again, is tried again and again: told of once.
        const bool again = transaction.kind == "repair" || transaction.kind == "restore";
        const bool told = again && set_repair_failure(error.message()) == error.message();
        if (!told) event(transaction.kind + "-failed", "error", error.message());
        return fail(std::move(error));
      }
    }
    if (transaction.removes_everything && error.code == Code::kConflict) {
      // Somebody uses what was to go. The caller puts the policy before back.
      SLUICE_CHECK(store_.finish(id, view()->desired));
      return fail(std::move(error));
    }
    // Committed: the new policy is in force. The journal stays open, so that settle() ends what is left.
    event(transaction.kind + "-incomplete", "error", error.message());
    if (!transaction.removes_everything) set_view(prepared, outcome);
    return fail(std::move(error));
  }

  if (outcome.migration.complete() && !transaction.removes_everything) {
    // No socket uses an older parameter set any more.
    policy::ParamAllocation in_use;
    for (const auto& item : prepared.compiled.bundles) in_use[item.ref] = item.params;
    const bool migrated = std::ranges::any_of(steps, [](const Step& s) { return s.kind == StepKind::kMigrate; });
    if (migrated) transaction.target.allocation = allocation_to_json(in_use);
  }
  SLUICE_CHECK(store_.finish(id, transaction.target));
  set_view(prepared, outcome);
  return outcome;
}

Status Engine::run_step(const Step& step, const Prepared& prepared, uint64_t deadline_ns, Outcome& outcome) {
  switch (step.kind) {
    case StepKind::kRemoveDebris:
      return kernel_.remove_debris();
    case StepKind::kLoadPolicy:
      return kernel_.load_policy();
    case StepKind::kLoadCca: {
      const auto spec = std::ranges::find(prepared.specs, step.subject, &CcaSpec::id);
      SLUICE_ASSERT(spec != prepared.specs.end());
      SLUICE_TRY(map_id, kernel_.load_cca(*spec));
      log_info("CCA registered", {{"bundle", step.subject}, {"name", spec->kernel_name}, {"map_id", map_id}});
      return {};
    }
    case StepKind::kWriteParams:
      return kernel_.write_params(step.subject, static_cast<uint32_t>(step.number), step.params);
    case StepKind::kSetSysctl:
      SLUICE_CHECK(kernel_.write_sysctl(step.subject, step.value));
      if (prepared.transaction.removes_everything) outcome.restored.push_back(fmt::format("{} = {}", step.subject, step.value));
      return {};
    case StepKind::kWriteGeneration:
      return kernel_.write_generation(prepared.compiled);
    case StepKind::kAttachHooks:
      return kernel_.attach_hooks();
    case StepKind::kPublish:
      return kernel_.publish(step.number);
    case StepKind::kMigrate: {
      SLUICE_TRY(migration, migrate_until_done(deadline_ns, false));
      outcome.migration = std::move(migration);
      return {};
    }
    case StepKind::kRetireCca: {
      SLUICE_TRY(retained, try_retire(step.subject));
      if (retained) outcome.retained.push_back(std::move(*retained));
      return {};
    }
    case StepKind::kDetachHooks:
    case StepKind::kUnloadPolicy:
      if (!outcome.retained.empty()) {
        Error error = make_error(Code::kConflict, "something still uses a CCA that would be removed",
                                 "end these users, then repeat `sluice down`");
        for (const auto& item : outcome.retained)
          for (const auto& user : item.users()) error.what += fmt::format("; {}: {}", item.cca(), user);
        return fail(std::move(error));
      }
      return step.kind == StepKind::kDetachHooks ? kernel_.detach_hooks() : kernel_.unload_policy();
  }
  panic("a step without an action", __FILE__, __LINE__);
}

Status Engine::verify(const Prepared& prepared) {
  SLUICE_TRY(observed, kernel_.observe());
  const auto refuse = [](std::string what) -> Status {
    return fail(Code::kInternal, "the kernel is not as it was just set: {}", what);
  };
  if (observed.generation != prepared.transaction.target.generation)
    return refuse(
        fmt::format("generation {} is published, not {}", observed.generation, prepared.transaction.target.generation));
  if (!observed.hooks_attached && !prepared.transaction.removes_everything) return refuse(observed.hook_loss);
  for (const auto& item : prepared.compiled.bundles) {
    if (item.rolled_back) continue;
    const LoadedCca* loaded = observed.find(item.ref.text());
    if (loaded == nullptr || !loaded->registered) return refuse(item.ref.text() + " is not registered");
  }
  return {};
}

Result<v1::MigrateResult> Engine::migrate_until_done(uint64_t deadline_ns, bool thorough) {
  const uint64_t start = clock_.monotonic_ns();
  v1::MigrateResult result;
  MigratePass last;
  for (int pass = 0; pass < options_.migrate_passes_max; ++pass) {
    SLUICE_TRY(done, kernel_.migrate(thorough ? Kernel::Pass::kThorough : Kernel::Pass::kQuick));
    result.set_passes(result.passes() + 1);
    result.set_seen(std::max<uint64_t>(result.seen(), done.seen));
    result.set_moved(result.moved() + done.moved);
    result.set_namespaces(std::max(result.namespaces(), done.namespaces));
    last = std::move(done);
    // A pass that corrected nothing has seen everything in place but what it cannot move.
    if (last.moved == 0) break;
    if (clock_.monotonic_ns() >= deadline_ns || stopping_) break;
  }
  result.set_failed(last.failed);
  result.set_without_ecn(last.without_ecn);
  result.set_complete(last.left_total == 0);
  result.set_duration_ms(ms_since(clock_, start));

  SLUICE_TRY(observed, kernel_.observe());
  const auto current = view();
  std::map<std::string, v1::Leftover> by_reason;
  for (const auto& socket : last.left) {
    const std::string reason = outcome_text(socket);
    auto& item = by_reason[reason];
    if (item.sockets() == 0) *item.mutable_example() = to_proto(socket, *current, observed.ccas);
    item.set_reason(reason);
    item.set_sockets(item.sockets() + 1);
  }
  for (auto& [reason, item] : by_reason) *result.add_left() = std::move(item);
  return result;
}

// A migration to a CCA that needs ECN was rewritten for connections that have none.
void Engine::tell_without_ecn(const v1::MigrateResult& result) {
  if (result.without_ecn() == 0) return;
  event("ecn", "warning",
        fmt::format("{} connection{} without ECN: the CCA of their rule needs it, they run the transitional one, {}",
                    result.without_ecn(), result.without_ecn() == 1 ? "" : "s", view()->compiled.transitional));
}

// Retires a CCA when nobody uses it, else says who does.
Result<std::optional<v1::Retained>> Engine::try_retire(const std::string& id) {
  SLUICE_TRY(observed, kernel_.observe());
  const LoadedCca* loaded = observed.find(id);
  if (loaded == nullptr) {
    SLUICE_CHECK(kernel_.retire_cca(id));
    return std::nullopt;
  }
  v1::Retained retained;
  retained.set_cca(id);
  SLUICE_TRY(others, kernel_.other_users());
  for (const auto& user : others[loaded->kernel_name]) retained.add_users(user.text);
  if (loaded->users > 0) {
    // The kernel counts users in one number; who they are takes a walk.
    SLUICE_TRY(usage, kernel_.usage());
    uint64_t sockets = 0, listeners = 0;
    for (const auto& count : usage)
      if (count.map_id == loaded->map_id) (count.listener ? listeners : sockets) += count.sockets;
    if (sockets > 0) retained.add_users(fmt::format("{} socket{}", sockets, sockets == 1 ? "" : "s"));
    if (listeners > 0) retained.add_users(fmt::format("{} listener{}", listeners, listeners == 1 ? "" : "s"));
    if (retained.users_size() == 0) {
      SLUICE_TRY(again, kernel_.observe());
      const LoadedCca* still = again.find(id);
      if (still != nullptr && still->users > 0)
        retained.add_users(
            fmt::format("{} user{} that no walk finds (a socket outside the managed namespaces, or one that is closing)",
                        still->users, still->users == 1 ? "" : "s"));
    }
  }
  if (retained.users_size() > 0) return retained;
  SLUICE_CHECK(kernel_.retire_cca(id));
  event("retired", "info", fmt::format("{} retired: no socket, listener, sysctl or route uses it", id));
  return std::nullopt;
}

Status Engine::undo(const Transaction& transaction) {
  for (size_t i = transaction.started; i-- > 0;) {
    const Step& step = transaction.steps[i];
    auto status = undo_step(step);
    if (status) continue;
    if (status.error().code == Code::kExhausted) return fail(std::move(status).error().within(step.describe_inverse()));
    event("undo-failed", "error", fmt::format("{}: {}", step.describe_inverse(), status.error().message()));
  }
  return {};
}

Status Engine::undo_step(const Step& step) {
  switch (step.kind) {
    case StepKind::kSetSysctl:
      return kernel_.write_sysctl(step.subject, step.before);
    case StepKind::kLoadPolicy:
      return step.owned ? kernel_.unload_policy() : Status{};
    case StepKind::kLoadCca:
      return step.owned ? kernel_.retire_cca(step.subject) : Status{};
    case StepKind::kAttachHooks:
      return step.owned ? kernel_.detach_hooks() : Status{};
    default:
      return {};
  }
}

// ---- after a crash ----

Status Engine::settle() {
  SLUICE_TRY(open, store_.open_transaction());
  if (!open) return {};
  return finish_interrupted(std::move(*open));
}

Status Engine::load_policy_in_force(View& view) {
  SLUICE_TRY(document, policy::parse_document(view.desired.document, view.desired.source_name));
  SLUICE_TRY(observed, kernel_.observe());
  SLUICE_TRY(catalog, catalog_for(view.desired, observed));
  SLUICE_TRY(compiled, compile(document, catalog, view.desired, view.desired.generation));
  SLUICE_TRY(cgroups, cgroups_of(document));
  view.cgroups = std::move(cgroups);
  // What was retained, or not moved, when the predecessor ended is found again by maintain().
  for (const auto& cca : observed.ccas) {
    const bool wanted = std::ranges::any_of(compiled.bundles,
                                            [&](const auto& item) { return item.ref.text() == cca.id() && !item.rolled_back; });
    if (!wanted) view.retained.emplace_back().set_cca(cca.id());
  }
  view.migration_unknown = true;
  view.document = std::move(document);
  view.compiled = std::move(compiled);
  return {};
}

// Never a reason not to serve: what the kernel holds goes on working, and `status`, `apply` and `down` are how it is mended.
Status Engine::recover() {
  SLUICE_TRY(turn, turns_.take("the recovery", wait_for_ever));
  SLUICE_TRY(desired, store_.desired());
  Status status = settle();
  if (status) {
    SLUICE_TRY(settled, store_.desired());
    desired = std::move(settled);
    status = take_up(desired);
  }
  if (status) return {};
  auto view = std::make_shared<View>();
  view->desired = std::move(desired);
  view->problem = status.error().message();
  set_view(view);
  event("degraded", "error", "the stored policy could not be taken up, the kernel keeps what it has: " + view->problem);
  return {};
}

Status Engine::take_up(const Desired& desired) {
  auto fresh = std::make_shared<View>();
  fresh->desired = desired;
  if (!desired.document.empty()) SLUICE_CHECK(load_policy_in_force(*fresh));
  set_view(fresh);
  if (desired.document.empty()) return {};

  // Pins do not outlive a reboot: then the policy is put in force anew.
  SLUICE_TRY(observed, kernel_.observe());
  if (observed.policy_loaded && observed.generation == desired.generation) return {};
  event("restored", "warning", "the kernel holds no policy of ours (a reboot?): putting the stored one in force");
  SLUICE_TRY(prepared, prepare(desired, "restore", true, true));
  SLUICE_TRY(outcome, run(prepared, 0, [](const v1::Progress&) {}));
  return {};
}

Status Engine::finish_interrupted(Transaction transaction) {
  SLUICE_TRY(observed, kernel_.observe());
  const bool committed = observed.generation == transaction.target.generation ||
                         (transaction.removes_everything && !observed.policy_loaded && transaction.started > 0);
  if (!committed) {
    SLUICE_CHECK(undo(transaction).map_error([&](Error e) {
      return std::move(e).within(fmt::format("a {} before cannot be undone yet", transaction.kind));
    }));
    SLUICE_TRY(before, store_.desired());
    SLUICE_CHECK(store_.finish(transaction.id, before));
    event("recovered", "warning", fmt::format("an interrupted {} was undone", transaction.kind));
    return {};
  }

  // Everything up to the commit point has happened; what follows is safe to repeat.
  Prepared prepared;
  Outcome outcome;
  outcome.migration.set_complete(true);
  prepared.transaction = transaction;
  if (!transaction.removes_everything) {
    SLUICE_TRY(document, policy::parse_document(transaction.target.document, transaction.target.source_name));
    SLUICE_TRY(catalog, catalog_for(transaction.target, observed));
    SLUICE_TRY(compiled, compile(document, catalog, transaction.target, transaction.target.generation));
    prepared.document = std::move(document);
    prepared.compiled = std::move(compiled);
    set_view(prepared, outcome);
  }
  const uint64_t deadline = clock_.monotonic_ns() + uint64_t{options_.migrate_timeout_ms} * kNsPerMs;
  const auto commit = commit_index(transaction.steps);
  for (size_t i = commit ? *commit + 1 : 0; i < transaction.steps.size(); ++i) {
    const Step& step = transaction.steps[i];
    if (step.kind == StepKind::kMigrate && !observed.policy_loaded) continue;  // a removal that had come as far as this
    SLUICE_CHECK(store_.started(transaction.id, i + 1));
    const Status status = run_step(step, prepared, deadline, outcome);
    if (status) continue;
    if (transaction.removes_everything && status.error().code == Code::kConflict) {
      // Somebody uses a CCA that was to go: the policy before comes back, nothing is half removed.
      SLUICE_TRY(before, store_.desired());
      SLUICE_CHECK(store_.finish(transaction.id, before));
      event("recovered", "warning", "an interrupted down met users of a CCA and was taken back: " + status.error().message());
      return {};
    }
    return fail(Error(status.error()).within(step.describe()));
  }
  SLUICE_CHECK(store_.finish(transaction.id, transaction.target));
  set_view(prepared, outcome);
  event("recovered", "warning", fmt::format("an interrupted {} was finished", transaction.kind));
  return {};
}

// ---- the commands ----

// What apply() asks of a document beyond what it says by itself; fills target.rolled_back.
Status Engine::check_request(const v1::ApplyRequest& request, Desired& target) {
  const auto current = view();
  if (request.clear_rollbacks()) target.rolled_back.clear();
  SLUICE_TRY(document, policy::parse_document(request.document(), request.source_name()));
  SLUICE_TRY(available, kernel_.available_ccas());
  SLUICE_CHECK(check_natives(document, available));
  std::set<std::string> kept;
  for (const auto& use : document.bundles) {
    if (!target.rolled_back.contains(use.ref.text())) continue;
    // The document in force is allowed to go on naming it; a new one that does is a decision somebody must take.
    if (request.document() != current->desired.document)
      return fail(rolled_back_conflict(use.ref.text(), document.where(use.mark)));
    kept.insert(use.ref.text());
  }
  target.rolled_back = std::move(kept);
  return {};
}

Result<v1::ApplyResult> Engine::apply(const v1::ApplyRequest& request, const ProgressSink& progress, const GivenUp& given_up) {
  SLUICE_TRY(turn, turns_.take("`sluice apply`", given_up));
  SLUICE_CHECK(settle());
  const uint64_t start = clock_.monotonic_ns();
  const auto current = view();
  Desired target = current->desired;
  target.document = request.document();
  target.source_name = request.source_name();
  target.revision = current->desired.revision + 1;
  SLUICE_CHECK(check_request(request, target));
  SLUICE_TRY(prepared, prepare(target, "apply", !request.no_migrate(), false));
  v1::ApplyResult result;
  for (const auto& warning : prepared.compiled.warnings) result.add_warnings(warning.message());
  if (!prepared.changed) {
    result.set_revision(current->desired.revision);
    result.set_generation(current->desired.generation);
    result.set_duration_ms(ms_since(clock_, start));
    result.mutable_migration()->set_complete(current->migration_complete);
    return result;
  }
  SLUICE_TRY(outcome, run(prepared, request.timeout_ms(), progress));
  result.set_changed(true);
  result.set_revision(prepared.transaction.target.revision);
  result.set_generation(prepared.transaction.target.generation);
  *result.mutable_migration() = outcome.migration;
  for (const auto& item : outcome.retained) *result.add_retained() = item;
  result.set_duration_ms(ms_since(clock_, start));
  event("applied", "info",
        fmt::format("revision {} in force as generation {}: {} sockets moved", result.revision(), result.generation(),
                    outcome.migration.moved()));
  tell_without_ecn(outcome.migration);
  return result;
}

// Reads only: needs no lock against changes.
Result<v1::DiffReply> Engine::diff(const v1::ApplyRequest& request) {
  const auto current = view();
  Desired target = current->desired;
  target.document = request.document();
  target.source_name = request.source_name();
  SLUICE_CHECK(check_request(request, target));
  SLUICE_TRY(prepared, prepare(target, "apply", !request.no_migrate(), false));
  v1::DiffReply reply;
  for (const auto& change : policy::diff(current->document ? &*current->document : nullptr, *prepared.document))
    reply.add_changes(change.text());
  if (!prepared.changed) return reply;
  for (const auto& step : prepared.transaction.steps) {
    auto* out = reply.add_steps();
    out->set_kind(std::string(step_kind_name(step.kind)));
    out->set_what(step.describe());
    out->set_inverse(step.describe_inverse());
  }
  return reply;
}

Result<v1::MigrateResult> Engine::migrate(const v1::MigrateRequest& request, const ProgressSink& progress,
                                          const GivenUp& given_up) {
  SLUICE_TRY(turn, turns_.take("`sluice migrate`", given_up));
  SLUICE_CHECK(settle());
  if (!view()->document)
    return fail(make_error(Code::kConflict, "no policy is in force", "apply one with `sluice apply FILE`"));
  v1::Progress line;
  line.set_step(1);
  line.set_steps(1);
  line.set_message("walking the sockets of every network namespace");
  progress(line);
  if (request.dry_run()) {
    const uint64_t start = clock_.monotonic_ns();
    SLUICE_TRY(pass, kernel_.migrate(Kernel::Pass::kDryRun));
    v1::MigrateResult result;
    result.set_seen(pass.seen);
    result.set_moved(pass.moved);
    result.set_namespaces(pass.namespaces);
    result.set_without_ecn(pass.without_ecn);
    result.set_passes(1);
    result.set_complete(pass.left_total == 0);
    result.set_duration_ms(ms_since(clock_, start));
    return result;
  }
  const uint32_t timeout = request.timeout_ms() != 0 ? request.timeout_ms() : options_.migrate_timeout_ms;
  SLUICE_TRY(result, migrate_until_done(clock_.monotonic_ns() + uint64_t{timeout} * kNsPerMs, true));
  auto next = std::make_shared<View>(*view());
  next->migration_complete = result.complete();
  set_view(std::move(next));
  event("migrated", result.complete() ? "info" : "warning",
        fmt::format("{} sockets seen, {} moved in {:.1f} ms", result.seen(), result.moved(), result.duration_ms()));
  tell_without_ecn(result);
  return result;
}

Result<v1::RollbackResult> Engine::rollback(const v1::RollbackRequest& request, const ProgressSink& progress,
                                            const GivenUp& given_up) {
  SLUICE_TRY(turn, turns_.take("`sluice rollback`", given_up));
  SLUICE_CHECK(settle());
  const uint64_t start = clock_.monotonic_ns();
  const auto current = view();
  if (!current->document) return fail(make_error(Code::kConflict, "no policy is in force", "nothing can be rolled back"));

  // NAME@VERSION as given; NAME alone and nothing at all mean the newest version that rules select and that is not itself what
  // rollbacks end on.
  std::string target_id;
  std::set<std::string> names;
  for (const auto& item : current->compiled.bundles) {
    const std::string id = item.ref.text();
    if (item.rolled_back) continue;
    if (request.target() == id) {
      target_id = id;
      break;
    }
    if (!item.selected || id == current->compiled.transitional) continue;
    if (!request.target().empty() && request.target() != item.ref.name) continue;
    names.insert(item.ref.name);
    if (target_id.empty() || *bundle::parse_bundle_ref(target_id) < item.ref) target_id = id;
  }
  if (names.size() > 1) {
    std::string list;
    for (const auto& name : names) list += (list.empty() ? "" : ", ") + name;
    return fail(make_error(Code::kInvalid, "several bundles could be meant: " + list, "name one: `sluice rollback NAME`"));
  }
  if (target_id.empty()) {
    return fail(make_error(Code::kNotFound,
                           request.target().empty() ? "the policy in force has no version to roll back"
                                                    : fmt::format("the policy in force does not use '{}'", request.target()),
                           "`sluice cca list` shows what it uses"));
  }
  if (target_id == current->compiled.transitional) {
    return fail(make_error(Code::kConflict, fmt::format("{} is the transitional CCA, the one that rollbacks end on", target_id),
                           "apply a document that names another transitional CCA, or `sluice down`"));
  }
  if (current->compiled.transitional.empty()) {
    return fail(make_error(Code::kConflict, "the policy in force has no transitional CCA to roll back to",
                           "apply a document with `transitional: NAME@VERSION`"));
  }

  Desired target = current->desired;
  target.rolled_back.insert(target_id);
  SLUICE_TRY(prepared, prepare(target, "rollback", true, true));
  SLUICE_TRY(outcome, run(prepared, request.timeout_ms(), progress));
  v1::RollbackResult result;
  result.set_from(target_id);
  result.set_to(prepared.compiled.transitional);
  *result.mutable_migration() = outcome.migration;
  for (const auto& item : outcome.retained) *result.add_retained() = item;
  SLUICE_TRY(observed, kernel_.observe());
  result.set_retired(observed.find(target_id) == nullptr);
  result.set_duration_ms(ms_since(clock_, start));
  event("rolled-back", "warning",
        fmt::format("{} rolled back to {}: {} sockets moved in {:.1f} ms", target_id, result.to(), outcome.migration.moved(),
                    result.duration_ms()));
  tell_without_ecn(outcome.migration);
  return result;
}

// A namespace's default or a route that names one of ours: no migration can take it away, so it is found before anything is
// done.
Status Engine::check_other_users() {
  SLUICE_TRY(observed, kernel_.observe());
  std::string users;
  SLUICE_TRY(others, kernel_.other_users());
  for (const auto& cca : observed.ccas) {
    for (const auto& user : others[cca.kernel_name])
      users += fmt::format("{}{}: {}", users.empty() ? "" : "; ", cca.kernel_name, user.text);
  }
  if (users.empty()) return {};
  return fail(make_error(Code::kConflict, "something still uses a CCA that would be removed: " + users,
                         "change these settings, then repeat `sluice down`"));
}

Result<v1::DownResult> Engine::down(const v1::DownRequest& request, const ProgressSink& progress, const GivenUp& given_up) {
  SLUICE_TRY(turn, turns_.take("`sluice down`", given_up));
  SLUICE_CHECK(settle());
  const uint64_t start = clock_.monotonic_ns();
  const auto current = view();
  SLUICE_TRY(native, request.move_to().empty() ? kernel_.default_cca() : Result<std::string>(request.move_to()));
  SLUICE_TRY(available, kernel_.available_ccas());
  if (std::ranges::find(available, native) == available.end())
    return fail(make_error(Code::kNotFound,
                           fmt::format("this kernel has no congestion control '{}' to move sockets to", native),
                           "`sluice cca list` shows what it has"));
  SLUICE_CHECK(check_other_users());
  SLUICE_TRY(prepared, prepare_removal(native));
  auto outcome = run(prepared, request.timeout_ms(), progress);
  if (!outcome) {
    Error error = std::move(outcome).error();
    if (error.code == Code::kConflict && current->document) {
      // Some sockets stayed: the policy before comes back, nothing is half removed.
      set_view(current);
      Desired target = current->desired;
      SLUICE_TRY(back, prepare(target, "restore", true, true));
      SLUICE_TRY(restored, run(back, request.timeout_ms(), progress));
      error.within("the policy stays in force");
    }
    return fail(std::move(error));
  }
  v1::DownResult result;
  *result.mutable_migration() = outcome->migration;
  for (const auto& line : outcome->restored) result.add_restored(line);
  result.set_duration_ms(ms_since(clock_, start));
  event("down", "info", fmt::format("everything taken back; {} sockets moved to {}", outcome->migration.moved(), native));
  return result;
}

std::optional<Engine::Fault> Engine::find_fault(const View& view, const Observed& observed,
                                                const std::map<std::string, uint64_t>& cgroups) {
  if (!observed.policy_loaded) return Fault{kDamagePins, "pins of the selection pipeline are missing"};
  if (!observed.missing_pins.empty())
    return Fault{kDamagePins,
                 fmt::format("pins of the selection pipeline are missing: {}", fmt::join(observed.missing_pins, ", "))};
  if (!observed.policy_current) return Fault{{}, "this agent comes with another version of the selection pipeline"};
  if (!observed.hooks_attached) return Fault{kDamageHook, observed.hook_loss};
  for (const auto& item : view.compiled.bundles) {
    const LoadedCca* loaded = observed.find(item.ref.text());
    if (!item.rolled_back && (loaded == nullptr || !loaded->registered))
      return Fault{kDamageCca, item.ref.text() + " was unregistered by somebody"};
  }
  if (cgroups != view.cgroups) return Fault{{}, "a cgroup that a service names came, went or was made anew"};
  return std::nullopt;
}

// Through the journal, as every change. What cannot be mended yet (a cgroup that is gone, a full hook) is told of once.
Status Engine::repair(const View& view, const Fault& fault, bool& pending) {
  if (!fault.damage.empty() && fault_told_ != fault.text) {
    fault_told_ = fault.text;
    event("damaged", "warning", fault.text + "; putting the policy in force again");
    const std::lock_guard lock(repairs_mutex_);
    auto& count = repairs_[fault.damage];
    count.set_found(count.found() + 1);
    count.set_last_at_ns(clock_.wall_ns());
    count.set_what(fault.text);
  }
  SLUICE_TRY(prepared, prepare(view.desired, "repair", true, true));
  SLUICE_TRY(outcome, run(prepared, 0, [](const v1::Progress&) {}));
  fault_told_.clear();
  set_repair_failure("");
  event("repaired", "warning", fault.text + ": the policy is in force again");
  pending = !outcome.migration.complete() || !outcome.retained.empty();
  return {};
}

std::string Engine::repair_failure() const {
  const std::lock_guard lock(repairs_mutex_);
  return repair_failure_;
}

std::string Engine::set_repair_failure(std::string text) {
  const std::lock_guard lock(repairs_mutex_);
  return std::exchange(repair_failure_, std::move(text));
}

std::vector<v1::Repair> Engine::repairs() const {
  const std::lock_guard lock(repairs_mutex_);
  std::vector<v1::Repair> list;
  for (const auto kind : kDamageKinds) {
    const auto found = repairs_.find(kind);
    list.push_back(found == repairs_.end() ? v1::Repair() : found->second);
    list.back().set_kind(std::string(kind));
  }
  return list;
}

Result<bool> Engine::maintain() {
  auto turn = turns_.take("the agent's own look at the host", [] { return true; });
  if (!turn) return false;  // a change is under way: the next look is soon enough
  SLUICE_CHECK(settle());
  if (!view()->problem.empty()) {
    // Why it could not be taken up at the start may have passed.
    SLUICE_TRY(desired, store_.desired());
    SLUICE_CHECK(take_up(desired));
    set_repair_failure("");
    event("recovered", "warning", "the stored policy was taken up after all");
  }
  const auto current = view();
  if (!current->document) return false;

  SLUICE_TRY(observed, kernel_.observe());
  SLUICE_TRY(cgroups, cgroups_of(*current->document));
  if (const auto fault = find_fault(*current, observed, cgroups)) {
    bool pending = false;
    SLUICE_CHECK(repair(*current, *fault, pending));
    return pending;
  }
  fault_told_.clear();
  set_repair_failure("");

  if (current->migration_complete && !current->migration_unknown && current->retained.empty()) return false;
  auto next = std::make_shared<View>(*current);
  SLUICE_TRY(result, migrate_until_done(clock_.monotonic_ns() + uint64_t{options_.migrate_timeout_ms} * kNsPerMs, false));
  next->migration_complete = result.complete();
  next->migration_unknown = false;
  next->retained.clear();
  for (const auto& item : current->retained) {
    SLUICE_TRY(still, try_retire(item.cca()));
    if (still) next->retained.push_back(std::move(*still));
  }
  const bool pending = !next->migration_complete || !next->retained.empty();
  set_view(std::move(next));
  return pending;
}

}  // namespace sluice::agent
