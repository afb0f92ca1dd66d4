// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// upgrade.fallbacks, kill.fallbacks: connections come and go by the ten thousand while versions are replaced, or while the
// agent is killed again and again. A fallback is a connection whose congestion control is not ours at any moment the harness
// looks: at its opening and its end, at both ends, and in the recorder's walks.
#include <array>
#include <random>
#include <set>

#include "base/file.h"
#include "harness/recorder.h"
#include "host/host.h"

namespace sluice::bench {
namespace {

using test::Millis;
using test::Traffic;
using test::TrafficSummary;

constexpr std::uint16_t kPort = 5000;
constexpr int kListeners = 4;
constexpr Millis kEndTimeout(600000);
constexpr int kKillDelayMax_ms = 600;  // an apply takes about as long

// Kernel names and struct_ops maps of every version that was registered.
struct Ours {
  std::set<std::string> names;
  std::set<std::uint32_t> map_ids;
};

class Churn {
 public:
  // `connections` from "a" to "b" and back, 64 at a time, under a policy that is in force.
  static Result<Churn> start(Run& run, const std::string& name, std::uint64_t connections);
  // They are still coming.
  Result<bool> goes_on() {
    auto line = client_.expect("open ", Millis(0));
    if (line) return false;
    if (line.error().code == Code::kTimeout) return true;
    return fail(std::move(line).error());
  }
  Agent& agent() { return agent_; }
  const std::string& next_document() { return documents_[++turn_ % 2]; }
  // Which versions are there now, and does any established socket run something else?
  Status look();
  Status finish(Measurement& measurement);

 private:
  Churn(std::unique_ptr<test::Topology> topology, test::Recorder recorder, Agent agent, Traffic server, Traffic client,
        std::array<std::string, 2> documents)
      : topology_(std::move(topology)),
        recorder_(std::move(recorder)),
        agent_(std::move(agent)),
        server_(std::move(server)),
        client_(std::move(client)),
        documents_(std::move(documents)) {}

  std::unique_ptr<test::Topology> topology_;
  test::Recorder recorder_;
  Agent agent_;
  Traffic server_;
  Traffic client_;
  std::array<std::string, 2> documents_;
  std::size_t turn_ = 0;
  Ours ours_;
  std::uint64_t looks_ = 0, sockets_seen_ = 0, foreign_seen_ = 0;
};

Result<Churn> Churn::start(Run& run, const std::string& name, std::uint64_t connections) {
  SLUICE_TRY(made, test::Topology::create(test::pair()));
  auto topology = std::make_unique<test::Topology>(std::move(made));
  const test::Host &a = topology->host("a"), &b = topology->host("b");
  SLUICE_CHECK(a.set_sysctl("net.ipv4.ip_local_port_range", "10000 65535"));
  SLUICE_TRY(recorder, test::Recorder::load());
  SLUICE_TRY(agent,
             Agent::start(run.workspace, a, {name, {netns_path(a.netns_fd()), netns_path(b.netns_fd())}, topology->cgroup()}));
  // Each document has one version only, so that a change also takes the other one out of the kernel.
  std::array<std::string, 2> documents;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string bundle = i == 0 ? run.workspace.old_cubic() : run.workspace.new_cubic();
    documents[i] = document_for({bundle}, bundle);
  }
  SLUICE_CHECK(agent.apply(documents[0], true));
  std::vector<std::string> listen{"--max-seconds", "3600"};
  std::vector<std::string> connect{"--connections", std::to_string(connections),
                                   "--concurrency", "64",
                                   "--bytes",       "64",
                                   "--reply-bytes", "64",
                                   "--max-seconds", "3600"};
  for (int i = 0; i < kListeners; ++i) {
    const std::string at = fmt::format("{}:{}", b.address(AF_INET), kPort + i);
    listen.insert(listen.end(), {"--listen", at});
    connect.insert(connect.end(), {"--connect", at});
  }
  SLUICE_TRY(server, Traffic::server(b, listen));
  SLUICE_TRY(client, Traffic::client(a, connect));
  return Churn(std::move(topology), std::move(recorder), std::move(agent), std::move(server), std::move(client),
               std::move(documents));
}

Status Churn::look() {
  SLUICE_TRY(ccas, agent_.ccas());
  for (const auto& cca : ccas) {
    if (cca.origin() != "bundle" || cca.map_id() == 0) continue;
    ours_.names.insert(cca.kernel_name());
    ours_.map_ids.insert(cca.map_id());
  }
  ++looks_;
  for (const auto& host : topology_->hosts()) {
    SLUICE_TRY(sockets, recorder_.list(host->netns_fd()));
    for (const auto& socket : sockets) {
      if (!socket.full || socket.state != "ESTABLISHED") continue;
      ++sockets_seen_;
      // A version may come and go between two looks: then its name is known, its map is not.
      foreign_seen_ += socket.struct_ops_id == 0;
    }
  }
  return {};
}

Status Churn::finish(Measurement& measurement) {
  SLUICE_TRY(sent, client_.finish(kEndTimeout));
  SLUICE_TRY(received, server_.stop(kEndTimeout));
  SLUICE_CHECK(look());
  std::uint64_t fallbacks = foreign_seen_;
  std::string foreign;
  for (const TrafficSummary* summary : {&sent, &received})
    for (const auto* counts : {&summary->cca_at_open, &summary->cca_at_close})
      for (const auto& [name, count] : *counts)
        if (!ours_.names.contains(name)) {
          fallbacks += count;
          foreign += fmt::format(" {} x {}", count, name);
        }
  measurement.params["connections"] = sent.opened;
  measurement.value = static_cast<double>(fallbacks);
  measurement.unit = "connections";
  measurement.goal = Goal{"value", "==", 0};
  measurement.note = fmt::format(
      "{} connections failed; both ends looked at when they opened and closed{}{}; {} walks of the recorder saw {} "
      "established sockets, {} of them on a native CCA",
      sent.failed + received.failed, foreign.empty() ? "" : ", not ours:", foreign, looks_, sockets_seen_, foreign_seen_);
  if (sent.opened == 0 || sent.failed + received.failed > 0)
    return fail(Code::kInternal, "connections failed under churn: {}", measurement.note);
  return {};
}

}  // namespace

Status measure_upgrade(Run& run) {
  SLUICE_TRY(churn, Churn::start(run, "upgrade", run.size<std::uint64_t>(120'000, 20'000)));
  std::uint64_t upgrades = 0;
  for (;;) {
    SLUICE_TRY(more, churn.goes_on());
    if (!more) break;
    SLUICE_CHECK(churn.look());
    SLUICE_CHECK(churn.agent().apply(churn.next_document(), true));
    ++upgrades;
  }
  Measurement upgrade{.id = "upgrade.fallbacks", .params = {{"upgrades", upgrades}}};
  SLUICE_CHECK(churn.finish(upgrade));
  run.report.add(std::move(upgrade));
  return {};
}

Status measure_kill(Run& run) {
  SLUICE_TRY(churn, Churn::start(run, "kill", run.size<std::uint64_t>(120'000, 20'000)));
  const std::string file = run.workspace.dir() + "/kill.yaml";
  std::mt19937_64 random(run.seed);
  std::uint64_t kills = 0;
  for (;;) {
    SLUICE_TRY(more, churn.goes_on());
    if (!more) break;
    SLUICE_CHECK(churn.look());
    SLUICE_CHECK(write_file_atomic(file, churn.next_document()));
    SLUICE_TRY(apply, churn.agent().command({"apply", "--clear-rollbacks", file}));
    (void)apply.wait(Millis(static_cast<std::int64_t>(random() % kKillDelayMax_ms)));  // in time or not: both are wanted
    SLUICE_CHECK(churn.agent().kill());
    ++kills;
    SLUICE_CHECK(churn.agent().resume());
  }
  Measurement kill{.id = "kill.fallbacks", .params = {{"kills", kills}, {"seed", run.seed}}};
  SLUICE_CHECK(churn.finish(kill));
  run.report.add(std::move(kill));
  return {};
}

}  // namespace sluice::bench
