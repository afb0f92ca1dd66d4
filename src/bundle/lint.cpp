// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The rules of `sluice bundle lint`; docs/reference/bundle.md lists them.
#include "bundle/lint.h"

#include <linux/bpf.h>
#include <sluice/abi/cca.h>

#include <algorithm>
#include <array>
#include <set>

#include "bundle/object.h"

namespace sluice::bundle {
namespace {

constexpr std::uint32_t kTcpCongNeedsEcn = 0x2;  // TCP_CONG_NEEDS_ECN, include/net/tcp.h
constexpr std::int32_t kSolTcp = 6;
constexpr std::int32_t kTcpNodelay = 1;

struct ForbiddenHelper {
  std::uint32_t id;
  std::string_view name;
  std::string_view reason;
};
constexpr std::array<ForbiddenHelper, 8> kForbidden = {{
    {BPF_FUNC_probe_write_user, "bpf_probe_write_user", "it writes into any process's memory and taints the kernel log"},
    {BPF_FUNC_override_return, "bpf_override_return", "it changes what kernel functions return to everybody"},
    {BPF_FUNC_trace_printk, "bpf_trace_printk",
     "it takes a global lock for every packet and prints a warning into the kernel log"},
    {BPF_FUNC_trace_vprintk, "bpf_trace_vprintk",
     "it takes a global lock for every packet and prints a warning into the kernel log"},
    {BPF_FUNC_send_signal, "bpf_send_signal", "in softirq it hits whatever process happens to run"},
    {BPF_FUNC_send_signal_thread, "bpf_send_signal_thread", "in softirq it hits whatever thread happens to run"},
    {BPF_FUNC_sys_bpf, "bpf_sys_bpf", "a bundle must not load or change programs: the agent does"},
    {BPF_FUNC_probe_read_user, "bpf_probe_read_user", "in softirq it reads whatever process happens to run"},
}};

// Native CCAs of Linux: a struct_ops of such a name, loaded by hand, takes the place of the native one or is refused.
constexpr std::array<std::string_view, 18> kNativeCcas = {"reno",       "cubic",     "bbr",   "bic",   "cdg",      "dctcp",
                                                          "dctcp-reno", "highspeed", "htcp",  "hybla", "illinois", "lp",
                                                          "nv",         "scalable",  "vegas", "veno",  "westwood", "yeah"};

constexpr std::array<std::string_view, 6> kGplLicenses = {"GPL",          "GPL v2",       "GPL and additional rights",
                                                          "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL"};

class Linter {
 public:
  Linter(const Manifest& manifest, const std::string& folder) : manifest_(manifest), folder_(folder) {}

  std::vector<Finding> run() {
    manifest_rules();
    for (const std::string& name : manifest_.objects) {
      auto info = read_object(folder_ + "/" + name);
      if (!info) {
        add("object-unreadable", Severity::kError, info.error().where.empty() ? name : info.error().where, info.error().what,
            info.error().remedy.empty() ? "build the bundle" : info.error().remedy);
        continue;
      }
      object_rules(name, *info);
      objects_.push_back(*std::move(info));
    }
    if (!objects_.empty()) bundle_rules();
    return std::move(findings_);
  }

 private:
  const Manifest& manifest_;
  const std::string& folder_;
  std::vector<Finding> findings_;
  std::vector<ObjectInfo> objects_;

  void add(std::string_view rule, Severity severity, std::string where, std::string what, std::string remedy) {
    findings_.push_back({std::string(rule), severity, std::move(where), std::move(what), std::move(remedy)});
  }
  std::string at(yaml::Mark mark) const {
    return mark.line > 0 ? fmt::format("{}:{}:{}", manifest_.source, mark.line, mark.column) : manifest_.source;
  }
  bool has_hook(std::string_view hook) const {
    return std::find(manifest_.hooks.begin(), manifest_.hooks.end(), hook) != manifest_.hooks.end();
  }

  void manifest_rules() {
    if (manifest_.license.empty())
      add("license-missing", Severity::kError, at({}), "bundle.yaml names no licence",
          "add 'license: \"GPL-2.0-only OR BSD-2-Clause\"', or yours");
    if (manifest_.bundle_class == Class::kCca) {
      for (std::string_view hook : {"ssthresh", "undo_cwnd"})
        if (!has_hook(hook))
          add("hook-required", Severity::kError, at(manifest_.hooks_mark),
              fmt::format("the kernel refuses a CCA without {}", hook), "implement it and list it in 'hooks'");
      if (!has_hook("cong_avoid") && !has_hook("cong_control"))
        add("hook-required", Severity::kError, at(manifest_.hooks_mark),
            "the kernel refuses a CCA without cong_avoid or cong_control", "implement one of them and list it in 'hooks'");
      transitions();
    }
    for (const KnownBug& bug : known_bugs()) {
      bool used = has_hook(bug.hook) || std::find(manifest_.kernel_features.begin(), manifest_.kernel_features.end(),
                                                  bug.hook) != manifest_.kernel_features.end();
      if (!used || !bug.affects_any_from(manifest_.kernel_min)) continue;
      if (bug.id == "tx-start-split" && has_hook("cwnd_event_tx_start")) continue;
      std::string kernels =
          bug.fixed.empty() ? fmt::format("Linux {} and newer", bug.since) : fmt::format("Linux before {}", bug.fixed);
      add("known-bug", bug.severity, at(manifest_.hooks_mark), fmt::format("{} ({}): {}", bug.id, kernels, bug.symptom),
          std::string(bug.remedy));
    }
  }

  void transitions() {
    bool anything_enters = false;
    bool leaves = false;
    for (const Transition& transition : manifest_.transitions) {
      for (const CcaSelector* side : {&transition.from, &transition.to})
        if (!side->versions.satisfiable())
          add("transition-unsatisfiable", Severity::kError, at(transition.mark),
              fmt::format("no version can be in '{}'", side->text()), "correct the range");
      bool from_self = transition.from.matches(false, manifest_.name, &manifest_.version);
      bool to_self = transition.to.matches(false, manifest_.name, &manifest_.version);
      if (!from_self && !to_self)
        add("transition-unsatisfiable", Severity::kError, at(transition.mark),
            fmt::format("neither '{}' nor '{}' can be {}", transition.from.text(), transition.to.text(), manifest_.ref()),
            "one side must be this bundle: leave it out, or write \"*\"");
      if (to_self && !transition.from.native && transition.from.name == "*") anything_enters = true;
      if (from_self) leaves = true;
    }
    if (manifest_.transitional && !anything_enters)
      add("transition-unsatisfiable", Severity::kError, at(manifest_.name_mark),
          "a transitional bundle must take connections of any CCA, and no transition says so",
          "add '- {from: \"*\"}' to 'transitions'");
    if (!leaves)
      add("transition-unsatisfiable", Severity::kError, at(manifest_.name_mark),
          "no transition leaves this bundle: its connections could never be moved or rolled back",
          "add '- {to: \"*\"}' to 'transitions'");
  }

  void object_rules(const std::string& name, const ObjectInfo& info) {
    if (info.license.empty())
      add("license-missing", Severity::kError, name, "the object has no licence section",
          "add 'char LICENSE[] SEC(\"license\") = \"Dual BSD/GPL\";'");
    else if (std::find(kGplLicenses.begin(), kGplLicenses.end(), info.license) == kGplLicenses.end())
      add("license-not-gpl", Severity::kError, name,
          fmt::format("the kernel does not take the licence '{}' for GPL-compatible", info.license),
          fmt::format("use one of: {}", fmt::join(kGplLicenses, ", ")));
    if (!info.has_btf)
      add("btf-missing", Severity::kWarning, name,
          "the object has no BTF: hooks, flags and parameters cannot be checked, and the kernel refuses struct_ops",
          "compile with -g");
    for (const HelperCall& call : info.calls) {
      std::string where =
          fmt::format("{}: {}+{:#x}{}", name, call.section, call.offset, call.function.empty() ? "" : " in " + call.function);
      for (const ForbiddenHelper& helper : kForbidden)
        if (helper.id == call.helper)
          add("forbidden-helper", Severity::kError, where, fmt::format("{} is called: {}", helper.name, helper.reason),
              "remove the call; use counters or the logger to see inside a bundle");
      if (manifest_.bundle_class == Class::kCca && call.helper == BPF_FUNC_setsockopt && call.r2 == kSolTcp &&
          call.r3 == kTcpNodelay)
        add("forbidden-helper", Severity::kError, where,
            "bpf_setsockopt(TCP_NODELAY) is called from a CCA: it can enter the same hook again without end",
            "remove the call");
    }
  }

  void bundle_rules() {
    std::set<std::string> maps;
    for (const ObjectInfo& info : objects_) maps.insert(info.maps.begin(), info.maps.end());
    for (const SharedMap& map : manifest_.shared_maps)
      if (maps.count(map.name) == 0)
        add("shared-map-missing", Severity::kError, at(manifest_.name_mark),
            fmt::format("no object has the shared map '{}'", map.name),
            "define it (the SDK's maps.bpf.h does), or take it out of 'shared_maps'");
    bool btf = std::all_of(objects_.begin(), objects_.end(), [](const ObjectInfo& info) { return info.has_btf; });
    if (manifest_.bundle_class == Class::kCca) {
      if (maps.count(SL_NAME_COUNTERS) == 0)
        add("counters-missing", Severity::kError, at(manifest_.name_mark),
            fmt::format("no object has the map '{}'", SL_NAME_COUNTERS),
            "build the CCA on the SDK (cca.bpf.h), which defines it");
      if (btf) cca_struct_ops();
    } else {
      std::set<std::string> functions;
      for (const ObjectInfo& info : objects_) functions.insert(info.functions.begin(), info.functions.end());
      for (const std::vector<std::string>* list : {&manifest_.hooks, &manifest_.stages})
        for (const std::string& program : *list)
          if (functions.count(program) == 0)
            add("hook-missing", Severity::kError, at(manifest_.hooks_mark),
                fmt::format("no object has the program '{}'", program), "implement it, or take it out of bundle.yaml");
    }
    if (btf) parameters();
  }

  void cca_struct_ops() {
    std::vector<const StructOps*> found;
    for (const ObjectInfo& info : objects_)
      for (const StructOps& ops : info.struct_ops)
        if (ops.type.starts_with("tcp_congestion_ops")) found.push_back(&ops);  // also flavours, "tcp_congestion_ops___6_9"
    if (found.empty()) {
      add("struct-ops-missing", Severity::kError, at(manifest_.name_mark),
          "no object has a struct_ops map of tcp_congestion_ops", "define it with the SDK's SL_CCA()");
      return;
    }
    std::set<std::string> implemented;
    for (const StructOps* ops : found) {
      if (!ops->link)
        add("struct-ops-link", Severity::kError, ops->variable,
            "the struct_ops map is not in section .struct_ops.link: it would die with its loader",
            "use SEC(\".struct_ops.link\") (SL_CCA() does)");
      for (const auto& [member, program] : ops->programs) implemented.insert(member);
      bool flag = (ops->flags & kTcpCongNeedsEcn) != 0;
      if (flag != manifest_.needs_ecn())
        add("ecn-contract", Severity::kError, at(manifest_.ecn_mark),
            fmt::format("signals.ecn is '{}', but the flags of {} {} TCP_CONG_NEEDS_ECN",
                        kEcnWords[static_cast<std::size_t>(manifest_.ecn)], ops->variable, flag ? "have" : "lack"),
            flag ? "say 'ecn: requires', or drop the flag" : "set the flag, or say 'ecn: tolerates'");
      if (std::find(kNativeCcas.begin(), kNativeCcas.end(), ops->name) != kNativeCcas.end())
        add("kernel-name", Severity::kError, ops->variable, fmt::format("its name '{}' is that of a native CCA", ops->name),
            fmt::format("leave the name to the agent, which makes it '{}'",
                        kernel_name(manifest_.name, manifest_.version, "")));
    }
    for (const std::string& hook : manifest_.hooks)
      if (implemented.count(hook) == 0)
        add("hook-missing", Severity::kError, at(manifest_.hooks_mark),
            fmt::format("'hooks' lists {}, the object does not implement it", hook), "implement it, or take it out of 'hooks'");
    for (const std::string& hook : implemented)
      if (!has_hook(hook))
        add("hook-undeclared", Severity::kError, at(manifest_.hooks_mark),
            fmt::format("the object implements {}, 'hooks' does not list it", hook), "add it to 'hooks'");
  }

  void parameters() {
    std::map<std::string, Member> live;
    bool have_live = false;
    std::map<std::string, std::uint32_t> rodata;
    for (const ObjectInfo& info : objects_) {
      if (auto it = info.map_values.find(SL_NAME_PARAMS); it != info.map_values.end()) {
        have_live = true;
        for (const Member& member : it->second) live[member.name] = member;
      }
      rodata.insert(info.rodata.begin(), info.rodata.end());
    }
    for (const Parameter& parameter : manifest_.parameters) {
      bool is_live = parameter.when == When::kLive;
      std::uint32_t size = 0;
      if (is_live) {
        if (auto it = live.find(parameter.name); it != live.end()) size = it->second.size;
      } else if (auto it = rodata.find(parameter.name); it != rodata.end()) {
        size = it->second;
      }
      std::string place = is_live ? fmt::format("the value of {}", SL_NAME_PARAMS) : std::string(".rodata");
      if (size == 0)
        add("parameter-missing", Severity::kError, at(parameter.mark),
            fmt::format("parameter '{}' is not in {}", parameter.name, place),
            is_live ? "add a __u64 member of its name to the struct of SL_PARAMS(), or correct bundle.yaml"
                    : "add 'const volatile __u64' of its name to the object, or correct bundle.yaml");
      else if (size != sizeof(std::uint64_t))
        add("parameter-type", Severity::kError, at(parameter.mark),
            fmt::format("parameter '{}' has {} bytes in {}, not 8", parameter.name, size, place), "make it a __u64");
    }
    for (const auto& [name, member] : live)
      if (name != SL_NAME_PARAM_PRESENT &&
          (manifest_.parameter(name) == nullptr || manifest_.parameter(name)->when != When::kLive))
        add("parameter-undeclared", Severity::kError, at(manifest_.name_mark),
            fmt::format("{} has the member '{}', which is no live parameter of bundle.yaml: it would always be 0",
                        SL_NAME_PARAMS, name),
            "declare it in 'parameters' with 'when: live', or remove it");
    if (have_live && live.count(SL_NAME_PARAM_PRESENT) == 0)
      add("parameter-type", Severity::kError, at(manifest_.name_mark),
          fmt::format("the value of {} has no member '{}'", SL_NAME_PARAMS, SL_NAME_PARAM_PRESENT),
          "define it with SL_PARAMS()");
  }
};

}  // namespace

std::vector<Finding> lint(const Manifest& manifest, const std::string& folder) { return Linter(manifest, folder).run(); }

}  // namespace sluice::bundle
