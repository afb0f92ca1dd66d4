// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Correcting single sockets from user space, through the descriptors that processes hold: the way for namespaces with a handful
// of sockets, because the kernel's own walk costs 2.3 ms a namespace however empty it is (docs/design/0003-many-namespaces.md).
//
// The decision is the one of bpf/include/sluice/bpf/select.bpf.h, read from the same maps; a test holds the two together.
#pragma once

#include <sluice/abi/policy.h>
#include <sluice/abi/report.h>

#include <map>
#include <set>
#include <string>

#include "agent/pinned_policy.h"
#include "base/result.h"
#include "bpfio/map.h"

namespace sluice::agent {

class HeldSockets {
 public:
  // Reads the published generation; valid until another one is published.
  static Result<HeldSockets> open(const PinnedPolicy& policy, const std::string& cgroup2);

  // Makes one socket right, as sl_iter_migrate does; its enum sl_outcome, -errno in `error` with SL_OUTCOME_SET_FAILED.
  // kNotFound when the socket or its holder is gone, kUnavailable when only a walk can do it.
  Result<sl_outcome> correct(const sl_file& file, bool dry_run, int& error) const;

  // Does any verdict, or the listeners' choice, name this CCA?
  bool selects(const std::string& cca) const { return selected_.contains(cca); }

  struct Choice {
    std::string cca;  // empty = leave it alone
    uint32_t map_id = 0;
  };
  // kNotFound when no rule covers the socket.
  Result<Choice> choose(const sl_report& socket) const;

 private:
  using Places = bpfio::Map<sl_prefix, sl_place>;
  using Sources = bpfio::Map<sl_prefix, sl_service_id>;
  using Services = bpfio::Map<sl_service_key, sl_service_id>;
  using Rules = bpfio::Map<sl_rule_key, sl_verdict>;

  HeldSockets(sl_generation generation, Places places, Sources sources, Services services, Rules rules,
              std::map<std::string, uint32_t> ids, std::set<std::string> selected, std::string cgroup2)
      : generation_(generation),
        places_(std::move(places)),
        sources_(std::move(sources)),
        services_(std::move(services)),
        rules_(std::move(rules)),
        ids_(std::move(ids)),
        selected_(std::move(selected)),
        cgroup2_(std::move(cgroup2)) {}

  Result<uint32_t> service_of(const sl_report& socket) const;

  sl_generation generation_;
  Places places_;
  Sources sources_;
  Services services_;
  Rules rules_;
  std::map<std::string, uint32_t> ids_;  // CCA name -> struct_ops map id; absent = native
  std::set<std::string> selected_;
  std::string cgroup2_;
};

}  // namespace sluice::agent
