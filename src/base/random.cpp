// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "base/random.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>

#include "base/result.h"

namespace sluice {

std::uint64_t split_mix64(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::uint64_t Random::below(std::uint64_t bound) {
  SLUICE_ASSERT(bound > 0);
  // The incomplete last group of `bound` values would favour small results: draw again. Fewer than two draws on average.
  const std::uint64_t skip = -bound % bound;
  for (;;) {
    std::uint64_t value = next();
    if (value >= skip) return value % bound;
  }
}

SeededRandom::SeededRandom(std::uint64_t seed) {
  for (auto& word : state_) word = split_mix64(seed);
}

std::uint64_t SeededRandom::next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

std::uint64_t OsRandom::next() {
  std::uint64_t value = 0;
  // Up to 256 bytes come whole once the pool is ready; before that a signal may interrupt the wait.
  ssize_t n;
  do {
    n = ::getrandom(&value, sizeof(value), 0);
  } while (n < 0 && errno == EINTR);
  SLUICE_ASSERT(n == sizeof(value));
  return value;
}

}  // namespace sluice
