// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Kernel versions: "6.18.44-fc-v857" and "6.12" compare by their numbers.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

struct KernelVersion {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned patch = 0;
  auto operator<=>(const KernelVersion&) const = default;
  std::string text() const;  // "6.12", "6.12.3"
};

// Anything after the numbers is the vendor's and is left alone.
std::optional<KernelVersion> parse_kernel_version(std::string_view release);
Result<KernelVersion> running_kernel();

}  // namespace sluice
