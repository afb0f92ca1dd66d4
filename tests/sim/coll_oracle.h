// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What a collective call must come to, from the inputs alone: plain loops, in long double or exact integers. Shares no code
// with src/coll/model; the error bound is that of docs/protocol.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace sluice::coll::oracle {

enum class Op { kSum, kCount, kMax, kMin, kAverage };
enum class Type { kI32, kI64, kF32, kF16, kBf16 };

#if defined(__aarch64__)
using Half = __fp16;
#else
using Half = _Float16;
#endif

inline std::size_t size(Type type) { return type == Type::kI64 ? 8 : type == Type::kF16 || type == Type::kBf16 ? 2 : 4; }
inline bool is_float(Type type) { return type != Type::kI32 && type != Type::kI64; }

inline long double number(Type type, const std::uint8_t* at) {
  if (type == Type::kF32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  if (type == Type::kF16) {
    Half value;
    std::memcpy(&value, at, 2);
    return static_cast<float>(value);
  }
  std::uint16_t high;
  std::memcpy(&high, at, 2);
  const std::uint32_t bits = std::uint32_t{high} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline std::int64_t integer(Type type, const std::uint8_t* at) {
  if (type == Type::kI64) {
    std::int64_t value;
    std::memcpy(&value, at, 8);
    return value;
  }
  std::int32_t value;
  std::memcpy(&value, at, 4);
  return value;
}

// Distance to the next number of the type above |value|.
inline long double unit(Type type, long double value) {
  const int bits = type == Type::kF32 ? 24 : type == Type::kF16 ? 11 : 8;
  const int lowest = type == Type::kF16 ? -14 : -126;
  int exponent = lowest + 1;
  if (value != 0) std::frexp(value, &exponent);
  return std::ldexp(1.0L, std::max(exponent, lowest + 1) - bits);
}
inline long double largest(Type type) {
  return type == Type::kF32 ? std::numeric_limits<float>::max() : type == Type::kF16 ? 65504.0L : std::ldexp(255.0L, 120);
}

struct Case {
  Op op;
  Type type;
  std::vector<std::vector<std::uint8_t>> inputs;  // by member
  std::vector<std::uint32_t> weights;             // by member
  std::size_t block;                              // elements of a chunk: what shares an exponent
  long double fixed_scale = 0;
};

// Empty, or what is wrong with `output`.
inline std::string judge(const Case& c, const std::vector<std::uint8_t>& output) {
  const std::size_t step = size(c.type), elements = c.inputs[0].size() / step;
  std::ostringstream wrong;
  if (output.size() != c.inputs[0].size()) return "the output has another length";
  long double weight_sum = 0;
  for (std::uint32_t weight : c.weights) weight_sum += weight;
  int head = 0;
  while (std::ldexp(1.0L, head) < weight_sum) head++;
  for (std::size_t i = 0; i < elements; i++) {
    const std::uint8_t* got_at = output.data() + i * step;
    if (!is_float(c.type)) {
      std::uint64_t sum = 0, count = 0;
      std::int64_t low = INT64_MAX, high = INT64_MIN;
      __int128 exact = 0;
      for (std::size_t m = 0; m < c.inputs.size(); m++) {
        const std::int64_t value = integer(c.type, c.inputs[m].data() + i * step);
        sum += static_cast<std::uint64_t>(value) * c.weights[m];
        exact += static_cast<__int128>(value) * c.weights[m];
        count += value != 0;
        low = std::min(low, value);
        high = std::max(high, value);
      }
      std::int64_t expected = 0;
      switch (c.op) {
        case Op::kSum:
          expected = c.type == Type::kI32 ? static_cast<std::int32_t>(sum) : static_cast<std::int64_t>(sum);
          break;
        case Op::kCount:
          expected = static_cast<std::int64_t>(count);
          break;
        case Op::kMax:
          expected = high;
          break;
        case Op::kMin:
          expected = low;
          break;
        case Op::kAverage:
          expected = static_cast<std::int64_t>(exact / static_cast<__int128>(weight_sum));
          break;
      }
      if (integer(c.type, got_at) != expected) {
        wrong << "element " << i << ": " << integer(c.type, got_at) << " instead of " << expected;
        return wrong.str();
      }
      continue;
    }
    long double sum = 0, low = INFINITY, high = -INFINITY, largest_of_block = 0;
    std::uint64_t count = 0;
    bool nan = false, up = false, down = false;
    for (std::size_t m = 0; m < c.inputs.size(); m++) {
      const long double value = number(c.type, c.inputs[m].data() + i * step);
      count += value != 0;
      nan |= std::isnan(value);
      up |= std::isinf(value) && value > 0;
      down |= std::isinf(value) && value < 0;
      if (!std::isnan(value)) {
        // -0 is below +0.
        if (value < low || (value == low && std::signbit(value))) low = value;
        if (value > high || (value == high && !std::signbit(value))) high = value;
      }
      if (std::isfinite(value)) sum += value * c.weights[m];
      const std::size_t from = i / c.block * c.block, to = std::min(elements, from + c.block);
      for (std::size_t j = from; j < to; j++) {
        const long double other = number(c.type, c.inputs[m].data() + j * step);
        if (std::isfinite(other)) largest_of_block = std::max(largest_of_block, std::fabs(other));
      }
    }
    const long double got = number(c.type, got_at);
    long double expected = 0, bound = 0;
    const bool adds = c.op == Op::kSum || c.op == Op::kAverage;
    if (c.op == Op::kCount) {
      expected = static_cast<long double>(count);
    } else if (!adds) {
      expected = nan ? NAN : c.op == Op::kMax ? high : low;
    } else if (nan || (up && down)) {
      expected = NAN;
    } else if (up || down) {
      expected = up ? INFINITY : -INFINITY;
    } else {
      expected = sum;
      int exponent = 0;
      std::frexp(largest_of_block, &exponent);
      bound = c.fixed_scale != 0      ? weight_sum / c.fixed_scale * 0.5L
              : largest_of_block == 0 ? 0
                                      : weight_sum * 0.5L * std::ldexp(1.0L, exponent + head - 30);
      if (c.op == Op::kAverage) {
        expected /= weight_sum;
        bound /= weight_sum;
      }
      // The last rounding, and what of it a double's may add.
      bound += unit(c.type, std::fabs(expected) + bound) * 0.5L * (1 + 1e-9L);
      if (std::fabs(expected) + bound > largest(c.type) && std::isinf(got) && (got > 0) == (expected > 0)) continue;
    }
    const bool right = std::isnan(expected) ? std::isnan(got)
                       : std::isinf(expected)
                           ? got == expected
                           : std::fabs(got - expected) <= bound && (adds || std::signbit(got) == std::signbit(expected));
    if (!right) {
      wrong << "element " << i << ": " << got << " instead of " << expected << " +- " << bound;
      return wrong.str();
    }
  }
  return {};
}

}  // namespace sluice::coll::oracle
