// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Wire over raw sockets of the calling thread's network namespace. Needs CAP_NET_RAW; works on any kernel.
//
// The kernel would reset a connection it does not know. So each of the prober's two ports is held by a listener whose socket
// filter refuses every packet: the kernel finds a socket, drops what comes, and says nothing. When the wire is closed, the
// kernel answers again, and resets what is left.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "net/ecn_probe.h"

namespace sluice::net {

class RawWire final : public Wire {
 public:
  // kNotFound without a route, kInvalid when `source` is not of this host or of the other family, kPermission without
  // CAP_NET_RAW.
  static Result<std::unique_ptr<RawWire>> open(const IpAddress& destination, std::uint16_t port,
                                               const std::optional<IpAddress>& source);

  const IpAddress& source() const override { return source_; }
  std::uint16_t port(unsigned which) const override { return guards_[which].port; }
  Status send(Bytes packet) override;
  Result<std::optional<Arrival>> receive(std::uint64_t deadline_ns) override;
  std::uint64_t now_ns() override { return clock_.monotonic_ns(); }

 private:
  struct Guard {
    UniqueFd listener;
    std::uint16_t port = 0;
  };
  RawWire() = default;
  static Result<Guard> guard(const IpAddress& source);
  Result<std::optional<Arrival>> read(int fd, std::uint8_t protocol);

  RealClock clock_;
  IpAddress source_, destination_;
  std::array<Guard, 2> guards_;
  UniqueFd out_, tcp_, icmp_;
  std::vector<std::uint8_t> buffer_;
};

}  // namespace sluice::net
