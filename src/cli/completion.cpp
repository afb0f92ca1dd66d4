// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Completion scripts: commands, options, and the values that are known beforehand. They never call the agent: pressing Tab must
// not wait.
#include <fmt/format.h>

#include <set>

#include "base/result.h"
#include "cli/help.h"

namespace sluice::cli {
namespace {

std::string bash_values(ValueKind kind, const std::vector<std::string_view>& choices) {
  switch (kind) {
    case ValueKind::kChoice:
      return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$cur\"))", fmt::join(choices, " "));
    case ValueKind::kFile:
      return "COMPREPLY=($(compgen -f -- \"$cur\"))";
    case ValueKind::kFolder:
      return "COMPREPLY=($(compgen -d -- \"$cur\"))";
    default:
      return "COMPREPLY=()";
  }
}

std::string option_words(const Command& command) {
  std::string list;
  const auto add = [&](const Command& of) {
    for (const Option& option : of.options) list += fmt::format("{}--{}", list.empty() ? "" : " ", option.name);
  };
  if (&command != &root()) add(command);
  add(root());
  return list;
}

std::string subcommand_words(const Command& command) {
  std::string list;
  for (const Command& sub : command.subcommands) list += fmt::format("{}{}", list.empty() ? "" : " ", sub.name);
  return list;
}

std::string letters(const Option& option) {
  return option.letter == 0 ? fmt::format("--{}", option.name) : fmt::format("--{}|-{}", option.name, option.letter);
}

// One list of options that take a value serves all commands: a test sees to it that a name has one meaning.
std::string bash_script() {
  std::string known, options, commands, arguments, values, with_value;
  std::set<std::string_view> seen;
  const auto add_options = [&](const Command& command) {
    for (const Option& option : command.options)
      if (option.kind != ValueKind::kFlag && seen.insert(option.name).second) {
        values += fmt::format("    {}) {}; return ;;\n", letters(option), bash_values(option.kind, option.choices));
        with_value += fmt::format("{}{}", with_value.empty() ? "" : "|", letters(option));
      }
  };
  add_options(root());
  options += fmt::format("    '') options='{}' ;;\n", option_words(root()));
  commands += fmt::format("    '') commands='{}' ;;\n", subcommand_words(root()));
  for (const NamedCommand& named : all_commands()) {
    add_options(*named.command);
    known += fmt::format("{}'{}'", known.empty() ? "" : "|", named.path);
    options += fmt::format("    '{}') options='{}' ;;\n", named.path, option_words(*named.command));
    if (!named.command->subcommands.empty())
      commands += fmt::format("    '{}') commands='{}' ;;\n", named.path, subcommand_words(*named.command));
    if (!named.command->arguments.empty()) {
      const Argument& argument = named.command->arguments.front();
      arguments += fmt::format("    '{}') {} ;;\n", named.path, bash_values(argument.kind, argument.choices));
    }
  }
  return fmt::format(R"(# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# bash completion for sluice; made by `sluice completion bash`
_sluice() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local path='' word options='' commands='' skip='' i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{COMP_WORDS[i]}}"
    if [[ -n $skip ]]; then skip=''; continue; fi
    case "$word" in
    {with_value}) skip=1; continue ;;
    -*) continue ;;
    esac
    case "${{path:+$path }}$word" in
    {known}) path="${{path:+$path }}$word" ;;
    *) break ;;
    esac
  done
  case "$previous" in
{values}  esac
  case "$path" in
{options}  esac
  case "$path" in
{commands}  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
    return
  fi
  if [[ -n $commands ]]; then
    COMPREPLY=($(compgen -W "$commands" -- "$cur"))
    return
  fi
  case "$path" in
{arguments}  esac
}}
complete -o filenames -F _sluice sluice
)",
                     fmt::arg("with_value", with_value), fmt::arg("known", known), fmt::arg("values", values),
                     fmt::arg("options", options), fmt::arg("commands", commands), fmt::arg("arguments", arguments));
}

// ---- zsh
// ---------------------------------------------------------------------------------------------------------------------

// Inside a single-quoted _arguments specification: ' ends the quotes, [ ] : are its own punctuation.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\'')
      out += "'\\''";
    else if (c == '[' || c == ']' || c == ':' || c == '\\')
      out += '\\', out += c;
    else
      out += c;
  }
  return out;
}

std::string zsh_action(ValueKind kind, const std::vector<std::string_view>& choices) {
  switch (kind) {
    case ValueKind::kChoice:
      return fmt::format("({})", fmt::join(choices, " "));
    case ValueKind::kFile:
      return "_files";
    case ValueKind::kFolder:
      return "_files -/";
    default:
      return " ";
  }
}

std::string zsh_options(const Command& command) {
  std::string out;
  for (const Option& option : command.options) {
    const std::string value = option.kind == ValueKind::kFlag
                                  ? ""
                                  : fmt::format(":{}:{}", zsh_text(option.value), zsh_action(option.kind, option.choices));
    const char* const equals = option.kind == ValueKind::kFlag ? "" : "=";
    if (option.letter != 0) out += fmt::format("    '-{}[{}]{}' \\\n", option.letter, zsh_text(option.summary), value);
    out += fmt::format("    '--{}{}[{}]{}' \\\n", option.name, equals, zsh_text(option.summary), value);
  }
  return out;
}

std::string zsh_function(std::string path) {
  for (char& c : path)
    if (c == ' ' || c == '-') c = '_';
  return path.empty() ? "_sluice" : "_sluice_" + path;
}

std::string zsh_command(const Command& command, const std::string& path) {
  std::string out = fmt::format("{}() {{\n", zsh_function(path));
  out += "  local context state state_descr line\n  typeset -A opt_args\n  _arguments -C \\\n";
  out += zsh_options(root());
  if (&command != &root()) out += zsh_options(command);
  if (command.subcommands.empty()) {
    for (const Argument& argument : command.arguments)
      out += fmt::format("    '{}:{}:{}' \\\n",
                         argument.many       ? "*"
                         : argument.required ? "1"
                                             : "1:",
                         zsh_text(argument.name), zsh_action(argument.kind, argument.choices));
    return out + "    && return 0\n}\n";
  }
  out +=
      "    '1:command:->command' '*::argument:->argument' && return 0\n  case $state in\n  command)\n    local -a commands=(\n";
  for (const Command& sub : command.subcommands) out += fmt::format("      '{}:{}'\n", sub.name, zsh_text(sub.summary));
  out += "    )\n    _describe command commands ;;\n  argument)\n    case $line[1] in\n";
  for (const Command& sub : command.subcommands)
    out += fmt::format("    {}) {} ;;\n", sub.name,
                       zsh_function(path.empty() ? std::string(sub.name) : path + " " + std::string(sub.name)));
  return out + "    esac ;;\n  esac\n}\n";
}

std::string zsh_script() {
  std::string out =
      "#compdef sluice\n# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause\n# zsh completion for sluice; made by `sluice "
      "completion zsh`\n";
  for (const NamedCommand& named : all_commands()) out += zsh_command(*named.command, named.path);
  return out + zsh_command(root(), "") +
         "if [ \"$funcstack[1]\" = _sluice ]; then _sluice \"$@\"; else compdef _sluice sluice; fi\n";
}

// ---- fish
// --------------------------------------------------------------------------------------------------------------------

std::string fish_text(std::string_view text) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fish_value(ValueKind kind, const std::vector<std::string_view>& choices) {
  switch (kind) {
    case ValueKind::kFlag:
      return "";
    case ValueKind::kChoice:
      return fmt::format(" -x -a '{}'", fmt::join(choices, " "));
    case ValueKind::kFile:
      return " -r -F";
    case ValueKind::kFolder:
      return " -x -a '(__fish_complete_directories)'";
    default:
      return " -x";
  }
}

std::string fish_option(const Option& option, const std::string& condition) {
  return fmt::format("complete -c sluice{}{} -l {}{} -d {}\n", condition,
                     option.letter == 0 ? "" : fmt::format(" -s {}", option.letter), option.name,
                     fish_value(option.kind, option.choices), fish_text(option.summary));
}

std::string fish_script() {
  std::string out =
      "# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause\n# fish completion for sluice; made by `sluice completion "
      "fish`\n"
      "complete -c sluice -f\n";
  for (const Option& option : root().options) out += fish_option(option, "");
  for (const Command& command : root().subcommands)
    out += fmt::format("complete -c sluice -n __fish_use_subcommand -a {} -d {}\n", command.name, fish_text(command.summary));
  for (const Command& command : root().subcommands) {
    std::string seen = fmt::format("__fish_seen_subcommand_from {}", command.name);
    for (const Option& option : command.options) out += fish_option(option, fmt::format(" -n '{}'", seen));
    for (const Argument& argument : command.arguments)
      if (const std::string value = fish_value(argument.kind, argument.choices); value != " -x")
        out += fmt::format("complete -c sluice -n '{}'{} -d {}\n", seen, value == " -r -F" ? " -F" : value,
                           fish_text(argument.summary));
    if (command.subcommands.empty()) continue;
    const std::string none = fmt::format("{}; and not __fish_seen_subcommand_from {}", seen, subcommand_words(command));
    for (const Command& sub : command.subcommands) {
      out += fmt::format("complete -c sluice -n '{}' -a {} -d {}\n", none, sub.name, fish_text(sub.summary));
      const std::string both = fmt::format("{}; and __fish_seen_subcommand_from {}", seen, sub.name);
      for (const Option& option : sub.options) out += fish_option(option, fmt::format(" -n '{}'", both));
      for (const Argument& argument : sub.arguments)
        if (const std::string value = fish_value(argument.kind, argument.choices); value != " -x")
          out += fmt::format("complete -c sluice -n '{}'{} -d {}\n", both, value == " -r -F" ? " -F" : value,
                             fish_text(argument.summary));
    }
  }
  return out;
}

}  // namespace

std::string render_completion(std::string_view shell) {
  if (shell == "bash") return bash_script();
  if (shell == "zsh") return zsh_script();
  SLUICE_ASSERT(shell == "fish");
  return fish_script();
}

}  // namespace sluice::cli
