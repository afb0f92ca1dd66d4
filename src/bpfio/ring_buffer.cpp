// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/ring_buffer.h"

#include <bpf/libbpf.h>

#include <cerrno>

#include "bpfio/kernel_btf.h"

namespace sluice::bpfio {

void RingBuffer::Close::operator()(ring_buffer* buffer) const { ring_buffer__free(buffer); }

Result<RingBuffer> RingBuffer::open(const MapFd& map) {
  RingBuffer made(std::make_unique<const Visit*>(nullptr));
  const ring_buffer_sample_fn give = [](void* context, void* data, std::size_t size) {
    (**static_cast<const Visit**>(context))({static_cast<const std::byte*>(data), size});
    return 0;
  };
  made.buffer_.reset(ring_buffer__new(map.fd(), give, made.visit_.get(), nullptr));
  if (!made.buffer_) return fail(libbpf_error(errno, fmt::format("cannot read ring buffer {}", map.info().name)));
  return made;
}

int RingBuffer::fd() const { return ring_buffer__epoll_fd(buffer_.get()); }

Status RingBuffer::drain(const Visit& visit) {
  *visit_ = &visit;
  const int count = ring_buffer__consume(buffer_.get());
  *visit_ = nullptr;
  if (count < 0) return fail(libbpf_error(count, "cannot read a ring buffer"));
  return {};
}

}  // namespace sluice::bpfio
