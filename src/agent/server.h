// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The gRPC service on a unix socket that the agent accepts itself: the peer's credentials are read before gRPC sees a byte.
// root gets the whole service, members of group `sluice` the reading half, everybody else is closed.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "agent/engine.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::agent {

struct ServerOptions {
  std::string socket;
  std::string group = "sluice";  // may read; a host without it has no readers but root
  std::string proc_root = "/proc";
};

class Server {
 public:
  // Binds, listens and serves. kConflict when another agent answers on the socket; a dead one's socket is replaced.
  static Result<std::unique_ptr<Server>> start(Engine& engine, const ServerOptions& options);
  ~Server();  // ends calls under way, removes the socket

  // Becomes readable when a `down` has completed: the process may end.
  int finished_fd() const;

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::agent
