// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Numbers as they travel: bounds of docs/protocol.md over random and extreme values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "coll/model/bulk.h"
#include "coll/model/numbers.h"

namespace sluice::coll {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

float any_float(Random& random) { return std::bit_cast<float>(static_cast<std::uint32_t>(random.next())); }

std::span<const std::uint8_t> bytes_of(const auto& numbers) {
  return {reinterpret_cast<const std::uint8_t*>(numbers.data()), 4 * numbers.size()};
}

TEST(CollNumbers, TheBlockExponentIsTheSmallestThatBoundsEveryValue) {
  EXPECT_EQ(block_exponent({}), SL_COLL_EXPONENT_NONE);
  EXPECT_EQ(block_exponent(std::vector<float>{0, -0.0f, kNan, kInf, -kInf}), SL_COLL_EXPONENT_NONE);
  EXPECT_EQ(block_exponent(std::vector<float>{1}), 1);
  EXPECT_EQ(block_exponent(std::vector<float>{0.99f, -0.5f}), 0);
  EXPECT_EQ(block_exponent(std::vector<float>{std::numeric_limits<float>::denorm_min()}), -148);
  EXPECT_EQ(block_exponent(std::vector<float>{std::numeric_limits<float>::max()}), 128);
  SeededRandom random(1);
  for (int i = 0; i < 10000; i++) {
    const std::vector<float> values = {any_float(random), any_float(random)};
    const int e = block_exponent(values);
    bool reached = false;
    for (float value : values) {
      if (!std::isfinite(value) || value == 0) continue;
      ASSERT_LT(std::fabs(double{value}), std::ldexp(1.0, e));
      reached |= std::fabs(double{value}) >= std::ldexp(1.0, e - 1);
    }
    ASSERT_TRUE(reached || e == SL_COLL_EXPONENT_NONE);
  }
}

// Any floats, any weights: the weighted sum fits, and is within 3/4 of a unit per unit of weight.
TEST(CollNumbers, ABlockSumCannotOverflowAndKeepsItsBound) {
  SeededRandom random(2);
  for (int round = 0; round < 20000; round++) {
    const auto members = random.between(1, 64);
    std::vector<std::uint64_t> weights(members, 1);
    if (random.chance(0.5))
      for (auto& weight : weights) weight = random.between(1, SL_COLL_WEIGHTS_MAX / members);
    std::uint64_t weight_sum = 0;
    for (auto weight : weights) weight_sum += weight;
    const int head = headroom(weight_sum);
    ASSERT_LE(weight_sum, std::uint64_t{1} << head);
    ASSERT_TRUE(head == 0 || weight_sum > std::uint64_t{1} << (head - 1));

    std::vector<std::vector<float>> blocks(members, std::vector<float>(3));
    int agreed = SL_COLL_EXPONENT_NONE;
    const bool wild = random.chance(0.3);
    for (std::size_t m = 0; m < members; m++) {
      for (float& value : blocks[m]) do
          value = wild ? any_float(random)
                       : static_cast<float>(std::ldexp(random.unit() * 2 - 1, static_cast<int>(random.below(8))));
        while (!std::isfinite(value));
      if (random.chance(0.2)) blocks[m][0] = std::nextafter(std::ldexp(1.0f, 8), 0.0f);  // rounds up to the next power of two
      agreed = std::max(agreed, block_exponent(blocks[m]));
    }
    std::vector<std::int64_t> sums(3);
    std::vector<long double> exact(3);
    for (std::size_t m = 0; m < members; m++) {
      std::vector<std::int32_t> q(3);
      quantise(blocks[m], agreed, head, q);
      for (std::size_t i = 0; i < 3; i++) {
        sums[i] += static_cast<std::int64_t>(weights[m]) * q[i];
        exact[i] += static_cast<long double>(weights[m]) * static_cast<long double>(blocks[m][i]);
      }
    }
    for (std::size_t i = 0; i < 3; i++) {
      ASSERT_LE(std::abs(sums[i]), std::int64_t{1} << 30);
      const long double bound = 0.5L * static_cast<long double>(weight_sum) * std::ldexp(1.0L, agreed + head - 30);
      const auto sum = static_cast<long double>(std::ldexp(static_cast<double>(sums[i]), agreed + head - 30));
      ASSERT_LE(std::fabs(sum - exact[i]), bound);
    }
  }
}

TEST(CollNumbers, OneMemberAloneKeepsEveryBitOfItsLargestValues) {
  SeededRandom random(3);
  for (int i = 0; i < 10000; i++) {
    // 6 bits below the largest still have all 24 bits of an f32.
    std::vector<float> values = {std::ldexp(1.5f, 6), static_cast<float>(random.unit() + 1)};
    std::vector<std::int32_t> q(2);
    const int e = block_exponent(values);
    quantise(values, e, 0, q);
    std::vector<float> back(2);
    dequantise(bytes_of(q), e, 0, 1, SL_COLL_F32, reinterpret_cast<std::uint8_t*>(back.data()));
    ASSERT_EQ(back, values);
  }
}

// Plain arithmetic beside the vector instructions, in every length of what is left over at the end.
TEST(CollNumbers, VectorsComputeWhatPlainArithmeticDoes) {
  SeededRandom random(11);
  for (std::size_t length = 0; length < 70; length++) {
    for (int turn = 0; turn < 40; turn++) {
      std::vector<float> values(length);
      for (float& value : values)
        value = turn % 2 ? any_float(random) : static_cast<float>(std::ldexp(random.unit() * 2 - 1, turn - 20));
      const int exponent = block_exponent(values), head = static_cast<int>(random.below(7));
      int expected = SL_COLL_EXPONENT_NONE;
      bool special = false;
      for (const float value : values) {
        int e = 0;
        special |= !std::isfinite(value);
        if (std::isfinite(value) && value != 0) std::frexp(value, &e), expected = std::max(expected, e);
      }
      ASSERT_EQ(exponent, expected);
      ASSERT_EQ(extent_of(values).special, special);
      const int agreed =
          exponent == SL_COLL_EXPONENT_NONE ? exponent : std::min(128, exponent + static_cast<int>(random.below(40)));
      std::vector<std::int32_t> q(length);
      quantise(values, agreed, head, q);
      for (std::size_t i = 0; i < length; i++) {
        const double exact = agreed == SL_COLL_EXPONENT_NONE || !std::isfinite(values[i])
                                 ? 0
                                 : std::nearbyint(std::ldexp(double{values[i]}, 30 - agreed - head));
        ASSERT_EQ(q[i], static_cast<std::int32_t>(exact)) << values[i] << ", exponent " << agreed;
      }
      const double divisor = turn % 3 ? 1 : 7;
      std::vector<float> back(length);
      dequantise(bytes_of(q), agreed, head, divisor, SL_COLL_F32, reinterpret_cast<std::uint8_t*>(back.data()));
      for (std::size_t i = 0; i < length; i++)
        ASSERT_EQ(back[i], agreed == SL_COLL_EXPONENT_NONE
                               ? 0
                               : static_cast<float>(std::ldexp(static_cast<double>(q[i]) / divisor, agreed + head - 30)));
      Sums sums;
      for (const float value : values) {
        sums.a += std::bit_cast<std::uint32_t>(value);
        sums.b += sums.a;
      }
      ASSERT_EQ(sums_of(bytes_of(values)), sums);
    }
  }
}

TEST(CollNumbers, WhatIsNotFiniteBecomesZeroAndAFlag) {
  const std::vector<float> values = {1, kNan, kInf, -kInf};
  std::vector<std::int32_t> q(4);
  quantise(values, 1, 1, q);
  EXPECT_THAT(q, testing::ElementsAre(1 << 28, 0, 0, 0));
  EXPECT_EQ(special_flags(values), SL_COLL_SPECIAL);
  EXPECT_EQ(special_flags(std::vector<float>{kNan}), SL_COLL_NAN);
  EXPECT_EQ(special_flags(std::vector<float>{kInf}), SL_COLL_POS_INF);
  EXPECT_EQ(special_flags(std::vector<float>{-kInf}), SL_COLL_NEG_INF);
  EXPECT_EQ(special_flags(std::vector<float>{std::numeric_limits<float>::max(), 0}), 0);
}

TEST(CollNumbers, CountsOfSpecialValuesComeOutAsIeeeSays) {
  const auto sum = [](std::vector<float> values) {
    std::int32_t counts = 0;
    float expected = 0;
    for (float value : values) {
      counts += special_count(value);
      expected += value;
    }
    const double got = apply_special(5, counts);
    return std::isnan(expected) ? std::isnan(got) : std::isinf(expected) ? got == expected : got == 5;
  };
  EXPECT_TRUE(sum({1, 2}));
  EXPECT_TRUE(sum({kInf, 2}));
  EXPECT_TRUE(sum({-kInf, -kInf}));
  EXPECT_TRUE(sum({kInf, -kInf}));
  EXPECT_TRUE(sum({kNan, kInf}));
  EXPECT_TRUE(sum(std::vector<float>(SL_COLL_TOTAL_MAX, -kInf)));
  EXPECT_TRUE(sum(std::vector<float>(SL_COLL_TOTAL_MAX, kInf)));
  EXPECT_TRUE(sum(std::vector<float>(SL_COLL_TOTAL_MAX, kNan)));
}

TEST(CollNumbers, AFixedScaleDetectsOverflowAtTheLastValueThatFits) {
  std::vector<std::int32_t> q(1);
  // (2^31 - 1) / 4 = 536870911
  EXPECT_EQ(quantise_fixed(std::vector<float>{536870880}, 1, 4, q), 0);
  EXPECT_EQ(q[0], 536870880);
  EXPECT_EQ(quantise_fixed(std::vector<float>{536870912}, 1, 4, q), SL_COLL_OVERFLOW);
  EXPECT_EQ(q[0], 0);
  EXPECT_EQ(quantise_fixed(std::vector<float>{-536870912}, 1, 4, q), SL_COLL_OVERFLOW);
  // The paper's example: 1e8 overflows at 21.4 for one member.
  EXPECT_EQ(quantise_fixed(std::vector<float>{21.4f}, 1e8f, 1, q), 0);
  EXPECT_EQ(quantise_fixed(std::vector<float>{21.5f}, 1e8f, 1, q), SL_COLL_OVERFLOW);
  EXPECT_EQ(quantise_fixed(std::vector<float>{kNan}, 1, 4, q), SL_COLL_NAN);
  EXPECT_DOUBLE_EQ(dequantise_fixed(300, 100, 3), 1);
}

TEST(CollNumbers, OrderedFloatsOrderAsFloatsAndComeBack) {
  SeededRandom random(4);
  for (int i = 0; i < 100000; i++) {
    const float a = any_float(random), b = i % 3 ? any_float(random) : std::nextafter(a, kInf);
    if (std::isnan(a) || std::isnan(b)) continue;
    ASSERT_EQ(a < b, (ordered(a, 0) < ordered(b, 0)) && !(a == 0 && b == 0)) << a << " " << b;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(from_ordered(ordered(a, 0))), std::bit_cast<std::uint32_t>(a));
  }
  EXPECT_LT(ordered(-0.0f, 0), ordered(0.0f, 0));
  EXPECT_GT(ordered(kNan, INT32_MAX), ordered(kInf, INT32_MAX));
  EXPECT_LT(ordered(kNan, INT32_MIN), ordered(-kInf, INT32_MIN));
  EXPECT_TRUE(std::isnan(from_ordered(INT32_MAX)));
  EXPECT_TRUE(std::isnan(from_ordered(INT32_MIN)));
}

float load(std::uint8_t dtype, std::uint16_t bits) {
  std::vector<float> scratch;
  return floats_of(dtype, {reinterpret_cast<const std::uint8_t*>(&bits), 2}, scratch)[0];
}
std::uint16_t store(std::uint8_t dtype, double value) {
  std::uint16_t bits;
  store_float(dtype, value, reinterpret_cast<std::uint8_t*>(&bits));
  return bits;
}

TEST(CollNumbers, EveryHalfComesBackAndEveryDoubleGoesToTheNearest) {
  for (std::uint8_t dtype : {SL_COLL_F16, SL_COLL_BF16}) {
    const double most = dtype == SL_COLL_F16 ? 65504 : std::ldexp(255.0, 120);
    for (std::uint32_t bits = 0; bits <= 0xffff; bits++) {
      const float value = load(dtype, static_cast<std::uint16_t>(bits));
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(load(dtype, store(dtype, value))));
      } else {
        ASSERT_EQ(store(dtype, value), bits) << value;
      }
    }
    SeededRandom random(5);
    for (int i = 0; i < 100000; i++) {
      const double value = std::ldexp(random.unit() * 2 - 1, static_cast<int>(random.below(dtype == SL_COLL_F16 ? 44 : 260)) -
                                                                 (dtype == SL_COLL_F16 ? 26 : 131));
      const std::uint16_t bits = store(dtype, value);
      const double got = load(dtype, bits);
      if (std::isinf(got)) {
        ASSERT_GT(std::fabs(value), most);
        continue;
      }
      // No neighbour is nearer.
      for (int step : {-1, 1}) {
        const double other = load(dtype, static_cast<std::uint16_t>(bits + step));
        if (std::isfinite(other)) {
          ASSERT_LE(std::fabs(got - value), std::fabs(other - value)) << value;
        }
      }
    }
  }
  EXPECT_EQ(load(SL_COLL_F16, 0x3c00), 1);
  EXPECT_EQ(load(SL_COLL_F16, 0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(load(SL_COLL_BF16, 0xc000), -2);
  EXPECT_EQ(store(SL_COLL_F16, 1 + std::ldexp(1.0, -11)), 0x3c00);  // ties to even, from the double itself
  EXPECT_EQ(store(SL_COLL_F16, 1 + std::ldexp(1.0, -11) + std::ldexp(1.0, -40)), 0x3c01);
  EXPECT_EQ(store(SL_COLL_F16, 65520), 0x7c00);
  EXPECT_EQ(store(SL_COLL_F16, -0.0), 0x8000);
}

}  // namespace
}  // namespace sluice::coll
