// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// When the simulated host misbehaves. Every call that changes something passes three points - before its effect, in its middle,
// after it - and at one chosen point the process dies (SimCrash unwinds to the test) or the call fails.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"

namespace sluice::sim {

// The death of the agent's process: everything that is not in the store or in the kernel is gone.
struct SimCrash {};

class Chaos {
 public:
  enum class Mode { kNone, kCrash, kFail };

  // At the `point`-th point from now (1-based), once.
  void arm(Mode mode, uint64_t point) {
    mode_ = mode;
    at_ = passed_ + point;
  }
  void disarm() { mode_ = Mode::kNone; }
  uint64_t passed() const { return passed_; }
  bool fired() const { return fired_; }
  void reset_fired() { fired_ = false; }

  // What the world does between two points: connections come and go, invariants are checked.
  std::function<void()> world = [] {};

  // A point where only death can strike (the effect has happened, at least in part).
  void point() {
    world();
    ++passed_;
    if (mode_ == Mode::kCrash && passed_ == at_) fire(true);
  }
  // A point in the middle of a walk, while the world stands still.
  Status in_walk() { return pass("a walk"); }
  // A point before the effect: the call may also be refused.
  Status gate(const char* call) {
    world();
    return pass(call);
  }

 private:
  Status pass(const char* call) {
    ++passed_;
    if (mode_ == Mode::kNone || passed_ != at_) return {};
    if (mode_ == Mode::kCrash) fire(true);
    fire(false);
    return fail(Code::kExhausted, "simulated failure of {}", call);
  }
  void fire(bool crash) {
    mode_ = Mode::kNone;
    fired_ = true;
    if (crash) throw SimCrash{};
  }

  Mode mode_ = Mode::kNone;
  uint64_t at_ = 0;
  uint64_t passed_ = 0;
  bool fired_ = false;
};

}  // namespace sluice::sim
