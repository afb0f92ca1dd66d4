// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// recorder [NETNS...]: prints one JSON line for each TCP socket of the network namespaces (paths such as /run/netns/X or
// /proc/PID/ns/net; none = its own). Needs root. Exit status 1 if one could not be read.
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include "harness/process.h"
#include "harness/recorder.h"

namespace {

using sluice::Status;

Status print(const sluice::test::Recorder& recorder, int netns_fd) {
  SLUICE_TRY(sockets, recorder.list(netns_fd));
  for (const auto& socket : sockets) fmt::print("{}\n", to_json(socket));
  return {};
}

Status run(int argc, char** argv) {
  SLUICE_TRY(recorder, sluice::test::Recorder::load());
  if (argc == 1) return print(recorder, -1);
  for (int i = 1; i < argc; i++) {
    sluice::test::Fd netns(::open(argv[i], O_RDONLY | O_CLOEXEC));
    if (!netns) return sluice::fail_errno(errno, "cannot open {}", argv[i]);
    SLUICE_CHECK(print(recorder, netns.get()));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]).starts_with("-")) {
    fmt::print("usage: recorder [NETNS...]   one JSON line for each TCP socket of these network namespaces (none: its own)\n");
    return std::string_view(argv[1]) == "--help" ? 0 : 2;
  }
  if (Status status = run(argc, argv); !status) {
    fmt::print(stderr, "recorder: {}\n{}", status.error().message(), status.error().detail);
    return 1;
  }
  return 0;
}
