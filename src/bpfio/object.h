// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A BPF object file on its way into the kernel: open -> configure -> load -> take programs, maps and links -> drop.
//
// What is taken (Program, MapFd, Link) has descriptors of its own, so an Object can go as soon as it has been loaded. It pins
// nothing and attaches nothing by itself. LIBBPF_PIN_BY_NAME in an object is ignored: sharing is explicit, by reuse_map().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "bpfio/btf.h"
#include "bpfio/link.h"
#include "bpfio/map.h"
#include "bpfio/program.h"

struct bpf_object;

namespace sluice::bpfio {

struct LoadOptions {
  std::string log_dir;  // a verifier's refusal is saved here as verifier-<object>-<program>.log; empty = not saved
};

class Object {
 public:
  static Result<Object> open_file(const std::string& path);
  static Result<Object> open_memory(std::span<const std::byte> elf, const std::string& name);

  const std::string& name() const { return name_; }
  std::vector<std::string> program_names() const;
  std::vector<std::string> map_names() const;         // those that the source names; not .rodata, .bss, ...
  std::vector<std::string> struct_ops_names() const;  // the struct_ops maps among them

  // --- before load(); kNotFound for a name that the object does not have ---
  // A `const volatile` global. The size must be the variable's.
  Status set_rodata(std::string_view variable, std::span<const std::byte> value);
  template <class T>
  Status set_rodata(std::string_view variable, const T& value) {
    return set_rodata(variable, bytes_of(value));
  }
  // tcp_congestion_ops.name: at most 15 characters of [A-Za-z0-9_.].
  Status set_struct_ops_name(const std::string& map, std::string_view name);
  Result<std::string> struct_ops_name(const std::string& map) const;
  // The object's map becomes that one: kConflict if type, sizes or flags differ; its number
  // of entries holds.
  Status reuse_map(const std::string& map, const MapFd& existing);
  Status set_max_entries(const std::string& map, std::uint32_t max_entries);
  Status set_value_size(const std::string& map, std::uint32_t bytes);
  // Left out: the program is not verified, the map not created.
  Status set_autoload(const std::string& program, bool load);
  Status set_autocreate(const std::string& map, bool create);
  // How the inner maps of a map-in-map look (known before load() only: libbpf drops the prototype then).
  Result<MapSpec> inner_spec(const std::string& outer_map) const;

  // All or nothing. A refusal of the verifier is kInvalid: `what` holds its last meaningful line, `detail` the log, `remedy`
  // the file where it was saved.
  Status load(const LoadOptions& options = {});

  // --- after load() ---
  Result<Program> program(const std::string& program) const;
  Result<MapFd> map(const std::string& map) const;
  // Registers a `.struct_ops.link` map: from here on its name can be chosen by TCP_CONGESTION, until the link goes.
  // kConflict if the name is taken.
  Result<Link> attach_struct_ops(const std::string& map) const;

  // --- at any time ---
  Result<ValueType> value_type(const std::string& map) const;

 private:
  struct Close {
    void operator()(bpf_object* object) const;
  };
  Object(bpf_object* object, std::string name);
  std::unique_ptr<bpf_object, Close> object_;
  std::string name_;
};

// The line of a verifier log that says why: the last one that is neither an instruction, a register state nor statistics.
std::string last_verifier_line(std::string_view log);

}  // namespace sluice::bpfio
