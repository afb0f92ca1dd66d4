// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What a program on a socket hook is able to do, read from its instructions as the kernel holds them ("xlated"): does it set a
// congestion control, answer NEEDS_ECN, return 0? Pure.
//
// A data-flow analysis over constants, once for each callback: only what can be reached while `op` has that value counts, so a
// program that sets a CCA at ESTABLISHED is not taken for one that does at LISTEN. Where it cannot tell it says "can": an act
// may be reported that a condition never lets happen; one that can happen is not left out, unless `unread` says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

namespace sluice::bpfio {

struct Acts {
  bool sets_cca = false;             // bpf_setsockopt(SOL_TCP, TCP_CONGESTION)
  std::set<std::string> cca_names;   // those it can name
  bool other_cca = false;            // ... and names that are not known
  bool sets_initial_window = false;  // bpf_setsockopt(SOL_TCP, TCP_BPF_IW)
  std::set<std::uint32_t> replies;   // values stored to ctx->reply
  bool other_reply = false;
  bool returns_zero = false;  // can return 0: the kernel then takes no answer of any program
  std::string unread;         // why some of it could not be followed; empty = all of it was

  // For the caller to follow: {map id, offset} of names that lie in a map, ids of program arrays.
  std::set<std::pair<std::uint32_t, std::uint32_t>> names_in_maps;
  std::set<std::uint32_t> tail_calls;

  void merge(const Acts& other);
};

// How instructions of a hook's programs look once the kernel has rewritten them; measured by hook_shape().
struct HookShape {
  std::optional<std::int32_t> op_offset, reply_offset;  // in the kernel's own context; nullopt = the hook has none
  std::int32_t setsockopt = 0;  // immediate of a call of bpf_setsockopt; 0 = the kernel hides which helper is called
};

inline constexpr std::size_t kReadableInstructions = 32768;  // beyond this, calls no longer show their targets

// `op`: the callback's number; nullopt for a hook without callbacks.
Acts read_acts(std::span<const std::byte> instructions, const HookShape& shape, std::optional<std::uint32_t> op);

}  // namespace sluice::bpfio
