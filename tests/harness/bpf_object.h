// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The harness's own BPF objects (built next to it, loaded, found by name). Not the product's bpfio on purpose: a witness does
// not depend on what it watches.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

struct bpf_object;
struct bpf_map;

namespace sluice::test {

class BpfObject {
 public:
  static Result<BpfObject> open(const std::string& file);  // in the harness's object folder
  Status load();
  BpfObject() = default;
  BpfObject(BpfObject&& other) noexcept;
  BpfObject& operator=(BpfObject&& other) noexcept;
  ~BpfObject();

  Result<int> program(const std::string& name) const;  // descriptor, owned by the object
  Result<bpf_map*> map(const std::string& name) const;
  Result<void*> memory(const std::string& section, std::size_t size);  // maps a loaded data section; owned by the object
  Status clear_array(const std::string& map) const;                    // sets every entry to zero

 private:
  bpf_object* object_ = nullptr;
  std::vector<std::pair<void*, std::size_t>> mappings_;
};

}  // namespace sluice::test
