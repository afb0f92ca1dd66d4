// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The test harness's own promises. Everything else under tests/netns builds on them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "harness/assert.h"
#include "harness/impair_abi.h"
#include "harness/impairment.h"
#include "harness/process.h"
#include "harness/recorder.h"
#include "harness/test_cca.h"
#include "harness/topology.h"
#include "harness/traffic.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

const std::string kPrograms = SLUICE_BUILD_DIR "/bin/";

// A file that goes away with the test.
struct TemporaryFile {
  TemporaryFile() : path(fs::temp_directory_path() / unique_name()) {}
  ~TemporaryFile() { fs::remove(path); }
  fs::path path;
};

// ------------------------------------------------------------------------------------------------------------ Process

TEST(Process, reports_exit_status_and_signal) {
  ASSERT_VALUE(exits, Process::exec({"sh", "-c", "exit 7"}, {}));
  ASSERT_VALUE(status, exits.wait(kSoon));
  EXPECT_EQ(status, 7);
  ASSERT_VALUE(killed, Process::exec({"sleep", "600"}, {}));
  ASSERT_OK(killed.signal(SIGTERM));
  ASSERT_VALUE(signalled, killed.wait(kSoon));
  EXPECT_EQ(signalled, 128 + SIGTERM);
}

TEST(Process, that_cannot_run_is_an_error_at_once) {
  auto missing = Process::exec({"/nonexistent/program"}, {});
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().sys_errno, ENOENT);
}

TEST(Process, does_not_outlive_its_owner) {
  pid_t pid;
  {
    ASSERT_VALUE(sleeper, Process::exec({"sleep", "600"}, {}));
    pid = sleeper.pid();
    auto waited = sleeper.wait(Millis(0));
    ASSERT_FALSE(waited.has_value());
    EXPECT_EQ(waited.error().code, Code::kTimeout);
  }
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(Process, talks_over_pipes) {
  ASSERT_VALUE(cat, Process::exec({"cat"}, {.pipe_stdin = true, .pipe_stdout = true}));
  ASSERT_OK(cat.write("one\ntwo\nrest"));
  ASSERT_VALUE(one, cat.read_line(kSoon));
  EXPECT_EQ(one, "one");
  ASSERT_VALUE(two, cat.read_line(kSoon));
  EXPECT_EQ(two, "two");
  cat.close_input();
  ASSERT_VALUE(rest, cat.read_all(kSoon));
  EXPECT_EQ(rest, "rest");
}

// ----------------------------------------------------------------------------------------------------------- Topology

// Inodes of the network namespaces that some process is in or holds.
std::set<std::string> namespaces_in_use() {
  std::set<std::string> found;
  std::error_code error;
  for (const auto& process : fs::directory_iterator("/proc", error)) {
    std::error_code gone;
    if (auto own = fs::read_symlink(process.path() / "ns/net", gone); !gone) found.insert(own);
    for (fs::directory_iterator fd(process.path() / "fd", gone), end; !gone && fd != end; fd.increment(gone)) {
      std::error_code closed;
      if (auto target = fs::read_symlink(fd->path(), closed); !closed && target.native().starts_with("net:["))
        found.insert(target);
    }
  }
  return found;
}

TEST(Topology, leaves_nothing_behind) {
  std::vector<std::string> cgroups, names;
  std::vector<std::string> inodes;
  pid_t orphan = 0;
  {
    TopologySpec spec = pair();
    spec.bind_names = true;
    ASSERT_VALUE(topology, Topology::create(spec));
    for (const auto& host : topology.hosts()) {
      cgroups.push_back(host->cgroup());
      names.push_back(host->netns_path());
      inodes.push_back(fmt::format("net:[{}]", host->netns_inode()));
      EXPECT_TRUE(fs::is_directory(host->cgroup()));
      struct stat info{};
      ASSERT_EQ(::stat(host->netns_path().c_str(), &info), 0);
      EXPECT_EQ(info.st_ino, host->netns_inode());
    }
    cgroups.push_back(topology.cgroup());
    // A process that left its parent: only the cgroup still knows it.
    ASSERT_VALUE(said, topology.host("a").run({"sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"}));
    orphan = std::stoi(said.text);
    ASSERT_EQ(::kill(orphan, 0), 0);
    auto in_use = namespaces_in_use();
    for (const std::string& inode : inodes) EXPECT_TRUE(in_use.contains(inode));
  }
  for (const std::string& path : cgroups) EXPECT_FALSE(fs::exists(path)) << path;
  for (const std::string& path : names) EXPECT_FALSE(fs::exists(path)) << path;
  auto in_use = namespaces_in_use();
  for (const std::string& inode : inodes) EXPECT_FALSE(in_use.contains(inode)) << inode;
  std::ifstream stat(fmt::format("/proc/{}/stat", orphan));
  std::string text;
  std::getline(stat, text);
  EXPECT_TRUE(text.empty() || text.find(") Z ") != std::string::npos) << "the orphan still runs: " << text;
}

TEST(Topology, host_runs_things_in_its_namespace_and_cgroup) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  const Host& host = topology.host("a");
  ASSERT_VALUE(output, host.run({"sh", "-c", "readlink /proc/self/ns/net; grep ^0:: /proc/self/cgroup"}));
  EXPECT_EQ(output.status, 0);
  EXPECT_EQ(output.text, fmt::format("net:[{}]\n0::/{}/a\n", host.netns_inode(), topology.name()));
  std::uint64_t inode = 0;
  ASSERT_OK(host.call([&]() -> Status {
    struct stat info{};
    if (::stat("/proc/thread-self/ns/net", &info) < 0) return fail_errno(errno, "stat");
    inode = info.st_ino;
    return {};
  }));
  EXPECT_EQ(inode, host.netns_inode());
  ASSERT_VALUE(child, host.fork([&] {
    struct stat info{};
    return ::stat("/proc/self/ns/net", &info) == 0 && info.st_ino == host.netns_inode() ? 42 : 1;
  }));
  ASSERT_VALUE(status, child.wait(kSoon));
  EXPECT_EQ(status, 42);
}

TEST(Topology, sysctls_are_the_hosts_own) {
  TopologySpec spec = pair();
  spec.hosts[0].sysctls["net.ipv4.tcp_ecn"] = "1";
  spec.hosts[1].sysctls["net.ipv4.tcp_ecn"] = "0";
  ASSERT_VALUE(topology, Topology::create(spec));
  ASSERT_VALUE(a, topology.host("a").sysctl("net.ipv4.tcp_ecn"));
  ASSERT_VALUE(b, topology.host("b").sysctl("net.ipv4.tcp_ecn"));
  EXPECT_EQ(a, "1");
  EXPECT_EQ(b, "0");
}

TEST(Topology, names_what_is_wrong_in_its_description) {
  TopologySpec spec = pair();
  spec.links[0].b.host = "nobody";
  auto unknown = Topology::create(spec);
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code, Code::kInvalid);
  EXPECT_NE(unknown.error().message().find("nobody"), std::string::npos);
  spec = pair();
  spec.links[0].a.addresses = {"10.77.0.999/24"};
  auto address = Topology::create(spec);
  ASSERT_FALSE(address.has_value());
  EXPECT_NE(address.error().message().find("10.77.0.999"), std::string::npos);
}

// Sends one echo request from `from` and waits for its answer.
Status ping(const Host& from, const std::string& to) {
  return from.call([&]() -> Status {
    const bool v6 = to.find(':') != std::string::npos;
    Fd socket(::socket(v6 ? AF_INET6 : AF_INET, SOCK_RAW | SOCK_CLOEXEC, v6 ? static_cast<int>(IPPROTO_ICMPV6) : IPPROTO_ICMP));
    if (!socket) return fail_errno(errno, "raw socket");
    sockaddr_storage address{};
    address.ss_family = v6 ? AF_INET6 : AF_INET;
    ::inet_pton(address.ss_family, to.c_str(),
                v6 ? static_cast<void*>(&reinterpret_cast<sockaddr_in6&>(address).sin6_addr)
                   : static_cast<void*>(&reinterpret_cast<sockaddr_in&>(address).sin_addr));
    socklen_t length = v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    // Type, code, checksum (over zeros but the type: for IPv6 the kernel computes it), identifier, sequence number.
    std::uint8_t request[8] = {};
    request[0] = v6 ? ICMP6_ECHO_REQUEST : ICMP_ECHO;
    if (!v6) {
      std::uint16_t checksum = static_cast<std::uint16_t>(~htons(ICMP_ECHO << 8));
      std::memcpy(request + 2, &checksum, sizeof(checksum));
    }
    if (::sendto(socket.get(), request, sizeof(request), 0, reinterpret_cast<sockaddr*>(&address), length) < 0)
      return fail_errno(errno, "cannot send to {}", to);
    for (;;) {
      pollfd entry{socket.get(), POLLIN, 0};
      if (::poll(&entry, 1, static_cast<int>(kSoon.count())) != 1) return fail(Code::kTimeout, "no answer from {}", to);
      std::uint8_t answer[256];
      ssize_t got = ::recv(socket.get(), answer, sizeof(answer), 0);
      std::size_t at = v6 ? 0 : static_cast<std::size_t>(answer[0] & 15) * 4;
      if (got > static_cast<ssize_t>(at) && answer[at] == (v6 ? ICMP6_ECHO_REPLY : ICMP_ECHOREPLY)) return {};
    }
  });
}

std::uint64_t received_packets(const Host& host, const std::string& interface) {
  auto output = host.run({"cat", "/proc/net/dev"});
  if (!output) return 0;
  std::istringstream lines(output->text);
  for (std::string line; std::getline(lines, line);) {
    auto colon = line.find(interface + ":");
    if (colon == std::string::npos) continue;
    std::istringstream fields(line.substr(colon + interface.size() + 1));
    std::uint64_t bytes = 0, packets = 0;
    fields >> bytes >> packets;
    return packets;
  }
  return 0;
}

TEST(Topology, pings_in_both_families_and_nothing_else_is_on_the_wire) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  const Host& a = topology.host("a");
  const Host& b = topology.host("b");
  ASSERT_OK(ping(a, b.address(AF_INET)));
  ASSERT_OK(ping(a, b.address(AF_INET6)));
  EXPECT_EQ(received_packets(a, "eth0"), 2u);
  EXPECT_EQ(received_packets(b, "eth0"), 2u);
}

TEST(Topology, star_and_router_carry_traffic) {
  ASSERT_VALUE(three, Topology::create(star({{"a", {"10.1.0.1/8", "fd00:1::1/16"}},
                                             {"b", {"10.2.0.1/8", "fd00:2::1/16"}},
                                             {"c", {"10.3.0.1/8", "fd00:3::1/16"}}})));
  ASSERT_OK(ping(three.host("a"), "10.2.0.1"));
  ASSERT_OK(ping(three.host("a"), "fd00:2::1"));
  EXPECT_EQ(received_packets(three.host("c"), "eth0"), 0u) << "the switch must not flood";

  ASSERT_VALUE(routed,
               Topology::create(
                   {.hosts = {{.name = "a"}, {.name = "router", .forwarding = true}, {.name = "b"}},
                    .links = {{.a = {"a", {"10.1.0.1/24", "fd01::1/64"}}, .b = {"router", {"10.1.0.254/24", "fd01::fe/64"}}},
                              {.a = {"b", {"10.2.0.1/24", "fd02::1/64"}}, .b = {"router", {"10.2.0.254/24", "fd02::fe/64"}}}},
                    .routes = {{"a", "default", "10.1.0.254"},
                               {"a", "default", "fd01::fe"},
                               {"b", "default", "10.2.0.254"},
                               {"b", "default", "fd02::fe"}}}));
  ASSERT_OK(ping(routed.host("a"), "10.2.0.1"));
  ASSERT_OK(ping(routed.host("b"), "fd01::1"));
}

// --------------------------------------------------------------------------------------------------------- Impairment

struct Datagram {
  std::uint32_t number;
  bool ce;
};

// Numbered UDP datagrams from a to b, marked ECT(0), and what b got of them, in order.
class Stream {
 public:
  static Result<Stream> open(const Host& a, const Host& b, int family, std::size_t size) {
    Stream stream(size);
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    const bool v6 = family == AF_INET6;
    SLUICE_CHECK(b.call([&]() -> Status {
      stream.receiver_ = Fd(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      int buffer = 64 << 20, on = 1;
      ::setsockopt(stream.receiver_.get(), SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer));
      ::setsockopt(stream.receiver_.get(), v6 ? static_cast<int>(IPPROTO_IPV6) : IPPROTO_IP, v6 ? IPV6_RECVTCLASS : IP_RECVTOS,
                   &on, sizeof(on));
      address.ss_family = static_cast<sa_family_t>(family);
      ::inet_pton(family, b.address(family).c_str(),
                  v6 ? static_cast<void*>(&reinterpret_cast<sockaddr_in6&>(address).sin6_addr)
                     : static_cast<void*>(&reinterpret_cast<sockaddr_in&>(address).sin_addr));
      if (::bind(stream.receiver_.get(), reinterpret_cast<sockaddr*>(&address),
                 v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)) < 0 ||
          ::getsockname(stream.receiver_.get(), reinterpret_cast<sockaddr*>(&address), &length) < 0)
        return fail_errno(errno, "bind");
      return {};
    }));
    SLUICE_CHECK(a.call([&]() -> Status {
      stream.sender_ = Fd(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      int ect0 = 2;
      ::setsockopt(stream.sender_.get(), v6 ? static_cast<int>(IPPROTO_IPV6) : IPPROTO_IP, v6 ? IPV6_TCLASS : IP_TOS, &ect0,
                   sizeof(ect0));
      if (::connect(stream.sender_.get(), reinterpret_cast<sockaddr*>(&address), length) < 0)
        return fail_errno(errno, "connect");
      return {};
    }));
    return stream;
  }

  Status send(std::uint32_t count) {
    std::vector<char> datagram(size_, 'x');
    for (std::uint32_t number = 0; number < count; number++) {
      std::memcpy(datagram.data(), &number, sizeof(number));
      if (::send(sender_.get(), datagram.data(), datagram.size(), 0) < 0)
        return fail_errno(errno, "send of datagram {}", number);
    }
    return {};
  }

  // What arrived so far; on one CPU, all that will.
  std::vector<Datagram> receive() {
    std::vector<Datagram> got;
    for (;;) {
      std::uint32_t number = 0;
      alignas(cmsghdr) char control[128];
      iovec data{&number, sizeof(number)};
      msghdr message{};
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      if (::recvmsg(receiver_.get(), &message, 0) < 0) return got;
      std::uint8_t tos = 0;
      for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header))
        tos = *CMSG_DATA(header);
      got.push_back({number, (tos & 3) == 3});
    }
  }

 private:
  explicit Stream(std::size_t size) : size_(size) {}
  Fd sender_, receiver_;
  std::size_t size_;
};

bool has(std::uint8_t actions, impair_action action) { return (actions & 1u << action) != 0; }

class BadWire : public testing::TestWithParam<int> {};

TEST_P(BadWire, same_seed_does_the_same_to_the_same_packets_and_the_receiver_sees_just_that) {
  constexpr std::uint32_t kCount = 3000;
  ASSERT_VALUE(topology, Topology::create(pair()));
  ImpairmentSpec spec{
      .seed = 7, .ce = 0.1, .drop = 0.05, .duplicate = 0.05, .corrupt = 0.05, .reorder = 0.02, .drop_every = 500};
  ASSERT_VALUE(wire, Impairment::attach(topology.host("b"), "eth0", spec));
  ASSERT_VALUE(stream, Stream::open(topology.host("a"), topology.host("b"), GetParam(), 200));
  OneCpu pinned;
  ASSERT_OK(stream.send(kCount));
  std::vector<Datagram> got = stream.receive();
  std::vector<std::uint8_t> journal = wire.journal();
  ImpairmentCounters counters = wire.counters();
  ASSERT_EQ(journal.size(), kCount);
  EXPECT_EQ(counters.packets, kCount);
  EXPECT_EQ(counters.seen_ect0, kCount);
  EXPECT_EQ(counters.failed, 0u);
  EXPECT_EQ(counters.hold_full, 0u);

  // Each datagram's fate, from the journal.
  std::map<std::uint32_t, std::vector<bool>> arrived;  // number -> CE of each copy
  for (const Datagram& datagram : got) arrived[datagram.number].push_back(datagram.ce);
  std::map<impair_action, std::uint64_t> seen;
  std::uint64_t still_held = counters.reordered - counters.released;
  for (std::uint32_t n = 0; n < kCount; n++) {
    std::uint8_t actions = journal[n];
    for (impair_action action : {IMPAIR_CE, IMPAIR_DROP, IMPAIR_DUPLICATE, IMPAIR_CORRUPT, IMPAIR_REORDER})
      seen[action] += has(actions, action);
    EXPECT_TRUE((n + 1) % 500 != 0 || has(actions, IMPAIR_DROP)) << n;
    std::size_t copies = 1;
    if (has(actions, IMPAIR_DROP) || has(actions, IMPAIR_CORRUPT))
      copies = 0;  // a wrong checksum is as good as a loss
    else if (has(actions, IMPAIR_DUPLICATE))
      copies = 2;
    if (has(actions, IMPAIR_REORDER) && arrived[n].empty()) {
      ASSERT_GT(still_held, 0u) << "datagram " << n << " was held and never sent on";
      still_held--;
      continue;
    }
    ASSERT_EQ(arrived[n].size(), copies) << "datagram " << n << ", actions " << int{actions};
    for (bool ce : arrived[n]) EXPECT_EQ(ce, has(actions, IMPAIR_CE)) << n;
  }
  EXPECT_EQ(still_held, 0u);
  EXPECT_EQ(seen[IMPAIR_CE], counters.ce);
  EXPECT_EQ(seen[IMPAIR_DROP], counters.dropped);
  EXPECT_EQ(seen[IMPAIR_DUPLICATE], counters.duplicated);
  EXPECT_EQ(seen[IMPAIR_CORRUPT], counters.corrupted);
  EXPECT_EQ(seen[IMPAIR_REORDER], counters.reordered);
  // Probabilities are met: at 3000 draws of 0.05 or 0.1, five standard deviations are 60 and 82; the seed is fixed anyway.
  EXPECT_NEAR(static_cast<double>(counters.ce), 0.1 * kCount * 0.95, 82);
  EXPECT_NEAR(static_cast<double>(counters.dropped), 0.05 * kCount + 6, 60);
  EXPECT_GT(counters.reordered, 20u);

  // A held datagram comes after the reorder_distance that followed it.
  std::map<std::uint32_t, std::size_t> place;
  for (std::size_t i = 0; i < got.size(); i++) place.emplace(got[i].number, i);
  for (std::uint32_t n = 0; n + spec.reorder_distance < kCount; n++) {
    if (!has(journal[n], IMPAIR_REORDER) || !place.contains(n)) continue;
    for (std::uint32_t later = n + 1; later <= n + spec.reorder_distance; later++) {
      if (journal[later] != 0 && journal[later] != 1 << IMPAIR_CE) continue;
      EXPECT_LT(place[later], place[n]) << later << " should have overtaken " << n;
    }
  }

  ASSERT_OK(wire.restart(spec));
  ASSERT_OK(stream.send(kCount));
  std::vector<Datagram> again = stream.receive();
  EXPECT_EQ(wire.journal(), journal) << "the same seed";
  ASSERT_EQ(again.size(), got.size());
  for (std::size_t i = 0; i < got.size(); i++) {
    ASSERT_EQ(again[i].number, got[i].number) << "at " << i;
    ASSERT_EQ(again[i].ce, got[i].ce) << "at " << i;
  }

  spec.seed = 8;
  ASSERT_OK(wire.restart(spec));
  ASSERT_OK(stream.send(kCount));
  EXPECT_NE(wire.journal(), journal) << "another seed";
}

TEST_P(BadWire, rewrites_and_drops_by_codepoint) {
  constexpr std::uint32_t kCount = 50;
  ASSERT_VALUE(topology, Topology::create(pair()));
  ASSERT_VALUE(wire, Impairment::attach(topology.host("b"), "eth0", {.ecn = {0, 1, 3, 3}, .dscp = 10}));
  ASSERT_VALUE(stream, Stream::open(topology.host("a"), topology.host("b"), GetParam(), 100));
  OneCpu pinned;
  ASSERT_OK(stream.send(kCount));
  std::vector<Datagram> got = stream.receive();
  ASSERT_EQ(got.size(), kCount) << "a wrong header checksum is as good as a loss";
  EXPECT_TRUE(std::ranges::all_of(got, &Datagram::ce));
  EXPECT_EQ(wire.counters().rewritten, kCount);
  EXPECT_EQ(wire.counters().failed, 0u);

  ASSERT_OK(wire.restart({.ecn = {0, 1, ImpairmentSpec::kDrop, 3}}));
  ASSERT_OK(stream.send(kCount));
  EXPECT_EQ(stream.receive().size(), 0u);
  EXPECT_EQ(wire.counters().dropped, kCount);

  ASSERT_OK(wire.restart({}));
  ASSERT_OK(stream.send(kCount));
  got = stream.receive();
  ASSERT_EQ(got.size(), kCount);
  EXPECT_TRUE(std::ranges::none_of(got, &Datagram::ce));
  EXPECT_EQ(wire.counters().rewritten, 0u);
}

INSTANTIATE_TEST_SUITE_P(Families, BadWire, testing::Values(AF_INET, AF_INET6),
                         [](const auto& test) { return test.param == AF_INET ? "ipv4" : "ipv6"; });

TEST(Impairment, queue_marks_above_one_backlog_and_drops_above_another) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  constexpr std::size_t kPayload = 958;  // 1000 bytes on the wire
  ImpairmentSpec spec{.queue_rate_bytes_per_s = 1000, .queue_mark_bytes = 10000, .queue_limit_bytes = 20000};
  ASSERT_VALUE(wire, Impairment::attach(topology.host("b"), "eth0", spec));
  ASSERT_VALUE(stream, Stream::open(topology.host("a"), topology.host("b"), AF_INET, kPayload));
  OneCpu pinned;
  auto begin = std::chrono::steady_clock::now();
  ASSERT_OK(stream.send(100));
  std::vector<Datagram> got = stream.receive();
  double drained = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();  // packets, one a second
  ASSERT_GE(got.size(), 20u);
  EXPECT_LE(static_cast<double>(got.size()), 20 + std::ceil(drained));
  for (std::size_t i = 0; i < 10; i++) EXPECT_FALSE(got[i].ce) << i;
  EXPECT_EQ(wire.counters().dropped, 100 - got.size());
  EXPECT_GE(static_cast<double>(wire.counters().ce), 10 - std::ceil(drained));
  EXPECT_TRUE(got.back().ce);
}

TEST(Impairment, only_its_port) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  ASSERT_VALUE(wire, Impairment::attach(topology.host("b"), "eth0", {.drop = 1, .port = 1}));
  ASSERT_VALUE(stream, Stream::open(topology.host("a"), topology.host("b"), AF_INET, 100));
  OneCpu pinned;
  ASSERT_OK(stream.send(50));
  EXPECT_EQ(stream.receive().size(), 50u);
  EXPECT_EQ(wire.counters().packets, 0u);
  EXPECT_EQ(wire.counters().other, 50u);
}

TEST(Impairment, ends_with_its_owner) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  ASSERT_VALUE(stream, Stream::open(topology.host("a"), topology.host("b"), AF_INET, 100));
  OneCpu pinned;
  {
    ASSERT_VALUE(wire, Impairment::attach(topology.host("b"), "eth0", {.drop = 1}));
    ASSERT_OK(stream.send(10));
    EXPECT_EQ(stream.receive().size(), 0u);
    auto second = Impairment::attach(topology.host("b"), "eth0", {});
    EXPECT_FALSE(second.has_value()) << "two on one interface";
  }
  ASSERT_OK(stream.send(10));
  EXPECT_EQ(stream.receive().size(), 10u);
  ASSERT_VALUE(filters, topology.host("b").run({"tc", "qdisc", "show", "dev", "eth0"}));
  EXPECT_EQ(filters.text.find("clsact"), std::string::npos) << filters.text;
}

TEST(Impairment, refuses_what_it_cannot_do) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  auto interface = Impairment::attach(topology.host("b"), "eth9", {});
  ASSERT_FALSE(interface.has_value());
  EXPECT_NE(interface.error().message().find("eth9"), std::string::npos);
  auto probability = Impairment::attach(topology.host("b"), "eth0", {.drop = 1.5});
  ASSERT_FALSE(probability.has_value());
  EXPECT_EQ(probability.error().code, Code::kInvalid);
  auto codepoint = Impairment::attach(topology.host("b"), "eth0", {.ecn = {0, 1, 2, 4}});
  ASSERT_FALSE(codepoint.has_value());
  EXPECT_EQ(codepoint.error().code, Code::kInvalid);
  auto dscp = Impairment::attach(topology.host("b"), "eth0", {.dscp = 64});
  ASSERT_FALSE(dscp.has_value());
  EXPECT_EQ(dscp.error().code, Code::kInvalid);
}

// ------------------------------------------------------------------------------------------------------------ Traffic

std::string at(const Host& host, int family, int port = 5000) {
  return fmt::format(fmt::runtime(family == AF_INET6 ? "[{}]:{}" : "{}:{}"), host.address(family), port);
}

TEST(Traffic, two_thousand_connections_recorded_at_both_ends) {
  constexpr std::uint64_t kConnections = 2000;
  ASSERT_VALUE(topology, Topology::create(pair()));
  const Host& a = topology.host("a");
  const Host& b = topology.host("b");
  TemporaryFile client_file, server_file;
  ASSERT_VALUE(server, Traffic::server(b, {"--listen", at(b, AF_INET), "--listen", at(b, AF_INET6), "--connections",
                                           std::to_string(kConnections), "--record", server_file.path}));
  ASSERT_VALUE(client,
               Traffic::client(a, {"--connect", at(b, AF_INET), "--connect", at(b, AF_INET6), "--connections",
                                   std::to_string(kConnections), "--concurrency", "200", "--bytes", "3000", "--reply-bytes",
                                   "5000", "--requests", "2", "--cca", "reno", "--record", client_file.path}));
  ASSERT_VALUE(sent, client.finish(kSoon));
  ASSERT_VALUE(served, server.finish(kSoon));
  for (const TrafficSummary& summary : {sent, served}) {
    EXPECT_EQ(summary.opened, kConnections);
    EXPECT_EQ(summary.closed, kConnections);
    EXPECT_EQ(summary.failed, 0u);
    EXPECT_EQ(summary.requests, 2 * kConnections);
    EXPECT_EQ(summary.bytes, 2 * kConnections * 8000);
  }
  EXPECT_EQ(sent.cca_at_open, (std::map<std::string, std::uint64_t>{{"reno", kConnections}}));
  EXPECT_EQ(sent.cca_at_close, sent.cca_at_open);

  ASSERT_VALUE(of_client, read_traffic_records(client_file.path));
  ASSERT_VALUE(of_server, read_traffic_records(server_file.path));
  EXPECT_EQ(of_client.size(), 2 * kConnections);
  EXPECT_EQ(of_server.size(), 2 * kConnections);
  std::map<std::pair<std::string, std::uint64_t>, const TrafficRecord*> ends;
  for (const TrafficRecord& record : of_server) {
    EXPECT_EQ(record.netns_inode, b.netns_inode());
    ends[{record.event, record.id}] = &record;
  }
  std::uint64_t v6 = 0;
  for (const TrafficRecord& record : of_client) {
    ASSERT_EQ(record.netns_inode, a.netns_inode());
    auto other = ends.find({record.event, record.id});
    ASSERT_NE(other, ends.end()) << record.event << " " << record.id;
    ASSERT_EQ(other->second->local, record.remote);
    ASSERT_EQ(other->second->remote, record.local);
    ASSERT_EQ(other->second->run, record.run);
    v6 += record.event == "open" && record.local.starts_with("[");
  }
  EXPECT_EQ(v6, kConnections / 2);
}

TEST(Traffic, survives_a_bad_wire_with_every_byte_right) {
  TopologySpec spec = pair();
  for (HostSpec& host : spec.hosts) host.sysctls = {{"net.ipv4.tcp_ecn", "1"}, {"net.ipv4.tcp_ecn_fallback", "0"}};
  ASSERT_VALUE(topology, Topology::create(spec));
  const Host& a = topology.host("a");
  const Host& b = topology.host("b");
  ImpairmentSpec bad{.seed = 3, .ce = 0.05, .drop = 0.01, .duplicate = 0.02, .corrupt = 0.02, .reorder = 0.02};
  ASSERT_VALUE(to_b, Impairment::attach(b, "eth0", bad));
  bad.seed = 4;
  ASSERT_VALUE(to_a, Impairment::attach(a, "eth0", bad));
  TemporaryFile file;
  ASSERT_VALUE(server, Traffic::server(b, {"--listen", at(b, AF_INET), "--listen", at(b, AF_INET6)}));
  ASSERT_VALUE(client, Traffic::client(a, {"--connect", at(b, AF_INET), "--connect", at(b, AF_INET6), "--connections", "40",
                                           "--concurrency", "20", "--bytes", "50000", "--reply-bytes", "50000", "--cca", "reno",
                                           "--record", file.path}));
  ASSERT_VALUE(sent, client.finish(kSoon));
  EXPECT_EQ(sent.failed, 0u) << (sent.errors.empty() ? "" : sent.errors.begin()->first);
  EXPECT_EQ(sent.closed, 40u);
  ASSERT_VALUE(served, server.stop(kSoon));
  EXPECT_EQ(served.closed, 40u);
  EXPECT_EQ(sent.ecn_at_open, 40u);
  for (const ImpairmentCounters& counters : {to_a.counters(), to_b.counters()}) {
    EXPECT_GT(counters.ce, 0u);
    EXPECT_GT(counters.dropped, 0u);
    EXPECT_GT(counters.duplicated, 0u);
    EXPECT_GT(counters.corrupted, 0u);
    EXPECT_GT(counters.released, 0u);
    EXPECT_EQ(counters.failed, 0u);
  }
  ASSERT_VALUE(records, read_traffic_records(file.path));
  std::uint64_t marks = 0, retransmits = 0;
  for (const TrafficRecord& record : records) {
    if (record.event != "close") continue;
    EXPECT_TRUE(record.ecn && record.ecn_seen);
    marks += record.delivered_ce;
    retransmits += record.retransmits;
  }
  EXPECT_GT(marks, 0u);
  EXPECT_GT(retransmits, 0u);
}

TEST(Traffic, holds_connections_samples_them_and_stops_in_good_order) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  const Host& a = topology.host("a");
  const Host& b = topology.host("b");
  TemporaryFile file;
  ASSERT_VALUE(server, Traffic::server(b, {"--listen", at(b, AF_INET)}));
  ASSERT_VALUE(client, Traffic::client(a, {"--connect", at(b, AF_INET), "--connections", "300", "--hold", "600", "--period",
                                           "50", "--max-seconds", "120", "--record", file.path}));
  ASSERT_VALUE(line, client.expect("open ", kSoon));
  EXPECT_EQ(line, "open 300");
  ASSERT_VALUE(sampled, client.sample(kSoon));
  EXPECT_EQ(sampled, 300u);
  ASSERT_OK(client.process().signal(SIGUSR1));
  ASSERT_VALUE(by_signal, client.expect("sampled ", kSoon));
  EXPECT_EQ(by_signal, "sampled 300");
  ASSERT_VALUE(sent, client.stop(kSoon));
  EXPECT_EQ(sent.closed, 300u);
  EXPECT_EQ(sent.failed, 0u);
  EXPECT_GE(sent.requests, 600u) << "one at the beginning and one at the end at least";
  ASSERT_VALUE(served, server.stop(kSoon));
  EXPECT_EQ(served.closed, 300u);
  EXPECT_EQ(served.requests, sent.requests);
  ASSERT_VALUE(records, read_traffic_records(file.path));
  EXPECT_EQ(std::count_if(records.begin(), records.end(), [](const auto& r) { return r.event == "sample"; }), 600);
}

TEST(Traffic, stopped_amid_new_connections_it_ends_each_in_good_order) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  const Host& b = topology.host("b");
  ASSERT_VALUE(server, Traffic::server(b, {"--listen", at(b, AF_INET)}));
  for (int round = 0; round < 10; ++round) {
    ASSERT_VALUE(client, Traffic::client(topology.host("a"), {"--connect", at(b, AF_INET), "--connections", "100000000"}));
    ASSERT_OK(client.sample(kSoon));  // it is at work
    ASSERT_VALUE(sent, client.stop(kSoon));
    EXPECT_EQ(sent.failed, 0u) << testing::PrintToString(sent.errors);
    EXPECT_EQ(sent.closed, sent.opened);
  }
  ASSERT_VALUE(served, server.stop(kSoon));
  EXPECT_EQ(served.failed, 0u) << testing::PrintToString(served.errors);
  EXPECT_EQ(served.closed, served.opened);
}

TEST(Traffic, says_what_failed_and_ends_in_time) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  const Host& a = topology.host("a");
  const Host& b = topology.host("b");
  ASSERT_VALUE(refused, Traffic::client(a, {"--connect", at(b, AF_INET), "--connections", "5"}));
  ASSERT_VALUE(nobody, refused.finish(kSoon));
  EXPECT_EQ(nobody.failed, 5u);
  EXPECT_EQ(nobody.errors, (std::map<std::string, std::uint64_t>{{"connect: ECONNREFUSED", 5}}));

  ASSERT_VALUE(wire, Impairment::attach(b, "eth0", {.drop = 1}));
  ASSERT_VALUE(server, Traffic::server(b, {"--listen", at(b, AF_INET)}));
  ASSERT_VALUE(client, Traffic::client(a, {"--connect", at(b, AF_INET), "--connections", "5", "--max-seconds", "0.2"}));
  ASSERT_VALUE(cut, client.finish(kSoon));
  EXPECT_EQ(cut.failed, 5u);
  EXPECT_EQ(cut.errors, (std::map<std::string, std::uint64_t>{{"not connected in time", 5}}));
  ASSERT_VALUE(served, server.stop(kSoon));
  EXPECT_EQ(served.opened, 0u);
}

TEST(Traffic, ends_when_its_owner_closes_the_pipe) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  const Host& b = topology.host("b");
  ASSERT_VALUE(server, Traffic::server(b, {"--listen", at(b, AF_INET), "--max-seconds", "600"}));
  server.process().close_input();
  ASSERT_VALUE(summary, server.finish(kSoon));
  EXPECT_EQ(summary.opened, 0u);
}

// ----------------------------------------------------------------------------------------------------------- Recorder

// The recorder's view of established sockets, by "address:port" of their remote and local ends.
std::map<std::uint64_t, SocketRecord> established(const std::vector<SocketRecord>& sockets) {
  std::map<std::uint64_t, SocketRecord> found;
  for (const SocketRecord& socket : sockets)
    if (socket.state == "ESTABLISHED") found.emplace(socket.cookie, socket);
  return found;
}

TEST(Recorder, agrees_with_tcp_congestion_for_native_ccas_and_gives_the_map_id_of_others) {
  TopologySpec spec = pair();
  for (HostSpec& host : spec.hosts) host.sysctls["net.ipv4.tcp_ecn"] = "1";
  ASSERT_VALUE(topology, Topology::create(spec));
  const Host& a = topology.host("a");
  const Host& b = topology.host("b");
  std::string own_name = unique_cca_name();
  ASSERT_VALUE(own, TestCca::register_as(own_name));
  ASSERT_VALUE(recorder, Recorder::load());
  ASSERT_VALUE(server, Traffic::server(b, {"--listen", at(b, AF_INET), "--listen", at(b, AF_INET6)}));
  for (const std::string& cca : {std::string("reno"), std::string("cubic"), std::string("bbr"), own_name}) {
    SCOPED_TRACE(cca);
    TemporaryFile file;
    ASSERT_VALUE(client, Traffic::client(a, {"--connect", at(b, AF_INET), "--connect", at(b, AF_INET6), "--connections", "10",
                                             "--hold", "600", "--cca", cca, "--record", file.path}));
    ASSERT_OK(client.expect("open 10", kSoon));
    ASSERT_OK(client.sample(kSoon));
    ASSERT_VALUE(sockets, recorder.list(a.netns_fd()));
    auto by_cookie = established(sockets);
    ASSERT_VALUE(records, read_traffic_records(file.path));
    std::size_t compared = 0;
    for (const TrafficRecord& record : records) {
      if (record.event != "sample") continue;
      compared++;
      ASSERT_TRUE(by_cookie.contains(record.cookie)) << record.local;
      const SocketRecord& socket = by_cookie.at(record.cookie);
      EXPECT_EQ(socket.cca, record.cca);
      EXPECT_EQ(socket.cca, cca);
      EXPECT_EQ(socket.struct_ops_id, cca == own_name ? own.struct_ops_id() : 0);
      EXPECT_EQ(socket.ecn_ok, record.ecn);
      EXPECT_TRUE(socket.ecn_ok);
      EXPECT_EQ(socket.cgroup_id, a.cgroup_id());
      EXPECT_EQ(fmt::format(fmt::runtime(socket.family == AF_INET6 ? "[{}]:{}" : "{}:{}"), socket.local, socket.local_port),
                record.local);
      EXPECT_EQ(fmt::format(fmt::runtime(socket.family == AF_INET6 ? "[{}]:{}" : "{}:{}"), socket.remote, socket.remote_port),
                record.remote);
    }
    EXPECT_EQ(compared, 10u);
    EXPECT_EQ(by_cookie.size(), 10u) << "sockets of another namespace are not listed";
    EXPECT_OK(client.stop(kSoon));
  }
  ASSERT_VALUE(sockets, recorder.list(b.netns_fd()));
  auto listeners = std::count_if(sockets.begin(), sockets.end(), [](const auto& socket) { return socket.state == "LISTEN"; });
  EXPECT_EQ(listeners, 2);
  EXPECT_OK(server.stop(kSoon));
}

TEST(Recorder, tells_two_versions_of_one_name_apart) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  const Host& a = topology.host("a");
  const Host& b = topology.host("b");
  std::string name = unique_cca_name();
  ASSERT_VALUE(cca, TestCca::register_as(name));
  ASSERT_VALUE(recorder, Recorder::load());
  ASSERT_VALUE(server, Traffic::server(b, {"--listen", at(b, AF_INET)}));
  std::uint32_t first = cca.struct_ops_id();
  ASSERT_VALUE(old_client,
               Traffic::client(a, {"--connect", at(b, AF_INET), "--connections", "3", "--hold", "600", "--cca", name}));
  ASSERT_OK(old_client.expect("open 3", kSoon));
  ASSERT_OK(cca.replace());
  std::uint32_t second = cca.struct_ops_id();
  ASSERT_NE(first, second);
  ASSERT_VALUE(new_client,
               Traffic::client(a, {"--connect", at(b, AF_INET), "--connections", "5", "--hold", "600", "--cca", name}));
  ASSERT_OK(new_client.expect("open 5", kSoon));
  ASSERT_VALUE(sockets, recorder.list(a.netns_fd()));
  std::map<std::uint32_t, int> per_id;
  for (const SocketRecord& socket : sockets)
    if (socket.cca == name) per_id[socket.struct_ops_id]++;
  EXPECT_EQ(per_id, (std::map<std::uint32_t, int>{{first, 3}, {second, 5}}));
  EXPECT_OK(old_client.stop(kSoon));
  EXPECT_OK(new_client.stop(kSoon));
}

TEST(Recorder, program_prints_the_same_of_a_namespace) {
  TopologySpec spec = pair();
  ASSERT_VALUE(topology, Topology::create(spec));
  const Host& b = topology.host("b");
  ASSERT_VALUE(server, Traffic::server(b, {"--listen", at(b, AF_INET6), "--cca", "reno"}));
  ASSERT_VALUE(output,
               topology.host("a").run({kPrograms + "recorder", fmt::format("/proc/{}/ns/net", server.process().pid())}));
  EXPECT_EQ(output.status, 0);
  ASSERT_VALUE(recorder, Recorder::load());
  ASSERT_VALUE(sockets, recorder.list(b.netns_fd()));
  ASSERT_EQ(sockets.size(), 1u);
  EXPECT_EQ(output.text, to_json(sockets[0]) + "\n");
  EXPECT_EQ(sockets[0].cca, "reno");
  EXPECT_EQ(sockets[0].local, b.address(AF_INET6));
}

// ------------------------------------------------------------------------------------------------------ residue_check

Result<Output> run_here(const std::vector<std::string>& argv) {
  SLUICE_TRY(process, Process::exec(argv, {.pipe_stdout = true, .merge_stderr = true}));
  SLUICE_TRY(text, process.read_all(kSoon));
  SLUICE_TRY(status, process.wait(kSoon));
  return Output{status, std::move(text)};
}

TEST(ResidueCheck, names_each_leftover_and_forgets_it_when_it_is_gone) {
  TemporaryFile before;
  const std::string check = kPrograms + "residue_check";
  ASSERT_VALUE(saved, run_here({check, "--save", before.path}));
  ASSERT_EQ(saved.status, 0) << saved.text;
  std::vector<std::string> expected;  // pieces of lines
  auto missing = [&](const std::string& text) {
    std::vector<std::string> not_found;
    for (const std::string& piece : expected)
      if (text.find(piece) == std::string::npos) not_found.push_back(piece);
    return not_found;
  };
  {
    TopologySpec spec = pair();
    spec.bind_names = true;
    ASSERT_VALUE(topology, Topology::create(spec));
    std::string cca_name = unique_cca_name();
    ASSERT_VALUE(cca, TestCca::register_as(cca_name));
    ASSERT_VALUE(server, Traffic::server(topology.host("b"), {"--listen", at(topology.host("b"), AF_INET)}));
    const Host& a = topology.host("a");
    expected = {"named network namespace: " + a.netns_path() + ";",
                fmt::format("network namespace: net:[{}];", a.netns_inode()),
                "cgroup: " + a.cgroup() + ";",
                "registered CCA: " + cca_name + ";",
                fmt::format("BPF map: id {} ", cca.struct_ops_id()),
                "BPF program: ",
                "BPF link: ",
                fmt::format("process: traffic {} ", server.process().pid()),
                "mount: nsfs on " + a.netns_path() + ";"};
    ASSERT_VALUE(found, run_here({check, "--compare", before.path, "--wait", "0"}));
    EXPECT_EQ(found.status, 1);
    EXPECT_EQ(missing(found.text), std::vector<std::string>{}) << found.text;
  }
  // Others may work on this machine meanwhile: their things are not judged here, ours are. The kinds above that carry no
  // identity of ours are left out.
  std::erase_if(expected, [](const std::string& piece) { return piece.ends_with(": "); });
  auto deadline = std::chrono::steady_clock::now() + kSoon;
  for (;;) {
    ASSERT_VALUE(after, run_here({check, "--compare", before.path, "--wait", "0"}));
    if (missing(after.text) == expected) break;
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << after.text;
  }
}

// In a mount namespace of its own, since pins need a bpffs and the machine's is none of our business.
TEST(ResidueCheck, finds_pins_interfaces_and_sysctls) {
  ASSERT_VALUE(topology, Topology::create(pair()));
  TemporaryFile folder, before;
  fs::create_directory(folder.path);
  const std::string script = R"(
set -e
mount -t bpf bpf "$FOLDER"
"$CHECK" --save "$BEFORE"
bpftool map create "$FOLDER/leftover" type array key 4 value 4 entries 1 name leftover
ip link add leftover0 type bridge
sysctl -q -w net.ipv4.tcp_sack=0
if "$CHECK" --compare "$BEFORE" --wait 0; then exit 9; fi
)";
  ASSERT_VALUE(process,
               topology.host("a").spawn({"unshare", "--mount", "sh", "-c", script},
                                        {.pipe_stdout = true,
                                         .merge_stderr = true,
                                         .environment = {"FOLDER=" + folder.path.string(), "BEFORE=" + before.path.string(),
                                                         "CHECK=" + kPrograms + "residue_check"}}));
  ASSERT_VALUE(text, process.read_all(kSoon));
  ASSERT_VALUE(status, process.wait(kSoon));
  EXPECT_EQ(status, 0) << text;
  for (const std::string& piece :
       {"pin: " + folder.path.string() + "/leftover; to remove: rm " + folder.path.string() + "/leftover\n",
        std::string("interface: leftover0 index"), std::string(" name leftover;"),
        std::string("sysctl: net.ipv4.tcp_sack = 0; to remove: sysctl -w net.ipv4.tcp_sack='1'\n")})
    EXPECT_NE(text.find(piece), std::string::npos) << piece << "not in:\n" << text;
}

TEST(ResidueCheck, refuses_a_file_that_is_not_its_own) {
  TemporaryFile file;
  std::ofstream(file.path) << "[1,2]\n";
  ASSERT_VALUE(output, run_here({kPrograms + "residue_check", "--compare", file.path}));
  EXPECT_EQ(output.status, 2);
  EXPECT_NE(output.text.find("not a file of --save"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
