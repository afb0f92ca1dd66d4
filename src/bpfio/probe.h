// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What this kernel and host can do. One table of features; each probe does the thing itself (loads, creates) rather than
// compare versions, and says why it believes what it says.
//
// Probes are honest: a feature that is missing although the kernel is new enough is an error to be explained, not a reason to
// skip (see require()).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/kernel_version.h"
#include "base/result.h"

namespace sluice::bpfio {

enum class FeatureId {
  kBtf,
  kJit,
  kBpffs,
  kCgroup2,
  kCapBpf,
  kCapNetAdmin,
  kCapNetRaw,
  kCapPerfmon,
  kCapSysAdmin,
  kMemlock,
  kSockopsLink,
  kStructOps,
  kStructOpsLink,
  kCongControl4,
  kStructOpsSkStorage,
  kIterTcp,
  kIterTcpSetsockopt,
  kIterSkStorage,
  kIterTaskFile,
  kLpmInArrayOfMaps,
};

enum class FeatureKind {
  kKernel,  // comes with a kernel version
  kHost,    // comes with how the host is set up, or who asks
};

struct Feature {
  FeatureId id;
  std::string_view name;  // "struct_ops-link": in JSON, bundle.yaml and errors
  FeatureKind kind;
  KernelVersion min_kernel;
  std::string_view how;     // how it is probed
  std::string_view remedy;  // what to do when it is missing
};

enum class Presence { kPresent, kAbsent, kUnknown };

struct ProbeResult {
  const Feature* feature = nullptr;
  Presence presence = Presence::kUnknown;
  std::string reason;  // one line: what was seen
  int lacks = 0;       // kUnknown: the errno of what had run out (descriptors, memory); 0 = something else
  // Missing although the kernel is new enough: switched off in its configuration, backed out, or a bug in the probe.
  bool contradicts_version = false;
};

struct ProbeRoots {
  std::string proc = "/proc";
  std::string sys = "/sys";
};

const std::vector<Feature>& features();
const Feature& feature(FeatureId id);
const Feature* find_feature(std::string_view name);

ProbeResult probe(FeatureId id, const ProbeRoots& roots = {});
std::vector<ProbeResult> probe_all(const ProbeRoots& roots = {});  // in the table's order; about 100 ms

// The rule behind ProbeResult::contradicts_version.
bool contradicts(const Feature& feature, Presence presence, const KernelVersion& kernel);

// kUnsupported with feature and min_kernel if it is absent; kPermission if that cannot be found out.
Status require(FeatureId id, const ProbeRoots& roots = {});

std::string_view to_string(Presence presence);

}  // namespace sluice::bpfio
