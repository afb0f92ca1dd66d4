// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "harness/host_sockets.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace sluice::test {
namespace {

struct Request {
  int family, type, protocol;
};

// One byte travels with the descriptor; a failed socket(2) sends its errno and none.
int send_message(int channel, int fd, int error) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  iovec data{&error, sizeof error};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return ::sendmsg(channel, &message, MSG_NOSIGNAL) == sizeof error ? 0 : errno;
}

// Runs in the child: nothing but system calls.
int serve(int channel, const char* cgroup_procs) {
  if (*cgroup_procs != '\0') {
    const int procs = ::open(cgroup_procs, O_WRONLY | O_CLOEXEC);
    if (procs < 0 || ::write(procs, "0", 1) != 1) return 1;
    ::close(procs);
  }
  Request request{};
  while (::recv(channel, &request, sizeof request, 0) == sizeof request) {
    const int fd = ::socket(request.family, request.type | SOCK_CLOEXEC, request.protocol);
    if (send_message(channel, fd, fd < 0 ? errno : 0) != 0) return 1;
    if (fd >= 0) ::close(fd);
  }
  return 0;
}

}  // namespace

Status send_fd(int channel, int fd) {
  if (const int error = send_message(channel, fd, 0); error != 0) return fail_errno(error, "cannot send a descriptor");
  return {};
}

Result<Fd> receive_fd(int channel) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  int error = 0;
  iovec data{&error, sizeof error};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(channel, &message, MSG_CMSG_CLOEXEC) != sizeof error) return fail_errno(errno, "cannot receive a descriptor");
  if (error != 0) return fail_errno(error, "cannot make a socket");
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return fail(Code::kInternal, "a message without a descriptor");
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return Fd(fd);
}

Result<HostSockets> HostSockets::start(const Host& host, const std::string& cgroup) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return fail_errno(errno, "cannot make a socket pair");
  Fd mine(ends[0]), theirs(ends[1]);
  const std::string procs = cgroup.empty() ? "" : cgroup + "/cgroup.procs";
  SLUICE_TRY(maker, host.fork([&] { return serve(theirs.get(), procs.c_str()); }));
  return HostSockets(std::move(maker), std::move(mine));
}

Result<Fd> HostSockets::open(int family, int type, int protocol) const {
  const Request request{family, type, protocol};
  if (::send(channel_.get(), &request, sizeof request, MSG_NOSIGNAL) != sizeof request)
    return fail_errno(errno, "the process that makes sockets is gone");
  return receive_fd(channel_.get());
}

}  // namespace sluice::test
