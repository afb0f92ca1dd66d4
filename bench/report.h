// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What a benchmark measured: as JSON (schema sluice.bench/1) and as a table that shows missed goals in plain sight.
#pragma once

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::bench {

struct Goal {
  std::string of = "value";  // or "ratio"
  std::string op;            // "<=", ">=", "==", "in"
  double value = 0;
  double upper = 0;  // of "in": at least `value` and at most this
};

// Another figure of the same run that the value is set against.
struct Baseline {
  std::string id;
  double value = 0;
};

struct Measurement {
  std::string id;
  nlohmann::ordered_json params = nlohmann::ordered_json::object();
  std::optional<double> value = {};  // none: it could not be measured, and `note` says why
  std::string unit = {};
  std::vector<double> samples = {};
  std::optional<Baseline> baseline = {};
  std::optional<Goal> goal = {};
  std::string note = {};  // what a reader has to know to trust the value; empty = nothing

  std::optional<double> ratio() const;
  std::optional<bool> met() const;  // none without a goal
};

class Report {
 public:
  explicit Report(std::string bench) : bench_(std::move(bench)) {}
  void add(Measurement measurement);
  const std::vector<Measurement>& results() const { return results_; }
  // Something was not measured at all.
  bool incomplete() const;
  Status write_json(const std::string& path) const;
  void print_table(std::FILE* out) const;

 private:
  nlohmann::ordered_json to_json() const;
  std::string bench_;
  std::vector<Measurement> results_;
};

double quantile(std::vector<double> values, double q);  // of at least one value
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace sluice::bench
