// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// bench_host: what one host pays for Sluice. Run by `./dev bench host`, as root in a mount namespace with a bpffs of its own.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <ctime>

#include "host/host.h"

namespace sluice::bench {
namespace {

struct Entry {
  std::vector<std::string> ids;
  std::string unit;
  Status (*measure)(Run&);
};

// Large populations late: what they leave in the kernel's caches disturbs nobody then, guests of their own least.
const Entry kEntries[] = {
    {{"lookup.sk_storage_ns", "lookup.lpm_ns"}, "ns", measure_lookups},
    {{"connect.overhead_ns"}, "ns", measure_connect},
    {{"apply.ms"}, "ms", measure_apply},
    {{"rollback.ms"}, "ms", measure_rollback},
    {{"migrate.ms_per_netns"}, "ms", measure_many_netns},
    {{"migrate.self_rtts"}, "share", measure_self_moves},
    {{"upgrade.fallbacks"}, "connections", measure_upgrade},
    {{"kill.fallbacks"}, "connections", measure_kill},
    {{"ecn.blind_senders"}, "senders", measure_blind_senders},
    {{"migrate.ns_per_socket", "memory.bytes_per_socket"}, "", measure_many_sockets},
    {{"rollback.sticky_ecn_goodput_dip_pct", "rollback.sticky_ecn_queue_ratio"}, "", measure_sticky_ecn},
    {{"cca.cubic_insn_ratio", "cca.dctcp_insn_ratio", "cca.cubic_goodput_ratio", "cca.dctcp_goodput_ratio",
      "cca.dctcp_queue_ratio"},
     "",
     measure_ccas},
};

Status check_host() {
  if (::geteuid() != 0) return fail(make_error(Code::kPermission, "this needs root", "./dev bench host"));
  SLUICE_TRY(bpffs, test::mounts_of("bpf"));
  if (bpffs.empty())
    return fail(make_error(Code::kUnsupported, "no bpffs is mounted", "./dev bench host mounts one of its own"));
  return raise_descriptor_limit();
}

int run_all(bool quick, std::uint64_t seed, const std::string& json, const std::vector<std::string>& only) {
  const auto failed = [](const Error& error) {
    fmt::print(stderr, "bench_host: {}\n", error.message());
    return error_traits(error.code).exit_status;
  };
  if (auto usable = check_host(); !usable) return failed(usable.error());
  const auto workspace = Workspace::create();
  if (!workspace) return failed(workspace.error());
  Report report("host");
  Run run{*workspace, quick, seed, report};
  fmt::print(stderr, "seed {}\n", seed);
  for (const Entry& entry : kEntries) {
    const bool wanted = only.empty() || std::ranges::any_of(entry.ids, [&](const std::string& id) {
                          return std::ranges::find(only, id) != only.end();
                        });
    if (!wanted) continue;
    const auto before = report.results().size();
    if (auto status = entry.measure(run); !status) {
      // Goals do not matter where nothing was measured: the value is missing, which no reader takes for a success.
      for (const std::string& id : entry.ids)
        if (std::none_of(report.results().begin() + static_cast<std::ptrdiff_t>(before), report.results().end(),
                         [&](const Measurement& m) { return m.id == id; }))
          report.add({.id = id, .unit = entry.unit, .note = "not measured: " + status.error().message()});
      fmt::print(stderr, "bench_host: {}: {}\n", entry.ids.front(), status.error().message());
    }
  }
  report.print_table(stdout);
  if (!json.empty())
    if (auto status = report.write_json(json); !status) return failed(status.error());
  return report.incomplete() ? 1 : 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  bool quick = false;
  std::uint64_t seed = static_cast<std::uint64_t>(std::time(nullptr));
  std::string json;
  std::vector<std::string> only;
  CLI::App app{
      "What one host pays for Sluice: migration, look-ups, connections, upgrades, crashes, ECN, memory. Exit status 0 when "
      "everything was measured, met goals or not; 1 when something was not. docs/benchmarks.md explains each id.",
      "bench_host"};
  app.add_flag("--quick", quick, "Smaller, some minutes; figures are rougher");
  app.add_option("--json", json, "Write the results to this file (schema sluice.bench/1)");
  app.add_option("--only", only, "Measure only this id; repeatable");
  app.add_option("--seed", seed, "Of addresses and of the moments when the agent is killed (default: the time)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return sluice::bench::run_all(quick, seed, json, only);
}
