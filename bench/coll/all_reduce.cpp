// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// allreduce.*: in the kernel at both ends, beside the best that sockets do in the same run on the same wire.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "coll/coll.h"
#include "coll/job.h"
#include "coll/loop.h"
#include "coll/peers.h"

namespace sluice::bench {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr unsigned kMembers = 4;
constexpr unsigned kShardsMost = 2;

std::uint16_t words_of(int mtu) { return mtu < 3500 ? SL_COLL_WORDS_DEFAULT : SL_COLL_WORDS_MAX; }

// Of threads that give way but do not sleep, as MPI's: whoever would have to be woken began its call late.
class Gate {
 public:
  explicit Gate(unsigned threads) : threads_(threads) {}
  void wait() {
    const unsigned round = round_;
    if (++arrived_ >= threads_) {
      arrived_ = 0;
      round_++;
    }
    while (round_ == round) ::sched_yield();
  }
  // One thread less, from here on.
  void leave() {
    threads_--;
    if (arrived_ >= threads_) {
      arrived_ = 0;
      round_++;
    }
  }

 private:
  std::atomic<unsigned> threads_, arrived_ = 0, round_ = 0;
};

// A job of the kernel's on wires of its own.
Result<std::vector<Timing>> time_job(const WireSpec& wire, const std::vector<Calls>& all) {
  SLUICE_TRY(wires, Wires::create(wire));
  std::size_t most = 0;
  for (const Calls& calls : all) most = std::max(most, calls.bytes);
  SLUICE_TRY(job,
             Job::start(wires, {.window = 32, .words = words_of(wire.mtu), .carried_bytes = most / wire.aggregators + kMiB}));
  std::vector<Status> statuses(wire.members);
  std::vector<std::vector<Timing>> timings(wire.members, std::vector<Timing>(all.size()));
  Gate gate(wire.members);
  std::thread server([&] { std::ignore = job->serve(); });
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < wire.members; i++)
    threads.emplace_back([&, i] {
      JobMember& member = job->member(i);
      statuses[i] = member.join();
      for (std::size_t at = 0; at < all.size() && statuses[i]; at++) {
        const Calls& calls = all[at];
        time_calls(
            i, wire.members, calls, member.memory(calls), [&] { return (statuses[i] = member.all_reduce(calls)).has_value(); },
            [&] { gate.wait(); }, i == 0, timings[i][at]);
      }
      if (statuses[i])
        statuses[i] = member.leave();
      else
        gate.leave();
    });
  for (std::thread& thread : threads) thread.join();
  job->stop();
  server.join();
  for (const Status& status : statuses) SLUICE_CHECK(status);
  for (std::size_t at = 0; at < all.size(); at++)
    for (unsigned i = 1; i < wire.members; i++) timings[0][at].wrong += timings[i][at].wrong;
  return timings[0];
}

struct Named {
  std::string name;
  Timing timing;
};
double p50(const Named& named) { return median(named.timing.seconds); }

// The quickest of several, by call.
using Best = std::vector<Named>;
void keep_best(Best& best, const std::string& name, const std::vector<Timing>& timings) {
  best.resize(timings.size());
  for (std::size_t i = 0; i < timings.size(); i++)
    if (best[i].timing.seconds.empty() || median(timings[i].seconds) < p50(best[i])) best[i] = {name, timings[i]};
}

Result<Best> best_of_ours(const WireSpec& wire, const std::vector<Calls>& all) {
  Best best;
  for (unsigned shards = 1; shards <= kShardsMost; shards++) {
    WireSpec own = wire;
    own.aggregators = shards;
    SLUICE_TRY(timings, time_job(own, all));
    keep_best(best, fmt::format("{} shard{}", shards, shards == 1 ? "" : "s"), timings);
  }
  return best;
}

Result<Best> best_of_peers(Run& run, const WireSpec& wire, const std::vector<Calls>& all) {
  const auto candidates = peers(run.quick);
  if (candidates.empty())
    return fail(make_error(Code::kUnsupported, "neither Open MPI nor Gloo was there when this was built",
                           "./dev setup bench, then rm -r build/release"));
  SLUICE_TRY(wires, Wires::create(wire));
  Best best;
  for (const Peer& peer : candidates) {
    SLUICE_TRY(timings, run_peer(run.workspace.dir(), wires, peer, all));
    keep_best(best, peer.name, timings);
  }
  return best;
}

double gigabytes(const Calls& calls) { return static_cast<double>(calls.bytes) * calls.measured / 1e9; }
double cpu_per_gb(const Named& named, const Calls& calls) { return named.timing.busy_seconds / gigabytes(calls); }
double gbit(const Calls& calls, double seconds) { return static_cast<double>(calls.bytes) * 8 / seconds / 1e9; }
std::string dtype_of(const Calls& calls) { return calls.floats ? "f32" : "i32"; }

void add_rate(Run& run, const WireSpec& wire, const Calls& calls, const Named& ours, const Named& peer, const std::string& on,
              double goal) {
  Measurement m{
      .id = "allreduce.64MB",
      .params = {{"wire", wire_name(wire.kind)}, {"mtu", wire.mtu}, {"members", kMembers}, {"dtype", dtype_of(calls)}},
      .unit = "Gbit/s",
      .goal = Goal{"ratio", ">=", goal}};
  for (const double seconds : ours.timing.seconds) m.samples.push_back(gbit(calls, seconds));
  m.value = median(m.samples);
  m.baseline = Baseline{peer.name + on, gbit(calls, p50(peer))};
  m.note = fmt::format("algbw of {} MiB, {}; busbw {:.2f}; {:.2f} CPU s/GB, {} wrong values; {}: {:.2f} CPU s/GB, {} wrong",
                       calls.bytes / kMiB, ours.name, *m.value * 2 * (kMembers - 1) / kMembers, cpu_per_gb(ours, calls),
                       ours.timing.wrong, peer.name, cpu_per_gb(peer, calls), peer.timing.wrong);
  run.report.add(std::move(m));
}

void add_cpu(Run& run, const WireSpec& wire, const Calls& calls, const Named& ours, const Named& peer,
             const std::string& frames, double goal) {
  run.report.add({.id = "allreduce.cpu_ratio",
                  .params = {{"wire", wire_name(wire.kind)}, {"mtu", wire.mtu}, {"dtype", dtype_of(calls)}, {"peer", frames}},
                  .value = cpu_per_gb(ours, calls),
                  .unit = "CPU s/GB",
                  .samples = {cpu_per_gb(ours, calls)},
                  .baseline = Baseline{peer.name, cpu_per_gb(peer, calls)},
                  .goal = Goal{"ratio", "<=", goal},
                  .note = "all processors, softirq once"});
}

}  // namespace

Status measure_all_reduce(Run& run) {
  std::vector<Calls> all;
  for (const bool floats : {false, true})
    all.push_back({.floats = floats, .bytes = run.size(64 * kMiB, 16 * kMiB), .measured = run.size(10U, 5U)});
  // With offloads a veth carries 64 KB where a wire carries frames: what sockets can do at best here.
  const WireSpec offloaded{.kind = WireKind::kBridge, .mtu = 1500, .members = kMembers, .offloads = true};
  SLUICE_TRY(on_veth, best_of_peers(run, offloaded, all));
  const std::map<std::pair<WireKind, int>, double> goals = {
      {{WireKind::kDirect, 1500}, 3},    {{WireKind::kDirect, 3500}, 3},   {{WireKind::kXdpSwitch, 1500}, 4.5},
      {{WireKind::kXdpSwitch, 3500}, 5}, {{WireKind::kBridge, 1500}, 1.3}, {{WireKind::kBridge, 3500}, 1.8}};
  for (const auto& [where, goal] : goals) {
    const WireSpec wire{.kind = where.first, .mtu = where.second, .members = kMembers};
    SLUICE_TRY(ours, best_of_ours(wire, all));
    const bool direct = wire.kind == WireKind::kDirect;
    Best theirs = on_veth;
    if (!direct) {
      SLUICE_TRY(framed, best_of_peers(run, wire, all));
      theirs = std::move(framed);
    }
    for (std::size_t i = 0; i < all.size(); i++) {
      add_rate(run, wire, all[i], ours[i], theirs[i], direct ? ", bridge, offloads on" : "", goal);
      if (wire.kind == WireKind::kBridge) continue;
      if (direct)
        add_cpu(run, wire, all[i], ours[i], theirs[i], "offloads on", 0.5);
      else
        add_cpu(run, wire, all[i], ours[i], theirs[i], "MTU frames", 0.2);
    }
  }
  return {};
}

Status measure_loss(Run& run) {
  const Calls calls{.bytes = run.size(64 * kMiB, 16 * kMiB), .measured = run.size(10U, 5U)};
  for (const int mtu : {1500, 3500}) {
    WireSpec wire{.kind = WireKind::kXdpSwitch, .mtu = mtu, .members = kMembers};
    SLUICE_TRY(clean, best_of_ours(wire, {calls}));
    wire.lost = wire.twice = 0.001;
    SLUICE_TRY(lossy, best_of_ours(wire, {calls}));
    Measurement m{.id = "allreduce.loss_0.1pct",
                  .params = {{"wire", wire_name(wire.kind)}, {"mtu", mtu}, {"members", kMembers}, {"dtype", dtype_of(calls)}},
                  .unit = "Gbit/s",
                  .baseline = Baseline{"no losses", gbit(calls, p50(clean[0]))},
                  .goal = Goal{"ratio", ">=", 0.6}};
    for (const double seconds : lossy[0].timing.seconds) m.samples.push_back(gbit(calls, seconds));
    m.value = median(m.samples);
    m.note = fmt::format("{}; {} wrong values", lossy[0].name, lossy[0].timing.wrong);
    run.report.add(std::move(m));
  }
  return {};
}

Status measure_small(Run& run) {
  struct Size {
    std::string id;
    std::size_t bytes;
    double goal;
  };
  const std::vector<Size> sizes = {{"allreduce.1KB", 1 << 10, 0.33}, {"allreduce.64KB", 1 << 16, 0.65}};
  std::vector<Calls> all;
  for (const Size& size : sizes) all.push_back({.bytes = size.bytes, .warm = 20, .measured = run.size(1000U, 200U)});
  const WireSpec wire{.kind = WireKind::kXdpSwitch, .mtu = 1500, .members = kMembers};
  SLUICE_TRY(ours, best_of_ours(wire, all));
  SLUICE_TRY(theirs, best_of_peers(run, wire, all));
  for (std::size_t i = 0; i < all.size(); i++) {
    const auto us = [](const Named& named, double q) { return quantile(named.timing.seconds, q) * 1e6; };
    const auto add = [&](const std::string& figure, Measurement m) {
      m.id = sizes[i].id;
      m.params = {{"wire", "xdpsw"}, {"mtu", 1500}, {"members", kMembers}, {"figure", figure}};
      run.report.add(std::move(m));
    };
    Measurement middle{.id = {},
                       .value = us(ours[i], 0.5),
                       .unit = "us",
                       .baseline = Baseline{theirs[i].name, us(theirs[i], 0.5)},
                       .goal = Goal{"ratio", "<=", sizes[i].goal}};
    for (const double seconds : ours[i].timing.seconds) middle.samples.push_back(seconds * 1e6);
    middle.note =
        fmt::format("from the call to its return, waking up included; {}; {} wrong values", ours[i].name, ours[i].timing.wrong);
    add("p50", std::move(middle));
    add("p99", {.id = {},
                .value = us(ours[i], 0.99),
                .unit = "us",
                .baseline = Baseline{"p50", us(ours[i], 0.5)},
                .goal = Goal{"ratio", "<=", 4},
                .note = fmt::format("{}: {:.0f} us", theirs[i].name, us(theirs[i], 0.99))});
  }
  return {};
}

}  // namespace sluice::bench
