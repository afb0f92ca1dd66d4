// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "base/unique_fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace sluice {

void UniqueFd::reset(int fd) {
  // Not retried on EINTR: Linux has given the number back already, and another thread may have it. EBADF is a double close: a
  // bug that would close somebody else's file the next time.
  if (fd_ >= 0 && ::close(fd_) != 0) SLUICE_ASSERT(errno != EBADF);
  fd_ = fd;
}

Result<UniqueFd> duplicate(int fd) {
  int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);  // never 0, 1 or 2, even if those are closed
  if (copy < 0) return fail_errno(errno, "cannot duplicate descriptor {}", fd);
  return UniqueFd(copy);
}

}  // namespace sluice
