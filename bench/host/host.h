// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The measurements of `bench host`, one function each. What each one does and means: docs/benchmarks.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "bpfio/link.h"
#include "harness/topology.h"
#include "harness/traffic.h"
#include "suite.h"

namespace sluice::bench {

Status measure_lookups(Run& run);        // lookup.sk_storage_ns, lookup.lpm_ns
Status measure_connect(Run& run);        // connect.overhead_ns
Status measure_apply(Run& run);          // apply.ms
Status measure_rollback(Run& run);       // rollback.ms
Status measure_sticky_ecn(Run& run);     // rollback.sticky_ecn_*
Status measure_many_netns(Run& run);     // migrate.ms_per_netns
Status measure_self_moves(Run& run);     // migrate.self_rtts
Status measure_upgrade(Run& run);        // upgrade.fallbacks
Status measure_kill(Run& run);           // kill.fallbacks
Status measure_blind_senders(Run& run);  // ecn.blind_senders
Status measure_many_sockets(Run& run);   // migrate.ns_per_socket, memory.bytes_per_socket
Status measure_ccas(Run& run);           // cca.*

// ---- shared by them --------------------------------------------------------------------------------------------------------

// Established connections over loopback, both ends on one host, held by processes of the harness's traffic program: as many as
// the descriptors of one process make necessary.
struct HeldConnections {
  std::vector<test::Traffic> servers;
  std::vector<test::Traffic> clients;
  std::uint64_t sockets;  // both ends
};
// `period_ms`: between two requests of each connection. At least one request is made.
Result<HeldConnections> hold_connections(const test::Host& host, std::uint64_t connections, std::uint64_t period_ms);

}  // namespace sluice::bench
