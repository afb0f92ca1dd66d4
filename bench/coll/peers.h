// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Who else can all-reduce over these wires: Open MPI and Gloo, over TCP, a process in each member's namespace. Each in several
// settings; what counts is the best.
#pragma once

#include <string>
#include <vector>

#include "coll/loop.h"
#include "coll/wires.h"

namespace sluice::bench {

struct Peer {
  std::string name;                    // "Open MPI, ring"
  std::vector<std::string> arguments;  // of mpirun; or of bench_peer_gloo
  bool mpi;
};

// What is installed. Fewer settings where `quick`.
std::vector<Peer> peers(bool quick);

// One Timing for each of `calls`. Wires with a switch.
Result<std::vector<Timing>> run_peer(const std::string& dir, const Wires& wires, const Peer& peer,
                                     const std::vector<Calls>& calls);

}  // namespace sluice::bench
