// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Time as an interface, so that agents and controllers also run in simulated time.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice {

class Clock {
 public:
  virtual ~Clock() = default;
  // CLOCK_MONOTONIC: the clock of bpf_ktime_get_ns(). For durations and deadlines.
  virtual std::uint64_t monotonic_ns() const = 0;
  // Nanoseconds since 1970, UTC; can jump. For people and for records.
  virtual std::int64_t wall_ns() const = 0;
};

class RealClock final : public Clock {
 public:
  std::uint64_t monotonic_ns() const override;
  std::int64_t wall_ns() const override;
};

// Stands still until told otherwise. May be read by several threads.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(std::uint64_t monotonic_ns = 1'000'000'000, std::int64_t wall_ns = 1'700'000'000'000'000'000)
      : monotonic_ns_(monotonic_ns), wall_ns_(wall_ns) {}
  std::uint64_t monotonic_ns() const override { return monotonic_ns_.load(); }
  std::int64_t wall_ns() const override { return wall_ns_.load(); }
  void advance_ns(std::uint64_t ns) {
    monotonic_ns_.fetch_add(ns);
    wall_ns_.fetch_add(static_cast<std::int64_t>(ns));
  }
  // The operator sets the wall clock; monotonic time does not notice.
  void jump_wall_ns(std::int64_t ns) { wall_ns_.fetch_add(ns); }

 private:
  std::atomic<std::uint64_t> monotonic_ns_;
  std::atomic<std::int64_t> wall_ns_;
};

}  // namespace sluice
