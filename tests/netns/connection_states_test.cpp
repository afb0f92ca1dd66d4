// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Every cell of docs/connection-states.md, tried on the running kernel. A cell here is a scenario; what must come of it stands
// in the row of the same name (connection_states.h). The lint rule `connection_states` compares the two lists.
//
// With SLUICE_CONNECTION_STATES_JSON=FILE the totals of the run are written there, for `bench host`.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "netns/connection_states.h"

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

namespace sluice::test {
namespace {

const auto* const kBpffs = testing::AddGlobalTestEnvironment(new PrivateBpffs);

const std::string kNeeds = "ecn_reno@1.0.0";
const std::string kNeedsNext = "ecn_reno@1.0.1";
const std::string kOther = "cubic@1.0.1";

using Body = std::function<void(World&, const Row&)>;
struct Cell {
  const char* id;
  Body body;
};
void PrintTo(const Cell& cell, std::ostream* out) { *out << cell.id; }

// A sysctl of one host, until the end of the cell.
class Setting {
 public:
  Setting(const Host& host, std::string key, const std::string& value) : host_(host), key_(std::move(key)) {
    auto before = host_.sysctl(key_);
    EXPECT_OK(before);
    if (before) before_ = *before;
    EXPECT_OK(host_.set_sysctl(key_, value));
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  ~Setting() { EXPECT_OK(host_.set_sysctl(key_, before_)); }

 private:
  const Host& host_;
  std::string key_, before_;
};

constexpr char kEcn[] = "net.ipv4.tcp_ecn";
constexpr char kCookies[] = "net.ipv4.tcp_syncookies";
constexpr char kTimestamps[] = "net.ipv4.tcp_timestamps";

// Which ends are under the agent, and where they are.
struct Ends {
  std::string client;
  Side client_side;
  std::string server;
  Side server_side;
  World::Place place(Ip ip = Ip::kV4) const { return {.host = server, .side = server_side, .ip = ip}; }
};
const Ends kBoth{"a", Side::kInside, "b", Side::kInside};
const Ends kActive{"a", Side::kInside, "c", Side::kOutside};
const Ends kPassive{"c", Side::kOutside, "a", Side::kInside};

bool is_syn(const WirePacket& packet) { return packet.syn && !packet.ack; }
bool is_syn_ack(const WirePacket& packet) { return packet.syn && packet.ack; }

// ---- moments of a handshake ----------------------------------------------------------------------------------------------

// A client in SYN_SENT: the SYN-ACK is kept back.
struct Waiting {
  Listening listening;
  End client;
  std::size_t first_packet = 0;
};
Result<Waiting> wait_for_syn_ack(World& world, const Ends& ends) {
  const std::size_t first = world.wire().packets().size();
  world.wire().hold(is_syn_ack);
  SLUICE_TRY(listening, world.listen(ends.place()));
  SLUICE_TRY(client, world.client(listening, ends.client, ends.client_side));
  SLUICE_CHECK(World::begin_connect(client, listening));
  SLUICE_CHECK(world.wire().await_held(1, kSoon));
  return Waiting{std::move(listening), std::move(client), first};
}
Result<Connection> go_on(World& world, Waiting waiting) {
  world.wire().release();
  SLUICE_CHECK(World::finish_connect(waiting.client));
  SLUICE_TRY(server, world.accept(waiting.listening));
  return Connection{std::move(waiting.client), std::move(server), waiting.first_packet};
}

void listening(World& world, const Row& row) {
  ASSERT_OK(world.in_force(World::policy(kNeeds)));
  ASSERT_VALUE(listener, world.listen({}));
  ASSERT_VALUE(runs, world.runs(listener.end));
  EXPECT_EQ(runs, row.runs);
}

void syn_sent(World& world, const Row& row) {
  ASSERT_OK(world.in_force(World::policy(kNeeds)));
  ASSERT_VALUE(waiting, wait_for_syn_ack(world, kBoth));
  ASSERT_VALUE(runs, world.runs(waiting.client));
  EXPECT_EQ(runs, row.runs);
  ASSERT_VALUE(ecn, world.ecn(waiting.client));
  EXPECT_EQ(ecn, row.ecn);
  const WirePacket syn = world.wire().packets().at(waiting.first_packet);
  EXPECT_TRUE(is_syn(syn) && syn.ece && syn.cwr);
  ASSERT_VALUE(said, world.explain(without_port(waiting.client.peer)));
  EXPECT_NE(said.find(row.explain), std::string::npos) << said;
  ASSERT_VALUE(connection, go_on(world, std::move(waiting)));
}

// `agrees`: the SYN-ACK says so, and is ECT; else it is neither.
Body request(const Ends& ends, bool agrees) {
  return [=](World& world, const Row&) {
    ASSERT_OK(world.in_force(World::policy(kNeeds)));
    ASSERT_VALUE(waiting, wait_for_syn_ack(world, ends));
    const WirePacket syn_ack = world.wire().held().at(0);
    EXPECT_EQ(syn_ack.ece, agrees);
    EXPECT_EQ(syn_ack.ecn != 0, agrees);
    ASSERT_VALUE(connection, go_on(world, std::move(waiting)));
  };
}

// ---- opens ---------------------------------------------------------------------------------------------------------------

Body opens(Ip ip, const Ends& ends, const std::string& client_ecn = "2", const std::string& server_ecn = "2") {
  return [=](World& world, const Row& row) {
    ASSERT_OK(world.in_force(World::policy(kNeeds)));
    const Setting client(world.host(ends.client), kEcn, client_ecn), server(world.host(ends.server), kEcn, server_ecn);
    ASSERT_VALUE(connection, world.open(ends.place(ip), ends.client, ends.client_side));
    world.expect(row, connection);
  };
}

void without_ecn(World& world, const Row& row) {
  ASSERT_OK(world.in_force(World::policy(kNeeds)));
  ASSERT_VALUE(connection, world.open(World::Place{.where = Where::kNear}, "a"));
  world.expect(row, connection);
}

Body cookies(const Ends& ends, const std::string& client_ecn, const std::string& server_ecn, const std::string& timestamps) {
  return [=](World& world, const Row& row) {
    ASSERT_OK(world.in_force(World::policy(kNeeds)));
    const Host &client = world.host(ends.client), &server = world.host(ends.server);
    const Setting ecn_c(client, kEcn, client_ecn), ecn_s(server, kEcn, server_ecn), always(server, kCookies, "2"),
        stamps(server, kTimestamps, timestamps);
    ASSERT_VALUE(connection, world.open(ends.place(), ends.client, ends.client_side));
    world.expect(row, connection);
  };
}

Body loses(bool (*match)(const WirePacket&)) {
  return [=](World& world, const Row& row) {
    ASSERT_OK(world.in_force(World::policy(kNeeds)));
    world.wire().lose_one(match);
    ASSERT_VALUE(connection, world.open(World::Place{}, "a"));
    world.expect(row, connection);
  };
}

Body fast_open(const Ends& ends, const std::string& client_ecn) {
  return [=](World& world, const Row& row) {
    constexpr char kSysctl[] = "net.ipv4.tcp_fastopen";
    constexpr char kNoCookies[] = "519";  // both sides, data in the SYN without a cookie (ip-sysctl: 0x1 | 0x2 | 0x4 | 0x200)
    ASSERT_OK(world.in_force(World::policy(kNeeds)));
    const Host &client_host = world.host(ends.client), &server_host = world.host(ends.server);
    const Setting ecn(client_host, kEcn, client_ecn), on_c(client_host, kSysctl, kNoCookies),
        on_s(server_host, kSysctl, kNoCookies);
    World::Place place = ends.place();
    place.fast_open = 16;
    const std::size_t first = world.wire().packets().size();
    ASSERT_VALUE(listening, world.listen(place));
    ASSERT_VALUE(client, world.client(listening, ends.client, ends.client_side));
    const int on = 1;
    ASSERT_EQ(::setsockopt(client.fd.get(), IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on), 0);
    ASSERT_OK(World::connect(client, listening));  // sends nothing yet
    char data[] = "early";
    ASSERT_EQ(::send(client.fd.get(), data, sizeof data, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof data));
    ASSERT_VALUE(server, world.accept(listening));
    char got[sizeof data] = {};
    ASSERT_EQ(::recv(server.fd.get(), got, sizeof got, MSG_WAITALL), static_cast<ssize_t>(sizeof got));
    const WirePacket syn = world.wire().packets().at(first);
    ASSERT_TRUE(is_syn(syn) && syn.payload_bytes == sizeof data);
    ASSERT_OK(World::finish_connect(client));
    tcp_info info{};
    socklen_t size = sizeof info;
    ASSERT_EQ(::getsockopt(client.fd.get(), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
    ASSERT_NE(info.tcpi_options & TCPI_OPT_SYN_DATA, 0) << "the data in the SYN was not accepted";
    world.expect(row, Connection{std::move(client), std::move(server), first});
  };
}

// Two SYNs that cross: neither end listens.
Body simultaneous(const Ends& ends) {
  return [=](World& world, const Row& row) {
    constexpr std::uint16_t kLeft = 7001, kRight = 7002;
    ASSERT_OK(world.in_force(World::policy(kNeeds)));
    const std::size_t first = world.wire().packets().size();
    const auto target = [&](const std::string& host, std::uint16_t port) {
      Listening to;
      to.end.host = &world.host(host);
      to.end.name = fmt::format("{}:{}", address(host, Where::kFar), port);
      return to;
    };
    const Listening left = target(ends.client, kLeft), right = target(ends.server, kRight);
    ASSERT_VALUE(a, world.client(right, ends.client, ends.client_side, kLeft));
    ASSERT_VALUE(b, world.client(left, ends.server, ends.server_side, kRight));
    world.wire().hold(is_syn);
    ASSERT_OK(World::begin_connect(a, right));
    ASSERT_OK(World::begin_connect(b, left));
    ASSERT_OK(world.wire().await_held(2, kSoon));
    world.wire().release();
    ASSERT_OK(World::finish_connect(a));
    ASSERT_OK(World::finish_connect(b));
    world.expect(row, Connection{std::move(a), std::move(b), first});
  };
}

void reuseport(World& world, const Row& row) {
  constexpr std::uint16_t kPort = 7003;
  constexpr int kListeners = 3, kConnections = 4;
  ASSERT_OK(world.in_force(World::policy(kNeeds)));
  std::vector<Listening> listeners;
  for (int i = 0; i < kListeners; ++i) {
    ASSERT_VALUE(listening, world.listen({.options = {SO_REUSEPORT}, .port = kPort}));
    ASSERT_VALUE(runs, world.runs(listening.end));
    EXPECT_EQ(runs, "transitional");
    listeners.push_back(std::move(listening));
  }
  for (int i = 0; i < kConnections; ++i) {
    const std::size_t first = world.wire().packets().size();
    ASSERT_VALUE(client, world.client(listeners[0], "a", Side::kInside));
    ASSERT_OK(World::connect(client, listeners[0]));
    std::array<pollfd, kListeners> fds{};
    for (int j = 0; j < kListeners; ++j) fds[j] = {listeners[j].end.fd.get(), POLLIN, 0};
    ASSERT_EQ(::poll(fds.data(), fds.size(), static_cast<int>(kSoon.count())), 1);
    const auto chosen = std::ranges::find_if(fds, [](const pollfd& fd) { return fd.revents != 0; });
    ASSERT_VALUE(server, world.accept(listeners[static_cast<std::size_t>(chosen - fds.begin())]));
    world.expect(row, Connection{std::move(client), std::move(server), first});
  }
}

void mptcp(World& world, const Row& row) {
  if (::access("/proc/sys/net/mptcp/enabled", F_OK) != 0) GTEST_SKIP() << "this kernel has no MPTCP (CONFIG_MPTCP)";
  ASSERT_OK(world.in_force(World::policy(kNeeds)));
  ASSERT_VALUE(listening, world.listen({.protocol = IPPROTO_MPTCP}));
  ASSERT_VALUE(connection, world.open(listening, "a"));
  world.expect(row, connection);
  ASSERT_VALUE(migrated, world.agent().json({"migrate"}, {3}));
  std::uint64_t left = 0;
  for (const auto& item : migrated["left"])
    if (item["reason"].get<std::string>().find("MPTCP") != std::string::npos)
      left += std::stoull(item["sockets"].get<std::string>());
  EXPECT_GE(left, 2u) << migrated;
  world.expect_runs(row, connection);
}

// ---- older than the agent, passed on, elsewhere --------------------------------------------------------------------------

// The migration of both ends of a connection was rewritten.
void expect_event_of_two(World& world) {
  ASSERT_VALUE(events, world.events_since_apply());
  EXPECT_THAT(events, testing::Contains(testing::StartsWith("ecn: 2 connections without ECN")));
}

void older_listener(World& world, const Row& row) {
  ASSERT_OK(world.stop_agent());
  ASSERT_VALUE(listener, world.listen({}));
  ASSERT_OK(world.in_force(World::policy(kNeeds)));
  ASSERT_VALUE(runs, world.runs(listener.end));
  EXPECT_EQ(runs, row.runs);
}

Body older(const std::string& ecn) {
  return [=](World& world, const Row& row) {
    ASSERT_OK(world.stop_agent());
    const Setting a(world.host("a"), kEcn, ecn), b(world.host("b"), kEcn, ecn);
    ASSERT_VALUE(connection, world.open(World::Place{}, "a"));
    ASSERT_OK(World::exchange(connection));
    ASSERT_OK(world.in_force(World::policy(kNeeds)));
    if (row.ecn.find("refused") != std::string::npos) expect_event_of_two(world);
    world.expect(row, connection);
  };
}

// On its way between two processes, held by none, while the policy changes.
void passed_in_flight(World& world, const Row& row) {
  ASSERT_OK(world.in_force(World::policy(kOther)));
  ASSERT_VALUE(connection, world.open(World::Place{}, "a"));
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Fd from(ends[0]), to(ends[1]);
  ASSERT_OK(send_fd(from.get(), connection.server.fd.get()));
  connection.server.fd.reset();
  ASSERT_OK(world.in_force(World::policy(kNative)));
  ASSERT_VALUE(received, receive_fd(to.get()));
  connection.server.fd = std::move(received);
  world.expect(row, connection);
}

// Made in b's cgroup, accepted from by this process, which is in another one: the service is the socket's own.
void passed_scope(World& world, const Row& row) {
  Policy policy = World::policy(kNeeds, fmt::format("  - {{name: of-b, match: {{service: of-b}}, use: \"{}\"}}\n", kOther),
                                fmt::format("services:\n  - {{name: of-b, cgroups: [/{}/b]}}\n", world.cgroup_name()));
  policy.bundles.push_back(kOther);
  ASSERT_OK(world.in_force(policy));
  ASSERT_VALUE(connection, world.open(World::Place{}, "a"));
  world.expect(row, connection);
}

// A namespace that comes after the policy: its connections at birth, or after a change of the policy.
Body later_namespace(bool moved) {
  return [=](World& world, const Row& row) {
    ASSERT_OK(world.in_force(World::policy(kNeeds)));
    ASSERT_VALUE(later,
                 Topology::create({.hosts = {{.name = "l", .sysctls = {{"net.ipv4.tcp_congestion_control", kFallback}}}}}));
    const Host& host = later.host("l");
    ASSERT_VALUE(set_up, host.run({"sh", "-c",
                                   fmt::format("ip link set lo up && ip addr add {}/32 dev lo", address("l", Where::kFar))}));
    ASSERT_EQ(set_up.status, 0) << set_up.text;
    const std::string held = fmt::format("/proc/{}/fd/{}", ::getpid(), host.netns_fd());
    ASSERT_EQ(::symlink(held.c_str(), world.later_namespace().c_str()), 0);
    ASSERT_OK(world.add(host));
    [&] {
      ASSERT_VALUE(connection, world.open(World::Place{.host = "l"}, "l"));
      if (moved) {
        ASSERT_OK(world.in_force(World::policy(kOther)));
      }
      world.expect_runs(row, connection);
      for (const End* end : {&connection.client, &connection.server}) {
        ASSERT_VALUE(ecn, world.ecn(*end));
        EXPECT_EQ(ecn, row.ecn);
      }
      ASSERT_OK(World::exchange(connection));
      world.expect_runs(row, connection);
    }();
    world.remove("l");
    ASSERT_EQ(::unlink(world.later_namespace().c_str()), 0);
  };
}

// ---- the policy changes --------------------------------------------------------------------------------------------------

// Between the SYN-ACK's departure and its arrival: the client is in SYN_SENT, the server has a request.
Body changes_in_handshake(const std::string& from, const std::string& to, const std::string& ecn) {
  return [=](World& world, const Row& row) {
    ASSERT_OK(world.in_force(World::policy(from)));
    const Setting a(world.host("a"), kEcn, ecn), b(world.host("b"), kEcn, ecn);
    ASSERT_VALUE(waiting, wait_for_syn_ack(world, kBoth));
    ASSERT_OK(world.in_force(World::policy(to)));
    ASSERT_VALUE(connection, go_on(world, std::move(waiting)));
    world.expect(row, connection);
  };
}

// The same for a client that no ESTABLISHED_CB of ours will come by for: of another cgroup, in a namespace of the agent's. Its
// SYN asks for ECN by its own namespace's tcp_ecn; the peer does not agree.
void handshake_outside(World& world, const Row& row) {
  ASSERT_OK(world.in_force(World::policy(kNative)));
  const Setting a(world.host("a"), kEcn, "1"), c(world.host("c"), kEcn, "0");
  ASSERT_VALUE(waiting, wait_for_syn_ack(world, {"a", Side::kOutside, "c", Side::kOutside}));
  ASSERT_OK(world.in_force(World::policy(kNeeds)));
  ASSERT_VALUE(connection, go_on(world, std::move(waiting)));
  world.expect(row, connection);
}

void backlog_upgrade(World& world, const Row& row) {
  constexpr std::size_t kConnections = 4;
  ASSERT_OK(world.in_force(World::policy(kNeeds)));
  const std::size_t first = world.wire().packets().size();
  ASSERT_VALUE(listening, world.listen({}));
  std::vector<End> clients;
  for (std::size_t i = 0; i < kConnections; ++i) {
    ASSERT_VALUE(client, world.client(listening, "a", Side::kInside));
    ASSERT_OK(World::connect(client, listening));
    clients.push_back(std::move(client));
  }
  ASSERT_OK(world.in_force(World::policy(kNeedsNext)));
  for (std::size_t i = 0; i < kConnections; ++i) {
    ASSERT_VALUE(server, world.accept(listening));
    const auto client = std::ranges::find(clients, server.peer, &End::name);
    ASSERT_NE(client, clients.end());
    world.expect(row, Connection{std::move(*client), std::move(server), first});
  }
}

enum class Kind { kWalk, kHeld, kSelf };

Body moves(Kind kind, const std::string& from, const std::string& to, const std::string& ecn) {
  return [=](World& world, const Row& row) {
    constexpr std::size_t kMoreNamespaces = 8;  // more than are simply walked
    ASSERT_OK(world.in_force(World::policy(from)));
    const Setting a(world.host("a"), kEcn, ecn), b(world.host("b"), kEcn, ecn);
    std::vector<Fd> spaces;
    if (kind == Kind::kHeld) {
      std::vector<std::string> paths;
      for (std::size_t i = 0; i < kMoreNamespaces; ++i) {
        ASSERT_VALUE(space, new_netns());
        paths.push_back(fmt::format("/proc/{}/fd/{}", ::getpid(), space.get()));
        spaces.push_back(std::move(space));
      }
      ASSERT_OK(world.restart_agent(paths));
    }
    ASSERT_VALUE(connection, world.open(World::Place{}, "a"));
    ASSERT_OK(World::exchange(connection));
    if (kind == Kind::kSelf) {
      ASSERT_OK(world.in_force(World::policy(to), {"--no-migrate"}));
      ASSERT_OK(World::exchange(connection));  // many round trips: each end passes its per-RTT point
    } else {
      ASSERT_OK(world.in_force(World::policy(to)));
      if (row.ecn.find("refused") != std::string::npos) expect_event_of_two(world);
    }
    world.expect(row, connection);
    if (kind == Kind::kHeld) {
      ASSERT_OK(world.restart_agent({}));
    }
  };
}

Body rollback(bool forward) {
  return [=](World& world, const Row& row) {
    ASSERT_OK(world.in_force(World::policy(kNeeds)));
    ASSERT_VALUE(connection, world.open(World::Place{}, "a"));
    ASSERT_OK(World::exchange(connection));
    ASSERT_OK(world.rollback(kNeeds));
    if (forward) {
      ASSERT_OK(world.in_force(World::policy(kNeeds)));
    }
    world.expect(row, connection);
  };
}

void down(World& world, const Row& row) {
  ASSERT_OK(world.in_force(World::policy(kNeeds)));
  ASSERT_VALUE(connection, world.open(World::Place{}, "a"));
  ASSERT_OK(World::exchange(connection));
  ASSERT_OK(world.stop_agent());
  world.expect_runs(row, connection);
  const std::size_t before = world.wire().packets().size();
  ASSERT_OK(World::exchange(connection));
  for (const End* end : {&connection.client, &connection.server}) {
    const Flow sent = world.flow(*end, before);
    EXPECT_GT(sent.data_ect, 0u);  // ECN is for life, whoever runs
    EXPECT_GT(sent.echoes, 0u);
  }
}

// An application put its connection, which has no ECN, on a CCA that needs it. Its data is blind: this is also the proof that
// blind_senders() can see one.
void blind_application(World& world, const Row& row) {
  ASSERT_OK(world.in_force(World::policy(kNeeds)));
  ASSERT_VALUE(connection, world.open(World::Place{.host = "c", .side = Side::kOutside}, "a", Side::kOutside));
  const std::string name = world.kernel_name(kNeeds);
  ASSERT_EQ(
      ::setsockopt(connection.client.fd.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())),
      0);
  ASSERT_VALUE(ecn, world.ecn(connection.client));
  EXPECT_EQ(ecn, "blind");
  ASSERT_OK(World::exchange(connection));
  EXPECT_EQ(world.blind_senders(connection, connection.first_packet), 1u);
  ASSERT_VALUE(migrated, world.agent().json({"migrate"}));
  connection.first_packet = world.wire().packets().size();
  world.expect(row, connection);
}

// ---- the cells -----------------------------------------------------------------------------------------------------------

const Cell kCells[] = {
    {"listen", listening},
    {"syn_sent", syn_sent},
    {"request_ecn", request(kBoth, true)},
    {"request_no_ecn", request(kPassive, false)},

    {"v4_both", opens(Ip::kV4, kBoth)},
    {"v4_active", opens(Ip::kV4, kActive)},
    {"v4_passive", opens(Ip::kV4, kPassive)},
    {"v6_both", opens(Ip::kV6, kBoth)},
    {"v6_active", opens(Ip::kV6, kActive)},
    {"v6_passive", opens(Ip::kV6, kPassive)},
    {"mapped_both", opens(Ip::kMapped, kBoth)},
    {"mapped_active", opens(Ip::kMapped, kActive)},
    {"mapped_passive", opens(Ip::kMapped, kPassive)},
    {"no_need", without_ecn},

    {"ecn_both_0_0", opens(Ip::kV4, kBoth, "0", "0")},
    {"ecn_both_0_1", opens(Ip::kV4, kBoth, "0", "1")},
    {"ecn_both_0_2", opens(Ip::kV4, kBoth, "0", "2")},
    {"ecn_both_1_0", opens(Ip::kV4, kBoth, "1", "0")},
    {"ecn_both_1_1", opens(Ip::kV4, kBoth, "1", "1")},
    {"ecn_both_1_2", opens(Ip::kV4, kBoth, "1", "2")},
    {"ecn_both_2_0", opens(Ip::kV4, kBoth, "2", "0")},
    {"ecn_both_2_1", opens(Ip::kV4, kBoth, "2", "1")},
    {"ecn_both_2_2", opens(Ip::kV4, kBoth, "2", "2")},
    {"ecn_active_0_0", opens(Ip::kV4, kActive, "0", "0")},
    {"ecn_active_0_1", opens(Ip::kV4, kActive, "0", "1")},
    {"ecn_active_0_2", opens(Ip::kV4, kActive, "0", "2")},
    {"ecn_active_1_0", opens(Ip::kV4, kActive, "1", "0")},
    {"ecn_active_1_1", opens(Ip::kV4, kActive, "1", "1")},
    {"ecn_active_1_2", opens(Ip::kV4, kActive, "1", "2")},
    {"ecn_active_2_0", opens(Ip::kV4, kActive, "2", "0")},
    {"ecn_active_2_1", opens(Ip::kV4, kActive, "2", "1")},
    {"ecn_active_2_2", opens(Ip::kV4, kActive, "2", "2")},
    {"ecn_passive_0_0", opens(Ip::kV4, kPassive, "0", "0")},
    {"ecn_passive_0_1", opens(Ip::kV4, kPassive, "0", "1")},
    {"ecn_passive_0_2", opens(Ip::kV4, kPassive, "0", "2")},
    {"ecn_passive_1_0", opens(Ip::kV4, kPassive, "1", "0")},
    {"ecn_passive_1_1", opens(Ip::kV4, kPassive, "1", "1")},
    {"ecn_passive_1_2", opens(Ip::kV4, kPassive, "1", "2")},
    {"ecn_passive_2_0", opens(Ip::kV4, kPassive, "2", "0")},
    {"ecn_passive_2_1", opens(Ip::kV4, kPassive, "2", "1")},
    {"ecn_passive_2_2", opens(Ip::kV4, kPassive, "2", "2")},

    {"syn_lost", loses(is_syn)},
    {"syn_ack_lost", loses(is_syn_ack)},
    {"cookies_both", cookies(kBoth, "2", "2", "1")},
    {"cookies_passive", cookies(kPassive, "1", "2", "1")},
    {"cookies_not_asked", cookies(kPassive, "2", "2", "1")},
    {"cookies_ecn_0", cookies(kBoth, "2", "0", "1")},
    {"cookies_no_timestamps", cookies(kPassive, "1", "2", "0")},
    {"fast_open_both", fast_open(kBoth, "2")},
    {"fast_open_active", fast_open(kActive, "2")},
    {"fast_open_passive", fast_open(kPassive, "1")},
    {"simultaneous_both", simultaneous(kBoth)},
    {"simultaneous_one", simultaneous(kActive)},
    {"reuseport", reuseport},
    {"mptcp", mptcp},

    {"older_listener", older_listener},
    {"older_ecn", older("1")},
    {"older_no_ecn", older("2")},
    {"passed_in_flight", passed_in_flight},
    {"passed_scope", passed_scope},
    {"later_namespace", later_namespace(false)},
    {"later_namespace_moved", later_namespace(true)},

    {"handshake_to_needs", changes_in_handshake(kNative, kNeeds, "2")},
    {"handshake_to_needs_ecn", changes_in_handshake(kNative, kNeeds, "1")},
    {"handshake_from_needs", changes_in_handshake(kNeeds, kNative, "2")},
    {"handshake_upgrade", changes_in_handshake(kNeeds, kNeedsNext, "2")},
    {"handshake_outside", handshake_outside},
    {"backlog_upgrade", backlog_upgrade},

    {"walk_to_needs_ecn", moves(Kind::kWalk, kOther, kNeeds, "1")},
    {"walk_to_needs_no_ecn", moves(Kind::kWalk, kOther, kNeeds, "2")},
    {"walk_from_needs", moves(Kind::kWalk, kNeeds, kOther, "2")},
    {"held_to_needs_ecn", moves(Kind::kHeld, kOther, kNeeds, "1")},
    {"held_to_needs_no_ecn", moves(Kind::kHeld, kOther, kNeeds, "2")},
    {"held_from_needs", moves(Kind::kHeld, kNeeds, kOther, "2")},
    {"self_to_needs_ecn", moves(Kind::kSelf, kOther, kNeeds, "1")},
    {"self_to_needs_no_ecn", moves(Kind::kSelf, kOther, kNeeds, "2")},
    {"self_from_needs", moves(Kind::kSelf, kNeeds, kOther, "2")},
    {"rollback", rollback(false)},
    {"rollback_forward", rollback(true)},
    {"down", down},
    {"blind_application", blind_application},
};

class ConnectionStates : public testing::TestWithParam<Cell> {
 protected:
  static void SetUpTestSuite() {
    auto world = World::create();
    ASSERT_OK(world);
    world_ = std::move(*world);
  }
  static void TearDownTestSuite() {
    if (!world_) return;
    EXPECT_OK(world_->stop_agent());
    const char* file = std::getenv("SLUICE_CONNECTION_STATES_JSON");
    if (file != nullptr)
      std::ofstream(file) << nlohmann::json{
          {"cells", cells_}, {"connections", world_->totals().connections}, {"blind_senders", world_->totals().blind_senders}};
    world_.reset();
  }
  void SetUp() override {
    ASSERT_NE(world_, nullptr);
    world_->wire().release();
    world_->wire().lose_one(nullptr);
  }

  static inline std::unique_ptr<World> world_;
  static inline std::size_t cells_ = 0;
};

TEST_P(ConnectionStates, as_specified) {
  ASSERT_VALUE(row, world_->row(GetParam().id));
  GetParam().body(*world_, row);
  ++cells_;
}

INSTANTIATE_TEST_SUITE_P(Cell, ConnectionStates, testing::ValuesIn(kCells), [](const auto& cell) { return cell.param.id; });

}  // namespace
}  // namespace sluice::test
