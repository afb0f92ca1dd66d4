// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bundle `policy` in the kernel: its maps, programs and links as pins below policy/, and what is done through them.
//
//   policy/maps/NAME       shared maps (bpf/include/sluice/bpf/maps.bpf.h)
//   policy/iter/NAME       iterator links
//   policy/programs/NAME   sockops programs
//   policy/link/sockops    the attachment
//   policy/ready/DIGEST    pinned last, removed first: what stands without it is debris of a load that was cut short
#pragma once

#include <sluice/abi/policy.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "bpfio/iterator.h"
#include "bpfio/map.h"
#include "bpfio/object.h"
#include "bpfio/pin.h"
#include "bundle/catalog.h"
#include "policy/compile.h"

namespace sluice::agent {

class PinnedPolicy {
 public:
  // What the bundle's first object, the pipeline, consists of.
  struct Shape {
    std::map<std::string, bpfio::MapSpec> tables;  // how those of a generation look
    std::vector<std::string> maps, programs;
  };

  // `bundle` is the policy bundle this agent came with.
  PinnedPolicy(const bpfio::PinRoot& pins, const bundle::Bundle& bundle, const Shape& shape, std::string log_dir)
      : pins_(pins), bundle_(bundle), shape_(shape), log_dir_(std::move(log_dir)) {}

  // Read once, at start, because files change under an agent.
  static Result<Shape> read_shape(const bundle::Bundle& bundle);

  // Digest of what is pinned; nullopt when the pins cannot be used: nothing complete, or a map is gone that others share.
  Result<std::optional<std::string>> loaded_digest() const;
  // Pins of this agent's pipeline that somebody took away. Those that no other program shares are made anew by load().
  Result<std::vector<std::string>> missing() const;
  static std::string digest_of(const bundle::Bundle& bundle);

  // Loads and pins; over an older version it keeps the maps and swaps the programs without a gap.
  Status load();
  Status unload();
  Status attach(const std::string& cgroup);
  Status detach();
  struct Attachment {
    bpfio::CgroupHook hook;
    std::string_view name;                // "sockops"
    std::optional<bpfio::LinkInfo> link;  // nullopt: the hook is not ours now
    std::string why;                      // that it is not
  };
  // Of all our hooks.
  Result<std::vector<Attachment>> attachments(const std::string& cgroup) const;

  Result<uint64_t> generation() const;
  Status publish(uint64_t generation);
  Status write_generation(const policy::Compiled& compiled);

  Status set_cca_id(const std::string& kernel_name, uint32_t map_id);
  Result<uint32_t> cca_id(const std::string& kernel_name) const;  // 0 = not known
  Status forget_cca_id(const std::string& kernel_name);

  Result<bpfio::MapFd> map(const std::string& name) const;
  Result<std::vector<std::string>> map_names() const;
  Result<bpfio::Link> iterator(const std::string& name) const;

  // Refuses an object that was built for another version of a shared map than the pinned one: of what its manifest declares,
  // and of the layout of every map with a contract that it has. Both sides are named.
  Status check_contracts(const std::string& id, const std::vector<bundle::SharedMap>& declared,
                         const bpfio::Object& object) const;

 private:
  Status detach(const std::string& pin);
  Status load_fresh(const std::string& digest);
  Status replace_programs(const std::string& digest);
  Status load_objects(const std::vector<std::string>& replaced);
  Status mark_ready(const std::string& digest);
  Status take_programs(const bpfio::Object& object);
  Result<bpfio::Map<uint32_t, sl_schema_entry>> schemas() const;
  Status write_schemas(const bpfio::Object& object);
  // Can the programs of `object` go on with the maps that are pinned? Changes nothing.
  Status check_takeover(bpfio::Object& object) const;

  const bpfio::PinRoot& pins_;
  const bundle::Bundle& bundle_;
  const Shape& shape_;
  std::string log_dir_;
};

}  // namespace sluice::agent
