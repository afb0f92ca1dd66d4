// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/iterator.h"

#include <bpf/bpf.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/netns_thread.h"
#include "bpfio/kernel_btf.h"

namespace sluice::bpfio {

Result<Iterator> Iterator::create(const Link& link, int netns_fd) {
  auto create_here = [&]() -> Result<UniqueFd> {
    UniqueFd fd(bpf_iter_create(link.fd()));
    if (!fd) return fail(libbpf_error(errno, fmt::format("cannot start the iterator of link {}", link.id())));
    return fd;
  };
  auto fd = netns_fd < 0 ? create_here() : run_in_netns(netns_fd, create_here);
  if (!fd) return fail(std::move(fd).error());
  return Iterator(std::move(*fd));
}

Result<std::size_t> Iterator::read(std::span<std::byte> buffer) {
  // Each EAGAIN is a million objects without output: 10,000 of them are more sockets than a host has memory for.
  constexpr int kAgainMax = 10'000;
  for (int again = 0; again < kAgainMax;) {
    ssize_t n = ::read(fd_.get(), buffer.data(), buffer.size());
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno == EAGAIN)
      again++;
    else if (errno != EINTR)
      return fail_errno(errno, "the iterator failed");
  }
  return fail(Code::kInternal, "the iterator does not end");
}

Status run_iter(Iterator& iterator, std::size_t record_bytes, const std::function<bool(std::span<const std::byte>)>& visit,
                std::size_t batch_bytes) {
  SLUICE_ASSERT(record_bytes > 0);
  std::vector<std::byte> buffer(std::max(batch_bytes, record_bytes));
  std::size_t held = 0;  // bytes of a record whose rest comes with the next read
  for (;;) {
    SLUICE_TRY(n, iterator.read(std::span(buffer).subspan(held)));
    if (n == 0) break;
    held += n;
    std::size_t used = 0;
    for (; held - used >= record_bytes; used += record_bytes)
      if (!visit(std::span<const std::byte>(buffer).subspan(used, record_bytes))) return {};
    std::copy(buffer.begin() + static_cast<std::ptrdiff_t>(used), buffer.begin() + static_cast<std::ptrdiff_t>(held),
              buffer.begin());
    held -= used;
  }
  if (held != 0) return fail(Code::kCorrupt, "the iterator's output ends within a record ({} of {} bytes)", held, record_bytes);
  return {};
}

}  // namespace sluice::bpfio
