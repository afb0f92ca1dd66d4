// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Everybody's programs on the cgroup hooks that we use: at our cgroup, above it and below it, in the order in which the kernel
// runs them. Reads only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "agent/kernel.h"
#include "base/result.h"
#include "bpfio/holders.h"
#include "bpfio/link.h"

namespace sluice::agent {

// A hook of ours, and what our program does there: a foreign program that does the same can only overrule it by running later.
struct AuditedHook {
  bpfio::CgroupHook hook;
  std::string_view name;
  std::span<const std::string_view> sets_cca_at;  // callbacks
  std::string_view answers_at;                    // callback whose `reply` is ours; empty = none
};
inline constexpr std::string_view kSockOpsSetsCcaAt[] = {"connect", "active_established", "passive_established", "listen"};
inline constexpr AuditedHook kAuditedHooks[] = {
    {bpfio::CgroupHook::kSockOps, "sockops", kSockOpsSetsCcaAt, "needs_ecn"},
    {bpfio::CgroupHook::kSetSockOpt, "setsockopt", {}, ""},
};

struct AuditedCgroup {
  std::string cgroup2;                     // the mount
  std::string folder;                      // where our program is attached, or should be
  uint32_t own_link = 0, own_program = 0;  // 0 = not attached
};
Result<HookAudit> audit_hook(const AuditedHook& hook, const AuditedCgroup& where, const bpfio::Holders& holders);

}  // namespace sluice::agent
