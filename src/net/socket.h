// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Single sockets: their congestion control, also those of other processes; and who is at the other end of a unix socket.
#pragma once

#include <sys/types.h>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::net {

Result<std::string> congestion_control(int socket_fd);
// kNotFound if the name is not registered, kPermission if it is restricted or the route locks another one.
Status set_congestion_control(int socket_fd, std::string_view cca);

// A descriptor of ours for an open file of another process (pidfd_getfd, Linux 5.6; needs ptrace rights). Same socket: options
// set on it are set for its owner.
Result<UniqueFd> fd_of_process(pid_t pid, int fd);

// The other end of a connected unix socket, as it was when it connected.
struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary (SO_PEERGROUPS, Linux 4.13)

  bool in_group(gid_t group) const;
};
Result<Peer> peer_of(int unix_socket_fd);
Result<gid_t> group_id(const std::string& name);  // kNotFound if there is no such group

}  // namespace sluice::net
