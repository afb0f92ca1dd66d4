// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// residue_check --save FILE           writes down what is on this machine now
// residue_check --compare FILE        prints each thing that was not there then, with how to remove it; exit status 1 if any
//               [--wait SECONDS]      how long things may take to go away (10): the kernel frees struct_ops maps, namespaces
//                                     and cgroups after the last user is gone, in its own time
//
// Looks at: network namespaces (named, and of any process or held descriptor), BPF links, programs and maps, pins, registered
// CCAs, processes named sluice*, traffic or recorder, cgroups, interfaces, mounts, and the values of net.ipv4.tcp_*. A thing of
// its kernel identity (id, inode, start time) counts, not of its name. Needs root.
#include <bpf/bpf.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <linux/types.h>
#include <mntent.h>
#include <net/if.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

namespace fs = std::filesystem;

// kind -> identity -> remedy
using Snapshot = std::map<std::string, std::map<std::string, std::string>>;

[[noreturn]] void die(int status, const std::string& why) {
  fmt::print(stderr, "residue_check: {}\n", why);
  std::exit(status);
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  std::string s = text.str();
  while (!s.empty() && (s.back() == '\n' || s.back() == ' ')) s.pop_back();
  return s;
}

// Entries of a folder; a folder that is not there (any more) has none.
template <class Body>
void each_entry(const fs::path& folder, Body body) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) body(*it);
}

template <class Body>
void each_folder_below(const fs::path& folder, Body body) {
  each_entry(folder, [&](const fs::directory_entry& entry) {
    std::error_code error;
    bool is_folder = entry.is_directory(error) && !entry.is_symlink(error);
    body(entry, is_folder);
    if (is_folder) each_folder_below(entry.path(), body);
  });
}

void add_processes_and_namespaces(Snapshot& snapshot) {
  auto& processes = snapshot["process"];
  auto& namespaces = snapshot["network namespace"];
  each_entry("/proc", [&](const fs::directory_entry& entry) {
    std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) return;
    std::string stat = read_text(entry.path() / "stat");
    auto open = stat.find('('), close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close + 2 >= stat.size()) return;  // ended meanwhile
    std::string name = stat.substr(open + 1, close - open - 1);
    std::istringstream rest(stat.substr(close + 2));
    std::vector<std::string> fields;
    for (std::string field; rest >> field;) fields.push_back(field);
    constexpr std::size_t kState = 0, kStartTime = 19;  // proc(5), counted from the field after the name
    if (fields.size() <= kStartTime || fields[kState] == "Z") return;
    if (name.starts_with("sluice") || name == "traffic" || name == "recorder")
      processes[fmt::format("{} {} started at {}", name, pid, fields[kStartTime])] = "kill " + pid;

    std::string remedy = fmt::format("end process {} ({})", pid, name);
    std::error_code error;
    auto own = fs::read_symlink(entry.path() / "ns/net", error);
    if (!error) namespaces.emplace(own, remedy);
    each_entry(entry.path() / "fd", [&](const fs::directory_entry& fd) {
      std::error_code gone;
      auto target = fs::read_symlink(fd.path(), gone);
      if (!gone && target.native().starts_with("net:[")) namespaces.emplace(target, remedy);
    });
  });
  each_entry("/run/netns", [&](const fs::directory_entry& entry) {
    snapshot["named network namespace"][entry.path()] = "ip netns delete " + entry.path().filename().native();
  });
}

void add_bpf(Snapshot& snapshot) {
  auto& links = snapshot["BPF link"];
  auto& programs = snapshot["BPF program"];
  auto& maps = snapshot["BPF map"];
  for (__u32 id = 0; ::bpf_link_get_next_id(id, &id) == 0;) {
    int fd = ::bpf_link_get_fd_by_id(id);
    if (fd < 0) continue;
    bpf_link_info info{};
    __u32 size = sizeof(info);
    if (::bpf_link_get_info_by_fd(fd, &info, &size) == 0)
      links[fmt::format("id {} type {} program {}", id, static_cast<unsigned>(info.type), info.prog_id)] =
          fmt::format("bpftool link detach id {}, or end what holds it (bpftool link show id {})", id, id);
    ::close(fd);
  }
  for (__u32 id = 0; ::bpf_prog_get_next_id(id, &id) == 0;) {
    int fd = ::bpf_prog_get_fd_by_id(id);
    if (fd < 0) continue;
    bpf_prog_info info{};
    __u32 size = sizeof(info);
    if (::bpf_prog_get_info_by_fd(fd, &info, &size) == 0)
      programs[fmt::format("id {} name {}", id, info.name)] = fmt::format("end what holds it (bpftool prog show id {})", id);
    ::close(fd);
  }
  for (__u32 id = 0; ::bpf_map_get_next_id(id, &id) == 0;) {
    int fd = ::bpf_map_get_fd_by_id(id);
    if (fd < 0) continue;
    bpf_map_info info{};
    __u32 size = sizeof(info);
    if (::bpf_map_get_info_by_fd(fd, &info, &size) == 0)
      maps[fmt::format("id {} name {}", id, info.name)] = fmt::format("end what holds it (bpftool map show id {})", id);
    ::close(fd);
  }
}

void add_mounts(Snapshot& snapshot) {
  std::FILE* table = ::setmntent("/proc/self/mounts", "re");
  if (table == nullptr) die(1, fmt::format("cannot read /proc/self/mounts: {}", std::strerror(errno)));
  while (const mntent* entry = ::getmntent(table)) {
    std::string_view type = entry->mnt_type;
    std::string folder = entry->mnt_dir;
    snapshot["mount"][fmt::format("{} on {}", type, folder)] = "umount " + folder;
    // Something else may be mounted over it, or it hides under the root: then the path leads elsewhere.
    struct statfs there{};
    bool visible = ::statfs(folder.c_str(), &there) == 0;
    if (type == "bpf" && visible && there.f_type == BPF_FS_MAGIC)
      each_folder_below(folder, [&](const fs::directory_entry& pin, bool is_folder) {
        snapshot["pin"][pin.path()] = (is_folder ? "rmdir " : "rm ") + pin.path().native();
      });
    if (type == "cgroup2" && visible && there.f_type == CGROUP2_SUPER_MAGIC)
      each_folder_below(folder, [&](const fs::directory_entry& group, bool is_folder) {
        if (is_folder)
          snapshot["cgroup"][group.path()] =
              fmt::format("echo 1 > {}/cgroup.kill; rmdir {}", group.path().native(), group.path().native());
      });
  }
  ::endmntent(table);
}

void add_network(Snapshot& snapshot) {
  std::istringstream names(read_text("/proc/sys/net/ipv4/tcp_available_congestion_control"));
  for (std::string name; names >> name;)
    snapshot["registered CCA"][name] = "end what holds its struct_ops link (bpftool struct_ops list; bpftool link list)";
  if (struct if_nameindex* interfaces = ::if_nameindex()) {
    for (auto* i = interfaces; i->if_index != 0; i++)
      snapshot["interface"][fmt::format("{} index {}", i->if_name, i->if_index)] = fmt::format("ip link delete {}", i->if_name);
    ::if_freenameindex(interfaces);
  }
  each_entry("/proc/sys/net/ipv4", [&](const fs::directory_entry& entry) {
    std::string name = entry.path().filename();
    // The list of CCAs is looked at above; a key is made at random on first use.
    if (!name.starts_with("tcp_") || name.ends_with("available_congestion_control") || name == "tcp_fastopen_key") return;
    snapshot["sysctl"][fmt::format("net.ipv4.{} = {}", name, read_text(entry.path()))] = "";
  });
}

Snapshot take_snapshot() {
  Snapshot snapshot;
  add_processes_and_namespaces(snapshot);
  add_bpf(snapshot);
  add_mounts(snapshot);
  add_network(snapshot);
  return snapshot;
}

// One line for each thing that is only in `after`.
std::vector<std::string> compare(const Snapshot& before, const Snapshot& after) {
  std::vector<std::string> lines;
  for (const auto& [kind, things] : after) {
    auto then = before.find(kind);
    for (const auto& [identity, remedy] : things) {
      if (then != before.end() && then->second.contains(identity)) continue;
      std::string cure = remedy;
      if (kind == "sysctl" && then != before.end()) {
        // What is its old value?
        std::string prefix = identity.substr(0, identity.find(" = ") + 3);
        auto old = then->second.lower_bound(prefix);
        if (old != then->second.end() && old->first.starts_with(prefix))
          cure = fmt::format("sysctl -w {}='{}'", prefix.substr(0, prefix.size() - 3), old->first.substr(prefix.size()));
      }
      lines.push_back(fmt::format("{}: {}; to remove: {}", kind, identity, cure));
    }
  }
  return lines;
}

int compare_with(const std::string& path, double wait_s) {
  auto json = nlohmann::json::parse(read_text(path), nullptr, false);
  if (json.is_discarded() || !json.is_object()) die(2, fmt::format("{} is not a file of --save", path));
  Snapshot before;
  try {
    before = json.get<Snapshot>();
  } catch (const nlohmann::json::exception& error) {
    die(2, fmt::format("{} is not a file of --save: {}", path, error.what()));
  }
  auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
  for (;;) {
    auto lines = compare(before, take_snapshot());
    if (lines.empty()) {
      fmt::print("no residue\n");
      return 0;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      for (const std::string& line : lines) fmt::print("{}\n", line);
      return 1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr const char* kUsage = "usage: residue_check --save FILE | --compare FILE [--wait SECONDS]";
  std::string save, compared;
  double wait_s = 10;
  for (int i = 1; i < argc; i++) {
    std::string_view name = argv[i];
    if (name == "--help") {
      fmt::print("{}\n", kUsage);
      return 0;
    }
    if (++i == argc) die(2, kUsage);
    if (name == "--save") {
      save = argv[i];
    } else if (name == "--compare") {
      compared = argv[i];
    } else if (name == "--wait") {
      char* end = nullptr;
      wait_s = std::strtod(argv[i], &end);
      if (*end != '\0' || !(wait_s >= 0 && wait_s <= 600)) die(2, "--wait takes seconds, at most 600");
    } else {
      die(2, kUsage);
    }
  }
  if (save.empty() == compared.empty()) die(2, kUsage);
  if (::geteuid() != 0) die(2, "needs root to see BPF objects and other processes");
  if (!compared.empty()) return compare_with(compared, wait_s);
  std::ofstream file(save);
  file << nlohmann::json(take_snapshot()).dump(1) << "\n";
  file.close();
  if (!file) die(1, fmt::format("cannot write {}", save));
  return 0;
}
