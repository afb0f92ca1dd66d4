// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Numbers of stored JSON, taken only as what was written: the library would turn 1e300 or -1 into some other number.
// They throw nlohmann::json::exception.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace sluice::agent {

inline uint64_t stored_number(const nlohmann::json& value) { return value.get_ref<const nlohmann::json::number_unsigned_t&>(); }

inline std::map<std::string, uint64_t> stored_numbers(const nlohmann::json& value) {
  std::map<std::string, uint64_t> numbers;
  for (const auto& [name, number] : value.get_ref<const nlohmann::json::object_t&>()) numbers[name] = stored_number(number);
  return numbers;
}

}  // namespace sluice::agent
