// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// YAML to Document, and what can be said about a document without knowing any bundle.
#include "policy/document.h"

#include <algorithm>
#include <set>

#include "base/strings.h"
#include "policy/matcher.h"

namespace sluice::policy {
namespace {

using yaml::Mark;
using yaml::Node;

constexpr std::size_t kRulesMax = 4096;
constexpr std::size_t kServicesMax = 1024;
constexpr std::size_t kBundlesMax = 256;
constexpr std::size_t kTopologyMax = 1'000'000;
constexpr std::uint64_t kInitCwndMax = 1000;

bool valid_name(std::string_view name) {
  return !name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  });
}
constexpr std::string_view kNameRemedy = "use 1 to 63 characters of A-Z, a-z, 0-9, '_', '-' and '.'";

bool valid_cgroup(std::string_view path) {
  if (path.empty() || path[0] != '/' || path.size() > 1024) return false;
  if (path.size() == 1) return true;
  for (std::string_view part : split(path.substr(1), '/'))
    if (part.empty() || part == "." || part == "..") return false;
  return std::all_of(path.begin(), path.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
}

class DocumentReader {
 public:
  DocumentReader(std::string_view source, yaml::Problems& problems)
      : problems_(problems), reader_(std::string(source), problems) {}

  Document read(const Node& root) {
    if (!reader_.map(root, "the policy", kDocumentKeys)) return std::move(document_);
    fixed_word(root, "apiVersion", "sluice/v1");
    fixed_word(root, "kind", "Host");
    if (const Node* node = reader_.required(root, "place", "the policy"))
      if (reader_.map(*node, "'place'", kPlaceKeys)) document_.place = place(*node, "'place'", true);
    if (const Node* node = root.find("topology")) topology(*node);
    if (const Node* node = root.find("services")) services(*node);
    if (const Node* node = root.find("bundles")) bundles(*node);
    if (const Node* node = reader_.required(root, "rules", "the policy")) rules(*node);
    if (const Node* node = root.find("transitional")) transitional(*node);
    if (const Node* node = root.find("sysctls")) sysctls(*node);
    if (const Node* node = root.find("options"))
      if (reader_.map(*node, "'options'", kOptionKeys))
        if (const Node* flag = node->find("self_migrate"))
          if (auto value = reader_.boolean(*flag, "'options.self_migrate'")) document_.options.self_migrate = *value;

    // What the parts mean together is judged only when each is right: problems that follow from others help nobody.
    overlaps();
    if (problems_.empty()) reachability();
    if (problems_.empty()) coverage();
    return std::move(document_);
  }

 private:
  yaml::Problems& problems_;
  yaml::Reader reader_;
  Document document_;

  template <class T>
  void take(Mark mark, const Result<T>& result, T& out) {
    if (result)
      out = *result;
    else
      reader_.problem(mark, result.error().what, result.error().remedy);
  }

  void fixed_word(const Node& root, std::string_view key, std::string_view word) {
    const Node* node = root.find(key);
    if (node == nullptr)
      reader_.problem(root.mark, fmt::format("the policy has no '{}'", key), fmt::format("add '{}: {}'", key, word));
    else
      reader_.choice(*node, fmt::format("'{}'", key), {&word, 1});
  }

  std::optional<std::string> name(const Node& node, std::string_view what) {
    auto text = reader_.text(node, what);
    if (text && !valid_name(*text)) {
      reader_.problem(node.mark, fmt::format("{} is '{}'", what, text->substr(0, 60)), std::string(kNameRemedy));
      return std::nullopt;
    }
    return text;
  }

  Place place(const Node& node, const std::string& what, bool required) {
    Place out;
    const Node* region = required ? reader_.required(node, "region", what) : node.find("region");
    const Node* datacenter = node.find("datacenter");
    const Node* rack = node.find("rack");
    if (region != nullptr) out.region = name(*region, what + ": 'region'").value_or("");
    if (datacenter != nullptr) out.datacenter = name(*datacenter, what + ": 'datacenter'").value_or("");
    if (rack != nullptr) {
      if (datacenter == nullptr)
        reader_.problem(rack->mark, fmt::format("{} names a rack without its datacenter", what), "add 'datacenter: ...'");
      else
        out.rack = name(*rack, what + ": 'rack'").value_or("");
    }
    return out;
  }

  // A prefix without host bits.
  std::optional<Prefix> network(const Node& node, std::string_view what) {
    auto text = reader_.text(node, what);
    if (!text) return std::nullopt;
    auto prefix = parse_prefix(*text);
    if (!prefix) {
      reader_.problem(node.mark, fmt::format("{}: {}", what, prefix.error().what), prefix.error().remedy);
      return std::nullopt;
    }
    if (prefix->network() != *prefix) {
      reader_.problem(node.mark, fmt::format("{} {} has host bits set", what, *text),
                      fmt::format("write the network {}, or the host {}/{}", prefix->network().text(),
                                  text->substr(0, text->find('/')), prefix->ipv4() ? 32 : 128));
      return std::nullopt;
    }
    return *prefix;
  }

  std::span<const Node> limited_list(const Node& node, std::string_view what, std::size_t max) {
    std::span<const Node> items = reader_.list(node, what);
    if (items.size() <= max) return items;
    reader_.problem(node.mark, fmt::format("{} has {} items, more than {}", what, items.size(), max), "merge some of them");
    return items.first(max);
  }

  void topology(const Node& node) {
    std::span<const Node> items = limited_list(node, "'topology'", kTopologyMax);
    document_.topology.reserve(items.size());
    for (const Node& item : items) {
      if (!reader_.map(item, "a topology entry", kTopologyKeys)) continue;
      TopologyEntry entry;
      entry.mark = item.mark;
      const Node* prefix = reader_.required(item, "prefix", "a topology entry");
      if (prefix == nullptr) continue;
      entry.mark = prefix->mark;
      auto value = network(*prefix, "prefix");
      if (const Node* external = item.find("external"))
        if (auto flag = reader_.boolean(*external, "'external'")) entry.external = *flag;
      if (entry.external) {
        for (std::string_view key : kPlaceKeys)
          if (const Node* part = item.find(key))
            reader_.problem(part->mark, fmt::format("an external prefix has no {}", key),
                            fmt::format("drop '{}' or 'external'", key));
      } else {
        entry.place = place(item, "a topology entry", true);
      }
      if (!value || (!entry.external && entry.place.empty())) continue;
      entry.prefix = *value;
      document_.topology.push_back(std::move(entry));
    }
  }

  void services(const Node& node) {
    std::set<std::string> names;
    for (const Node& item : limited_list(node, "'services'", kServicesMax)) {
      if (!reader_.map(item, "a service", kServiceKeys)) continue;
      Service service;
      service.mark = item.mark;
      if (const Node* field = reader_.required(item, "name", "a service"))
        if (auto text = name(*field, "a service's 'name'")) {
          service.name = *text;
          if (!names.insert(*text).second)
            reader_.problem(field->mark, fmt::format("service '{}' is defined twice", *text), "rename or merge them");
        }
      if (const Node* field = item.find("sources"))
        for (const Node& source : reader_.list(*field, "'sources'"))
          if (auto prefix = network(source, "source")) {
            if (std::find(service.sources.begin(), service.sources.end(), *prefix) != service.sources.end())
              reader_.problem(source.mark, fmt::format("source {} is listed twice", prefix->text()), "keep one");
            service.sources.push_back(*prefix);
          }
      if (const Node* field = item.find("cgroups"))
        for (const Node& cgroup : reader_.list(*field, "'cgroups'")) {
          auto text = reader_.text(cgroup, "a cgroup");
          if (text && !valid_cgroup(*text))
            reader_.problem(
                cgroup.mark, fmt::format("'{}' is not a cgroup path", text->substr(0, 60)),
                "write the path below the cgroup2 root, such as /system.slice/web.service, without a '/' at its end");
          else if (text)
            service.cgroups.push_back(*text);
        }
      if (const Node* field = item.find("ports"))
        for (const Node& port : reader_.list(*field, "'ports'"))
          if (auto number = reader_.number(port, "a port", 1, 65535))
            service.ports.push_back(static_cast<std::uint16_t>(*number));
      if (service.sources.empty() && service.cgroups.empty() && service.ports.empty())
        reader_.problem(item.mark,
                        fmt::format("service '{}' has no sources, cgroups or ports: nothing can belong to it", service.name),
                        "add 'sources', 'cgroups' or 'ports'");
      document_.services.push_back(std::move(service));
    }
  }

  Match match(const Node& node) {
    Match out;
    if (!reader_.map(node, "'match'", kMatchKeys)) return out;
    if (const Node* field = node.find("locality"))
      for (const Node& item : reader_.one_or_more(*field, "'locality'"))
        if (auto index = reader_.choice(item, "a locality", kLocalityWords)) out.localities |= 1u << *index;
    if (const Node* field = node.find("place"))
      for (const Node& item : reader_.one_or_more(*field, "'place'")) pattern(item, out);
    if (const Node* field = node.find("service"))
      for (const Node& item : reader_.one_or_more(*field, "'service'")) {
        auto text = reader_.text(item, "a service");
        if (!text) continue;
        std::vector<std::string_view> known;
        for (const Service& service : document_.services) known.push_back(service.name);
        if (std::find(known.begin(), known.end(), *text) == known.end())
          reader_.problem(item.mark,
                          fmt::format("unknown service '{}'{}", text->substr(0, 60), yaml::did_you_mean(*text, known)),
                          "define it in 'services'");
        else if (std::find(out.services.begin(), out.services.end(), *text) == out.services.end())
          out.services.push_back(*text);
      }
    return out;
  }

  void pattern(const Node& node, Match& out) {
    auto text = reader_.text(node, "a place");
    if (!text) return;
    std::vector<std::string_view> parts = split(*text, '/');
    bool valid = !parts.empty() && parts.size() <= 3 &&
                 std::all_of(parts.begin(), parts.end(), [](std::string_view part) { return part == "*" || valid_name(part); });
    if (!valid) {
      reader_.problem(node.mark, fmt::format("'{}' is not a place", text->substr(0, 60)),
                      "write REGION, REGION/DATACENTER or REGION/DATACENTER/RACK; '*' stands for any");
      return;
    }
    PlacePattern pattern;
    pattern.parts.region = parts[0];
    if (parts.size() > 1) pattern.parts.datacenter = parts[1];
    if (parts.size() > 2) pattern.parts.rack = parts[2];
    out.places.push_back(std::move(pattern));
  }

  std::vector<ParameterValue> parameters(const Node& node) {
    std::vector<ParameterValue> out;
    if (node.kind == Node::Kind::kNull) return out;
    if (node.kind != Node::Kind::kMap) {
      reader_.problem(node.mark, "'parameters' must be a map", "write {name: value, ...}");
      return out;
    }
    for (const yaml::Entry& entry : node.entries) {
      if (!valid_name(entry.key))
        reader_.problem(entry.mark, fmt::format("'{}' is not the name of a parameter", entry.key.substr(0, 60)),
                        std::string(kNameRemedy));
      else if (entry.value.kind != Node::Kind::kScalar)
        reader_.problem(entry.mark, fmt::format("parameter '{}' must be a single value", entry.key),
                        "write a number, true or false");
      else
        out.push_back({entry.key, entry.value, entry.mark});
    }
    return out;
  }

  void bundles(const Node& node) {
    std::set<bundle::BundleRef> seen;
    for (const Node& item : limited_list(node, "'bundles'", kBundlesMax)) {
      if (!reader_.map(item, "a bundle", kBundleKeys)) continue;
      BundleUse use;
      use.mark = item.mark;
      const Node* name_node = reader_.required(item, "name", "a bundle");
      const Node* version_node = reader_.required(item, "version", "a bundle");
      if (const Node* field = item.find("parameters")) use.parameters = parameters(*field);
      if (const Node* field = item.find("overrides"))
        for (const Node& each : reader_.list(*field, "'overrides'")) {
          if (!reader_.map(each, "an override", kOverrideKeys)) continue;
          Override item_override;
          item_override.mark = each.mark;
          if (const Node* condition = reader_.required(each, "match", "an override")) item_override.match = match(*condition);
          if (const Node* values = reader_.required(each, "parameters", "an override"))
            item_override.parameters = parameters(*values);
          use.overrides.push_back(std::move(item_override));
        }
      if (name_node == nullptr || version_node == nullptr) continue;
      auto name_text = name(*name_node, "a bundle's 'name'");
      auto version_text = reader_.text(*version_node, "a bundle's 'version'");
      if (!name_text || !version_text) continue;
      use.mark = name_node->mark;
      auto version = bundle::parse_version(*version_text);
      if (!version) {
        reader_.problem(version_node->mark, version.error().what, version.error().remedy);
        continue;
      }
      use.ref = {*name_text, *version};
      if (!seen.insert(use.ref).second)
        reader_.problem(item.mark, fmt::format("bundle {} is listed twice", use.ref.text()), "keep one");
      document_.bundles.push_back(std::move(use));
    }
  }

  std::optional<Target> target(const Node& node, std::string_view what) {
    auto text = reader_.text(node, what);
    if (!text) return std::nullopt;
    auto parsed = parse_target(*text);
    if (!parsed) {
      reader_.problem(node.mark, fmt::format("{}: {}", what, parsed.error().what), parsed.error().remedy);
      return std::nullopt;
    }
    if (!parsed->native && std::none_of(document_.bundles.begin(), document_.bundles.end(),
                                        [&](const BundleUse& use) { return use.ref == parsed->ref(); })) {
      std::vector<std::string> listed;
      for (const BundleUse& use : document_.bundles) listed.push_back(use.ref.text());
      std::vector<std::string_view> views(listed.begin(), listed.end());
      reader_.problem(
          node.mark,
          fmt::format("{} {} is not listed in 'bundles'{}", what, parsed->text(), yaml::did_you_mean(parsed->text(), views)),
          fmt::format("add '- {{name: {}, version: {}}}' to 'bundles'", parsed->name, parsed->version.text()));
      return std::nullopt;
    }
    return *std::move(parsed);
  }

  void rules(const Node& node) {
    document_.rules_mark = node.mark;
    std::set<std::string> names;
    std::span<const Node> items = limited_list(node, "'rules'", kRulesMax);
    if (items.empty() && node.kind == Node::Kind::kList)
      reader_.problem(node.mark, "'rules' is empty", "add at least '- {use: kernel:cubic}'");
    for (const Node& item : items) {
      if (!reader_.map(item, "a rule", kRuleKeys)) continue;
      Rule rule;
      rule.mark = item.mark;
      if (const Node* field = item.find("name"))
        if (auto text = name(*field, "a rule's 'name'")) {
          rule.name = *text;
          if (!names.insert(*text).second)
            reader_.problem(field->mark, fmt::format("two rules are named '{}'", *text), "rename one of them");
        }
      if (const Node* field = item.find("match"); field != nullptr && field->kind != Node::Kind::kNull)
        rule.match = match(*field);
      if (const Node* field = reader_.required(item, "use", "a rule")) {
        rule.use_mark = field->mark;
        if (auto parsed = target(*field, "'use'")) rule.use = *parsed;
      }
      if (const Node* field = item.find("init_cwnd"))
        if (auto number = reader_.number(*field, "'init_cwnd'", 1, kInitCwndMax))
          rule.init_cwnd = static_cast<std::uint16_t>(*number);
      if (const Node* field = item.find("application"))
        if (auto index = reader_.choice(*field, "'application'", kApplicationWords))
          rule.application = static_cast<Application>(*index);
      document_.rules.push_back(std::move(rule));
    }
  }

  void transitional(const Node& node) {
    document_.transitional_mark = node.mark;
    if (auto parsed = target(node, "'transitional'")) document_.transitional = *parsed;
  }

  void sysctls(const Node& node) {
    std::vector<std::string_view> known;
    for (const SysctlRange& sysctl : kSysctls) known.push_back(sysctl.name);
    if (node.kind == Node::Kind::kNull || !reader_.map(node, "'sysctls'", known)) return;
    for (const SysctlRange& sysctl : kSysctls)
      if (const Node* value = node.find(sysctl.name))
        if (auto number = reader_.number(*value, fmt::format("'{}'", sysctl.name), sysctl.min, sysctl.max))
          document_.sysctls[std::string(sysctl.name)] = std::to_string(*number);
  }

  // Equal prefixes, and nested ones that contradict what encloses them.
  void overlaps() {
    std::vector<const TopologyEntry*> sorted;
    for (const TopologyEntry& entry : document_.topology) sorted.push_back(&entry);
    std::sort(sorted.begin(), sorted.end(), [](const TopologyEntry* a, const TopologyEntry* b) {
      if (a->prefix != b->prefix)
        return a->prefix.addr != b->prefix.addr ? a->prefix.addr < b->prefix.addr : a->prefix.length < b->prefix.length;
      return a->mark.line != b->mark.line ? a->mark.line < b->mark.line : a->mark.column < b->mark.column;
    });
    std::vector<const TopologyEntry*> enclosing[2];  // IPv4-mapped addresses lie within IPv6 prefixes only by their notation
    for (const TopologyEntry* entry : sorted) {
      auto& stack = enclosing[entry->prefix.ipv4() ? 1 : 0];
      while (!stack.empty() && !stack.back()->prefix.contains(entry->prefix)) stack.pop_back();
      if (!stack.empty()) {
        const TopologyEntry& outer = *stack.back();
        if (outer.prefix == entry->prefix) {
          reader_.problem(entry->mark,
                          fmt::format("prefix {} is listed twice, first in line {}", entry->prefix.text(), outer.mark.line),
                          "keep one");
          continue;
        }
        if (!outer.external && !refines(outer, *entry))
          reader_.problem(entry->mark,
                          fmt::format("prefix {} ({}) lies within {} ({}, line {}), which is another place",
                                      entry->prefix.text(), text(*entry), outer.prefix.text(), text(outer), outer.mark.line),
                          fmt::format("place it below {}, or split the enclosing prefix", outer.place.text()));
      }
      stack.push_back(entry);
    }
  }

  static std::string text(const TopologyEntry& entry) { return entry.external ? "external" : entry.place.text(); }
  static bool refines(const TopologyEntry& outer, const TopologyEntry& inner) {
    auto agrees = [](const std::string& a, const std::string& b) { return a.empty() || a == b; };
    return !inner.external && outer.place.region == inner.place.region &&
           agrees(outer.place.datacenter, inner.place.datacenter) && agrees(outer.place.rack, inner.place.rack);
  }

  // Places that stand for all there can be, as far as rules can tell them apart: every part that a rule names, the host's own,
  // and one that nobody names.
  std::vector<Scope> representatives() const {
    constexpr std::size_t kMax = 4096;  // beyond that, places named later are not tried: a check may miss, never accuse
    static const std::string kFresh = "\x01";
    std::vector<Place> named{document_.place};
    for (const Rule& rule : document_.rules)
      for (const PlacePattern& pattern : rule.match.places) named.push_back(pattern.parts);
    auto values = [&](auto member, auto&& concerns) {
      std::set<std::string> out{kFresh};
      for (const Place& place : named)
        if (const std::string& part = place.*member; !part.empty() && part != "*" && concerns(place)) out.insert(part);
      return out;
    };
    auto same = [](const std::string& pattern, const std::string& part) { return pattern == "*" || pattern == part; };
    std::vector<Scope> out{scope_of(document_.place, {}, false), scope_of(document_.place, {}, true)};
    for (const std::string& region : values(&Place::region, [](const Place&) { return true; })) {
      out.push_back(scope_of(document_.place, {region, "", ""}, false));
      for (const std::string& dc : values(&Place::datacenter, [&](const Place& p) { return same(p.region, region); })) {
        out.push_back(scope_of(document_.place, {region, dc, ""}, false));
        for (const std::string& rack :
             values(&Place::rack, [&](const Place& p) { return same(p.region, region) && same(p.datacenter, dc); })) {
          out.push_back(scope_of(document_.place, {region, dc, rack}, false));
          if (out.size() >= kMax) return out;
        }
      }
    }
    return out;
  }

  // A rule that some representative matches, but none reaches, because earlier rules take them all. (One that no representative
  // matches asks for a locality this host cannot see; another host may.)
  void reachability() {
    MatchTable table = rule_table(document_);
    std::set<Bits> scopes;
    for (const Scope& scope : representatives()) scopes.insert(table.by_scope(scope));
    std::vector<bool> decides(table.size(), false);
    auto services = static_cast<std::uint32_t>(document_.services.size());
    for (const Bits& scope : scopes)
      for (std::uint32_t service = 0; service <= services; ++service)
        if (auto first = MatchTable::first(scope, table.by_service(service))) decides[*first] = true;
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (decides[i]) continue;
      std::set<std::size_t> takers;
      for (const Bits& scope : scopes)
        for (std::uint32_t service = 0; service <= services; ++service)
          if (MatchTable::test(scope, i) && MatchTable::test(table.by_service(service), i))
            takers.insert(*MatchTable::first(scope, table.by_service(service)));
      if (!takers.empty()) unreachable(i, takers);
    }
  }

  void unreachable(std::size_t index, const std::set<std::size_t>& takers) {
    const Rule& rule = document_.rules[index];
    for (std::size_t taker : takers) {
      const Rule& other = document_.rules[taker];
      if (other.match != rule.match) continue;
      reader_.problem(rule.mark,
                      fmt::format("{} is a duplicate of {} in line {}: both match {}{}", rule.label(index), other.label(taker),
                                  other.mark.line, rule.match.text(),
                                  other.decides_like(rule) ? "" : fmt::format(", and {} wins", other.use.text())),
                      "keep one of them");
      return;
    }
    std::vector<std::string> labels;
    for (std::size_t taker : takers)
      labels.push_back(fmt::format("{} in line {}", document_.rules[taker].label(taker), document_.rules[taker].mark.line));
    reader_.problem(rule.mark,
                    fmt::format("{} is unreachable: what it matches ({}) is taken by {}", rule.label(index), rule.match.text(),
                                fmt::join(labels, " and ")),
                    "move it before them, narrow them, or remove it");
  }

  // Every place of the topology, the unknown and the external one get a verdict for every service.
  void coverage() {
    MatchTable table = rule_table(document_);
    std::map<sl_locality, std::pair<std::string, std::string>> missing;  // locality -> example place, service
    std::set<std::pair<sl_locality, Bits>> seen;
    auto visit = [&](const Place& place, bool external) {
      Scope scope = scope_of(document_.place, place, external);
      Bits bits = table.by_scope(scope);
      if (!seen.emplace(scope.locality, bits).second) return;
      for (std::uint32_t service = 0; service <= document_.services.size(); ++service)
        if (!MatchTable::first(bits, table.by_service(service)))
          missing.try_emplace(scope.locality, place.text(), service == 0 ? "" : document_.services[service - 1].name);
    };
    visit({}, false);
    visit({}, true);
    std::set<Place> places;
    for (const TopologyEntry& entry : document_.topology)
      if (!entry.external && places.insert(entry.place).second) visit(entry.place, false);
    for (const auto& [locality, example] : missing) {
      std::string place = example.first.empty() ? "" : fmt::format(" (for example place {})", example.first);
      std::string service = example.second.empty() ? "connections of no service" : fmt::format("service {}", example.second);
      reader_.problem(
          document_.rules_mark, fmt::format("no rule for locality {}{} and {}", locality_name(locality), place, service),
          fmt::format("add a last rule such as '- {{match: {{locality: {}}}, use: kernel:cubic}}'", locality_name(locality)));
    }
  }
};

}  // namespace

Result<Document> parse_document(std::string_view text, std::string_view source, yaml::Problems* problems) {
  yaml::Problems own;
  yaml::Problems& list = problems != nullptr ? *problems : own;
  auto root = yaml::parse(text, source);
  if (!root) {
    list.add(root.error().where, root.error().what, root.error().remedy);
    return tl::unexpected(std::move(root).error());
  }
  Document document = DocumentReader(source, list).read(*root);
  if (!list.empty()) return tl::unexpected(list.to_error());
  document.source = source;
  document.text = text;
  return document;
}

}  // namespace sluice::policy
