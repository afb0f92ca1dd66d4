// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// bundle.yaml: what a bundle says about itself. Reference: docs/reference/bundle.md, schema: schemas/bundle.schema.json.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/kernel_version.h"
#include "base/result.h"
#include "bundle/version.h"
#include "bundle/yaml.h"

namespace sluice::bundle {

enum class Class { kCca, kPolicy, kColl };
enum class Ecn { kIgnores, kTolerates, kRequires };
enum class ParamType { kU64, kU32, kBool, kPercent };
enum class When { kLive, kLoad };  // entry of sl_params | const volatile, set before load
enum class Access { kRead, kReadWrite };

// The words of bundle.yaml, in the order of the enums above; the schema's test reads them too.
inline constexpr std::array<std::string_view, 3> kClassWords{"cca", "policy", "coll"};
inline constexpr std::array<std::string_view, 3> kEcnWords{"ignores", "tolerates", "requires"};
inline constexpr std::array<std::string_view, 4> kTypeWords{"u64", "u32", "bool", "percent"};
inline constexpr std::array<std::string_view, 2> kWhenWords{"live", "load"};
inline constexpr std::array<std::string_view, 2> kAccessWords{"r", "rw"};

inline constexpr std::array<std::string_view, 15> kManifestKeys{
    "name",   "version", "class",      "summary",     "license",     "objects",      "kernel", "hooks",
    "stages", "signals", "parameters", "shared_maps", "transitions", "transitional", "state"};
inline constexpr std::array<std::string_view, 2> kKernelKeys{"min", "features"};
inline constexpr std::array<std::string_view, 3> kSignalKeys{"ecn", "delay", "loss"};
inline constexpr std::array<std::string_view, 8> kParameterKeys{"name", "type",    "unit", "min",
                                                                "max",  "default", "when", "summary"};
inline constexpr std::array<std::string_view, 3> kSharedMapKeys{"name", "schema", "access"};
inline constexpr std::array<std::string_view, 2> kTransitionKeys{"from", "to"};
inline constexpr std::array<std::string_view, 1> kStateKeys{"tag"};

struct Parameter {
  std::string name;
  ParamType type = ParamType::kU64;
  std::string unit;  // "" = a plain number
  std::uint64_t min = 0;
  std::uint64_t max = 0;
  std::uint64_t default_value = 0;
  When when = When::kLive;
  std::string summary;
  yaml::Mark mark;
};

struct SharedMap {
  std::string name;
  std::string schema;  // "sl.sock"
  std::uint32_t schema_version = 0;
  Access access = Access::kRead;
};

// One side of a transition: "*", "cubic", "cubic@>=1.0.0 <2.0.0", "kernel:bbr", "kernel:*".
struct CcaSelector {
  bool native = false;
  std::string name = "*";
  VersionRange versions;
  std::string text() const;
  bool matches(bool is_native, std::string_view cca, const Version* version) const;
};
struct Transition {
  CcaSelector from;  // absent in the file = this bundle
  CcaSelector to;
  yaml::Mark mark;
};

struct Manifest {
  std::string source;  // file it was read from, for messages
  std::string name;
  Version version;
  Class bundle_class = Class::kCca;
  std::string summary;
  std::string license;
  std::vector<std::string> objects;  // file names in the bundle's folder
  KernelVersion kernel_min;
  std::vector<std::string> kernel_features;  // names of bpfio's probe table
  std::vector<std::string> hooks;            // tcp_congestion_ops members; program names for other classes
  std::vector<std::string> stages;           // class policy: sockops stages in the order they run
  Ecn ecn = Ecn::kIgnores;
  bool delay = false;
  bool loss = false;
  std::vector<Parameter> parameters;
  std::vector<SharedMap> shared_maps;
  std::vector<Transition> transitions;
  bool transitional = false;
  std::string state_tag;  // hand-over layout; "" = none

  // Places of what lint may want to point at.
  yaml::Mark hooks_mark, ecn_mark, license_mark, name_mark;

  std::string ref() const { return name + "@" + version.text(); }
  bool needs_ecn() const { return ecn == Ecn::kRequires; }
  const Parameter* parameter(std::string_view parameter_name) const;
};

// Names of the hooks a CCA may implement, members of struct tcp_congestion_ops.
std::span<const std::string_view> cca_hooks();

// `problems`, when given, receives all of them (the Error holds them too, in `also`).
Result<Manifest> parse_manifest(std::string_view text, std::string_view source, yaml::Problems* problems = nullptr);
Result<Manifest> read_manifest(const std::string& path);

// A parameter's value in the notation of its type; what a policy document and `cca show` use.
Result<std::uint64_t> parse_parameter(const Parameter& parameter, const yaml::Node& node);
std::string format_parameter(const Parameter& parameter, std::uint64_t value);
// "0..1000 permille"
std::string range_text(const Parameter& parameter);

// NAME@VERSION as written in documents and on the command line.
struct BundleRef {
  std::string name;
  Version version;
  std::string text() const { return name + "@" + version.text(); }
  std::strong_ordering operator<=>(const BundleRef&) const = default;
  bool operator==(const BundleRef&) const = default;
};
Result<BundleRef> parse_bundle_ref(std::string_view text);

// The name a bundle's CCA has in the kernel: `<name>.<version>` where it fits into 15 characters of [A-Za-z0-9_.] and the
// instance is the default one (""); else `<name, cut>.<hash>`, the hash over all three. The two forms cannot meet: the first
// has at least two dots, the second one.
std::string kernel_name(std::string_view name, const Version& version, std::string_view instance);

// True for 1..15 characters of [A-Za-z0-9_.-]: what tcp_congestion_control may hold. (A hyphen only in native names.)
bool valid_cca_name(std::string_view name);

}  // namespace sluice::bundle
