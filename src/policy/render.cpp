// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A document as canonical JSON, and the difference of two for people.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/strings.h"
#include "policy/document.h"

namespace sluice::policy {
namespace {

using Json = nlohmann::ordered_json;

Json place_json(const Place& place) {
  Json out = Json::object();
  if (!place.region.empty()) out["region"] = place.region;
  if (!place.datacenter.empty()) out["datacenter"] = place.datacenter;
  if (!place.rack.empty()) out["rack"] = place.rack;
  return out;
}

Json match_json(const Match& match) {
  Json out = Json::object();
  for (std::size_t i = 0; i < SL_LOCALITY_COUNT; ++i)
    if (match.localities >> i & 1) out["locality"].push_back(kLocalityWords[i]);
  for (const PlacePattern& pattern : match.places) out["place"].push_back(pattern.text());
  if (!match.services.empty()) out["service"] = match.services;
  return out;
}

// Numbers and booleans stay what they are; anything else was text.
Json value_json(const yaml::Node& node) {
  if (!node.quoted) {
    if (node.text == "true") return true;
    if (node.text == "false") return false;
    if (auto number = parse_int<std::uint64_t>(node.text); number && std::to_string(*number) == node.text) return *number;
  }
  return node.text;
}

Json parameters_json(const std::vector<ParameterValue>& list) {
  Json out = Json::object();
  for (const ParameterValue& value : list) out[value.name] = value_json(value.value);
  return out;
}

Json bundle_json(const BundleUse& use) {
  Json out = {{"name", use.ref.name}, {"version", use.ref.version.text()}};
  if (!use.parameters.empty()) out["parameters"] = parameters_json(use.parameters);
  for (const Override& item : use.overrides)
    out["overrides"].push_back({{"match", match_json(item.match)}, {"parameters", parameters_json(item.parameters)}});
  return out;
}

Json service_json(const Service& service) {
  Json out = {{"name", service.name}};
  for (const Prefix& prefix : service.sources) out["sources"].push_back(prefix.text());
  if (!service.cgroups.empty()) out["cgroups"] = service.cgroups;
  if (!service.ports.empty()) out["ports"] = service.ports;
  return out;
}

std::string_view word_of(Application application) { return kApplicationWords[static_cast<std::size_t>(application)]; }

Json rule_json(const Rule& rule) {
  Json out = Json::object();
  if (!rule.name.empty()) out["name"] = rule.name;
  if (Json match = match_json(rule.match); !match.empty()) out["match"] = std::move(match);
  out["use"] = rule.use.text();
  if (rule.init_cwnd != 0) out["init_cwnd"] = rule.init_cwnd;
  if (rule.application != Application::kOverride) out["application"] = word_of(rule.application);
  return out;
}

std::string text_of(const TopologyEntry& entry) { return entry.external ? "external" : entry.place.text(); }

std::string compact(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

class Differ {
 public:
  Differ(const Document* before, const Document& after) : before_(before != nullptr ? *before : empty_), after_(after) {}

  std::vector<Change> run() {
    value("place", before_.place.text(), after_.place.text());
    keyed(
        before_.topology, after_.topology, [](const TopologyEntry& e) { return e.prefix.text(); },
        [](const TopologyEntry& e) { return text_of(e); }, [](const std::string& key) { return "place of " + key; });
    keyed(
        before_.bundles, after_.bundles, [](const BundleUse& b) { return b.ref.text(); }, bundle_detail,
        [](const std::string& key) { return "bundle " + key; });
    keyed(
        before_.services, after_.services, [](const Service& s) { return s.name; },
        [](const Service& s) { return without_name(service_json(s)); },
        [](const std::string& key) { return "service " + key; });
    keyed(before_.rules, after_.rules, rule_key, rule_detail, [](const std::string& key) { return "rule " + key; });
    order("rules", before_.rules, after_.rules, rule_key);
    order("services", before_.services, after_.services, [](const Service& s) { return s.name; });
    value("transitional", before_.transitional ? before_.transitional->text() : "",
          after_.transitional ? after_.transitional->text() : "");
    for (const SysctlRange& sysctl : kSysctls) {
      std::string name(sysctl.name);
      value("sysctl " + name, find(before_.sysctls, name), find(after_.sysctls, name));
    }
    if (before_.options.self_migrate != after_.options.self_migrate)
      value("option self_migrate", before_.options.self_migrate ? "true" : "false",
            after_.options.self_migrate ? "true" : "false");
    return std::move(changes_);
  }

 private:
  const Document empty_;
  const Document& before_;
  const Document& after_;
  std::vector<Change> changes_;

  static std::string find(const std::map<std::string, std::string>& map, const std::string& key) {
    auto it = map.find(key);
    return it == map.end() ? "" : it->second;
  }
  static std::string without_name(Json json) {
    json.erase("name");
    return compact(json);
  }
  static std::string bundle_detail(const BundleUse& use) {
    Json json = bundle_json(use);
    json.erase("name");
    json.erase("version");
    return json.empty() ? "default parameters" : compact(json);
  }
  // A rule is the same rule as long as its name, or without one what it matches, is the same.
  static std::string rule_key(const Rule& rule) {
    return rule.name.empty() ? fmt::format("for {}", rule.match.text()) : rule.name;
  }
  static std::string rule_detail(const Rule& rule) {
    std::string out = rule.use.text();
    if (!rule.name.empty()) out += fmt::format(" for {}", rule.match.text());
    if (rule.init_cwnd != 0) out += fmt::format(", init_cwnd {}", rule.init_cwnd);
    if (rule.application != Application::kOverride) out += fmt::format(", application {}", word_of(rule.application));
    return out;
  }

  void value(std::string subject, const std::string& was, const std::string& is) {
    if (was == is) return;
    if (was.empty())
      changes_.push_back({Change::Kind::kAdded, std::move(subject), is});
    else if (is.empty())
      changes_.push_back({Change::Kind::kRemoved, std::move(subject), was});
    else
      changes_.push_back({Change::Kind::kChanged, std::move(subject), was + " -> " + is});
  }

  template <class T, class Key, class Detail, class Subject>
  void keyed(const std::vector<T>& before, const std::vector<T>& after, Key key, Detail detail, Subject subject) {
    std::map<std::string, std::string> was, is;
    for (const T& item : before) was.emplace(key(item), detail(item));
    for (const T& item : after) is.emplace(key(item), detail(item));
    for (const T& item : before)
      if (is.count(key(item)) == 0) value(subject(key(item)), was[key(item)], "");
    for (const T& item : after) value(subject(key(item)), find(was, key(item)), is[key(item)]);
  }

  // Order decides which of two wins; what was added or removed in between does not count.
  template <class T, class Key>
  void order(std::string_view what, const std::vector<T>& before, const std::vector<T>& after, Key key) {
    std::set<std::string> was, is;
    for (const T& item : before) was.insert(key(item));
    for (const T& item : after) is.insert(key(item));
    std::vector<std::string> old_order, new_order;
    for (const T& item : before)
      if (is.count(key(item)) != 0) old_order.push_back(key(item));
    for (const T& item : after)
      if (was.count(key(item)) != 0) new_order.push_back(key(item));
    if (old_order != new_order)
      changes_.push_back({Change::Kind::kChanged, fmt::format("order of {}", what),
                          fmt::format("{} -> {}", fmt::join(old_order, "; "), fmt::join(new_order, "; "))});
  }
};

}  // namespace

std::string to_json(const Document& document) {
  Json out = {{"apiVersion", "sluice/v1"}, {"kind", "Host"}, {"place", place_json(document.place)}};
  for (const TopologyEntry& entry : document.topology) {
    Json json = {{"prefix", entry.prefix.text()}};
    if (entry.external)
      json["external"] = true;
    else
      json.update(place_json(entry.place));
    out["topology"].push_back(std::move(json));
  }
  for (const BundleUse& use : document.bundles) out["bundles"].push_back(bundle_json(use));
  for (const Service& service : document.services) out["services"].push_back(service_json(service));
  for (const Rule& rule : document.rules) out["rules"].push_back(rule_json(rule));
  if (document.transitional) out["transitional"] = document.transitional->text();
  for (const auto& [name, value] : document.sysctls) out["sysctls"][name] = *parse_int<std::uint64_t>(value);
  out["options"] = {{"self_migrate", document.options.self_migrate}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string Change::text() const {
  static constexpr char kSigns[] = {'+', '-', '~'};
  std::string out = fmt::format("{} {}", kSigns[static_cast<int>(kind)], subject);
  return detail.empty() ? out : out + ": " + detail;
}

std::vector<Change> diff(const Document* before, const Document& after) { return Differ(before, after).run(); }

}  // namespace sluice::policy
