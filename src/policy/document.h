// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The policy document (`kind: Host`): what one host is asked to do. Reference: docs/reference/policy.md, schema:
// schemas/policy.schema.json. Pure: text in, values out.
#pragma once

#include <sluice/abi/policy.h>

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "bundle/manifest.h"
#include "bundle/yaml.h"

namespace sluice::policy {

// Keys of the document; the schema's test reads them too.
inline constexpr std::array<std::string_view, 10> kDocumentKeys{"apiVersion", "kind",  "place",        "topology", "bundles",
                                                                "services",   "rules", "transitional", "sysctls",  "options"};
inline constexpr std::array<std::string_view, 3> kPlaceKeys{"region", "datacenter", "rack"};
inline constexpr std::array<std::string_view, 5> kTopologyKeys{"prefix", "region", "datacenter", "rack", "external"};
inline constexpr std::array<std::string_view, 4> kBundleKeys{"name", "version", "parameters", "overrides"};
inline constexpr std::array<std::string_view, 2> kOverrideKeys{"match", "parameters"};
inline constexpr std::array<std::string_view, 4> kServiceKeys{"name", "sources", "cgroups", "ports"};
inline constexpr std::array<std::string_view, 5> kRuleKeys{"name", "match", "use", "init_cwnd", "application"};
inline constexpr std::array<std::string_view, 3> kApplicationWords{"override", "respect", "refuse"};
inline constexpr std::array<std::string_view, 3> kMatchKeys{"locality", "place", "service"};
inline constexpr std::array<std::string_view, 1> kOptionKeys{"self_migrate"};
inline constexpr std::array<std::string_view, SL_LOCALITY_COUNT> kLocalityWords{"unknown",      "external", "cross_region",
                                                                                "intra_region", "intra_dc", "intra_rack"};

// Sysctls a document may set, with their ranges. The agent saves the old value and `down` restores it.
struct SysctlRange {
  std::string_view name;
  std::uint64_t min;
  std::uint64_t max;
};
inline constexpr std::array<SysctlRange, 5> kSysctls{{{"net.ipv4.tcp_ecn", 0, 2},
                                                      {"net.ipv4.tcp_ecn_fallback", 0, 1},
                                                      {"net.ipv4.tcp_mtu_probing", 0, 2},
                                                      {"net.ipv4.tcp_no_metrics_save", 0, 1},
                                                      {"net.ipv4.tcp_slow_start_after_idle", 0, 1}}};

// A place: region, datacenter, rack; "" = not given, and then nothing follows. All empty = unknown.
struct Place {
  std::string region;
  std::string datacenter;
  std::string rack;
  bool empty() const { return region.empty(); }
  std::string text() const;  // "eu/eu1/r1"
  std::strong_ordering operator<=>(const Place&) const = default;
  bool operator==(const Place&) const = default;
};

// An address block; IPv4 as IPv4-mapped IPv6, as in struct sl_prefix.
struct Prefix {
  std::array<std::uint8_t, 16> addr{};
  std::uint32_t length = 0;  // 0..128; IPv4 + 96
  bool ipv4() const;
  bool contains(const Prefix& other) const;  // other lies within, or is equal
  Prefix network() const;                    // host bits cleared
  std::string text() const;                  // "10.1.0.0/16"
  std::strong_ordering operator<=>(const Prefix&) const = default;
  bool operator==(const Prefix&) const = default;
};
// "10.1.0.0/16", "2001:db8::/32", "::ffff:10.0.0.0/104" (= 10.0.0.0/8); an address alone is a host prefix. Host bits are kept.
Result<Prefix> parse_prefix(std::string_view text);

// sl_locality by name: unknown, external, cross_region, intra_region, intra_dc, intra_rack.
std::string_view locality_name(sl_locality locality);
std::optional<sl_locality> locality_from_name(std::string_view name);
// How far `remote` is from `own`. An empty remote is unknown.
sl_locality locality_of(const Place& own, const Place& remote, bool external);

// "eu", "eu/eu2", "us/*", "*/dc1/r1": a missing or "*" part matches anything. Never matches unknown or external.
struct PlacePattern {
  Place parts;
  bool matches(const Place& place) const;
  std::string text() const;
  bool operator==(const PlacePattern&) const = default;
};

// All given conditions must hold; within one, any value.
struct Match {
  std::uint32_t localities = 0;  // bit per sl_locality; 0 = not asked
  std::vector<PlacePattern> places;
  std::vector<std::string> services;
  bool operator==(const Match&) const = default;
  std::string text() const;  // "locality intra_dc, service web"; "anything"
};

// What a rule selects: "cubic@1.0.0" or "kernel:bbr".
struct Target {
  bool native = false;
  std::string name;
  bundle::Version version;  // native: unused
  std::string text() const;
  bundle::BundleRef ref() const { return {name, version}; }
  std::strong_ordering operator<=>(const Target&) const = default;
  bool operator==(const Target&) const = default;
};
Result<Target> parse_target(std::string_view text);

struct TopologyEntry {
  Prefix prefix;
  Place place;  // empty when external
  bool external = false;
  yaml::Mark mark;
};

// Values as written; their types and ranges are the bundle's to say (check()).
struct ParameterValue {
  std::string name;
  yaml::Node value;
  yaml::Mark mark;
};
struct Override {
  Match match;
  std::vector<ParameterValue> parameters;
  yaml::Mark mark;
};
struct BundleUse {
  bundle::BundleRef ref;
  std::vector<ParameterValue> parameters;
  std::vector<Override> overrides;  // the first that matches adds its values to the global ones
  yaml::Mark mark;
};

struct Service {  // a connection belongs to the first service of which any source, cgroup or port is its own
  std::string name;
  std::vector<Prefix> sources;       // of the local address
  std::vector<std::string> cgroups;  // absolute paths in the cgroup2 hierarchy; what is below belongs to it too
  std::vector<std::uint16_t> ports;  // local
  yaml::Mark mark;
};

// What becomes of a TCP_CONGESTION that the application sets itself.
enum class Application {
  kOverride,  // it succeeds and changes nothing
  kRespect,   // the socket keeps it, unless it names a bundle's CCA
  kRefuse,    // EPERM
};

struct Rule {
  std::string name;  // "" = none
  Match match;
  Target use;
  std::uint16_t init_cwnd = 0;  // segments; 0 = the kernel's
  Application application = Application::kOverride;
  yaml::Mark mark;
  yaml::Mark use_mark;
  std::string label(std::size_t index) const;  // "rule 2 (web)"
  bool decides_like(const Rule& other) const {
    return use == other.use && init_cwnd == other.init_cwnd && application == other.application;
  }
};

struct Options {
  bool self_migrate = true;
  bool operator==(const Options&) const = default;
};

struct Document {
  std::string source;  // name in messages
  std::string text;    // as written: this is what is stored
  Place place;
  std::vector<TopologyEntry> topology;
  std::vector<BundleUse> bundles;
  std::vector<Service> services;
  std::vector<Rule> rules;
  std::optional<Target> transitional;
  std::map<std::string, std::string> sysctls;  // name -> value
  Options options;
  yaml::Mark rules_mark, transitional_mark;

  std::string where(yaml::Mark mark) const;
};

// Reads and checks all that needs no bundle. The Error's `also` holds the problems after the first (up to 20); `problems`, when
// given, receives them.
Result<Document> parse_document(std::string_view text, std::string_view source, yaml::Problems* problems = nullptr);

using Manifests = std::vector<const bundle::Manifest*>;  // the bundles that can be had

// Checks the document against the bundles: existence, versions, parameters, ECN and the transitional CCA.
Status check(const Document& document, const Manifests& manifests, yaml::Problems* problems = nullptr);

// The transitional CCA: the one named, or the only transitional bundle listed. nullopt = none, or several and none named.
std::optional<Target> transitional_of(const Document& document, const Manifests& manifests);

// Native CCAs with TCP_CONG_NEEDS_ECN.
bool native_needs_ecn(std::string_view name);

// Canonical JSON; as JSON is YAML, parse_document reads it back to an equal document.
std::string to_json(const Document& document);

// What `after` changes, in the order of the document, for people. `before` may be null: nothing so far.
struct Change {
  enum class Kind { kAdded, kRemoved, kChanged };
  Kind kind;
  std::string subject;       // "rule 2 (web)", "place of 10.1.0.0/16", "bundle cubic@1.1.0"
  std::string detail;        // "cubic@1.0.0 -> cubic@1.1.0"; may be empty
  std::string text() const;  // "~ rule 2 (web): cubic@1.0.0 -> cubic@1.1.0"
};
std::vector<Change> diff(const Document* before, const Document& after);

}  // namespace sluice::policy
