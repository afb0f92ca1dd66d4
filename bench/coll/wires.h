// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Members and aggregators on the wires of `bench coll`:
//
//   direct   a veth pair between each member and each aggregator
//   xdpsw    one switch an aggregator, forwarding in XDP: the closest to a real switch
//   bridge   one Linux bridge an aggregator
//
// Member i reaches aggregator s by its interface eth<s>.
#pragma once

#include <string>
#include <vector>

#include "bpfio/link.h"
#include "bpfio/object.h"
#include "coll/model/packet.h"
#include "harness/topology.h"

namespace sluice::bench {

enum class WireKind { kDirect, kXdpSwitch, kBridge };
std::string wire_name(WireKind kind);

struct WireSpec {
  WireKind kind = WireKind::kDirect;
  int mtu = 1500;
  unsigned members = 4;
  unsigned aggregators = 1;
  bool offloads = false;  // 64 KB super-packets where a veth has them
  double lost = 0;        // of frames that pass the switch of kXdpSwitch: chances
  double twice = 0;
};

class Wires {
 public:
  static Result<Wires> create(const WireSpec& spec);

  const WireSpec& spec() const { return spec_; }
  const test::Host& member(unsigned member) const { return topology_.host(fmt::format("m{}", member)); }
  const test::Host& aggregator(unsigned aggregator) const { return topology_.host(fmt::format("a{}", aggregator)); }
  coll::Address member_address(unsigned member, unsigned aggregator) const;
  // As this member has to call it.
  coll::Address aggregator_address(unsigned member, unsigned aggregator) const;
  // Of the aggregator, towards a member.
  std::string aggregator_interface(unsigned member) const;

 private:
  Wires(const WireSpec& spec, test::Topology topology) : spec_(spec), topology_(std::move(topology)) {}
  Status program_switch(unsigned aggregator);

  WireSpec spec_;
  test::Topology topology_;
  std::vector<bpfio::Link> links_;
};

}  // namespace sluice::bench
