// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Where an instance of the agent lives: the one rule that the agent, the CLI and the tests share.
//
//   default instance   /run/sluice/agent.sock        /var/lib/sluice        /sys/fs/bpf/sluice/v1/default
//   instance NAME      /run/sluice/NAME/agent.sock   /var/lib/sluice/NAME   /sys/fs/bpf/sluice/v1/NAME
//
// Several agents share one kernel under different names; "" and "default" mean the same instance. Roots are parameters, so that
// tests run below a directory of their own.
#pragma once

#include <sluice/abi/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

struct PathRoots {
  std::string run = "/run/sluice";
  std::string state = "/var/lib/sluice";
  std::string bpffs = "/sys/fs/bpf";
};

struct InstancePaths {
  std::string instance;   // "default", or its name
  std::string run_dir;    // holds the sockets
  std::string socket;     // of the gRPC API; the CLI's --socket and SLUICE_SOCKET take precedence
  std::string state_dir;  // database, saved verifier logs
  std::string log;        // output of an agent that `sluice up` started without systemd
  std::string pin_dir;    // maps, programs and links
};

inline constexpr std::string_view kDefaultInstance = "default";
inline constexpr std::string_view kSocketVariable = "SLUICE_SOCKET";

// The name becomes a part of paths (a socket's has 107 characters at most), cgroups and unit names.
inline constexpr std::size_t kInstanceNameMax = 32;

inline bool valid_instance_name(std::string_view name) {
  if (name.empty() || name.size() > kInstanceNameMax || name.front() == '-' || name.front() == '_') return false;
  for (char c : name)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_')) return false;
  return true;
}

inline Result<InstancePaths> instance_paths(std::string_view instance = {}, const PathRoots& roots = {}) {
  if (instance.empty()) instance = kDefaultInstance;
  if (!valid_instance_name(instance)) {
    Error error;
    error.code = Code::kInvalid;
    error.what = fmt::format("'{}' is not a name for an instance", instance);
    error.remedy =
        fmt::format("use 1 to {} characters of a-z, 0-9, '-' and '_', with a letter or digit first", kInstanceNameMax);
    return fail(std::move(error));
  }
  const std::string below = instance == kDefaultInstance ? "" : fmt::format("/{}", instance);
  InstancePaths paths;
  paths.instance = instance;
  paths.run_dir = roots.run + below;
  paths.socket = paths.run_dir + "/agent.sock";
  paths.state_dir = roots.state + below;
  paths.log = paths.state_dir + "/sluiced.log";
  paths.pin_dir = fmt::format("{}/sluice/v{}/{}", roots.bpffs, SL_ABI, instance);
  return paths;
}

// Where bundles are looked for unless --bundle-path says otherwise, in order of precedence: those built or installed together
// with the program (PREFIX/bin/PROGRAM; "" = unknown), the package's, the host's own.
inline std::vector<std::string> default_bundle_path(std::string_view program) {
  std::vector<std::string> roots;
  const auto folder = program.substr(0, program.rfind('/') == std::string_view::npos ? 0 : program.rfind('/'));
  if (const auto end = folder.rfind('/'); end != std::string_view::npos) {
    const std::string prefix(folder.substr(0, end));
    roots.push_back(prefix + "/bundles");
    roots.push_back(prefix + "/lib/sluice/bundles");
  }
  for (const char* root : {"/usr/lib/sluice/bundles", "/var/lib/sluice/bundles"})
    if (roots.empty() || roots.back() != root) roots.emplace_back(root);
  return roots;
}

}  // namespace sluice
