// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/audit.h"

#include <fmt/ranges.h>
#include <sluice/abi/report.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "bpfio/enumerate.h"

namespace sluice::agent {
namespace {

// enum of include/net/tcp_states.h
constexpr uint8_t kEstablished = 1, kCloseWait = 8, kListen = 10;

std::string names_text(const bpfio::Acts& acts) {
  std::string text = fmt::format("{}", fmt::join(acts.cca_names, " or "));
  if (acts.other_cca) text += text.empty() ? "of any name" : " or another";
  return text;
}

std::string replies_text(const bpfio::Acts& acts) {
  std::vector<std::string> list;
  for (const uint32_t reply : acts.replies) list.push_back(fmt::format("{}", static_cast<int32_t>(reply)));
  if (acts.other_reply) list.emplace_back(list.empty() ? "a value of its own" : "another value");
  return fmt::format("{}", fmt::join(list, " or "));
}

// Collects what is the same at several callbacks.
class ActList {
 public:
  void add(const std::string& act, std::string_view callback) {
    const auto found = std::ranges::find(list_, act, &std::pair<std::string, std::vector<std::string_view>>::first);
    if (found != list_.end())
      found->second.push_back(callback);
    else
      list_.push_back({act, {callback}});
  }
  std::vector<std::string> take() {
    std::vector<std::string> out;
    for (const auto& [act, callbacks] : list_)
      out.push_back(callbacks.front().empty() ? act : fmt::format("{} ({})", act, fmt::join(callbacks, ", ")));
    return out;
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::string_view>>> list_;
};

std::string_view order_name(HookProgram::Order order) {
  switch (order) {
    case HookProgram::Order::kOurs:
      return "ours";
    case HookProgram::Order::kBefore:
      return "before";
    case HookProgram::Order::kAfter:
      return "after";
    case HookProgram::Order::kBeside:
      return "beside";
    case HookProgram::Order::kNever:
      return "never";
  }
  panic("an order without a name", __FILE__, __LINE__);
}

std::string program_text(const v1::HookProgram& program) {
  return fmt::format("{} (id {})", program.name(), program.prog_id());
}

const AuditedHook& hook_named(const std::string& name) {
  for (const auto& hook : kAuditedHooks)
    if (hook.name == name) return hook;
  panic("an audited hook that no table names", __FILE__, __LINE__);
}

// What a socket must run by the policy in force.
struct Wanted {
  std::string cca;  // "" = nothing is wanted of it, or we do not judge it
  std::string rule;
  std::string lost_ecn;  // the rule's own CCA, where the fallback stands in for want of ECN
};

class SocketJudge {
 public:
  SocketJudge(Engine& engine, std::shared_ptr<const View> view, const Observed& observed)
      : engine_(engine), view_(std::move(view)), observed_(observed) {
    for (const auto& [key, verdict] : view_->compiled.rules) verdicts_.try_emplace(verdict.rule_id, &verdict);
  }

  // Programs that can have taken a socket of their cgroup away from us.
  void suspect(const HookProgram& program, Judgement judgement) { suspects_.push_back({&program, std::move(judgement)}); }
  void limit_to(std::string folder) { folder_ = std::move(folder); }

  void look_at(const SocketReport& socket) {
    const Wanted wanted = wanted_of(socket);
    if (wanted.cca.empty()) return;
    const auto folder = folder_of(socket.cgroup_id);
    if (folder && !within(*folder, folder_)) return;  // our program does not see it
    const bool runs = socket.cca == wanted.cca && socket.map_id == map_id_of(wanted.cca);
    if (runs && wanted.lost_ecn.empty()) return;
    std::set<uint32_t> by;
    for (const auto& suspect : suspects_) {
      if (folder && !within(*folder, suspect.program->cgroup)) continue;
      const Judgement& can = suspect.judgement;
      if (runs ? can.loses_ecn : can.any_cca || can.ccas.contains(socket.cca)) by.insert(suspect.program->prog_id);
    }
    if (runs && by.empty()) return;  // the peer does no ECN
    auto& group = groups_[{runs, wanted.rule, runs ? wanted.lost_ecn : wanted.cca, socket.cca, by}];
    if (group.sockets++ == 0) group.example = socket;
  }

  void report(v1::AuditReply& reply) const {
    for (const auto& [key, group] : groups_) {
      const auto& [ecn, rule, wanted, runs, by] = key;
      auto* out = reply.add_overridden();
      out->set_kind(ecn ? "ecn" : "cca");
      out->set_rule(rule);
      out->set_wanted(wanted);
      out->set_runs(runs);
      for (const uint32_t id : by) out->add_prog_ids(id);
      out->set_cause(cause(ecn, by));
      out->set_sockets(group.sockets);
      *out->mutable_example() = to_proto(group.example, *view_, observed_.ccas);
    }
  }

  // Sockets that nobody else can have taken.
  uint64_t taken_by(uint32_t prog_id) const {
    uint64_t sockets = 0;
    for (const auto& [key, group] : groups_)
      if (const auto& by = std::get<4>(key); by.size() == 1 && by.contains(prog_id)) sockets += group.sockets;
    return sockets;
  }

 private:
  struct Suspect {
    const HookProgram* program;
    Judgement judgement;
  };
  struct Group {
    uint64_t sockets = 0;
    SocketReport example;
  };
  using Key = std::tuple<bool, std::string, std::string, std::string, std::set<uint32_t>>;  // ecn, rule, wanted, runs, by

  Wanted wanted_of(const SocketReport& socket) const {
    if (socket.state == kListen) return {view_->compiled.generation.listener_cca, "listeners", ""};
    if (socket.state != kEstablished && socket.state != kCloseWait) return {};
    const auto found = verdicts_.find(socket.rule_id);
    if (socket.rule_id == 0 || found == verdicts_.end()) return {};
    const sl_verdict& verdict = *found->second;
    const std::string rule =
        socket.rule_id < view_->compiled.rule_labels.size() ? view_->compiled.rule_labels[socket.rule_id] : "";
    if ((socket.flags & SL_REPORT_ECN_FALLBACK) != 0) return {verdict.fallback, rule, verdict.cca};
    return {verdict.cca, rule, ""};
  }

  uint32_t map_id_of(const std::string& kernel_name) const {
    const auto found = std::ranges::find(observed_.ccas, kernel_name, &LoadedCca::kernel_name);
    return found == observed_.ccas.end() ? 0 : found->map_id;
  }

  const std::optional<std::string>& folder_of(uint64_t cgroup_id) {
    const auto [found, fresh] = folders_.try_emplace(cgroup_id);
    if (fresh)
      if (auto path = engine_.kernel().cgroup_path(cgroup_id)) found->second = std::move(*path);
    return found->second;
  }

  std::string cause(bool ecn, const std::set<uint32_t>& by) const {
    if (by.empty())
      return "unexplained: the application's own setsockopt(TCP_CONGESTION), or opened while our program was not attached or "
             "before "
             "the policy; `sluice migrate` corrects them, or says why not";
    std::vector<std::string> names;
    for (const uint32_t id : by)
      for (const auto& suspect : suspects_)
        if (suspect.program->prog_id == id) {
          names.push_back(fmt::format("{} (id {})", suspect.program->name, id));
          break;
        }
    const std::string text = fmt::format("{}{}", by.size() > 1 ? "one of " : "", fmt::join(names, ", "));
    return ecn ? text + ", or a peer that does no ECN" : text;
  }

  Engine& engine_;
  std::shared_ptr<const View> view_;
  const Observed& observed_;
  std::map<uint32_t, const sl_verdict*> verdicts_;  // by rule: they differ in parameters only
  std::vector<Suspect> suspects_;
  std::string folder_;
  std::map<uint64_t, std::optional<std::string>> folders_;
  std::map<Key, Group> groups_;
};

v1::HookProgram to_proto(const HookProgram& program, const Judgement& judgement, uint64_t sockets) {
  v1::HookProgram out;
  out.set_prog_id(program.prog_id);
  out.set_link_id(program.link_id);
  out.set_name(program.name);
  out.set_tag(program.tag);
  out.set_loaded_at_ns(program.loaded_at_ns);
  out.set_uid(program.uid);
  out.set_cgroup(program.cgroup);
  out.set_attach_mode(std::string(bpfio::attach_mode(program.attach_flags)));
  out.set_order(std::string(order_name(program.order)));
  for (const auto& holder : program.holders) out.add_holders(holder);
  for (const auto& act : judgement.acts) out.add_acts(act);
  for (const auto& act : judgement.overrides) out.add_overrides(act);
  out.set_sockets(sockets);
  out.set_verdict(program.order == HookProgram::Order::kOurs ? "ours"
                  : sockets > 0                              ? "overrides"
                  : !judgement.overrides.empty()             ? "can override"
                  : judgement.unknown                        ? "unknown"
                                                             : "harmless");
  return out;
}

// What is wrong with our own hold on the hook; `detached` = now.
void own_problems(const View& view, const Observed& observed, v1::AuditReply& reply, bool& detached) {
  if (!view.document) return;
  if (!observed.policy_loaded) {
    detached = true;
    reply.add_problems("the selection pipeline is not in the kernel; the agent puts it back, `sluice events` says how it went");
  } else if (!observed.hooks_attached) {
    detached = true;
    reply.add_problems(observed.hook_loss + "; the agent attaches it again, `sluice events` says how it went");
  }
  if (!observed.missing_pins.empty()) {
    detached = true;
    reply.add_problems(
        fmt::format("pins of ours are gone: {}; the agent makes them anew", fmt::join(observed.missing_pins, ", ")));
  }
}

}  // namespace

bool within(const std::string& folder, const std::string& other) {
  return folder.starts_with(other) && (folder.size() == other.size() || folder[other.size()] == '/' || other.ends_with('/'));
}

Judgement judge(const HookProgram& program, const AuditedHook& hook) {
  Judgement result;
  ActList acts, overrides;
  const bool after = program.order == HookProgram::Order::kAfter;
  const bool beside_ours = after || program.order == HookProgram::Order::kBefore;
  const auto note = [&](const std::string& act, std::string_view callback, bool overrules) {
    acts.add(act, callback);
    if (overrules) overrides.add(act, callback);
  };
  for (const auto& [op, callback, can] : program.acts) {
    const bool ours_too = std::ranges::find(hook.sets_cca_at, callback) != hook.sets_cca_at.end();
    // Before ours at the same callback, ours has the last word; at another one ours is not asked.
    const bool last_word = beside_ours && (after || !ours_too);
    if (can.sets_cca) {
      note("sets CCA " + names_text(can), callback, last_word);
      if (last_word) {
        result.ccas.insert(can.cca_names.begin(), can.cca_names.end());
        result.any_cca |= can.other_cca;
      }
    }
    if (can.sets_initial_window) note("sets the initial window", callback, last_word);
    const bool answer = !can.replies.empty() || can.other_reply;
    const bool ours_answers = !hook.answers_at.empty() && callback == hook.answers_at;
    if (answer) {
      // Ours writes a yes and never a no: an earlier yes stands where ours says nothing.
      const bool other_than_no = can.other_reply || std::ranges::any_of(can.replies, [](uint32_t reply) { return reply != 0; });
      note("answers " + replies_text(can), callback, ours_answers && beside_ours && (after || other_than_no));
      const bool other_than_yes =
          can.other_reply || std::ranges::any_of(can.replies, [](uint32_t reply) { return reply != 1; });
      result.loses_ecn |= ours_answers && after && other_than_yes;
    }
    if (can.returns_zero && ours_answers) {
      note("can return 0, which voids every program's answer", callback, beside_ours);
      result.loses_ecn |= beside_ours;
    }
    if (!can.unread.empty()) {
      note("cannot be followed: " + can.unread, callback, false);
      result.unknown = true;
    }
  }
  result.acts = acts.take();
  result.overrides = overrides.take();
  return result;
}

Result<v1::AuditReply> audit_report(Engine& engine, bool count_sockets) {
  const auto view = engine.view();
  SLUICE_TRY(observed, engine.kernel().observe());
  SLUICE_TRY(audit, engine.kernel().audit());
  v1::AuditReply reply;
  bool detached = false;
  own_problems(*view, observed, reply, detached);

  SocketJudge sockets(engine, view, observed);
  std::vector<std::vector<Judgement>> judgements;
  for (const auto& hook : audit.hooks) {
    sockets.limit_to(hook.cgroup);
    auto& list = judgements.emplace_back();
    for (const auto& program : hook.list) {
      list.push_back(judge(program, hook_named(hook.hook)));
      if (!list.back().overrides.empty()) sockets.suspect(program, list.back());
    }
  }
  if (count_sockets && view->document && observed.policy_loaded)
    SLUICE_CHECK(engine.kernel().sockets([&](std::vector<SocketReport>&& batch) {
      for (const auto& socket : batch) sockets.look_at(socket);
      return true;
    }));
  sockets.report(reply);

  bool overridden = !reply.overridden().empty();
  for (size_t i = 0; i < audit.hooks.size(); ++i) {
    const HookAudit& hook = audit.hooks[i];
    auto* out = reply.add_hooks();
    out->set_hook(hook.hook);
    out->set_cgroup(hook.cgroup);
    out->set_attached(hook.attached);
    out->set_programs(hook.programs);
    out->set_limit(hook.limit);
    for (size_t j = 0; j < hook.list.size(); ++j) {
      auto program = to_proto(hook.list[j], judgements[i][j], sockets.taken_by(hook.list[j].prog_id));
      if (!judgements[i][j].overrides.empty()) {
        overridden = true;
        reply.add_problems(fmt::format("{} on {} {} after or beside ours: {}; {}", program_text(program), hook.hook,
                                       program.sockets() > 0 ? "acts" : "can act", fmt::join(judgements[i][j].overrides, "; "),
                                       program.holders().empty() ? "`bpftool cgroup show` finds it, and its owner should decide"
                                                                 : "ask its owner, " + program.holders(0)));
      }
      *out->add_list() = std::move(program);
    }
    if (hook.programs >= hook.limit && !hook.attached && view->document)
      reply.add_problems(fmt::format("{} at {} holds {} programs, as many as it takes: detach one that nobody needs", hook.hook,
                                     hook.cgroup, hook.programs));
  }
  for (const auto& item : reply.overridden())
    if (item.prog_ids().empty())
      reply.add_problems(fmt::format("{} socket{} of {} run {} instead of {}; {}", item.sockets(),
                                     item.sockets() == 1 ? "" : "s", item.rule(), item.runs(), item.wanted(), item.cause()));
  for (const auto& cca : audit.ccas) {
    auto* out = reply.add_ccas();
    out->set_name(cca.name);
    out->set_map_id(cca.map_id);
    out->set_link_id(cca.link_id);
    for (const auto& holder : cca.holders) out->add_holders(holder);
  }
  bool repaired = false;
  for (const auto& repair : engine.repairs()) {
    if (repair.found() == 0) continue;
    *reply.add_repairs() = repair;
    if (repair.kind() != kDamageHook && repair.kind() != kDamagePins) continue;
    repaired = true;
    reply.add_problems(fmt::format("found {} time{} since the agent started: {}; find who does it", repair.found(),
                                   repair.found() == 1 ? "" : "s", repair.what()));
  }
  reply.set_verdict(detached          ? "detached"
                    : overridden      ? "overridden"
                    : repaired        ? "repaired"
                    : !view->document ? "idle"
                                      : "clean");
  return reply;
}

void add_agent_checks(Engine& engine, v1::DoctorReply& reply) {
  const auto view = engine.view();
  if (!view->document) return;
  auto* check = reply.add_checks();
  check->set_name("our-hooks");
  check->set_why("what a policy needs to see new connections");
  const auto report = audit_report(engine, false);
  if (!report) {
    check->set_verdict("failed");
    check->set_what(report.error().message());
    return;
  }
  const bool detached = report->verdict() == "detached";
  check->set_verdict(detached ? "failed" : report->problems().empty() ? "ok" : "warning");
  check->set_what(report->problems().empty() ? "attached, and no program of others can overrule ours" : report->problems(0));
  if (!report->problems().empty()) check->set_remedy("`sluice audit` names who it is");
}

}  // namespace sluice::agent
