// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/turns.h"

#include <chrono>

namespace sluice::agent {
namespace {

constexpr std::chrono::milliseconds kLook{100};  // how often a waiting command looks whether it still has to

}  // namespace

Result<Turns::Turn> Turns::take(std::string what, const GivenUp& given_up) {
  std::unique_lock lock(mutex_);
  const auto refuse = [&](std::string why) {
    return fail(
        make_error(Code::kUnavailable, std::move(why), "`sluice events --follow` shows how it ends; then repeat the command"));
  };
  if (!holder_.empty() && waiting_ >= kWaitingMax)
    return refuse(fmt::format("{} is under way, and {} commands wait for its end", holder_, waiting_));
  ++waiting_;
  while (!holder_.empty()) {
    ended_.wait_for(lock, kLook);
    if (holder_.empty() || !given_up()) continue;
    --waiting_;
    return refuse(fmt::format("{} is under way, and nobody waits for its end any more", holder_));
  }
  --waiting_;
  holder_ = std::move(what);
  return Turn(*this);
}

void Turns::end() {
  {
    const std::lock_guard lock(mutex_);
    holder_.clear();
  }
  ended_.notify_all();
}

}  // namespace sluice::agent
