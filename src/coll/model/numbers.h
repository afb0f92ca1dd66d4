// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Numbers as they travel (docs/protocol.md, Floats): block floating point, fixed scale, ordered floats, halves.
#pragma once

#include <sluice/abi/coll.h>

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::coll {

// Caller's elements of a float dtype as f32 (exact): where they are, if they can be read there, else in `scratch`.
std::span<const float> floats_of(std::uint8_t dtype, std::span<const std::uint8_t> bytes, std::vector<float>& scratch);
// And back (one rounding, ties to even).
void store_float(std::uint8_t dtype, double value, std::uint8_t* out);

// Smallest e with |x| < 2^e for all finite x; SL_COLL_EXPONENT_NONE when none differs from zero.
int block_exponent(std::span<const float> values);
// SL_COLL_NAN, SL_COLL_POS_INF, SL_COLL_NEG_INF.
std::uint8_t special_flags(std::span<const float> values);
// Bits of headroom for a sum of weights: smallest h with weight_sum <= 2^h.
int headroom(std::uint64_t weight_sum);

// x to q. `agreed`: the maximum of block_exponent over members. Values that are not finite become 0.
void quantise(std::span<const float> values, int agreed, int head, std::span<std::int32_t> out);
// Sums of q back to numbers of a float dtype; `divisor` is 1, or the sum of weights for an average.
void dequantise(std::span<const std::uint8_t> sums, int agreed, int head, double divisor, std::uint8_t dtype,
                std::uint8_t* out);

// Fixed scale. Returns special_flags() and SL_COLL_OVERFLOW; what does not fit becomes 0.
std::uint8_t quantise_fixed(std::span<const float> values, float scale, std::uint64_t weight_sum, std::span<std::int32_t> out);
double dequantise_fixed(std::int32_t sum, float scale, double divisor);

// Floats as integers of the same order, -0 below +0. NaN becomes `nan`, and what is neither a number nor an infinity comes back
// as NaN.
std::int32_t ordered(float value, std::int32_t nan);
float from_ordered(std::int32_t bits);

// One element of the counts at SL_COLL_FRAG_SPECIAL, and what a sum of them makes of the result `finite`.
std::int32_t special_count(float value);
double apply_special(double finite, std::int32_t counts);

}  // namespace sluice::coll
