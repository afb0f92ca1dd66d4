// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Routes that carry a congestion control of their own (`ip route ... congctl NAME`): users of a CCA that no socket shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::net {

struct CongctlRoute {
  int family = 0;           // AF_INET, AF_INET6
  std::string destination;  // "10.0.0.0/8", "default"
  std::uint32_t table = 0;  // 254 = main
  std::uint32_t oif = 0;    // interface index; 0 = none
  std::string cca;
  bool locked = false;  // `congctl lock`: setsockopt(TCP_CONGESTION) on such a connection is EPERM
};

// Every table, IPv4 and IPv6, of one namespace.
Result<std::vector<CongctlRoute>> congctl_routes(int netns_fd);

// The messages of one netlink datagram appended to `routes`; true when it ends the dump. Pure, for tests and fuzzing.
Result<bool> parse_routes(std::span<const std::byte> datagram, std::vector<CongctlRoute>& routes);

}  // namespace sluice::net
