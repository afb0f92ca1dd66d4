// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cli/session.h"

#include <algorithm>

#include "base/strings.h"

namespace sluice::cli {
namespace {

Deadline after(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

Format format_of(std::string_view name) {
  return name == "json" ? Format::kJson : name == "yaml" ? Format::kYaml : Format::kTable;
}

}  // namespace

Result<std::unique_ptr<Session>> Session::make(Environment& environment, const Invocation& call) {
  std::unique_ptr<Session> session(new Session(environment, call));
  SLUICE_TRY(paths, instance_paths(call.text("instance"), environment.roots));
  session->paths_ = std::move(paths);
  session->socket_ = call.text("socket");
  if (session->socket_.empty() && !call.has("instance"))
    session->socket_ = environment.variable(std::string(kSocketVariable)).value_or("");
  if (session->socket_.empty()) session->socket_ = session->paths_.socket;

  session->format_ = format_of(call.text("output"));
  const auto no_color = environment.variable("NO_COLOR");
  const bool colour = !call.has("no-color") && (!no_color || no_color->empty());
  session->style_ = {colour && environment.out_is_terminal, environment.out_is_terminal ? environment.columns : 0};
  session->err_style_ = {colour && environment.err_is_terminal, environment.err_is_terminal ? environment.columns : 0};

  session->timeout_s_ = call.has("timeout") ? call.seconds("timeout") : call.command->timeout_s;
  if (session->timeout_s_ > 0) session->deadline_ = after(session->timeout_s_);
  return session;
}

std::vector<std::string> Session::bundle_path() const {
  if (!call_.has("bundle-path")) return env_.bundle_path;
  const std::string path = call_.text("bundle-path");
  std::vector<std::string> roots;
  for (std::string_view root : split(path, ':'))
    if (!root.empty()) roots.emplace_back(root);
  return roots;
}

std::uint32_t Session::work_timeout_ms() const {
  if (!deadline_ || (!call_.has("timeout") && !wait())) return 0;
  constexpr double kShare = 0.9;
  return static_cast<std::uint32_t>(std::clamp(kShare * poll_ms(deadline_), 1.0, static_cast<double>(INT32_MAX)));
}

void Session::run_unbounded() {
  if (call_.has("timeout")) return;
  deadline_.reset();
  timeout_s_ = 0;
}

int Session::interrupt_fd() {
  if (!interrupt_fd_) interrupt_fd_ = env_.interrupts();
  return *interrupt_fd_;
}

void Session::print(std::string_view text) { env_.out << text << std::flush; }

void Session::note(std::string_view text) {
  if (!quiet()) env_.err << text << std::flush;
}

void Session::reply(const google::protobuf::Message& message, std::string_view text, bool one_of_many) {
  switch (format_) {
    case Format::kTable:
      print(text);
      break;
    case Format::kJson:
      print(one_of_many ? to_json(message, false) + "\n" : to_json(message, true));
      break;
    case Format::kYaml:
      print((one_of_many ? "---\n" : "") + to_yaml(message));
      break;
  }
}

void Session::result(const google::protobuf::Message& message, std::string_view text) {
  if (format_ != Format::kTable || !quiet()) reply(message, text);
}

void ProgressLine::show(std::string_view text) {
  if (session_.quiet()) return;
  if (session_.verbose()) {
    session_.env().err << printable(text) << "\n" << std::flush;
  } else if (session_.env().err_is_terminal) {
    session_.env().err << "\r\x1b[K" << truncate(printable(text), std::max(session_.env().columns, 2U) - 1) << std::flush;
    shown_ = true;
  }
}

void ProgressLine::clear() {
  if (shown_) session_.env().err << "\r\x1b[K" << std::flush;
  shown_ = false;
}

}  // namespace sluice::cli
