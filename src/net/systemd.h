// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The service manager's notification protocol (sd_notify(3)) without libsystemd. Everything does nothing, successfully, when
// the process was not started by systemd.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::net {

class ServiceManager {
 public:
  // From NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
  static ServiceManager from_environment();
  ServiceManager(std::string notify_socket, std::optional<std::chrono::microseconds> watchdog);

  bool present() const { return !notify_socket_.empty(); }
  // systemd ends the service when it hears nothing for this long; notify at half of it.
  std::optional<std::chrono::microseconds> watchdog() const { return watchdog_; }

  Status ready(std::string_view status) const;                       // READY=1 and STATUS=
  Status reloading() const;                                          // RELOADING=1 with MONOTONIC_USEC
  Status stopping() const;                                           // STOPPING=1
  Status alive() const;                                              // WATCHDOG=1
  Status notify(std::string_view assignments, int flags = 0) const;  // VARIABLE=VALUE, one a line; flags of send(2)

 private:
  std::string notify_socket_;  // a path, or '@' and an abstract name
  std::optional<std::chrono::microseconds> watchdog_;
  UniqueFd fd_;  // held: a process without descriptors left must not be ended for its silence
};

}  // namespace sluice::net
