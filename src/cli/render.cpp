// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cli/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "cli/command_table.h"
#include "cli/output.h"

namespace sluice::cli {
namespace {

std::string dash(std::string text) { return text.empty() ? "-" : text; }

std::string section(const Style& style, std::string_view title) {
  return "\n" + style.paint(Colour::kBold, printable(title)) + "\n";
}

// A sentence of ours with text from elsewhere, clean and wrapped on a terminal: "  ! text".
std::string item(const Style& style, std::string_view mark, Colour colour, std::string_view text) {
  const std::string body = wrap(printable(text), style.columns, 4);
  return "  " + style.paint(colour, mark) + " " + (body.size() > 4 ? body.substr(4) : "\n");
}

std::string mean(double value) { return value <= 0 ? "-" : fmt::format("{:.1f}", value); }
std::string mean_us(double value) { return value <= 0 ? "-" : human_us(value); }

Colour state_colour(std::string_view state) {
  if (state == "active" || state == "ok" || state == "info" || state == "clean" || state == "ours" || state == "usable" ||
      state == "intact")
    return Colour::kGreen;
  if (state == "degraded" || state == "failed" || state == "missing" || state == "error" || state == "overrides" ||
      state == "detached" || state == "overridden" || state == "dropped" || state == "cleared" || state == "not-echoed")
    return Colour::kRed;
  if (state == "retiring" || state == "rolled back" || state == "warning" || state == "unknown" || state == "can override" ||
      state == "repaired")
    return Colour::kYellow;
  return Colour::kNone;
}

// How long ago: "5 min".
std::string age_text(std::int64_t time_ns, std::int64_t now_ns) {
  return human_us(std::max(0.0, static_cast<double>(now_ns) - static_cast<double>(time_ns)) / 1e3);
}

// No answer either way.
bool ecn_not_found_out(std::string_view verdict) {
  return verdict == "closed" || verdict == "silent" || verdict == "unreachable" || verdict == "unknown";
}
Colour verdict_colour(std::string_view verdict) {
  return verdict == "usable" ? Colour::kGreen : ecn_not_found_out(verdict) ? Colour::kYellow : Colour::kRed;
}

struct NamedFinding {
  std::string_view name;
  const v1::EcnFinding* finding;
};
std::vector<NamedFinding> ecn_findings(const v1::EcnProbe& probe) {
  return {{"ECT(0)", &probe.ect0()},
          {"ECT(1)", &probe.ect1()},
          {"CE", &probe.ce()},
          {"DSCP", &probe.dscp_kept()},
          {"inbound", &probe.inbound()}};
}

std::string cca_ref(const v1::Cca& cca) { return cca.version().empty() ? cca.name() : cca.name() + "@" + cca.version(); }

std::string socket_text(const v1::Socket& socket) {
  std::string text = socket.local();
  if (!socket.remote().empty() && socket.state() != "listen") text += " -> " + socket.remote();
  text += fmt::format(" ({}{}", socket.state(), socket.cca().empty() ? "" : ", ") + socket.cca();
  if (!socket.netns().empty()) text += ", netns " + socket.netns();
  return text + ")";
}

std::string render_left(const v1::MigrateResult& result, const Style& style) {
  std::string out;
  for (const auto& left : result.left()) {
    std::string text = fmt::format("{} left: {}", plural(left.sockets(), "socket"), left.reason());
    if (left.has_example()) text += "; such as " + socket_text(left.example());
    out += item(style, "!", Colour::kYellow, text);
  }
  if (!result.complete() && result.left().empty())
    out += item(style, "!", Colour::kYellow, "some sockets are left on an old version");
  if (result.without_ecn() != 0)
    out += item(style, "!", Colour::kYellow,
                fmt::format("{} without ECN: the transitional CCA instead of one that needs it",
                            plural(result.without_ecn(), "connection")));
  return out;
}

template <class List>
std::string render_retained(const List& retained, const Style& style) {
  std::string out;
  for (const auto& one : retained) {
    out += item(style, "!", Colour::kYellow, fmt::format("{} stays registered, it is used by", one.cca()));
    for (const auto& user : one.users()) out += wrap(printable(user), style.columns, 6);
  }
  return out;
}

std::string moved_text(const v1::MigrateResult& result) {
  std::string text = fmt::format("{} of {} moved", human_count(result.moved()), plural(result.seen(), "socket"));
  if (result.failed() != 0) text += fmt::format(", {} failed", human_count(result.failed()));
  return text + fmt::format(", in {}, {}", plural(result.namespaces(), "namespace"), human_ms(result.duration_ms()));
}

std::string params_text(const v1::ParameterSet& set) {
  const std::map<std::string, std::uint64_t> sorted(set.values().begin(), set.values().end());
  std::string text;
  for (const auto& [name, value] : sorted) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text;
}

// Where the sockets of one CCA are: "cross_region 80%, intra_dc 20%".
std::string where_text(const std::map<std::string, std::uint64_t>& by_locality) {
  std::uint64_t total = 0;
  std::vector<std::pair<std::uint64_t, std::string>> parts;
  for (const auto& [locality, sockets] : by_locality) {
    total += sockets;
    parts.emplace_back(sockets, locality);
  }
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  std::string text;
  for (const auto& [sockets, locality] : parts)
    if (sockets != 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", locality,
                          human_share(static_cast<double>(sockets), static_cast<double>(total)));
  return text;
}

// The same CCA in both lists of a status: by map id, which tells versions apart; native ones by name.
using CcaKey = std::pair<std::uint32_t, std::string>;
CcaKey cca_key(std::uint32_t map_id, const std::string& kernel_name) { return {map_id, map_id == 0 ? kernel_name : ""}; }

void field(std::string& out, const Style& style, std::string_view name, const std::string& value) {
  if (value.empty()) return;
  constexpr unsigned kIndent = 16;
  const std::string body = wrap(printable(value), style.columns, kIndent);
  out += fmt::format("{:<{}}", name, kIndent) + (body.size() > kIndent ? body.substr(kIndent) : "\n");
}

// Error::message() without what is printed apart.
std::string sentence(Error error) {
  error.where.clear();
  error.remedy.clear();
  return printable(error.message());
}

bool in_file(const Error& error) {
  static const std::regex kPlace(R"(.+:\d+(:\d+)?)");
  return std::regex_match(error.where, kPlace);
}

std::string rest_of_error(const Error& error, bool verbose, const Style& style) {
  std::string out;
  if (!error.remedy.empty()) out += fmt::format("  {} {}\n", style.paint(Colour::kCyan, "fix:"), printable(error.remedy));
  if (error.detail.empty()) return out;
  const auto lines = static_cast<std::uint64_t>(std::count(error.detail.begin(), error.detail.end(), '\n')) +
                     (error.detail.back() == '\n' ? 0 : 1);
  if (!verbose) return out + fmt::format("  detail: {}, shown with --verbose\n", plural(lines, "line"));
  out += "  detail:\n";
  for (std::size_t at = 0; at < error.detail.size();) {
    const std::size_t end = std::min(error.detail.find('\n', at), error.detail.size());
    out += "    " + printable(error.detail.substr(at, end - at)) + "\n";
    at = end + 1;
  }
  return out;
}

std::string compiler_line(const Error& error, bool verbose, const Style& style) {
  return fmt::format("{}{} {}\n", error.where.empty() ? "" : printable(error.where) + ": ", style.paint(Colour::kRed, "error:"),
                     sentence(error)) +
         rest_of_error(error, verbose, style);
}

std::uint64_t count_errors(const Error& error) {
  std::uint64_t count = 1;
  for (const Error& other : error.also) count += count_errors(other);
  return count;
}

void compiler_lines(const Error& error, bool verbose, const Style& style, std::string& out) {
  out += compiler_line(error, verbose, style);
  for (const Error& other : error.also) compiler_lines(other, verbose, style, out);
}

}  // namespace

int status_of(const v1::MigrateResult& result) { return result.complete() ? kOk : kDegraded; }

int status_of(const v1::DoctorReply& reply) {
  return std::any_of(reply.checks().begin(), reply.checks().end(),
                     [](const v1::Check& check) { return check.verdict() == "failed" || check.verdict() == "missing"; })
             ? kDegraded
             : kOk;
}

int status_of(const v1::AuditReply& reply) { return reply.problems().empty() ? kOk : kDegraded; }

int status_of(const v1::EcnProbe& probe) {
  return probe.verdict() == "usable" ? kOk : ecn_not_found_out(probe.verdict()) ? kFailed : kDegraded;
}

std::string render_apply(const v1::ApplyResult& result, const Style& style) {
  std::string out;
  if (result.changed())
    out += fmt::format("{} applied as revision {}, generation {}, in {}\n", style.paint(Colour::kGreen, "policy"),
                       result.revision(), result.generation(), human_ms(result.duration_ms()));
  else
    out += fmt::format("nothing to change: the kernel was already as revision {} says\n", result.revision());
  if (result.has_migration()) {
    if (result.changed() || result.migration().moved() != 0) out += moved_text(result.migration()) + "\n";
    out += render_left(result.migration(), style);
  }
  out += render_retained(result.retained(), style);
  for (const auto& warning : result.warnings()) out += item(style, "!", Colour::kYellow, warning);
  return out;
}

std::string render_migrate(const v1::MigrateResult& result, bool dry_run, const Style& style) {
  if (dry_run) {
    std::string out = fmt::format("{} of {} would move", human_count(result.moved()), plural(result.seen(), "socket"));
    return out + fmt::format(", in {}\n", plural(result.namespaces(), "namespace")) + render_left(result, style);
  }
  return moved_text(result) +
         fmt::format(", {}\n", result.passes() == 1 ? "1 pass" : fmt::format("{} passes", result.passes())) +
         render_left(result, style);
}

std::string render_rollback(const v1::RollbackResult& result, const Style& style) {
  std::string out = fmt::format("{} replaced by {} in {}\n", printable(result.from()), printable(result.to()),
                                human_ms(result.duration_ms()));
  if (result.has_migration()) out += moved_text(result.migration()) + "\n" + render_left(result.migration(), style);
  out += result.retired() ? fmt::format("{} left the kernel\n", printable(result.from()))
                          : item(style, "!", Colour::kYellow, fmt::format("{} is still in the kernel", result.from()));
  return out + render_retained(result.retained(), style);
}

std::string render_down(const v1::DownResult& result, const Style& style) {
  std::string out = fmt::format("down in {}; nothing of this instance is left in the kernel\n", human_ms(result.duration_ms()));
  if (result.has_migration()) {
    if (!result.migration().complete()) out = fmt::format("down in {}, but not completely\n", human_ms(result.duration_ms()));
    out += moved_text(result.migration()) + "\n" + render_left(result.migration(), style);
  }
  for (const auto& sysctl : result.restored()) out += item(style, "-", Colour::kNone, "restored " + sysctl);
  return out;
}

std::string render_diff(const v1::DiffReply& reply, bool verbose, const Style& style) {
  if (reply.changes().empty() && reply.steps().empty()) return "no difference: the kernel is as the document says\n";
  std::string out;
  for (const auto& change : reply.changes()) {
    const char first = change.empty() ? ' ' : change[0];
    const Colour colour = first == '+'   ? Colour::kGreen
                          : first == '-' ? Colour::kRed
                          : first == '~' ? Colour::kYellow
                                         : Colour::kNone;
    out += style.paint(colour, printable(change)) + "\n";
  }
  if (reply.steps().empty()) return out;
  out += fmt::format("{}{}\n", out.empty() ? "" : "\n", style.paint(Colour::kBold, "Apply would"));
  unsigned number = 0;
  for (const auto& step : reply.steps()) {
    out += fmt::format("{:>3}. {}\n", ++number, printable(step.what()));
    if (verbose && !step.inverse().empty()) out += fmt::format("     undone by: {}\n", printable(step.inverse()));
  }
  return out;
}

std::string render_status(const v1::StatusReply& reply, std::int64_t now_ns, bool verbose, const Style& style) {
  const auto& p = printable;
  std::string out =
      fmt::format("sluice {}: {}", p(reply.instance()), style.paint(state_colour(reply.state()), p(reply.state())));
  if (reply.revision() != 0) {
    out += fmt::format(", revision {}", reply.revision());
    if (reply.applied_at_ns() != 0) out += fmt::format(" applied {} ago", age_text(reply.applied_at_ns(), now_ns));
    out += fmt::format(", generation {}", reply.generation());
  }
  out += fmt::format("\nagent {} up {}, Linux {}\n", p(reply.agent_version()), human_ms(static_cast<double>(reply.uptime_ms())),
                     p(reply.kernel()));
  if (reply.revision() != 0)
    out += fmt::format("place {}; {}, {}, {}\n", dash(p(reply.place())), plural(reply.places(), "place"),
                       plural(reply.services(), "service"), plural(reply.rules(), "rule"));
  if (reply.state() == "idle") out += "no policy is in force; `sluice apply FILE` sets one\n";

  if (!reply.problems().empty() || !reply.rolled_back().empty()) out += section(style, "Problems");
  for (const auto& problem : reply.problems()) out += item(style, "!", Colour::kRed, problem);
  for (const auto& version : reply.rolled_back())
    out +=
        item(style, "!", Colour::kYellow,
             fmt::format(
                 "{} was rolled back and stays out of use; mend it, or take it back with `sluice apply --clear-rollbacks FILE`",
                 version));

  std::map<CcaKey, std::map<std::string, std::uint64_t>> localities;
  std::map<CcaKey, std::set<std::uint32_t>> namespaces;
  std::vector<v1::Cca> ccas(reply.ccas().begin(), reply.ccas().end());
  for (const auto& usage : reply.usage()) {
    const CcaKey key = cca_key(usage.map_id(), usage.cca());
    if (!usage.listener()) localities[key][dash(usage.locality())] += usage.sockets();
    namespaces[key].insert(usage.netns_ino());
  }
  double total = 0;
  for (const auto& cca : ccas) total += static_cast<double>(cca.sockets());
  std::stable_sort(ccas.begin(), ccas.end(), [](const v1::Cca& a, const v1::Cca& b) { return a.sockets() > b.sockets(); });
  Table table(style, {{"CCA", false, true},
                      {"VERSION"},
                      {"STATE"},
                      {"SOCKETS", true},
                      {"SHARE", true},
                      {"CWND", true},
                      {"SRTT", true},
                      {"LISTENERS", true},
                      {"NETNS", true},
                      {"WHERE", false, true}});
  for (const auto& cca : ccas) {
    // Only what is used or meant to be used: `cca list` has the rest.
    const bool spare = cca.state() == "available" || cca.state().empty();
    if (spare && cca.sockets() + cca.listeners() == 0 && cca.other_users().empty()) continue;
    const CcaKey key = cca_key(cca.map_id(), cca.kernel_name());
    table.add({cca.name(), dash(cca.version().empty() ? cca.origin() : cca.version()),
               Cell(dash(cca.state()), state_colour(cca.state())), human_count(cca.sockets()),
               human_share(static_cast<double>(cca.sockets()), total), mean(cca.cwnd_mean_segments()),
               mean_us(cca.srtt_mean_us()), human_count(cca.listeners()), std::to_string(namespaces[key].size()),
               where_text(localities[key])});
  }
  if (!table.empty()) out += "\n" + table.flush();

  Table hooks(style, {{"HOOK", false, true}, {"OWNER"}, {"LINK", true}, {"PROGRAM", true}, {"TARGET", false, true}});
  for (const auto& hook : reply.hooks())
    hooks.add({hook.name(), hook.ours() ? Cell("sluice") : Cell("foreign", Colour::kYellow),
               hook.link_id() == 0 ? "-" : std::to_string(hook.link_id()), std::to_string(hook.prog_id()),
               dash(hook.target())});
  if (!hooks.empty()) out += "\n" + hooks.flush();

  if (verbose) {
    Table counters(style, {{"COUNTER"}, {"VALUE", true}});
    for (const auto& counter : reply.counters())
      if (counter.value() != 0) counters.add({counter.name(), human_count(counter.value())});
    if (!counters.empty()) out += "\n" + counters.flush();
  }
  return out;
}

std::string render_explain(const std::string& destination, const v1::ExplainReply& reply, std::int64_t now_ns,
                           const Style& style) {
  std::string out = fmt::format("{} gets {}", printable(destination), style.paint(Colour::kBold, printable(reply.target())));
  if (!reply.cca().empty() && "kernel:" + reply.cca() != reply.target())
    out += fmt::format(", in the kernel {}", printable(reply.cca()));
  out += "\n";
  unsigned number = 0;
  for (const auto& why : reply.why()) {
    const std::string body = wrap(printable(why), style.columns, 5);
    out += fmt::format("{:>3}. {}", ++number, body.size() > 5 ? body.substr(5) : "\n");
  }
  for (const auto& note : reply.notes()) out += item(style, "!", Colour::kYellow, note);
  out += "\n";
  field(out, style, "place", dash(reply.place()));
  field(out, style, "prefix", dash(reply.prefix()));
  field(out, style, "locality", dash(reply.locality()));
  field(out, style, "service", dash(reply.service()));
  field(out, style, "rule", dash(reply.rule()));
  if (reply.has_parameters() && !reply.parameters().values().empty())
    field(out, style, "parameters", fmt::format("{} ({})", params_text(reply.parameters()), reply.parameters().scope()));
  if (reply.has_ecn()) {
    const v1::EcnProbe& probe = reply.ecn();
    field(out, style, "ecn",
          fmt::format("{}: {}; {} port {} was probed {} ago", probe.verdict(), probe.summary(), probe.destination(),
                      probe.port(), age_text(probe.time_ns(), now_ns)));
    for (const auto& [name, finding] : ecn_findings(probe))
      if (finding->fate() != "intact" && finding->fate() != "unknown")
        field(out, style, fmt::format("ecn {}", name), fmt::format("{}: {}", finding->fate(), finding->text()));
  }
  return out;
}

std::string render_ecn_probe(const v1::EcnProbe& probe, const Style& style) {
  std::string out =
      fmt::format("{} port {} from {}: {}\n", printable(probe.destination()), probe.port(), printable(probe.source()),
                  style.paint(verdict_colour(probe.verdict()), printable(probe.verdict())));
  out += wrap(printable(probe.summary()), style.columns);
  Table findings(style, {{"WHAT"}, {"FATE"}, {"EVIDENCE", false, true}});
  for (const auto& [name, finding] : ecn_findings(probe))
    findings.add({std::string(name), Cell(finding->fate(), state_colour(finding->fate())), finding->text()});
  out += "\n" + findings.flush();

  // Hops down, what was sent across: the codepoint as the hop saw it.
  std::map<std::uint32_t, std::map<std::string, const v1::EcnHop*>> hops;
  std::vector<std::string> sent;
  for (const auto& hop : probe.hops()) {
    const std::string key = fmt::format("{} {}", hop.protocol() == "tcp" ? "TCP" : "UDP", printable(hop.sent()));
    if (std::ranges::find(sent, key) == sent.end()) sent.push_back(key);
    hops[hop.hop()][key] = &hop;
  }
  std::ranges::sort(sent);
  std::vector<Column> columns = {{"HOP", true}, {"ROUTER", false, true}};
  for (const auto& key : sent) columns.push_back({key});
  columns.push_back({"DSCP", true});
  Table path(style, std::move(columns));
  for (const auto& [number, seen] : hops) {
    const v1::EcnHop& any = *seen.begin()->second;
    std::vector<Cell> row = {std::to_string(number), any.router()};
    for (const auto& key : sent) {
      const auto found = seen.find(key);
      if (found == seen.end())
        row.emplace_back("-");
      else
        row.emplace_back(found->second->seen(), found->second->seen() == found->second->sent() ? Colour::kNone : Colour::kRed);
    }
    row.emplace_back(std::to_string(any.dscp()), any.dscp() == probe.dscp() ? Colour::kNone : Colour::kRed);
    path.add(std::move(row));
  }
  if (!path.empty()) out += "\n" + path.flush();

  out += fmt::format("\n{} packets in {}", probe.packets_sent(), human_ms(probe.duration_ms()));
  if (probe.rtt_us() != 0) out += fmt::format(", rtt {}", human_us(probe.rtt_us()));
  if (probe.hops_to_peer() != 0) out += fmt::format(", {}", plural(probe.hops_to_peer(), "hop"));
  if (!probe.place().empty()) out += fmt::format(", place {}", printable(probe.place()));
  if (probe.out_of_time()) out += "; the time ran out, so it is not complete";
  return out + "\n";
}

std::string render_ecn_probes(const v1::EcnProbesReply& reply, std::int64_t now_ns, const Style& style) {
  Table table(style, {{"DESTINATION", false, true},
                      {"PORT", true},
                      {"DSCP", true},
                      {"PLACE", false, true},
                      {"VERDICT"},
                      {"ECT(0)"},
                      {"ECT(1)"},
                      {"CE"},
                      {"DSCP KEPT"},
                      {"RTT", true},
                      {"AGE", true}});
  for (const auto& probe : reply.probes()) {
    const auto fate = [](const v1::EcnFinding& finding) { return Cell(finding.fate(), state_colour(finding.fate())); };
    table.add({probe.destination(), std::to_string(probe.port()), std::to_string(probe.dscp()), dash(probe.place()),
               Cell(probe.verdict(), verdict_colour(probe.verdict())), fate(probe.ect0()), fate(probe.ect1()), fate(probe.ce()),
               fate(probe.dscp_kept()), probe.rtt_us() == 0 ? "-" : human_us(probe.rtt_us()),
               age_text(probe.time_ns(), now_ns)});
  }
  return table.flush();
}

std::string render_ccas(const v1::CcasReply& reply, const Style& style) {
  Table table(style, {{"NAME", false, true},
                      {"VERSION"},
                      {"KERNEL NAME"},
                      {"MAP", true},
                      {"ORIGIN"},
                      {"STATE"},
                      {"ECN"},
                      {"SOCKETS", true},
                      {"LISTENERS", true},
                      {"OTHER USERS", true}});
  for (const auto& cca : reply.ccas())
    table.add({cca.name() + (cca.transitional() ? " (transitional)" : ""), dash(cca.version()), dash(cca.kernel_name()),
               cca.map_id() == 0 ? "-" : std::to_string(cca.map_id()), cca.origin(),
               Cell(dash(cca.state()), state_colour(cca.state())), dash(cca.ecn()), human_count(cca.sockets()),
               human_count(cca.listeners()), std::to_string(cca.other_users_size())});
  return table.empty() ? "no CCA\n" : table.flush();
}

std::string render_cca(const v1::Cca& cca, const Style& style) {
  std::string out = style.paint(Colour::kBold, printable(cca_ref(cca))) + "\n";
  field(out, style, "state", cca.state() + (cca.transitional() ? ", transitional" : ""));
  field(out, style, "origin", cca.origin());
  field(out, style, "kernel name", cca.kernel_name());
  field(out, style, "map id", cca.map_id() == 0 ? "" : std::to_string(cca.map_id()));
  field(out, style, "ecn", cca.ecn());
  field(out, style, "sockets", fmt::format("{}, {}", human_count(cca.sockets()), plural(cca.listeners(), "listener")));
  if (cca.cwnd_mean_segments() > 0) field(out, style, "mean cwnd", fmt::format("{:.1f} segments", cca.cwnd_mean_segments()));
  if (cca.srtt_mean_us() > 0) field(out, style, "mean srtt", human_us(cca.srtt_mean_us()));
  if (cca.memory_bytes() != 0) field(out, style, "memory", human_bytes(cca.memory_bytes()));
  field(out, style, "digest", cca.digest());
  for (const auto& user : cca.other_users()) field(out, style, "used by", user);
  for (const auto& program : cca.programs()) field(out, style, "program", program);
  for (const auto& set : cca.parameter_sets())
    field(out, style, "parameters", fmt::format("{}: {}", set.scope(), dash(params_text(set))));
  for (const auto& counter : cca.counters())
    if (counter.value() != 0) field(out, style, "counter", fmt::format("{} {}", counter.name(), human_count(counter.value())));
  return out;
}

std::string render_doctor(const v1::DoctorReply& reply, const Style& style) {
  std::string out = fmt::format("Linux {}\n\n", printable(reply.kernel()));
  Table table(style, {{"CHECK"}, {"VERDICT"}, {"FOUND", false, true}});
  std::uint64_t bad = 0;
  for (const auto& check : reply.checks()) {
    table.add({check.name(), Cell(check.verdict(), state_colour(check.verdict())), check.what()});
    if (check.verdict() != "ok") ++bad;
  }
  out += table.flush();
  if (bad == 0) return out + "\neverything is as it should be\n";
  out += section(style, "To mend");
  for (const auto& check : reply.checks()) {
    if (check.verdict() == "ok") continue;
    std::string text = fmt::format("{}: {}", check.name(), check.what());
    if (!check.why().empty()) text += fmt::format(" ({})", check.why());
    if (!check.min_kernel().empty()) text += fmt::format("; Linux {} or newer has it", check.min_kernel());
    out += item(style, "!", state_colour(check.verdict()), text);
    if (!check.remedy().empty()) out += "    " + style.paint(Colour::kCyan, "fix:") + " " + printable(check.remedy()) + "\n";
  }
  return out;
}

std::string render_audit(const v1::AuditReply& reply, bool verbose, const Style& style) {
  const auto joined = [](const auto& list) {
    std::string text;
    for (const auto& one : list) text += (text.empty() ? "" : ", ") + one;
    return text;
  };
  const auto id_text = [](std::uint32_t id) { return id == 0 ? std::string("-") : std::to_string(id); };
  std::string out = style.paint(state_colour(reply.verdict()), printable(reply.verdict())) + "\n";
  if (!reply.problems().empty()) out += section(style, "Problems");
  for (const auto& problem : reply.problems()) out += item(style, "!", Colour::kRed, problem);

  for (const auto& hook : reply.hooks()) {
    out += section(style, fmt::format("{} at {}: {}, {} of {} programs", hook.hook(), hook.cgroup(),
                                      hook.attached() ? "attached" : "not attached", hook.programs(), hook.limit()));
    Table table(style, {{"ORDER"},
                        {"PROGRAM", false, true},
                        {"ID", true},
                        {"LINK", true},
                        {"VERDICT"},
                        {"SOCKETS", true},
                        {"CGROUP", false, true},
                        {"HELD BY", false, true},
                        {"CAN", false, true}});
    for (const auto& program : hook.list())
      table.add({program.order(), program.name(), std::to_string(program.prog_id()), id_text(program.link_id()),
                 Cell(program.verdict(), state_colour(program.verdict())),
                 program.sockets() == 0 ? "-" : human_count(program.sockets()), dash(program.cgroup()),
                 dash(joined(program.holders())), dash(joined(program.acts()))});
    out += table.empty() ? "no program\n" : table.flush();
    for (const auto& program : hook.list()) {
      if (!verbose) break;
      out += "\n";
      field(out, style, "program", fmt::format("{} (id {}), tag {}", program.name(), program.prog_id(), program.tag()));
      field(out, style, "loaded", fmt::format("{} by uid {}", utc_time(program.loaded_at_ns()), program.uid()));
      field(out, style, "attached",
            fmt::format("to {}, {}, {}", dash(program.cgroup()),
                        program.link_id() == 0 ? "without a link" : fmt::format("link {}", program.link_id()),
                        program.attach_mode()));
      for (const auto& holder : program.holders()) field(out, style, "held by", holder);
      for (const auto& act : program.acts()) field(out, style, "can", act);
      for (const auto& act : program.overrides()) field(out, style, "overrules", act);
    }
  }

  Table overridden(style, {{"SOCKETS", true}, {"RULE", false, true}, {"WANTED"}, {"RUNS"}, {"BY", false, true}});
  for (const auto& group : reply.overridden())
    overridden.add({human_count(group.sockets()), dash(group.rule()), group.wanted(),
                    group.kind() == "ecn" ? group.runs() + " (no ECN)" : group.runs(), group.cause()});
  if (!overridden.empty()) out += section(style, "Overridden sockets") + overridden.flush();
  Table ccas(style, {{"NAME"}, {"MAP", true}, {"LINK", true}, {"HELD BY", false, true}});
  for (const auto& cca : reply.ccas())
    ccas.add({cca.name(), std::to_string(cca.map_id()), id_text(cca.link_id()), dash(joined(cca.holders()))});
  if (!ccas.empty()) out += section(style, "CCAs of others") + ccas.flush();
  Table repairs(style, {{"DAMAGE"}, {"FOUND", true}, {"LAST"}, {"WHAT", false, true}});
  for (const auto& repair : reply.repairs())
    repairs.add({repair.kind(), human_count(repair.found()), utc_time(repair.last_at_ns()), repair.what()});
  if (!repairs.empty()) out += section(style, "Found damaged since the agent started") + repairs.flush();
  return out;
}

std::string render_event(const v1::Event& event, const Style& style) {
  return fmt::format("{}  {:>5}  {}  {:<12}  {}\n", utc_time(event.time_ns()), event.id(),
                     style.paint(state_colour(event.severity()), fmt::format("{:<7}", printable(event.severity()))),
                     printable(event.kind()), printable(event.message()));
}

Table socket_table(const Style& style) {
  return Table(style, {{"STATE"},
                       {"LOCAL", false, true},
                       {"REMOTE", false, true},
                       {"CCA"},
                       {"VERSION", false, true},
                       {"LOCALITY"},
                       {"SERVICE", false, true},
                       {"RULE", false, true},
                       {"ECN"},
                       {"CWND", true},
                       {"SRTT", true},
                       {"RETR", true},
                       {"NETNS", false, true},
                       {"NOTE", false, true}});
}

std::vector<Cell> socket_row(const v1::Socket& socket) {
  const bool listener = socket.state() == "listen";
  return {socket.state(),
          socket.local(),
          listener ? "-" : dash(socket.remote()),
          Cell(dash(socket.cca()), socket.current() ? Colour::kNone : Colour::kYellow),
          dash(socket.version()),
          dash(socket.locality()),
          dash(socket.service()),
          dash(socket.rule()),
          dash(socket.ecn()),
          listener ? "-" : std::to_string(socket.cwnd_segments()),
          listener || socket.srtt_us() == 0 ? "-" : human_us(socket.srtt_us()),
          std::to_string(socket.retransmits()),
          socket.netns().empty() ? std::to_string(socket.netns_ino()) : socket.netns(),
          socket.outcome()};
}

Table ecn_table(const Style& style) {
  return Table(style, {{"STATE"},
                       {"LOCAL", false, true},
                       {"REMOTE", false, true},
                       {"CCA"},
                       {"VERSION", false, true},
                       {"RULE", false, true},
                       {"ECN"},
                       {"SENDS"},
                       {"ECHOED"},
                       {"NETNS", false, true}});
}

std::vector<Cell> ecn_row(const v1::Socket& socket) {
  const bool blind = socket.ecn() == "blind";
  return {socket.state(),
          socket.local(),
          socket.state() == "listen" ? "-" : dash(socket.remote()),
          dash(socket.cca()),
          dash(socket.version()),
          dash(socket.rule()),
          Cell(dash(socket.ecn()), blind                       ? Colour::kRed
                                   : socket.ecn() == "refused" ? Colour::kYellow
                                                               : Colour::kNone),
          socket.sends_ect() ? "ECT" : "-",
          socket.ecn_echoed() ? "yes" : "-",
          socket.netns().empty() ? std::to_string(socket.netns_ino()) : socket.netns()};
}

void SocketCount::add(const v1::Socket& socket) {
  std::string label;
  if (by_ == "cca")
    label = dash(socket.cca());
  else if (by_ == "version")
    label = socket.version().empty() ? "kernel:" + socket.cca() : socket.version();
  else if (by_ == "locality")
    label = dash(socket.locality());
  else
    label = socket.netns().empty() ? std::to_string(socket.netns_ino()) : socket.netns();
  // Versions are told apart by map id, namespaces by inode: names may be shared.
  const std::string key = by_ == "version" ? fmt::format("{} {}", label, socket.map_id())
                          : by_ == "netns" ? std::to_string(socket.netns_ino())
                                           : label;
  Group& group = groups_[key];
  if (group.usage.sockets() + group.listeners == 0) {
    group.label = label;
    if (by_ == "cca" || by_ == "version") group.usage.set_cca(socket.cca());
    if (by_ == "version") {
      group.usage.set_version(socket.version());
      group.usage.set_map_id(socket.map_id());
    }
    if (by_ == "locality") group.usage.set_locality(socket.locality());
    if (by_ == "netns") group.usage.set_netns_ino(socket.netns_ino());
  }
  if (socket.state() == "listen") {
    ++group.listeners;
    return;
  }
  group.usage.set_sockets(group.usage.sockets() + 1);
  group.usage.set_retransmits(group.usage.retransmits() + socket.retransmits());
  group.cwnd_sum += socket.cwnd_segments();
  group.srtt_sum += socket.srtt_us();
  group.usage.set_cwnd_mean_segments(group.cwnd_sum / static_cast<double>(group.usage.sockets()));
  group.usage.set_srtt_mean_us(group.srtt_sum / static_cast<double>(group.usage.sockets()));
}

std::vector<const SocketCount::Group*> SocketCount::sorted() const {
  std::vector<const Group*> groups;
  for (const auto& [key, group] : groups_) groups.push_back(&group);
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group* a, const Group* b) { return a->usage.sockets() > b->usage.sockets(); });
  return groups;
}

std::vector<v1::Usage> SocketCount::rows() const {
  std::vector<v1::Usage> rows;
  for (const Group* group : sorted()) {
    if (group->usage.sockets() != 0) rows.push_back(group->usage);
    if (group->listeners == 0) continue;
    v1::Usage listeners = group->usage;
    listeners.set_listener(true);
    listeners.set_sockets(group->listeners);
    listeners.clear_retransmits();
    listeners.clear_cwnd_mean_segments();
    listeners.clear_srtt_mean_us();
    rows.push_back(listeners);
  }
  return rows;
}

std::string SocketCount::table(const Style& style) const {
  std::string title = by_;
  for (char& c : title) c = static_cast<char>(c - 'a' + 'A');
  double total = 0;
  for (const auto& [key, group] : groups_) total += static_cast<double>(group.usage.sockets());
  Table table(style, {{title, false, true},
                      {"SOCKETS", true},
                      {"SHARE", true},
                      {"CWND", true},
                      {"SRTT", true},
                      {"RETR", true},
                      {"LISTENERS", true}});
  for (const Group* group : sorted())
    table.add({group->label, human_count(group->usage.sockets()),
               human_share(static_cast<double>(group->usage.sockets()), total), mean(group->usage.cwnd_mean_segments()),
               mean_us(group->usage.srtt_mean_us()), human_count(group->usage.retransmits()), human_count(group->listeners)});
  return table.empty() ? "no sockets\n" : table.flush();
}

std::string SocketCount::json() const {
  std::string list;
  for (const v1::Usage& row : rows()) list += (list.empty() ? "" : ",") + to_json(row, false);
  return fmt::format("{{\"by\":\"{}\",\"usage\":[{}]}}", by_, list);
}

std::string render_error(const Error& error, bool verbose, const Style& style) {
  std::string out;
  if (in_file(error) || !error.also.empty()) {
    compiler_lines(error, verbose, style, out);
    return out + fmt::format("sluice: {}\n", plural(count_errors(error), "error"));
  }
  out = fmt::format("{} {}{}\n", style.paint(Colour::kRed, "sluice:"), error.where.empty() ? "" : printable(error.where) + ": ",
                    sentence(error));
  return out + rest_of_error(error, verbose, style);
}

}  // namespace sluice::cli
