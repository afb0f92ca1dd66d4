// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Kernel bugs and traps that hurt a bundle although it loads: one table, read by `bundle lint` (can the bundle meet one on a
// kernel it says it supports?) and by `doctor` (does this kernel have one?).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/kernel_version.h"

namespace sluice::bundle {

enum class Severity { kNote, kWarning, kError };
std::string_view severity_name(Severity severity);

struct KnownBug {
  std::string_view id;
  std::string_view hook;     // a hook or kernel feature as bundle.yaml names it, or "platform": every host has it
  std::string_view since;    // first kernel that has it; "" = always had it
  std::string_view fixed;    // first kernel without it; "" = in every newer one
  Severity severity;         // of lint's finding; kError: the bundle must not be used there
  std::string_view symptom;  // what happens
  std::string_view remedy;   // what to do
  bool affects(const KernelVersion& kernel) const;
  bool affects_any_from(const KernelVersion& oldest) const;  // some kernel not older than that
};

std::span<const KnownBug> known_bugs();
std::vector<const KnownBug*> known_bugs_of(const KernelVersion& kernel);

}  // namespace sluice::bundle
