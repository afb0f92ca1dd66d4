// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// `sluice audit`: from the programs on our hooks and the sockets as they are to who overrules us. Judging is pure;
// audit_report() reads the kernel.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/engine.h"
#include "agent/hook_audit.h"
#include "base/result.h"
#include "wire/agent.pb.h"

namespace sluice::agent {

// What one program's instructions mean for ours.
struct Judgement {
  std::vector<std::string> acts;       // "sets CCA reno (active_established, passive_established)"
  std::vector<std::string> overrides;  // those that overrule ours
  std::set<std::string> ccas;          // that it can leave on a socket against ours
  bool any_cca = false;                // ... and others
  bool loses_ecn = false;              // a NEEDS_ECN that ours answers with yes can become a no
  bool unknown = false;                // part of it could not be followed
};
Judgement judge(const HookProgram& program, const AuditedHook& hook);

// Is the cgroup `folder` the other one, or below it?
bool within(const std::string& folder, const std::string& other);

Result<v1::AuditReply> audit_report(Engine& engine, bool count_sockets);

// What `doctor` says of an agent's own hooks and pins.
void add_agent_checks(Engine& engine, v1::DoctorReply& reply);

}  // namespace sluice::agent
