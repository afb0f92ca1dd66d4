// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Fuzz target: policy documents. Whatever the bytes, parse_document() ends with a document or with problems that have a place
// and a remedy; a document survives its own JSON, is checked against bundles, compiles, and explains every kind of address.
#include <cstddef>
#include <cstdint>
#include <string>

#include "policy/compile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  using namespace sluice::policy;
  std::string text(reinterpret_cast<const char*>(data), size);
  yaml::Problems problems;
  auto document = parse_document(text, "fuzz", &problems);
  if (!document) {
    SLUICE_ASSERT(!problems.empty());
    for (const yaml::Problem& problem : problems.list())
      SLUICE_ASSERT(!problem.where.empty() && !problem.what.empty() && !problem.remedy.empty());
    return 0;
  }
  SLUICE_ASSERT(problems.empty());
  std::string json = to_json(*document);
  auto again = parse_document(json, "fuzz.json");
  SLUICE_ASSERT(again.has_value());
  SLUICE_ASSERT(to_json(*again) == json);
  SLUICE_ASSERT(diff(&*document, *again).empty());

  // Bundles that carry whatever names and parameters the document asks for.
  std::vector<bundle::Manifest> manifests;
  for (const BundleUse& use : document->bundles) {
    bundle::Manifest manifest;
    manifest.name = use.ref.name;
    manifest.version = use.ref.version;
    manifest.transitional = manifests.empty();
    auto declare = [&](const std::vector<ParameterValue>& list) {
      for (const ParameterValue& value : list)
        if (manifest.parameter(value.name) == nullptr) {
          bundle::Parameter parameter;
          parameter.name = value.name;
          parameter.max = ~std::uint64_t{0};
          manifest.parameters.push_back(parameter);
        }
    };
    declare(use.parameters);
    for (const Override& item : use.overrides) declare(item.parameters);
    manifests.push_back(std::move(manifest));
  }
  CompileInput input;
  for (const bundle::Manifest& manifest : manifests) input.manifests.push_back(&manifest);
  yaml::Problems against_bundles;
  if (!check(*document, input.manifests, &against_bundles)) {
    SLUICE_ASSERT(!against_bundles.empty());
    for (const yaml::Problem& problem : against_bundles.list()) SLUICE_ASSERT(!problem.what.empty() && !problem.remedy.empty());
    return 0;
  }
  auto compiled = compile(*document, input);
  if (!compiled) return 0;
  SLUICE_ASSERT(compiled->rules.size() == (document->services.size() + 1) * compiled->place_classes);
  for (const char* address : {"10.0.0.1", "192.0.2.1", "2001:db8::1", "::1"}) {
    Query query{*parse_prefix(address), std::nullopt, 80, "/"};
    SLUICE_ASSERT(explain(*document, *compiled, query).has_value());
  }
  return 0;
}
