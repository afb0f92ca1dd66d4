// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What is done to every number of a large call, with the vector instructions that the processor has: the sums of `integrity`,
// and block floating point (docs/protocol.md). Results do not depend on which instructions those are.
#pragma once

#include <cstdint>
#include <span>

namespace sluice::coll {

// Running sums of 32-bit little-endian words.
struct Sums {
  std::uint64_t a = 0, b = 0;
  bool operator==(const Sums&) const = default;
};
// Of whole words, which need not be aligned; bytes behind the last whole word are left out.
Sums sums_of(std::span<const std::uint8_t> bytes);

// Bits of the largest finite |x|, and whether any x is not finite.
struct Extent {
  std::uint32_t largest = 0;
  bool special = false;
};
Extent extent_of(std::span<const float> values);

// out = round-half-even(x * 2^shift), which must fit; 0 where x is not finite.
void scale_to_words(std::span<const float> values, int shift, std::span<std::int32_t> out);
// out = x / divisor * 2^shift, computed in double, rounded once.
void scale_from_words(std::span<const std::int32_t> words, int shift, double divisor, std::span<float> out);

}  // namespace sluice::coll
