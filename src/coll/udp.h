// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The collective model on a real UDP socket: batches in, batches out, and the loop that drives a member or an aggregator.
#pragma once

#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "coll/model/packet.h"

namespace sluice::coll {

struct Arrival {
  Address from;
  Bytes bytes;
};

class UdpPort {
 public:
  // IPv4 (mapped) and IPv6 on one socket; port 0 = any free one.
  static Result<UdpPort> open(const Address& local);

  const Address& local() const { return local_; }
  // What the socket's buffer has no room for, or the network refuses for now, is lost like on the wire, and counted.
  Status send(std::span<const Datagram> datagrams);
  // Waits up to timeout_ms for the first, or for wake_fd to become readable; replaces `arrivals`.
  Status receive(int timeout_ms, std::vector<Arrival>& arrivals, int wake_fd = -1);
  std::uint64_t dropped() const { return dropped_; }

 private:
  UniqueFd fd_;
  Address local_;
  std::uint64_t dropped_ = 0;
};

// Runs an Aggregator or a Member until `done`, which is asked after every batch and at least every 20 ms.
template <class Party>
Status drive(UdpPort& port, Party& party, const Clock& clock, const std::function<bool()>& done) {
  std::vector<Arrival> arrivals;
  Outbox out;
  while (!done()) {
    std::uint64_t now = clock.monotonic_ns();
    const std::uint64_t due = party.next_tick_ns();
    const std::uint64_t wait_ms = due <= now ? 0 : std::min<std::uint64_t>(20, (due - now + 999'999) / 1'000'000);
    int wake_fd = -1;
    if constexpr (requires { party.wake_fd(); }) wake_fd = party.wake_fd();
    SLUICE_CHECK(port.receive(static_cast<int>(wait_ms), arrivals, wake_fd));
    now = clock.monotonic_ns();
    for (const Arrival& arrival : arrivals) party.receive(arrival.from, arrival.bytes, now, out);
    if (wake_fd >= 0 || party.next_tick_ns() <= now) party.tick(now, out);
    SLUICE_CHECK(port.send(out));
    out.clear();
  }
  return {};
}

}  // namespace sluice::coll
