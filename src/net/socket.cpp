// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "net/socket.h"

#include <grp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace sluice::net {

Result<std::string> congestion_control(int socket_fd) {
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t length = sizeof(name);
  if (::getsockopt(socket_fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0)
    return fail_errno(errno, "cannot read the congestion control of socket {}", socket_fd);
  return std::string(name, ::strnlen(name, length));
}

Status set_congestion_control(int socket_fd, std::string_view cca) {
  if (::setsockopt(socket_fd, IPPROTO_TCP, TCP_CONGESTION, cca.data(), static_cast<socklen_t>(cca.size())) == 0) return {};
  return fail_errno(errno, "cannot set the congestion control of socket {} to \"{}\"", socket_fd, cca);
}

Result<UniqueFd> fd_of_process(pid_t pid, int fd) {
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return fail_errno(errno, "cannot open process {}", pid);
  UniqueFd copy(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), fd, 0)));
  if (!copy) {
    if (errno == EBADF) return fail(Code::kNotFound, "process {} has no descriptor {}", pid, fd);
    return fail_errno(errno, "cannot duplicate descriptor {} of process {}", fd, pid);
  }
  return copy;
}

bool Peer::in_group(gid_t group) const {
  return gid == group || std::find(groups.begin(), groups.end(), group) != groups.end();
}

Result<Peer> peer_of(int unix_socket_fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(unix_socket_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return fail_errno(errno, "cannot read who is at the other end of socket {}", unix_socket_fd);
  if (credentials.pid == 0) return fail(Code::kInvalid, "socket {} is not connected", unix_socket_fd);
  Peer peer{credentials.pid, credentials.uid, credentials.gid, {}};
  // ERANGE tells the size; credentials of a connected socket do not change.
  length = 0;
  if (::getsockopt(unix_socket_fd, SOL_SOCKET, SO_PEERGROUPS, nullptr, &length) != 0 && errno != ERANGE)
    return fail_errno(errno, "cannot read the groups at the other end of socket {}", unix_socket_fd);
  peer.groups.resize(length / sizeof(gid_t));
  if (!peer.groups.empty() && ::getsockopt(unix_socket_fd, SOL_SOCKET, SO_PEERGROUPS, peer.groups.data(), &length) != 0)
    return fail_errno(errno, "cannot read the groups at the other end of socket {}", unix_socket_fd);
  return peer;
}

Result<gid_t> group_id(const std::string& name) {
  std::vector<char> buffer(1024);
  group entry{};
  group* found = nullptr;
  int err;
  // A group with many members needs much room; 1 MiB is some 50,000 of them.
  while ((err = ::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found)) == ERANGE &&
         buffer.size() < (1U << 20))
    buffer.resize(buffer.size() * 2);
  if (err != 0) return fail_errno(err, "cannot look up the group \"{}\"", name);
  if (found == nullptr) return fail(Code::kNotFound, "there is no group \"{}\"", name);
  return entry.gr_gid;
}

}  // namespace sluice::net
