// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Fuzz target: the agent's stored state, as a damaged database may hold it: desired state, journal, parameter allocation. What
// can be read is written back as it was; the rest is kCorrupt.
#include <cstddef>
#include <cstdint>
#include <string>

#include "agent/plan.h"
#include "agent/store.h"

namespace {

using namespace sluice;

template <class Read, class Write>
void round_trip(const std::string& text, Read read, Write write) {
  const auto first = read(text);
  if (!first) {
    SLUICE_ASSERT(first.error().code == Code::kCorrupt && !first.error().what.empty());
    return;
  }
  const std::string written = write(*first);
  const auto second = read(written);
  SLUICE_ASSERT(second.has_value() && write(*second) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  round_trip(text, agent::Desired::from_json, [](const auto& desired) { return desired.to_json(); });
  round_trip(text, agent::Transaction::from_json, [](const auto& transaction) {
    for (const auto& step : transaction.steps) SLUICE_ASSERT(!step.describe().empty());
    return transaction.to_json();
  });
  round_trip(text, agent::allocation_from_json, agent::allocation_to_json);
  return 0;
}
