// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "base/netns_thread.h"

#include <sched.h>

#include <cerrno>
#include <system_error>
#include <thread>

namespace sluice {

Status on_thread_in_netns(int netns_fd, const std::function<void()>& work) {
  Status status;
  try {
    std::thread([&] {
      if (::setns(netns_fd, CLONE_NEWNET) == 0)
        work();
      else
        status = fail_errno(errno, "cannot enter the network namespace of descriptor {}", netns_fd);
    }).join();
  } catch (const std::system_error& error) {
    return fail_errno(error.code().value(), "cannot start a thread");
  }
  return status;
}

}  // namespace sluice
