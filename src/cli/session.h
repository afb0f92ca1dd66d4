// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// One run of one command: what was asked, how to print, whom to talk to, until when.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/paths.h"
#include "base/result.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "cli/process.h"
#include "cli/run.h"
#include "cli/text.h"

namespace google::protobuf {
class Message;
}

namespace sluice::cli {

class Session {
 public:
  static Result<std::unique_ptr<Session>> make(Environment& environment, const Invocation& call);

  Environment& env() { return env_; }
  const Invocation& call() const { return call_; }
  const InstancePaths& paths() const { return paths_; }
  const std::string& socket() const { return socket_; }
  std::vector<std::string> bundle_path() const;

  Format format() const { return format_; }
  const Style& style() const { return style_; }          // of standard output
  const Style& err_style() const { return err_style_; }  // of standard error
  bool quiet() const { return call_.has("quiet"); }
  bool verbose() const { return call_.has("verbose"); }
  bool wait() const { return call_.has("wait"); }

  const Deadline& deadline() const { return deadline_; }
  double timeout_s() const { return timeout_s_; }  // 0 = unbounded
  // For requests with a bound of their own: a little less than --timeout, so that the agent's answer still arrives; 0 (the
  // agent's default) without --timeout and --wait.
  std::uint32_t work_timeout_ms() const;
  // For commands that go on until Ctrl-C: no deadline unless --timeout was given.
  void run_unbounded();
  int interrupt_fd();  // -1 = none

  void print(std::string_view text);  // standard output, at once
  void note(std::string_view text);   // standard error; nothing with --quiet
  // A reply: `text` for people, or the message. `one_of_many` puts JSON on one line and parts YAML documents.
  void reply(const google::protobuf::Message& message, std::string_view text, bool one_of_many = false);
  // The result of a command that changes the host: as reply(), but --quiet keeps the text back.
  void result(const google::protobuf::Message& message, std::string_view text);

 private:
  Session(Environment& environment, const Invocation& call) : env_(environment), call_(call) {}

  Environment& env_;
  const Invocation& call_;
  InstancePaths paths_;
  std::string socket_;
  Format format_ = Format::kTable;
  Style style_, err_style_;
  Deadline deadline_;
  double timeout_s_ = 0;
  std::optional<int> interrupt_fd_;
};

// One line on a terminal's standard error that is rewritten as the work goes on; with --verbose a line a step. Nothing is left
// of it afterwards.
class ProgressLine {
 public:
  explicit ProgressLine(Session& session) : session_(session) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(std::string_view text);
  void clear();

 private:
  Session& session_;
  bool shown_ = false;
};

}  // namespace sluice::cli
