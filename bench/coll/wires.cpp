// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/wires.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <net/if.h>

#include <cstring>

#include "agent.h"

namespace sluice::bench {
namespace {

std::string network(unsigned aggregator) { return fmt::format("10.{}", 50 + aggregator); }

coll::Address mapped(const std::string& text) {
  coll::Address address;
  address.ip[10] = address.ip[11] = 0xff;
  inet_pton(AF_INET, text.c_str(), &address.ip[12]);
  return address;
}

std::uint64_t mac_key(const std::string& text) {
  unsigned byte[6];
  std::uint64_t key = 0;
  if (std::sscanf(text.c_str(), "%x:%x:%x:%x:%x:%x", &byte[0], &byte[1], &byte[2], &byte[3], &byte[4], &byte[5]) != 6) return 0;
  for (unsigned i = 0; i < 6; i++) key |= std::uint64_t{byte[i]} << (8 * i);
  return key;
}

// The port twice, as an inner map of `twins`.
Status add_twin(const bpfio::MapFd& twins, std::uint32_t port, std::uint32_t interface) {
  const UniqueFd twin(::bpf_map_create(BPF_MAP_TYPE_DEVMAP, "twin", sizeof port, sizeof interface, 2, nullptr));
  if (!twin) return fail_errno(errno, "cannot create a map");
  for (std::uint32_t copy = 0; copy < 2; copy++)
    if (::bpf_map_update_elem(twin.get(), &copy, &interface, BPF_ANY) != 0) return fail_errno(errno, "cannot fill a map");
  const int fd = twin.get();
  return twins.update(bpfio::bytes_of(port), bpfio::bytes_of(fd));
}

}  // namespace

std::string wire_name(WireKind kind) {
  switch (kind) {
    case WireKind::kDirect:
      return "direct";
    case WireKind::kXdpSwitch:
      return "xdpsw";
    case WireKind::kBridge:
      return "bridge";
  }
  return "?";
}

Result<Wires> Wires::create(const WireSpec& spec) {
  test::TopologySpec described;
  const bool switched = spec.kind != WireKind::kDirect;
  for (unsigned i = 0; i < spec.members; i++) described.hosts.push_back({.name = fmt::format("m{}", i)});
  for (unsigned s = 0; s < spec.aggregators; s++) {
    described.hosts.push_back({.name = fmt::format("a{}", s)});
    if (switched) described.hosts.push_back({.name = fmt::format("switch{}", s), .bridge = true});
    const auto link = [&](test::LinkEnd a, test::LinkEnd b) {
      described.links.push_back({.a = std::move(a), .b = std::move(b), .mtu = spec.mtu, .offloads = spec.offloads});
    };
    if (switched) link({fmt::format("a{}", s), {network(s) + ".0.254/24"}}, {fmt::format("switch{}", s)});
    for (unsigned i = 0; i < spec.members; i++) {
      const std::string member = fmt::format("m{}", i);
      if (switched)
        link({member, {fmt::format("{}.0.{}/24", network(s), i + 1)}}, {fmt::format("switch{}", s)});
      else
        link({member, {fmt::format("{}.{}.1/24", network(s), i)}},
             {fmt::format("a{}", s), {fmt::format("{}.{}.254/24", network(s), i)}});
    }
  }
  SLUICE_TRY(topology, test::Topology::create(described));
  Wires wires(spec, std::move(topology));
  for (unsigned s = 0; s < spec.aggregators && switched; s++) SLUICE_CHECK(wires.program_switch(s));
  return wires;
}

Status Wires::program_switch(unsigned aggregator) {
  const test::Host& host = topology_.host(fmt::format("switch{}", aggregator));
  SLUICE_TRY(object, bpfio::Object::open_file(build_file("bench/switch.o")));
  SLUICE_CHECK(object.load());
  SLUICE_TRY(stations, object.map("stations"));
  SLUICE_TRY(ports, object.map("ports"));
  SLUICE_TRY(twins, object.map("twins"));
  SLUICE_TRY(chances, object.map("chances"));
  const auto of_all = [](double chance) { return static_cast<std::uint32_t>(chance * 0x1p32); };
  const std::uint32_t zero = 0, chance[2] = {of_all(spec_.lost), of_all(spec_.twice)};
  SLUICE_CHECK(chances.update(bpfio::bytes_of(zero), bpfio::bytes_of(chance)));
  SLUICE_TRY(program, object.program(spec_.kind == WireKind::kXdpSwitch ? "forward" : "pass"));
  return host.call([&]() -> Status {
    for (std::uint32_t port = 0; port <= spec_.members; port++) {
      const test::Host& station = port == 0 ? this->aggregator(aggregator) : member(port - 1);
      const auto& interface = station.interfaces()[port == 0 ? 0 : aggregator];
      const std::uint32_t index = ::if_nametoindex(fmt::format("eth{}", port).c_str());
      // Sockets have no XDP program, and nothing but NAPI receives what XDP sends into a veth.
      SLUICE_TRY(gro, station.run({"ethtool", "-K", interface.name, "gro", "on"}));
      if (gro.status != 0) return fail(Code::kInternal, "ethtool on {} of {}: {}", interface.name, station.name(), gro.text);
      const std::uint64_t mac = mac_key(interface.mac);
      SLUICE_CHECK(stations.update(bpfio::bytes_of(mac), bpfio::bytes_of(port)));
      SLUICE_CHECK(ports.update(bpfio::bytes_of(port), bpfio::bytes_of(index)));
      SLUICE_CHECK(add_twin(twins, port, index));
      SLUICE_TRY(link, bpfio::Link::attach_xdp(program, index));
      links_.push_back(std::move(link));
    }
    return {};
  });
}

coll::Address Wires::member_address(unsigned member, unsigned aggregator) const {
  return mapped(spec_.kind == WireKind::kDirect ? fmt::format("{}.{}.1", network(aggregator), member)
                                                : fmt::format("{}.0.{}", network(aggregator), member + 1));
}

coll::Address Wires::aggregator_address(unsigned member, unsigned aggregator) const {
  return mapped(spec_.kind == WireKind::kDirect ? fmt::format("{}.{}.254", network(aggregator), member)
                                                : network(aggregator) + ".0.254");
}

std::string Wires::aggregator_interface(unsigned member) const {
  return spec_.kind == WireKind::kDirect ? fmt::format("eth{}", member) : "eth0";
}

}  // namespace sluice::bench
