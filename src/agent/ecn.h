// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What paths do to ECN, for the API: probes them (net/ecn_probe.h), keeps what was found with the place of the destination, and
// tells it again. Thread-safe. A destination is probed once at a time, and only a few at once.
#pragma once

#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "agent/engine.h"
#include "base/result.h"
#include "wire/agent.pb.h"

namespace sluice::agent {

class EcnProbes {
 public:
  explicit EcnProbes(Engine& engine) : engine_(engine) {}

  // In the agent's own network namespace. kConflict while the same destination, or too many others, are being probed.
  Result<v1::EcnProbe> probe(const v1::EcnProbeRequest& request, const Engine::ProgressSink& progress);

 private:
  static constexpr size_t kAtOnce = 8;

  Engine& engine_;
  std::mutex mutex_;
  std::set<std::string> under_way_;  // destinations
};

Result<v1::EcnProbesReply> ecn_report(Engine& engine, const v1::EcnProbesRequest& request);

// The newest probe of the address, or of another of the same place; none of places that are nowhere in particular (unknown,
// external). For `explain`.
Result<std::optional<v1::EcnProbe>> ecn_known(Engine& engine, const std::string& destination, const std::string& place);

}  // namespace sluice::agent
