// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/model/numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/result.h"
#include "coll/model/bulk.h"
#include "coll/model/packet.h"

namespace sluice::coll {
namespace {

constexpr std::uint32_t kSign = 0x80000000, kInfinity = 0x7f800000;

// For 32-bit numbers.
bool is_aligned(const std::uint8_t* at) { return reinterpret_cast<std::uintptr_t>(at) % 4 == 0; }

float f16_to_float(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half} << 16 & kSign, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | kInfinity | fraction << 13);
  if (exponent == 0) return std::copysign(std::ldexp(static_cast<float>(fraction), -24), sign ? -1.0f : 1.0f);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

// A double to an IEEE-like format of 16 bits, one rounding, ties to even.
std::uint16_t narrow(double value, int exponent_bits, int fraction_bits) {
  const std::uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const std::uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | 1u << (fraction_bits - 1));
  if (value == 0) return static_cast<std::uint16_t>(sign);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent;
  std::frexp(value, &exponent);  // |value| in [2^(exponent-1), 2^exponent)
  const int lowest = 1 - bias;
  const int scale = std::max(exponent - 1, lowest) - fraction_bits;  // of one unit in the last place
  if (std::isinf(value) || exponent - 1 > bias) return static_cast<std::uint16_t>(sign | infinity);
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(std::fabs(value), -scale)));
  // Units carry into the exponent by themselves, up to infinity, also from subnormal to normal.
  const std::uint32_t biased = static_cast<std::uint32_t>(scale + fraction_bits - lowest) << fraction_bits;
  return static_cast<std::uint16_t>(sign | std::min(biased + units, infinity));
}

}  // namespace

std::span<const float> floats_of(std::uint8_t dtype, std::span<const std::uint8_t> bytes, std::vector<float>& scratch) {
  dtype &= static_cast<std::uint8_t>(~SL_COLL_FIXED_SCALE);
  const std::size_t size = size_of(dtype), count = bytes.size() / size;
  if (dtype == SL_COLL_F32 && is_aligned(bytes.data())) return {reinterpret_cast<const float*>(bytes.data()), count};
  scratch.resize(count);
  for (std::size_t i = 0; i < count; i++) {
    std::uint16_t half;
    if (dtype == SL_COLL_F32) {
      std::memcpy(&scratch[i], bytes.data() + 4 * i, 4);
      continue;
    }
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    scratch[i] = dtype == SL_COLL_F16 ? f16_to_float(half) : std::bit_cast<float>(std::uint32_t{half} << 16);
  }
  return scratch;
}

void store_float(std::uint8_t dtype, double value, std::uint8_t* out) {
  dtype &= static_cast<std::uint8_t>(~SL_COLL_FIXED_SCALE);
  if (dtype == SL_COLL_F32) {
    const auto single = static_cast<float>(value);
    std::memcpy(out, &single, 4);
    return;
  }
  const std::uint16_t half = dtype == SL_COLL_F16 ? narrow(value, 5, 10) : narrow(value, 8, 7);
  std::memcpy(out, &half, 2);
}

int block_exponent(std::span<const float> values) {
  const std::uint32_t largest = extent_of(values).largest;  // magnitudes order like their bits
  if (largest == 0) return SL_COLL_EXPONENT_NONE;
  int exponent;
  std::frexp(std::bit_cast<float>(largest), &exponent);
  return exponent;
}

std::uint8_t special_flags(std::span<const float> values) {
  std::uint8_t flags = 0;
  if (!extent_of(values).special) return flags;
  for (float value : values) {
    if (std::isfinite(value)) continue;
    flags |= std::isnan(value) ? SL_COLL_NAN : value > 0 ? SL_COLL_POS_INF : SL_COLL_NEG_INF;
  }
  return flags;
}

int headroom(std::uint64_t weight_sum) { return weight_sum <= 1 ? 0 : std::bit_width(weight_sum - 1); }

void quantise(std::span<const float> values, int agreed, int head, std::span<std::int32_t> out) {
  if (agreed == SL_COLL_EXPONENT_NONE) {
    std::ranges::fill(out, 0);
    return;
  }
  scale_to_words(values, SL_COLL_MANTISSA_BITS - agreed - head, out);
}

void dequantise(std::span<const std::uint8_t> sums, int agreed, int head, double divisor, std::uint8_t dtype,
                std::uint8_t* out) {
  const int shift = agreed + head - SL_COLL_MANTISSA_BITS;
  const std::size_t count = sums.size() / 4;
  if (dtype == SL_COLL_F32 && agreed != SL_COLL_EXPONENT_NONE && is_aligned(sums.data()) && is_aligned(out)) {
    scale_from_words({reinterpret_cast<const std::int32_t*>(sums.data()), count}, shift, divisor,
                     {reinterpret_cast<float*>(out), count});
    return;
  }
  for (std::size_t i = 0; i < count; i++, out += size_of(dtype)) {
    std::int32_t sum;
    std::memcpy(&sum, sums.data() + 4 * i, 4);
    store_float(dtype, agreed == SL_COLL_EXPONENT_NONE ? 0 : std::ldexp(double{static_cast<double>(sum)} / divisor, shift),
                out);
  }
}

std::uint8_t quantise_fixed(std::span<const float> values, float scale, std::uint64_t weight_sum, std::span<std::int32_t> out) {
  const std::uint64_t most = INT32_MAX / weight_sum;
  const auto limit = static_cast<double>(most);
  std::uint8_t flags = special_flags(values);
  for (std::size_t i = 0; i < values.size(); i++) {
    double scaled = std::isfinite(values[i]) ? std::nearbyint(double{values[i]} * scale) : 0;
    if (std::fabs(scaled) > limit) {
      flags |= SL_COLL_OVERFLOW;
      scaled = 0;
    }
    out[i] = static_cast<std::int32_t>(scaled);
  }
  return flags;
}

double dequantise_fixed(std::int32_t sum, float scale, double divisor) { return sum / (double{scale} * divisor); }

std::int32_t ordered(float value, std::int32_t nan) {
  if (std::isnan(value)) return nan;
  const auto bits = std::bit_cast<std::int32_t>(value);
  return bits >= 0 ? bits : bits ^ INT32_MAX;
}

float from_ordered(std::int32_t bits) {
  if (bits < 0) bits ^= INT32_MAX;
  const auto value = std::bit_cast<float>(bits);
  return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
}

std::int32_t special_count(float value) {
  if (std::isfinite(value)) return 0;
  if (std::isnan(value)) return 1;
  return value > 0 ? 1 << SL_COLL_COUNT_BITS : 1 << 2 * SL_COLL_COUNT_BITS;
}

double apply_special(double finite, std::int32_t counts) {
  constexpr std::int32_t kMask = (1 << SL_COLL_COUNT_BITS) - 1;
  const bool nan = counts & kMask, positive = counts >> SL_COLL_COUNT_BITS & kMask, negative = counts >> 2 * SL_COLL_COUNT_BITS;
  if (nan || (positive && negative)) return std::numeric_limits<double>::quiet_NaN();
  if (positive) return std::numeric_limits<double>::infinity();
  if (negative) return -std::numeric_limits<double>::infinity();
  return finite;
}

}  // namespace sluice::coll
