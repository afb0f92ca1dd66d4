// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A bad wire: marks CE, drops, duplicates, corrupts, reorders and rewrites what an interface receives (impair.bpf.c at its TC
// ingress, for kernels without netem and RED). Packets of the sequence are TCP, UDP and ICMP echo; ARP, neighbour discovery and
// the like pass untouched and uncounted, so that the same seed does the same to the same packets. Only the virtual queue, which
// depends on time, is not reproducible.
//
// Limits: with offloads on (LinkSpec) a "packet" is a super-packet and a corrupted one is not noticed by its checksum. A held
// packet waits for later packets: at the end of a stream it stays, and acts as a loss.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/topology.h"

struct bpf_object;
struct impair_shared;

namespace sluice::test {

struct ImpairmentSpec {
  std::uint64_t seed = 1;
  // Probabilities, 0 to 1, each drawn separately. A dropped packet is nothing else; a held one is neither duplicated nor
  // corrupted.
  double ce = 0;  // only packets with ECT are marked
  double drop = 0;
  double duplicate = 0;
  double corrupt = 0;  // one bit of the payload, or of the last header byte where there is none
  double reorder = 0;
  // Every Nth packet of the sequence besides; 0 = off.
  std::uint32_t ce_every = 0;
  std::uint32_t drop_every = 0;
  std::uint32_t reorder_distance = 3;  // packets that overtake a held one
  // A queue that would stand before a slower wire: mark above one backlog, drop above another; 0 = off.
  std::uint64_t queue_rate_bytes_per_s = 0;
  std::uint64_t queue_mark_bytes = 0;
  std::uint64_t queue_limit_bytes = 0;
  std::uint16_t port = 0;  // only TCP and UDP from or to this port; 0 = everything
  // What old or strict middleboxes do, to every packet of the sequence.
  static constexpr int kDrop = -1;
  std::array<int, 4> ecn = {0, 1, 2,
                            3};  // what each codepoint (the two bits: 1 = ECT(1), 2 = ECT(0), 3 = CE) becomes, or kDrop
  std::optional<int> dscp = {};  // written into every packet
  bool drop_ecn_syn = false;     // TCP SYNs with ECE and CWR
};

struct ImpairmentCounters {
  std::uint64_t packets, other, ce, ce_not_ect, dropped, duplicated, corrupted, reordered, rewritten, released;
  std::uint64_t seen_not_ect, seen_ect0, seen_ect1, seen_ce;  // as received, before marking
  std::uint64_t hold_full, failed;
};

class Impairment {
 public:
  // `host` must outlive it.
  static Result<Impairment> attach(const Host& host, const std::string& interface, const ImpairmentSpec& spec);
  Impairment(Impairment&&) noexcept;
  Impairment& operator=(Impairment&&) noexcept;
  ~Impairment();

  // Starts a new sequence at packet 0 with new numbers; packets held are forgotten. Reproducible only while the link is quiet.
  Status restart(const ImpairmentSpec& spec);
  ImpairmentCounters counters() const;
  // For each packet of the sequence so far (at most the first 65,536), bits 1 << impair_action (impair_abi.h).
  std::vector<std::uint8_t> journal() const;

 private:
  struct State;
  explicit Impairment(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sluice::test
