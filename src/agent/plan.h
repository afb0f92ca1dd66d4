// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// From what is and what should be to the ordered steps between. Pure: no kernel, no store, no clock.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/kernel.h"
#include "agent/store.h"
#include "base/result.h"
#include "policy/compile.h"

namespace sluice::agent {

struct PlanInput {
  const Observed& observed;
  const policy::Compiled& compiled;                         // of the target; its generation is the one to publish
  const std::vector<CcaSpec>& specs;                        // one per bundle of the document
  const std::vector<std::string>& available_ccas;           // names registered in the kernel, anybody's
  const std::map<std::string, std::string>& sysctls;        // name -> value now; of the document's and of the saved ones
  const std::map<std::string, std::string>& saved_sysctls;  // name -> value before our first change
  bool migrate = true;
};

// Steps to make `compiled` the policy in force. Fails, with nothing planned, where the kernel holds the same version with other
// content, or where a foreign CCA has the name.
Result<std::vector<Step>> plan_policy(const PlanInput& input);

// Steps to leave the host as it was. `compiled` sends every connection to a native CCA.
Result<std::vector<Step>> plan_removal(const PlanInput& input);

// Index of the step after which a change is finished rather than undone; nullopt when there is none, because it only takes
// away.
std::optional<size_t> commit_index(const std::vector<Step>& steps);

std::string allocation_to_json(const policy::ParamAllocation& allocation);
Result<policy::ParamAllocation> allocation_from_json(const std::string& text);

}  // namespace sluice::agent
