// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// src/net without privileges: discovery under made-up /proc trees, netlink messages byte by byte, sockets of this process.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "net/cgroup.h"
#include "net/netns.h"
#include "net/route.h"
#include "net/socket.h"
#include "net/systemd.h"

namespace sluice::net {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;

// A /proc tree of our own making.
class FakeProc : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "sluice-proc-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void link(const std::string& path, const std::string& target) {
    fs::create_directories(fs::path(root_ + "/" + path).parent_path());
    fs::create_symlink(target, root_ + "/" + path);
  }
  void file(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + "/" + path).parent_path());
    ASSERT_TRUE(write_file_atomic(root_ + "/" + path, text));
  }
  void process(const std::string& pid, const std::string& name, int net, int mnt) {
    link(pid + "/ns/net", fmt::format("net:[{}]", net));
    link(pid + "/ns/mnt", fmt::format("mnt:[{}]", mnt));
    link(pid + "/task/" + pid + "/ns/net", fmt::format("net:[{}]", net));
    fs::create_directories(root_ + "/" + pid + "/fd");
    file(pid + "/comm", name + "\n");
    if (!fs::exists(root_ + "/" + pid + "/mountinfo")) file(pid + "/mountinfo", "");
  }
  std::string root_;
};

TEST_F(FakeProc, NamespacesOfProcessesThreadsMountsAndDescriptorsOnceEach) {
  process("1", "init", 100, 900);
  process("20", "nginx", 100, 900);
  process("30", "pod", 200, 901);
  link("30/task/31/ns/net", "net:[300]");
  link("20/fd/7", "net:[400]");
  link("20/fd/8", "socket:[400]");
  link("20/fd/9", "/dev/null");
  file("30/mountinfo",
       "36 35 0:4 net:[500] /run/netns/blue rw shared:1 - nsfs nsfs rw\n"
       "37 35 0:4 mnt:[501] /run/mnt rw - nsfs nsfs rw\n"
       "38 35 0:4 net:[200] /run/netns/pod rw - nsfs nsfs rw\n");
  file("version", "not a process");

  auto scan = scan_netns(root_);
  ASSERT_TRUE(scan);
  EXPECT_EQ(scan->unreadable, 0U);
  std::vector<std::string> seen;
  for (const NetnsSighting& s : scan->sightings)
    seen.push_back(fmt::format("{} {} {}", s.inode, s.path.substr(root_.size()), s.holder));
  EXPECT_THAT(seen, testing::ElementsAre("100 /1/ns/net process 1 (init)",  //
                                         "200 /30/root/run/netns/pod mount /run/netns/pod seen by process 30 (pod)",
                                         "300 /30/task/31/ns/net thread 31 of process 30 (pod)",
                                         "400 /20/fd/7 descriptor 7 of process 20 (nginx)",
                                         "500 /30/root/run/netns/blue mount /run/netns/blue seen by process 30 (pod)"));

  auto without = scan_netns(root_, false);
  ASSERT_TRUE(without);
  EXPECT_EQ(without->sightings.size(), 4U);
}

TEST_F(FakeProc, AProcessThatEndsDuringTheScanIsNoError) {
  process("1", "init", 100, 900);
  fs::create_directories(root_ + "/77");  // its files are gone already
  auto scan = scan_netns(root_);
  ASSERT_TRUE(scan);
  EXPECT_EQ(scan->sightings.size(), 1U);
  EXPECT_EQ(scan->unreadable, 0U);
}

TEST_F(FakeProc, WhatCannotBeOpenedIsLeftOutOfTheList) {
  process("1", "init", 100, 900);  // dangling: no namespace behind it
  auto list = find_netns(root_);
  ASSERT_TRUE(list);
  EXPECT_THAT(list->namespaces, IsEmpty());
  EXPECT_EQ(scan_netns(root_ + "/none").error().code, Code::kNotFound);
}

TEST(Netns, AFileIsNotANamespace) {
  EXPECT_EQ(open_netns("/dev/null").error().code, Code::kInvalid);
  EXPECT_EQ(open_netns("/proc/self/ns/mnt").error().code, Code::kInvalid);
  auto own = current_netns();
  ASSERT_TRUE(own);
  EXPECT_EQ("net:[" + std::to_string(own->inode) + "]", read_link("/proc/self/ns/net").value());
}

TEST(Netns, OnlyNetSysctlsDependOnTheNamespace) {
  for (const char* bad : {"kernel.pid_max", "net.ipv4/../../kernel.x", "net..x", "/etc/passwd"})
    EXPECT_EQ(read_sysctl(-1, bad).error().code, Code::kInvalid) << bad;
}

TEST_F(FakeProc, Cgroup2IsFoundOnHybridHostsAndItsAbsenceExplained) {
  file("mounts", "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n");
  EXPECT_EQ(find_cgroup2(root_).value(), "/sys/fs/cgroup/unified");
  file("mounts", "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n");
  auto missing = find_cgroup2(root_);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kUnsupported);
  EXPECT_EQ(missing.error().feature, "cgroup2");
  EXPECT_THAT(missing.error().message(), HasSubstr("systemd.unified_cgroup_hierarchy=1"));
}

// --- netlink ---

class Datagram {
 public:
  void message(std::uint16_t type, std::uint16_t flags, const std::vector<std::byte>& payload) {
    nlmsghdr header{};
    header.nlmsg_len = static_cast<__u32>(sizeof(header) + payload.size());
    header.nlmsg_type = type;
    header.nlmsg_flags = flags;
    append(bytes, &header, sizeof(header));
    append(bytes, payload.data(), payload.size());
    bytes.resize(NLMSG_ALIGN(bytes.size()));
  }
  static void append(std::vector<std::byte>& to, const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    to.insert(to.end(), begin, begin + size);
  }
  static void attribute(std::vector<std::byte>& to, std::uint16_t type, const void* data, std::size_t size) {
    rtattr header{static_cast<unsigned short>(RTA_LENGTH(size)), type};
    append(to, &header, sizeof(header));
    append(to, data, size);
    to.resize(RTA_ALIGN(to.size()));
  }
  std::vector<std::byte> bytes;
};

std::vector<std::byte> route(const char* address, std::uint8_t length, const char* cca, bool lock) {
  std::vector<std::byte> payload;
  rtmsg header{};
  header.rtm_family = std::strchr(address, ':') != nullptr ? AF_INET6 : AF_INET;
  header.rtm_dst_len = length;
  header.rtm_table = RT_TABLE_MAIN;
  Datagram::append(payload, &header, sizeof(header));
  in6_addr raw{};
  EXPECT_EQ(::inet_pton(header.rtm_family, address, &raw), 1);
  if (length > 0) Datagram::attribute(payload, RTA_DST, &raw, header.rtm_family == AF_INET ? 4 : 16);
  const std::uint32_t table = 1000;
  Datagram::attribute(payload, RTA_TABLE, &table, sizeof(table));
  std::vector<std::byte> metrics;
  const std::uint32_t mtu = 1400;
  Datagram::attribute(metrics, RTAX_MTU, &mtu, sizeof(mtu));
  if (cca != nullptr) Datagram::attribute(metrics, RTAX_CC_ALGO, cca, std::strlen(cca) + 1);
  const std::uint32_t locks = lock ? 1U << RTAX_CC_ALGO : 0;
  Datagram::attribute(metrics, RTAX_LOCK, &locks, sizeof(locks));
  Datagram::attribute(payload, RTA_METRICS | NLA_F_NESTED, metrics.data(), metrics.size());
  return payload;
}

TEST(Routes, OnlyThoseWithACongestionControl) {
  Datagram datagram;
  datagram.message(RTM_NEWROUTE, NLM_F_MULTI, route("10.1.0.0", 16, "dctcp", true));
  datagram.message(RTM_NEWROUTE, NLM_F_MULTI, route("10.2.0.0", 16, nullptr, false));
  datagram.message(RTM_NEWROUTE, NLM_F_MULTI, route("2001:db8::", 32, "cubic", false));
  datagram.message(RTM_NEWROUTE, NLM_F_MULTI, route("0.0.0.0", 0, "bbr", false));
  std::vector<CongctlRoute> routes;
  EXPECT_FALSE(parse_routes(datagram.bytes, routes).value());
  ASSERT_EQ(routes.size(), 3U);
  EXPECT_EQ(routes[0].destination, "10.1.0.0/16");
  EXPECT_EQ(routes[0].cca, "dctcp");
  EXPECT_TRUE(routes[0].locked);
  EXPECT_EQ(routes[0].table, 1000U);
  EXPECT_EQ(routes[1].destination, "2001:db8::/32");
  EXPECT_EQ(routes[1].family, AF_INET6);
  EXPECT_FALSE(routes[1].locked);
  EXPECT_EQ(routes[2].destination, "default");

  Datagram end;
  const int zero = 0;
  std::vector<std::byte> payload;
  Datagram::append(payload, &zero, sizeof(zero));
  end.message(NLMSG_DONE, NLM_F_MULTI, payload);
  EXPECT_TRUE(parse_routes(end.bytes, routes).value());
}

TEST(Routes, ErrorsAndInterruptedDumpsAreNotTakenForTheEnd) {
  std::vector<CongctlRoute> routes;
  const int error = -EPERM;
  std::vector<std::byte> payload;
  Datagram::append(payload, &error, sizeof(error));
  Datagram refused;
  refused.message(NLMSG_ERROR, 0, payload);
  EXPECT_EQ(parse_routes(refused.bytes, routes).error().code, Code::kPermission);
  Datagram interrupted;
  interrupted.message(RTM_NEWROUTE, NLM_F_MULTI | NLM_F_DUMP_INTR, route("10.1.0.0", 16, "dctcp", false));
  EXPECT_EQ(parse_routes(interrupted.bytes, routes).error().code, Code::kUnavailable);
  EXPECT_THAT(routes, IsEmpty());
}

TEST(Routes, EveryCutIsRefusedAndNeverReadBeyond) {
  Datagram datagram;
  datagram.message(RTM_NEWROUTE, NLM_F_MULTI, route("10.1.0.0", 16, "dctcp", true));
  for (std::size_t length = 1; length < datagram.bytes.size(); length++) {
    // An allocation of exactly this size: the address sanitizer sees one byte too many.
    std::vector<std::byte> cut(datagram.bytes.begin(), datagram.bytes.begin() + static_cast<std::ptrdiff_t>(length));
    std::vector<CongctlRoute> routes;
    EXPECT_EQ(parse_routes(cut, routes).error().code, Code::kCorrupt) << length;
  }
  // Every byte changed to extremes must end, one way or the other.
  for (std::size_t i = 0; i < datagram.bytes.size(); i++) {
    for (int value : {0, 1, 3, 0x7f, 0xff}) {
      std::vector<std::byte> changed = datagram.bytes;
      changed[i] = static_cast<std::byte>(value);
      std::vector<CongctlRoute> routes;
      auto result = parse_routes(changed, routes);
      EXPECT_LE(routes.size(), 1U);
      if (result) continue;
      EXPECT_NE(result.error().code, Code::kInternal) << "byte " << i << " = " << value << ": " << result.error().message();
    }
  }
}

// --- sockets ---

TEST(Sockets, CongestionControlIsReadAndSetAlsoThroughAnotherProcess) {
  UniqueFd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(set_congestion_control(tcp.get(), "reno"));
  EXPECT_EQ(congestion_control(tcp.get()).value(), "reno");
  auto missing = set_congestion_control(tcp.get(), "no_such_cca");
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_EQ(congestion_control(tcp.get()).value(), "reno");
  EXPECT_FALSE(congestion_control(-1));

  auto copy = fd_of_process(::getpid(), tcp.get());
  ASSERT_TRUE(copy) << copy.error().message();
  EXPECT_NE(copy->get(), tcp.get());
  EXPECT_EQ(congestion_control(copy->get()).value(), "reno");
  EXPECT_EQ(fd_of_process(::getpid(), 99999).error().code, Code::kNotFound);
}

TEST(Sockets, PeerIsWhoConnected) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd a(pair[0]), b(pair[1]);
  auto peer = peer_of(a.get());
  ASSERT_TRUE(peer) << peer.error().message();
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(peer->uid, ::getuid());
  EXPECT_TRUE(peer->in_group(::getgid()));
  std::vector<gid_t> own(static_cast<std::size_t>(::getgroups(0, nullptr)));
  ASSERT_GE(::getgroups(static_cast<int>(own.size()), own.data()), 0);
  EXPECT_THAT(peer->groups, testing::UnorderedElementsAreArray(own));
  EXPECT_FALSE((Peer{1, 1, 5, {7, 8}}).in_group(6));
  EXPECT_TRUE((Peer{1, 1, 5, {7, 8}}).in_group(8));

  UniqueFd lonely(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_FALSE(peer_of(lonely.get()));
  EXPECT_EQ(group_id("root").value(), 0U);
  EXPECT_EQ(group_id("no-such-group-here").error().code, Code::kNotFound);
}

// --- service manager ---

std::string receive(int fd) {
  char text[256];
  ssize_t n = ::recv(fd, text, sizeof(text), MSG_DONTWAIT);  // unix datagrams arrive within sendto
  return n < 0 ? "" : std::string(text, static_cast<std::size_t>(n));
}

UniqueFd bound_socket(const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0) << std::strerror(errno);
  return fd;
}

TEST_F(FakeProc, ServiceManagerHearsByPathAndByAbstractName) {
  for (const std::string& name : {root_ + "/notify", fmt::format("@sluice-test-{}", ::getpid())}) {
    UniqueFd manager = bound_socket(name);
    ServiceManager service(name, std::nullopt);
    ASSERT_TRUE(service.ready("2 rules"));
    EXPECT_EQ(receive(manager.get()), "READY=1\nSTATUS=2 rules");
    ASSERT_TRUE(service.alive());
    EXPECT_EQ(receive(manager.get()), "WATCHDOG=1");
    ASSERT_TRUE(service.reloading());
    EXPECT_THAT(receive(manager.get()), testing::MatchesRegex("RELOADING=1\nMONOTONIC_USEC=[0-9]+"));
  }
}

TEST(ServiceManagerTest, WithoutOneNothingHappensAndABadAddressIsTold) {
  EXPECT_TRUE(ServiceManager("", std::nullopt).ready("x"));
  EXPECT_EQ(ServiceManager("relative", std::nullopt).alive().error().code, Code::kInvalid);
  EXPECT_EQ(ServiceManager("/" + std::string(200, 'x'), std::nullopt).alive().error().code, Code::kInvalid);
  EXPECT_EQ(ServiceManager("/no/such/socket", std::nullopt).alive().error().code, Code::kNotFound);
}

TEST(ServiceManagerTest, WatchdogOfAnotherProcessIsNotOurs) {
  ::setenv("NOTIFY_SOCKET", "/run/x", 1);
  ::setenv("WATCHDOG_USEC", "30000000", 1);
  ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
  EXPECT_EQ(ServiceManager::from_environment().watchdog(), std::chrono::seconds(30));
  ::setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(ServiceManager::from_environment().watchdog(), std::nullopt);
  EXPECT_TRUE(ServiceManager::from_environment().present());
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) ::unsetenv(name);
  EXPECT_FALSE(ServiceManager::from_environment().present());
}

}  // namespace
}  // namespace sluice::net
