// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Policy document -> contents of the selection pipeline's maps (sluice/abi/policy.h). Pure and deterministic: the same input
// gives the same tables, byte for byte.
#pragma once

#include <sluice/abi/cca.h>
#include <sluice/abi/policy.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "bundle/manifest.h"
#include "policy/document.h"

namespace sluice::policy {

using ParamValues = std::map<std::string, std::uint64_t>;  // name -> value, as the bundle's sl_params holds it

// Entries of each bundle's sl_params that must not change: those of the published generation and those that sockets still use.
// The agent keeps what compile() returned and drops an index when nobody uses it any more.
using ParamAllocation = std::map<bundle::BundleRef, std::map<std::uint32_t, ParamValues>>;

struct CompileInput {
  Manifests manifests;
  std::uint64_t generation = 1;
  std::string instance;                          // part of kernel names; "" = the default agent
  std::map<std::string, std::uint64_t> cgroups;  // path -> cgroup2 id; a path not in it is a warning
  ParamAllocation in_use;
  std::set<bundle::BundleRef> rolled_back;  // replaced by the transitional CCA, whatever the rules say
};

struct CompiledBundle {
  bundle::BundleRef ref;
  std::string kernel_name;
  bool needs_ecn = false;
  bool transitional = false;
  bool selected = false;                        // some verdict names it, as CCA or fallback, or listeners carry it
  bool rolled_back = false;                     // no verdict names it, although a rule does
  ParamValues load_values;                      // `when: load`: .rodata, fixed once loaded
  std::uint32_t global_params = 0;              // entry that holds the global values
  std::map<std::uint32_t, ParamValues> params;  // entries to write: all that this policy uses (`when: live`)
};

struct PlaceInfo {
  Place place;
  bool external = false;
  sl_locality locality = SL_LOCALITY_UNKNOWN;
  std::uint16_t place_class = 0;
  std::string text() const;  // "eu/eu1/r1", "external", "unknown"
};

struct Compiled {
  // Table contents. IPv4 as IPv4-mapped IPv6.
  std::vector<std::pair<sl_prefix, sl_place>> places;
  std::vector<std::pair<sl_prefix, sl_service_id>> sources;
  std::vector<std::pair<sl_service_key, sl_service_id>> services;
  std::vector<std::pair<sl_rule_key, sl_verdict>> rules;
  sl_generation generation{};

  std::vector<CompiledBundle> bundles;  // all that the document lists, in its order
  ParamAllocation params;               // in_use and what this policy adds: the next compile's in_use
  std::string transitional;             // effective target, "cubic@1.0.0"; "" = none
  std::map<std::string, std::string> sysctls;

  // id -> what it is, for reports.
  std::vector<PlaceInfo> place_info;       // [0] = unknown
  std::vector<std::string> service_names;  // [0] = ""
  std::vector<std::string> rule_labels;    // [0] = "none"
  std::uint32_t place_classes = 0;

  // Cgroups the host does not have (compile again when they appear), rules that no place reaches.
  std::vector<yaml::Problem> warnings;
  std::set<std::string> missing_cgroups;

  const CompiledBundle* bundle_of(std::string_view kernel_name) const;  // nullptr = a native CCA
};

Result<Compiled> compile(const Document& document, const CompileInput& input);

// What a connection gets and why; from the same matching code as compile().
struct Query {
  Prefix remote;  // a host prefix
  std::optional<Prefix> local;
  std::uint16_t port = 0;  // local; 0 = not known
  std::string cgroup;      // path; "" = not known
};
struct Explanation {
  std::uint32_t place_id = 0;
  std::string place;  // "eu/eu1/r1", "external", "unknown"
  sl_locality locality = SL_LOCALITY_UNKNOWN;
  std::uint32_t service_id = 0;
  std::string service;  // "" = none
  std::uint32_t rule_id = 0;
  std::string rule;    // label
  std::string target;  // "cubic@1.0.0"
  std::string cca;     // TCP_CONGESTION name
  bool needs_ecn = false;
  std::string fallback;  // without ECN; "" = none
  std::uint32_t params = 0;
  ParamValues parameters;
  std::uint16_t init_cwnd_segments = 0;
  std::vector<std::string> why;  // one step a line
};
Result<Explanation> explain(const Document& document, const Compiled& compiled, const Query& query);

}  // namespace sluice::policy
