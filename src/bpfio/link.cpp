// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/link.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <net/if.h>

#include <cerrno>

#include "bpfio/hook_programs.h"
#include "bpfio/kernel_btf.h"

namespace sluice::bpfio {
std::uint32_t attach_type(CgroupHook hook) {
  switch (hook) {
    case CgroupHook::kSockOps:
      return BPF_CGROUP_SOCK_OPS;
    case CgroupHook::kGetSockOpt:
      return BPF_CGROUP_GETSOCKOPT;
    case CgroupHook::kSetSockOpt:
      return BPF_CGROUP_SETSOCKOPT;
  }
  panic("a cgroup hook without an attach type", __FILE__, __LINE__);
}

std::string_view to_string(CgroupHook hook) {
  return libbpf_bpf_attach_type_str(static_cast<bpf_attach_type>(attach_type(hook)));
}

Result<Link> Link::adopt(UniqueFd fd) {
  SLUICE_CHECK(expect_kind(fd.get(), FdKind::kLink));
  bpf_link_info raw{};
  __u32 size = sizeof(raw);
  if (int err = bpf_link_get_info_by_fd(fd.get(), &raw, &size); err != 0)
    return fail(libbpf_error(err, fmt::format("cannot describe the link of descriptor {}", fd.get())));
  return Link(std::move(fd), raw.id);
}

Result<Link> Link::from_id(std::uint32_t id) {
  UniqueFd fd(bpf_link_get_fd_by_id(id));
  if (!fd) return fail(libbpf_error(errno, fmt::format("cannot open the link with id {}", id)));
  return adopt(std::move(fd));
}

Result<Link> Link::attach_cgroup(const Program& program, int cgroup_fd, CgroupHook hook) {
  UniqueFd fd(bpf_link_create(program.fd(), cgroup_fd, static_cast<bpf_attach_type>(attach_type(hook)), nullptr));
  if (fd) return adopt(std::move(fd));
  const int err = errno;
  Error error = libbpf_error(err, fmt::format("cannot attach the program with id {} to {}", program.id(), to_string(hook)));
  if (err == EBADF || err == ENOENT)
    return fail(std::move(error).fix("attach to a folder of cgroup2 (on hybrid hosts /sys/fs/cgroup/unified)"));
  if (err == E2BIG)
    return fail(std::move(error).fix(
        fmt::format("a hook of a cgroup takes {} programs: detach one that nobody needs (`bpftool cgroup show DIR` lists them)",
                    kCgroupProgramsMax)));
  if (err == EPERM)
    return fail(
        std::move(error).fix("an ancestor cgroup has a program attached without BPF_F_ALLOW_MULTI, or rights are missing"));
  return fail(std::move(error));
}

Result<Link> Link::attach_xdp(const Program& program, std::uint32_t ifindex) {
  LIBBPF_OPTS(bpf_link_create_opts, options, .flags = XDP_FLAGS_DRV_MODE);
  UniqueFd fd(bpf_link_create(program.fd(), static_cast<int>(ifindex), BPF_XDP, &options));
  if (fd) return adopt(std::move(fd));
  const int err = errno;
  char name[IF_NAMESIZE] = "";
  if (::if_indextoname(ifindex, name) == nullptr) return fail(Code::kNotFound, "no interface has the index {}", ifindex);
  LIBBPF_OPTS(bpf_xdp_query_opts, present);
  if ((err == EBUSY || err == EEXIST) && bpf_xdp_query(static_cast<int>(ifindex), 0, &present) == 0 && present.prog_id != 0)
    return fail(
        make_error(Code::kConflict, fmt::format("interface {} has an XDP program already, id {}", name, present.prog_id),
                   fmt::format("see whose it is: bpftool prog show id {}; give Sluice an interface of its own, or detach "
                               "that program",
                               present.prog_id)));
  Error error = libbpf_error(err, fmt::format("cannot attach the XDP program with id {} to interface {}", program.id(), name));
  if (err == EOPNOTSUPP) return fail(std::move(error).fix("its driver has no XDP; choose another interface"));
  if (err == ERANGE || err == EINVAL)
    return fail(std::move(error).fix(
        fmt::format("its MTU or offloads do not suit XDP: ip -d link show {}; ethtool -K {} lro off", name, name)));
  return fail(std::move(error));
}

Result<Link> Link::attach_iter(const Program& program, const MapFd* map) {
  bpf_iter_link_info target{};
  LIBBPF_OPTS(bpf_link_create_opts, options);
  if (map != nullptr) {
    target.map.map_fd = static_cast<__u32>(map->fd());
    options.iter_info = &target;
    options.iter_info_len = sizeof(target);
  }
  UniqueFd fd(bpf_link_create(program.fd(), 0, BPF_TRACE_ITER, &options));
  if (!fd) return fail(libbpf_error(errno, fmt::format("cannot attach the iterator program with id {}", program.id())));
  return adopt(std::move(fd));
}

Result<LinkInfo> Link::info() const {
  LinkInfo info;
  bpf_link_info raw{};
  __u32 size = sizeof(raw);
  int err = bpf_link_get_info_by_fd(fd_.get(), &raw, &size);
  char target[64] = {};
  if (err == 0 && raw.type == BPF_LINK_TYPE_ITER) {
    raw = {};
    raw.iter.target_name = reinterpret_cast<std::uintptr_t>(target);
    raw.iter.target_name_len = sizeof(target);
    size = sizeof(raw);
    err = bpf_link_get_info_by_fd(fd_.get(), &raw, &size);
  }
  if (err != 0) return fail(libbpf_error(err, fmt::format("cannot describe the link with id {}", id_)));
  info.id = raw.id;
  info.type = static_cast<LinkType>(raw.type);
  const char* type_name = libbpf_bpf_link_type_str(static_cast<bpf_link_type>(raw.type));
  info.type_name = type_name == nullptr ? "?" : type_name;
  info.prog_id = raw.prog_id;
  switch (raw.type) {
    case BPF_LINK_TYPE_CGROUP: {
      info.cgroup_id = raw.cgroup.cgroup_id;
      info.attach_type = raw.cgroup.attach_type;
      const char* hook = libbpf_bpf_attach_type_str(static_cast<bpf_attach_type>(raw.cgroup.attach_type));
      info.target = hook == nullptr ? "?" : hook;
      break;
    }
    case BPF_LINK_TYPE_ITER:
      info.target = target;
      if (info.target.find("map") != std::string::npos) info.map_id = raw.iter.map.map_id;
      break;
    case BPF_LINK_TYPE_STRUCT_OPS:
      info.map_id = raw.struct_ops.map_id;
      break;
    default:
      break;
  }
  return info;
}

Status Link::update(const Program& next, const Program* expected) const {
  LIBBPF_OPTS(bpf_link_update_opts, options);
  if (expected != nullptr) {
    options.flags = BPF_F_REPLACE;
    options.old_prog_fd = static_cast<__u32>(expected->fd());
  }
  int err = bpf_link_update(fd_.get(), next.fd(), &options);
  if (err == 0) return {};
  if (expected != nullptr && err == -EPERM) {
    SLUICE_TRY(now, info());
    if (now.prog_id != expected->id())
      return fail(Code::kConflict, "link {} runs the program with id {}, not {}", id_, now.prog_id, expected->id());
  }
  return fail(libbpf_error(err, fmt::format("cannot put the program with id {} behind link {}", next.id(), id_)));
}

Status Link::detach() const {
  if (int err = bpf_link_detach(fd_.get()); err != 0) return fail(libbpf_error(err, fmt::format("cannot detach link {}", id_)));
  return {};
}

}  // namespace sluice::bpfio
