// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The command table as text: --help, the man page (roff), docs/reference/cli.md, and completion scripts.
#pragma once

#include <string>
#include <string_view>

#include "cli/command_table.h"
#include "cli/text.h"

namespace sluice::cli {

std::string render_help(const Command& command, const std::string& path, const Style& style);
std::string render_man();                               // sluice(8): `sluice --print-man`
std::string render_reference();                         // docs/reference/cli.md: `sluice --print-reference`
std::string render_completion(std::string_view shell);  // completion.cpp; bash, zsh, fish: `sluice completion SHELL`

}  // namespace sluice::cli
