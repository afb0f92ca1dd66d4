// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// migrate.self_rtts: busy connections move themselves, without the iterator. Each sends bulk data through a token bucket whose
// queue is the round-trip time; the independent recorder sees when each one runs the new version.
#include <sluice/abi/policy.h>

#include <atomic>
#include <thread>
#include <unordered_map>
#include <utility>

#include "bpfio/map.h"
#include "harness/recorder.h"
#include "host/host.h"

namespace sluice::bench {
namespace {

using test::Millis;
using test::Traffic;

constexpr double kRtts = 2;
constexpr double kBusyShare = 0.99;    // of the connections, before the switch
constexpr double kSteadyDrift = 0.05;  // of the median srtt, from one look to the next
constexpr int kSteadyLooksMax = 30;
constexpr int kListeners = 8;
constexpr std::uint16_t kPort = 5000;
constexpr Millis kOpenTimeout(300000);
constexpr std::uint64_t kWatchMax_ns = 60'000'000'000;
constexpr std::uint64_t kNsPerUs = 1000;

struct Busy {
  std::uint64_t srtt_us = 0;
  std::uint32_t delivered = 0;
  std::optional<std::uint64_t> moved_ns;  // when it was first seen on the new version
};
using BusySockets = std::unordered_map<std::uint64_t, Busy>;  // by cookie

// Established sockets on this CCA that delivered data between two looks, the second one a round trip of the slowest later.
Result<BusySockets> busy_sockets(const test::Recorder& recorder, int netns, std::uint32_t struct_ops_id) {
  BusySockets candidates;
  SLUICE_TRY(before, recorder.list(netns));
  const std::uint64_t start = now_ns();
  std::uint64_t rtt_us = 0;
  for (const auto& socket : before) {
    if (!socket.full || socket.state != "ESTABLISHED" || socket.struct_ops_id != struct_ops_id) continue;
    candidates[socket.cookie].delivered = socket.delivered;
    rtt_us = std::max<std::uint64_t>(rtt_us, socket.srtt_us);
  }
  for (;;) {
    SLUICE_TRY(now, recorder.list(netns));
    if (now_ns() - start < rtt_us * kNsPerUs) continue;
    BusySockets busy;
    for (const auto& socket : now) {
      const auto known = candidates.find(socket.cookie);
      if (socket.full && known != candidates.end() && socket.delivered != known->second.delivered)
        busy[socket.cookie].srtt_us = socket.srtt_us;
    }
    return busy;
  }
}

double median_srtt_us(const BusySockets& sockets) {
  std::vector<double> srtt_us;
  for (const auto& [cookie, socket] : sockets) srtt_us.push_back(static_cast<double>(socket.srtt_us));
  return srtt_us.empty() ? 0 : median(std::move(srtt_us));
}

// The busy sockets once the queue is full: while it fills, round trips grow faster than their smoothed measure follows.
Result<BusySockets> steady_sockets(const test::Recorder& recorder, int netns, std::uint32_t struct_ops_id,
                                   std::uint64_t flows) {
  BusySockets busy;
  double srtt_us = 0;
  for (int look = 0; look < kSteadyLooksMax; ++look) {
    SLUICE_TRY(now, busy_sockets(recorder, netns, struct_ops_id));
    busy = std::move(now);
    const double before_us = std::exchange(srtt_us, median_srtt_us(busy));
    const bool steady = srtt_us < before_us * (1 + kSteadyDrift) && srtt_us > before_us * (1 - kSteadyDrift);
    if (steady && static_cast<double>(busy.size()) >= kBusyShare * static_cast<double>(flows)) break;
  }
  return busy;
}

// The moment when another generation is published, watched from a thread of its own.
class SwitchWatch {
 public:
  explicit SwitchWatch(bpfio::MapMemory memory)
      : memory_(std::move(memory)), before_(memory_.load_u64(0)), thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested())
            if (memory_.load_u64(0) != before_) {
              at_ns_ = now_ns();
              return;
            } else {
              std::this_thread::yield();
            }
        }) {}
  std::uint64_t at_ns() {
    thread_.join();
    return at_ns_;
  }

 private:
  bpfio::MapMemory memory_;
  std::uint64_t before_;
  std::atomic<std::uint64_t> at_ns_ = 0;
  std::jthread thread_;
};

}  // namespace

Status measure_self_moves(Run& run) {
  const std::uint64_t flows = run.size<std::uint64_t>(10'000, 1'000);
  const int rate_mbit = run.size(200, 50);
  const auto& [old_cubic, new_cubic] = std::pair(run.workspace.old_cubic(), run.workspace.new_cubic());
  SLUICE_TRY(topology, test::Topology::create(test::pair()));
  const test::Host &sender = topology.host("a"), &receiver = topology.host("b");
  // A few segments a flow: 10,000 of them shall fill the queue, not the machine's memory.
  for (const test::Host* host : {&sender, &receiver})
    for (const char* buffer : {"net.ipv4.tcp_wmem", "net.ipv4.tcp_rmem"})
      SLUICE_CHECK(host->set_sysctl(buffer, "4096 16384 16384"));
  SLUICE_CHECK(sender.set_sysctl("net.ipv4.ip_local_port_range", "10000 65535"));
  SLUICE_TRY(shaped, sender.run({"tc", "qdisc", "add", "dev", sender.interfaces().front().name, "root", "tbf", "rate",
                                 fmt::format("{}mbit", rate_mbit), "burst", "64kb", "limit", "1gb"}));
  if (shaped.status != 0) return fail(Code::kUnsupported, "tc cannot set a token bucket: {}", shaped.text);

  SLUICE_TRY(recorder, test::Recorder::load());
  SLUICE_TRY(agent,
             Agent::start(run.workspace, sender,
                          {"self", {netns_path(sender.netns_fd()), netns_path(receiver.netns_fd())}, topology.cgroup()}));
  SLUICE_CHECK(agent.apply(document_for({old_cubic, new_cubic}, old_cubic), true));

  std::vector<std::string> listen{"--max-seconds", "3600"};
  std::vector<std::string> connect{"--connections", std::to_string(flows),
                                   "--concurrency", std::to_string(flows),
                                   "--rate",        "2000",
                                   "--bytes",       "1073741824",
                                   "--reply-bytes", "1",
                                   "--max-seconds", "3600"};
  for (int i = 0; i < kListeners; ++i) {
    const std::string at = fmt::format("{}:{}", receiver.address(AF_INET), kPort + i);
    listen.insert(listen.end(), {"--listen", at});
    connect.insert(connect.end(), {"--connect", at});
  }
  SLUICE_TRY(server, Traffic::server(receiver, listen));
  SLUICE_TRY(client, Traffic::client(sender, connect));
  SLUICE_TRY(open, client.expect("open ", kOpenTimeout));

  SLUICE_TRY(old_id, agent.map_id(old_cubic));
  SLUICE_TRY(new_id, agent.map_id(new_cubic));
  SLUICE_TRY(busy, steady_sockets(recorder, sender.netns_fd(), old_id, flows));
  if (busy.empty()) return fail(Code::kInternal, "no connection is busy ({})", open);
  SLUICE_TRY(pins, agent.pins());
  SLUICE_TRY(config, pins.map("policy/maps/sl_config"));
  SLUICE_TRY(memory, bpfio::MapMemory::map(config, false));
  SwitchWatch watch(std::move(memory));
  SLUICE_CHECK(agent.apply(document_for({old_cubic, new_cubic}, new_cubic), false));
  const std::uint64_t switched_ns = watch.at_ns();

  std::size_t waiting = busy.size();
  std::uint64_t looked_ns = switched_ns;
  while (waiting > 0 && looked_ns < switched_ns + kWatchMax_ns) {
    SLUICE_TRY(now, recorder.list(sender.netns_fd()));
    looked_ns = now_ns();
    waiting = 0;
    for (const auto& socket : now) {
      const auto known = busy.find(socket.cookie);
      if (!socket.full || known == busy.end() || known->second.moved_ns) continue;
      if (socket.struct_ops_id == new_id)
        known->second.moved_ns = looked_ns;
      else
        ++waiting;
    }
  }

  std::size_t in_time = 0, moved = 0;
  std::vector<double> rtts, srtt_ms;
  for (const auto& [cookie, socket] : busy) {
    srtt_ms.push_back(static_cast<double>(socket.srtt_us) / 1e3);
    if (!socket.moved_ns) continue;
    ++moved;
    const double took_us = static_cast<double>(*socket.moved_ns - switched_ns) / kNsPerUs;
    rtts.push_back(took_us / static_cast<double>(std::max<std::uint64_t>(socket.srtt_us, 1)));
    in_time += rtts.back() <= kRtts;
  }
  Measurement self{.id = "migrate.self_rtts",
                   .params = {{"connections", flows}, {"busy", busy.size()}, {"rtts", kRtts}, {"mbit_per_s", rate_mbit}},
                   .value = static_cast<double>(in_time) / static_cast<double>(busy.size()),
                   .unit = "share",
                   .goal = Goal{"value", ">=", 0.99}};
  for (const double q : {0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0})
    if (!rtts.empty()) self.samples.push_back(quantile(rtts, q));
  self.note = fmt::format(
      "{} of {} busy sockets moved at all, within {:.1f} s; srtt p50 {:.0f} ms, p99 {:.0f} ms. samples: RTTs from the switch "
      "until seen "
      "on the new version at quantiles .01 .1 .25 .5 .75 .9 .99 1",
      moved, busy.size(), static_cast<double>(looked_ns - switched_ns) / 1e9, median(srtt_ms), quantile(srtt_ms, 0.99));
  run.report.add(std::move(self));
  return {};
}

}  // namespace sluice::bench
