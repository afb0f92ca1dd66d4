// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Running code in another network namespace. setns(2) moves a thread for good, so the work gets a thread of its own: whatever
// happens in it, no caller ever finds itself in a foreign namespace.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "base/result.h"

namespace sluice {

// Runs `work` on a new thread inside the namespace and waits for it. Descriptors that it opens (sockets, iterators, /proc/sys
// files) stay bound to that namespace and may be used by any thread afterwards. About 50 us.
Status on_thread_in_netns(int netns_fd, const std::function<void()>& work);

// The same for work with a result: `work` returns Result<T>.
template <class Work, class R = std::invoke_result_t<Work>>
R run_in_netns(int netns_fd, Work&& work) {
  std::optional<R> result;
  Status status = on_thread_in_netns(netns_fd, [&] { result.emplace(std::forward<Work>(work)()); });
  if (!status) return tl::unexpected<Error>(std::move(status).error());
  return std::move(*result);
}

}  // namespace sluice
