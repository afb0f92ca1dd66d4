// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// BPF links: what holds a program at its hook. A Link owns its descriptor; when the last descriptor and pin are gone, the
// kernel detaches. Links that must survive the agent are pinned (pin.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "bpfio/map.h"
#include "bpfio/program.h"

namespace sluice::bpfio {

enum class CgroupHook { kSockOps, kGetSockOpt, kSetSockOpt };
std::string_view to_string(CgroupHook hook);
std::uint32_t attach_type(CgroupHook hook);  // enum bpf_attach_type, as in LinkInfo

// enum bpf_link_type, the part that Sluice makes; other values are possible.
enum class LinkType : std::uint32_t {
  kUnknown = 0,
  kTracing = 2,
  kCgroup = 3,
  kIter = 4,
  kNetns = 5,
  kXdp = 6,
  kStructOps = 9
};

struct LinkInfo {
  std::uint32_t id = 0;
  LinkType type = LinkType::kUnknown;
  std::string type_name;        // "cgroup", "iter", "struct_ops", ...
  std::uint32_t prog_id = 0;    // 0 for struct_ops
  std::uint32_t map_id = 0;     // struct_ops: the registered map; iter over a map: that map
  std::uint64_t cgroup_id = 0;  // cgroup links; 0 = the cgroup was removed
  std::uint32_t attach_type = 0;
  std::string target;  // iter: "tcp", "bpf_sk_storage_map", ...; cgroup: the hook
};

class Link {
 public:
  static Result<Link> adopt(UniqueFd fd);
  static Result<Link> from_id(std::uint32_t id);

  // Runs after the programs that are there already, beside them (BPF_F_ALLOW_MULTI, as every cgroup link).
  static Result<Link> attach_cgroup(const Program& program, int cgroup_fd, CgroupHook hook);
  // On an interface of the calling thread's network namespace, in the driver. kConflict, naming it, if it has a program
  // already.
  static Result<Link> attach_xdp(const Program& program, std::uint32_t ifindex);
  // An iterator to be run by Iterator::create. Iterators over the elements of a map (bpf_sk_storage_map) name it.
  static Result<Link> attach_iter(const Program& program, const MapFd* map = nullptr);
  // struct_ops: Object::attach_struct_ops.

  int fd() const { return fd_.get(); }
  std::uint32_t id() const { return id_; }
  Result<LinkInfo> info() const;
  // The hook runs `next` from now on, without a gap. With `expected`, kConflict if another program is there.
  Status update(const Program& next, const Program* expected = nullptr) const;
  // Detaches now, whoever else holds the link; it stays as an empty shell. Cgroup links from 5.9, struct_ops from 6.11.
  Status detach() const;

 private:
  Link(UniqueFd fd, std::uint32_t id) : fd_(std::move(fd)), id_(id) {}
  UniqueFd fd_;
  std::uint32_t id_ = 0;
};

}  // namespace sluice::bpfio
