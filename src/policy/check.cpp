// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A document against the bundles there are.
#include <algorithm>
#include <set>

#include "policy/document.h"
#include "policy/manifests.h"

namespace sluice::policy {
namespace {

class Checker {
 public:
  Checker(const Document& document, const Manifests& manifests, yaml::Problems& problems)
      : document_(document), manifests_(manifests), problems_(problems) {}

  void run() {
    for (const BundleUse& use : document_.bundles) bundle_use(use);
    transitional();
  }

 private:
  const Document& document_;
  const Manifests& manifests_;
  yaml::Problems& problems_;

  void add(yaml::Mark mark, std::string what, std::string remedy) {
    problems_.add(document_.where(mark), std::move(what), std::move(remedy));
  }

  void bundle_use(const BundleUse& use) {
    const bundle::Manifest* manifest = find_manifest(manifests_, use.ref);
    if (manifest == nullptr) {
      unknown(use);
      return;
    }
    if (manifest->bundle_class != bundle::Class::kCca) {
      add(use.mark,
          fmt::format("bundle {} is of class {}, not cca", use.ref.text(),
                      bundle::kClassWords[static_cast<std::size_t>(manifest->bundle_class)]),
          "list only bundles that hold a congestion control algorithm");
      return;
    }
    values(use, *manifest, use.parameters, false);
    for (const Override& item : use.overrides) values(use, *manifest, item.parameters, true);
  }

  void unknown(const BundleUse& use) {
    std::set<std::string> names;
    std::vector<std::string> versions;
    for (const bundle::Manifest* manifest : manifests_) {
      names.insert(manifest->name);
      if (manifest->name == use.ref.name) versions.push_back(manifest->version.text());
    }
    if (!versions.empty()) {
      add(use.mark, fmt::format("bundle {} has no version {}", use.ref.name, use.ref.version.text()),
          fmt::format("installed are: {}", fmt::join(versions, ", ")));
      return;
    }
    std::vector<std::string_view> views(names.begin(), names.end());
    add(use.mark, fmt::format("unknown bundle '{}'{}", use.ref.name, yaml::did_you_mean(use.ref.name, views)),
        names.empty() ? "no bundle is installed: set the agent's bundle folders"
                      : fmt::format("installed are: {}; `sluice bundle list` shows where", fmt::join(names, ", ")));
  }

  void values(const BundleUse& use, const bundle::Manifest& manifest, const std::vector<ParameterValue>& list,
              bool is_override) {
    for (const ParameterValue& value : list) {
      const bundle::Parameter* parameter = manifest.parameter(value.name);
      if (parameter == nullptr) {
        std::vector<std::string_view> known;
        for (const bundle::Parameter& each : manifest.parameters) known.push_back(each.name);
        add(value.mark,
            fmt::format("bundle {} has no parameter '{}'{}", use.ref.text(), value.name.substr(0, 60),
                        yaml::did_you_mean(value.name, known)),
            known.empty() ? "it has no parameters at all: remove the line"
                          : fmt::format("its parameters are: {}", fmt::join(known, ", ")));
        continue;
      }
      if (is_override && parameter->when == bundle::When::kLoad)
        add(value.mark,
            fmt::format("parameter '{}' of {} is fixed when it is loaded and cannot differ by place or service", value.name,
                        use.ref.text()),
            "set it in the bundle's own 'parameters'");
      if (auto number = bundle::parse_parameter(*parameter, value.value); !number)
        add(value.value.mark, fmt::format("parameter {} of {}", number.error().what, use.ref.text()), number.error().remedy);
    }
  }

  void transitional() {
    if (document_.transitional) {
      const Target& target = *document_.transitional;
      const bundle::Manifest* manifest = target.native ? nullptr : find_manifest(manifests_, target.ref());
      if (needs_ecn(target, manifests_))
        add(document_.transitional_mark, fmt::format("{} requires ECN and cannot be transitional", target.text()),
            "name a CCA that runs with and without ECN: connections of any kind fall back to it");
      else if (manifest != nullptr && !manifest->transitional)
        add(document_.transitional_mark, fmt::format("bundle {} is not declared transitional", target.text()),
            "name a bundle with 'transitional: true', or a native CCA such as kernel:cubic");
      return;
    }
    std::vector<std::string> candidates;
    for (const BundleUse& use : document_.bundles)
      if (const bundle::Manifest* manifest = find_manifest(manifests_, use.ref); manifest != nullptr && manifest->transitional)
        candidates.push_back(use.ref.text());
    if (candidates.size() > 1) {
      add(document_.bundles.front().mark,
          fmt::format("several transitional bundles are listed ({})", fmt::join(candidates, ", ")),
          fmt::format("say which: add 'transitional: {}'", candidates.front()));
      return;
    }
    if (!candidates.empty()) return;
    for (std::size_t i = 0; i < document_.rules.size(); ++i) {
      const Rule& rule = document_.rules[i];
      if (!needs_ecn(rule.use, manifests_)) continue;
      add(rule.use_mark,
          fmt::format("{} uses {}, which requires ECN, and there is no transitional CCA for connections without it",
                      rule.label(i), rule.use.text()),
          "list a transitional bundle such as cubic, or add 'transitional: kernel:cubic'");
      return;
    }
  }
};

}  // namespace

const bundle::Manifest* find_manifest(const Manifests& manifests, const bundle::BundleRef& ref) {
  for (const bundle::Manifest* manifest : manifests)
    if (manifest->name == ref.name && manifest->version == ref.version) return manifest;
  return nullptr;
}

bool needs_ecn(const Target& target, const Manifests& manifests) {
  if (target.native) return native_needs_ecn(target.name);
  const bundle::Manifest* manifest = find_manifest(manifests, target.ref());
  return manifest != nullptr && manifest->needs_ecn();
}

Status check(const Document& document, const Manifests& manifests, yaml::Problems* problems) {
  yaml::Problems own;
  yaml::Problems& list = problems != nullptr ? *problems : own;
  Checker(document, manifests, list).run();
  if (!list.empty()) return fail(list.to_error());
  return {};
}

std::optional<Target> transitional_of(const Document& document, const Manifests& manifests) {
  if (document.transitional) return document.transitional;
  std::optional<Target> found;
  for (const BundleUse& use : document.bundles) {
    const bundle::Manifest* manifest = find_manifest(manifests, use.ref);
    if (manifest == nullptr || !manifest->transitional) continue;
    if (found) return std::nullopt;
    found = Target{false, use.ref.name, use.ref.version};
  }
  return found;
}

}  // namespace sluice::policy
