// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/model/bulk.h"

#include <bit>
#include <cmath>
#include <cstring>

// Highway compiles what follows once for each set of instructions.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "coll/model/bulk.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::coll::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

// Lane l of group j of J counts J - j times in its own sum, and N (J - j) - l times in that of all.
Sums sum_words(const std::uint8_t* bytes, std::size_t words) {
  const hn::ScalableTag<std::uint64_t> wide;
  const hn::Rebind<std::uint32_t, decltype(wide)> narrow;
  const std::size_t lanes = hn::Lanes(wide);
  auto a = hn::Zero(wide), b = hn::Zero(wide);
  std::size_t at = 0;
  for (; at + lanes <= words; at += lanes) {
    a = hn::Add(a, hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint32_t*>(bytes + 4 * at))));
    b = hn::Add(b, a);
  }
  HWY_ALIGN std::uint64_t of_a[hn::MaxLanes(wide)], of_b[hn::MaxLanes(wide)];
  hn::Store(a, wide, of_a);
  hn::Store(b, wide, of_b);
  Sums sums;
  for (std::size_t lane = 0; lane < lanes; lane++) {
    sums.a += of_a[lane];
    sums.b += lanes * of_b[lane] - lane * of_a[lane];
  }
  for (; at < words; at++) {
    std::uint32_t word;
    std::memcpy(&word, bytes + 4 * at, sizeof word);
    sums.a += word;
    sums.b += sums.a;
  }
  return sums;
}

Extent extent(const float* values, std::size_t count) {
  const hn::ScalableTag<std::uint32_t> d;
  const hn::RebindToFloat<decltype(d)> df;
  const std::size_t lanes = hn::Lanes(d);
  const auto infinity = hn::Set(d, kInfinity), mask = hn::Set(d, kMagnitude);
  auto finite = hn::Zero(d), any = hn::Zero(d);
  std::size_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    const auto magnitude = hn::And(hn::BitCast(d, hn::LoadU(df, values + at)), mask);
    any = hn::Max(any, magnitude);
    finite = hn::Max(finite, hn::IfThenElseZero(hn::Lt(magnitude, infinity), magnitude));
  }
  std::uint32_t largest = hn::GetLane(hn::MaxOfLanes(d, finite)), of_any = hn::GetLane(hn::MaxOfLanes(d, any));
  for (; at < count; at++) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[at]) & kMagnitude;
    of_any = std::max(of_any, magnitude);
    if (magnitude < kInfinity) largest = std::max(largest, magnitude);
  }
  return {largest, of_any >= kInfinity};
}

// A product with a power of two is exact, or far below one half.
void to_words(const float* values, std::size_t count, float factor, std::int32_t* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, factor);
  std::size_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    const auto value = hn::LoadU(d, values + at);
    hn::StoreU(hn::NearestInt(hn::Mul(hn::IfThenElseZero(hn::IsFinite(value), value), by)), di, out + at);
  }
  for (; at < count; at++)
    out[at] = std::isfinite(values[at]) ? static_cast<std::int32_t>(std::nearbyint(values[at] * factor)) : 0;
}

void from_words(const std::int32_t* words, std::size_t count, double factor, double divisor, float* out) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<std::int32_t, decltype(d)> di;
  const hn::Rebind<float, decltype(d)> df;
  const std::size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, factor), over = hn::Set(d, divisor);
  std::size_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    auto value = hn::PromoteTo(d, hn::LoadU(di, words + at));
    if (divisor != 1) value = hn::Div(value, over);
    hn::StoreU(hn::DemoteTo(df, hn::Mul(value, by)), df, out + at);
  }
  for (; at < count; at++) out[at] = static_cast<float>(static_cast<double>(words[at]) / divisor * factor);
}

}  // namespace sluice::coll::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::coll {

HWY_EXPORT(sum_words);
HWY_EXPORT(extent);
HWY_EXPORT(to_words);
HWY_EXPORT(from_words);

Sums sums_of(std::span<const std::uint8_t> bytes) { return HWY_DYNAMIC_DISPATCH(sum_words)(bytes.data(), bytes.size() / 4); }

Extent extent_of(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(extent)(values.data(), values.size()); }

void scale_to_words(std::span<const float> values, int shift, std::span<std::int32_t> out) {
  constexpr int kMost = 127;  // 2^127 is an f32
  if (shift <= kMost) return HWY_DYNAMIC_DISPATCH(to_words)(values.data(), values.size(), std::ldexp(1.0F, shift), out.data());
  for (std::size_t i = 0; i < values.size(); i++)
    out[i] = std::isfinite(values[i]) ? static_cast<std::int32_t>(std::nearbyint(std::ldexp(double{values[i]}, shift))) : 0;
}

void scale_from_words(std::span<const std::int32_t> words, int shift, double divisor, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(from_words)(words.data(), words.size(), std::ldexp(1.0, shift), divisor, out.data());
}

}  // namespace sluice::coll
#endif
