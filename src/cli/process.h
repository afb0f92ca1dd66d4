// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Other programs: run to their end under a deadline, or started to outlive us.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

using Deadline = std::optional<std::chrono::steady_clock::time_point>;  // nullopt = none

// Milliseconds left for poll(2): at most `most`, 0 when it has passed, -1 for no bound at all (only without both).
int poll_ms(const Deadline& deadline, std::optional<int> most = std::nullopt);
bool passed(const Deadline& deadline);

struct Output {
  int status = 0;  // exit status; 128 + signal if one ended it
  std::string out;
  std::string err;
};
// Input is /dev/null. At the deadline, or when `interrupt_fd` becomes readable, the program is killed and reaped, and the
// result is kTimeout.
Result<Output> run_program(const std::vector<std::string>& argv, const Deadline& deadline, int interrupt_fd);

// A session of its own, input from /dev/null, output appended to `log`.
Result<pid_t> start_detached(const std::vector<std::string>& argv, const std::string& log);

}  // namespace sluice::cli
