// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Mount tables: /proc/mounts and /proc/PID/mountinfo, octal escapes undone.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

struct Mount {
  std::string source;
  std::string target;  // as seen by the process whose table it is
  std::string type;    // "cgroup2", "bpf", "nsfs", ...
  std::string options;
  std::string root;  // mountinfo only: what of the file system is mounted; "net:[4026531840]" for nsfs
};

std::vector<Mount> parse_mounts(std::string_view text);
std::vector<Mount> parse_mountinfo(std::string_view text);
Result<std::vector<Mount>> read_mounts(const std::string& proc_root = "/proc");  // of this process

// How control groups are mounted. sockops programs attach to cgroup2 only; on kHybrid it is there, beside v1 controllers.
enum class CgroupMode { kNone, kV1, kHybrid, kUnified };
struct CgroupMounts {
  CgroupMode mode = CgroupMode::kNone;
  std::string cgroup2;  // mount point; empty without one
};
CgroupMounts cgroup_mounts(const std::vector<Mount>& mounts);
std::string_view to_string(CgroupMode mode);

}  // namespace sluice
