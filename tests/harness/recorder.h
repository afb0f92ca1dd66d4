// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The independent witness: which CCA each TCP socket of a network namespace really runs, by struct_ops map id and not by name.
// It shares no code with the product: its own BPF iterator reads icsk_ca_ops and the map around it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

struct bpf_object;

namespace sluice::test {

struct SocketRecord {
  std::uint64_t cookie;     // 0 for TIME_WAIT and request sockets
  std::uint64_t cgroup_id;  // 0 = none
  int family;               // AF_INET, AF_INET6
  std::string local;        // address; IPv4 (also v4-mapped) in dotted form
  std::string remote;
  std::uint16_t local_port;
  std::uint16_t remote_port;
  std::string state;  // "ESTABLISHED", "LISTEN", ...
  bool full;          // false: TIME_WAIT or a request; nothing below is known
  std::string cca;
  std::uint32_t struct_ops_id;  // 0 = native CCA
  bool ecn_ok;                  // ECN negotiated
  bool ecn_seen;                // a packet with ECT or CE arrived
  std::uint32_t cwnd_segments, ssthresh_segments, srtt_us, delivered, delivered_ce;
};

class Recorder {
 public:
  static Result<Recorder> load();
  Recorder(Recorder&&) noexcept;
  Recorder& operator=(Recorder&&) noexcept;
  ~Recorder();

  // Every TCP socket of the namespace of this descriptor (-1 = the caller's own), in the kernel's order.
  Result<std::vector<SocketRecord>> list(int netns_fd = -1) const;

 private:
  struct State;
  explicit Recorder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

std::string to_json(const SocketRecord& record);  // one line

}  // namespace sluice::test
