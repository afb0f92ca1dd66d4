// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A collective job over real sockets: members of the model, some to a host, around one switch, and an aggregator of the model
// or of the kernel on a host of its own. Results are judged by the oracle of tests/sim, which knows the inputs only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "coll/model/member.h"
#include "harness/impairment.h"
#include "sim/coll_oracle.h"

namespace sluice::test {

enum class CollSide { kModel, kKernel };

struct CollJobSpec {
  CollSide aggregator = CollSide::kModel;
  CollSide members_are = CollSide::kModel;  // in the kernel: one to a host
  std::vector<unsigned> fallback = {};      // KEYs that are of the model all the same
  std::size_t carried_bytes = 0;            // of KernelMemberConfig
  ImpairmentSpec wire;                      // of each port of the switch, both ways; its seed is that of the job
  std::uint16_t jobs = 1;                   // side by side, each making all calls: on the same hosts and interfaces
  bool v6 = false;
  bool direct = false;  // no switch: a link from each host to the aggregator, which has an address on each
  std::uint16_t members = 4;
  std::uint16_t members_per_host = 1;
  std::uint16_t window = 32;
  std::uint16_t words = SL_COLL_WORDS_DEFAULT;
  std::vector<std::uint32_t> weights = {};  // by KEY; empty = 1 each
  // A host that floods everybody with guessed tokens under stolen addresses, and with the right token under its own (IPv4).
  bool intruder = false;
  int victim = -1;  // KEY that is a process of its own, and gets `victim_signal` when it has made its first call
  int victim_signal = 0;
  std::uint64_t ordinary_bytes = 0;  // that a TCP connection carries from the first member's host to the aggregator's meanwhile
  std::uint64_t dead_after_ns = 60'000'000'000;  // a busy machine is not a dead member
};

struct CollWork {
  sl_coll_op op;
  sl_coll_dtype dtype;
  coll::oracle::Case expected;
  int root = -1;                               // the only KEY that wants the result; -1 = all do
  std::map<unsigned, std::size_t> fewer = {};  // KEYs that give so many bytes less than they should
  std::map<unsigned, bool> absent = {};        // KEYs that never make this call: they stop here, and are silent
};

// Random values, but for floats moderate ones.
CollWork coll_work(Random& random, const CollJobSpec& spec, sl_coll_op op, sl_coll_dtype dtype, std::size_t elements);

struct CollReport {
  std::vector<std::string> errors;  // by job: by KEY, then the aggregator's: empty, or why it stopped
  std::uint64_t retransmitted = 0;
  std::map<sl_coll_counter, std::uint64_t> counters;
  std::map<sl_coll_member_counter, std::uint64_t> member_counters;  // of all members in the kernel
};

// Makes the calls in order, and judges the results of those that ended well.
CollReport run_coll_job(const CollJobSpec& spec, const std::vector<CollWork>& calls);

}  // namespace sluice::test
