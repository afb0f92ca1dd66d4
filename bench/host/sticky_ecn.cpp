// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// rollback.sticky_ecn_*: ECN outlives a rollback. Connections under dctcp, whose path marks, are rolled back to the
// transitional cubic, and taken forward again, by the product; what that does to goodput, and what queue they hold as cubic
// with ECN beside the kernel's. In guests, one a seed (guest/sticky_ecn.sh).
#include <map>

#include "host/guest.h"
#include "host/host.h"

namespace sluice::bench {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kTick_ms = 10;  // of "received"
constexpr std::size_t kWindow_ms = 100;
constexpr double kDipMax_percent = 13;

// Measured times, in the guest's order.
enum Times : std::size_t { kBefore, kRollback, kBack, kBackLater, kForward, kAgain, kTimes };
constexpr const char* kRuns[kTimes] = {"dctcp", "cubic", "cubic", "cubic", "dctcp", "dctcp"};

struct Seen {
  std::vector<Json> native, sluice;
};

// Nobody is a blind sender: ECN is negotiated at both ends of every connection, and each one's marks were echoed.
Status check_time(const Json& time, int flows, const std::string& cca) {
  const std::string label = time["label"];
  if (time["ecn_ends"] != 2 * flows || time["echoed_flows"] != flows)
    return fail(Code::kInternal, "{}, {}: {} ends of {} connections have ECN, marks of {} were echoed", label, cca,
                time["ecn_ends"].get<int>(), flows, time["echoed_flows"].get<int>());
  for (const std::string name : time["cca"])
    if (name != cca && !name.starts_with(cca + "."))
      return fail(Code::kInternal, "{}: {} where {} should run", label, name, cca);
  return {};
}

Result<Seen> read_guest(const std::vector<Json>& all, const GuestPath& path) {
  Seen seen;
  for (const Json& time : all) {
    if (time["label"] == "native/" + path.label) seen.native.push_back(time);
    if (time["label"] == "sluice/" + path.label) seen.sluice.push_back(time);
  }
  if (seen.native.size() != 2 || seen.sluice.size() != kTimes)
    return fail(Code::kInternal, "{}: {} and {} measured times", path.label, seen.native.size(), seen.sluice.size());
  for (const Json& time : seen.native) SLUICE_CHECK(check_time(time, path.flows, "cubic"));
  for (std::size_t i = 0; i < kTimes; ++i) SLUICE_CHECK(check_time(seen.sluice[i], path.flows, kRuns[i]));
  return seen;
}

struct Dip {
  double percent;          // of the worst window
  std::size_t longest_ms;  // below the goal without a break
  double command_s;
};
// From the start of the command that `move` is to the end of the measured time after it, against the mean of the one before.
Dip dip_of(const Seen& seen, std::size_t move) {
  const auto received = [&](std::size_t time) { return seen.sluice[time]["received"].get<std::vector<double>>(); };
  double before = 0;
  for (const double bytes : received(move - 1)) before += bytes;
  before /= static_cast<double>(received(move - 1).size());
  std::vector<double> after = received(move);
  const auto later = received(move + 1);
  after.insert(after.end(), later.begin(), later.end());

  constexpr std::size_t kTicks = kWindow_ms / kTick_ms;
  double window = 0, worst = 0;
  std::size_t below = 0, longest = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    window += after[i] - (i >= kTicks ? after[i - kTicks] : 0);
    if (i + 1 == kTicks || (i + 1 > kTicks && window < worst)) worst = window;
    below = after[i] < before * (1 - kDipMax_percent / 100) ? below + 1 : 0;
    longest = std::max(longest, below);
  }
  return {100 * (1 - worst / (before * kTicks)), longest * kTick_ms, seen.sluice[move]["command_seconds"]};
}

double mbit(const Json& time) { return time["bytes"].get<double>() * 8 / time["seconds"].get<double>() / 1e6; }
double marked_percent(const Json& time) { return 100 * time["delivered_ce"].get<double>() / time["delivered"].get<double>(); }

template <class Value>
std::vector<double> samples_of(const std::vector<Seen>& seeds, Value value) {
  std::vector<double> out;
  for (const Seen& seen : seeds) out.push_back(value(seen));
  return out;
}

void add_dip(Run& run, const GuestPath& path, const std::vector<Seen>& seeds, const std::string& name, std::size_t move) {
  Measurement m{.id = "rollback.sticky_ecn_goodput_dip_pct",
                .params = {{"path", path.path}, {"flows", path.flows}, {"move", name}},
                .unit = "%",
                .goal = Goal{"value", "<=", kDipMax_percent}};
  m.samples = samples_of(seeds, [&](const Seen& seen) { return dip_of(seen, move).percent; });
  m.value = median(m.samples);
  std::size_t longest = 0;
  for (const Seen& seen : seeds) longest = std::max(longest, dip_of(seen, move).longest_ms);
  m.note = fmt::format(
      "{} to {}, {:.1f} Mbit/s before; below {:.0f} % of it for {} ms at most without a break; the command took {:.2f} s in "
      "the guest",
      kRuns[move - 1], kRuns[move], median(samples_of(seeds, [&](const Seen& seen) { return mbit(seen.sluice[move - 1]); })),
      100 - kDipMax_percent, longest,
      median(samples_of(seeds, [&](const Seen& seen) { return dip_of(seen, move).command_s; })));
  run.report.add(std::move(m));
}

void add_queue(Run& run, const GuestPath& path, const std::vector<Seen>& seeds) {
  Measurement m{.id = "rollback.sticky_ecn_queue_ratio",
                .params = {{"path", path.path}, {"flows", path.flows}},
                .unit = "bytes",
                .goal = Goal{"ratio", "<=", 1.0}};
  // Each of two measured times, so that whole cycles of growth and reduction are in it.
  const auto mean_of = [](const Json& one, const Json& other, auto value) { return (value(one) + value(other)) / 2; };
  const auto both = [&](auto value) {
    return std::pair(
        median(
            samples_of(seeds, [&](const Seen& seen) { return mean_of(seen.sluice[kBack], seen.sluice[kBackLater], value); })),
        median(samples_of(seeds, [&](const Seen& seen) { return mean_of(seen.native[0], seen.native[1], value); })));
  };
  const auto queue_of = [](const Json& time) { return time["queue_bytes"].get<double>(); };
  m.samples =
      samples_of(seeds, [&](const Seen& seen) { return mean_of(seen.sluice[kBack], seen.sluice[kBackLater], queue_of); });
  const auto [queue, queue_native] = both(queue_of);
  m.value = queue;
  m.baseline = Baseline{"tcp_cubic", queue_native};
  const auto [p99, p99_native] = both([](const Json& time) { return time["queue_p99_bytes"].get<double>(); });
  const auto [ce, ce_native] = both(marked_percent);
  const auto [goodput, goodput_native] = both(mbit);
  const auto [fair, fair_native] = both([](const Json& time) { return time["jain"].get<double>(); });
  m.note = fmt::format(
      "here and tcp_cubic: p99 {:.0f} and {:.0f} bytes, {:.2f} and {:.2f} Mbit/s, {:.1f} % and {:.1f} % of the segments "
      "marked, Jain's "
      "index {:.3f} and {:.3f}; under dctcp before {:.0f} bytes",
      p99, p99_native, goodput, goodput_native, ce, ce_native, fair, fair_native,
      median(samples_of(seeds, [&](const Seen& seen) { return queue_of(seen.sluice[kBefore]); })));
  run.report.add(std::move(m));
}

}  // namespace

Status measure_sticky_ecn(Run& run) {
  const std::vector<std::string> programs = {program("bench_flows"), program("sluiced"), program("sluice"),
                                             build_file("bundles")};
  std::map<std::string, std::vector<Seen>> seeds;
  for (int seed = 1; seed <= run.size(5, 1); ++seed) {
    const Guest guest{seed, "sticky_ecn.sh", programs, programs};
    SLUICE_TRY(all, run_guest(guest));
    for (const GuestPath& path : kMarkedPaths) {
      SLUICE_TRY(seen, read_guest(all, path));
      seeds[path.label].push_back(std::move(seen));
    }
  }
  for (const GuestPath& path : kMarkedPaths) {
    add_dip(run, path, seeds[path.label], "rollback", kRollback);
    add_dip(run, path, seeds[path.label], "forward", kForward);
    add_queue(run, path, seeds[path.label]);
  }
  return {};
}

}  // namespace sluice::bench
