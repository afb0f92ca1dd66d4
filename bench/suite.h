// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What every benchmark program does: options, its measurements one after the other, the table and the JSON. A measurement adds
// to the report what it measured; an error means that it measured nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent.h"
#include "base/result.h"
#include "report.h"

namespace sluice::bench {

struct Run {
  const Workspace& workspace;
  bool quick;
  std::uint64_t seed;
  Report& report;

  template <class T>
  T size(T full, T small) const {
    return quick ? small : full;
  }
};

struct Entry {
  std::vector<std::string> ids;
  std::string unit;
  Status (*measure)(Run&);
};

struct Suite {
  std::string name;         // "host": the program is bench_host
  std::string description;  // for --help
  std::string seed_help;
  std::vector<Entry> entries;  // in this order
};

// Exit status 0 when everything was measured, met goals or not; 1 when something was not.
int run_suite(const Suite& suite, int argc, char** argv);

std::uint64_t now_ns();         // CLOCK_MONOTONIC
std::uint64_t thread_cpu_ns();  // of the calling thread: others on the machine are not counted

}  // namespace sluice::bench
