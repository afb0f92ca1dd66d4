// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/hook_programs.h"

#include <bpf/bpf.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "bpfio/instructions.h"
#include "bpfio/kernel_btf.h"
#include "bpfio/map.h"

namespace sluice::bpfio {
namespace {

constexpr std::size_t kProgramsFollowed = 64;  // by tail calls, the first included
constexpr std::size_t kCcaNameBytes = 16;

struct Callback {
  std::uint32_t op;
  std::string_view name;
};
constexpr Callback kSockOpsCallbacks[] = {
    {BPF_SOCK_OPS_TIMEOUT_INIT, "timeout_init"},
    {BPF_SOCK_OPS_RWND_INIT, "rwnd_init"},
    {BPF_SOCK_OPS_TCP_CONNECT_CB, "connect"},
    {BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, "active_established"},
    {BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, "passive_established"},
    {BPF_SOCK_OPS_NEEDS_ECN, "needs_ecn"},
    {BPF_SOCK_OPS_BASE_RTT, "base_rtt"},
    {BPF_SOCK_OPS_RTO_CB, "rto"},
    {BPF_SOCK_OPS_RETRANS_CB, "retrans"},
    {BPF_SOCK_OPS_STATE_CB, "state"},
    {BPF_SOCK_OPS_TCP_LISTEN_CB, "listen"},
    {BPF_SOCK_OPS_RTT_CB, "rtt"},
    {BPF_SOCK_OPS_PARSE_HDR_OPT_CB, "parse_hdr_opt"},
    {BPF_SOCK_OPS_HDR_OPT_LEN_CB, "hdr_opt_len"},
    {BPF_SOCK_OPS_WRITE_HDR_OPT_CB, "write_hdr_opt"},
};
constexpr Callback kNoCallback[] = {{0, {}}};

// bpf_setsockopt(r1, SOL_TCP, TCP_CONGESTION, "", 16)
constexpr std::array kSetCca = {
    store_zero(BPF_REG_10, -16),
    store_zero(BPF_REG_10, -8),
    set_imm(BPF_REG_2, IPPROTO_TCP),
    set_imm(BPF_REG_3, TCP_CONGESTION),
    set_reg(BPF_REG_4, BPF_REG_10),
    add_imm(BPF_REG_4, -16),
    set_imm(BPF_REG_5, kCcaNameBytes),
    call(BPF_FUNC_setsockopt),
    set_imm(BPF_REG_0, 1),
    leave(),
};
constexpr std::array kTouchSockOps = {
    set_reg(BPF_REG_6, BPF_REG_1),
    load_u32(BPF_REG_2, BPF_REG_6, offsetof(bpf_sock_ops, op)),
    store_u32(BPF_REG_6, offsetof(bpf_sock_ops, reply), BPF_REG_2),
};
constexpr std::array kTakeSocket = {load_u64(BPF_REG_1, BPF_REG_1, offsetof(bpf_sockopt, sk))};

// What differs between hooks. Not here: kGetSockOpt, whose programs may not call bpf_setsockopt.
struct Hook {
  CgroupHook hook;
  bpf_prog_type type;
  std::span<const bpf_insn> opening;  // before kSetCca
  std::span<const Callback> callbacks;
};
constexpr Hook kHooks[] = {
    {CgroupHook::kSockOps, BPF_PROG_TYPE_SOCK_OPS, kTouchSockOps, kSockOpsCallbacks},
    {CgroupHook::kSetSockOpt, BPF_PROG_TYPE_CGROUP_SOCKOPT, kTakeSocket, kNoCallback},
};
const Hook& entry_of(CgroupHook hook) {
  for (const Hook& entry : kHooks)
    if (entry.hook == hook) return entry;
  panic("a cgroup hook that no table names", __FILE__, __LINE__);
}

std::vector<bpf_insn> decoded(const std::vector<std::byte>& bytes) {
  std::vector<bpf_insn> code(bytes.size() / sizeof(bpf_insn));
  std::memcpy(code.data(), bytes.data(), code.size() * sizeof(bpf_insn));
  return code;
}

// A name that lies in a map's value, as .rodata does; nullopt if it cannot be read.
std::optional<std::string> name_in_map(std::uint32_t id, std::uint32_t offset) {
  const auto map = MapFd::from_id(id);
  if (!map || map->info().type != MapType::kArray || map->info().key_size != sizeof(std::uint32_t)) return std::nullopt;
  std::vector<std::byte> value(map->info().value_size);
  const std::uint32_t first = 0;
  if (offset >= value.size() || !map->lookup(bytes_of(first), value)) return std::nullopt;
  const auto* name = reinterpret_cast<const char*>(value.data() + offset);
  return std::string(name, ::strnlen(name, std::min(value.size() - offset, kCcaNameBytes - 1)));
}

// A program and those that its tail calls lead to, as their arrays hold them now.
class Family {
 public:
  Status add(const Program& program) {
    if (!index_.try_emplace(program.id(), code_.size()).second) return {};
    SLUICE_TRY(code, program.instructions());
    code_.push_back(std::move(code));
    return {};
  }

  // What the first can do with `op`, and whatever it calls on to.
  Acts acts(const HookShape& shape, std::optional<std::uint32_t> op) {
    Acts all;
    std::vector<std::size_t> reached = {0};
    for (std::size_t next = 0; next < reached.size(); ++next) {
      const Acts own = read_acts(code_[reached[next]], shape, op);
      all.merge(own);
      for (const std::uint32_t array : own.tail_calls)
        for (const std::size_t member : members(array))
          if (std::ranges::find(reached, member) == reached.end()) reached.push_back(member);
    }
    if (all.unread.empty() && !all.tail_calls.empty()) all.unread = unread_;
    return all;
  }

 private:
  const std::vector<std::size_t>& members(std::uint32_t array) {
    const auto [found, fresh] = arrays_.try_emplace(array);
    if (fresh && !read_array(array, found->second)) unread_ = "a program that it calls on to cannot be read";
    return found->second;
  }

  bool read_array(std::uint32_t array, std::vector<std::size_t>& into) {
    const auto map = MapFd::from_id(array);
    if (!map) return false;
    for (std::uint32_t slot = 0; slot < map->info().max_entries; ++slot) {
      std::uint32_t id = 0;
      if (!map->lookup(bytes_of(slot), std::as_writable_bytes(std::span(&id, 1)))) continue;  // empty
      if (!index_.contains(id)) {
        auto program = Program::from_id(id);
        if (!program && program.error().code == Code::kNotFound) continue;  // gone meanwhile
        if (!program || code_.size() == kProgramsFollowed || !add(*program)) return false;
      }
      into.push_back(index_.at(id));
    }
    return true;
  }

  std::vector<std::vector<std::byte>> code_;
  std::map<std::uint32_t, std::size_t> index_;                // by program id
  std::map<std::uint32_t, std::vector<std::size_t>> arrays_;  // by map id
  std::string unread_;
};

}  // namespace

Result<HookShape> hook_shape(CgroupHook hook) {
  const Hook& entry = entry_of(hook);
  std::vector<bpf_insn> code(entry.opening.begin(), entry.opening.end());
  code.insert(code.end(), kSetCca.begin(), kSetCca.end());
  LIBBPF_OPTS(bpf_prog_load_opts, options);
  options.expected_attach_type = static_cast<bpf_attach_type>(attach_type(hook));
  UniqueFd fd(bpf_prog_load(entry.type, "sl_shape", "GPL", code.data(), code.size(), &options));
  if (!fd)
    return fail(libbpf_error(
        errno, fmt::format("cannot load a program for {}, to learn how the kernel rewrites them", to_string(hook))));
  SLUICE_TRY(program, Program::adopt(std::move(fd)));
  SLUICE_TRY(bytes, program.instructions());
  HookShape shape;
  for (const bpf_insn& insn : decoded(bytes)) {
    const unsigned kind = BPF_CLASS(insn.code);
    if (kind == BPF_LDX && insn.src_reg == BPF_REG_6 && !shape.op_offset) shape.op_offset = insn.off;
    if (kind == BPF_STX && insn.dst_reg == BPF_REG_6) shape.reply_offset = insn.off;
    if (insn.code == (BPF_JMP | BPF_CALL)) shape.setsockopt = insn.imm;
  }
  return shape;
}

Result<std::vector<CallbackActs>> acts_of(const Program& program, CgroupHook hook, const HookShape& shape) {
  Family family;
  SLUICE_CHECK(family.add(program));
  std::vector<CallbackActs> list;
  for (const Callback& callback : entry_of(hook).callbacks) {
    CallbackActs at{callback.op, callback.name, {}};
    at.acts = family.acts(shape, shape.op_offset ? std::optional(callback.op) : std::nullopt);
    for (const auto& [map, offset] : at.acts.names_in_maps) {
      if (auto name = name_in_map(map, offset))
        at.acts.cca_names.insert(std::move(*name));
      else
        at.acts.other_cca = true;
    }
    at.acts.names_in_maps.clear();
    const Acts& acts = at.acts;
    if (acts.sets_cca || acts.sets_initial_window || !acts.replies.empty() || acts.other_reply || acts.returns_zero ||
        !acts.unread.empty())
      list.push_back(std::move(at));
  }
  return list;
}

}  // namespace sluice::bpfio
