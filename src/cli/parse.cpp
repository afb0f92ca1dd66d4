// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cli/parse.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "base/strings.h"
#include "cli/text.h"

namespace sluice::cli {
namespace {

tl::unexpected<Error> usage(const std::string& path, std::string what, const std::string& meant = {}) {
  Error error;
  error.code = Code::kInvalid;
  error.what = std::move(what);
  if (!meant.empty()) error.what += fmt::format("; did you mean '{}'?", meant);
  error.remedy = fmt::format("run `sluice{}{} --help`", path.empty() ? "" : " ", path);
  return fail(std::move(error));
}

std::string flags_of(const Option& option) {
  return option.letter == 0 ? fmt::format("--{}", option.name) : fmt::format("-{},--{}", option.letter, option.name);
}

// Declares a command and what is below it. Nothing is required and extra words are kept: parse() judges them with more to say.
void declare(CLI::App& app, const Command& command) {
  app.set_help_flag();
  app.allow_extras();
  app.fallthrough();
  app.require_subcommand(0, 1);
  for (const Option& option : command.options) {
    if (option.kind == ValueKind::kFlag)
      app.add_flag(flags_of(option));
    else
      app.add_option(flags_of(option))->take_last();
  }
  for (const Argument& argument : command.arguments) {
    CLI::Option* declared = app.add_option(std::string(argument.name));
    if (argument.many) declared->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args();
  }
  for (const Command& sub : command.subcommands) declare(*app.add_subcommand(std::string(sub.name)), sub);
}

Status check_value(const std::string& path, std::string_view name, ValueKind kind, const std::vector<std::string_view>& choices,
                   std::uint64_t max, const std::string& value) {
  switch (kind) {
    case ValueKind::kNumber: {
      const auto number = parse_int<std::uint64_t>(value);
      if (!number || *number > max)
        return usage(path, fmt::format("{} takes a number from 0 to {}, not '{}'", name, max, value));
      return {};
    }
    case ValueKind::kSeconds: {
      char* end = nullptr;
      const double seconds = std::strtod(value.c_str(), &end);
      constexpr double kYear = 366.0 * 86400;
      if (value.empty() || *end != 0 || !std::isfinite(seconds) || seconds <= 0 || seconds > kYear)
        return usage(path, fmt::format("{} takes seconds, such as 2 or 0.5, not '{}'", name, value));
      return {};
    }
    case ValueKind::kChoice:
      if (std::find(choices.begin(), choices.end(), value) == choices.end())
        return usage(path, fmt::format("{} takes one of {}, not '{}'", name, fmt::join(choices, ", "), value),
                     std::string(nearest(value, choices)));
      return {};
    case ValueKind::kText:
    case ValueKind::kFile:
    case ValueKind::kFolder:
      if (value.empty()) return usage(path, fmt::format("{} is empty", name));
      return {};
    case ValueKind::kFlag:
      return {};
  }
  return {};
}

// The word that nobody took: an unknown option before an unknown command before one word too many.
tl::unexpected<Error> refuse_extras(const Invocation& call, const std::vector<std::string>& extras) {
  for (const std::string& word : extras) {
    if (word.size() < 2 || word[0] != '-' || word == "--") continue;
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> known;
    for (const Command* command : {call.command, &root()})
      for (const Option& option : command->options) known.push_back("--" + std::string(option.name));
    const std::vector<std::string_view> candidates(known.begin(), known.end());
    return usage(call.path, fmt::format("unknown option '{}'", name), std::string(nearest(name, candidates)));
  }
  const std::string& word = extras.front();
  if (call.command->subcommands.empty()) return usage(call.path, fmt::format("'{}' is one word too many", word));
  std::vector<std::string_view> names;
  for (const Command& sub : call.command->subcommands) names.push_back(sub.name);
  const std::string before = call.path.empty() ? "" : call.path + " ";
  const std::string_view meant = nearest(word, names);
  return usage(call.path, fmt::format("unknown command '{}{}'", before, word),
               meant.empty() ? "" : before + std::string(meant));
}

void collect(const CLI::App& app, const Command& command, Invocation& call) {
  for (const Option& option : command.options) {
    const CLI::Option* given = app.get_option("--" + std::string(option.name));
    if (given->count() == 0) continue;
    call.values[std::string(option.name)] =
        option.kind == ValueKind::kFlag ? std::vector<std::string>{""} : std::vector<std::string>{given->results().back()};
  }
  for (const Argument& argument : command.arguments) {
    const CLI::Option* given = app.get_option(std::string(argument.name));
    if (given->count() != 0) call.values[std::string(argument.name)] = given->results();
  }
}

}  // namespace

std::string Invocation::text(std::string_view name) const {
  const auto found = values.find(name);
  if (found != values.end()) return found->second.back();
  for (const Command* where : {command, &root()})
    for (const Option& option : where->options)
      if (option.name == name) return std::string(option.fallback);
  return {};
}

std::uint64_t Invocation::number(std::string_view name) const { return parse_int<std::uint64_t>(text(name)).value_or(0); }

double Invocation::seconds(std::string_view name) const { return std::strtod(text(name).c_str(), nullptr); }

const std::vector<std::string>& Invocation::list(std::string_view name) const {
  static const std::vector<std::string> kNone;
  const auto found = values.find(name);
  return found == values.end() ? kNone : found->second;
}

Result<Invocation> parse(const std::vector<std::string>& words) {
  CLI::App app;
  declare(app, root());
  Invocation call;
  call.command = &root();
  std::string complaint;
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes them last first
  } catch (const CLI::ArgumentMismatch& error) {                        // "--output: ..."
    const std::string text = error.what();
    complaint = fmt::format("{} needs a value, and only one", text.substr(0, text.find(':')));
  } catch (const CLI::ParseError& error) {
    complaint = error.what();
  }
  collect(app, root(), call);
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    for (const Command& sub : call.command->subcommands)
      if (sub.name == at->get_name()) {
        call.command = &sub;
        break;
      }
    call.path += (call.path.empty() ? "" : " ") + at->get_name();
    collect(*at, *call.command, call);
  }
  if (!complaint.empty()) return usage(call.path, complaint);
  if (const auto extras = app.remaining(true); !extras.empty()) return refuse_extras(call, extras);

  for (const Command* command : {call.command, &root()})
    for (const Option& option : command->options)
      for (const std::string& value : call.list(option.name))
        SLUICE_CHECK(check_value(call.path, "--" + std::string(option.name), option.kind, option.choices, option.max, value));
  for (const Argument& argument : call.command->arguments) {
    for (const std::string& value : call.list(argument.name))
      SLUICE_CHECK(check_value(call.path, argument.name, argument.kind, argument.choices, UINT32_MAX, value));
    if (argument.required && !call.has(argument.name) && !call.has("help"))
      return usage(call.path, fmt::format("`sluice {}` needs {}: {}", call.path, argument.name, argument.summary));
  }
  return call;
}

}  // namespace sluice::cli
