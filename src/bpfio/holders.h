// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Who keeps BPF programs and links in the kernel: processes with a descriptor of one, and pins. Reads only. What cannot be
// seen is left out: a pin in a bpffs of another mount namespace, a process that we may not look into.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::bpfio {

struct Holders {
  // By id: "process 812 (cilium-agent)", "pin /sys/fs/bpf/tc/sockops".
  std::map<std::uint32_t, std::vector<std::string>> programs, links;
};

Result<Holders> find_holders(const std::string& proc_root = "/proc");

}  // namespace sluice::bpfio
