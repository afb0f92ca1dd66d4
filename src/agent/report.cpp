// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Reports: what the API says about the host. Every number is read from the kernel when asked; the policy in force only gives
// ids their names.
#include <fmt/ranges.h>
#include <sluice/abi/report.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "agent/ecn.h"
#include "agent/ecn_state.h"
#include "agent/engine.h"

namespace sluice::agent {
namespace {

constexpr size_t kSocketsPerBatch = 512;
constexpr double kCollapsedCwndSegments = 2.0;
constexpr uint64_t kCollapsedSocketsMin = 4;

std::string_view state_name(uint8_t state) {
  static constexpr std::string_view kNames[] = {"",           "established", "syn-sent",    "syn-recv",   "fin-wait-1",
                                                "fin-wait-2", "time-wait",   "close",       "close-wait", "last-ack",
                                                "listen",     "closing",     "new-syn-recv"};
  return state < std::size(kNames) ? kNames[state] : std::string_view("?");
}

std::string locality_text(uint8_t locality) { return std::string(policy::locality_name(static_cast<sl_locality>(locality))); }

template <class List>
std::string named(const List& names, uint32_t id) {
  return id < names.size() ? std::string(names[id]) : std::string();
}

// "10.0.0.1:443" -> "10.0.0.1", "[fd00::1]:443" -> "fd00::1"; an address alone stays as it is.
std::string without_port(const std::string& text) {
  if (text.starts_with('[')) return text.substr(1, text.find(']') - 1);
  const size_t colon = text.find(':');
  return colon != std::string::npos && text.find(':', colon + 1) == std::string::npos ? text.substr(0, colon) : text;
}

std::string version_of(const std::vector<LoadedCca>& ccas, uint32_t map_id) {
  if (map_id == 0) return "";
  const auto it = std::ranges::find(ccas, map_id, &LoadedCca::map_id);
  return it == ccas.end() ? "" : it->id();
}

void set_parameters(v1::ParameterSet& out, uint32_t index, const std::string& scope, const policy::ParamValues& values) {
  out.set_index(index);
  out.set_scope(scope);
  for (const auto& [name, value] : values) (*out.mutable_values())[name] = value;
}

v1::Usage to_proto(const UsageCount& count, const View& view, const std::vector<LoadedCca>& ccas) {
  v1::Usage out;
  out.set_cca(count.cca);
  out.set_map_id(count.map_id);
  out.set_version(version_of(ccas, count.map_id));
  out.set_netns_ino(count.netns_ino);
  out.set_locality(locality_text(count.locality));
  out.set_listener(count.listener);
  out.set_current(count.current);
  out.set_sockets(count.sockets);
  if (count.sockets > 0) {
    out.set_cwnd_mean_segments(static_cast<double>(count.cwnd_segments_sum) / static_cast<double>(count.sockets));
    out.set_srtt_mean_us(static_cast<double>(count.srtt_us_sum) / static_cast<double>(count.sockets));
  }
  out.set_retransmits(count.retransmits_sum);
  out.set_rule(named(view.compiled.rule_labels, count.rule_id));
  return out;
}

// All CCAs that matter on this host: ours, and every other that a socket runs.
Result<std::vector<v1::Cca>> collect_ccas(Engine& engine, const View& view, const Observed& observed,
                                          const std::vector<UsageCount>& usage,
                                          const std::map<std::string, std::vector<OtherUser>>& others) {
  std::vector<v1::Cca> list;
  std::map<std::pair<uint32_t, std::string>, std::pair<UsageCount, UsageCount>> by_cca;  // (map id, name) -> sockets, listeners
  for (const auto& count : usage) {
    auto& pair = by_cca[{count.map_id, count.map_id == 0 ? count.cca : ""}];
    UsageCount& sum = count.listener ? pair.second : pair.first;
    sum.cca = count.cca;
    sum.sockets += count.sockets;
    sum.cwnd_segments_sum += count.cwnd_segments_sum;
    sum.srtt_us_sum += count.srtt_us_sum;
  }
  const auto fill_usage = [](v1::Cca& cca, const std::pair<UsageCount, UsageCount>& pair) {
    cca.set_sockets(pair.first.sockets);
    cca.set_listeners(pair.second.sockets);
    if (pair.first.sockets > 0) {
      cca.set_cwnd_mean_segments(static_cast<double>(pair.first.cwnd_segments_sum) / static_cast<double>(pair.first.sockets));
      cca.set_srtt_mean_us(static_cast<double>(pair.first.srtt_us_sum) / static_cast<double>(pair.first.sockets));
    }
  };

  for (const auto& loaded : observed.ccas) {
    v1::Cca cca;
    cca.set_name(loaded.name);
    cca.set_version(loaded.version);
    cca.set_kernel_name(loaded.kernel_name);
    cca.set_map_id(loaded.map_id);
    cca.set_origin("bundle");
    cca.set_digest(loaded.digest);
    cca.set_memory_bytes(loaded.memory_bytes);
    cca.set_state("retiring");
    for (const auto& item : view.compiled.bundles) {
      if (item.ref.text() != loaded.id()) continue;
      cca.set_transitional(view.compiled.transitional == loaded.id());
      cca.set_ecn(item.needs_ecn ? "requires" : "tolerates");
      cca.set_state(item.rolled_back ? "rolled back" : item.selected ? "active" : "available");
      for (const auto& [index, values] : item.params)
        set_parameters(*cca.add_parameter_sets(), index, index == item.global_params ? "global" : "override", values);
    }
    if (const auto found = others.find(loaded.kernel_name); found != others.end())
      for (const auto& user : found->second) cca.add_other_users(user.text);
    SLUICE_TRY(counters, engine.kernel().cca_counters(loaded.id()));
    for (const auto& [name, value] : counters) {
      auto* counter = cca.add_counters();
      counter->set_name(name);
      counter->set_value(value);
    }
    if (const auto it = by_cca.find({loaded.map_id, ""}); it != by_cca.end()) {
      fill_usage(cca, it->second);
      by_cca.erase(it);
    }
    list.push_back(std::move(cca));
  }
  for (const auto& [key, pair] : by_cca) {
    v1::Cca cca;
    cca.set_name(pair.first.cca.empty() ? pair.second.cca : pair.first.cca);
    cca.set_kernel_name(cca.name());
    cca.set_map_id(key.first);
    cca.set_origin(key.first == 0 ? "native" : "foreign");
    const bool active = std::ranges::any_of(view.compiled.rules, [&](const auto& rule) {
      return (rule.second.flags & SL_VERDICT_BUNDLE) == 0 && cca.name() == rule.second.cca;
    });
    cca.set_state(active ? "active" : "");
    fill_usage(cca, pair);
    list.push_back(std::move(cca));
  }
  return list;
}

}  // namespace

std::string outcome_text(const SocketReport& report) {
  switch (report.outcome) {
    case SL_OUTCOME_NO_RULE:
      return "no rule covers it";
    case SL_OUTCOME_MPTCP:
      return "an MPTCP subflow: left alone";
    case SL_OUTCOME_SET_FAILED:
      if (report.error == -EPERM) return "locked: its route names a congestion control (congctl lock)";
      return fmt::format("the kernel refused: {}", std::strerror(-report.error));
    case SL_OUTCOME_OBSERVED:
      return "opened while the walk ran";
    default:
      return "";
  }
}

v1::Socket to_proto(const SocketReport& report, const View& view, const std::vector<LoadedCca>& ccas) {
  v1::Socket out;
  out.set_local(report.local);
  out.set_remote(report.remote);
  out.set_state(std::string(state_name(report.state)));
  out.set_cca(report.cca);
  out.set_map_id(report.map_id);
  out.set_version(version_of(ccas, report.map_id));
  out.set_netns_ino(report.netns_ino);
  out.set_generation(report.generation);
  out.set_current(report.generation != 0 && report.generation == view.desired.generation);
  constexpr uint8_t kListen = 10;
  if (report.rule_id != 0 && report.state != kListen) {
    out.set_locality(locality_text(report.locality));
    out.set_place(report.place_id < view.compiled.place_info.size() ? view.compiled.place_info[report.place_id].text() : "");
    out.set_service(named(view.compiled.service_names, report.service_id));
    out.set_rule(named(view.compiled.rule_labels, report.rule_id));
    out.set_origin((report.flags & SL_REPORT_APPLICATION) != 0 ? "application" : report.generation != 0 ? "policy" : "unknown");
  }
  out.set_ecn(std::string(ecn_name(ecn_state(report))));
  out.set_sends_ect(report.ecn_field != 0);
  out.set_ecn_echoed(report.ecn_echoed);
  out.set_cwnd_segments(report.cwnd_segments);
  out.set_ssthresh_segments(report.ssthresh_segments);
  out.set_srtt_us(report.srtt_us);
  out.set_retransmits(report.retransmits);
  out.set_cookie(report.cookie);
  out.set_params(report.params);
  if (report.outcome != SL_OUTCOME_OBSERVED) out.set_outcome(outcome_text(report));
  return out;
}

Result<v1::StatusReply> status_report(Engine& engine, bool count_sockets) {
  const auto view = engine.view();
  SLUICE_TRY(observed, engine.kernel().observe());
  v1::StatusReply reply;
  reply.set_instance(engine.options().instance.empty() ? "default" : engine.options().instance);
  reply.set_agent_version(engine.options().agent_version);
  reply.set_kernel(engine.kernel().release());
  reply.set_revision(view->desired.revision);
  reply.set_generation(observed.generation);
  reply.set_applied_at_ns(view->desired.applied_at_ns);
  if (view->document) reply.set_place(view->document->place.text());
  for (const auto& id : view->desired.rolled_back) reply.add_rolled_back(id);
  reply.set_places(static_cast<uint32_t>(view->compiled.places.size()));
  reply.set_services(view->document ? static_cast<uint32_t>(view->document->services.size()) : 0);
  reply.set_rules(view->document ? static_cast<uint32_t>(view->document->rules.size()) : 0);
  for (const auto& hook : observed.hooks) {
    auto* out = reply.add_hooks();
    out->set_name(hook.name);
    out->set_link_id(hook.link_id);
    out->set_prog_id(hook.prog_id);
    out->set_target(hook.target);
    out->set_ours(hook.ours);
  }

  std::vector<UsageCount> usage;
  if (count_sockets && observed.policy_loaded) {
    SLUICE_TRY(counted, engine.kernel().usage());
    usage = std::move(counted);
    for (const auto& count : usage) *reply.add_usage() = to_proto(count, *view, observed.ccas);
  }
  SLUICE_TRY(ccas, collect_ccas(engine, *view, observed, usage, {}));
  for (auto& cca : ccas) *reply.add_ccas() = std::move(cca);
  if (observed.policy_loaded) {
    SLUICE_TRY(counters, engine.kernel().policy_counters());
    for (const auto& [name, value] : counters) {
      auto* counter = reply.add_counters();
      counter->set_name(name);
      counter->set_value(value);
    }
  }

  for (auto& repair : engine.repairs()) *reply.add_repairs() = std::move(repair);

  // What is not as it should be, each with the way out.
  const auto problem = [&](std::string text) { reply.add_problems(std::move(text)); };
  if (!view->problem.empty()) problem("the stored policy cannot be read, the kernel keeps what it has: " + view->problem);
  if (!view->document && view->problem.empty() && observed.policy_loaded)
    problem(
        "the kernel still runs a policy that this agent does not know; `sluice apply FILE` takes it over, `sluice down` ends "
        "it");
  if (view->document) {
    SLUICE_TRY(available, engine.kernel().available_ccas());
    std::set<std::string> absent;
    for (const auto& [key, verdict] : view->compiled.rules)
      if ((verdict.flags & SL_VERDICT_BUNDLE) == 0 && std::ranges::find(available, verdict.cca) == available.end())
        absent.insert(verdict.cca);
    for (const auto& name : absent)
      problem(
          fmt::format("rules name kernel:{0}, which this kernel does not have now; load its module (modprobe tcp_{0})", name));
    if (!observed.policy_loaded)
      problem("the selection pipeline is not in the kernel; `sluice apply` puts it back");
    else if (!observed.hooks_attached)
      problem(observed.hook_loss + "; the agent attaches it again, `sluice events` says how it went");
    if (!observed.missing_pins.empty())
      problem(fmt::format("pins of ours are gone: {}; the agent makes them anew", fmt::join(observed.missing_pins, ", ")));
    if (observed.policy_loaded && observed.generation != view->desired.generation)
      problem(fmt::format("generation {} is published, {} was applied; `sluice apply` puts it right", observed.generation,
                          view->desired.generation));
    if (const auto failure = engine.repair_failure(); !failure.empty())
      problem("the policy could not be put in force again, the kernel keeps what it has: " + failure);
    if (!view->migration_complete) problem("some sockets are not on what their rule says; `sluice migrate` lists why");
    for (const auto& item : view->compiled.bundles)
      if (const LoadedCca* loaded = observed.find(item.ref.text());
          !item.rolled_back && (loaded == nullptr || !loaded->registered))
        problem(fmt::format("{} is not registered in the kernel; `sluice apply` loads it", item.ref.text()));
    for (const auto& cca : reply.ccas()) {
      // A window at the floor on every connection of a CCA is what a broken one looks like.
      if (cca.origin() == "bundle" && cca.sockets() >= kCollapsedSocketsMin &&
          cca.cwnd_mean_segments() <= kCollapsedCwndSegments)
        problem(fmt::format("{}@{} holds its {} connections at a window of {:.1f} segments; `sluice rollback {}@{}`",
                            cca.name(), cca.version(), cca.sockets(), cca.cwnd_mean_segments(), cca.name(), cca.version()));
    }
    for (const auto& warning : view->compiled.warnings) problem(warning.message());
  }
  reply.set_state(!reply.problems().empty() ? "degraded" : view->document ? "active" : "idle");
  return reply;
}

Result<v1::CcasReply> cca_report(Engine& engine, const std::string& name) {
  const auto view = engine.view();
  SLUICE_TRY(observed, engine.kernel().observe());
  std::vector<UsageCount> usage;
  if (observed.policy_loaded) {
    SLUICE_TRY(counted, engine.kernel().usage());
    usage = std::move(counted);
  }
  SLUICE_TRY(others, engine.kernel().other_users());
  SLUICE_TRY(ccas, collect_ccas(engine, *view, observed, usage, others));
  // Native ones that nobody runs, so that the list shows what can be chosen.
  SLUICE_TRY(available, engine.kernel().available_ccas());
  SLUICE_TRY(foreign, engine.kernel().struct_ops_names());
  for (const auto& native : available) {
    if (std::ranges::any_of(ccas, [&](const auto& cca) { return cca.kernel_name() == native; })) continue;
    v1::Cca cca;
    cca.set_name(native);
    cca.set_kernel_name(native);
    cca.set_origin(std::ranges::find(foreign, native) != foreign.end() ? "foreign" : "native");
    ccas.push_back(std::move(cca));
  }
  v1::CcasReply reply;
  for (auto& cca : ccas) {
    const std::string id = cca.version().empty() ? cca.name() : cca.name() + "@" + cca.version();
    if (!name.empty() && name != cca.name() && name != id && name != cca.kernel_name()) continue;
    if (!name.empty() && cca.origin() == "bundle") {
      SLUICE_TRY(programs, engine.kernel().cca_programs(id));
      for (const auto& program : programs) cca.add_programs(program);
    }
    *reply.add_ccas() = std::move(cca);
  }
  if (reply.ccas().empty())
    return fail(make_error(Code::kNotFound, fmt::format("this host has no congestion control '{}'", name),
                           "`sluice cca list` shows all"));
  return reply;
}

Result<v1::ExplainReply> explain_report(Engine& engine, const v1::ExplainRequest& request) {
  const auto view = engine.view();
  if (!view->document) return fail(make_error(Code::kConflict, "no policy is in force", "apply one with `sluice apply FILE`"));
  policy::Query query;
  SLUICE_TRY(remote, policy::parse_prefix(without_port(request.destination())));
  query.remote = remote;
  if (!request.source().empty()) {
    SLUICE_TRY(local, policy::parse_prefix(request.source()));
    query.local = local;
  }
  query.port = static_cast<uint16_t>(request.local_port());
  query.cgroup = request.cgroup();
  SLUICE_TRY(found, policy::explain(*view->document, view->compiled, query));

  v1::ExplainReply reply;
  reply.set_place(found.place);
  reply.set_locality(locality_text(static_cast<uint8_t>(found.locality)));
  reply.set_service(found.service);
  reply.set_rule(found.rule);
  reply.set_cca(found.cca);
  reply.set_target(found.target);
  const auto* bundle = view->compiled.bundle_of(found.cca);
  set_parameters(*reply.mutable_parameters(), found.params,
                 bundle == nullptr                       ? ""
                 : found.params == bundle->global_params ? "global"
                                                         : "override",
                 found.parameters);
  for (const auto& line : found.why) reply.add_why(line);
  const policy::TopologyEntry* best = nullptr;
  for (const auto& entry : view->document->topology)
    if (entry.prefix.contains(query.remote) && (best == nullptr || best->prefix.length < entry.prefix.length)) best = &entry;
  if (best != nullptr) reply.set_prefix(best->prefix.text());
  for (const auto& id : view->desired.rolled_back)
    reply.add_notes(fmt::format("{} is rolled back: {} stands in", id, view->compiled.transitional));
  if (found.needs_ecn) {
    SLUICE_TRY(usage, engine.kernel().usage());
    uint64_t open = 0, without = 0;
    for (const auto& count : usage) {
      if (count.listener || count.rule_id != found.rule_id) continue;
      open += count.sockets;
      if (count.cca == found.fallback) without += count.sockets;
    }
    reply.add_notes(found.fallback.empty()
                        ? "needs ECN"
                        : fmt::format("needs ECN: a connection that did not negotiate it runs {}; {} of {} open connections do",
                                      found.fallback, without, open));
  }
  SLUICE_TRY(ecn, ecn_known(engine, without_port(request.destination()), found.place));
  if (ecn) *reply.mutable_ecn() = std::move(*ecn);
  return reply;
}

Status socket_report(Engine& engine, const v1::SocketsRequest& request, const std::function<bool(const v1::Sockets&)>& sink) {
  const auto view = engine.view();
  SLUICE_TRY(observed, engine.kernel().observe());
  if (!observed.policy_loaded)
    return fail(
        make_error(Code::kConflict, "no policy is in force, so sockets are not watched", "apply one with `sluice apply FILE`"));
  uint64_t sent = 0;
  v1::Sockets batch;
  bool open = true;
  const auto flush = [&] {
    if (batch.sockets_size() > 0) open = sink(batch);
    batch.Clear();
  };
  SLUICE_CHECK(engine.kernel().sockets([&](std::vector<SocketReport>&& reports) {
    for (const auto& report : reports) {
      if (request.netns_ino() != 0 && report.netns_ino != request.netns_ino()) continue;
      v1::Socket socket = to_proto(report, *view, observed.ccas);
      // A kernel name, NAME@VERSION, or NAME for all versions.
      if (!request.cca().empty() && request.cca() != socket.cca() && request.cca() != socket.version() &&
          !socket.version().starts_with(request.cca() + "@"))
        continue;
      if (!request.locality().empty() && request.locality() != socket.locality()) continue;
      *batch.add_sockets() = std::move(socket);
      ++sent;
      if (batch.sockets_size() >= static_cast<int>(kSocketsPerBatch)) flush();
      if (!open || (request.limit() != 0 && sent >= request.limit())) return false;
    }
    return open;
  }));
  if (open) flush();
  return {};
}

}  // namespace sluice::agent
