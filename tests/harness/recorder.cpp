// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "harness/recorder.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <linux/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "harness/bpf_object.h"
#include "harness/recorder_abi.h"
#include "harness/topology.h"

namespace sluice::test {
namespace {

// include/net/tcp.h
constexpr std::uint8_t kEcnOk = 1;
constexpr std::uint8_t kEcnSeen = 8;

const char* state_name(std::uint8_t state) {
  static constexpr const char* kNames[] = {"0",         "ESTABLISHED", "SYN_SENT",     "SYN_RECV",      "FIN_WAIT1",
                                           "FIN_WAIT2", "TIME_WAIT",   "CLOSE",        "CLOSE_WAIT",    "LAST_ACK",
                                           "LISTEN",    "CLOSING",     "NEW_SYN_RECV", "BOUND_INACTIVE"};
  return state < std::size(kNames) ? kNames[state] : "unknown";
}

std::string address_text(const std::uint8_t (&address)[16]) {
  static constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  bool v4 = std::memcmp(address, kMapped, sizeof(kMapped)) == 0;
  char text[INET6_ADDRSTRLEN];
  ::inet_ntop(v4 ? AF_INET : AF_INET6, address + (v4 ? sizeof(kMapped) : 0), text, sizeof(text));
  return text;
}

SocketRecord from_abi(const recorder_record& r) {
  return {.cookie = r.cookie,
          .cgroup_id = r.cgroup_id,
          .family = r.family,
          .local = address_text(r.local),
          .remote = address_text(r.remote),
          .local_port = r.local_port,
          .remote_port = r.remote_port,
          .state = state_name(r.state),
          .full = r.full != 0,
          .cca = std::string(r.cca, ::strnlen(r.cca, sizeof(r.cca))),
          .struct_ops_id = r.struct_ops_id,
          .ecn_ok = (r.ecn_flags & kEcnOk) != 0,
          .ecn_seen = (r.ecn_flags & kEcnSeen) != 0,
          .cwnd_segments = r.cwnd_segments,
          .ssthresh_segments = r.ssthresh_segments,
          .srtt_us = r.srtt_us,
          .delivered = r.delivered,
          .delivered_ce = r.delivered_ce};
}

}  // namespace

struct Recorder::State {
  BpfObject object;
  Fd link;
};

Recorder::Recorder(std::unique_ptr<State> state) : state_(std::move(state)) {}
Recorder::Recorder(Recorder&&) noexcept = default;
Recorder& Recorder::operator=(Recorder&&) noexcept = default;
Recorder::~Recorder() = default;

Result<Recorder> Recorder::load() {
  auto state = std::make_unique<State>();
  SLUICE_TRY(object, BpfObject::open("recorder.o"));
  SLUICE_CHECK(object.load());
  state->object = std::move(object);
  SLUICE_TRY(program, state->object.program("record"));
  state->link = Fd(::bpf_link_create(program, 0, BPF_TRACE_ITER, nullptr));
  if (!state->link) return fail_errno(errno, "cannot attach the recorder's iterator");
  return Recorder(std::move(state));
}

Result<std::vector<SocketRecord>> Recorder::list(int netns_fd) const {
  std::vector<SocketRecord> sockets;
  SLUICE_CHECK(in_netns(netns_fd, [&]() -> Status {
    Fd iterator(::bpf_iter_create(state_->link.get()));  // bound to this thread's namespace from here on
    if (!iterator) return fail_errno(errno, "cannot start the recorder's iterator");
    recorder_record batch[256];
    std::size_t have = 0;  // bytes; a read may end within a record
    for (;;) {
      ssize_t got = ::read(iterator.get(), reinterpret_cast<char*>(batch) + have, sizeof(batch) - have);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got < 0) return fail_errno(errno, "cannot read the recorder's iterator");
      if (got == 0) break;
      have += static_cast<std::size_t>(got);
      std::size_t whole = have / sizeof(recorder_record);
      for (std::size_t i = 0; i < whole; i++) sockets.push_back(from_abi(batch[i]));
      have -= whole * sizeof(recorder_record);
      std::memmove(batch, batch + whole, have);
    }
    if (have != 0) return fail(Code::kInternal, "the recorder's iterator ended within a record");
    return {};
  }));
  return sockets;
}

std::string to_json(const SocketRecord& s) {
  nlohmann::ordered_json json{{"state", s.state},
                              {"local", s.local},
                              {"local_port", s.local_port},
                              {"remote", s.remote},
                              {"remote_port", s.remote_port}};
  if (s.full) {
    json.update(nlohmann::ordered_json{{"cca", s.cca},
                                       {"struct_ops_id", s.struct_ops_id},
                                       {"ecn_ok", s.ecn_ok},
                                       {"ecn_seen", s.ecn_seen},
                                       {"cwnd_segments", s.cwnd_segments},
                                       {"ssthresh_segments", s.ssthresh_segments},
                                       {"srtt_us", s.srtt_us},
                                       {"delivered", s.delivered},
                                       {"delivered_ce", s.delivered_ce},
                                       {"cookie", s.cookie},
                                       {"cgroup_id", s.cgroup_id}});
  }
  return json.dump();
}

}  // namespace sluice::test
