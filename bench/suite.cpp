// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "suite.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>

namespace sluice::bench {
namespace {

std::uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// As many descriptors as this process may have, for it and its children.
Status raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return fail_errno(errno, "cannot read the limit of descriptors");
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return fail_errno(errno, "cannot allow {} descriptors", limit.rlim_max);
  return {};
}

Status check_host(const Suite& suite) {
  const std::string command = "./dev bench " + suite.name;
  if (::geteuid() != 0) return fail(make_error(Code::kPermission, "this needs root", command));
  SLUICE_TRY(bpffs, test::mounts_of("bpf"));
  if (bpffs.empty()) return fail(make_error(Code::kUnsupported, "no bpffs is mounted", command + " mounts one of its own"));
  return raise_descriptor_limit();
}

int run_all(const Suite& suite, bool quick, std::uint64_t seed, const std::string& json, const std::vector<std::string>& only) {
  const auto failed = [&](const Error& error) {
    fmt::print(stderr, "bench_{}: {}\n", suite.name, error.message());
    return error_traits(error.code).exit_status;
  };
  if (auto usable = check_host(suite); !usable) return failed(usable.error());
  const auto workspace = Workspace::create();
  if (!workspace) return failed(workspace.error());
  Report report(suite.name);
  Run run{*workspace, quick, seed, report};
  fmt::print(stderr, "seed {}\n", seed);
  for (const Entry& entry : suite.entries) {
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
      fmt::print(stderr, "bench_{}: {}: {}\n", suite.name, entry.ids.front(), status.error().message());
    }
  }
  report.print_table(stdout);
  if (!json.empty())
    if (auto status = report.write_json(json); !status) return failed(status.error());
  return report.incomplete() ? 1 : 0;
}

}  // namespace

int run_suite(const Suite& suite, int argc, char** argv) {
  bool quick = false;
  std::uint64_t seed = static_cast<std::uint64_t>(std::time(nullptr));
  std::string json;
  std::vector<std::string> only;
  CLI::App app{suite.description +
                   " Exit status 0 when everything was measured, met goals or not; 1 when something was not. "
                   "docs/benchmarks.md explains each id.",
               "bench_" + suite.name};
  app.add_flag("--quick", quick, "Smaller, some minutes; figures are rougher");
  app.add_option("--json", json, "Write the results to this file (schema sluice.bench/1)");
  app.add_option("--only", only, "Measure only this id; repeatable");
  app.add_option("--seed", seed, suite.seed_help + " (default: the time)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return run_all(suite, quick, seed, json, only);
}

std::uint64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }
std::uint64_t thread_cpu_ns() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace sluice::bench
