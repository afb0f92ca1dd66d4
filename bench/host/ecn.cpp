// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// ecn.blind_senders: the connection state tests run every way a connection can begin, move and roll back, on a wire that marks
// each ECT packet, and count the ends that send ECT which nobody echoes. This runs them and reads their totals.
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "host/host.h"

namespace sluice::bench {

Status measure_blind_senders(Run& run) {
  constexpr test::Millis kTimeout(900000);
  const std::string file = run.workspace.dir() + "/connection-states.json";
  SLUICE_TRY(tests, test::Process::exec(
                        {program("connection_states_test"), "--gtest_brief=1"},
                        {.pipe_stdout = true, .merge_stderr = true, .environment = {"SLUICE_CONNECTION_STATES_JSON=" + file}}));
  SLUICE_TRY(said, tests.read_all(kTimeout));
  SLUICE_TRY(status, tests.wait(kTimeout));
  SLUICE_TRY(text, read_file(file));
  const auto totals = nlohmann::json::parse(text, nullptr, false);
  if (totals.is_discarded()) return fail(Code::kCorrupt, "{} is no JSON: {}", file, text);
  const auto blind = totals["blind_senders"].get<std::uint64_t>();
  // Blind senders fail their cells; anything else that does leaves cells untried.
  if (status != 0 && blind == 0) return fail(Code::kInternal, "the connection state tests failed:\n{}", said);
  run.report.add({.id = "ecn.blind_senders",
                  .params = {{"cells", totals["cells"]}, {"connections", totals["connections"]}},
                  .value = static_cast<double>(blind),
                  .unit = "senders",
                  .goal = Goal{"value", "==", 0},
                  .note = "every cell of docs/connection-states.md"});
  return {};
}

}  // namespace sluice::bench
