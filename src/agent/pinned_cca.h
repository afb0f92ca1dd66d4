// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// CCAs in the kernel, as pins below cca/NAME/VERSION/ (dots of the version as underscores: bpffs reserves dots):
//
//   ops              the struct_ops map: its id is the version's identity
//   link             its registration
//   params, counters
//   ready/DIGEST     pinned last, removed first
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/kernel.h"
#include "agent/pinned_policy.h"
#include "base/result.h"
#include "bpfio/pin.h"

namespace sluice::agent {

class PinnedCcas {
 public:
  PinnedCcas(const bpfio::PinRoot& pins, PinnedPolicy& policy, std::string log_dir)
      : pins_(pins), policy_(policy), log_dir_(std::move(log_dir)) {}

  Result<std::vector<LoadedCca>> list() const;
  // Folders whose load was cut short: "NAME@VERSION".
  Result<std::vector<std::string>> debris() const;

  Result<uint32_t> load(const CcaSpec& spec);
  Status retire(const std::string& id);
  Status write_params(const std::string& id, uint32_t index, const std::map<std::string, uint64_t>& values);
  Result<std::map<uint32_t, std::map<std::string, uint64_t>>> read_params(const std::string& id) const;
  Result<std::vector<std::pair<std::string, uint64_t>>> counters(const std::string& id) const;
  Result<std::vector<std::string>> programs(const std::string& id) const;

 private:
  Result<std::map<std::string, std::vector<std::string>>> folders() const;  // id -> pins below it

  const bpfio::PinRoot& pins_;
  PinnedPolicy& policy_;
  std::string log_dir_;
};

}  // namespace sluice::agent
