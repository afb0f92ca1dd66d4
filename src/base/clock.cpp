// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "base/clock.h"

#include <ctime>

namespace sluice {
namespace {

std::int64_t now_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);  // cannot fail with these clocks
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

std::uint64_t RealClock::monotonic_ns() const { return static_cast<std::uint64_t>(now_ns(CLOCK_MONOTONIC)); }
std::int64_t RealClock::wall_ns() const { return now_ns(CLOCK_REALTIME); }

}  // namespace sluice
