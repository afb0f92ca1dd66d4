// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Sockets of a host in the hands of the test: a process in the host's namespace and cgroup makes them and passes them over.
// What the kernel knows them by is the host's, while one thread of the test drives all ends of all connections.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "base/result.h"
#include "harness/process.h"
#include "harness/topology.h"

namespace sluice::test {

class HostSockets {
 public:
  // `cgroup`: a folder to make them in instead of the host's own; empty = the host's.
  static Result<HostSockets> start(const Host& host, const std::string& cgroup = "");
  // As socket(2), close-on-exec.
  Result<Fd> open(int family, int type = SOCK_STREAM, int protocol = IPPROTO_TCP) const;

 private:
  HostSockets(Process maker, Fd channel) : maker_(std::move(maker)), channel_(std::move(channel)) {}
  Process maker_;
  Fd channel_;
};

// A descriptor over a unix socket, and from it.
Status send_fd(int channel, int fd);
Result<Fd> receive_fd(int channel);

}  // namespace sluice::test
