// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/hook_audit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <map>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "bpfio/enumerate.h"
#include "net/cgroup.h"

namespace sluice::agent {
namespace {

constexpr size_t kCgroupsMax = 65'536;  // looked at below ours

int64_t since_boot_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// One program at one cgroup.
struct Attached {
  std::string cgroup;
  uint32_t prog_id = 0, flags = 0, link_id = 0;
};

class HookWalk {
 public:
  HookWalk(const AuditedHook& hook, const AuditedCgroup& where, const bpfio::Holders& holders)
      : hook_(hook), where_(where), holders_(holders), booted_at_ns_(RealClock().wall_ns() - since_boot_ns()) {}

  Result<HookAudit> run() {
    SLUICE_TRY(links, bpfio::all_links());
    for (const auto& link : links)
      if (link.type == bpfio::LinkType::kCgroup && link.attach_type == bpfio::attach_type(hook_.hook))
        links_[{link.cgroup_id, link.prog_id}].push_back(link.id);
    SLUICE_TRY(shape, bpfio::hook_shape(hook_.hook));
    shape_ = shape;

    HookAudit audit;
    audit.hook = hook_.name;
    audit.cgroup = where_.folder;
    audit.attached = where_.own_link != 0;
    audit.limit = bpfio::kCgroupProgramsMax;
    if (::access(where_.folder.c_str(), F_OK) != 0) return audit;  // it is gone, and with it whatever was attached
    SLUICE_CHECK(below(where_.folder, audit));
    SLUICE_TRY(own, programs_at(where_.folder));
    audit.programs = static_cast<uint32_t>(own.size());
    SLUICE_TRY(order, order_at(where_.folder));
    for (const auto& item : order) SLUICE_CHECK(add(item, position(order, item), audit));
    // Those above that a nearer cgroup overrules.
    for (const auto& folder : upwards(where_.folder)) {
      SLUICE_TRY(there, programs_at(folder));
      for (const auto& item : there)
        if (!runs(order, item)) SLUICE_CHECK(add(item, HookProgram::Order::kNever, audit));
    }
    return audit;
  }

 private:
  // A folder and those above it, up to the mount.
  std::vector<std::string> upwards(std::string folder) const {
    std::vector<std::string> list;
    for (;;) {
      list.push_back(folder);
      const size_t slash = folder.rfind('/');
      if (folder.size() <= where_.cgroup2.size() || slash == std::string::npos || slash == 0) return list;
      folder.resize(slash);
    }
  }

  Result<std::vector<Attached>> programs_at(const std::string& folder) {
    std::vector<Attached> list;
    auto fd = open_file(folder, O_RDONLY | O_DIRECTORY);
    if (!fd && fd.error().code == Code::kNotFound) return list;  // it ended
    if (!fd) return fail(std::move(fd).error());
    struct stat info{};
    if (::fstat(fd->get(), &info) != 0) return fail_errno(errno, "cannot identify the cgroup {}", folder);
    SLUICE_TRY(programs, bpfio::cgroup_programs(fd->get(), hook_.hook, false));
    std::map<uint32_t, size_t> taken;  // of a program that is attached more than once: its links in turn
    for (const auto& program : programs) {
      Attached item{folder, program.prog_id, program.attach_flags, 0};
      const auto links = links_.find({info.st_ino, program.prog_id});
      const size_t turn = taken[program.prog_id]++;
      if (links != links_.end() && turn < links->second.size()) item.link_id = links->second[turn];
      list.push_back(std::move(item));
    }
    return list;
  }

  // What a socket of `folder` meets, as the kernel runs it; each program with the cgroup it comes from.
  Result<std::vector<Attached>> order_at(const std::string& folder) {
    std::vector<Attached> known;
    for (const auto& level : upwards(folder)) {
      SLUICE_TRY(there, programs_at(level));
      known.insert(known.end(), there.begin(), there.end());
    }
    SLUICE_TRY(fd, open_file(folder, O_RDONLY | O_DIRECTORY));
    SLUICE_TRY(effective, bpfio::cgroup_programs(fd.get(), hook_.hook, true));
    std::vector<Attached> order;
    for (const auto& program : effective) {
      const auto found = std::ranges::find(known, program.prog_id, &Attached::prog_id);
      if (found == known.end()) {
        order.push_back({"", program.prog_id, 0, 0});  // attached meanwhile
        continue;
      }
      order.push_back(std::move(*found));
      known.erase(found);
    }
    return order;
  }

  bool ours(const Attached& item) const {
    return where_.own_link != 0 &&
           (item.link_id == where_.own_link || (item.link_id == 0 && item.prog_id == where_.own_program));
  }
  static bool same(const Attached& a, const Attached& b) {
    return a.prog_id == b.prog_id && a.link_id == b.link_id && a.cgroup == b.cgroup;
  }
  static bool runs(const std::vector<Attached>& order, const Attached& item) {
    return std::ranges::any_of(order, [&](const Attached& other) { return same(other, item); });
  }

  HookProgram::Order position(const std::vector<Attached>& order, const Attached& item) const {
    if (ours(item)) return HookProgram::Order::kOurs;
    const auto own = std::ranges::find_if(order, [&](const Attached& other) { return ours(other); });
    if (own == order.end()) return HookProgram::Order::kBeside;
    const auto self = std::ranges::find_if(order, [&](const Attached& other) { return same(other, item); });
    return self < own ? HookProgram::Order::kBefore : HookProgram::Order::kAfter;
  }

  Status below(const std::string& folder, HookAudit& audit) {
    const auto names = list_dir(folder);
    if (!names) return {};  // it ended
    for (const auto& name : *names) {
      const std::string path = folder + "/" + name;
      struct stat info{};
      if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
      if (++seen_ > kCgroupsMax) {
        if (seen_ == kCgroupsMax + 1) log_warning("an audit looks at no more cgroups below ours", {{"looked_at", kCgroupsMax}});
        return {};
      }
      SLUICE_CHECK(below(path, audit));
      SLUICE_TRY(there, programs_at(path));
      if (there.empty()) continue;
      auto order = order_at(path);
      if (!order && order.error().code == Code::kNotFound) continue;
      if (!order) return fail(std::move(order).error());
      for (const auto& item : there)
        SLUICE_CHECK(add(item, runs(*order, item) ? position(*order, item) : HookProgram::Order::kNever, audit));
    }
    return {};
  }

  Status add(const Attached& item, HookProgram::Order order, HookAudit& audit) {
    auto program = bpfio::Program::from_id(item.prog_id);
    if (!program && program.error().code == Code::kNotFound) return {};  // gone meanwhile
    if (!program) return fail(std::move(program).error());
    SLUICE_TRY(info, program->info());
    HookProgram out;
    out.prog_id = item.prog_id;
    out.link_id = item.link_id;
    out.name = info.name;
    out.tag = info.tag;
    out.loaded_at_ns = booted_at_ns_ + static_cast<int64_t>(info.loaded_ns);
    out.uid = info.uid;
    out.cgroup = item.cgroup;
    out.attach_flags = item.flags;
    out.order = order;
    const auto take = [&](const auto& by_id, uint32_t id) {
      if (const auto found = by_id.find(id); found != by_id.end())
        for (const auto& holder : found->second)
          if (std::ranges::find(out.holders, holder) == out.holders.end()) out.holders.push_back(holder);
    };
    take(holders_.links, item.link_id);
    take(holders_.programs, item.prog_id);
    if (order != HookProgram::Order::kOurs) {
      const auto [cached, fresh] = acts_.try_emplace(item.prog_id);
      if (fresh) {
        SLUICE_TRY(acts, bpfio::acts_of(*program, hook_.hook, shape_));
        cached->second = std::move(acts);
      }
      out.acts = cached->second;
    }
    audit.list.push_back(std::move(out));
    return {};
  }

  const AuditedHook& hook_;
  const AuditedCgroup& where_;
  const bpfio::Holders& holders_;
  int64_t booted_at_ns_;
  bpfio::HookShape shape_;
  std::map<std::pair<uint64_t, uint32_t>, std::vector<uint32_t>> links_;  // {cgroup id, program} -> links, in rising order
  std::map<uint32_t, std::vector<bpfio::CallbackActs>> acts_;
  size_t seen_ = 0;
};

}  // namespace

Result<HookAudit> audit_hook(const AuditedHook& hook, const AuditedCgroup& where, const bpfio::Holders& holders) {
  return HookWalk(hook, where, holders).run();
}

}  // namespace sluice::agent
