// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/holders.h"

#include <bpf/bpf.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/file.h"
#include "base/mounts.h"
#include "base/strings.h"
#include "base/unique_fd.h"
#include "bpfio/link.h"
#include "bpfio/program.h"

namespace sluice::bpfio {
namespace {

constexpr std::size_t kPinsMax = 65'536;
constexpr int kDepthMax = 16;

void add(std::map<std::uint32_t, std::vector<std::string>>& to, std::uint32_t id, const std::string& holder) {
  auto& list = to[id];
  if (std::ranges::find(list, holder) == list.end()) list.push_back(holder);
}

std::optional<std::uint32_t> field(std::string_view text, std::string_view key) {
  for (std::string_view line : split(text, '\n'))
    if (line.starts_with(key)) return parse_int<std::uint32_t>(trim(line.substr(key.size())));
  return std::nullopt;
}

// Processes end while they are looked at: what cannot be read is passed over.
Status look_into_process(const std::string& proc, const std::string& pid, Holders& holders) {
  const std::string dir = proc + "/" + pid;
  const auto descriptors = list_dir(dir + "/fd");
  if (!descriptors) return descriptors.error().code == Code::kExhausted ? fail(descriptors.error()) : Status{};
  std::string name;
  for (const std::string& fd : *descriptors) {
    const auto target = read_link(fmt::format("{}/fd/{}", dir, fd));
    if (!target || !target->starts_with("anon_inode:bpf")) continue;
    const bool program = *target == "anon_inode:bpf-prog";
    const bool link = *target == "anon_inode:bpf_link" || *target == "anon_inode:bpf-link";
    if (!program && !link) continue;
    const auto info = read_file(fmt::format("{}/fdinfo/{}", dir, fd));
    if (!info) continue;
    const auto id = field(*info, program ? "prog_id:" : "link_id:");
    if (!id) continue;
    if (name.empty()) {
      const auto comm = read_file(dir + "/comm");
      name = comm ? fmt::format("process {} ({})", pid, trim(*comm)) : "process " + pid;
    }
    add(program ? holders.programs : holders.links, *id, name);
  }
  return {};
}

class PinWalk {
 public:
  explicit PinWalk(Holders& holders) : holders_(holders) {}

  void folder(const std::string& path, int depth) {
    const auto names = list_dir(path);
    if (!names || depth > kDepthMax) return;
    for (const std::string& name : *names) {
      const std::string entry = path + "/" + name;
      struct stat info{};
      if (::lstat(entry.c_str(), &info) != 0) continue;
      if (S_ISDIR(info.st_mode))
        folder(entry, depth + 1);
      else if (S_ISREG(info.st_mode) && ++seen_ <= kPinsMax)
        pin(entry);
    }
  }

 private:
  void pin(const std::string& path) {
    UniqueFd fd(bpf_obj_get(path.c_str()));
    if (!fd) return;
    const auto target = read_link(fmt::format("/proc/self/fd/{}", fd.get()));
    if (!target) return;
    const std::string holder = "pin " + path;
    if (*target == "anon_inode:bpf-prog") {
      if (const auto program = Program::adopt(std::move(fd))) add(holders_.programs, program->id(), holder);
    } else if (target->starts_with("anon_inode:bpf") && target->ends_with("link")) {
      if (const auto link = Link::adopt(std::move(fd))) add(holders_.links, link->id(), holder);
    }
  }

  Holders& holders_;
  std::size_t seen_ = 0;
};

}  // namespace

Result<Holders> find_holders(const std::string& proc_root) {
  Holders holders;
  SLUICE_TRY(processes, list_dir(proc_root));
  for (const std::string& name : processes)
    if (parse_int<unsigned>(name)) SLUICE_CHECK(look_into_process(proc_root, name, holders));
  SLUICE_TRY(mounts, read_mounts(proc_root));
  PinWalk walk(holders);
  for (const Mount& mount : mounts)
    if (mount.type == "bpf") walk.folder(mount.target, 0);
  return holders;
}

}  // namespace sluice::bpfio
