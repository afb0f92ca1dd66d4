// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// src/net against the running kernel: namespaces, their settings and routes. All namespaces are nothing but descriptors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "bpf/scratch.h"
#include "net/cgroup.h"
#include "net/netns.h"
#include "net/route.h"

namespace sluice::net {
namespace {

using test::PrivateMounts;
using testing::HasSubstr;
using testing::IsEmpty;

const auto* const kMounts = testing::AddGlobalTestEnvironment(new PrivateMounts);

std::uint64_t inode_of(const UniqueFd& fd) {
  struct stat info{};
  EXPECT_EQ(::fstat(fd.get(), &info), 0);
  return info.st_ino;
}

const Netns* find(const NetnsList& list, std::uint64_t inode) {
  auto at = std::find_if(list.namespaces.begin(), list.namespaces.end(), [&](const Netns& n) { return n.inode == inode; });
  return at == list.namespaces.end() ? nullptr : &*at;
}

void ip(int netns_fd, const std::string& arguments) {
  Status status = run_in_netns(netns_fd, [&]() -> Status {
    const int result = std::system(("ip " + arguments).c_str());
    if (!WIFEXITED(result) || WEXITSTATUS(result) != 0) return fail(Code::kInternal, "ip {} failed", arguments);
    return {};
  });
  ASSERT_TRUE(status) << status.error().message();
}

// Processes that even root may not look into (a hardened init): told, not silently skipped.
std::size_t protected_processes() {
  std::size_t count = 0;
  char target[64];
  const std::vector<std::string> names = list_dir("/proc").value();
  for (const std::string& name : names)
    if (std::isdigit(static_cast<unsigned char>(name[0])) &&
        ::readlink(("/proc/" + name + "/ns/net").c_str(), target, sizeof(target)) < 0 && (errno == EACCES || errno == EPERM))
      count++;
  return count;
}

TEST(NetnsKernel, NamespacesHeldByDescriptorOrMountAreFound) {
  UniqueFd held = test::scratch_netns();
  const std::uint64_t inode = inode_of(held);
  auto list = find_netns();
  ASSERT_TRUE(list) << list.error().message();
  EXPECT_EQ(list->unreadable, protected_processes());
  const Netns* by_descriptor = find(*list, inode);
  ASSERT_NE(by_descriptor, nullptr);
  EXPECT_THAT(by_descriptor->holder,
              HasSubstr("descriptor " + std::to_string(held.get()) + " of process " + std::to_string(::getpid())));
  EXPECT_EQ(inode_of(by_descriptor->fd), inode);
  EXPECT_NE(find(*list, current_netns()->inode), nullptr);
  for (std::size_t i = 0; i < list->namespaces.size(); i++)
    for (std::size_t j = i + 1; j < list->namespaces.size(); j++)
      EXPECT_NE(list->namespaces[i].inode, list->namespaces[j].inode);

  auto without = find_netns("/proc", false);
  ASSERT_TRUE(without);
  EXPECT_EQ(find(*without, inode), nullptr);

  const std::string place = PrivateMounts::dir() + "/blue sky";
  ASSERT_TRUE(write_file_atomic(place, ""));
  ASSERT_EQ(::mount(fmt::format("/proc/self/fd/{}", held.get()).c_str(), place.c_str(), nullptr, MS_BIND, nullptr), 0);
  list = NetnsList{};  // its descriptors would be found as well
  held.reset();
  list = find_netns("/proc", false);
  ASSERT_TRUE(list);
  const Netns* by_mount = find(*list, inode);
  ASSERT_NE(by_mount, nullptr);
  EXPECT_THAT(by_mount->holder, testing::StartsWith("mount " + place));
  EXPECT_EQ(inode_of(by_mount->fd), inode);
  list = NetnsList{};
  EXPECT_EQ(::umount(place.c_str()), 0);
}

TEST(NetnsKernel, WorkRunsInsideAndTheCallerStaysOutside) {
  UniqueFd inside = test::scratch_netns();
  const std::string before = read_link("/proc/thread-self/ns/net").value();
  auto seen = run_in_netns(inside.get(), [] { return read_link("/proc/thread-self/ns/net"); });
  EXPECT_EQ(seen.value(), fmt::format("net:[{}]", inode_of(inside)));
  EXPECT_EQ(read_link("/proc/thread-self/ns/net").value(), before);
  EXPECT_FALSE(run_in_netns(-1, []() -> Status { return {}; }));
  UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  bool ran = false;
  EXPECT_EQ(on_thread_in_netns(file.get(), [&] { ran = true; }).error().code, Code::kInvalid);
  EXPECT_FALSE(ran);
}

TEST(NetnsKernel, SysctlsAreTheNamespacesOwn) {
  UniqueFd blue = test::scratch_netns(), red = test::scratch_netns();
  ASSERT_TRUE(write_sysctl(blue.get(), kDefaultCcaSysctl, "reno"));
  EXPECT_EQ(read_sysctl(blue.get(), kDefaultCcaSysctl).value(), "reno");
  const std::string other = read_sysctl(red.get(), "net.ipv4.tcp_ecn").value();
  ASSERT_TRUE(write_sysctl(blue.get(), "net.ipv4.tcp_ecn", other == "1" ? "0" : "1"));
  EXPECT_EQ(read_sysctl(red.get(), "net.ipv4.tcp_ecn").value(), other);
  EXPECT_EQ(read_sysctl(blue.get(), "net.ipv4.no_such").error().code, Code::kNotFound);
  auto refused = write_sysctl(blue.get(), kDefaultCcaSysctl, "no_such_cca");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("tcp_congestion_control"));

  std::vector<Netns> namespaces;
  namespaces.push_back({inode_of(red), std::move(red), ""});
  namespaces.push_back({inode_of(blue), std::move(blue), ""});
  ASSERT_TRUE(
      write_sysctl(namespaces[0].fd.get(), kDefaultCcaSysctl, read_sysctl(namespaces[0].fd.get(), kDefaultCcaSysctl).value()));
  auto renos = with_default_cca(namespaces, "reno");
  ASSERT_TRUE(renos);
  EXPECT_THAT(*renos, testing::Contains(1U));
  EXPECT_THAT(with_default_cca(namespaces, "no_such_cca").value(), IsEmpty());
}

TEST(NetnsKernel, RoutesWithACongestionControlAreListed) {
  UniqueFd netns = test::scratch_netns();
  EXPECT_THAT(congctl_routes(netns.get()).value(), IsEmpty());
  ip(netns.get(), "link set lo up");
  ip(netns.get(), "route add 10.9.0.0/16 dev lo congctl lock reno");
  ip(netns.get(), "route add 10.8.0.0/16 dev lo table 777 congctl reno");
  ip(netns.get(), "route add 10.7.0.0/16 dev lo");
  ip(netns.get(), "-6 route add 2001:db8:9::/48 dev lo congctl reno");
  auto routes = congctl_routes(netns.get());
  ASSERT_TRUE(routes) << routes.error().message();
  std::vector<std::string> seen;
  for (const CongctlRoute& route : *routes)
    seen.push_back(fmt::format("{} {} {}{}", route.destination, route.table, route.cca, route.locked ? " locked" : ""));
  EXPECT_THAT(seen,
              testing::UnorderedElementsAre("10.9.0.0/16 254 reno locked", "10.8.0.0/16 777 reno", "2001:db8:9::/48 254 reno"));
}

TEST(CgroupKernel, IdAndPathLeadToEachOther) {
  std::uint64_t id = 0;
  {
    test::ScratchCgroup cgroup("net");
    id = cgroup_id(cgroup.path()).value();
    EXPECT_EQ(cgroup_path(find_cgroup2().value(), id).value(), cgroup.path());
  }
  EXPECT_EQ(cgroup_path(find_cgroup2().value(), id).error().code, Code::kNotFound);
  EXPECT_EQ(cgroup_id("/no/such/cgroup").error().code, Code::kNotFound);
  EXPECT_EQ(cgroup_id("/dev/null").error().code, Code::kInvalid);
}

}  // namespace
}  // namespace sluice::net
