// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The compiler against a second opinion: an interpreter of documents that shares no code with it looks every connection up by
// brute force, while the tables are read as the BPF programs read them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <set>

#include "policy/compile.h"

namespace sluice::policy {
namespace {

using ::testing::HasSubstr;

bundle::Manifest manifest(std::string_view name, std::string_view version, std::string_view rest) {
  auto out = bundle::parse_manifest(
      fmt::format("name: {}\nversion: {}\nclass: cca\nsummary: x\nlicense: GPL\nobjects: [x.o]\nkernel: {{min: \"6.6\"}}\n"
                  "hooks: [ssthresh]\n{}",
                  name, version, rest),
      "bundle.yaml");
  EXPECT_TRUE(out) << out.error().message();
  return *out;
}

constexpr std::string_view kParameters =
    "parameters: [{name: beta, type: u32, min: 0, max: 1000, default: 700, when: live, summary: b}, {name: gain, type: u32, "
    "default: 1, "
    "when: live, summary: g}, {name: fixed, type: bool, default: true, when: load, summary: f}]\n";

struct Bundles {
  std::vector<bundle::Manifest> list;
  Bundles() {
    list.push_back(manifest("cubic", "1.0.0", std::string(kParameters) + "transitional: true\n"));
    list.push_back(manifest("cubic", "1.1.0", std::string(kParameters) + "transitional: true\n"));
    list.push_back(manifest("plain", "1.0.0", kParameters));
    list.push_back(manifest("ecncc", "2.0.0", std::string(kParameters) + "signals: {ecn: requires}\n"));
  }
  CompileInput input() const {
    CompileInput out;
    for (const bundle::Manifest& each : list) out.manifests.push_back(&each);
    return out;
  }
};

Document parsed(const std::string& text) {
  auto document = parse_document(text, "p.yaml");
  if (!document) {
    ADD_FAILURE() << document.error().message() << "\n" << document.error().detail << "\n" << text;
    std::abort();
  }
  return *document;
}

Compiled compiled(const Document& document, const CompileInput& input) {
  auto out = compile(document, input);
  if (!out) {
    ADD_FAILURE() << out.error().message() << "\n" << document.text;
    std::abort();
  }
  return *std::move(out);
}

const std::string kHead = "apiVersion: sluice/v1\nkind: Host\nplace: {region: eu, datacenter: eu1, rack: r1}\n";

// --- the tables, read as the kernel reads them ---

template <class V>
const V* lpm(const std::vector<std::pair<sl_prefix, V>>& table, const Prefix& address) {
  const V* best = nullptr;
  std::uint32_t best_length = 0;
  for (const auto& [key, value] : table) {
    bool inside = true;
    for (std::uint32_t bit = 0; bit < key.prefix_len && inside; ++bit)
      inside = ((key.addr[bit / 8] ^ address.addr[bit / 8]) >> (7 - bit % 8) & 1) == 0;
    if (inside && (best == nullptr || key.prefix_len >= best_length)) best = &value, best_length = key.prefix_len;
  }
  return best;
}

struct Connection {
  Prefix remote, local;
  std::uint16_t port = 0;
  std::string cgroup;
};

struct Outcome {
  std::string place = "unknown", service, cca, fallback;
  int locality = SL_LOCALITY_UNKNOWN;
  std::uint32_t rule = 0;
  std::uint16_t init_cwnd = 0;
  bool needs_ecn = false, respect = false, refuse = false;
  ParamValues params, fallback_params;
  bool operator==(const Outcome&) const = default;
};
void PrintTo(const Outcome& o, std::ostream* out) {
  *out << o.place << " locality " << o.locality << " service '" << o.service << "' rule " << o.rule << " " << o.cca << "/"
       << o.fallback << (o.needs_ecn ? " ecn" : "") << " iw " << o.init_cwnd << " beta "
       << (o.params.count("beta") ? static_cast<long>(o.params.at("beta")) : -1);
}

Outcome from_tables(const Compiled& tables, const Connection& connection, const std::map<std::string, std::uint64_t>& cgroups,
                    bool nearest_cgroup_only) {
  Outcome out;
  sl_place place{};
  if (const sl_place* found = lpm(tables.places, connection.remote)) place = *found;
  out.place = tables.place_info.at(place.place_id).text();
  out.locality = place.locality;
  sl_service_id service = 0;
  auto take = [&](sl_service_id id) {
    if (id != 0 && (service == 0 || id < service)) service = id;
  };
  if (const sl_service_id* id = lpm(tables.sources, connection.local)) take(*id);
  auto keyed = [&](std::uint32_t kind, std::uint64_t id) -> sl_service_id {
    for (const auto& [key, value] : tables.services)
      if (key.kind == kind && key.id == id) return value;
    return 0;
  };
  take(keyed(SL_SERVICE_PORT, connection.port));
  for (std::string path = connection.cgroup; !path.empty();
       path = path == "/" ? "" : path.substr(0, std::max<std::size_t>(path.rfind('/'), 1)))
    if (auto it = cgroups.find(path); it != cgroups.end())
      if (sl_service_id id = keyed(SL_SERVICE_CGROUP, it->second); id != 0) {
        take(id);
        if (nearest_cgroup_only) break;  // a reader may stop at the first hit: nested entries hold the smallest id
      }
  out.service = tables.service_names.at(service);
  for (const auto& [key, verdict] : tables.rules) {
    if (key.service_id != service || key.place_class != place.place_class) continue;
    out.cca = verdict.cca;
    out.fallback = verdict.fallback;
    out.rule = verdict.rule_id;
    out.init_cwnd = verdict.init_cwnd_segments;
    out.needs_ecn = (verdict.flags & SL_VERDICT_NEEDS_ECN) != 0;
    out.respect = (verdict.flags & SL_VERDICT_RESPECT) != 0;
    out.refuse = (verdict.flags & SL_VERDICT_REFUSE) != 0;
    if (out.respect) {
      EXPECT_TRUE(tables.generation.flags & SL_GEN_RESPECT);
    }
    const CompiledBundle* bundle = tables.bundle_of(out.cca);
    EXPECT_EQ(bundle != nullptr, (verdict.flags & SL_VERDICT_BUNDLE) != 0);
    if (bundle != nullptr) out.params = bundle->params.at(verdict.params);
    if (const CompiledBundle* fallback = tables.bundle_of(out.fallback))
      out.fallback_params = fallback->params.at(verdict.fallback_params);
  }
  return out;
}

// --- the second opinion ---

bool in_prefix(const Prefix& prefix, const Prefix& address) {
  auto mapped = [](const Prefix& p) { return p.length >= 96 && p.addr[10] == 0xff && p.addr[11] == 0xff && p.addr[0] == 0; };
  if (mapped(prefix) != mapped(address)) return false;
  for (std::uint32_t bit = 0; bit < prefix.length; ++bit)
    if (((prefix.addr[bit / 8] ^ address.addr[bit / 8]) & (0x80 >> bit % 8)) != 0) return false;
  return true;
}

class Interpreter {
 public:
  Interpreter(const Document& document, const CompileInput& input) : document_(document), input_(input) {}

  Outcome decide(const Connection& connection) const {
    Outcome out;
    const TopologyEntry* entry = nullptr;
    for (const TopologyEntry& each : document_.topology)
      if (in_prefix(each.prefix, connection.remote) && (entry == nullptr || entry->prefix.length < each.prefix.length))
        entry = &each;
    const Place& own = document_.place;
    if (entry != nullptr && entry->external) {
      out.place = "external";
      out.locality = SL_LOCALITY_EXTERNAL;
    } else if (entry != nullptr) {
      const Place& place = entry->place;
      out.place = place.text();
      out.locality = place.region != own.region                                       ? SL_LOCALITY_CROSS_REGION
                     : place.datacenter.empty() || place.datacenter != own.datacenter ? SL_LOCALITY_INTRA_REGION
                     : place.rack.empty() || place.rack != own.rack                   ? SL_LOCALITY_INTRA_DC
                                                                                      : SL_LOCALITY_INTRA_RACK;
    }
    for (const Service& service : document_.services) {
      bool hit = false;
      for (const Prefix& source : service.sources) hit |= in_prefix(source, connection.local);
      for (std::uint16_t port : service.ports) hit |= port == connection.port;
      for (const std::string& path : service.cgroups)
        hit |= input_.cgroups.count(path) != 0 && (connection.cgroup + "/").starts_with(path == "/" ? "/" : path + "/");
      if (hit) {
        out.service = service.name;
        break;
      }
    }
    bool known = entry != nullptr && !entry->external;
    auto holds = [&](const Match& match) {
      if (match.localities != 0 && (match.localities & (1u << out.locality)) == 0) return false;
      if (!match.services.empty() &&
          std::find(match.services.begin(), match.services.end(), out.service) == match.services.end())
        return false;
      if (match.places.empty()) return true;
      for (const PlacePattern& pattern : match.places) {
        auto part = [](const std::string& want, const std::string& have) {
          return want.empty() || want == "*" || want == have;
        };
        if (known && part(pattern.parts.region, entry->place.region) &&
            part(pattern.parts.datacenter, entry->place.datacenter) && part(pattern.parts.rack, entry->place.rack))
          return true;
      }
      return false;
    };
    auto params = [&](const Target& target) {
      ParamValues out_values;
      if (target.native) return out_values;
      out_values = {{"beta", 700}, {"gain", 1}};
      for (const BundleUse& use : document_.bundles) {
        if (use.ref != target.ref()) continue;
        for (const ParameterValue& value : use.parameters)
          if (value.name != "fixed") out_values[value.name] = std::stoul(value.value.text);
        for (const Override& item : use.overrides) {
          if (!holds(item.match)) continue;
          for (const ParameterValue& value : item.parameters) out_values[value.name] = std::stoul(value.value.text);
          break;
        }
      }
      return out_values;
    };
    auto kernel = [&](const Target& target) {
      return target.native ? target.name : bundle::kernel_name(target.name, target.version, input_.instance);
    };
    for (std::size_t i = 0; i < document_.rules.size(); ++i) {
      const Rule& rule = document_.rules[i];
      if (!holds(rule.match)) continue;
      Target target = rule.use;
      if (!target.native && input_.rolled_back.count(target.ref()) != 0) target = *document_.transitional;
      out.rule = static_cast<std::uint32_t>(i + 1);
      out.cca = kernel(target);
      out.init_cwnd = rule.init_cwnd;
      out.respect = rule.application == Application::kRespect;
      out.refuse = rule.application == Application::kRefuse;
      out.params = params(target);
      out.needs_ecn = target.native ? target.name == "dctcp" : target.name == "ecncc";
      if (out.needs_ecn) {
        out.fallback = kernel(*document_.transitional);
        out.fallback_params = params(*document_.transitional);
      }
      break;
    }
    return out;
  }

 private:
  const Document& document_;
  const CompileInput& input_;
};

// --- random documents that are valid by construction ---

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  std::uint32_t pick(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  bool chance(std::uint32_t percent) { return pick(100) < percent; }

  std::string document() {
    std::string out = kHead + "topology:\n";
    if (chance(60)) out += "  - {prefix: 0.0.0.0/0, external: true}\n";
    if (chance(40)) out += "  - {prefix: \"::/0\", external: true}\n";
    if (chance(20)) out += "  - {prefix: \"2000::/3\", external: true}\n";
    for (int region = 0; region < 4; ++region) {
      std::string r = kRegions[region];
      if (chance(70)) out += fmt::format("  - {{prefix: 10.{}.0.0/16, region: {}}}\n", region, r);
      if (chance(70)) out += fmt::format("  - {{prefix: \"2001:db8:{}::/48\", region: {}}}\n", region, r);
      for (int dc = 0; dc < 3; ++dc) {
        if (chance(60))
          out += fmt::format("  - {{prefix: 10.{}.{}.0/24, region: {}, datacenter: {}{}}}\n", region, dc, r, r, dc);
        if (chance(60))
          out += fmt::format("  - {{prefix: 10.{}.{}.{}/28, region: {}, datacenter: {}{}, rack: r{}}}\n", region, dc,
                             16 * pick(8), r, r, dc, pick(3));
        if (chance(40))
          out += fmt::format("  - {{prefix: \"2001:db8:{}:{}::/64\", region: {}, datacenter: {}{}, rack: r1}}\n", region, dc, r,
                             r, dc);
      }
    }
    services_ = pick(5);
    out += "bundles:\n";
    for (const char* bundle : {"cubic, version: 1.0.0", "plain, version: 1.0.0", "ecncc, version: 2.0.0"}) {
      out += fmt::format("  - name: {}\n", bundle);
      out.replace(out.rfind(", version"), 2, "\n    ");
      if (chance(50)) out += fmt::format("    parameters: {{beta: {}, fixed: false}}\n", pick(1000));
      if (chance(70)) {
        out += "    overrides:\n";
        for (std::uint32_t i = 0; i <= pick(3); ++i)
          out += fmt::format("      - {{match: {}, parameters: {{beta: {}, gain: {}}}}}\n", match(), pick(5), pick(3));
      }
    }
    if (services_ > 0) out += "services:\n";
    for (std::uint32_t i = 0; i < services_; ++i) {
      out += fmt::format("  - name: s{}\n    ports: [{}, {}]\n", i, pick(6) + 1, pick(6) + 7);
      if (chance(70)) out += fmt::format("    sources: [{}]\n", kSources[pick(7)]);
      if (chance(70)) out += fmt::format("    cgroups: [{}]\n", kCgroups[pick(6)]);
    }
    out += "transitional: cubic@1.0.0\nrules:\n";
    for (std::uint32_t i = pick(12); i > 0; --i)
      out += fmt::format("  - {{match: {}, use: \"{}\"{}{}}}\n", match(), kTargets[pick(5)],
                         chance(30) ? fmt::format(", init_cwnd: {}", pick(99) + 1) : "",
                         chance(30) ? fmt::format(", application: {}", kApplicationWords[pick(3)]) : "");
    out += "  - {use: \"cubic@1.0.0\"}\n";
    return out;
  }

  Connection connection() {
    Connection out;
    out.remote = address();
    out.local = address();
    out.port = static_cast<std::uint16_t>(pick(16) + 1);
    out.cgroup = std::string(kCgroups[pick(6)]);
    if (chance(30) && out.cgroup != "/") out.cgroup += "/child";
    return out;
  }

  static constexpr const char* kRegions[] = {"eu", "us", "ap", "sa"};
  static constexpr const char* kSources[] = {"10.0.0.0/8", "10.1.0.0/16",         "10.1.2.0/24", "0.0.0.0/0",
                                             "\"::/0\"",   "\"2001:db8:1::/48\"", "10.3.0.5/32"};
  static constexpr const char* kCgroups[] = {"/", "/a", "/a/b", "/a/b/c", "/ab", "/absent"};
  static constexpr const char* kTargets[] = {"kernel:bbr", "plain@1.0.0", "ecncc@2.0.0", "kernel:dctcp", "cubic@1.0.0"};

 private:
  std::mt19937_64 random_;
  std::uint32_t services_ = 0;

  std::string match() {
    std::vector<std::string> parts;
    if (chance(50)) {
      std::set<std::string> words;
      for (std::uint32_t i = 0; i <= pick(3); ++i) words.insert(std::string(kLocalityWords[pick(SL_LOCALITY_COUNT)]));
      parts.push_back(fmt::format("locality: [{}]", fmt::join(words, ", ")));
    }
    if (chance(50)) {
      std::string region = chance(20) ? "*" : kRegions[pick(4)];
      std::string place = region;
      if (chance(50)) place += chance(20) ? "/*" : fmt::format("/{}{}", region == "*" ? "eu" : region, pick(3));
      if (place.find('/') != std::string::npos && chance(40)) place += fmt::format("/r{}", pick(3));
      parts.push_back(fmt::format("place: \"{}\"", place));
    }
    if (services_ > 0 && chance(40)) parts.push_back(fmt::format("service: s{}", pick(services_)));
    return fmt::format("{{{}}}", fmt::join(parts, ", "));
  }
  Prefix address() {
    std::string text = chance(70)
                           ? fmt::format("{}.{}.{}.{}", chance(90) ? 10 : 11, pick(5), pick(4), pick(160))
                           : fmt::format("{}:db8:{}:{}::{:x}", chance(90) ? "2001" : "3001", pick(5), pick(4), pick(9) + 1);
    return *parse_prefix(text);
  }
};

std::uint64_t first_seed() {
  if (const char* text = std::getenv("SLUICE_SEED")) return std::strtoull(text, nullptr, 10);
  return 20260101;
}

// Random rule lists are full of unreachable rules, which a document may not have: take out what is refused, and go on.
std::optional<Document> repaired(std::string text) {
  for (int tries = 0; tries < 40; ++tries) {
    yaml::Problems problems;
    auto document = parse_document(text, "p.yaml", &problems);
    if (document) return *document;
    int line = 0;
    for (const yaml::Problem& problem : problems.list()) {
      EXPECT_TRUE(problem.what.find("unreachable") != std::string::npos ||
                  problem.what.find("duplicate") != std::string::npos || problem.what.find("listed twice") != std::string::npos)
          << problem.message() << "\n"
          << text;
      line = std::max(line, std::atoi(problem.where.c_str() + problem.where.find(':') + 1));
    }
    std::size_t at = 0;
    for (int i = 1; i < line; ++i) at = text.find('\n', at) + 1;
    text.erase(at, text.find('\n', at) + 1 - at);
  }
  return std::nullopt;
}

TEST(Compile, AgreesWithABruteForceInterpreterOnRandomDocuments) {
  Bundles bundles;
  std::uint64_t seed = first_seed();
  int documents = 0;
  for (int round = 0; round < 400; ++round, ++seed) {
    SCOPED_TRACE(fmt::format("SLUICE_SEED={}", seed));
    Generator generator(seed);
    auto document = repaired(generator.document());
    if (!document) continue;
    ++documents;
    CompileInput input = bundles.input();
    input.instance = generator.chance(50) ? "" : "test";
    std::uint64_t id = 100;
    for (const char* path : Generator::kCgroups)
      if (std::string_view(path) != "/absent") input.cgroups[path] = id++;
    if (generator.chance(30)) input.rolled_back.insert({"ecncc", {2, 0, 0, ""}});
    if (generator.chance(30)) input.rolled_back.insert({"plain", {1, 0, 0, ""}});
    Compiled tables = compiled(*document, input);
    Interpreter interpreter(*document, input);
    for (int i = 0; i < 200; ++i) {
      Connection connection = generator.connection();
      Outcome expected = interpreter.decide(connection);
      Outcome actual = from_tables(tables, connection, input.cgroups, i % 2 == 0);
      ASSERT_EQ(actual, expected) << connection.remote.text() << " from " << connection.local.text() << " port "
                                  << connection.port << " cgroup " << connection.cgroup << "\n"
                                  << document->text;

      Query query{connection.remote, connection.local, connection.port, connection.cgroup};
      auto explained = explain(*document, tables, query);
      ASSERT_TRUE(explained) << explained.error().message();
      EXPECT_EQ(explained->place, expected.place);
      EXPECT_EQ(explained->locality, expected.locality);
      EXPECT_EQ(explained->service, expected.service);
      EXPECT_EQ(explained->rule_id, expected.rule);
      EXPECT_EQ(explained->cca, expected.cca);
      EXPECT_EQ(explained->fallback, expected.fallback);
      for (const auto& [name, value] : expected.params) EXPECT_EQ(explained->parameters.at(name), value) << name;
    }
  }
  EXPECT_GT(documents, 300);
}

TEST(Compile, IsDeterministic) {
  Bundles bundles;
  Document document = *repaired(Generator(7).document());
  Compiled a = compiled(document, bundles.input()), b = compiled(document, bundles.input());
  ASSERT_EQ(a.rules.size(), b.rules.size());
  for (std::size_t i = 0; i < a.rules.size(); ++i)
    EXPECT_EQ(std::memcmp(&a.rules[i].second, &b.rules[i].second, sizeof(sl_verdict)), 0);
  EXPECT_EQ(a.params, b.params);
}

TEST(Compile, PlacesThatNoRuleTellsApartShareAClass) {
  Bundles bundles;
  std::string text = kHead + "topology:\n";
  for (int i = 0; i < 200; ++i)
    text += fmt::format("  - {{prefix: 10.{}.0.0/16, region: us, datacenter: d{}, rack: r{}}}\n", i, i / 10, i);
  text += "rules:\n  - {match: {place: us/d3}, use: kernel:bbr}\n  - {use: kernel:cubic}\n";
  Compiled tables = compiled(parsed(text), bundles.input());
  EXPECT_EQ(tables.places.size(), 200u);
  EXPECT_EQ(tables.place_info.size(), 201u);
  EXPECT_EQ(tables.place_classes, 2u);  // unknown and all other places; us/d3
  EXPECT_EQ(tables.rules.size(), 2u);
}

// 10,000 prefixes and 200 rules: what grows is the LPM, not the verdicts.
TEST(Compile, LargePolicyStaysSmall) {
  Bundles bundles;
  std::string text = kHead + "topology:\n";
  for (int i = 0; i < 10000; ++i)
    text += fmt::format("  - {{prefix: 10.{}.{}.{}/28, region: us{}, datacenter: d{}, rack: r{}}}\n", i >> 12, i >> 4 & 255,
                        (i & 15) * 16, i % 20, i % 400, i);
  text += "services: [{name: web, ports: [80]}, {name: db, ports: [5432]}, {name: x, sources: [10.9.0.0/16]}]\nrules:\n";
  for (int i = 0; i < 199; ++i)
    text += fmt::format("  - {{match: {{place: us{}/d{}, service: {}}}, use: \"kernel:c{}\"}}\n", i % 20, i % 400,
                        i % 2 ? "web" : "db", i);
  text += "  - {use: kernel:cubic}\n";
  auto clock = [] {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
  };
  double start = clock();
  Document document = parsed(text);
  double middle = clock();
  Compiled tables = compiled(document, bundles.input());
  double end = clock();
  RecordProperty("parse_ms", std::to_string(middle - start));
  RecordProperty("compile_ms", std::to_string(end - middle));
  std::printf("10k prefixes, 200 rules: parse %.1f ms, compile %.1f ms of CPU\n", middle - start, end - middle);
  EXPECT_EQ(tables.places.size(), 10000u);
  EXPECT_EQ(tables.place_info.size(), 10001u);
  EXPECT_EQ(tables.place_classes, 200u);  // 199 datacenters that rules name, and the rest
  EXPECT_EQ(tables.rules.size(), 4u * 200u);
}

TEST(Compile, AnIpv6DefaultDoesNotSwallowIpv4) {
  Bundles bundles;
  std::string rules = "rules: [{match: {locality: external}, use: kernel:bbr}, {use: kernel:cubic}]\n";
  Compiled tables = compiled(parsed(kHead + "topology: [{prefix: \"::/0\", external: true}]\n" + rules), bundles.input());
  const sl_place* v4 = lpm(tables.places, *parse_prefix("1.2.3.4"));
  ASSERT_NE(v4, nullptr);
  EXPECT_EQ(v4->locality, SL_LOCALITY_UNKNOWN);
  EXPECT_EQ(v4->place_class, 0);
  EXPECT_EQ(lpm(tables.places, *parse_prefix("2001::1"))->locality, SL_LOCALITY_EXTERNAL);
}

TEST(Compile, GenerationAndListener) {
  Bundles bundles;
  CompileInput input = bundles.input();
  input.generation = 42;
  input.cgroups["/a"] = 9;
  Compiled tables = compiled(
      parsed(kHead +
             "bundles: [{name: cubic, version: 1.0.0}]\nservices: [{name: a, cgroups: [/a, /later], sources: [10.0.0.0/8]}]\n"
             "rules: [{use: kernel:reno}]\n"),
      input);
  EXPECT_EQ(tables.generation.generation, 42u);
  EXPECT_EQ(tables.generation.flags, __u32{SL_GEN_SELF_MIGRATE | SL_GEN_CGROUPS | SL_GEN_SOURCES});
  EXPECT_STREQ(tables.generation.listener_cca, "cubic.1.0.0");
  EXPECT_TRUE(tables.bundles[0].selected);
  EXPECT_EQ(tables.missing_cgroups, std::set<std::string>{"/later"});
  ASSERT_EQ(tables.warnings.size(), 1u);
  EXPECT_THAT(tables.warnings[0].message(), HasSubstr("cgroup /later of service a does not exist"));

  Compiled native = compiled(parsed(kHead + "rules: [{use: kernel:reno}]\noptions: {self_migrate: false}\n"), bundles.input());
  EXPECT_STREQ(native.generation.listener_cca, "");
  EXPECT_EQ(native.generation.flags, 0u);
}

TEST(Compile, WarnsOfARuleThatNoPlaceReaches) {
  Bundles bundles;
  Compiled tables = compiled(parsed(kHead + "topology: [{prefix: 10.0.0.0/8, region: us}]\nrules:\n  - {match: {place: su}, "
                                            "use: kernel:bbr}\n  - {use: kernel:reno}\n"),
                             bundles.input());
  ASSERT_EQ(tables.warnings.size(), 1u);
  EXPECT_EQ(tables.warnings[0].where, "p.yaml:6:5");
  EXPECT_THAT(tables.warnings[0].what, HasSubstr("rule 1 matches no place of the topology (place su)"));
}

// --- parameter sets ---

std::string with_beta(int global, int web) {
  return kHead + fmt::format(
                     "bundles:\n  - name: cubic\n    version: 1.0.0\n    parameters: {{beta: {}}}\n    overrides: [{{match: "
                     "{{service: web}}, parameters: {{beta: {}}}}}]\n"
                     "services: [{{name: web, ports: [80]}}]\nrules: [{{use: cubic@1.0.0}}]\n",
                     global, web);
}
std::pair<std::uint32_t, std::uint32_t> entries(const Compiled& tables) {  // without service, web
  return {tables.rules.at(0).second.params, tables.rules.at(1).second.params};
}

TEST(Parameters, AnEntryInUseIsNeverRewrittenAndEqualValuesKeepTheirs) {
  Bundles bundles;
  CompileInput input = bundles.input();
  const bundle::BundleRef cubic{"cubic", {1, 0, 0, ""}};
  Compiled first = compiled(parsed(with_beta(700, 500)), input);
  EXPECT_EQ(entries(first), std::pair(0u, 1u));
  EXPECT_EQ(first.bundles[0].params.at(1).at("beta"), 500u);
  EXPECT_EQ(first.bundles[0].params.at(1).count("fixed"), 0u);
  EXPECT_EQ(first.bundles[0].load_values, (ParamValues{{"fixed", 1}}));

  input.in_use = first.params;
  Compiled same = compiled(parsed(with_beta(700, 500)), input);
  EXPECT_EQ(entries(same), entries(first));
  EXPECT_EQ(same.params, first.params);

  Compiled global_changed = compiled(parsed(with_beta(600, 500)), input);
  EXPECT_EQ(entries(global_changed), std::pair(2u, 1u));
  EXPECT_EQ(global_changed.bundles[0].global_params, 2u);
  EXPECT_EQ(global_changed.generation.listener_params, 2u);
  EXPECT_EQ(global_changed.params.at(cubic).at(0).at("beta"), 700u);  // still what sockets on entry 0 read
  EXPECT_EQ(global_changed.bundles[0].params.count(0), 0u);

  Compiled swapped = compiled(parsed(with_beta(500, 700)), input);
  EXPECT_EQ(entries(swapped), std::pair(1u, 0u));

  // Nobody uses entry 0 any more: it is written again, for sockets without storage, and 2 stays what it was.
  input.in_use = global_changed.params;
  input.in_use[cubic].erase(0);
  Compiled later = compiled(parsed(with_beta(600, 500)), input);
  EXPECT_EQ(entries(later), std::pair(2u, 1u));
  EXPECT_EQ(later.bundles[0].params.at(0).at("beta"), 600u);

  Compiled reuse = compiled(parsed(with_beta(600, 400)), input);
  EXPECT_EQ(entries(reuse), std::pair(2u, 3u));  // 1 may still be in use
}

TEST(Parameters, RunOutWithAnErrorNotAWrongValue) {
  Bundles bundles;
  CompileInput input = bundles.input();
  for (std::uint32_t i = 0; i < SL_PARAM_SETS; ++i) input.in_use[{"cubic", {1, 0, 0, ""}}][i] = {{"beta", 2000 + i}};
  auto out = compile(parsed(with_beta(700, 500)), input);
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().code, Code::kExhausted);
  EXPECT_EQ(out.error().where, "p.yaml:5:11");
  EXPECT_THAT(out.error().remedy, HasSubstr("wait until connections"));
}

TEST(Parameters, RandomHistoriesNeverTouchWhatIsInUse) {
  Bundles bundles;
  std::uint64_t seed = first_seed();
  SCOPED_TRACE(fmt::format("SLUICE_SEED={}", seed));
  std::mt19937_64 random(seed);
  CompileInput input = bundles.input();
  const bundle::BundleRef cubic{"cubic", {1, 0, 0, ""}};
  for (int step = 0; step < 300; ++step) {
    int global = static_cast<int>(random() % 12), web = static_cast<int>(random() % 12);
    auto before = input.in_use[cubic];
    Compiled tables = compiled(parsed(with_beta(global, web)), input);
    for (const auto& [index, values] : before) ASSERT_EQ(tables.params.at(cubic).at(index), values);
    auto [no_service, for_web] = entries(tables);
    ASSERT_EQ(tables.bundles[0].params.at(no_service).at("beta"), static_cast<std::uint64_t>(global));
    ASSERT_EQ(tables.bundles[0].params.at(for_web).at("beta"), static_cast<std::uint64_t>(web));
    ASSERT_EQ(tables.params.at(cubic).count(0), 1u);
    input.in_use = tables.params;
    for (auto it = input.in_use[cubic].begin(); it != input.in_use[cubic].end();)  // sockets leave at random
      it = random() % 3 == 0 ? input.in_use[cubic].erase(it) : std::next(it);
  }
}

// --- rollback ---

TEST(Rollback, ReplacesTheBundleByTheTransitionalOne) {
  Bundles bundles;
  CompileInput input = bundles.input();
  std::string text = kHead +
                     "bundles: [{name: cubic, version: 1.0.0}, {name: cubic, version: 1.1.0}, {name: ecncc, version: 2.0.0}]\n"
                     "transitional: cubic@1.0.0\nrules: [{use: ecncc@2.0.0}]\n";
  Compiled before = compiled(parsed(text), input);
  EXPECT_STREQ(before.rules[0].second.cca, "ecncc.2.0.0");
  EXPECT_STREQ(before.rules[0].second.fallback, "cubic.1.0.0");
  EXPECT_EQ(before.rules[0].second.flags, SL_VERDICT_NEEDS_ECN | SL_VERDICT_BUNDLE);

  input.rolled_back = {{"ecncc", {2, 0, 0, ""}}};
  Compiled after = compiled(parsed(text), input);
  EXPECT_STREQ(after.rules[0].second.cca, "cubic.1.0.0");
  EXPECT_STREQ(after.rules[0].second.fallback, "");
  EXPECT_EQ(after.rules[0].second.flags, SL_VERDICT_BUNDLE);
  EXPECT_TRUE(after.bundles[2].rolled_back);
  EXPECT_FALSE(after.bundles[2].selected);
  auto why = explain(parsed(text), after, {*parse_prefix("1.2.3.4"), std::nullopt, 0, ""});
  ASSERT_TRUE(why);
  EXPECT_THAT(fmt::format("{}", fmt::join(why->why, "\n")),
              HasSubstr("it says ecncc@2.0.0, which is rolled back: cubic@1.0.0"));

  // The transitional one itself: the other version of it takes over, listeners included.
  input.rolled_back.insert({"cubic", {1, 0, 0, ""}});
  Compiled other = compiled(parsed(text), input);
  EXPECT_STREQ(other.rules[0].second.cca, "cubic.1.1.0");
  EXPECT_STREQ(other.generation.listener_cca, "cubic.1.1.0");

  input.rolled_back.insert({"cubic", {1, 1, 0, ""}});
  auto nothing = compile(parsed(text), input);
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code, Code::kConflict);
  EXPECT_THAT(nothing.error().remedy, HasSubstr("transitional: kernel:cubic"));
}

TEST(Rollback, ToANativeCca) {
  Bundles bundles;
  CompileInput input = bundles.input();
  input.rolled_back = {{"plain", {1, 0, 0, ""}}};
  std::string text = kHead + "bundles: [{name: plain, version: 1.0.0}]\nrules: [{use: plain@1.0.0}]\n";
  EXPECT_FALSE(compile(parsed(text), input));
  Compiled tables = compiled(parsed(text + "transitional: kernel:reno\n"), input);
  EXPECT_STREQ(tables.rules[0].second.cca, "reno");
  EXPECT_EQ(tables.rules[0].second.flags, 0);
  EXPECT_STREQ(tables.generation.listener_cca, "reno");
}

TEST(Explain, TellsEveryStep) {
  Bundles bundles;
  std::string text = kHead +
                     "topology:\n  - {prefix: 10.2.0.0/16, region: us, datacenter: us1}\n"
                     "bundles:\n  - name: cubic\n    version: 1.0.0\n  - name: ecncc\n    version: 2.0.0\n"
                     "    overrides: [{match: {place: us}, parameters: {beta: 5}}]\n"
                     "services: [{name: web, ports: [80]}]\n"
                     "rules:\n  - {name: far, match: {locality: cross_region, service: web}, use: ecncc@2.0.0, application: "
                     "respect, init_cwnd: "
                     "30}\n  - {use: kernel:reno}\n";
  Document document = parsed(text);
  Compiled tables = compiled(document, bundles.input());
  auto out = explain(document, tables, {*parse_prefix("10.2.3.4"), std::nullopt, 80, ""});
  ASSERT_TRUE(out);
  EXPECT_EQ(out->target, "ecncc@2.0.0");
  EXPECT_EQ(out->parameters.at("beta"), 5u);
  EXPECT_EQ(out->parameters.at("fixed"), 1u);
  EXPECT_EQ(out->init_cwnd_segments, 30);
  EXPECT_THAT(out->why,
              ::testing::ElementsAre("10.2.3.4 lies in 10.2.0.0/16, the longest prefix that holds it (line 5): us/us1",
                                     "this host is in eu/eu1/r1: the locality is cross_region", "service web: local port 80",
                                     "rule 1 (far) (line 14) is the first that matches: locality cross_region, service web",
                                     "it says ecncc@2.0.0, in the kernel ecncc.2.0.0",
                                     "override 1 of ecncc@2.0.0 (line 11) applies: place us",
                                     "ecncc@2.0.0 requires ECN; a connection without it gets cubic.1.0.0",
                                     "a CCA that the application chose itself stays, unless it is a bundle's"));
  EXPECT_FALSE(explain(document, tables, {*parse_prefix("10.0.0.0/8"), std::nullopt, 0, ""}));
}

}  // namespace
}  // namespace sluice::policy
