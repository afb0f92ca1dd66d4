// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// cca.*: what the bundles' CCAs cost and achieve beside the kernel's own. Every CCA has guests of its own (./dev vm --icount),
// one a seed: time is instructions there, and the same seed gives the same figures however busy this machine is. What happens
// in the guest is guest/paths.sh.
#include <map>
#include <nlohmann/json.hpp>

#include "host/host.h"

namespace sluice::bench {
namespace {

using Json = nlohmann::json;

constexpr test::Millis kGuestTimeout(1200000);

struct Contest {
  std::string name;    // of the bundle
  std::string kernel;  // of the kernel's CCA
  double insn_goal;
};
const Contest kContests[] = {{"cubic", "cubic", 1.01}, {"dctcp", "dctcp", 1.015}};

struct Lane {
  std::string label;  // in paths.sh
  std::string path;
  int flows;
};
const Lane kMarked[] = {{"1ms/1", "1 ms", 1}, {"1ms/8", "1 ms", 8}, {"20ms/1", "20 ms", 1}, {"20ms/8", "20 ms", 8}};
const Lane kPlain{"plain", "no marks", 8};

// Every result of one CCA, by label, one for each seed.
using Results = std::map<std::string, std::vector<Json>>;

std::string object_of(const Contest& contest) {
  return build_file(fmt::format("bundles/{}/1.0.0/{}.bpf.o", contest.name, contest.name));
}

// `words`: the CCA, and its object if it is not the kernel's.
Status run_guest(Run& run, int seed, const std::vector<std::string>& words, Results& results) {
  const std::string script = SLUICE_SOURCE_DIR "/bench/guest/paths.sh", flows = program("bench_flows");
  std::vector<std::string> argv = {SLUICE_SOURCE_DIR "/dev", "vm", "--icount", "--shift", "0", "--timeout", "1100"};
  argv.insert(argv.end(), {"--seed", std::to_string(seed), "--add", script, "--add", flows});
  for (const Contest& contest : kContests) argv.insert(argv.end(), {"--add", object_of(contest)});
  argv.insert(argv.end(), {"--", script, flows, run.size("5", "2")});
  argv.insert(argv.end(), words.begin(), words.end());
  SLUICE_TRY(guest, test::Process::exec(argv, {.pipe_stdout = true}));
  SLUICE_TRY(output, guest.read_all(kGuestTimeout));
  SLUICE_TRY(status, guest.wait(kGuestTimeout));
  if (status != 0) return fail(Code::kUnavailable, "./dev vm with {} ended with status {}", words.front(), status);
  std::size_t lines = 0;
  for (std::size_t at = 0, end; (end = output.find('\n', at)) != std::string::npos; at = end + 1, ++lines) {
    Json result = Json::parse(output.substr(at, end - at), nullptr, false);
    if (result.is_discarded()) return fail(Code::kInternal, "the guest wrote: {}", output.substr(at, end - at));
    results[result["label"]].push_back(std::move(result));
  }
  if (lines != std::size(kMarked) + 1) return fail(Code::kInternal, "{} results of the guest", lines);
  return {};
}

template <class Value>
std::vector<double> samples_of(const Results& results, const Lane& lane, Value value) {
  std::vector<double> out;
  for (const Json& result : results.at(lane.label)) out.push_back(value(result));
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
void add(Run& run, const Figures& figures, const std::string& id, const std::string& unit, const Lane& lane, Value value,
         const Goal& goal) {
  Measurement m{.id = id, .params = {{"path", lane.path}, {"flows", lane.flows}}, .unit = unit, .goal = goal};
  m.samples = samples_of(figures.ours, lane, value);
  m.value = median(m.samples);
  m.baseline = Baseline{"tcp_" + figures.contest.kernel, median(samples_of(figures.kernels, lane, value))};
  std::uint64_t lost = 0;
  for (const Results* results : {&figures.ours, &figures.kernels})
    for (const Json& result : results->at(lane.label)) lost += result["retransmits"].get<std::uint64_t>();
  const auto both = [&](auto what) {
    return std::pair(median(samples_of(figures.ours, lane, what)), median(samples_of(figures.kernels, lane, what)));
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
      SLUICE_CHECK(run_guest(run, seed, {contest.kernel}, kernels));
      SLUICE_CHECK(run_guest(run, seed, {"sl_" + contest.name, object_of(contest)}, ours));
    }
    const Figures figures{contest, ours, kernels};
    const std::string id = "cca." + contest.name;
    add(run, figures, id + "_insn_ratio", "instr/kB", kPlain, per_kb, Goal{"ratio", "<=", contest.insn_goal});
    for (const Lane& lane : kMarked) {
      add(run, figures, id + "_goodput_ratio", "Mbit/s", lane, mbit, Goal{"ratio", "in", 0.98, 1.02});
      if (contest.name == "dctcp") add(run, figures, id + "_queue_ratio", "bytes", lane, queue, Goal{"ratio", "<=", 1.10});
    }
  }
  return {};
}

}  // namespace sluice::bench
