// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bundle/known_bugs.h"

#include <array>

namespace sluice::bundle {
namespace {

constexpr std::array<KnownBug, 8> kBugs = {{
    {"cong-control-signature", "cong_control", "", "6.10", Severity::kWarning,
     "cong_control is called with (sk, rs); from 6.10 on with (sk, ack, flag, rs): a program written for one reads wrong "
     "arguments on the "
     "other or is refused",
     "declare the hook with the SDK's macro, which has a block for each, or say 'kernel.min: \"6.10\"'"},
    {"tx-start-split", "cwnd_event", "7.1", "", Severity::kWarning,
     "CA_EVENT_TX_START no longer reaches cwnd_event: a window grown before an idle period is used after it as if nothing had "
     "happened",
     "implement cwnd_event_tx_start too (the SDK's macro does both)"},
    {"storage-before-6.1", "struct_ops-sk_storage", "", "6.1", Severity::kError,
     "sk_storage cannot be used from struct_ops programs: the CCA is refused at load", "say 'kernel.min: \"6.1\"' or newer"},
    {"link-before-6.4", "struct_ops-link", "", "6.4", Severity::kError,
     "struct_ops maps cannot be links: the CCA is unregistered when the process that loaded it ends",
     "say 'kernel.min: \"6.4\"' or newer"},
    {"iter-tcp-reference", "iter-tcp", "", "6.4", Severity::kWarning,
     "the TCP iterator can leak or drop a reference to a socket when it is read in small pieces",
     "read the iterator to its end with a large buffer, as the agent does, or say 'kernel.min: \"6.4\"'"},
    {"iter-tcp-batches", "iter-tcp", "", "6.18", Severity::kNote,
     "a pass of the TCP iterator can see a socket twice, or miss one, when the hash table changes between two batches",
     "repeat the pass until nothing is left, as the agent's migration does"},
    {"nodelay-recursion", "platform", "", "", Severity::kNote,
     "bpf_setsockopt(TCP_NODELAY) from a CCA's hook can push pending frames and enter the same hook again until the stack "
     "overflows "
     "(fixed in 2026, not in the stable kernels before)",
     "never set TCP_NODELAY from a CCA; lint refuses it"},
    {"zombie-default", "platform", "", "", Severity::kNote,
     "a network namespace whose net.ipv4.tcp_congestion_control names an unregistered CCA goes on running its code, even after "
     "the name is "
     "registered anew",
     "set the namespace's default to another CCA before the old one goes; the agent refuses to retire a CCA that is a default"},
}};

KernelVersion parsed(std::string_view text) {
  auto version = parse_kernel_version(text);
  SLUICE_ASSERT(version.has_value());
  return *version;
}

}  // namespace

std::string_view severity_name(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "?";
}

bool KnownBug::affects(const KernelVersion& kernel) const {
  return (since.empty() || kernel >= parsed(since)) && (fixed.empty() || kernel < parsed(fixed));
}

bool KnownBug::affects_any_from(const KernelVersion& oldest) const { return fixed.empty() || oldest < parsed(fixed); }

std::span<const KnownBug> known_bugs() { return kBugs; }

std::vector<const KnownBug*> known_bugs_of(const KernelVersion& kernel) {
  std::vector<const KnownBug*> out;
  for (const KnownBug& bug : kBugs)
    if (bug.affects(kernel)) out.push_back(&bug);
  return out;
}

}  // namespace sluice::bundle
