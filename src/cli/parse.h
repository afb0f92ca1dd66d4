// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Words of the command line -> Invocation, checked against the command table. CLI11 splits the words; its exceptions end here.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/command_table.h"

namespace sluice::cli {

struct Invocation {
  const Command* command = nullptr;
  std::string path;                                                     // "cca list"; empty for `sluice` alone
  std::map<std::string, std::vector<std::string>, std::less<>> values;  // option and argument name -> values; a flag: {""}

  bool has(std::string_view name) const { return values.find(name) != values.end(); }
  // The value, or the table's fallback, or "".
  std::string text(std::string_view name) const;
  // Values were checked by parse(): these cannot fail.
  std::uint64_t number(std::string_view name) const;  // 0 when absent and without fallback
  double seconds(std::string_view name) const;
  const std::vector<std::string>& list(std::string_view name) const;
};

// A usage error (kInvalid) names the word, what was probably meant, and where to read on. With --help nothing is required.
Result<Invocation> parse(const std::vector<std::string>& words);

}  // namespace sluice::cli
