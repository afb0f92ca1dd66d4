// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Questions to the bundles there are, asked by check() and compile().
#pragma once

#include "policy/document.h"

namespace sluice::policy {

const bundle::Manifest* find_manifest(const Manifests& manifests, const bundle::BundleRef& ref);  // nullptr = not there
bool needs_ecn(const Target& target, const Manifests& manifests);

}  // namespace sluice::policy
