// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// `sluice bundle lint`: what passes the verifier but is known to hurt. Reads objects with libelf, never loads them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bundle/known_bugs.h"
#include "bundle/manifest.h"

namespace sluice::bundle {

struct Finding {
  std::string rule;  // "forbidden-helper", ...: stable, listed in docs/reference/bundle.md
  Severity severity = Severity::kError;
  std::string where;  // file:line:column, or object: section+offset
  std::string what;
  std::string remedy;
};

// Findings in a fixed order: manifest, then each object. Unreadable objects are findings too.
std::vector<Finding> lint(const Manifest& manifest, const std::string& folder);

}  // namespace sluice::bundle
