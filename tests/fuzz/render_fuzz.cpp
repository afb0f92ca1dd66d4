// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Fuzz target: what the CLI makes of any answer of an agent - text, JSON, YAML, errors, exit status - and what a scrape and the
// log make of the agent's own words. Nothing drives the terminal, nothing breaks a line format.
#include <fmt/format.h>
#include <prometheus/text_serializer.h>
#include <spdlog/sinks/base_sink.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "agent/metrics.h"
#include "base/log.h"
#include "base/strings.h"
#include "bundle/yaml.h"
#include "cli/command_table.h"
#include "cli/output.h"
#include "cli/render.h"
#include "fuzz/inputs.pb.h"
#include "fuzz/proto_input.h"
#include "wire/error.h"

namespace sluice::fuzz {
namespace {

constexpr std::int64_t kNow_ns = 1'700'000'000'000'000'000;

// `text` but for the colours that Style paints: ESC [ digits m.
std::string without_colours(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '\x1b' && at + 1 < text.size() && text[at + 1] == '[') {
      std::size_t end = at + 2;
      while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
      if (end < text.size() && text[end] == 'm') {
        at = end + 1;
        continue;
      }
    }
    out += text[at++];
  }
  return out;
}

void judge_text(const std::string& text, const cli::Style& style) {
  const std::string plain = style.colour ? without_colours(text) : text;
  for (const std::string_view line : split(plain, '\n')) SLUICE_ASSERT(cli::printable(line) == line);
}

// JSON is JSON, YAML is what we read ourselves, and neither says more or less than the other.
void judge_machine(const google::protobuf::Message& message) {
  const std::string json = cli::to_json(message, true);
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  SLUICE_ASSERT(!parsed.is_discarded() && parsed.is_object());
  const std::unique_ptr<google::protobuf::Message> again(message.New());
  SLUICE_ASSERT(cli::from_json(json, *again));
  const auto node = yaml::parse(cli::to_yaml(message), "yaml");
  if (!node) {
    // Our reader is stricter than YAML: no NUL, no deep nesting.
    SLUICE_ASSERT(json.find("\\u0000") != std::string::npos || node.error().what.find("nested") != std::string::npos);
    return;
  }
  SLUICE_ASSERT(node->entries.size() == parsed.size());
}

class Lines final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  std::string text;

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    text.append(line.data(), line.size());
  }
  void flush_() override {}
};

// There is one logger: whatever logs, logs here.
Lines& logged() {
  static const auto kLines = [] {
    auto lines = std::make_shared<Lines>();
    init_log({LogLevel::kDebug, LogFormat::kJson, lines});
    return lines;
  }();
  return *kLines;
}

void judge_log(const std::function<void()>& log) {
  std::string& text = logged().text;
  text.clear();
  log();
  SLUICE_ASSERT(!text.empty() && text.find('\n') == text.size() - 1);
  const auto parsed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  SLUICE_ASSERT(!parsed.is_discarded() && parsed.contains("message") && parsed.contains("level"));
}

// Prometheus' text format: comments, or NAME{LABELS} VALUE.
void judge_metrics(const v1::StatusReply& status) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, agent::metric_families(status));
  const std::string text = out.str();
  SLUICE_ASSERT(text.ends_with('\n'));
  for (const std::string_view line : split(text, '\n')) {
    if (line.empty() || line.starts_with('#')) continue;
    SLUICE_ASSERT(line.starts_with("sluice_"));
    bool quoted = false;
    std::size_t at = 0;
    for (; at < line.size() && (quoted || line[at] != ' '); ++at) {
      if (quoted && line[at] == '\\')
        ++at;
      else if (line[at] == '"')
        quoted = !quoted;
    }
    SLUICE_ASSERT(!quoted && at + 1 < line.size());
    SLUICE_ASSERT(line.find(' ', at + 1) == std::string_view::npos);
  }
}

void judge_error(const Error& error, bool verbose, const cli::Style& style) {
  judge_text(cli::render_error(error, verbose, style), style);
  const int status = error_traits(error.code).exit_status;
  SLUICE_ASSERT(status >= 1 && status <= 4);
  judge_log([&] { log_error("the command failed", error); });
}

void judge_doctor(const v1::DoctorReply& reply, const cli::Style& style) {
  judge_text(cli::render_doctor(reply, style), style);
  const int status = cli::status_of(reply);
  SLUICE_ASSERT(status == cli::kOk || status == cli::kDegraded);
  judge_machine(reply);
}

void judge_answer(const Answer& answer, const cli::Style& style) {
  const auto both = [&](const std::string& text, const google::protobuf::Message& message) {
    judge_text(text, style);
    judge_machine(message);
  };
  switch (answer.reply_case()) {
    case Answer::kApplied:
      return both(cli::render_apply(answer.applied(), style), answer.applied());
    case Answer::kMigrated:
      judge_text(cli::render_migrate(answer.migrated(), true, style), style);
      return both(cli::render_migrate(answer.migrated(), false, style), answer.migrated());
    case Answer::kRolledBack:
      return both(cli::render_rollback(answer.rolled_back(), style), answer.rolled_back());
    case Answer::kDown:
      return both(cli::render_down(answer.down(), style), answer.down());
    case Answer::kDiff:
      return both(cli::render_diff(answer.diff(), answer.verbose(), style), answer.diff());
    case Answer::kStatus:
      judge_metrics(answer.status());
      return both(cli::render_status(answer.status(), kNow_ns, answer.verbose(), style), answer.status());
    case Answer::kExplain:
      return both(cli::render_explain(answer.explain().prefix(), answer.explain(), kNow_ns, style), answer.explain());
    case Answer::kCcas:
      for (const auto& cca : answer.ccas().ccas()) judge_text(cli::render_cca(cca, style), style);
      return both(cli::render_ccas(answer.ccas(), style), answer.ccas());
    case Answer::kAudit:
      return both(cli::render_audit(answer.audit(), answer.verbose(), style), answer.audit());
    case Answer::kEcnProbes:
      for (const auto& probe : answer.ecn_probes().probes()) judge_text(cli::render_ecn_probe(probe, style), style);
      return both(cli::render_ecn_probes(answer.ecn_probes(), kNow_ns, style), answer.ecn_probes());
    case Answer::kDoctor:
      return judge_doctor(answer.doctor(), style);
    case Answer::kSockets: {
      cli::Table table = cli::socket_table(style);
      for (const auto& socket : answer.sockets().sockets()) table.add(cli::socket_row(socket));
      both(table.flush(), answer.sockets());
      for (const char* by : {"cca", "version", "locality", "netns"}) {
        cli::SocketCount count(by);
        std::uint64_t sockets = 0;
        for (const auto& socket : answer.sockets().sockets()) count.add(socket);
        for (const auto& row : count.rows()) sockets += row.sockets();
        SLUICE_ASSERT(sockets == static_cast<std::uint64_t>(answer.sockets().sockets_size()));
        judge_text(count.table(style), style);
        SLUICE_ASSERT(!nlohmann::json::parse(count.json(), nullptr, /*allow_exceptions=*/false).is_discarded());
      }
      return;
    }
    case Answer::kEvent:
      judge_log(
          [&] { log_warning(answer.event().message(), {{"event", answer.event().kind()}, {"id", answer.event().id()}}); });
      return both(cli::render_event(answer.event(), style), answer.event());
    case Answer::kError: {
      const Error error = wire::from_proto(answer.error());
      judge_error(error, answer.verbose(), style);
      v1::Error again;
      SLUICE_ASSERT(again.ParseFromString(wire::to_status(error).error_details()));
      return;
    }
    case Answer::kErrorDetails: {
      const grpc::Status status(grpc::StatusCode::UNKNOWN, answer.error_details(), answer.error_details());
      return judge_error(wire::from_status(status, "agent.sock"), answer.verbose(), style);
    }
    case Answer::kDoctorJson: {
      v1::DoctorReply reply;
      if (cli::from_json(answer.doctor_json(), reply)) judge_doctor(reply, style);
      return;
    }
    case Answer::REPLY_NOT_SET:
      return;
  }
}

}  // namespace

const google::protobuf::Message& prototype() { return Answer::default_instance(); }

}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice::fuzz;
  [[maybe_unused]] static const bool kComplete = [] {
    check_covers_api(*Answer::descriptor(), Side::kReply, {"Progress"});  // its results are here
    return true;
  }();
  Answer answer;
  if (!read_input(data, size, answer)) return -1;
  constexpr unsigned kColumnsMax = 400;
  judge_answer(answer, sluice::cli::Style{answer.colour(), answer.columns() % kColumnsMax});
  return 0;
}
