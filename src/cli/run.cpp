// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cli/run.h"

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/parse.h"
#include "cli/render.h"
#include "cli/session.h"

namespace sluice::cli {

int run(const std::vector<std::string>& words, Environment& environment) {
  // Not commands: the build calls them to make files from the command table.
  if (words == std::vector<std::string>{"--print-man"} || words == std::vector<std::string>{"--print-reference"}) {
    environment.out << (words[0] == "--print-man" ? render_man() : render_reference()) << std::flush;
    return environment.out ? kOk : kFailed;
  }

  const Style plain;
  auto call = parse(words);
  if (!call) {
    environment.err << render_error(call.error(), false, plain) << std::flush;
    return kUsage;
  }
  auto session = Session::make(environment, *call);
  if (!session) {
    environment.err << render_error(session.error(), false, plain) << std::flush;
    return kUsage;
  }
  Result<int> status = kOk;
  if (call->has("help")) {
    (*session)->print(render_help(*call->command, call->path, (*session)->style()));
  } else if (call->has("version")) {
    status = run_version(**session);
  } else if (call->command->handler == nullptr) {  // `sluice`, `sluice cca`: says what there is, but did nothing
    environment.err << render_help(*call->command, call->path, (*session)->err_style()) << std::flush;
    return kUsage;
  } else {
    status = call->command->handler(**session);
  }
  if (!status) {
    environment.err << render_error(status.error(), (*session)->verbose(), (*session)->err_style()) << std::flush;
    return error_traits(status.error().code).exit_status;
  }
  if (!environment.out) {
    environment.err << "sluice: standard output cannot be written\n" << std::flush;
    return kFailed;
  }
  return *status;
}

}  // namespace sluice::cli
