// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "harness/topology.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <mntent.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <thread>

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNetnsRoot = "/run/netns";
constexpr int kFirstIndex = 100;  // of the links' interfaces; lower ones belong to loopback and bridges

std::string without_prefix(const std::string& address) { return address.substr(0, address.find('/')); }
bool is_ipv6(const std::string& address) { return address.find(':') != std::string::npos; }

Status write_file(const std::string& path, const std::string& text) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file) return fail_errno(errno, "cannot open {}", path);
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return fail_errno(errno, "cannot write '{}' to {}", text, path);
  return {};
}

std::string sysctl_path(std::string key) {
  std::replace(key.begin(), key.end(), '.', '/');
  return "/proc/sys/" + key;
}

Result<std::uint64_t> inode_of(int fd) {
  struct stat info{};
  if (::fstat(fd, &info) < 0) return fail_errno(errno, "cannot stat descriptor {}", fd);
  return info.st_ino;
}

// Kills what is left in a cgroup and removes it. Bounded: a task in an uninterruptible sleep would keep it.
Status remove_cgroup(const std::string& path) {
  auto deadline = std::chrono::steady_clock::now() + kSoon;
  for (;;) {
    if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return {};
    int err = errno;
    if (err != EBUSY || std::chrono::steady_clock::now() > deadline)
      return fail(fail_errno(err, "cannot remove cgroup {}", path).value().fix("end the processes in its cgroup.procs"));
    SLUICE_CHECK(write_file(path + "/cgroup.kill", "1"));
    std::this_thread::sleep_for(Millis(1));  // the kernel tells of the end only through cgroup.events: polling is as good
  }
}

// Fixed addresses: 02:51 marks ours, then the host and its interface.
std::string mac_of(std::size_t host, std::size_t interface) {
  return fmt::format("02:51:00:{:02x}:{:02x}:{:02x}", host >> 8 & 0xff, host & 0xff, interface & 0xff);
}

// Ethtool's answer, or its new setting. Runs inside the namespace.
Status ethtool(const std::string& interface, ethtool_value& value) {
  Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return fail_errno(errno, "cannot open a socket");
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&value);
  if (::ioctl(socket.get(), SIOCETHTOOL, &request) < 0)
    return fail_errno(errno, "ethtool command {:#x} on {}", value.cmd, interface);
  return {};
}

// Frames as on a wire: real checksums, no super-packets.
Status switch_off_offloads(const std::string& interface) {
  for (std::uint32_t command : {ETHTOOL_SGRO, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_STXCSUM}) {
    ethtool_value value{command, 0};
    SLUICE_CHECK(ethtool(interface, value));
  }
  return {};
}

// The end of a veth pair that came up first hears of its carrier in a kernel worker, and drops what it is given until then.
Status await_carrier(const std::string& interface) {
  Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return fail_errno(errno, "cannot open a socket");
  auto deadline = std::chrono::steady_clock::now() + kSoon;
  for (;;) {
    ifreq request{};
    interface.copy(request.ifr_name, IFNAMSIZ - 1);
    if (::ioctl(socket.get(), SIOCGIFFLAGS, &request) < 0) return fail_errno(errno, "cannot read the flags of {}", interface);
    if ((request.ifr_flags & IFF_RUNNING) != 0) break;
    if (std::chrono::steady_clock::now() > deadline) return fail(Code::kTimeout, "{} got no carrier", interface);
    std::this_thread::sleep_for(Millis(1));
  }
  // The flag is set in the middle of the worker's turn; ethtool waits for the lock it holds.
  ethtool_value value{ETHTOOL_GLINK, 0};
  return ethtool(interface, value);
}

struct Port {
  std::size_t host;
  std::size_t interface;
};

}  // namespace

std::string unique_name() {
  static std::atomic<unsigned> calls{0};
  std::string test;
  if (const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info())
    test = fmt::format("{}.{}-", info->test_suite_name(), info->name());
  std::replace(test.begin(), test.end(), '/', '_');
  return fmt::format("sluice-test-{}{}-{}", test, ::getpid(), calls++);
}

Status in_netns(int netns_fd, const std::function<Status()>& body) {
  if (netns_fd < 0) return body();
  Status status;
  std::thread([&] {
    if (::setns(netns_fd, CLONE_NEWNET) < 0)
      status = fail_errno(errno, "cannot enter a network namespace");
    else
      status = body();
  }).join();
  return status;
}

Result<Fd> new_netns() {
  Result<Fd> netns = fail(Code::kInternal, "not run");
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) < 0) {
      netns = fail_errno(errno, "cannot make a network namespace");
      return;
    }
    Fd fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (fd)
      netns = std::move(fd);
    else
      netns = fail_errno(errno, "cannot open /proc/thread-self/ns/net");
  }).join();
  return netns;
}

Result<std::vector<std::string>> mounts_of(const std::string& type) {
  std::FILE* table = ::setmntent("/proc/self/mounts", "re");
  if (table == nullptr) return fail_errno(errno, "cannot read /proc/self/mounts");
  std::vector<std::string> found;
  mntent entry{};
  char buffer[4096];
  while (::getmntent_r(table, &entry, buffer, sizeof(buffer)) != nullptr)
    if (type == entry.mnt_type) found.emplace_back(entry.mnt_dir);
  ::endmntent(table);
  return found;
}

TopologySpec star(const std::vector<LinkEnd>& hosts) {
  TopologySpec spec;
  for (const LinkEnd& host : hosts) {
    spec.hosts.push_back({.name = host.host});
    spec.links.push_back({.a = host, .b = {"switch", {}}});
  }
  spec.hosts.push_back({.name = "switch", .bridge = true});
  return spec;
}

TopologySpec pair() {
  return {.hosts = {{.name = "a"}, {.name = "b"}},
          .links = {{.a = {"a", {"10.77.0.1/24", "fd77::1/64"}}, .b = {"b", {"10.77.0.2/24", "fd77::2/64"}}}}};
}

Host::~Host() {
  if (!netns_path_.empty()) {
    ::umount2(netns_path_.c_str(), MNT_DETACH);
    ::unlink(netns_path_.c_str());
    ::rmdir(kNetnsRoot);  // only succeeds when nobody else uses it
  }
  if (!cgroup_.empty()) {
    if (Status removed = remove_cgroup(cgroup_); !removed) ADD_FAILURE() << removed.error().message();
  }
}

std::string Host::address(int family) const {
  for (const Interface& interface : interfaces_)
    for (const std::string& address : interface.addresses)
      if (is_ipv6(address) == (family == AF_INET6)) return without_prefix(address);
  panic("the host has no address of this family", __FILE__, __LINE__);
}

Status Host::call(const std::function<Status()>& body) const { return in_netns(netns_.get(), body); }

int Host::enter() const {
  if (::setns(netns_.get(), CLONE_NEWNET) < 0) return errno;
  Fd procs(::open((cgroup_ + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  if (!procs || ::write(procs.get(), "0", 1) != 1) return errno;
  return 0;
}

Result<Process> Host::fork(const std::function<int()>& body, const SpawnOptions& options) const {
  return Process::fork(body, options, [this] { return enter(); }).map_error([this](Error error) {
    return std::move(error).within("on host " + name());
  });
}

Result<Process> Host::spawn(const std::vector<std::string>& argv, const SpawnOptions& options) const {
  return Process::exec(argv, options, [this] { return enter(); }).map_error([this](Error error) {
    return std::move(error).within("on host " + name());
  });
}

Result<Output> Host::run(const std::vector<std::string>& argv, Millis timeout) const {
  SLUICE_TRY(process, spawn(argv, {.pipe_stdout = true, .merge_stderr = true}));
  SLUICE_TRY(text, process.read_all(timeout));
  SLUICE_TRY(status, process.wait(timeout));
  return Output{status, std::move(text)};
}

Result<std::string> Host::sysctl(const std::string& key) const {
  std::string value;
  SLUICE_CHECK(call([&]() -> Status {
    std::ifstream file(sysctl_path(key));
    if (!std::getline(file, value)) return fail(Code::kNotFound, "cannot read sysctl {} on host {}", key, name());
    return {};
  }));
  return value;
}

Status Host::set_sysctl(const std::string& key, const std::string& value) const {
  return call([&] { return write_file(sysctl_path(key), value); });
}

Result<Topology> Topology::create(const TopologySpec& spec) {
  Topology topology;
  topology.name_ = unique_name();
  SLUICE_TRY(cgroup2, mounts_of("cgroup2"));
  if (cgroup2.empty())
    return fail(fail(Code::kUnsupported, "no cgroup2 is mounted").value().fix("mount -t cgroup2 none /sys/fs/cgroup"));
  topology.cgroup_ = cgroup2.front() + "/" + topology.name_;
  if (::mkdir(topology.cgroup_.c_str(), 0755) < 0) {
    std::string path = std::exchange(topology.cgroup_, {});
    return fail_errno(errno, "cannot make cgroup {}", path);
  }
  SLUICE_CHECK(topology.add_hosts(spec));
  SLUICE_CHECK(topology.add_links(spec));
  return topology;
}

Topology::~Topology() {
  hosts_.clear();
  if (!cgroup_.empty()) {
    if (Status removed = remove_cgroup(cgroup_); !removed) ADD_FAILURE() << removed.error().message();
  }
}

Host& Topology::host(const std::string& name) const {
  for (const auto& host : hosts_)
    if (host->name() == name) return *host;
  panic("no such host in the topology", __FILE__, __LINE__);
}

Status Topology::add_hosts(const TopologySpec& spec) {
  for (const HostSpec& host_spec : spec.hosts) {
    std::unique_ptr<Host> host(new Host(host_spec));
    SLUICE_TRY(netns, new_netns());
    host->netns_ = std::move(netns);
    SLUICE_TRY(inode, inode_of(host->netns_.get()));
    host->netns_inode_ = inode;

    std::string cgroup = fmt::format("{}/{}", cgroup_, host_spec.name);
    if (::mkdir(cgroup.c_str(), 0755) < 0) return fail_errno(errno, "cannot make cgroup {}", cgroup);
    host->cgroup_ = cgroup;
    struct stat info{};
    if (::stat(cgroup.c_str(), &info) < 0) return fail_errno(errno, "cannot stat {}", cgroup);
    host->cgroup_id_ = info.st_ino;

    if (spec.bind_names) {
      ::mkdir(kNetnsRoot, 0755);
      std::string path = fmt::format("{}/{}-{}", kNetnsRoot, name_, host_spec.name);
      Fd place(::open(path.c_str(), O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
      if (!place) return fail_errno(errno, "cannot make {}", path);
      host->netns_path_ = path;
      std::string source = fmt::format("/proc/self/fd/{}", host->netns_.get());
      if (::mount(source.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) < 0)
        return fail_errno(errno, "cannot bind the namespace to {}", path);
    }

    std::map<std::string, std::string> sysctls = {
        // No packet that the test did not ask for: link-local addresses, duplicate address detection, router solicitation.
        {"net.ipv6.conf.default.addr_gen_mode", "1"},
        {"net.ipv6.conf.default.accept_dad", "0"},
        {"net.ipv6.conf.default.accept_ra", "0"},
        {"net.ipv6.conf.default.autoconf", "0"},
        {"net.ipv6.conf.default.router_solicitations", "0"},
        {"net.ipv4.ip_forward", host_spec.forwarding ? "1" : "0"},
        {"net.ipv6.conf.all.forwarding", host_spec.forwarding ? "1" : "0"},
        {"net.ipv6.conf.default.forwarding", host_spec.forwarding ? "1" : "0"},
    };
    // A switch is no firewall, and without addresses a frame that went through IPv4 rules would be dropped as unroutable.
    if (host_spec.bridge && fs::exists("/proc/sys/net/bridge"))
      for (const char* table : {"iptables", "ip6tables", "arptables"})
        sysctls.emplace(fmt::format("net.bridge.bridge-nf-call-{}", table), "0");
    for (const auto& [key, value] : host_spec.sysctls) sysctls[key] = value;
    for (const auto& [key, value] : sysctls)
      SLUICE_CHECK(host->set_sysctl(key, value).map_error([&](Error error) {
        return std::move(error).within("sysctl of host " + host_spec.name);
      }));
    hosts_.push_back(std::move(host));
  }
  return {};
}

// Links are made with ip(8) in batches, one pass per host: devices first, then (both ends exist) addresses, neighbours, routes.
Status Topology::add_links(const TopologySpec& spec) {
  auto index_of = [&](const std::string& name) -> Result<std::size_t> {
    for (std::size_t i = 0; i < hosts_.size(); i++)
      if (hosts_[i]->name() == name) return i;
    return fail(Code::kInvalid, "a link or route names the unknown host '{}'", name);
  };
  std::vector<std::string> devices(hosts_.size(), "link set lo up\n");
  std::vector<std::string> settings(hosts_.size());
  std::vector<std::string> forwarding(hosts_.size());       // for bridge(8)
  std::vector<std::set<std::string>> plain(hosts_.size());  // interfaces without offloads
  for (std::size_t i = 0; i < hosts_.size(); i++)
    if (hosts_[i]->spec_.bridge)
      devices[i] += "link add br0 type bridge forward_delay 0 mcast_snooping 0\nlink set br0 arp off up\n";

  std::vector<std::vector<Port>> segments;               // ports that share a wire
  std::map<std::size_t, std::size_t> segment_of_bridge;  // host index -> segments index
  int links = 0;
  for (const LinkSpec& link : spec.links) {
    SLUICE_TRY(host_a, index_of(link.a.host));
    SLUICE_TRY(host_b, index_of(link.b.host));
    if (host_a == host_b) return fail(Code::kInvalid, "a link of host '{}' to itself", link.a.host);
    Port port_a{host_a, hosts_[host_a]->interfaces_.size()};
    Port port_b{host_b, hosts_[host_b]->interfaces_.size()};
    std::size_t segment = segments.size();
    for (std::size_t host : {host_a, host_b})
      if (auto known = segment_of_bridge.find(host); known != segment_of_bridge.end()) segment = known->second;
    if (segment == segments.size()) segments.emplace_back();
    for (auto [port, end] : {std::pair{port_a, &link.a}, std::pair{port_b, &link.b}}) {
      Host& host = *hosts_[port.host];
      if (host.spec_.bridge) {
        if (!end->addresses.empty()) return fail(Code::kInvalid, "the switch '{}' takes no addresses", end->host);
        if (auto [place, added] = segment_of_bridge.try_emplace(port.host, segment); !added && place->second != segment)
          return fail(Code::kInvalid, "switches '{}' and '{}' must be linked before their hosts are", link.a.host, link.b.host);
      }
      segments[segment].push_back(port);
      std::string name = fmt::format("eth{}", port.interface);
      host.interfaces_.push_back({name, mac_of(port.host, port.interface), end->addresses});
      if (!link.offloads) plain[port.host].insert(name);
    }
    // A switch that had to learn would flood the first frames to everybody.
    for (auto [port, peer] : {std::pair{port_a, port_b}, std::pair{port_b, port_a}})
      if (hosts_[port.host]->spec_.bridge && !hosts_[peer.host]->spec_.bridge)
        forwarding[port.host] +=
            fmt::format("fdb replace {} dev eth{} master static\n", mac_of(peer.host, peer.interface), port.interface);
    const Interface& a = hosts_[host_a]->interfaces_.back();
    const Interface& b = hosts_[host_b]->interfaces_.back();
    // Equal indexes on both ends would make the kernel take the link for a lone interface and report its carrier a second late.
    int index = kFirstIndex + 2 * links++;
    devices[host_a] += fmt::format(
        "link add {} index {} mtu {} address {} type veth peer name {} index {} mtu {} address {} netns /proc/{}/fd/{}\n",
        a.name, index, link.mtu, a.mac, b.name, index + 1, link.mtu, b.mac, ::getpid(), hosts_[host_b]->netns_.get());
  }

  for (std::size_t i = 0; i < hosts_.size(); i++) {
    for (const Interface& interface : hosts_[i]->interfaces_) {
      // First of all: NOARP also keeps IPv6 from joining an address's multicast group, and so from reporting that.
      settings[i] += fmt::format("link set {} arp off\n", interface.name);
      for (const std::string& address : interface.addresses)
        settings[i] += fmt::format("addr add {} dev {}{}\n", address, interface.name, is_ipv6(address) ? " nodad" : "");
      if (hosts_[i]->spec_.bridge) settings[i] += fmt::format("link set {} master br0\n", interface.name);
      settings[i] += fmt::format("link set {} up\n", interface.name);
    }
  }
  for (const auto& ports : segments)
    for (const Port& self : ports) {
      const Host& host = *hosts_[self.host];
      if (host.spec_.bridge) continue;
      for (const Port& other : ports) {
        if (other.host == self.host) continue;
        const Interface& neighbour = hosts_[other.host]->interfaces_[other.interface];
        for (const std::string& address : neighbour.addresses)
          settings[self.host] += fmt::format("neigh replace {} lladdr {} dev {} nud permanent\n", without_prefix(address),
                                             neighbour.mac, host.interfaces_[self.interface].name);
      }
    }
  for (const RouteSpec& route : spec.routes) {
    SLUICE_TRY(host, index_of(route.host));
    settings[host] += fmt::format("route add {} via {} {}\n", route.destination, route.via, route.options);
  }

  auto batch = [](const Host& host, const char* tool, const std::string& commands) -> Status {
    if (commands.empty()) return {};
    SLUICE_TRY(process, host.spawn({tool, "-batch", "-"}, {.pipe_stdin = true, .pipe_stdout = true, .merge_stderr = true}));
    SLUICE_CHECK(process.write(commands));
    process.close_input();
    SLUICE_TRY(said, process.read_all(kSoon));
    SLUICE_TRY(status, process.wait(kSoon));
    if (status != 0) return fail(Code::kInvalid, "{} on host {} said: {}\n{}", tool, host.name(), said, commands);
    return {};
  };
  for (std::size_t i = 0; i < hosts_.size(); i++) SLUICE_CHECK(batch(*hosts_[i], "ip", devices[i]));
  for (std::size_t i = 0; i < hosts_.size(); i++) {
    if (plain[i].empty()) continue;
    auto switch_off = [&]() -> Status {
      for (const std::string& interface : plain[i]) SLUICE_CHECK(switch_off_offloads(interface));
      return {};
    };
    SLUICE_CHECK(hosts_[i]->call(switch_off));
  }
  for (std::size_t i = 0; i < hosts_.size(); i++) {
    SLUICE_CHECK(batch(*hosts_[i], "ip", settings[i]));
    SLUICE_CHECK(batch(*hosts_[i], "bridge", forwarding[i]));
  }
  for (const auto& host : hosts_) {
    auto await_all = [&host]() -> Status {
      for (const Interface& interface : host->interfaces_) SLUICE_CHECK(await_carrier(interface.name));
      return {};
    };
    SLUICE_CHECK(host->call(await_all));
  }
  return {};
}

}  // namespace sluice::test
