// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Versions of bundles: semantic versioning 2.0.0 without build metadata. (Kernels': base/kernel_version.h.)
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::bundle {

struct Version {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  std::uint32_t patch = 0;
  std::string pre;  // "rc.1"; a version with one sorts before the same without

  std::string text() const;
  std::strong_ordering operator<=>(const Version& other) const;
  bool operator==(const Version& other) const = default;
};

Result<Version> parse_version(std::string_view text);  // MAJOR.MINOR.PATCH[-PRE]

// A range of versions: comparators separated by blanks, all of which must hold; "" and "*" hold for every version.
//   "1.2.0"  ">=1.0.0 <2.0.0"
struct VersionRange {
  enum class Op { kEq, kLt, kLe, kGt, kGe };
  struct Comparator {
    Op op = Op::kEq;
    Version version;
  };
  std::vector<Comparator> all;

  bool contains(const Version& version) const;
  bool satisfiable() const;  // false when no version can be in it
  std::string text() const;
};
Result<VersionRange> parse_version_range(std::string_view text);

}  // namespace sluice::bundle
