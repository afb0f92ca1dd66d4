// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The few string operations that the standard library lacks.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

std::string_view trim(std::string_view text);  // ASCII white space at both ends

// Parts between separators; "a,,b" has three. An empty text has none.
std::vector<std::string_view> split(std::string_view text, char separator);
// Words between runs of spaces and tabs.
std::vector<std::string_view> words(std::string_view text);

// The whole text as a decimal (or base) number, or nothing.
template <class Int>
std::optional<Int> parse_int(std::string_view text, int base = 10) {
  Int value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// `text` as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace sluice
