// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Document to tables.
//
//   1. places      every distinct place gets an id; places that no rule and no override can tell apart share a class
//   2. services    sources as LPM, ports and cgroups as hash; nested keys hold the smallest id of all that enclose them,
//   because
//                  the kernel finds only the longest match while the document's first service wins
//   3. verdicts    {service, class} -> target and override, by the first rule that matches
//   4. parameters  each combination in use gets an entry of its bundle's sl_params, by content
#include "policy/compile.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "policy/manifests.h"
#include "policy/matcher.h"

namespace sluice::policy {
namespace {

constexpr std::uint32_t kClassesMax = 65536;  // sl_place.place_class
constexpr std::size_t kNone = ~std::size_t{0};

sl_prefix to_key(const Prefix& prefix) {
  sl_prefix key{};
  key.prefix_len = prefix.length;
  std::memcpy(key.addr, prefix.addr.data(), sizeof key.addr);
  return key;
}

void set_name(char (&field)[SL_CCA_NAME_LEN], std::string_view name) {
  SLUICE_ASSERT(name.size() < sizeof field);
  std::memcpy(field, name.data(), name.size());
}

// The block of all IPv4-mapped addresses: IPv6 prefixes shorter than it enclose it in the tables, never in meaning.
Prefix all_ipv4() { return *parse_prefix("0.0.0.0/0"); }

bool encloses_ipv4_by_notation(const Prefix& prefix) {
  Prefix cut = all_ipv4();
  cut.length = prefix.length;
  return !prefix.ipv4() && prefix.length < 96 && cut.network().addr == prefix.addr;
}

bool is_below(std::string_view path, std::string_view ancestor) {
  if (ancestor == "/") return true;
  return path.starts_with(ancestor) && (path.size() == ancestor.size() || path[ancestor.size()] == '/');
}

class Compiler {
 public:
  Compiler(const Document& document, const CompileInput& input)
      : document_(document), input_(input), rules_(rule_table(document)) {
    for (const BundleUse& use : document.bundles) overrides_.push_back(override_table(use, document.services));
  }

  Result<Compiled> run() {
    SLUICE_CHECK(check(document_, input_.manifests));
    SLUICE_CHECK(bundles());
    SLUICE_CHECK(choose_transitional());
    SLUICE_CHECK(places());
    services();
    SLUICE_CHECK(verdicts());
    generation();
    unreached_rules();
    out_.sysctls = document_.sysctls;
    return std::move(out_);
  }

 private:
  // What a {service, class} gets, before parameter sets have numbers.
  struct Choice {
    Target target;
    std::size_t rule = 0;
    std::size_t bundle = kNone;     // index in document_.bundles; kNone = native
    std::size_t override_ = kNone;  // index in its overrides; kNone = the global values
    std::size_t fallback_override = kNone;
  };

  const Document& document_;
  const CompileInput& input_;
  Compiled out_;
  MatchTable rules_;
  std::vector<MatchTable> overrides_;
  std::optional<Target> transitional_;
  std::size_t transitional_bundle_ = kNone;
  std::vector<Scope> class_scope_;  // one place of each class, for all of them

  std::size_t bundle_index(const bundle::BundleRef& ref) const {
    for (std::size_t i = 0; i < document_.bundles.size(); ++i)
      if (document_.bundles[i].ref == ref) return i;
    return kNone;
  }
  const bundle::Manifest& manifest(std::size_t index) const {
    return *find_manifest(input_.manifests, document_.bundles[index].ref);
  }

  Status bundles() {
    for (std::size_t i = 0; i < document_.bundles.size(); ++i) {
      const BundleUse& use = document_.bundles[i];
      CompiledBundle compiled;
      compiled.ref = use.ref;
      compiled.kernel_name = bundle::kernel_name(use.ref.name, use.ref.version, input_.instance);
      compiled.needs_ecn = manifest(i).needs_ecn();
      compiled.transitional = manifest(i).transitional;
      compiled.rolled_back = input_.rolled_back.count(use.ref) > 0;
      ParamValues all = values(i, kNone);
      for (const bundle::Parameter& parameter : manifest(i).parameters)
        if (parameter.when == bundle::When::kLoad) compiled.load_values[parameter.name] = all.at(parameter.name);
      for (const CompiledBundle& other : out_.bundles)
        if (other.kernel_name == compiled.kernel_name)
          return fail(fail(Code::kConflict, "bundles {} and {} have the same kernel name '{}'", other.ref.text(),
                           use.ref.text(), other.kernel_name)
                          .value()
                          .at(document_.where(use.mark))
                          .fix("give one of them another version"));
      out_.bundles.push_back(std::move(compiled));
    }
    return {};
  }

  // All parameters of a bundle: defaults, the document's global values, then those of one override.
  ParamValues values(std::size_t index, std::size_t override_index) const {
    ParamValues out;
    const BundleUse& use = document_.bundles[index];
    for (const bundle::Parameter& parameter : manifest(index).parameters) {
      std::uint64_t value = parameter.default_value;
      auto apply = [&](const std::vector<ParameterValue>& list) {
        for (const ParameterValue& each : list)
          if (each.name == parameter.name) value = *bundle::parse_parameter(parameter, each.value);  // check() has passed
      };
      apply(use.parameters);
      if (override_index != kNone) apply(use.overrides[override_index].parameters);
      out[parameter.name] = value;
    }
    return out;
  }
  ParamValues live_values(std::size_t index, std::size_t override_index) const {
    ParamValues out = values(index, override_index);
    for (const bundle::Parameter& parameter : manifest(index).parameters)
      if (parameter.when == bundle::When::kLoad) out.erase(parameter.name);
    return out;
  }

  bool rolled_back(const Target& target) const { return !target.native && input_.rolled_back.count(target.ref()) > 0; }

  // The document's; if that one is itself rolled back, the newest other transitional bundle listed.
  Status choose_transitional() {
    transitional_ = transitional_of(document_, input_.manifests);
    if (transitional_ && rolled_back(*transitional_)) {
      std::optional<Target> other;
      for (const CompiledBundle& bundle : out_.bundles)
        if (bundle.transitional && !bundle.rolled_back && (!other || other->version < bundle.ref.version))
          other = Target{false, bundle.ref.name, bundle.ref.version};
      if (!other) return nothing_left(*transitional_);
      transitional_ = other;
    }
    if (!transitional_)
      for (const Rule& rule : document_.rules)
        if (rolled_back(rule.use)) return nothing_left(rule.use);
    if (!transitional_) return {};
    out_.transitional = transitional_->text();
    if (!transitional_->native) transitional_bundle_ = bundle_index(transitional_->ref());
    return {};
  }

  Status nothing_left(const Target& target) const {
    return fail(fail(Code::kConflict, "{} is rolled back, and there is no other transitional CCA to take its connections",
                     target.text())
                    .value()
                    .at(document_.where(document_.transitional_mark))
                    .fix("add 'transitional: kernel:cubic', or list another version of the transitional bundle"));
  }

  // Everything that rules and overrides can see of a scope.
  Bits signature(const Scope& scope) const {
    Bits bits = rules_.by_scope(scope);
    for (const MatchTable& table : overrides_) {
      Bits more = table.by_scope(scope);
      bits.insert(bits.end(), more.begin(), more.end());
    }
    return bits;
  }

  Status places() {
    std::map<Bits, std::uint32_t> classes;
    std::map<Place, std::uint32_t> ids;
    auto intern = [&](const Place& place, bool external) {
      Scope scope = scope_of(document_.place, place, external);
      auto [it, is_new] = classes.try_emplace(signature(scope), static_cast<std::uint32_t>(classes.size()));
      if (is_new) class_scope_.push_back(scope);
      out_.place_info.push_back({place, external, scope.locality, static_cast<std::uint16_t>(it->second)});
      return static_cast<std::uint32_t>(out_.place_info.size() - 1);
    };
    intern({}, false);
    std::uint32_t external = 0;
    bool ipv4_enclosed = false;
    bool ipv4_default = false;
    out_.places.reserve(document_.topology.size() + 1);
    for (const TopologyEntry& entry : document_.topology) {
      std::uint32_t id = 0;
      if (entry.external) {
        if (external == 0) external = intern({}, true);
        id = external;
      } else {
        auto [it, is_new] = ids.try_emplace(entry.place, 0);
        if (is_new) it->second = intern(entry.place, false);
        id = it->second;
      }
      if (classes.size() > kClassesMax)
        return fail(fail(Code::kExhausted, "rules and overrides tell more than {} classes of places apart", kClassesMax)
                        .value()
                        .at(document_.where(document_.rules_mark))
                        .fix("use patterns such as eu/* instead of single racks"));
      out_.places.emplace_back(to_key(entry.prefix), place_value(id));
      ipv4_enclosed |= encloses_ipv4_by_notation(entry.prefix);
      ipv4_default |= entry.prefix == all_ipv4();
    }
    if (ipv4_enclosed && !ipv4_default) out_.places.emplace_back(to_key(all_ipv4()), place_value(0));
    sort_by_key(out_.places);
    out_.place_classes = static_cast<std::uint32_t>(class_scope_.size());
    return {};
  }

  sl_place place_value(std::uint32_t id) const {
    sl_place value{};
    value.place_id = id;
    value.place_class = out_.place_info[id].place_class;
    value.locality = static_cast<__u8>(out_.place_info[id].locality);
    return value;
  }

  template <class V>
  static void sort_by_key(std::vector<std::pair<sl_prefix, V>>& table) {
    std::sort(table.begin(), table.end(), [](const auto& a, const auto& b) {
      int order = std::memcmp(a.first.addr, b.first.addr, sizeof a.first.addr);
      return order != 0 ? order < 0 : a.first.prefix_len < b.first.prefix_len;
    });
  }

  void services() {
    out_.service_names.emplace_back();
    std::map<Prefix, sl_service_id> sources;
    std::map<std::uint16_t, sl_service_id> ports;
    std::map<std::string, sl_service_id> cgroups;
    for (std::size_t i = 0; i < document_.services.size(); ++i) {
      const Service& service = document_.services[i];
      auto id = static_cast<sl_service_id>(i + 1);
      out_.service_names.push_back(service.name);
      for (const Prefix& prefix : service.sources) sources.try_emplace(prefix, id);  // try_emplace: the first service keeps it
      for (std::uint16_t port : service.ports) ports.try_emplace(port, id);
      for (const std::string& path : service.cgroups) cgroups.try_emplace(path, id);
    }
    source_table(sources);
    for (const auto& [port, id] : ports) out_.services.emplace_back(sl_service_key{SL_SERVICE_PORT, 0, port}, id);
    cgroup_table(cgroups);
    if (!sources.empty()) out_.generation.flags |= SL_GEN_SOURCES;
    if (!ports.empty()) out_.generation.flags |= SL_GEN_PORTS;
  }

  void source_table(const std::map<Prefix, sl_service_id>& sources) {
    std::vector<std::pair<Prefix, sl_service_id>> enclosing[2];  // by family; map order puts enclosing prefixes first
    bool ipv4_enclosed = false;
    for (const auto& [prefix, id] : sources) {
      auto& stack = enclosing[prefix.ipv4() ? 1 : 0];
      while (!stack.empty() && !stack.back().first.contains(prefix)) stack.pop_back();
      sl_service_id least = stack.empty() ? id : std::min(id, stack.back().second);
      stack.emplace_back(prefix, least);
      out_.sources.emplace_back(to_key(prefix), least);
      ipv4_enclosed |= encloses_ipv4_by_notation(prefix);
    }
    if (ipv4_enclosed && sources.count(all_ipv4()) == 0) out_.sources.emplace_back(to_key(all_ipv4()), 0);
    sort_by_key(out_.sources);
  }

  void cgroup_table(const std::map<std::string, sl_service_id>& cgroups) {
    std::map<std::uint64_t, sl_service_id> ids;
    for (const auto& [path, own_id] : cgroups) {
      sl_service_id least = own_id;
      for (std::string above = parent(path); !above.empty(); above = parent(above))
        if (auto it = cgroups.find(above); it != cgroups.end()) least = std::min(least, it->second);
      auto found = input_.cgroups.find(path);
      if (found == input_.cgroups.end()) {
        const Service& service = document_.services[own_id - 1];
        out_.missing_cgroups.insert(path);
        out_.warnings.push_back({document_.where(service.mark),
                                 fmt::format("cgroup {} of service {} does not exist", path, service.name),
                                 "nothing to do if it is yet to come: it is looked for again"});
        continue;
      }
      auto [it, is_new] = ids.try_emplace(found->second, least);
      if (!is_new) it->second = std::min(it->second, least);
    }
    for (const auto& [id, service] : ids) out_.services.emplace_back(sl_service_key{SL_SERVICE_CGROUP, 0, id}, service);
    if (!ids.empty()) out_.generation.flags |= SL_GEN_CGROUPS;
  }

  // "/a/b" -> "/a" -> "/" -> ""
  static std::string parent(const std::string& path) {
    if (path == "/") return "";
    return path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
  }

  Status verdicts() {
    out_.rule_labels.emplace_back("none");
    for (std::size_t i = 0; i < document_.rules.size(); ++i) out_.rule_labels.push_back(document_.rules[i].label(i));

    std::vector<Bits> rule_bits;
    std::vector<std::vector<Bits>> override_bits(overrides_.size());
    for (const Scope& scope : class_scope_) {
      rule_bits.push_back(rules_.by_scope(scope));
      for (std::size_t b = 0; b < overrides_.size(); ++b) override_bits[b].push_back(overrides_[b].by_scope(scope));
    }
    auto override_of = [&](std::size_t bundle, std::uint32_t cls, std::uint32_t service) {
      return MatchTable::first(override_bits[bundle][cls], overrides_[bundle].by_service(service)).value_or(kNone);
    };

    std::vector<Choice> choices;
    std::vector<std::set<std::size_t>> used(document_.bundles.size());  // overrides in use, by bundle
    for (std::uint32_t service = 0; service <= document_.services.size(); ++service)
      for (std::uint32_t cls = 0; cls < out_.place_classes; ++cls) {
        auto rule = MatchTable::first(rule_bits[cls], rules_.by_service(service));
        SLUICE_ASSERT(rule.has_value());  // parse_document() checked the coverage of all places
        Choice choice;
        choice.rule = *rule;
        choice.target = document_.rules[*rule].use;
        if (rolled_back(choice.target)) choice.target = *transitional_;
        if (!choice.target.native) {
          choice.bundle = bundle_index(choice.target.ref());
          choice.override_ = override_of(choice.bundle, cls, service);
          used[choice.bundle].insert(choice.override_);
          out_.bundles[choice.bundle].selected = true;
        }
        if (needs_ecn(choice.target, input_.manifests) && transitional_bundle_ != kNone) {
          choice.fallback_override = override_of(transitional_bundle_, cls, service);
          used[transitional_bundle_].insert(choice.fallback_override);
        }
        choices.push_back(std::move(choice));
      }
    if (transitional_bundle_ != kNone) out_.bundles[transitional_bundle_].selected = true;

    std::vector<std::map<std::size_t, std::uint32_t>> entries(document_.bundles.size());  // override -> entry of sl_params
    out_.params = input_.in_use;
    for (std::size_t b = 0; b < document_.bundles.size(); ++b) {
      SLUICE_TRY(allocated, allocate(b, used[b]));
      entries[b] = std::move(allocated);
    }

    out_.rules.reserve(choices.size());
    std::size_t next = 0;
    for (std::uint32_t service = 0; service <= document_.services.size(); ++service)
      for (std::uint32_t cls = 0; cls < out_.place_classes; ++cls) {
        const Choice& choice = choices[next++];
        sl_verdict verdict{};
        verdict.rule_id = static_cast<__u32>(choice.rule + 1);
        verdict.init_cwnd_segments = document_.rules[choice.rule].init_cwnd;
        if (document_.rules[choice.rule].application == Application::kRespect) verdict.flags |= SL_VERDICT_RESPECT;
        if (document_.rules[choice.rule].application == Application::kRefuse) verdict.flags |= SL_VERDICT_REFUSE;
        set_name(verdict.cca, kernel_name_of(choice.target));
        if (choice.bundle != kNone) {
          verdict.flags |= SL_VERDICT_BUNDLE;
          verdict.params = entries[choice.bundle].at(choice.override_);
        }
        if (needs_ecn(choice.target, input_.manifests)) {
          verdict.flags |= SL_VERDICT_NEEDS_ECN;
          set_name(verdict.fallback, kernel_name_of(*transitional_));  // check() demands one
          if (transitional_bundle_ != kNone)
            verdict.fallback_params = entries[transitional_bundle_].at(choice.fallback_override);
        }
        out_.rules.emplace_back(sl_rule_key{service, cls}, verdict);
      }
    return {};
  }

  std::string kernel_name_of(const Target& target) const {
    return target.native ? target.name : out_.bundles[bundle_index(target.ref())].kernel_name;
  }

  // Entries for the global values and the overrides in use. Same values, same entry; an entry in use is never written again.
  Result<std::map<std::size_t, std::uint32_t>> allocate(std::size_t index, const std::set<std::size_t>& used) {
    CompiledBundle& bundle = out_.bundles[index];
    std::map<std::uint32_t, ParamValues>& taken = out_.params[bundle.ref];
    const std::map<std::uint32_t, ParamValues> kept = taken;
    // Entry 0 is what a socket reads that the policy does not choose the CCA for: it holds the global values unless old ones
    // are still in use there.
    if (kept.count(0) == 0) bundle.params[0] = taken[0] = live_values(index, kNone);
    auto entry = [&](std::size_t override_index) -> Result<std::uint32_t> {
      ParamValues wanted = live_values(index, override_index);
      for (const std::map<std::uint32_t, ParamValues>* entries :
           std::initializer_list<const std::map<std::uint32_t, ParamValues>*>{
               &kept, &taken})  // what sockets use already first: their entry need not change
        for (const auto& [number, content] : *entries)
          if (content == wanted) {
            bundle.params[number] = content;
            return number;
          }
      std::uint32_t free = 1;
      for (const auto& [number, content] : taken)
        if (number == free) ++free;
      if (free >= SL_PARAM_SETS)
        return fail(
            fail(Code::kExhausted, "bundle {} needs more than {} sets of parameters at once", bundle.ref.text(), SL_PARAM_SETS)
                .value()
                .at(document_.where(document_.bundles[index].mark))
                .fix("wait until connections with older values have ended or migrated, or use fewer overrides"));
      bundle.params[free] = taken[free] = std::move(wanted);
      return free;
    };
    std::map<std::size_t, std::uint32_t> out;
    SLUICE_TRY(global, entry(kNone));
    bundle.global_params = global;
    out[kNone] = global;
    for (std::size_t override_index : used) {
      SLUICE_TRY(number, entry(override_index));
      out[override_index] = number;
    }
    return out;
  }

  void generation() {
    out_.generation.generation = input_.generation;
    if (document_.options.self_migrate) out_.generation.flags |= SL_GEN_SELF_MIGRATE;
    if (std::ranges::any_of(document_.rules, [](const Rule& rule) { return rule.application == Application::kRespect; }))
      out_.generation.flags |= SL_GEN_RESPECT;
    if (!transitional_) return;
    set_name(out_.generation.listener_cca, kernel_name_of(*transitional_));
    if (transitional_bundle_ != kNone) out_.generation.listener_params = out_.bundles[transitional_bundle_].global_params;
  }

  // A rule that asks for places of which the topology has none: right for another host perhaps, or a slip of the pen.
  void unreached_rules() {
    Bits any(rules_.by_scope({}).size(), 0);
    auto mark = [&](const Bits& scope) {
      for (std::size_t word = 0; word < any.size(); ++word) any[word] |= scope[word];
    };
    for (const Scope& scope : class_scope_) mark(rules_.by_scope(scope));
    mark(rules_.by_scope(scope_of(document_.place, {}, true)));
    for (std::size_t i = 0; i < document_.rules.size(); ++i)
      if (!MatchTable::test(any, i))
        out_.warnings.push_back({document_.where(document_.rules[i].mark),
                                 fmt::format("{} matches no place of the topology ({})", document_.rules[i].label(i),
                                             document_.rules[i].match.text()),
                                 "check the names of its places, or add their prefixes to 'topology'"});
  }
};

}  // namespace

std::string PlaceInfo::text() const { return external ? "external" : place.empty() ? "unknown" : place.text(); }

const CompiledBundle* Compiled::bundle_of(std::string_view kernel_name) const {
  for (const CompiledBundle& bundle : bundles)
    if (bundle.kernel_name == kernel_name) return &bundle;
  return nullptr;
}

Result<Compiled> compile(const Document& document, const CompileInput& input) { return Compiler(document, input).run(); }

namespace {

std::string name_of(const char (&field)[SL_CCA_NAME_LEN]) { return {field, strnlen(field, sizeof field)}; }

std::string address_text(const Prefix& prefix) {
  std::string text = prefix.text();
  return text.substr(0, text.find('/'));
}

}  // namespace

Result<Explanation> explain(const Document& document, const Compiled& compiled, const Query& query) {
  if (query.remote.length != 128)
    return fail(fail(Code::kInvalid, "{} is a network, not an address", query.remote.text()).value().fix("give one address"));
  Explanation out;

  const TopologyEntry* best = nullptr;
  for (const TopologyEntry& entry : document.topology)
    if (entry.prefix.contains(query.remote) && (best == nullptr || best->prefix.length < entry.prefix.length)) best = &entry;
  Scope scope = best == nullptr ? Scope{} : scope_of(document.place, best->place, best->external);
  for (std::uint32_t id = 0; id < compiled.place_info.size(); ++id)
    if (compiled.place_info[id].place == scope.place && compiled.place_info[id].external == scope.external) out.place_id = id;
  const PlaceInfo& info = compiled.place_info.at(out.place_id);
  out.place = info.text();
  out.locality = scope.locality;
  if (best == nullptr)
    out.why.push_back(fmt::format("no prefix of the topology holds {}: its place is unknown", address_text(query.remote)));
  else
    out.why.push_back(fmt::format("{} lies in {}, the longest prefix that holds it (line {}): {}", address_text(query.remote),
                                  best->prefix.text(), best->mark.line, out.place));
  out.why.push_back(fmt::format("this host is in {}: the locality is {}", document.place.text(), locality_name(out.locality)));

  for (std::size_t i = 0; i < document.services.size() && out.service_id == 0; ++i) {
    const Service& service = document.services[i];
    std::string reason;
    for (const Prefix& source : service.sources)
      if (reason.empty() && query.local && source.contains(*query.local)) reason = fmt::format("source {}", source.text());
    for (std::uint16_t port : service.ports)
      if (reason.empty() && query.port == port) reason = fmt::format("local port {}", port);
    for (const std::string& path : service.cgroups)
      if (reason.empty() && !query.cgroup.empty() && compiled.missing_cgroups.count(path) == 0 && is_below(query.cgroup, path))
        reason = fmt::format("cgroup {}", path);
    if (reason.empty()) continue;
    out.service_id = static_cast<std::uint32_t>(i + 1);
    out.service = service.name;
    out.why.push_back(fmt::format("service {}: {}", service.name, reason));
  }
  if (out.service_id == 0) out.why.push_back(document.services.empty() ? "the policy has no services" : "no service matches");

  auto rule_index = rule_table(document).first(scope, out.service_id);
  sl_rule_key key{out.service_id, info.place_class};
  auto found =
      std::lower_bound(compiled.rules.begin(), compiled.rules.end(), key, [](const auto& entry, const sl_rule_key& wanted) {
        return entry.first.service_id != wanted.service_id ? entry.first.service_id < wanted.service_id
                                                           : entry.first.place_class < wanted.place_class;
      });
  if (!rule_index || found == compiled.rules.end() || found->first.service_id != key.service_id ||
      found->first.place_class != key.place_class)
    return fail(Code::kInternal, "the compiled policy has no verdict for service {} and class {}", key.service_id,
                key.place_class);
  const sl_verdict& verdict = found->second;
  const Rule& rule = document.rules[*rule_index];
  out.rule_id = verdict.rule_id;
  out.rule = rule.label(*rule_index);
  out.cca = name_of(verdict.cca);
  out.fallback = name_of(verdict.fallback);
  out.needs_ecn = (verdict.flags & SL_VERDICT_NEEDS_ECN) != 0;
  out.params = verdict.params;
  out.init_cwnd_segments = verdict.init_cwnd_segments;
  out.why.push_back(fmt::format("{} (line {}) is the first that matches: {}", out.rule, rule.mark.line, rule.match.text()));

  const CompiledBundle* bundle = (verdict.flags & SL_VERDICT_BUNDLE) != 0 ? compiled.bundle_of(out.cca) : nullptr;
  out.target = bundle != nullptr ? bundle->ref.text() : "kernel:" + out.cca;
  if (out.target != rule.use.text())
    out.why.push_back(fmt::format("it says {}, which is rolled back: {}, the transitional CCA, takes its place",
                                  rule.use.text(), out.target));
  else
    out.why.push_back(
        fmt::format("it says {}{}", out.target, bundle != nullptr ? fmt::format(", in the kernel {}", out.cca) : ""));
  if (bundle != nullptr) {
    out.parameters = bundle->load_values;
    if (auto set = bundle->params.find(out.params); set != bundle->params.end())
      out.parameters.insert(set->second.begin(), set->second.end());
    for (const BundleUse& use : document.bundles)
      if (use.ref == bundle->ref)
        if (auto index = override_table(use, document.services).first(scope, out.service_id))
          out.why.push_back(fmt::format("override {} of {} (line {}) applies: {}", *index + 1, out.target,
                                        use.overrides[*index].mark.line, use.overrides[*index].match.text()));
  }
  if (out.needs_ecn)
    out.why.push_back(fmt::format("{} requires ECN; a connection without it gets {}", out.target, out.fallback));
  if (rule.application == Application::kRespect)
    out.why.push_back("a CCA that the application chose itself stays, unless it is a bundle's");
  if (rule.application == Application::kRefuse) out.why.push_back("the application may not choose another one: EPERM");
  return out;
}

}  // namespace sluice::policy
