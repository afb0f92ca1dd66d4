// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Kernel bugs that hurt a bundle although it loads: one table, read by `bundle lint` (does the bundle meet one on a kernel it
// says it supports?) and by `doctor` (does this kernel have one?).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/kernel_version.h"

namespace sluice::bundle {

struct KnownBug {
  std::string_view id;
  std::string_view hook;     // tcp_congestion_ops member, helper or feature it concerns
  std::string_view since;    // first kernel that has it; "" = always had it
  std::string_view fixed;    // first kernel without it; "" = not fixed so far
  std::string_view symptom;  // what happens
  std::string_view remedy;   // what to do
  bool affects(const KernelVersion& kernel) const;
};

std::span<const KnownBug> known_bugs();
// Those of a running kernel.
std::vector<const KnownBug*> known_bugs_of(const KernelVersion& kernel);

}  // namespace sluice::bundle
