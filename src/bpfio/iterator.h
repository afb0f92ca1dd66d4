// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Running a BPF iterator: one walk over sockets or other kernel objects, inside one network namespace, and the records that it
// writes.
//
//   SLUICE_TRY(walk, Iterator::create(link, netns_fd));
//   SLUICE_CHECK(for_each_record<sl_report>(walk, [&](const sl_report& report) { ...; return true; }));
//
// The walk advances only while it is read: whoever reads in pieces moves sockets in pieces.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"
#include "bpfio/link.h"

namespace sluice::bpfio {

// The kernel's own buffer (8 pages). A read of at least this size takes all that the kernel has ready.
inline constexpr std::size_t kIterBufferBytes = 8 * 4096;

class Iterator {
 public:
  // The namespace is fixed here: the iterator may then be read from any thread. netns_fd -1 = the caller's.
  static Result<Iterator> create(const Link& link, int netns_fd = -1);

  // Bytes read; 0 = the walk is over. A walk without output returns to user space every million objects (EAGAIN); that is
  // continued here.
  Result<std::size_t> read(std::span<std::byte> buffer);

 private:
  explicit Iterator(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Walks to the end, or until `visit` returns false, with whole records of `record_bytes`; kCorrupt if the output is not a
// multiple of it. `batch_bytes` bounds how far the walk runs ahead of `visit`.
Status run_iter(Iterator& iterator, std::size_t record_bytes, const std::function<bool(std::span<const std::byte>)>& visit,
                std::size_t batch_bytes = kIterBufferBytes);

template <class Record, class Visit>
Status for_each_record(Iterator& iterator, Visit&& visit, std::size_t batch_bytes = kIterBufferBytes) {
  static_assert(std::is_trivially_copyable_v<Record>);
  return run_iter(
      iterator, sizeof(Record),
      [&](std::span<const std::byte> bytes) {
        Record record;
        std::memcpy(&record, bytes.data(), sizeof(Record));
        return visit(static_cast<const Record&>(record));
      },
      batch_bytes);
}

}  // namespace sluice::bpfio
