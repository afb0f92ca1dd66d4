// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <unistd.h>

#include <cmath>
#include <iterator>
#include <mutex>

#include "base/strings.h"

namespace sluice {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  panic("a log level without a name", __FILE__, __LINE__);
}

struct Output {
  std::shared_ptr<spdlog::logger> logger;
  bool json = false;
};

Output make_output(const LogOptions& options) {
  Output output;
  output.json = options.format == LogFormat::kJson || (options.format == LogFormat::kAuto && ::isatty(STDERR_FILENO) == 0);
  auto sink = options.sink ? options.sink : std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>();
  output.logger = std::make_shared<spdlog::logger>("sluice", std::move(sink));
  output.logger->set_level(to_spdlog(options.level));
  output.logger->flush_on(spdlog::level::debug);  // a crash must not eat the line that explains it
  output.logger->set_pattern(output.json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%f%z","level":"%l",%v})"
                                         : "%Y-%m-%d %H:%M:%S.%e %^%-7l%$ %v");
  return output;
}

std::mutex output_mutex;

Output& output_locked() {
  static Output output = make_output({});
  return output;
}

Output current_output() {
  std::lock_guard lock(output_mutex);
  return output_locked();
}

bool needs_quotes(std::string_view text) {
  if (text.empty()) return true;
  for (char c : text)
    if (c == ' ' || c == '"' || c == '=' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return true;
  return false;
}

std::string render(const LogField& field, bool json) {
  return std::visit(
      [json](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>)
          return json || needs_quotes(value) ? json_quote(value) : value;
        else if constexpr (std::is_same_v<T, double>)
          return json && !std::isfinite(value) ? "null" : fmt::format("{}", value);
        else
          return fmt::format("{}", value);
      },
      field.value);
}

void write(LogLevel level, std::string_view message, LogFields fields, const Error* error) {
  Output output = current_output();
  if (!output.logger->should_log(to_spdlog(level))) return;
  std::string line = output.json ? "\"message\":" + json_quote(message) : std::string(message);
  auto add = [&](const LogField& field) {
    if (output.json)
      line += ',' + json_quote(field.key) + ':' + render(field, true);
    else
      fmt::format_to(std::back_inserter(line), " {}={}", field.key, render(field, false));
  };
  for (const LogField& field : fields) add(field);
  if (error != nullptr) {
    add({"code", error_traits(error->code).name});
    add({"error", error->message()});
  }
  output.logger->log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace

Result<LogLevel> parse_log_level(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return fail(Code::kInvalid, "unknown log level \"{}\"; levels are debug, info, warning, error, off", name);
}

void init_log(const LogOptions& options) {
  Output fresh = make_output(options);
  std::lock_guard lock(output_mutex);
  output_locked() = std::move(fresh);
}

void log_debug(std::string_view message, LogFields fields) { write(LogLevel::kDebug, message, fields, nullptr); }
void log_info(std::string_view message, LogFields fields) { write(LogLevel::kInfo, message, fields, nullptr); }
void log_warning(std::string_view message, LogFields fields) { write(LogLevel::kWarning, message, fields, nullptr); }
void log_error(std::string_view message, LogFields fields) { write(LogLevel::kError, message, fields, nullptr); }
void log_warning(std::string_view message, const Error& error, LogFields fields) {
  write(LogLevel::kWarning, message, fields, &error);
}
void log_error(std::string_view message, const Error& error, LogFields fields) {
  write(LogLevel::kError, message, fields, &error);
}

}  // namespace sluice
