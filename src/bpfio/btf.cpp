// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/btf.h"

#include <bpf/btf.h>
#include <bpf/libbpf.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/file.h"
#include "base/hash.h"
#include "bpfio/kernel_btf.h"

namespace sluice::bpfio {
namespace {

// Deeper nesting than this is no map value of ours; also ends the walk over malformed information.
constexpr int kDepthMax = 16;

std::uint32_t strip(const btf* types, std::uint32_t id) {
  for (int depth = 0; depth < kDepthMax; depth++) {
    const btf_type* type = btf__type_by_id(types, id);
    if (type == nullptr || !(btf_is_mod(type) || btf_is_typedef(type) || btf_is_type_tag(type))) break;
    id = type->type;
  }
  return id;
}

const char* name_of(const btf* types, const btf_type* type) {
  const char* name = btf__name_by_offset(types, type->name_off);
  return name == nullptr ? "" : name;
}

bool hash_type(const btf* types, std::uint32_t id, int depth, std::uint64_t& hash) {
  const std::uint32_t stripped = strip(types, id);
  const btf_type* type = btf__type_by_id(types, stripped);
  if (type == nullptr || depth > kDepthMax) return false;
  const std::uint16_t kind = btf_kind(type);
  hash = fnv1a64(std::uint64_t{kind}, hash);
  switch (kind) {
    case BTF_KIND_PTR:
    case BTF_KIND_UNKN:
      return true;
    case BTF_KIND_INT:
      hash = fnv1a64(std::uint64_t{type->size}, hash);
      // Bit 0 is signedness; "char" and "bool" are spelling.
      hash = fnv1a64(std::uint64_t{(btf_int_encoding(type) & BTF_INT_SIGNED) != 0}, hash);
      return true;
    case BTF_KIND_ENUM:
    case BTF_KIND_ENUM64:
    case BTF_KIND_FLOAT:
    case BTF_KIND_FWD:
      hash = fnv1a64(std::uint64_t{type->size}, fnv1a64(name_of(types, type), hash));
      return true;
    case BTF_KIND_ARRAY: {
      const auto* array = ::btf_array(type);
      hash = fnv1a64(std::uint64_t{array->nelems}, hash);
      return hash_type(types, array->type, depth + 1, hash);
    }
    case BTF_KIND_STRUCT:
    case BTF_KIND_UNION: {
      hash = fnv1a64(std::uint64_t{type->size}, fnv1a64(name_of(types, type), hash));
      const btf_member* members = btf_members(type);
      for (std::uint32_t i = 0; i < btf_vlen(type); i++) {
        const char* name = btf__name_by_offset(types, members[i].name_off);
        hash = fnv1a64(name == nullptr ? "" : name, hash);
        hash = fnv1a64(std::uint64_t{btf_member_bit_offset(type, i)}, hash);
        hash = fnv1a64(std::uint64_t{btf_member_bitfield_size(type, i)}, hash);
        if (!hash_type(types, members[i].type, depth + 1, hash)) return false;
      }
      return true;
    }
    default:
      return false;
  }
}

struct FreeBtf {
  void operator()(btf* types) const { btf__free(types); }
};
using OwnedBtf = std::unique_ptr<btf, FreeBtf>;

}  // namespace

const Member* ValueType::find(std::string_view member) const {
  for (const Member& candidate : members)
    if (candidate.name == member) return &candidate;
  return nullptr;
}

Result<ValueType> describe_type(const btf* types, std::uint32_t type_id) {
  const btf_type* type = btf__type_by_id(types, strip(types, type_id));
  if (type_id == 0 || type == nullptr) return fail(Code::kUnsupported, "no type information");
  ValueType described;
  described.name = name_of(types, type);
  const auto size = btf__resolve_size(types, type_id);
  if (size < 0) return fail(Code::kCorrupt, "the type {} has no size", described.name);
  described.size_bytes = static_cast<std::uint32_t>(size);
  described.hash = kFnvOffset;
  if (!hash_type(types, type_id, 0, described.hash))
    return fail(Code::kUnsupported, "the type {} holds what no map value should", described.name);
  if (!btf_is_struct(type)) return described;
  const btf_member* members = btf_members(type);
  for (std::uint32_t i = 0; i < btf_vlen(type); i++) {
    if (btf_member_bitfield_size(type, i) != 0) continue;
    Member member;
    if (const char* name = btf__name_by_offset(types, members[i].name_off)) member.name = name;
    member.offset_bytes = btf_member_bit_offset(type, i) / 8;
    const auto member_size = btf__resolve_size(types, members[i].type);
    if (member_size < 0) return fail(Code::kCorrupt, "{}.{} has no size", described.name, member.name);
    member.size_bytes = static_cast<std::uint32_t>(member_size);
    const btf_type* plain = btf__type_by_id(types, strip(types, members[i].type));
    member.is_signed = btf_is_int(plain) && (btf_int_encoding(plain) & BTF_INT_SIGNED) != 0;
    described.members.push_back(std::move(member));
  }
  return described;
}

Result<ValueType> value_type(const MapFd& map) {
  const MapInfo& info = map.info();
  if (info.btf_id == 0 || info.btf_value_type_id == 0)
    return fail(fail(Code::kUnsupported, "no type information").value().at("map " + info.name));
  OwnedBtf types(btf__load_from_kernel_by_id(info.btf_id));
  if (!types) return fail(libbpf_error(errno, "cannot read its type information").at("map " + info.name));
  auto described = describe_type(types.get(), info.btf_value_type_id);
  if (!described) return fail(std::move(described).error().at("map " + info.name));
  return described;
}

Result<const btf*> kernel_btf() {
  static std::mutex mutex;
  static OwnedBtf loaded;
  const std::lock_guard lock(mutex);
  if (loaded) return loaded.get();
  loaded.reset(btf__load_vmlinux_btf());
  if (loaded) return loaded.get();
  Error error = libbpf_error(errno, "cannot read the kernel's type information").at("/sys/kernel/btf/vmlinux");
  if (error.code == Code::kExhausted) return fail(std::move(error));  // the next call may find what this one lacked
  error.feature = "btf";
  error.min_kernel = "5.4";
  if (error.code == Code::kNotFound) error.code = Code::kUnsupported;
  return fail(std::move(error).fix("use a kernel built with CONFIG_DEBUG_INFO_BTF"));
}

Error libbpf_error(int err, std::string what) {
  err = std::abs(err);
  if (err < __LIBBPF_ERRNO__START) return fail_errno(err, "{}", what).value();
  char text[128];
  libbpf_strerror(err, text, sizeof(text));
  return fail(Code::kInvalid, "{}: {}", what, text).value();
}

Status expect_kind(int fd, FdKind kind) {
  struct Kind {
    std::string_view name;
    std::string_view inode, inode_too;
  };
  // A link's descriptor is spelled one way where it was created and the other where it was opened by id or pin.
  static constexpr Kind kKinds[] = {{"map", "anon_inode:bpf-map", {}},
                                    {"program", "anon_inode:bpf-prog", {}},
                                    {"link", "anon_inode:bpf_link", "anon_inode:bpf-link"}};
  const Kind& wanted = kKinds[static_cast<std::size_t>(kind)];
  SLUICE_TRY(target, read_link(fmt::format("/proc/self/fd/{}", fd)));
  if (target == wanted.inode || target == wanted.inode_too) return {};
  return fail(Code::kConflict, "is not a BPF {} but {}", wanted.name, target);
}

}  // namespace sluice::bpfio
