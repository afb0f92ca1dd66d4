// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/kernel/interface.h"

#include <arpa/inet.h>

#include "bpfio/object.h"

namespace sluice::coll {

Interface::Interface(std::uint32_t index, bpfio::MapFd ports, bpfio::MapFd programs, bpfio::MapFd counters,
                     bpfio::Program program, bpfio::Link link)
    : index_(index),
      ports_(std::move(ports)),
      programs_(std::move(programs)),
      counters_(std::move(counters)),
      program_(std::move(program)),
      link_(std::move(link)) {
  for (std::uint32_t place = 0; place < SL_COLL_PORTS_MAX; place++) free_.insert(place);
}

Result<std::shared_ptr<Interface>> Interface::attach(std::uint32_t index, const std::string& object) {
  SLUICE_TRY(loaded, bpfio::Object::open_file(object));
  SLUICE_CHECK(loaded.load());
  SLUICE_TRY(ports, loaded.map("sl_coll_ports"));
  SLUICE_TRY(programs, loaded.map("sl_coll_programs"));
  SLUICE_TRY(counters, loaded.map("sl_coll_dispatch_counters"));
  SLUICE_TRY(program, loaded.program("sl_coll_dispatch"));
  SLUICE_TRY(link, bpfio::Link::attach_xdp(program, index));
  return std::shared_ptr<Interface>(
      new Interface(index, std::move(ports), std::move(programs), std::move(counters), std::move(program), std::move(link)));
}

Result<Interface::Claim> Interface::claim(std::uint16_t port, const bpfio::Program& program) {
  const std::lock_guard lock(mutex_);
  if (free_.empty())
    return fail(make_error(Code::kExhausted, fmt::format("{} jobs share the interface already", SL_COLL_PORTS_MAX),
                           "put the job on another interface, or destroy one"));
  const std::uint32_t place = *free_.begin();
  const auto fd = static_cast<std::uint32_t>(program.fd());
  const __be16 key = htons(port);
  SLUICE_CHECK(programs_.update(bpfio::bytes_of(place), bpfio::bytes_of(fd)));
  if (auto taken = ports_.update(bpfio::bytes_of(key), bpfio::bytes_of(place), bpfio::Update::kCreateOnly); !taken) {
    std::ignore = programs_.erase(bpfio::bytes_of(place));
    if (taken.error().sys_errno != EEXIST) return tl::unexpected<Error>(taken.error());
    return fail(Code::kConflict, "a job on the interface has UDP port {} already", port);
  }
  free_.erase(place);
  return Claim(shared_from_this(), port, place);
}

void Interface::release(std::uint16_t port, std::uint32_t place) {
  const std::lock_guard lock(mutex_);
  const __be16 key = htons(port);
  std::ignore = ports_.erase(bpfio::bytes_of(key));
  std::ignore = programs_.erase(bpfio::bytes_of(place));
  free_.insert(place);
}

Result<std::uint64_t> Interface::counter(sl_coll_dispatch_counter index) const {
  SLUICE_TRY(sums, bpfio::sum_per_cpu(counters_));
  return sums[index];
}

Interface::Claim::Claim(Claim&& other) noexcept
    : interface_(std::move(other.interface_)), port_(other.port_), place_(other.place_) {}

Interface::Claim::~Claim() {
  if (interface_) interface_->release(port_, place_);
}

}  // namespace sluice::coll
