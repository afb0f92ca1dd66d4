// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What the measurements share: populations of sockets.
#include "host/host.h"

#include <algorithm>

namespace sluice::bench {
namespace {

using test::Millis;
using test::Traffic;

// No faster than this, or the queues of the listeners overflow and connections wait a second for another SYN.
constexpr std::uint64_t kOpen_per_s = 20'000;
constexpr int kListeners = 8;  // their queues hold 4096 each
constexpr std::uint16_t kFirstPort = 5000;
constexpr std::uint64_t kPerProcess = 16'000;  // below the 20,000 descriptors that a process may have here and there
constexpr Millis kOpenTimeout(300000);

}  // namespace

Result<HeldConnections> hold_connections(const test::Host& host, std::uint64_t connections, std::uint64_t period_ms) {
  SLUICE_CHECK(host.set_sysctl("net.ipv4.ip_local_port_range", "10000 65535"));
  SLUICE_CHECK(host.set_sysctl("net.core.somaxconn", "4096"));
  HeldConnections held{{}, {}, 2 * connections};
  for (std::uint64_t opened = 0; opened < connections;) {
    const std::uint64_t part = std::min(connections - opened, kPerProcess);
    std::vector<std::string> listen{"--max-seconds", "3600"};
    std::vector<std::string> connect{"--connections", std::to_string(part),
                                     "--rate",        std::to_string(kOpen_per_s),
                                     "--hold",        "3600",
                                     "--period",      std::to_string(period_ms),
                                     "--bytes",       "64",
                                     "--reply-bytes", "64",
                                     "--max-seconds", "3600"};
    for (int i = 0; i < kListeners; ++i) {
      const std::string at = fmt::format("127.0.0.1:{}", kFirstPort + static_cast<int>(held.servers.size()) * kListeners + i);
      listen.insert(listen.end(), {"--listen", at});
      connect.insert(connect.end(), {"--connect", at});
    }
    SLUICE_TRY(server, Traffic::server(host, listen));
    SLUICE_TRY(client, Traffic::client(host, connect));
    SLUICE_TRY(open, client.expect("open ", kOpenTimeout));
    if (open != fmt::format("open {}", part)) return fail(Code::kExhausted, "of {} connections: {}", part, open);
    held.servers.push_back(std::move(server));
    held.clients.push_back(std::move(client));
    opened += part;
  }
  return held;
}

}  // namespace sluice::bench
