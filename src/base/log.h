// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The structured log: one line an event, on stderr. Text with key=value for people on a terminal, one JSON object a line
// otherwise. The message is a constant; what varies goes into fields, so that logs can be searched.
//
//   log_info("policy applied", {{"generation", 12}, {"rules", rules.size()}});
//   log_error("migration failed", error, {{"netns", ino}});
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"

namespace spdlog::sinks {
class sink;  // NOLINT(readability-identifier-naming): spdlog's name
}

namespace sluice {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat { kAuto, kText, kJson };  // kAuto: text if stderr is a terminal

Result<LogLevel> parse_log_level(std::string_view name);  // debug, info, warning, error, off

struct LogField {
  std::string_view key;
  std::variant<std::int64_t, std::uint64_t, double, bool, std::string> value;

  template <class T>
  LogField(std::string_view name, const T& v) : key(name), value(convert(v)) {}

 private:
  template <class T>
  static decltype(value) convert(const T& v) {
    if constexpr (std::same_as<T, bool>)
      return v;
    else if constexpr (std::signed_integral<T>)
      return static_cast<std::int64_t>(v);
    else if constexpr (std::unsigned_integral<T>)
      return static_cast<std::uint64_t>(v);
    else if constexpr (std::floating_point<T>)
      return static_cast<double>(v);
    else
      return std::string(v);
  }
};
using LogFields = std::initializer_list<LogField>;

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kAuto;
  std::shared_ptr<spdlog::sinks::sink> sink;  // tests; null = stderr
};
// Before it is called, and in libraries under test, lines go to stderr as with default options. Thread-safe.
void init_log(const LogOptions& options);

void log_debug(std::string_view message, LogFields fields = {});
void log_info(std::string_view message, LogFields fields = {});
void log_warning(std::string_view message, LogFields fields = {});
void log_error(std::string_view message, LogFields fields = {});
void log_warning(std::string_view message, const Error& error, LogFields fields = {});
void log_error(std::string_view message, const Error& error, LogFields fields = {});

}  // namespace sluice
