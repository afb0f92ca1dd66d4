// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Hosts and links for tests, made of network namespaces and veth pairs, described as data:
//
//   auto topology = Topology::create({
//       .hosts = {{.name = "a"}, {.name = "b"}},
//       .links = {{.a = {"a", {"10.1.0.1/24", "fd01::1/64"}}, .b = {"b", {"10.1.0.2/24", "fd01::2/64"}}}}});
//   auto server = topology->host("b").spawn({"traffic", "server", ...});
//
// A host is a network namespace and a cgroup2 folder. The wire carries what the test sends and nothing else: no duplicate
// address detection, router solicitation, link-local address, multicast report, ARP or neighbour discovery; MACs are fixed and
// neighbour entries permanent (an address added later needs one too: `ip neigh`). By default frames are as on a wire: at most
// the MTU, with real checksums (offloads off).
//
// Namespaces are held by descriptors, so a test that dies leaves none; `bind_names` also puts them under /run/netns, where
// ip(8) and the agent find them. Everything is undone by the destructor, processes still in a host's cgroup included. Never
// enter a namespace with `ip netns exec`, which hides bpffs: use Host, or `nsenter --net=`.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "harness/process.h"

namespace sluice::test {

struct HostSpec {
  std::string name;                                 // unique in the topology
  bool forwarding = false;                          // a router; the one host that sends by itself (MLD: all-routers)
  bool bridge = false;                              // a switch: its links are ports of one bridge and take no addresses
  std::map<std::string, std::string> sysctls = {};  // "net.ipv4.tcp_ecn" -> "1"
};

struct LinkEnd {
  std::string host;
  std::vector<std::string> addresses = {};  // "10.1.0.1/24", "fd01::1/64"
};

// Interfaces are called eth0, eth1, ... on each host, in the order of links.
struct LinkSpec {
  LinkEnd a;
  LinkEnd b;
  int mtu = 1500;
  bool offloads = false;  // true: 64 KB super-packets and no checksums, as veth does by itself
};

struct RouteSpec {
  std::string host;
  std::string destination;  // prefix or "default"
  std::string via;
  std::string options = {};  // more words for ip-route, such as "congctl reno"
};

struct TopologySpec {
  std::vector<HostSpec> hosts = {};
  std::vector<LinkSpec> links = {};
  std::vector<RouteSpec> routes = {};
  bool bind_names = false;
};

// Hosts around one switch called "switch": {{"a", {"10.1.0.1/8"}}, {"b", {"10.2.0.1/8"}}}. Prefixes must make them on-link.
TopologySpec star(const std::vector<LinkEnd>& hosts);
// "a" (10.77.0.1/24, fd77::1/64) and "b" (10.77.0.2/24, fd77::2/64) on one link.
TopologySpec pair();

struct Interface {
  std::string name;
  std::string mac;
  std::vector<std::string> addresses;  // with prefix length
};

struct Output {
  int status;
  std::string text;  // stdout and stderr
};

class Host {
 public:
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host();

  const std::string& name() const { return spec_.name; }
  int netns_fd() const { return netns_.get(); }
  std::uint64_t netns_inode() const { return netns_inode_; }
  const std::string& netns_path() const { return netns_path_; }  // /run/netns/...; empty without bind_names
  const std::string& cgroup() const { return cgroup_; }          // absolute path in the cgroup2 mount
  std::uint64_t cgroup_id() const { return cgroup_id_; }
  const std::vector<Interface>& interfaces() const { return interfaces_; }
  // The host's first address of AF_INET or AF_INET6, without its prefix length. It must have one.
  std::string address(int family) const;

  // Runs `body` on a thread inside the namespace (not in the cgroup: sockets that must count as this host's need fork()).
  Status call(const std::function<Status()>& body) const;
  // In the namespace and the cgroup.
  Result<Process> fork(const std::function<int()>& body, const SpawnOptions& options = {}) const;
  Result<Process> spawn(const std::vector<std::string>& argv, const SpawnOptions& options = {}) const;
  // As spawn(), to the end.
  Result<Output> run(const std::vector<std::string>& argv, Millis timeout = kSoon) const;

  Result<std::string> sysctl(const std::string& key) const;
  Status set_sysctl(const std::string& key, const std::string& value) const;

 private:
  friend class Topology;
  explicit Host(HostSpec spec) : spec_(std::move(spec)) {}
  int enter() const;  // in a forked child; 0 or errno

  HostSpec spec_;
  Fd netns_;
  std::uint64_t netns_inode_ = 0;
  std::string netns_path_;
  std::string cgroup_;
  std::uint64_t cgroup_id_ = 0;
  std::vector<Interface> interfaces_;
};

class Topology {
 public:
  static Result<Topology> create(const TopologySpec& spec);
  Topology(Topology&&) = default;
  Topology& operator=(Topology&&) = default;
  ~Topology();

  const std::string& name() const { return name_; }  // from the running test and the pid
  Host& host(const std::string& name) const;         // it must exist
  const std::vector<std::unique_ptr<Host>>& hosts() const { return hosts_; }
  const std::string& cgroup() const { return cgroup_; }  // parent of the hosts' cgroups

 private:
  Topology() = default;
  Status add_hosts(const TopologySpec& spec);
  Status add_links(const TopologySpec& spec);

  std::string name_;
  std::string cgroup_;
  std::vector<std::unique_ptr<Host>> hosts_;
};

// "sluice-test-<Suite>.<Test>-<pid>-<n>", n counting calls in this process; without a running gtest test,
// "sluice-test-<pid>-<n>".
std::string unique_name();
// Runs `body` on a thread inside the network namespace of a descriptor (-1 = the caller's own).
Status in_netns(int netns_fd, const std::function<Status()>& body);
// A new network namespace with only a loopback interface, down.
Result<Fd> new_netns();
// Mount points of a file system type ("cgroup2", "bpf"), from /proc/self/mounts.
Result<std::vector<std::string>> mounts_of(const std::string& type);

}  // namespace sluice::test
