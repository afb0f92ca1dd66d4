// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "net/netns.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>

#include "base/file.h"
#include "base/mounts.h"
#include "base/strings.h"

namespace sluice::net {
namespace {

std::optional<std::uint64_t> netns_inode(std::string_view link) {
  constexpr std::string_view kPrefix = "net:[";
  if (!link.starts_with(kPrefix) || !link.ends_with(']')) return std::nullopt;
  return parse_int<std::uint64_t>(link.substr(kPrefix.size(), link.size() - kPrefix.size() - 1));
}

bool is_number(std::string_view name) { return parse_int<unsigned>(name).has_value(); }

// Strongest first: what will still be there when it is opened.
enum Strength { kMount, kProcess, kThread, kDescriptor };

class Scanner {
 public:
  Scanner(const std::string& proc_root, bool descriptors) : proc_(proc_root), descriptors_(descriptors) {}

  Result<NetnsScan> run() {
    SLUICE_TRY(names, list_dir(proc_));
    for (const std::string& name : names)
      if (is_number(name)) scan_process(name);
    if (exhausted_) return fail(std::move(*exhausted_));
    NetnsScan scan;
    for (auto& [inode, found] : found_) scan.sightings.push_back(std::move(found.sighting));
    scan.unreadable = unreadable_;
    return scan;
  }

 private:
  struct Found {
    Strength strength;
    NetnsSighting sighting;
  };

  void scan_process(const std::string& pid) {
    const std::string dir = proc_ + "/" + pid;
    bool denied = false;
    auto own = inode_at(dir + "/ns/net", denied);
    if (own) add(*own, kProcess, dir + "/ns/net", [&] { return process(pid); });

    for (const std::string& tid : list(dir + "/task", denied)) {
      if (tid == pid) continue;
      const std::string path = fmt::format("{}/task/{}/ns/net", dir, tid);
      auto inode = inode_at(path, denied);
      if (inode && inode != own) add(*inode, kThread, path, [&] { return fmt::format("thread {} of {}", tid, process(pid)); });
    }

    if (descriptors_) {
      for (const std::string& fd : list(dir + "/fd", denied)) {
        const std::string path = fmt::format("{}/fd/{}", dir, fd);
        if (auto inode = inode_at(path, denied))
          add(*inode, kDescriptor, path, [&] { return fmt::format("descriptor {} of {}", fd, process(pid)); });
      }
    }

    // One process stands for all that share its mounts.
    auto mount_ns = link_at(dir + "/ns/mnt", denied);
    if (mount_ns && mount_namespaces_.insert(*mount_ns).second) {
      auto text = read_file(dir + "/mountinfo");
      if (text) {
        for (const Mount& mount : parse_mountinfo(*text)) {
          if (mount.type != "nsfs") continue;
          if (auto inode = netns_inode(mount.root))
            add(*inode, kMount, fmt::format("{}/root{}", dir, mount.target),
                [&] { return "mount " + mount.target + " seen by " + process(pid); });
        }
      } else {
        mount_namespaces_.erase(*mount_ns);  // it ended: another process of the same mounts will do
        note(text.error(), denied);
      }
    }
    if (denied) unreadable_++;
  }

  void note(const Error& error, bool& denied) {
    denied |= error.code == Code::kPermission;
    if (error.code == Code::kExhausted && !exhausted_) exhausted_ = error;
  }

  std::string process(const std::string& pid) const {
    auto name = read_file(proc_ + "/" + pid + "/comm");
    return name ? fmt::format("process {} ({})", pid, trim(*name)) : "process " + pid;
  }

  template <class Holder>
  void add(std::uint64_t inode, Strength strength, std::string path, Holder holder) {
    auto at = found_.find(inode);
    if (at != found_.end() && at->second.strength <= strength) return;
    found_.insert_or_assign(inode, Found{strength, {inode, std::move(path), holder()}});
  }

  std::optional<std::string> link_at(const std::string& path, bool& denied) {
    auto link = read_link(path);
    if (link) return std::move(*link);
    note(link.error(), denied);
    return std::nullopt;
  }
  std::optional<std::uint64_t> inode_at(const std::string& path, bool& denied) {
    auto link = link_at(path, denied);
    return link ? netns_inode(*link) : std::nullopt;
  }
  std::vector<std::string> list(const std::string& path, bool& denied) {
    auto names = list_dir(path);
    if (names) return std::move(*names);
    note(names.error(), denied);
    return {};
  }

  std::string proc_;
  bool descriptors_;
  std::map<std::uint64_t, Found> found_;
  std::set<std::string> mount_namespaces_;
  std::size_t unreadable_ = 0;
  // A process that ended is passed over; one that could not be looked at for want of descriptors may hold a namespace that
  // nobody else does.
  std::optional<Error> exhausted_;
};

}  // namespace

Result<NetnsScan> scan_netns(const std::string& proc_root, bool descriptors) { return Scanner(proc_root, descriptors).run(); }

Result<Netns> open_netns(const std::string& path) {
  SLUICE_TRY(fd, sluice::open_file(path, O_RDONLY));
  if (::ioctl(fd.get(), NS_GET_NSTYPE) != CLONE_NEWNET)
    return fail(fail(Code::kInvalid, "is not a network namespace").value().at(path));
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return fail(fail_errno(errno, "cannot identify the namespace").value().at(path));
  return Netns{info.st_ino, std::move(fd), path};
}

Result<Netns> current_netns() { return open_netns("/proc/thread-self/ns/net"); }

Result<NetnsList> find_netns(const std::string& proc_root, bool descriptors) {
  NetnsList list;
  std::set<std::uint64_t> held;
  // A holder may end between the scan and the open, while another one keeps the namespace: look again for those only.
  constexpr int kPasses = 5;
  for (int pass = 1; pass <= kPasses; pass++) {
    SLUICE_TRY(scan, scan_netns(proc_root, descriptors));
    list.unreadable = scan.unreadable;
    bool missed = false;
    for (NetnsSighting& sighting : scan.sightings) {
      if (held.contains(sighting.inode)) continue;
      auto opened = open_netns(sighting.path);
      if (!opened && opened.error().code == Code::kExhausted) return fail(std::move(opened).error());
      if (!opened && opened.error().code == Code::kPermission) {
        list.unreadable++;
        continue;
      }
      if (!opened || opened->inode != sighting.inode) {
        missed = true;
        continue;
      }
      held.insert(sighting.inode);
      opened->holder = std::move(sighting.holder);
      list.namespaces.push_back(std::move(*opened));
    }
    if (!missed) break;
  }
  return list;
}

namespace {

Result<std::string> sysctl_path(std::string_view key) {
  if (!key.starts_with("net.") || key.find('/') != std::string_view::npos || key.find("..") != std::string_view::npos)
    return fail(Code::kInvalid, "\"{}\" is not a sysctl of a network namespace (net.*)", key);
  std::string path = "/proc/sys/" + std::string(key);
  std::replace(path.begin() + sizeof("/proc/sys/") - 1, path.end(), '.', '/');
  return path;
}

}  // namespace

Result<std::string> read_sysctl(int netns_fd, std::string_view key) {
  SLUICE_TRY(path, sysctl_path(key));
  SLUICE_TRY(text, run_in_netns(netns_fd, [&] { return read_file(path); }));
  return std::string(trim(text));
}

Status write_sysctl(int netns_fd, std::string_view key, std::string_view value) {
  SLUICE_TRY(path, sysctl_path(key));
  return run_in_netns(netns_fd, [&] { return write_file(path, value); });
}

Result<std::vector<std::size_t>> with_default_cca(const std::vector<Netns>& namespaces, std::string_view cca) {
  std::vector<std::size_t> matches;
  for (std::size_t i = 0; i < namespaces.size(); i++) {
    SLUICE_TRY(name, read_sysctl(namespaces[i].fd.get(), kDefaultCcaSysctl));
    if (name == cca) matches.push_back(i);
  }
  return matches;
}

}  // namespace sluice::net
