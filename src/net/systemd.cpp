// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "net/systemd.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/strings.h"

namespace sluice::net {

ServiceManager::ServiceManager(std::string notify_socket, std::optional<std::chrono::microseconds> watchdog)
    : notify_socket_(std::move(notify_socket)), watchdog_(watchdog) {
  if (present()) fd_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

ServiceManager ServiceManager::from_environment() {
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::optional<std::chrono::microseconds> watchdog;
  const auto period = parse_int<std::uint64_t>(variable("WATCHDOG_USEC"));
  const auto pid = parse_int<pid_t>(variable("WATCHDOG_PID"));
  // Inherited variables of a parent are not meant for us.
  if (period && *period > 0 && (!pid || *pid == ::getpid())) watchdog = std::chrono::microseconds(*period);
  return {variable("NOTIFY_SOCKET"), watchdog};
}

Status ServiceManager::ready(std::string_view status) const { return notify(fmt::format("READY=1\nSTATUS={}", status)); }
Status ServiceManager::reloading() const {
  return notify(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", RealClock().monotonic_ns() / 1000));
}
// A service manager that does not read must keep us neither from our signals nor from our end.
Status ServiceManager::stopping() const { return notify("STOPPING=1", MSG_DONTWAIT); }
Status ServiceManager::alive() const { return notify("WATCHDOG=1", MSG_DONTWAIT); }

Status ServiceManager::notify(std::string_view assignments, int flags) const {
  if (!present()) return {};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (notify_socket_.size() >= sizeof(address.sun_path) || (notify_socket_[0] != '/' && notify_socket_[0] != '@'))
    return fail(fail(Code::kInvalid, "is not a socket's address").value().at("NOTIFY_SOCKET=" + notify_socket_));
  std::memcpy(address.sun_path, notify_socket_.data(), notify_socket_.size());
  if (notify_socket_[0] == '@') address.sun_path[0] = '\0';
  if (!fd_) return fail(Code::kExhausted, "there was no descriptor for a socket to the service manager");
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + notify_socket_.size());
  ssize_t sent;
  do {
    sent = ::sendto(fd_.get(), assignments.data(), assignments.size(), MSG_NOSIGNAL | flags,
                    reinterpret_cast<sockaddr*>(&address), length);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return fail(fail_errno(errno, "cannot notify the service manager").value().at(notify_socket_));
  return {};
}

}  // namespace sluice::net
