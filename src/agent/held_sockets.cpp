// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/held_sockets.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "net/cgroup.h"
#include "net/socket.h"

namespace sluice::agent {
namespace {

constexpr uint8_t kSynSent = 2;  // TCP_SYN_SENT
constexpr uint8_t kListen = 10;  // TCP_LISTEN
constexpr int kCgroupLevels = 16;

template <size_t N>
std::string text_of(const char (&name)[N]) {
  return {name, ::strnlen(name, N)};
}

sl_prefix host(const uint8_t (&address)[16]) {
  sl_prefix prefix{};
  prefix.prefix_len = 128;
  std::memcpy(prefix.addr, address, sizeof prefix.addr);
  return prefix;
}

template <class K, class V>
Result<bpfio::Map<K, V>> table(const PinnedPolicy& policy, const std::string& name, uint32_t slot) {
  SLUICE_TRY(outer, policy.map(name));
  SLUICE_TRY(inner, outer.inner(slot));
  return bpfio::Map<K, V>::from(std::move(inner));
}

}  // namespace

Result<HeldSockets> HeldSockets::open(const PinnedPolicy& policy, const std::string& cgroup2) {
  SLUICE_TRY(number, policy.generation());
  const auto slot = static_cast<uint32_t>(number % SL_SLOTS);
  SLUICE_TRY(generations_fd, policy.map("sl_generations"));
  SLUICE_TRY(generations, (bpfio::Map<uint32_t, sl_generation>::from(std::move(generations_fd))));
  SLUICE_TRY(generation, generations.lookup(slot));
  if (number == 0 || generation.generation != number)
    return fail(Code::kConflict, "no policy is published, or it is being replaced");
  SLUICE_TRY(places, (table<sl_prefix, sl_place>(policy, "sl_places", slot)));
  SLUICE_TRY(sources, (table<sl_prefix, sl_service_id>(policy, "sl_sources", slot)));
  SLUICE_TRY(services, (table<sl_service_key, sl_service_id>(policy, "sl_services", slot)));
  SLUICE_TRY(rules, (table<sl_rule_key, sl_verdict>(policy, "sl_rules", slot)));
  SLUICE_TRY(ids_fd, policy.map("sl_cca_ids"));
  SLUICE_TRY(ids_map, (bpfio::Map<sl_cca_name, uint32_t>::from(std::move(ids_fd))));
  SLUICE_TRY(entries, ids_map.entries());
  std::map<std::string, uint32_t> ids;
  for (const auto& [name, id] : entries) ids[text_of(name.name)] = id;
  std::set<std::string> selected = {text_of(generation.listener_cca)};
  SLUICE_TRY(verdicts, rules.entries());
  for (const auto& [key, verdict] : verdicts) {
    selected.insert(text_of(verdict.cca));
    selected.insert(text_of(verdict.fallback));
  }
  return HeldSockets(generation, std::move(places), std::move(sources), std::move(services), std::move(rules), std::move(ids),
                     std::move(selected), cgroup2);
}

Result<uint32_t> HeldSockets::service_of(const sl_report& socket) const {
  uint32_t service = 0;
  const auto consider = [&](const std::optional<sl_service_id>& found) {
    if (found && *found != 0 && (service == 0 || *found < service)) service = *found;
  };
  if ((generation_.flags & SL_GEN_SOURCES) != 0) {
    SLUICE_TRY(found, sources_.find(host(socket.local_addr)));
    consider(found);
  }
  if ((generation_.flags & SL_GEN_PORTS) != 0) {
    SLUICE_TRY(found, services_.find({SL_SERVICE_PORT, 0, socket.local_port}));
    consider(found);
  }
  if ((generation_.flags & SL_GEN_CGROUPS) != 0 && socket.cgroup_id != 0) {
    // The folder and those above it; entries of an ancestor hold the smallest id already.
    auto path = net::cgroup_path(cgroup2_, socket.cgroup_id);
    if (!path && path.error().code != Code::kNotFound) return tl::unexpected<Error>(std::move(path).error());
    uint64_t id = socket.cgroup_id;
    for (int level = 0; level < kCgroupLevels; ++level) {
      SLUICE_TRY(found, services_.find({SL_SERVICE_CGROUP, 0, id}));
      consider(found);
      if (!path || path->size() <= cgroup2_.size()) break;
      path->resize(path->rfind('/'));
      SLUICE_TRY(parent, net::cgroup_id(*path));
      id = parent;
    }
  }
  return service;
}

Result<HeldSockets::Choice> HeldSockets::choose(const sl_report& socket) const {
  const bool chosen = (socket.flags & SL_REPORT_APPLICATION) != 0;
  const Choice kept{text_of(socket.cca), socket.struct_ops_id};
  std::string cca = text_of(generation_.listener_cca);
  if (socket.state == kListen) {
    if (chosen && (generation_.flags & SL_GEN_RESPECT) != 0) return kept;
  } else {
    SLUICE_TRY(place, places_.find(host(socket.remote_addr)));
    SLUICE_TRY(service, service_of(socket));
    SLUICE_TRY(verdict, rules_.lookup({service, place ? place->place_class : 0U}));
    if (chosen && (verdict.flags & SL_VERDICT_RESPECT) != 0) return kept;
    // Before the handshake is over ECN is not known: the CCA asks for it in the SYN.
    const bool fallback =
        (verdict.flags & SL_VERDICT_NEEDS_ECN) != 0 && socket.state != kSynSent && (socket.ecn & SL_ECN_NEGOTIATED) == 0;
    cca = text_of(fallback ? verdict.fallback : verdict.cca);
  }
  const auto id = ids_.find(cca);
  return Choice{cca, id == ids_.end() ? 0 : id->second};
}

Result<sl_outcome> HeldSockets::correct(const sl_file& file, bool dry_run, int& error) const {
  const sl_report& socket = file.socket;
  auto chosen = choose(socket);
  if (!chosen && chosen.error().code == Code::kNotFound) return SL_OUTCOME_NO_RULE;
  if (!chosen) return tl::unexpected<Error>(std::move(chosen).error());
  if (chosen->cca.empty()) return socket.state == kListen ? SL_OUTCOME_CURRENT : SL_OUTCOME_NO_FALLBACK;
  if (text_of(socket.cca) == chosen->cca && socket.struct_ops_id == chosen->map_id) return SL_OUTCOME_CURRENT;
  // The handshake may end any moment, and what it says about ECN decides: only who has the socket locked can tell.
  if (socket.state == kSynSent) return fail(Code::kUnavailable, "port {} is being connected", socket.local_port);
  if (dry_run) return SL_OUTCOME_MOVED;

  SLUICE_TRY(fd, net::fd_of_process(static_cast<pid_t>(file.pid), static_cast<int>(file.fd)));
  // The number may have been given to another file since it was listed.
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0 || cookie != socket.cookie)
    return fail(Code::kNotFound, "descriptor {} of process {} is another file now", file.fd, file.pid);
  if (auto status = net::set_congestion_control(fd.get(), chosen->cca); !status) {
    error = status.error().sys_errno != 0 ? -status.error().sys_errno : -EPERM;
    return SL_OUTCOME_SET_FAILED;
  }
  return SL_OUTCOME_MOVED;
}

}  // namespace sluice::agent
