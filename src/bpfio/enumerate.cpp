// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/enumerate.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>

#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/strings.h"
#include "bpfio/kernel_btf.h"

namespace sluice::bpfio {
namespace {

// Ids are given out in rising order and never reused soon: the walk ends at the newest object of its time or a little later.
// What goes meanwhile (ENOENT), and a link that somebody is just making (EAGAIN: it has its id, but is not attached yet), is
// passed over.
template <class Info, class Describe>
Result<std::vector<Info>> enumerate(int (*next_id)(__u32, __u32*), const char* kind, Describe describe) {
  std::vector<Info> all;
  __u32 id = 0;
  for (;;) {
    const int err = next_id(id, &id);
    if (err == -ENOENT) return all;
    if (err != 0) return fail(libbpf_error(err, fmt::format("cannot list BPF {}s", kind)));
    Result<Info> info = describe(id);
    if (info)
      all.push_back(std::move(*info));
    else if (info.error().code != Code::kNotFound && info.error().sys_errno != EAGAIN)
      return fail(std::move(info).error());
  }
}

}  // namespace

Result<std::vector<MapInfo>> all_maps() {
  return enumerate<MapInfo>(bpf_map_get_next_id, "map", [](std::uint32_t id) -> Result<MapInfo> {
    SLUICE_TRY(map, MapFd::from_id(id));
    return map.info();
  });
}

Result<std::vector<ProgramInfo>> all_programs() {
  return enumerate<ProgramInfo>(bpf_prog_get_next_id, "program", [](std::uint32_t id) -> Result<ProgramInfo> {
    SLUICE_TRY(program, Program::from_id(id));
    return program.info();
  });
}

Result<std::vector<LinkInfo>> all_links() {
  return enumerate<LinkInfo>(bpf_link_get_next_id, "link", [](std::uint32_t id) -> Result<LinkInfo> {
    SLUICE_TRY(link, Link::from_id(id));
    return link.info();
  });
}

Result<std::vector<StructOpsCca>> struct_ops_ccas() {
  SLUICE_TRY(types, kernel_btf());
  // The value that bpf(2) shows: a reference count and a state, then the ops on a cache line of their own.
  const int value_id = btf__find_by_name_kind(types, "bpf_struct_ops_tcp_congestion_ops", BTF_KIND_STRUCT);
  const int ops_id = btf__find_by_name_kind(types, "tcp_congestion_ops", BTF_KIND_STRUCT);
  if (value_id < 0 || ops_id < 0) return std::vector<StructOpsCca>();  // this kernel has none
  SLUICE_TRY(value_type, describe_type(types, static_cast<std::uint32_t>(value_id)));
  SLUICE_TRY(ops_type, describe_type(types, static_cast<std::uint32_t>(ops_id)));
  const Member* data = value_type.find("data");
  const Member* name_member = ops_type.find("name");
  if (data == nullptr || name_member == nullptr)
    return fail(Code::kUnsupported, "tcp_congestion_ops is not laid out as expected on this kernel");
  const std::size_t name_offset = data->offset_bytes + name_member->offset_bytes;
  const std::size_t name_size = name_member->size_bytes;

  SLUICE_TRY(links, all_links());
  return enumerate<StructOpsCca>(bpf_map_get_next_id, "map", [&](std::uint32_t id) -> Result<StructOpsCca> {
    SLUICE_TRY(map, MapFd::from_id(id));
    const MapInfo& info = map.info();
    if (info.type != MapType::kStructOps || info.btf_vmlinux_value_type_id != static_cast<std::uint32_t>(value_id))
      return fail(Code::kNotFound, "not a congestion control");
    std::vector<std::byte> value(info.value_size);
    const std::uint32_t key = 0;
    SLUICE_CHECK(map.lookup(bytes_of(key), value));
    if (name_offset + name_size > value.size()) return fail(Code::kCorrupt, "the value of map {} is too short", id);
    StructOpsCca cca;
    cca.map_id = info.id;
    cca.map_name = info.name;
    const auto* name = reinterpret_cast<const char*>(value.data() + name_offset);
    cca.cca_name.assign(name, ::strnlen(name, name_size));
    std::uint32_t state = 0;
    std::memcpy(&cca.references, value.data(), sizeof(cca.references));
    std::memcpy(&state, value.data() + sizeof(cca.references), sizeof(state));
    for (const LinkInfo& link : links)
      if (link.type == LinkType::kStructOps && link.map_id == info.id) cca.link_id = link.id;
    constexpr std::uint32_t kStateInUse = 1;  // BPF_STRUCT_OPS_STATE_INUSE: registered without a link
    cca.registered = cca.link_id != 0 || state == kStateInUse;
    return cca;
  });
}

Result<std::vector<CgroupProgram>> cgroup_programs(int cgroup_fd, CgroupHook hook, bool effective) {
  const auto type = static_cast<bpf_attach_type>(attach_type(hook));
  std::vector<std::uint32_t> ids(64);
  std::vector<std::uint32_t> flags(64);
  constexpr std::size_t kProgramsMax = 64 * 256;  // 64 at each of so many levels
  for (;;) {
    LIBBPF_OPTS(bpf_prog_query_opts, options);
    options.query_flags = effective ? BPF_F_QUERY_EFFECTIVE : 0;
    options.prog_ids = ids.data();
    options.prog_attach_flags = effective ? nullptr : flags.data();
    options.count = static_cast<__u32>(ids.size());
    int err = bpf_prog_query_opts(cgroup_fd, type, &options);
    if (err == -EINVAL && !effective) {  // flags of each program: 6.0
      options.prog_attach_flags = nullptr;
      options.count = static_cast<__u32>(ids.size());
      err = bpf_prog_query_opts(cgroup_fd, type, &options);
      std::fill(flags.begin(), flags.end(), options.attach_flags);
    }
    if (err == -ENOSPC && ids.size() < kProgramsMax) {
      ids.resize(ids.size() * 2);
      flags.resize(ids.size());
      continue;
    }
    if (err != 0) return fail(libbpf_error(err, fmt::format("cannot list the programs at {}", to_string(hook))));
    std::vector<CgroupProgram> programs;
    for (std::uint32_t i = 0; i < options.count; i++) {
      auto program = Program::from_id(ids[i]);
      if (!program && program.error().code == Code::kNotFound) continue;
      if (!program) return fail(std::move(program).error());
      SLUICE_TRY(info, program->info());
      programs.push_back({ids[i], info.name, effective ? 0 : flags[i]});
    }
    return programs;
  }
}

std::string_view attach_mode(std::uint32_t flags) {
  if ((flags & BPF_F_ALLOW_MULTI) != 0) return "multi";
  return (flags & BPF_F_ALLOW_OVERRIDE) != 0 ? "override" : "exclusive";
}

Result<std::vector<std::string>> available_ccas(const std::string& proc_root) {
  SLUICE_TRY(text, read_file(proc_root + "/sys/net/ipv4/tcp_available_congestion_control"));
  std::vector<std::string> names;
  for (std::string_view name : words(trim(text))) names.emplace_back(name);
  return names;
}

}  // namespace sluice::bpfio
