// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The reader of a BPF ring buffer.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "base/result.h"
#include "bpfio/map.h"

struct ring_buffer;

namespace sluice::bpfio {

class RingBuffer {
 public:
  static Result<RingBuffer> open(const MapFd& map);

  int fd() const;  // readable when there is a record
  // Every record so far, in order.
  Status drain(const std::function<void(std::span<const std::byte>)>& visit);

 private:
  struct Close {
    void operator()(ring_buffer* buffer) const;
  };
  using Visit = std::function<void(std::span<const std::byte>)>;
  explicit RingBuffer(std::unique_ptr<const Visit*> visit) : visit_(std::move(visit)) {}

  std::unique_ptr<const Visit*> visit_;  // of the drain() under way, where libbpf's callback finds it
  std::unique_ptr<ring_buffer, Close> buffer_;
};

}  // namespace sluice::bpfio
