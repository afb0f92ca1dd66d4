// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The collective model on a real UDP socket: batches in, batches out, and the loop that drives a member or an aggregator.
#pragma once

#include <sched.h>

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
  // Consecutive datagrams of one size to one address go as one message, and leave the host as one batch.
  // What the socket's buffer has no room for, or the network refuses for now, is lost like on the wire, and counted.
  Status send(std::span<const Datagram> datagrams);
  // What has arrived, up to a batch; replaces `arrivals`. Does not wait.
  Status receive(std::vector<Arrival>& arrivals);
  int fd() const { return fd_.get(); }
  std::uint64_t dropped() const { return dropped_; }

 private:
  std::size_t run_of(std::span<const Datagram> datagrams) const;

  UniqueFd fd_;
  Address local_;
  bool segments_ = true;  // the kernel cuts one long message into datagrams (UDP_SEGMENT)
  std::uint64_t dropped_ = 0;
};

// An Aggregator or a Member, and the port that it is driven from.
template <class Party>
struct Station {
  UdpPort* port;
  Party* party;
};

// Waits until one of the descriptors is readable: true; or timeout_ms have passed. -1 among them is nothing.
Result<bool> wait_readable(std::span<const int> fds, int timeout_ms);

// Runs them until `done`, which is asked after every batch and at least every 20 ms. Until `spin_until_ns` it does not sleep,
// but gives way to others: a call that ends sooner is not waited for by a thread that has to be woken.
template <class Party>
Status drive(std::span<const Station<Party>> stations, const Clock& clock, const std::function<bool()>& done,
             std::uint64_t spin_until_ns = 0) {
  std::vector<Arrival> arrivals;
  std::vector<int> fds(2 * stations.size(), -1);
  Outbox out;
  while (!done()) {
    const std::uint64_t before = clock.monotonic_ns();
    std::uint64_t due = kNever;
    for (std::size_t i = 0; i < stations.size(); i++) {
      due = std::min(due, stations[i].party->next_tick_ns());
      fds[2 * i] = stations[i].port->fd();
      if constexpr (requires { stations[i].party->wake_fd(); }) fds[2 * i + 1] = stations[i].party->wake_fd();
    }
    const std::uint64_t wait_ms = due <= before ? 0 : std::min<std::uint64_t>(20, (due - before + 999'999) / 1'000'000);
    bool ready = false;
    while (!ready && clock.monotonic_ns() < std::min(spin_until_ns, due)) {
      SLUICE_TRY(readable, wait_readable(fds, 0));
      ready = readable;
      if (!ready) ::sched_yield();
    }
    if (!ready) SLUICE_CHECK(wait_readable(fds, static_cast<int>(wait_ms)));
    for (std::size_t i = 0; i < stations.size(); i++) {
      const Station<Party>& at = stations[i];
      SLUICE_CHECK(at.port->receive(arrivals));
      const std::uint64_t now = clock.monotonic_ns();
      for (const Arrival& arrival : arrivals) at.party->receive(arrival.from, arrival.bytes, now, out);
      if (fds[2 * i + 1] >= 0 || at.party->next_tick_ns() <= now) at.party->tick(now, out);
      SLUICE_CHECK(at.port->send(out));
      out.clear();
    }
  }
  return {};
}
template <class Party>
Status drive(UdpPort& port, Party& party, const Clock& clock, const std::function<bool()>& done) {
  const Station<Party> one{&port, &party};
  return drive(std::span<const Station<Party>>(&one, 1), clock, done);
}

}  // namespace sluice::coll
