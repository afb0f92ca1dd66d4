// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/ecn.h"

#include <netinet/in.h>

#include "base/random.h"
#include "net/ecn_path.h"
#include "net/ecn_probe.h"
#include "net/raw_wire.h"

namespace sluice::agent {
namespace {

constexpr uint32_t kTimeoutDefault_ms = 30'000, kTimeoutMax_ms = 120'000;
constexpr uint32_t kDscpMax = 63;

void set_finding(v1::EcnFinding& out, const net::Finding& finding) {
  out.set_fate(std::string(net::fate_name(finding.fate)));
  out.set_hop(finding.hop);
  out.set_at_destination(finding.at_destination);
  out.set_text(finding.text);
}

void set_observations(v1::EcnProbe& out, const net::EcnObservations& seen) {
  const auto found = net::judge(seen);
  out.set_verdict(std::string(net::verdict_name(found.verdict)));
  out.set_summary(found.summary);
  set_finding(*out.mutable_ect0(), found.ect0);
  set_finding(*out.mutable_ect1(), found.ect1);
  set_finding(*out.mutable_ce(), found.ce);
  set_finding(*out.mutable_dscp_kept(), found.dscp);
  set_finding(*out.mutable_inbound(), found.inbound);
  for (size_t i = 0; i < seen.delivery.size(); ++i) {
    if (seen.delivery[i].sent == 0) continue;
    auto* delivery = out.add_delivery();
    delivery->set_ecn(std::string(net::ecn_name(static_cast<net::Ecn>(i))));
    delivery->set_sent(seen.delivery[i].sent);
    delivery->set_arrived(seen.delivery[i].arrived);
  }
  for (const auto& seen_hop : seen.hops) {
    auto* hop = out.add_hops();
    hop->set_hop(seen_hop.hop);
    hop->set_protocol(seen_hop.protocol == IPPROTO_TCP ? "tcp" : "udp");
    hop->set_sent(std::string(net::ecn_name(seen_hop.sent)));
    hop->set_seen(std::string(net::ecn_name(seen_hop.seen)));
    hop->set_dscp(seen_hop.dscp);
    hop->set_router(seen_hop.router.text());
    hop->set_at_destination(seen_hop.at_destination);
  }
  out.set_rtt_us(seen.rtt_us);
  out.set_hops_to_peer(seen.hops_to_peer);
  out.set_packets_sent(seen.packets_sent);
  out.set_out_of_time(seen.out_of_time);
}

// The place of an address under the policy in force; empty without one.
std::string place_of(const View& view, const std::string& address) {
  if (!view.document) return "";
  policy::Query query;
  const auto remote = policy::parse_prefix(address);
  if (!remote) return "";
  query.remote = *remote;
  const auto found = policy::explain(*view.document, view.compiled, query);
  return found ? found->place : "";
}

Result<v1::EcnProbe> from_record(const EcnRecord& record) {
  v1::EcnProbe probe;
  if (!probe.ParseFromString(record.report))
    return fail(make_error(Code::kCorrupt, fmt::format("the stored probe of {} cannot be read", record.destination),
                           "probe it again with `sluice ecn probe`"));
  return probe;
}

}  // namespace

Result<v1::EcnProbe> EcnProbes::probe(const v1::EcnProbeRequest& request, const Engine::ProgressSink& progress) {
  SLUICE_TRY(destination, net::parse_address(request.destination()));
  std::optional<net::IpAddress> source;
  if (!request.source().empty()) {
    SLUICE_TRY(given, net::parse_address(request.source()));
    source = given;
  }
  if (request.port() == 0 || request.port() > UINT16_MAX)
    return fail(make_error(Code::kInvalid, fmt::format("{} is not a TCP port", request.port()), "give one from 1 to 65535"));
  if (request.dscp() > kDscpMax)
    return fail(make_error(Code::kInvalid, fmt::format("{} is not a DSCP", request.dscp()), "give one from 0 to 63"));
  const std::string name = destination.text();
  {
    const std::lock_guard lock(mutex_);
    if (under_way_.contains(name))
      return fail(make_error(Code::kConflict, fmt::format("{} is being probed already", name),
                             "wait for that probe; `sluice ecn list` shows what it finds"));
    if (under_way_.size() >= kAtOnce)
      return fail(make_error(Code::kConflict, fmt::format("{} destinations are being probed already", under_way_.size()),
                             "wait for one of them, then repeat"));
    under_way_.insert(name);
  }
  struct Leave {
    EcnProbes& probes;
    const std::string& name;
    ~Leave() {
      const std::lock_guard lock(probes.mutex_);
      probes.under_way_.erase(name);
    }
  } const leave{*this, name};

  const uint64_t start_ns = engine_.clock().monotonic_ns();
  SLUICE_TRY(wire, net::RawWire::open(destination, static_cast<uint16_t>(request.port()), source));
  net::EcnProbeOptions options;
  options.destination = destination;
  options.port = static_cast<uint16_t>(request.port());
  options.dscp = static_cast<uint8_t>(request.dscp());
  options.isn = static_cast<uint32_t>(OsRandom().next());
  options.timeout_ms = request.timeout_ms() == 0 ? kTimeoutDefault_ms : std::min(request.timeout_ms(), kTimeoutMax_ms);
  net::EcnProbeControl control;
  control.stop = [this] { return engine_.stopping(); };
  control.progress = [&](unsigned step, const std::string& text) {
    v1::Progress line;
    line.set_step(step);
    line.set_steps(net::kEcnProbeSteps);
    line.set_message(text);
    progress(line);
  };
  auto seen = net::probe_ecn(*wire, options, control);
  if (!seen) return fail(std::move(seen).error().within("while probing " + name));

  v1::EcnProbe out;
  out.set_destination(name);
  out.set_port(request.port());
  out.set_source(wire->source().text());
  out.set_dscp(request.dscp());
  out.set_place(place_of(*engine_.view(), name));
  out.set_time_ns(engine_.clock().wall_ns());
  set_observations(out, *seen);
  out.set_duration_ms(static_cast<double>(engine_.clock().monotonic_ns() - start_ns) / 1e6);

  SLUICE_CHECK(engine_.store().put_ecn({name, out.port(), out.dscp(), out.place(), out.time_ns(), out.SerializeAsString()}));
  engine_.event("ecn-probed", out.verdict() == net::verdict_name(net::EcnVerdict::kUsable) ? "info" : "warning",
                fmt::format("{} port {}{}: {}: {}", name, out.port(), out.place().empty() ? "" : " (" + out.place() + ")",
                            out.verdict(), out.summary()));
  return out;
}

Result<v1::EcnProbesReply> ecn_report(Engine& engine, const v1::EcnProbesRequest& request) {
  std::string destination;
  if (!request.destination().empty()) {
    SLUICE_TRY(address, net::parse_address(request.destination()));
    destination = address.text();  // as it is stored
  }
  SLUICE_TRY(records, engine.store().ecn(destination, "", engine.clock().wall_ns()));
  v1::EcnProbesReply reply;
  for (const auto& record : records) {
    SLUICE_TRY(probe, from_record(record));
    *reply.add_probes() = std::move(probe);
  }
  return reply;
}

Result<std::optional<v1::EcnProbe>> ecn_known(Engine& engine, const std::string& destination, const std::string& place) {
  const auto address = net::parse_address(destination);
  if (!address) return std::nullopt;  // not one that could have been probed
  const int64_t now_ns = engine.clock().wall_ns();
  SLUICE_TRY(records, engine.store().ecn(address->text(), "", now_ns));
  if (records.empty() && !place.empty() && place != "unknown" && place != "external") {
    SLUICE_TRY(neighbours, engine.store().ecn("", place, now_ns));
    records = std::move(neighbours);
  }
  if (records.empty()) return std::nullopt;
  SLUICE_TRY(probe, from_record(records.front()));
  probe.clear_hops();
  return std::optional<v1::EcnProbe>(std::move(probe));
}

}  // namespace sluice::agent
