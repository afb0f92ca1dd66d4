// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/doctor.h"

#include <fcntl.h>

#include "base/file.h"
#include "base/mounts.h"
#include "base/strings.h"
#include "bpfio/enumerate.h"
#include "bpfio/hook_programs.h"
#include "bpfio/probe.h"
#include "bundle/known_bugs.h"
#include "net/cgroup.h"

namespace sluice::agent {
namespace {

void add(v1::DoctorReply& reply, std::string name, std::string verdict, std::string what, std::string why = {},
         std::string remedy = {}, std::string min_kernel = {}) {
  auto* check = reply.add_checks();
  check->set_name(std::move(name));
  check->set_verdict(std::move(verdict));
  check->set_what(std::move(what));
  check->set_why(std::move(why));
  check->set_remedy(std::move(remedy));
  check->set_min_kernel(std::move(min_kernel));
}

void add_features(v1::DoctorReply& reply, const DoctorOptions& options) {
  for (const auto& result : bpfio::probe_all({options.proc_root, options.sys_root})) {
    const bpfio::Feature& feature = *result.feature;
    const bool kernel = feature.kind == bpfio::FeatureKind::kKernel;
    const char* verdict = "ok";
    // Done without: sockets are found through their holders, the CCA SDK knows both signatures of cong_control, and only `ecn
    // probe` sends raw packets.
    const bool optional = feature.id == bpfio::FeatureId::kIterSkStorage || feature.id == bpfio::FeatureId::kCongControl4 ||
                          feature.id == bpfio::FeatureId::kCapNetRaw;
    if (result.presence == bpfio::Presence::kAbsent) verdict = optional ? "warning" : "missing";
    if (result.presence == bpfio::Presence::kUnknown) verdict = "unknown";
    std::string what = result.reason;
    if (result.contradicts_version) what += "; the kernel is new enough, so it was left out of its configuration";
    add(reply, std::string(feature.name), verdict, std::move(what), std::string(feature.how),
        result.presence == bpfio::Presence::kPresent ? "" : std::string(feature.remedy),
        kernel ? feature.min_kernel.text() : "");
  }
}

void add_cgroup(v1::DoctorReply& reply, const DoctorOptions& options) {
  const auto mounts = read_mounts(options.proc_root);
  if (!mounts) return add(reply, "cgroup-layout", "failed", mounts.error().message());
  const CgroupMounts layout = cgroup_mounts(*mounts);
  const std::string mode(to_string(layout.mode));
  if (layout.cgroup2.empty())
    return add(reply, "cgroup-layout", "missing", "cgroups are " + mode + ", cgroup2 is not mounted",
               "sockops programs attach to cgroup2", "mount -t cgroup2 none /sys/fs/cgroup/unified");
  add(reply, "cgroup-layout", "ok", mode + ", cgroup2 at " + layout.cgroup2, "sockops programs attach to its root");

  const auto folder = open_file(layout.cgroup2, O_RDONLY | O_DIRECTORY);
  if (!folder) return add(reply, "sockops-programs", "failed", folder.error().message());
  const auto programs = bpfio::cgroup_programs(folder->get(), bpfio::CgroupHook::kSockOps, false);
  if (!programs) return add(reply, "sockops-programs", "failed", programs.error().message());
  if (programs->empty())
    return add(reply, "sockops-programs", "ok", "none on the root cgroup", "programs of others may overrule what ours decided");
  std::string names;
  for (const auto& program : *programs)
    names += fmt::format("{}{} (id {})", names.empty() ? "" : ", ", program.name, program.prog_id);
  const bool full = programs->size() >= bpfio::kCgroupProgramsMax;
  add(reply, "sockops-programs", full ? "warning" : "ok",
      fmt::format("{} of {} possible on the root cgroup, in this order: {}", programs->size(), bpfio::kCgroupProgramsMax,
                  names),
      "programs of others may overrule what ours decided (`sluice audit`); a full hook takes no more",
      full ? "detach one that nobody needs, or attach ours elsewhere with --cgroup" : "");
}

void add_ccas(v1::DoctorReply& reply, const DoctorOptions& options) {
  const auto available = bpfio::available_ccas(options.proc_root);
  if (!available) return add(reply, "native-ccas", "failed", available.error().message());
  std::string names;
  for (const auto& name : *available) names += (names.empty() ? "" : " ") + name;
  add(reply, "native-ccas", "ok", names, "targets of the form kernel:NAME; a module that is not loaded cannot be selected",
      "modprobe tcp_NAME for others");
}

void add_known_bugs(v1::DoctorReply& reply) {
  const auto version = parse_kernel_version(reply.kernel());
  if (!version) return add(reply, "known-bugs", "unknown", fmt::format("'{}' is not a kernel version", reply.kernel()));
  const auto bugs = bundle::known_bugs_of(*version);
  if (bugs.empty()) return add(reply, "known-bugs", "ok", "none recorded for this kernel");
  for (const auto* bug : bugs)
    add(reply, "known-bug " + std::string(bug->id), "warning", std::string(bug->symptom), std::string(bug->hook),
        std::string(bug->remedy), std::string(bug->fixed));
}

}  // namespace

v1::DoctorReply doctor_report(const DoctorOptions& options) {
  v1::DoctorReply reply;
  if (const auto release = read_file(options.proc_root + "/sys/kernel/osrelease"))
    reply.set_kernel(std::string(trim(*release)));
  add_features(reply, options);
  add_cgroup(reply, options);
  add_ccas(reply, options);
  add_known_bugs(reply);
  return reply;
}

}  // namespace sluice::agent
