// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// FNV-1a, 64 bits: stable across machines and versions, therefore fit to be stored (schema names and layouts). Not for
// untrusted keys of hash tables.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice {

inline constexpr std::uint64_t kFnvOffset = 0xcbf29ce484222325;
inline constexpr std::uint64_t kFnvPrime = 0x100000001b3;

constexpr std::uint64_t fnv1a64(std::string_view bytes, std::uint64_t hash = kFnvOffset) {
  for (char c : bytes) hash = (hash ^ static_cast<std::uint8_t>(c)) * kFnvPrime;
  return hash;
}

// Continues a hash with a number, little-endian whatever the machine.
constexpr std::uint64_t fnv1a64(std::uint64_t value, std::uint64_t hash) {
  for (int shift = 0; shift < 64; shift += 8) hash = (hash ^ ((value >> shift) & 0xff)) * kFnvPrime;
  return hash;
}

}  // namespace sluice
