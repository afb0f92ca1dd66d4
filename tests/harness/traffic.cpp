// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "harness/traffic.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace sluice::test {

Result<Traffic> Traffic::start(const Host& host, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), std::string(TEST_HARNESS_PROGRAMS) + "/traffic");
  arguments.push_back("--control");
  SLUICE_TRY(process, host.spawn(arguments, {.pipe_stdin = true, .pipe_stdout = true}));
  return Traffic(std::move(process));
}

Result<Traffic> Traffic::server(const Host& host, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "server");
  SLUICE_TRY(traffic, start(host, std::move(arguments)));
  SLUICE_TRY(line, traffic.expect("ready", kSoon));
  return traffic;
}

Result<Traffic> Traffic::client(const Host& host, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "client");
  return start(host, std::move(arguments));
}

Result<std::string> Traffic::expect(const std::string& word, Millis timeout) {
  auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    auto left = std::chrono::ceil<Millis>(deadline - std::chrono::steady_clock::now());
    SLUICE_TRY(line, process_.read_line(left));
    if (line.starts_with(word)) return line;
  }
}

Result<std::uint64_t> Traffic::sample(Millis timeout) {
  SLUICE_CHECK(process_.write("sample\n"));
  SLUICE_TRY(line, expect("sampled ", timeout));
  return std::stoull(line.substr(line.find(' ') + 1));
}

Result<TrafficSummary> Traffic::finish(Millis timeout) {
  SLUICE_TRY(line, expect("{", timeout));
  SLUICE_TRY(status, process_.wait(timeout));
  SLUICE_TRY(summary, parse_traffic_summary(line));
  if ((status == 0) != (summary.failed == 0))
    return fail(Code::kInternal, "traffic ended with status {} and said {}", status, line);
  return summary;
}

Result<TrafficSummary> Traffic::stop(Millis timeout) {
  SLUICE_CHECK(process_.write("stop\n"));
  return finish(timeout);
}

Result<TrafficSummary> parse_traffic_summary(const std::string& text) {
  auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) return fail(Code::kCorrupt, "traffic's summary is no JSON: {}", text);
  try {
    return TrafficSummary{.opened = json.at("opened"),
                          .closed = json.at("closed"),
                          .failed = json.at("failed"),
                          .requests = json.at("requests"),
                          .bytes = json.at("bytes"),
                          .seconds = json.at("seconds"),
                          .cca_at_open = json.at("cca_at_open"),
                          .cca_at_close = json.at("cca_at_close"),
                          .ecn_at_open = json.at("ecn_at_open"),
                          .ecn_seen_at_close = json.at("ecn_seen_at_close"),
                          .errors = json.at("errors")};
  } catch (const nlohmann::json::exception& error) {
    return fail(Code::kCorrupt, "traffic's summary lacks something ({}): {}", error.what(), text);
  }
}

Result<std::vector<TrafficRecord>> read_traffic_records(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(Code::kNotFound, "cannot open {}", path);
  std::vector<TrafficRecord> records;
  for (std::string line; std::getline(file, line);) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_discarded())
      return fail(fail(Code::kCorrupt, "no JSON: {}", line).value().at(fmt::format("{}:{}", path, records.size() + 1)));
    try {
      records.push_back({.event = json.at("event"),
                         .role = json.at("role"),
                         .id = json.at("id"),
                         .run = json.at("run"),
                         .time_ns = json.at("time_ns"),
                         .local = json.at("local"),
                         .remote = json.at("remote"),
                         .cca = json.at("cca"),
                         .ecn = json.at("ecn"),
                         .ecn_seen = json.at("ecn_seen"),
                         .cwnd_segments = json.at("cwnd_segments"),
                         .rtt_us = json.at("rtt_us"),
                         .retransmits = json.at("retransmits"),
                         .delivered_ce = json.at("delivered_ce"),
                         .cookie = json.at("cookie"),
                         .netns_inode = json.at("netns")});
    } catch (const nlohmann::json::exception& error) {
      return fail(
          fail(Code::kCorrupt, "{}: {}", error.what(), line).value().at(fmt::format("{}:{}", path, records.size() + 1)));
    }
  }
  return records;
}

}  // namespace sluice::test
