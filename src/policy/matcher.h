// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The one implementation of "does this match": validation, compile() and explain() all ask here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policy/document.h"

namespace sluice::policy {

// Where the other end of a connection is. An empty place that is not external is unknown.
struct Scope {
  Place place;
  bool external = false;
  sl_locality locality = SL_LOCALITY_UNKNOWN;
};
inline Scope scope_of(const Place& own, const Place& remote, bool external) {
  return {remote, external, locality_of(own, remote, external)};
}

// One bit per entry of a MatchTable.
using Bits = std::vector<std::uint64_t>;

// An ordered list of conditions of which the first that holds decides. A condition asks for a scope (locality, place) and for a
// service; the two are independent, hence two sets of bits and their intersection.
class MatchTable {
 public:
  // `services` as the document orders them; service 0 of the queries is "no service", 1 the first.
  MatchTable(std::vector<const Match*> matches, std::span<const Service> services);

  std::size_t size() const { return matches_.size(); }
  Bits by_scope(const Scope& scope) const;
  const Bits& by_service(std::uint32_t service) const { return by_service_.at(service); }
  static bool test(const Bits& bits, std::size_t index) { return (bits[index / 64] >> index % 64 & 1) != 0; }
  static std::optional<std::size_t> first(const Bits& scope, const Bits& service);
  std::optional<std::size_t> first(const Scope& scope, std::uint32_t service) const {
    return first(by_scope(scope), by_service(service));
  }

 private:
  std::vector<const Match*> matches_;
  std::vector<Bits> by_service_;
};

MatchTable rule_table(const Document& document);
MatchTable override_table(const BundleUse& bundle, std::span<const Service> services);

}  // namespace sluice::policy
