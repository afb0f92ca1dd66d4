// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Randomness as an interface: the same seed gives the same run. Nothing here is fit for secrets, OsRandom excepted.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

class Random {
 public:
  virtual ~Random() = default;
  virtual std::uint64_t next() = 0;

  std::uint64_t below(std::uint64_t bound);  // uniform in [0, bound); bound > 0
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }  // both ends included
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }                               // [0, 1)
  bool chance(double probability) { return unit() < probability; }
};

// xoshiro256** (Blackman, Vigna), its state filled by SplitMix64 from one word.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed);
  std::uint64_t next() override;

 private:
  std::array<std::uint64_t, 4> state_;
};

// getrandom(2): seeds, tokens, backoff jitter of a real process.
class OsRandom final : public Random {
 public:
  std::uint64_t next() override;
};

// One step of SplitMix64: also a good mixer to derive independent seeds from one.
std::uint64_t split_mix64(std::uint64_t& state);

}  // namespace sluice
