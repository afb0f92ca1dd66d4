// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// `sluice`: the process around cli::run().
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "base/file.h"
#include "cli/run.h"

namespace {

// Ctrl-C kills as usual until there is a call to cancel; from then on it is read from here. Threads inherit the mask, so it is
// set before gRPC has any.
int watch_interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

unsigned terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0 ? size.ws_col : 80;
}

// The agent that was built or installed with us; else the one in PATH.
std::string agent_beside(const std::string& program) {
  const std::string beside = program.substr(0, program.rfind('/') + 1) + "sluiced";
  return ::access(beside.c_str(), X_OK) == 0 ? beside : "sluiced";
}

}  // namespace

int main(int argc, char** argv) {
  const sluice::RealClock clock;
  sluice::cli::Environment environment{.out = std::cout, .err = std::cerr};
  environment.out_is_terminal = ::isatty(STDOUT_FILENO) == 1;
  environment.err_is_terminal = ::isatty(STDERR_FILENO) == 1;
  environment.columns = terminal_columns();
  environment.variable = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  environment.clock = &clock;
  environment.interrupts = watch_interrupts;
  const std::string program = sluice::read_link("/proc/self/exe").value_or("");
  environment.agent_program = agent_beside(program);
  environment.bundle_path = sluice::default_bundle_path(program);
  return sluice::cli::run(std::vector<std::string>(argv + 1, argv + argc), environment);
}
