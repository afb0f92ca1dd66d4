// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// cgroup2: where it is mounted, and the ids by which BPF programs know its folders.
#pragma once

#include <cstdint>
#include <string>

#include "base/mounts.h"
#include "base/result.h"

namespace sluice::net {

// Mount point of cgroup2, also on hybrid hosts (/sys/fs/cgroup/unified). kUnsupported, with what to do, if there is none.
Result<std::string> find_cgroup2(const std::string& proc_root = "/proc");

// bpf_get_current_cgroup_id(), sk cgroup ids: on 64-bit kernels the inode number of the folder.
Result<std::uint64_t> cgroup_id(const std::string& path);
// The folder's full path; kNotFound once it was removed. `cgroup2` is the mount point. Needs CAP_DAC_READ_SEARCH.
Result<std::string> cgroup_path(const std::string& cgroup2, std::uint64_t id);

}  // namespace sluice::net
