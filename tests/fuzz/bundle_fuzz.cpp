// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Fuzz target: bundle manifests. Whatever the bytes, parse_manifest() ends with a manifest or with problems that have a place
// and a remedy; a manifest's kernel name is one the kernel takes, and lint copes with it.
#include <cstddef>
#include <cstdint>
#include <string>

#include "bundle/lint.h"
#include "bundle/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  using namespace sluice::bundle;
  std::string text(reinterpret_cast<const char*>(data), size);
  yaml::Problems problems;
  auto manifest = parse_manifest(text, "fuzz", &problems);
  if (!manifest) {
    SLUICE_ASSERT(!problems.empty());
    for (const yaml::Problem& problem : problems.list())
      SLUICE_ASSERT(!problem.where.empty() && !problem.what.empty() && !problem.remedy.empty());
    return 0;
  }
  SLUICE_ASSERT(problems.empty());
  SLUICE_ASSERT(valid_cca_name(kernel_name(manifest->name, manifest->version, "")));
  SLUICE_ASSERT(parse_bundle_ref(manifest->ref()).has_value());
  for (const Parameter& parameter : manifest->parameters) {
    SLUICE_ASSERT(parameter.min <= parameter.default_value && parameter.default_value <= parameter.max);
    SLUICE_ASSERT(!range_text(parameter).empty());
  }
  for (const Finding& finding : lint(*manifest, "/nonexistent"))
    SLUICE_ASSERT(!finding.what.empty() && !finding.remedy.empty());
  return 0;
}
