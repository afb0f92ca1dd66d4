// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A guest of `./dev vm --icount` that measures: time is instructions there, and the same seed gives the same figures however
// busy this machine is. What runs in it is bench/guest.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::bench {

struct Guest {
  int seed = 1;
  std::string script;              // in bench/guest
  std::vector<std::string> files;  // or folders that it needs beside that, at the same paths
  std::vector<std::string> arguments;
};
// The objects that it wrote, one a line.
Result<std::vector<nlohmann::json>> run_guest(const Guest& guest);

// A path of bench/guest, and those that mark.
struct GuestPath {
  std::string label;  // DELAY/FLOWS, in the guest
  std::string path;
  int flows;
};
extern const std::vector<GuestPath> kMarkedPaths;

}  // namespace sluice::bench
