// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Network namespaces: which exist, who holds them, and their TCP settings.
//
// The kernel has no list of namespaces: they are found through what holds them - processes, threads, mounts (ip netns,
// container runtimes) and open descriptors. One that is held only by a socket whose owner left it is not found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/netns_thread.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::net {

// One place where a namespace was seen.
struct NetnsSighting {
  std::uint64_t inode = 0;  // the number in "net:[4026531840]"; never 0
  std::string path;         // open it to hold the namespace
  std::string holder;       // "process 12 (nginx)", "mount /run/netns/blue", "descriptor 7 of process 12 (nginx)"
};
struct NetnsScan {
  std::vector<NetnsSighting>
      sightings;               // one per inode, sorted by it; the most lasting holder: mount, process, thread, descriptor
  std::size_t unreadable = 0;  // processes that could not be looked into (permission): the list may be short
};
// Reads only below `proc_root`. Cost: one readlink per thread, and one per open descriptor if `descriptors`.
Result<NetnsScan> scan_netns(const std::string& proc_root = "/proc", bool descriptors = true);

// A namespace that stays alive as long as this object: hold it briefly. A mount that it was opened through stays busy for
// umount(2), not for the lazy one that ip-netns and container runtimes use.
struct Netns {
  std::uint64_t inode = 0;
  UniqueFd fd;
  std::string holder;
};
struct NetnsList {
  std::vector<Netns> namespaces;
  std::size_t unreadable = 0;
};
// scan_netns(), each opened and checked, in no order; those that ended meanwhile are left out.
Result<NetnsList> find_netns(const std::string& proc_root = "/proc", bool descriptors = true);
Result<Netns> open_netns(const std::string& path);  // "/run/netns/blue", "/proc/12/ns/net"
Result<Netns> current_netns();

// `key` as sysctl(8) writes it ("net.ipv4.tcp_congestion_control"); only net.* depends on the namespace, others are refused.
// The value is trimmed.
Result<std::string> read_sysctl(int netns_fd, std::string_view key);
Status write_sysctl(int netns_fd, std::string_view key, std::string_view value);

inline constexpr std::string_view kDefaultCcaSysctl = "net.ipv4.tcp_congestion_control";
// Indices of those whose default congestion control is `cca`.
Result<std::vector<std::size_t>> with_default_cca(const std::vector<Netns>& namespaces, std::string_view cca);

}  // namespace sluice::net
