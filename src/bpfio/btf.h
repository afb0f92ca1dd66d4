// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What type information (BTF) says about a map's value: members by name (parameters), and a hash of the layout (schemas).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "bpfio/map.h"

namespace sluice::bpfio {

struct Member {
  std::string name;
  std::uint32_t offset_bytes = 0;
  std::uint32_t size_bytes = 0;
  bool is_signed = false;  // integers only
};

struct ValueType {
  std::string name;  // of the struct, or of the integer
  std::uint32_t size_bytes = 0;
  std::vector<Member> members;  // empty if the value is not a struct; bit fields are left out
  // FNV-1a over names, types and offsets of all members, nested ones too. Typedefs, const and the spelling of integer types do
  // not count (unsigned int = __u32 = u32), pointers count as pointers only. Same source, same hash, whatever the compiler.
  std::uint64_t hash = 0;

  const Member* find(std::string_view member) const;
};

// Of a map in the kernel; kUnsupported if the map carries no BTF. (Of one in an object file: Object::value_type.)
Result<ValueType> value_type(const MapFd& map);

}  // namespace sluice::bpfio
