// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What each command does; called through the command table.
#pragma once

#include "base/result.h"

namespace sluice::cli {

class Session;

// commands.cpp: those that ask the agent.
Result<int> run_up(Session& session);
Result<int> run_apply(Session& session);
Result<int> run_diff(Session& session);
Result<int> run_status(Session& session);
Result<int> run_explain(Session& session);
Result<int> run_sockets(Session& session);
Result<int> run_cca_list(Session& session);
Result<int> run_cca_show(Session& session);
Result<int> run_migrate(Session& session);
Result<int> run_rollback(Session& session);
Result<int> run_doctor(Session& session);
Result<int> run_audit(Session& session);
Result<int> run_events(Session& session);
Result<int> run_ecn_probe(Session& session);
Result<int> run_ecn_list(Session& session);
Result<int> run_down(Session& session);

// commands_local.cpp: those that need no agent.
Result<int> run_bundle_lint(Session& session);
Result<int> run_bundle_show(Session& session);
Result<int> run_bundle_list(Session& session);
Result<int> run_bundle_pack(Session& session);
Result<int> run_bundle_unpack(Session& session);
Result<int> run_completion(Session& session);
Result<int> run_version(Session& session);

}  // namespace sluice::cli
