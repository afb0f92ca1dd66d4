// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// One change of the host at a time. Who comes meanwhile waits: few of them, and each only as long as somebody waits for it in
// turn. A change may take as long as a disk that hangs, so nothing may gather behind it and be done when nobody expects it any
// more.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "base/result.h"

namespace sluice::agent {

using GivenUp = std::function<bool()>;  // nobody waits for the answer any more

class Turns {
 public:
  static constexpr int kWaitingMax = 8;

  // Held as long as the change goes on.
  class Turn {
   public:
    Turn(Turn&& other) noexcept : turns_(std::exchange(other.turns_, nullptr)) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (turns_ != nullptr) turns_->end();
    }

   private:
    friend class Turns;
    explicit Turn(Turns& turns) : turns_(&turns) {}
    Turns* turns_;
  };

  // `what` names the change to those who wait for it. kUnavailable when too many wait, or when `given_up` says so.
  Result<Turn> take(std::string what, const GivenUp& given_up);

 private:
  void end();

  std::mutex mutex_;
  std::condition_variable ended_;
  std::string holder_;  // empty = nobody
  int waiting_ = 0;
};

}  // namespace sluice::agent
