// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/matcher.h"

#include <algorithm>
#include <bit>

namespace sluice::policy {
namespace {

constexpr std::size_t kWordBits = 64;

void set(Bits& bits, std::size_t index) { bits[index / kWordBits] |= std::uint64_t{1} << index % kWordBits; }

}  // namespace

MatchTable::MatchTable(std::vector<const Match*> matches, std::span<const Service> services) : matches_(std::move(matches)) {
  std::size_t words = (matches_.size() + kWordBits - 1) / kWordBits;
  by_service_.assign(services.size() + 1, Bits(words, 0));
  for (std::size_t service = 0; service <= services.size(); ++service)
    for (std::size_t i = 0; i < matches_.size(); ++i) {
      const std::vector<std::string>& wanted = matches_[i]->services;
      if (wanted.empty() ||
          (service > 0 && std::find(wanted.begin(), wanted.end(), services[service - 1].name) != wanted.end()))
        set(by_service_[service], i);
    }
}

Bits MatchTable::by_scope(const Scope& scope) const {
  Bits bits((matches_.size() + kWordBits - 1) / kWordBits, 0);
  for (std::size_t i = 0; i < matches_.size(); ++i) {
    const Match& match = *matches_[i];
    if (match.localities != 0 && (match.localities >> scope.locality & 1) == 0) continue;
    if (!match.places.empty() && std::none_of(match.places.begin(), match.places.end(),
                                              [&](const PlacePattern& pattern) { return pattern.matches(scope.place); }))
      continue;
    set(bits, i);
  }
  return bits;
}

std::optional<std::size_t> MatchTable::first(const Bits& scope, const Bits& service) {
  for (std::size_t word = 0; word < scope.size(); ++word)
    if (std::uint64_t both = scope[word] & service[word]; both != 0)
      return word * kWordBits + static_cast<std::size_t>(std::countr_zero(both));
  return std::nullopt;
}

MatchTable rule_table(const Document& document) {
  std::vector<const Match*> matches;
  for (const Rule& rule : document.rules) matches.push_back(&rule.match);
  return {std::move(matches), document.services};
}

MatchTable override_table(const BundleUse& bundle, std::span<const Service> services) {
  std::vector<const Match*> matches;
  for (const Override& item : bundle.overrides) matches.push_back(&item.match);
  return {std::move(matches), services};
}

}  // namespace sluice::policy
