// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// bundle.yaml to Manifest.
#include "bundle/manifest.h"

#include <algorithm>
#include <limits>

#include "base/file.h"
#include "bundle/sha256.h"

namespace sluice::bundle {
namespace {

// Members of struct tcp_congestion_ops that a program may implement (Linux 5.6 to 7.1). get_info is left out: the kernel
// refuses it to BPF.
constexpr std::array<std::string_view, 13> kCcaHooks{
    "init",       "release",      "ssthresh",     "cong_avoid", "set_state",     "cwnd_event",         "in_ack_event",
    "pkts_acked", "min_tso_segs", "cong_control", "undo_cwnd",  "sndbuf_expand", "cwnd_event_tx_start"};

constexpr std::size_t kNameMax = 32;
constexpr std::size_t kKernelNameMax = 15;

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Names of bundles and parameters: they end up in C identifiers, file names and metrics.
bool valid_identifier(std::string_view name) {
  return !name.empty() && name.size() <= kNameMax && is_lower(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_lower(c) || is_digit(c) || c == '_'; });
}

// As in the probe table of bpfio: "struct_ops-link".
bool valid_feature(std::string_view name) {
  return !name.empty() && name.size() <= 63 && is_lower(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_lower(c) || is_digit(c) || c == '_' || c == '-'; });
}

// C identifiers (programs, maps).
bool valid_c_name(std::string_view name) {
  auto word = [](char c) { return is_lower(c) || is_digit(c) || c == '_' || (c >= 'A' && c <= 'Z'); };
  return !name.empty() && name.size() <= 63 && !is_digit(name[0]) && std::all_of(name.begin(), name.end(), word);
}

// A plain file name with a suffix .o.
bool valid_object_name(std::string_view name) {
  auto ok = [](char c) { return is_lower(c) || is_digit(c) || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '.'; };
  return name.size() > 2 && name.size() <= 64 && name[0] != '.' && name.ends_with(".o") &&
         std::all_of(name.begin(), name.end(), ok);
}

constexpr std::string_view kIdentifierRemedy = "use 1 to 32 characters of a-z, 0-9 and _, a letter first";

std::uint64_t type_max(ParamType type) {
  switch (type) {
    case ParamType::kU64:
      return std::numeric_limits<std::uint64_t>::max();
    case ParamType::kU32:
      return std::numeric_limits<std::uint32_t>::max();
    case ParamType::kBool:
      return 1;
    case ParamType::kPercent:
      return 100;
  }
  return 0;
}

class ManifestReader {
 public:
  ManifestReader(std::string_view source, yaml::Problems& problems) : reader_(std::string(source), problems) {
    manifest_.source = source;
  }

  Manifest read(const yaml::Node& root) {
    if (!reader_.map(root, "the bundle", kManifestKeys)) return std::move(manifest_);
    identity(root);
    if (const yaml::Node* node = reader_.required(root, "kernel", "the bundle")) kernel(*node);
    hooks_and_stages(root);
    if (const yaml::Node* node = root.find("signals")) signals(*node);
    if (const yaml::Node* node = root.find("parameters"))
      for (const yaml::Node& item : reader_.list(*node, "'parameters'")) parameter(item);
    if (const yaml::Node* node = root.find("shared_maps"))
      for (const yaml::Node& item : reader_.list(*node, "'shared_maps'")) shared_map(item);
    if (const yaml::Node* node = root.find("transitions"))
      for (const yaml::Node& item : reader_.list(*node, "'transitions'")) transition(item);
    if (const yaml::Node* node = root.find("state"))
      if (reader_.map(*node, "'state'", kStateKeys))
        if (const yaml::Node* tag = reader_.required(*node, "tag", "'state'"))
          if (auto text = reader_.text(*tag, "the state's 'tag'")) manifest_.state_tag = *text;
    if (const yaml::Node* node = root.find("transitional")) {
      if (auto value = reader_.boolean(*node, "'transitional'")) manifest_.transitional = *value;
      if (manifest_.transitional && manifest_.needs_ecn())
        reader_.problem(
            node->mark, "a bundle that requires ECN cannot be transitional",
            "a transitional CCA takes connections with and without ECN: set 'signals.ecn: tolerates' or 'transitional: false'");
      if (manifest_.transitional && manifest_.bundle_class != Class::kCca)
        reader_.problem(node->mark, "only a bundle of class cca can be transitional", "leave 'transitional' out");
    }
    return std::move(manifest_);
  }

 private:
  yaml::Reader reader_;
  Manifest manifest_;

  void identity(const yaml::Node& root) {
    if (const yaml::Node* node = reader_.required(root, "name", "the bundle")) {
      manifest_.name_mark = node->mark;
      if (auto text = reader_.text(*node, "the bundle's 'name'")) {
        if (!valid_identifier(*text))
          reader_.problem(node->mark, fmt::format("'{}' is not a bundle name", text->substr(0, 60)),
                          std::string(kIdentifierRemedy));
        else
          manifest_.name = *text;
      }
    }
    if (const yaml::Node* node = reader_.required(root, "version", "the bundle"))
      if (auto text = reader_.text(*node, "the bundle's 'version'")) {
        if (auto version = parse_version(*text))
          manifest_.version = *version;
        else
          reader_.problem(node->mark, version.error().what, version.error().remedy);
      }
    if (const yaml::Node* node = reader_.required(root, "class", "the bundle"))
      if (auto index = reader_.choice(*node, "the bundle's 'class'", kClassWords))
        manifest_.bundle_class = static_cast<Class>(*index);
    if (const yaml::Node* node = reader_.required(root, "summary", "the bundle"))
      if (auto text = reader_.text(*node, "the bundle's 'summary'")) manifest_.summary = *text;
    if (const yaml::Node* node = root.find("license")) {  // its absence is lint's to report: it need not stop a reader
      manifest_.license_mark = node->mark;
      if (auto text = reader_.text(*node, "the bundle's 'license'")) manifest_.license = *text;
    }
    if (const yaml::Node* node = reader_.required(root, "objects", "the bundle")) {
      std::span<const yaml::Node> items = reader_.list(*node, "'objects'");
      if (node->kind == yaml::Node::Kind::kList && items.empty())
        reader_.problem(node->mark, "'objects' is empty", "name the BPF object, such as [cubic.o]");
      for (const yaml::Node& item : items) {
        auto text = reader_.text(item, "an object");
        if (!text) continue;
        if (!valid_object_name(*text))
          reader_.problem(item.mark, fmt::format("'{}' is not the name of an object", text->substr(0, 60)),
                          "give a plain file name of the bundle's folder that ends in .o");
        else if (std::find(manifest_.objects.begin(), manifest_.objects.end(), *text) != manifest_.objects.end())
          reader_.problem(item.mark, fmt::format("object '{}' is listed twice", *text), "keep one");
        else
          manifest_.objects.push_back(*text);
      }
    }
  }

  void kernel(const yaml::Node& node) {
    if (!reader_.map(node, "'kernel'", kKernelKeys)) return;
    if (const yaml::Node* min = reader_.required(node, "min", "'kernel'"))
      if (auto text = reader_.text(*min, "'kernel.min'")) {
        if (auto version = parse_kernel_version(*text))
          manifest_.kernel_min = *version;
        else
          reader_.problem(min->mark, fmt::format("'{}' is not a kernel version", text->substr(0, 60)),
                          "write it as \"6.12\", in quotes");
      }
    if (const yaml::Node* features = node.find("features"))
      names(*features, "'kernel.features'", "a feature", manifest_.kernel_features, valid_feature,
            "use a name that `sluice doctor` lists, such as struct_ops-link");
  }

  template <class Valid>
  void names(const yaml::Node& node, std::string_view field, std::string_view one, std::vector<std::string>& out, Valid valid,
             std::string_view remedy) {
    for (const yaml::Node& item : reader_.list(node, field)) {
      auto text = reader_.text(item, one);
      if (!text) continue;
      if (!valid(*text))
        reader_.problem(item.mark, fmt::format("'{}' is not {}", text->substr(0, 60), one), std::string(remedy));
      else if (std::find(out.begin(), out.end(), *text) != out.end())
        reader_.problem(item.mark, fmt::format("'{}' is listed twice in {}", *text, field), "keep one");
      else
        out.push_back(*text);
    }
  }

  void hooks_and_stages(const yaml::Node& root) {
    if (const yaml::Node* node = root.find("hooks")) {
      manifest_.hooks_mark = node->mark;
      if (manifest_.bundle_class == Class::kCca) {
        for (const yaml::Node& item : reader_.list(*node, "'hooks'")) {
          auto index = reader_.choice(item, "a hook", kCcaHooks);
          if (!index) continue;
          std::string name(kCcaHooks[*index]);
          if (std::find(manifest_.hooks.begin(), manifest_.hooks.end(), name) != manifest_.hooks.end())
            reader_.problem(item.mark, fmt::format("'{}' is listed twice in 'hooks'", name), "keep one");
          else
            manifest_.hooks.push_back(name);
        }
      } else {
        names(*node, "'hooks'", "a program", manifest_.hooks, valid_c_name, "use the program's C name");
      }
    } else if (manifest_.bundle_class == Class::kCca) {
      reader_.problem(root.mark, "the bundle has no 'hooks'",
                      "list the members of tcp_congestion_ops it implements, such as [ssthresh]");
    }
    if (const yaml::Node* node = root.find("stages")) {
      if (manifest_.bundle_class != Class::kPolicy)
        reader_.problem(node->mark, "'stages' belongs to bundles of class policy", "leave 'stages' out");
      names(*node, "'stages'", "a stage", manifest_.stages, valid_c_name, "use the program's C name");
    }
  }

  void signals(const yaml::Node& node) {
    if (!reader_.map(node, "'signals'", kSignalKeys)) return;
    if (const yaml::Node* ecn = node.find("ecn")) {
      manifest_.ecn_mark = ecn->mark;
      if (auto index = reader_.choice(*ecn, "'signals.ecn'", kEcnWords)) manifest_.ecn = static_cast<Ecn>(*index);
    }
    if (const yaml::Node* delay = node.find("delay"))
      if (auto value = reader_.boolean(*delay, "'signals.delay'")) manifest_.delay = *value;
    if (const yaml::Node* loss = node.find("loss"))
      if (auto value = reader_.boolean(*loss, "'signals.loss'")) manifest_.loss = *value;
  }

  void parameter(const yaml::Node& node) {
    if (!reader_.map(node, "a parameter", kParameterKeys)) return;
    Parameter parameter;
    parameter.mark = node.mark;
    std::string what = "a parameter";
    if (const yaml::Node* name = reader_.required(node, "name", what))
      if (auto text = reader_.text(*name, "a parameter's 'name'")) {
        if (!valid_identifier(*text)) {
          reader_.problem(name->mark, fmt::format("'{}' is not a parameter name", text->substr(0, 60)),
                          std::string(kIdentifierRemedy));
        } else {
          if (manifest_.parameter(*text) != nullptr)
            reader_.problem(name->mark, fmt::format("parameter '{}' is declared twice", *text), "keep one");
          parameter.name = *text;
          what = fmt::format("parameter '{}'", *text);
        }
      }
    if (const yaml::Node* type = reader_.required(node, "type", what))
      if (auto index = reader_.choice(*type, what + ": 'type'", kTypeWords)) parameter.type = static_cast<ParamType>(*index);
    if (const yaml::Node* unit = node.find("unit"); unit != nullptr && unit->kind != yaml::Node::Kind::kNull)
      if (auto text = reader_.text(*unit, what + ": 'unit'")) parameter.unit = *text;
    if (const yaml::Node* summary = reader_.required(node, "summary", what))
      if (auto text = reader_.text(*summary, what + ": 'summary'")) parameter.summary = *text;
    if (const yaml::Node* when = reader_.required(node, "when", what))
      if (auto index = reader_.choice(*when, what + ": 'when'", kWhenWords)) parameter.when = static_cast<When>(*index);

    std::uint64_t max = type_max(parameter.type);
    parameter.max = max;
    if (const yaml::Node* low = node.find("min")) parameter.min = reader_.number(*low, what + ": 'min'", 0, max).value_or(0);
    if (const yaml::Node* high = node.find("max"))
      parameter.max = reader_.number(*high, what + ": 'max'", parameter.min, max).value_or(max);
    if (const yaml::Node* value = reader_.required(node, "default", what)) {
      if (auto number = parse_parameter(parameter, *value))
        parameter.default_value = *number;
      else
        reader_.problem(value->mark, what + ": 'default': " + number.error().what, number.error().remedy);
    }
    manifest_.parameters.push_back(std::move(parameter));
  }

  void shared_map(const yaml::Node& node) {
    if (!reader_.map(node, "a shared map", kSharedMapKeys)) return;
    SharedMap map;
    if (const yaml::Node* name = reader_.required(node, "name", "a shared map"))
      if (auto text = reader_.text(*name, "a shared map's 'name'")) {
        if (!valid_c_name(*text))
          reader_.problem(name->mark, fmt::format("'{}' is not a map name", text->substr(0, 60)), "use the map's C name");
        for (const SharedMap& other : manifest_.shared_maps)
          if (other.name == *text)
            reader_.problem(name->mark, fmt::format("shared map '{}' is listed twice", *text), "keep one");
        map.name = *text;
      }
    if (const yaml::Node* schema = reader_.required(node, "schema", "a shared map"))
      if (auto text = reader_.text(*schema, "a shared map's 'schema'")) {
        auto at = text->find('@');
        auto version = at == std::string::npos ? std::nullopt : parse_schema_version(text->substr(at + 1));
        if (!version || at == 0)
          reader_.problem(schema->mark, fmt::format("'{}' is not a schema", text->substr(0, 60)),
                          "write NAME@VERSION, such as sl.sock@1");
        else
          map.schema = text->substr(0, at), map.schema_version = *version;
      }
    if (const yaml::Node* access = reader_.required(node, "access", "a shared map"))
      if (auto index = reader_.choice(*access, "a shared map's 'access'", kAccessWords))
        map.access = static_cast<Access>(*index);
    manifest_.shared_maps.push_back(std::move(map));
  }

  static std::optional<std::uint32_t> parse_schema_version(const std::string& text) {
    if (text.empty() || text.size() > 6 || !std::all_of(text.begin(), text.end(), is_digit) || text == "0") return std::nullopt;
    return static_cast<std::uint32_t>(std::stoul(text));
  }

  void transition(const yaml::Node& node) {
    if (!reader_.map(node, "a transition", kTransitionKeys)) return;
    Transition transition;
    transition.mark = node.mark;
    if (node.entries.empty())
      reader_.problem(node.mark, "a transition names neither 'from' nor 'to'", "write {from: \"*\"} or {to: \"*\"}");
    transition.from = selector(node.find("from"), "a transition's 'from'");
    transition.to = selector(node.find("to"), "a transition's 'to'");
    manifest_.transitions.push_back(std::move(transition));
  }

  CcaSelector selector(const yaml::Node* node, std::string_view what) {
    CcaSelector selector;
    if (node == nullptr) {
      selector.name = manifest_.name;
      selector.versions.all.push_back({VersionRange::Op::kEq, manifest_.version});
      return selector;
    }
    auto text = reader_.text(*node, what);
    if (!text) return selector;
    constexpr std::string_view kRemedy = "write \"*\", NAME, \"NAME@>=1.0.0 <2.0.0\", kernel:NAME or \"kernel:*\"";
    std::string_view rest = *text;
    if (rest.starts_with("kernel:")) {
      selector.native = true;
      rest.remove_prefix(7);
      if (rest != "*" && !valid_cca_name(rest))
        reader_.problem(node->mark, fmt::format("{} is '{}'", what, text->substr(0, 60)), std::string(kRemedy));
      selector.name = rest;
      return selector;
    }
    auto at = rest.find('@');
    std::string_view name = rest.substr(0, at);
    selector.name = name;
    if ((name != "*" && !valid_identifier(name)) || (name == "*" && at != std::string_view::npos)) {
      reader_.problem(node->mark, fmt::format("{} is '{}'", what, text->substr(0, 60)), std::string(kRemedy));
    } else if (at != std::string_view::npos) {
      if (auto range = parse_version_range(rest.substr(at + 1)))
        selector.versions = *range;
      else
        reader_.problem(node->mark, fmt::format("{}: {}", what, range.error().what), std::string(kRemedy));
    }
    return selector;
  }
};

}  // namespace

std::string CcaSelector::text() const {
  if (native) return "kernel:" + name;
  return versions.all.empty() ? name : name + "@" + versions.text();
}

bool CcaSelector::matches(bool is_native, std::string_view cca, const Version* version) const {
  if (!native && name == "*") return true;
  if (native != is_native || (name != "*" && name != cca)) return false;
  return native || version == nullptr || versions.contains(*version);
}

const Parameter* Manifest::parameter(std::string_view parameter_name) const {
  for (const Parameter& parameter : parameters)
    if (parameter.name == parameter_name) return &parameter;
  return nullptr;
}

std::span<const std::string_view> cca_hooks() { return kCcaHooks; }

Result<Manifest> parse_manifest(std::string_view text, std::string_view source, yaml::Problems* problems) {
  yaml::Problems own;
  yaml::Problems& list = problems != nullptr ? *problems : own;
  auto root = yaml::parse(text, source);
  if (!root) {
    list.add(root.error().where, root.error().what, root.error().remedy);
    return tl::unexpected(std::move(root).error());
  }
  Manifest manifest = ManifestReader(source, list).read(*root);
  if (!list.empty()) return tl::unexpected(list.to_error());
  return manifest;
}

Result<Manifest> read_manifest(const std::string& path) {
  SLUICE_TRY(text, read_file(path));
  return parse_manifest(text, path);
}

std::string range_text(const Parameter& parameter) {
  if (parameter.type == ParamType::kBool) return "true or false";
  std::string unit = parameter.unit.empty() && parameter.type == ParamType::kPercent ? "percent" : parameter.unit;
  return fmt::format("{}..{}{}{}", parameter.min, parameter.max, unit.empty() ? "" : " ", unit);
}

Result<std::uint64_t> parse_parameter(const Parameter& parameter, const yaml::Node& node) {
  yaml::Problems problems;
  yaml::Reader reader("", problems);
  std::string what = fmt::format("'{}'", parameter.name);
  std::optional<std::uint64_t> value;
  if (parameter.type == ParamType::kBool && node.text != "0" && node.text != "1") {
    if (auto flag = reader.boolean(node, what)) value = *flag ? 1 : 0;
  } else {
    value = reader.number(node, what, parameter.min, parameter.max);
  }
  if (value) return *value;
  Error error = problems.to_error();
  error.where.clear();
  error.remedy = fmt::format("its range is {}, its default {}", range_text(parameter),
                             format_parameter(parameter, parameter.default_value));
  return tl::unexpected(std::move(error));
}

std::string format_parameter(const Parameter& parameter, std::uint64_t value) {
  if (parameter.type == ParamType::kBool) return value != 0 ? "true" : "false";
  return std::to_string(value);
}

Result<BundleRef> parse_bundle_ref(std::string_view text) {
  auto at = text.find('@');
  if (at != std::string_view::npos && valid_identifier(text.substr(0, at)))
    if (auto version = parse_version(text.substr(at + 1)))
      return BundleRef{std::string(text.substr(0, at)), *std::move(version)};
  Error error = fail(Code::kInvalid, "'{}' does not name a bundle and a version", text.substr(0, 60)).value();
  return tl::unexpected(std::move(error).fix("write NAME@VERSION, such as cubic@1.0.0"));
}

bool valid_cca_name(std::string_view name) {
  return !name.empty() && name.size() <= kKernelNameMax && std::all_of(name.begin(), name.end(), [](char c) {
    return is_lower(c) || is_digit(c) || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' || c == '-';
  });
}

std::string kernel_name(std::string_view name, const Version& version, std::string_view instance) {
  std::string plain = fmt::format("{}.{}", name, version.text());
  if (instance.empty() && plain.size() <= kKernelNameMax && plain.find('-') == std::string::npos) return plain;
  // 8 digits of base32 = 40 bits: with the 128 CCAs a kernel can list, a collision has a chance below 1e-8.
  static constexpr std::string_view kDigits = "abcdefghijklmnopqrstuvwxyz234567";
  std::array<std::uint8_t, 32> digest = sha256(fmt::format("{}\n{}\n{}", name, version.text(), instance));
  std::uint64_t bits = 0;
  for (int i = 0; i < 5; ++i) bits = bits << 8 | digest[static_cast<std::size_t>(i)];
  std::string hash;
  for (int shift = 35; shift >= 0; shift -= 5) hash += kDigits[bits >> shift & 31];
  return fmt::format("{}.{}", name.substr(0, kKernelNameMax - 1 - hash.size()), hash);
}

}  // namespace sluice::bundle
