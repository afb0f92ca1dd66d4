// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/strings.h"

namespace sluice::cli {
namespace {

std::string flags_text(const Option& option) {
  std::string text = option.letter == 0 ? "" : fmt::format("-{}, ", option.letter);
  text += fmt::format("--{}", option.name);
  if (!option.value.empty()) text += fmt::format(" {}", option.value);
  return text;
}

// The summary with what can be given and what holds when nothing is. (--timeout's default is the command's.)
std::string summary_text(const Option& option, const Command& command) {
  std::string text(option.summary);
  if (!option.choices.empty()) text += fmt::format(" ({})", fmt::join(option.choices, ", "));
  if (option.name == "timeout")
    text += command.timeout_s > 0 && command.handler != nullptr ? fmt::format(" [default: {}]", command.timeout_s) : "";
  else if (!option.fallback.empty())
    text += fmt::format(" [default: {}]", option.fallback);
  return text;
}

std::string usage_text(const Command& command, const std::string& path) {
  std::string text = path.empty() ? "sluice" : "sluice " + path;
  text += " [OPTION...]";
  if (command.handler == nullptr) text += " COMMAND";
  for (const Argument& argument : command.arguments)
    text += fmt::format(" {}{}{}{}", argument.required ? "" : "[", argument.name, argument.many ? "..." : "",
                        argument.required ? "" : "]");
  return text;
}

std::vector<ExitStatus> exits_of(const Command& command) {
  std::vector<ExitStatus> all = exit_statuses();
  for (const ExitStatus& own : command.exits)
    for (ExitStatus& status : all)
      if (status.status == own.status) status = own;
  return all;
}

std::vector<std::string> paragraphs(std::string_view text) {
  std::vector<std::string> list;
  while (!text.empty()) {
    const std::size_t end = text.find("\n\n");
    list.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 2);
  }
  return list;
}

// "  left      right", the right side wrapped; one such block for --help.
class Listing {
 public:
  Listing(std::string_view title, const Style& style) : title_(title), style_(style) {}
  void add(std::string left, std::string right) { rows_.emplace_back(std::move(left), std::move(right)); }
  std::string text() const {
    if (rows_.empty()) return {};
    constexpr unsigned kLeftMax = 24;
    unsigned left = 0;
    for (const auto& row : rows_) left = std::max(left, std::min(display_width(row.first), kLeftMax));
    const unsigned columns = style_.columns == 0 ? 100 : std::max(style_.columns, 60U);
    std::string out = "\n" + style_.paint(Colour::kBold, title_) + "\n";
    for (const auto& [name, summary] : rows_) {
      std::string right = wrap(summary, columns, left + 4);
      if (display_width(name) > left)
        out += "  " + name + "\n" + right;
      else if (right.empty())
        out += "  " + name + "\n";
      else
        out += "  " + name + right.substr(2 + name.size());
    }
    return out;
  }

 private:
  std::string title_;
  Style style_;
  std::vector<std::pair<std::string, std::string>> rows_;
};

// ---- roff
// --------------------------------------------------------------------------------------------------------------------

std::string roff(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '\'')
      out += "\\(aq";
    else if (c == '`')
      out += "\\(ga";
    else
      out += c;
  }
  if (!out.empty() && (out[0] == '.')) out.insert(0, "\\&");
  return out;
}

std::string roff_item(std::string_view tag, std::string_view text) {
  return fmt::format(".TP\n.B {}\n{}\n", roff(tag), roff(text));
}

// ---- markdown
// ----------------------------------------------------------------------------------------------------------------

std::string cell(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

void markdown_command(const Command& command, const std::string& path, std::string& out) {
  out += fmt::format("\n## sluice {}\n\n{}\n\n", path, command.description);
  out += fmt::format("    {}\n", usage_text(command, path));
  if (command.timeout_s > 0) out += fmt::format("\n`--timeout` is {} s unless given.\n", command.timeout_s);
  if (!command.subcommands.empty()) {
    out += "\n| command | does |\n|---|---|\n";
    for (const Command& sub : command.subcommands) out += fmt::format("| `{} {}` | {} |\n", path, sub.name, cell(sub.summary));
  }
  if (!command.arguments.empty() || !command.options.empty()) {
    out += "\n| argument, option | meaning |\n|---|---|\n";
    for (const Argument& argument : command.arguments)
      out += fmt::format("| `{}` | {} |\n", argument.name, cell(argument.summary));
    for (const Option& option : command.options)
      out += fmt::format("| `{}` | {} |\n", flags_text(option), cell(summary_text(option, command)));
  }
  if (!command.exits.empty()) {
    out += "\n| exit status | here |\n|---|---|\n";
    for (const ExitStatus& status : command.exits) out += fmt::format("| {} | {} |\n", status.status, cell(status.meaning));
  }
  if (!command.examples.empty()) {
    out += "\n```sh\n";
    for (const Example& example : command.examples)
      out += fmt::format("{}{}{}\n", example.command, example.summary.empty() ? "" : "  # ", example.summary);
    out += "```\n";
  }
}

}  // namespace

std::string render_help(const Command& command, const std::string& path, const Style& style) {
  const unsigned columns = style.columns == 0 ? 100 : std::max(style.columns, 60U);
  std::string out = fmt::format("sluice{}{}: {}\n\n", path.empty() ? "" : " ", path, command.summary);
  out += fmt::format("{} {}\n", style.paint(Colour::kBold, "Usage:"), usage_text(command, path));
  for (const std::string& paragraph : paragraphs(command.description)) out += "\n" + wrap(paragraph, columns);

  Listing commands("Commands:", style), arguments("Arguments:", style), options("Options:", style);
  for (const Command& sub : command.subcommands) commands.add(std::string(sub.name), std::string(sub.summary));
  for (const Argument& argument : command.arguments) arguments.add(std::string(argument.name), std::string(argument.summary));
  for (const Option& option : command.options) options.add(flags_text(option), summary_text(option, command));
  out += commands.text() + arguments.text() + options.text();
  if (&command != &root()) {
    Listing global("Options of every command:", style);
    for (const Option& option : root().options) global.add(flags_text(option), summary_text(option, command));
    out += global.text();
  }
  Listing examples("Examples:", style), exits("Exit status:", style);
  for (const Example& example : command.examples) examples.add(std::string(example.command), std::string(example.summary));
  for (const ExitStatus& status : exits_of(command)) exits.add(std::to_string(status.status), std::string(status.meaning));
  return out + examples.text() + exits.text();
}

std::string render_man() {
  const Command& sluice = root();
  std::string out = fmt::format(
      ".\\\" SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause\n.\\\" Made by `sluice --print-man` from the command "
      "table.\n"
      ".TH SLUICE 8 \"\" \"Sluice {}\" \"System administration\"\n.nh\n.ad l\n.SH NAME\nsluice \\- {}\n.SH SYNOPSIS\n",
      SLUICE_VERSION, roff(sluice.summary));
  for (const NamedCommand& named : all_commands())
    if (named.command->handler != nullptr) out += fmt::format("{}\n.br\n", roff(usage_text(*named.command, named.path)));
  out += ".SH DESCRIPTION\n";
  for (const std::string& paragraph : paragraphs(sluice.description)) out += fmt::format(".PP\n{}\n", roff(paragraph));
  out += ".SH OPTIONS OF EVERY COMMAND\n";
  for (const Option& option : sluice.options) out += roff_item(flags_text(option), summary_text(option, sluice));
  out += ".SH COMMANDS\n";
  for (const NamedCommand& named : all_commands()) {
    const Command& command = *named.command;
    out += fmt::format(".SS {}\n", roff(usage_text(command, named.path)));
    for (const std::string& paragraph : paragraphs(command.description)) out += fmt::format(".PP\n{}\n", roff(paragraph));
    if (command.timeout_s > 0) out += fmt::format(".PP\n\\-\\-timeout is {} s unless given.\n", command.timeout_s);
    for (const Argument& argument : command.arguments) out += roff_item(argument.name, argument.summary);
    for (const Option& option : command.options) out += roff_item(flags_text(option), summary_text(option, command));
    for (const ExitStatus& status : command.exits)
      out += roff_item(fmt::format("exit status {}", status.status), status.meaning);
    for (const Example& example : command.examples)
      out += fmt::format(".PP\n.EX\n{}{}{}\n.EE\n", roff(example.command), example.summary.empty() ? "" : "  # ",
                         roff(example.summary));
  }
  out += ".SH EXIT STATUS\n";
  for (const ExitStatus& status : exit_statuses()) out += roff_item(std::to_string(status.status), status.meaning);
  out += ".SH ENVIRONMENT\n";
  for (const EnvironmentVariable& variable : environment_variables()) out += roff_item(variable.name, variable.summary);
  out += ".SH FILES\n";
  for (const File& file : files()) out += roff_item(file.path, file.summary);
  return out;
}

std::string render_reference() {
  const Command& sluice = root();
  std::string out =
      "<!-- SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause -->\n"
      "<!-- Made by `sluice --print-reference` from src/cli/command_table.cpp; a test compares them. -->\n"
      "# The command line\n\n";
  out += fmt::format("{}\n\n| command | does |\n|---|---|\n", sluice.description);
  for (const Command& command : sluice.subcommands)
    out += fmt::format("| [`{0}`](#sluice-{0}) | {1} |\n", command.name, cell(command.summary));
  out += "\n| option of every command | meaning |\n|---|---|\n";
  for (const Option& option : sluice.options)
    out += fmt::format("| `{}` | {} |\n", flags_text(option), cell(summary_text(option, sluice)));
  out += "\n| exit status | meaning |\n|---|---|\n";
  for (const ExitStatus& status : exit_statuses()) out += fmt::format("| {} | {} |\n", status.status, cell(status.meaning));
  out += "\n| environment variable | meaning |\n|---|---|\n";
  for (const EnvironmentVariable& variable : environment_variables())
    out += fmt::format("| `{}` | {} |\n", variable.name, cell(variable.summary));
  out += "\n| path | holds |\n|---|---|\n";
  for (const File& file : files()) out += fmt::format("| `{}` | {} |\n", file.path, cell(file.summary));
  out +=
      "\n## Output for programs\n\n"
      "`--output json` and `yaml` print the reply of the agent's API (src/wire/agent.proto) by protobuf's JSON rules: fields "
      "under their own "
      "names, defaults included, 64-bit numbers as strings. Commands that change the host print the result at the end of the "
      "stream. "
      "Streams without end (`events`, `status --watch`) print one object a line, or one YAML document each. Results go to "
      "standard output, "
      "everything else to standard error.\n";
  for (const NamedCommand& named : all_commands()) markdown_command(*named.command, named.path, out);
  return out;
}

}  // namespace sluice::cli
