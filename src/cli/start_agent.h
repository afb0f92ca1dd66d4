// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// `sluice up`: an agent where none answers.
#pragma once

#include "base/result.h"
#include "cli/session.h"

namespace sluice::cli {

// Returns once the agent's socket accepts. Through systemd where it runs and has our unit, otherwise as a process of its own.
// An agent that ends while it starts is an error with the end of its log in `detail`.
Status ensure_agent(Session& session);

}  // namespace sluice::cli
