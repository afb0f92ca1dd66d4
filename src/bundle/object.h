// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A BPF object file as lint sees it: sections, helper calls, maps, struct_ops values and the types of its own BTF. Reads with
// libelf, loads nothing, and trusts no offset or length of the file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::bundle {

struct HelperCall {
  std::string section;
  std::string function;      // symbol that holds the instruction; "" = unknown
  std::uint64_t offset = 0;  // bytes into the section
  std::uint32_t helper = 0;  // enum bpf_func_id
  // Constants last moved into r2 and r3 before the call on the straight line that leads to it, when there are such.
  std::optional<std::int32_t> r2, r3;
};

struct StructOps {
  std::string variable;
  std::string type;  // "tcp_congestion_ops"
  bool link = false;
  std::map<std::string, std::string> programs;  // member -> program
  std::string name;                             // initial value of member `name`
  std::uint32_t flags = 0;                      // of member `flags`
};

struct Member {
  std::string name;
  std::uint32_t offset = 0;  // bytes
  std::uint32_t size = 0;    // bytes; 0 = not known
};

struct ObjectInfo {
  bool has_btf = false;
  std::string license;
  std::vector<HelperCall> calls;
  std::vector<StructOps> struct_ops;
  std::vector<std::string> maps;
  std::vector<std::string> functions;                     // global and static programs and subprograms
  std::map<std::string, std::vector<Member>> map_values;  // map -> members of its value, when that is a struct
  std::map<std::string, std::uint32_t> rodata;            // variable -> size in bytes
};

Result<ObjectInfo> read_object(const std::string& path);

}  // namespace sluice::bundle
