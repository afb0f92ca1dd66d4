// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Programs of anybody on a cgroup hook: what each can do at which callback, tail calls followed.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "bpfio/acts.h"
#include "bpfio/link.h"
#include "bpfio/program.h"

namespace sluice::bpfio {

// A hook takes so many programs of one cgroup: BPF_CGROUP_MAX_PROGS, a constant of the kernel that it does not tell.
inline constexpr std::uint32_t kCgroupProgramsMax = 64;

// Loads a small program that does what read_acts() looks for, and reads how the kernel rewrote it: there is no other way to
// know without its symbols.
Result<HookShape> hook_shape(CgroupHook hook);

struct CallbackActs {
  std::uint32_t op = 0;   // BPF_SOCK_OPS_...; 0 for a hook without callbacks
  std::string_view name;  // "active_established"; empty for a hook without callbacks
  Acts acts;
};
// Only callbacks at which it can do something.
Result<std::vector<CallbackActs>> acts_of(const Program& program, CgroupHook hook, const HookShape& shape);

}  // namespace sluice::bpfio
