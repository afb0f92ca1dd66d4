// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The Prometheus endpoint. Values are read from the kernel at each scrape, at most every kFreshMs: a walk over the sockets
// costs 0.5 us each.
#pragma once

#include <prometheus/metric_family.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/engine.h"
#include "base/result.h"

namespace sluice::agent {

// What a scrape shows of a status.
std::vector<prometheus::MetricFamily> metric_families(const v1::StatusReply& status);

class Metrics {
 public:
  static constexpr uint64_t kFreshMs = 5'000;

  // `address`: HOST:PORT.
  static Result<std::unique_ptr<Metrics>> start(Engine& engine, const std::string& address);
  ~Metrics();

 private:
  class Impl;
  explicit Metrics(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::agent
