// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "report.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "base/strings.h"

namespace sluice::bench {
namespace {

// First line of a command's output; empty if it fails.
std::string first_line(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  char line[256] = {};
  const bool got = std::fgets(line, sizeof line, pipe) != nullptr;
  return ::pclose(pipe) == 0 && got ? std::string(trim(line)) : std::string();
}

// The commit, with "-dirty" where tracked files differ from it; "unknown" outside of a checkout.
std::string git_revision() {
  // safe.directory: root measures a checkout that somebody else owns.
  const std::string revision =
      first_line("git -c safe.directory='*' -C '" SLUICE_SOURCE_DIR "' describe --always --dirty --abbrev=12 2>/dev/null");
  return revision.empty() ? "unknown" : revision;
}

std::string kernel_release() {
  utsname name{};
  return ::uname(&name) == 0 ? name.release : "unknown";
}

std::string cpu_model() {
  std::string model = "unknown";
  if (auto text = read_file("/proc/cpuinfo")) {
    const auto at = text->find("model name");
    const auto colon = text->find(':', at);
    if (at != std::string::npos && colon != std::string::npos)
      model = trim(std::string_view(*text).substr(colon + 1, text->find('\n', colon) - colon - 1));
  }
  return fmt::format("{} x {}", std::thread::hardware_concurrency(), model);
}

std::string number(double value) {
  const double magnitude = std::fabs(value);
  if (value == std::floor(value) && magnitude < 1e15) return fmt::format("{:.0f}", value);
  return magnitude >= 100  ? fmt::format("{:.0f}", value)
         : magnitude >= 10 ? fmt::format("{:.1f}", value)
                           : fmt::format("{:.3f}", value);
}

std::string goal_text(const Goal& goal) {
  if (goal.op == "in") return fmt::format("in {}..{}", number(goal.value), number(goal.upper));
  return fmt::format("{} {}", goal.op, number(goal.value));
}

nlohmann::ordered_json goal_json(const Goal& goal) {
  nlohmann::ordered_json value = goal.value;
  if (goal.op == "in") value = {goal.value, goal.upper};
  return {{"of", goal.of}, {"op", goal.op}, {"value", value}};
}

std::string params_text(const nlohmann::ordered_json& params) {
  std::string text;
  for (const auto& [key, value] : params.items())
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value.is_string() ? value.get<std::string>() : value.dump());
  return text;
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  SLUICE_ASSERT(!values.empty());
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const auto above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (at - std::floor(at));
}

std::optional<double> Measurement::ratio() const {
  if (!value || !baseline || baseline->value == 0) return std::nullopt;
  return *value / baseline->value;
}

std::optional<bool> Measurement::met() const {
  if (!goal) return std::nullopt;
  const auto measured = goal->of == "ratio" ? ratio() : value;
  if (!measured) return false;
  if (goal->op == "<=") return *measured <= goal->value;
  if (goal->op == ">=") return *measured >= goal->value;
  if (goal->op == "in") return *measured >= goal->value && *measured <= goal->upper;
  SLUICE_ASSERT(goal->op == "==");
  return *measured == goal->value;
}

void Report::add(Measurement measurement) {
  std::fprintf(stderr, "%s %s: %s\n", measurement.id.c_str(), params_text(measurement.params).c_str(),
               measurement.value ? fmt::format("{} {}", number(*measurement.value), measurement.unit).c_str()
                                 : measurement.note.c_str());
  results_.push_back(std::move(measurement));
}

bool Report::incomplete() const {
  return std::ranges::any_of(results_, [](const Measurement& m) { return !m.value; });
}

nlohmann::ordered_json Report::to_json() const {
  using Json = nlohmann::ordered_json;
  Json results = Json::array();
  for (const Measurement& m : results_) {
    Json result{{"id", m.id}, {"params", m.params}};
    result["value"] = m.value ? Json(*m.value) : Json();
    result["unit"] = m.unit;
    result["samples"] = m.samples;
    result["baseline"] = m.baseline ? Json{{"id", m.baseline->id}, {"value", m.baseline->value}} : Json();
    result["ratio"] = m.ratio() ? Json(*m.ratio()) : Json();
    result["goal"] = m.goal ? goal_json(*m.goal) : Json();
    result["met"] = m.met() ? Json(*m.met()) : Json();
    if (!m.note.empty()) result["note"] = m.note;
    results.push_back(std::move(result));
  }
  return Json{{"schema", "sluice.bench/1"}, {"bench", bench_},    {"git", git_revision()},
              {"kernel", kernel_release()}, {"cpu", cpu_model()}, {"results", std::move(results)}};
}

Status Report::write_json(const std::string& path) const { return write_file_atomic(path, to_json().dump(1) + "\n"); }

void Report::print_table(std::FILE* out) const {
  std::vector<const Measurement*> missed;
  fmt::print(out, "{:<24} {:<50} {:>10} {:<12} {:>12} {:<7} {}\n", "id", "params", "value", "unit", "goal", "", "baseline");
  for (const Measurement& m : results_) {
    const auto met = m.met();
    if (met == false) missed.push_back(&m);
    fmt::print(
        out, "{:<24} {:<50} {:>10} {:<12} {:>12} {:<7} {}\n", m.id, params_text(m.params), m.value ? number(*m.value) : "-",
        m.unit, m.goal ? goal_text(*m.goal) : "",
        !met   ? ""
        : *met ? "met"
               : "MISSED",
        m.baseline ? fmt::format("{:.3f} x {} ({})", m.ratio().value_or(0), m.baseline->id, number(m.baseline->value)) : "");
  }
  for (const Measurement& m : results_)
    if (!m.note.empty()) fmt::print(out, "\n{} {}:\n  {}\n", m.id, params_text(m.params), m.note);
  fmt::print(out, "\n{}\n",
             !missed.empty() ? fmt::format("MISSED {} of the goals:", missed.size())
             : incomplete()  ? "NOT MEASURED: see the notes above"
                             : "every goal is met");
  for (const Measurement* m : missed)
    fmt::print(out, "  {} {}: {}, goal {}\n", m->id, params_text(m->params),
               !m->value                ? "not measured"
               : m->goal->of == "ratio" ? fmt::format("ratio {:.3f}", m->ratio().value_or(0))
                                        : fmt::format("{} {}", number(*m->value), m->unit),
               goal_text(*m->goal));
}

}  // namespace sluice::bench
