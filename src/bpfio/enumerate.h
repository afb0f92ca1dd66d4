// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What BPF objects the kernel holds, ours and others': for observe, status, doctor and audit. Objects that vanish during the
// walk are left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "bpfio/link.h"
#include "bpfio/map.h"
#include "bpfio/program.h"

namespace sluice::bpfio {

Result<std::vector<MapInfo>> all_maps();
Result<std::vector<ProgramInfo>> all_programs();
Result<std::vector<LinkInfo>> all_links();

// A tcp_congestion_ops in the kernel. Its identity is map_id: names can be reused.
struct StructOpsCca {
  std::uint32_t map_id = 0;
  std::string map_name;
  std::string cca_name;       // what TCP_CONGESTION shows
  bool registered = false;    // false: loaded, not (or no longer) selectable
  std::uint32_t link_id = 0;  // 0 = none
  // The kernel's estimate of references beyond descriptors: sockets, its own registration, links and pins of them.
  std::uint32_t references = 0;
};
Result<std::vector<StructOpsCca>> struct_ops_ccas();

struct CgroupProgram {
  std::uint32_t prog_id = 0;
  std::string name;
  std::uint32_t attach_flags = 0;  // BPF_F_ALLOW_MULTI, ...; 0 with `effective`
};
// In the order in which they run. `effective`: with those inherited from ancestors. kUnsupported without cgroup BPF.
Result<std::vector<CgroupProgram>> cgroup_programs(int cgroup_fd, CgroupHook hook, bool effective);

// "multi", "override" (a cgroup below may overrule it), "exclusive". Where a program asked to run (BPF_F_PREORDER,
// BPF_F_BEFORE) the kernel does not tell: the effective order does.
std::string_view attach_mode(std::uint32_t flags);

// Algorithms that this namespace may select: net.ipv4.tcp_available_congestion_control (the kernel cuts the list near 128).
Result<std::vector<std::string>> available_ccas(const std::string& proc_root = "/proc");

}  // namespace sluice::bpfio
