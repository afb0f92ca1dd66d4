// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The command line as a function: words in, exit status out. Everything it touches outside the process (streams, terminal,
// clock, environment, file roots) comes in through Environment, so that tests run it in-process.
#pragma once

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/paths.h"

namespace sluice::cli {

struct Environment {
  std::ostream& out;
  std::ostream& err;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  unsigned columns = 80;  // of the terminal behind `out`
  std::function<std::optional<std::string>(const std::string&)> variable = [](const std::string&) { return std::nullopt; };
  const Clock* clock = nullptr;  // for ages shown to people; deadlines are kept in real time
  // Called once there is something to cancel: a descriptor that becomes readable when the user presses Ctrl-C; -1 = never.
  std::function<int()> interrupts = [] { return -1; };
  PathRoots roots = {};
  std::string agent_program = "sluiced";                // what `up` and `doctor` start: a path, or a name looked up in PATH
  std::vector<std::string> bundle_path = {};            // without --bundle-path
  std::string systemd_run_dir = "/run/systemd/system";  // exists where systemd runs (sd_booted(3))
};

// `words`: without the program's name. Returns the exit status: 0 ok, 1 failed, 2 usage, 3 degraded, 4 conflict.
int run(const std::vector<std::string>& words, Environment& environment);

}  // namespace sluice::cli
