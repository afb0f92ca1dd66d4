// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A wire in the hands of the test: one TUN interface ("wire0") on each host, and a thread that carries every packet from one to
// another. It sees each packet as it was sent, may mark it, drop it, or keep it back until the test has looked at a moment that
// lasts microseconds elsewhere: a connection in SYN_SENT, two SYNs that cross.
//
//   auto wire = Wire::create({{&a, {"10.1.0.1/8"}}, {&b, {"10.1.0.2/8"}}});
//   wire->hold([](const WirePacket& p) { return p.syn && p.ack; });
//   ... connect without blocking ...
//   wire->await_held(1, Millis(5000));   wire->release();
//
// TCP over IPv4 and IPv6 only; everything else is dropped. There are no offloads: a packet is what a wire would carry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "harness/process.h"
#include "harness/topology.h"

namespace sluice::test {

struct WirePacket {
  std::string from, to;  // "10.1.0.1:5000", "[fd01::1]:5000"
  std::size_t payload_bytes = 0;
  std::uint8_t ecn = 0;  // as it was sent: 0 = not ECT, 1, 2 = ECT, 3 = CE
  bool syn = false, ack = false, fin = false, rst = false, ece = false, cwr = false;
};

class Wire {
 public:
  struct Port {
    const Host* host;
    std::vector<std::string> addresses;  // "10.1.0.1/8", "fd01::1/16": on-link for each other
  };
  using Match = std::function<bool(const WirePacket&)>;

  // Hosts must outlive it.
  static Result<Wire> create(const std::vector<Port>& ports);
  Wire(Wire&&) noexcept;
  Wire& operator=(Wire&&) noexcept;
  ~Wire();

  // CE on every packet with ECT, from now on; not on SYN and SYN-ACK, which some kernels take for a mark of data when they are
  // repeated.
  void mark(bool on);
  // Packets that match are kept back, in their order, until release().
  void hold(Match match);
  Status await_held(std::size_t packets, Millis timeout);
  std::vector<WirePacket> held() const;
  void release();
  // The next packet that matches is lost.
  void lose_one(Match match);

  // All that was sent so far, lost and held ones included, in order.
  std::vector<WirePacket> packets() const;

 private:
  struct State;
  explicit Wire(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sluice::test
