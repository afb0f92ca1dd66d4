// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The command line, as data: every command with its arguments, options, examples and exit statuses. The parser, --help, the man
// page, the completion scripts and docs/reference/cli.md are all made from this table (parse.h, help.h, completion.h), so they
// cannot disagree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

class Session;

enum class ValueKind {
  kFlag,  // no value
  kText,
  kNumber,   // 0 or more
  kSeconds,  // more than 0, fractions allowed
  kFile,     // completed with file names; "-" is standard input where the command reads it
  kFolder,
  kChoice,
};

struct Option {
  std::string_view name;  // without dashes
  char letter = 0;        // 0 = none
  ValueKind kind = ValueKind::kFlag;
  std::string_view value = {};  // placeholder, such as FILE; empty for a flag
  std::string_view summary;
  std::vector<std::string_view> choices = {};
  std::string_view fallback = {};  // value when absent, for the reader and for Invocation::text
  std::uint64_t max = UINT32_MAX;  // kNumber
};

struct Argument {
  std::string_view name;  // placeholder
  ValueKind kind = ValueKind::kText;
  std::string_view summary;
  bool required = true;
  bool many = false;  // takes all remaining words
  std::vector<std::string_view> choices = {};
};

struct Example {
  std::string_view command;
  std::string_view summary;
};

struct ExitStatus {
  int status;
  std::string_view meaning;
};

// Returns the exit status.
using Handler = Result<int> (*)(Session&);

struct Command {
  std::string_view name;
  std::string_view summary;      // one line, no final stop
  std::string_view description;  // paragraphs, parted by an empty line; lines of a paragraph are refilled
  Handler handler = nullptr;     // nullptr: only its subcommands can be called
  double timeout_s = 0;          // default of --timeout; 0 = asks no agent, or has no bound unless --timeout is given
  std::vector<Argument> arguments = {};
  std::vector<Option> options = {};
  std::vector<Example> examples = {};
  std::vector<ExitStatus> exits = {};  // what 1, 3 and 4 mean here, beyond kExitStatuses
  std::vector<Command> subcommands = {};
};

const Command& root();                           // "sluice"; its options are accepted by every command
const std::vector<ExitStatus>& exit_statuses();  // of every command
inline constexpr int kOk = 0, kFailed = 1, kUsage = 2, kDegraded = 3, kConflict = 4;

struct EnvironmentVariable {
  std::string_view name, summary;
};
const std::vector<EnvironmentVariable>& environment_variables();

struct File {
  std::string_view path, summary;
};
const std::vector<File>& files();

// All commands that can be called or have subcommands, depth first, with the words that lead there ("cca list").
struct NamedCommand {
  std::string path;
  const Command* command;
};
std::vector<NamedCommand> all_commands();

}  // namespace sluice::cli
