// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "host/guest.h"

#include "agent.h"

namespace sluice::bench {
namespace {

// What only a hang exceeds: a guest takes minutes, and many where the machine is busy.
constexpr const char* kTimeout_s = "7100";
constexpr test::Millis kTimeout(7200000);

}  // namespace

const std::vector<GuestPath> kMarkedPaths = {
    {"1ms/1", "1 ms", 1}, {"1ms/8", "1 ms", 8}, {"20ms/1", "20 ms", 1}, {"20ms/8", "20 ms", 8}};

Result<std::vector<nlohmann::json>> run_guest(const Guest& guest) {
  const std::string folder = SLUICE_SOURCE_DIR "/bench/guest";
  std::vector<std::string> argv = {SLUICE_SOURCE_DIR "/dev", "vm", "--icount", "--shift", "0", "--timeout", kTimeout_s};
  argv.insert(argv.end(), {"--seed", std::to_string(guest.seed), "--add", folder});
  for (const std::string& file : guest.files) argv.insert(argv.end(), {"--add", file});
  argv.insert(argv.end(), {"--", folder + "/" + guest.script});
  argv.insert(argv.end(), guest.arguments.begin(), guest.arguments.end());
  SLUICE_TRY(vm, test::Process::exec(argv, {.pipe_stdout = true}));
  SLUICE_TRY(output, vm.read_all(kTimeout));
  SLUICE_TRY(status, vm.wait(kTimeout));
  if (status != 0) return fail(Code::kUnavailable, "./dev vm with {} ended with status {}", guest.script, status);
  std::vector<nlohmann::json> results;
  for (std::size_t at = 0, end; (end = output.find('\n', at)) != std::string::npos; at = end + 1) {
    results.push_back(nlohmann::json::parse(output.substr(at, end - at), nullptr, false));
    if (results.back().is_discarded()) return fail(Code::kInternal, "the guest wrote: {}", output.substr(at, end - at));
  }
  return results;
}

}  // namespace sluice::bench
