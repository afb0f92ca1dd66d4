// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A network interface that jobs share: bundle `dispatch` is its XDP program, and hands a job's packets to the job's own
// program. By UDP port, of which each job, and each stream of one, has another.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "bpfio/link.h"
#include "bpfio/map.h"
#include "bpfio/program.h"
#include "coll/model/packet.h"

namespace sluice::coll {

// Nothing outlives it: the program is attached by a link that it owns. Safe to use from several threads.
class Interface : public std::enable_shared_from_this<Interface> {
 public:
  // `index` in the calling thread's network namespace; `object`: path of dispatch.bpf.o. kConflict, naming it, if the interface
  // has a program.
  static Result<std::shared_ptr<Interface>> attach(std::uint32_t index, const std::string& object);

  // Packets to a port go to a program for as long as this lives.
  class Claim {
   public:
    Claim(Claim&& other) noexcept;
    Claim& operator=(Claim&&) = delete;
    ~Claim();

   private:
    friend class Interface;
    Claim(std::shared_ptr<Interface> interface, std::uint16_t port, std::uint32_t place)
        : interface_(std::move(interface)), port_(port), place_(place) {}
    std::shared_ptr<Interface> interface_;
    std::uint16_t port_;
    std::uint32_t place_;
  };
  // kConflict when somebody has the port, kExhausted when SL_COLL_PORTS_MAX have one.
  Result<Claim> claim(std::uint16_t port, const bpfio::Program& program);

  std::uint32_t index() const { return index_; }
  const bpfio::Program& program() const { return program_; }
  Result<std::uint64_t> counter(sl_coll_dispatch_counter index) const;

 private:
  Interface(std::uint32_t index, bpfio::MapFd ports, bpfio::MapFd programs, bpfio::MapFd counters, bpfio::Program program,
            bpfio::Link link);
  void release(std::uint16_t port, std::uint32_t place);

  std::uint32_t index_;
  bpfio::MapFd ports_, programs_, counters_;  // a program array is emptied when nobody holds it
  bpfio::Program program_;
  bpfio::Link link_;
  std::mutex mutex_;
  std::set<std::uint32_t> free_;  // places in programs_
};

}  // namespace sluice::coll
