// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// cca.*: what the bundles' CCAs cost and achieve beside the kernel's own. Every CCA has guests of its own, one a seed. What
// happens in them is guest/paths.sh.
#include <map>

#include "host/guest.h"
#include "host/host.h"

namespace sluice::bench {
namespace {

using Json = nlohmann::json;

struct Contest {
  std::string name;    // of the bundle
  std::string kernel;  // of the kernel's CCA
  double insn_goal;
};
const Contest kContests[] = {{"cubic", "cubic", 1.01}, {"dctcp", "dctcp", 1.015}};

const GuestPath kPlain{"plain", "no marks", 8};

// Every result of one CCA, by label, one for each seed.
using Results = std::map<std::string, std::vector<Json>>;

std::string object_of(const Contest& contest) {
  return build_file(fmt::format("bundles/{}/1.0.0/{}.bpf.o", contest.name, contest.name));
}

// `words`: the CCA, and its object if it is not the kernel's.
Status add_results(Run& run, int seed, const std::vector<std::string>& words, Results& results) {
  const std::string flows = program("bench_flows");
  Guest guest{seed, "paths.sh", {flows}, {flows, run.size("5", "2")}};
  for (const Contest& contest : kContests) guest.files.push_back(object_of(contest));
  guest.arguments.insert(guest.arguments.end(), words.begin(), words.end());
  SLUICE_TRY(all, run_guest(guest));
  for (Json& result : all) results[result["label"]].push_back(std::move(result));
  if (all.size() != kMarkedPaths.size() + 1) return fail(Code::kInternal, "{} results of the guest", all.size());
  return {};
}

template <class Value>
std::vector<double> samples_of(const Results& results, const GuestPath& path, Value value) {
  std::vector<double> out;
  for (const Json& result : results.at(path.label)) out.push_back(value(result));
  return out;
}

double per_kb(const Json& r) { return r["instructions"].get<double>() / (r["bytes"].get<double>() / 1000); }
double mbit(const Json& r) { return r["bytes"].get<double>() * 8 / r["seconds"].get<double>() / 1e6; }
double queue(const Json& r) { return r["queue_bytes"]; }
double marked(const Json& r) { return r["delivered_ce"].get<double>() / r["delivered"].get<double>(); }
double jain(const Json& r) { return r["jain"]; }

struct Figures {
  const Contest& contest;
  const Results& ours;
  const Results& kernels;
};

template <class Value>
void add(Run& run, const Figures& figures, const std::string& id, const std::string& unit, const GuestPath& path, Value value,
         const Goal& goal) {
  Measurement m{.id = id, .params = {{"path", path.path}, {"flows", path.flows}}, .unit = unit, .goal = goal};
  m.samples = samples_of(figures.ours, path, value);
  m.value = median(m.samples);
  m.baseline = Baseline{"tcp_" + figures.contest.kernel, median(samples_of(figures.kernels, path, value))};
  std::uint64_t lost = 0;
  for (const Results* results : {&figures.ours, &figures.kernels})
    for (const Json& result : results->at(path.label)) lost += result["retransmits"].get<std::uint64_t>();
  const auto both = [&](auto what) {
    return std::pair(median(samples_of(figures.ours, path, what)), median(samples_of(figures.kernels, path, what)));
  };
  const auto [insn, insn_kernel] = both(per_kb);
  const auto [ce, ce_kernel] = both(marked);
  const auto [fair, fair_kernel] = both(jain);
  m.note = fmt::format(
      "{} guests each; here and tcp_{}: {:.0f} and {:.0f} instructions per kB, {:.2f} % and {:.2f} % of the segments marked, "
      "Jain's "
      "index {:.3f} and {:.3f}; {} retransmissions in all",
      m.samples.size(), figures.contest.kernel, insn, insn_kernel, ce * 100, ce_kernel * 100, fair, fair_kernel, lost);
  run.report.add(std::move(m));
}

}  // namespace

Status measure_ccas(Run& run) {
  const int seeds = run.size(5, 1);
  for (const Contest& contest : kContests) {
    Results ours, kernels;
    for (int seed = 1; seed <= seeds; ++seed) {
      SLUICE_CHECK(add_results(run, seed, {contest.kernel}, kernels));
      SLUICE_CHECK(add_results(run, seed, {"sl_" + contest.name, object_of(contest)}, ours));
    }
    const Figures figures{contest, ours, kernels};
    const std::string id = "cca." + contest.name;
    add(run, figures, id + "_insn_ratio", "instr/kB", kPlain, per_kb, Goal{"ratio", "<=", contest.insn_goal});
    for (const GuestPath& path : kMarkedPaths) {
      add(run, figures, id + "_goodput_ratio", "Mbit/s", path, mbit, Goal{"ratio", "in", 0.98, 1.02});
      if (contest.name == "dctcp") add(run, figures, id + "_queue_ratio", "bytes", path, queue, Goal{"ratio", "<=", 1.10});
    }
  }
  return {};
}

}  // namespace sluice::bench
