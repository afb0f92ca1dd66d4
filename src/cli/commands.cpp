// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The commands that ask the agent.
#include "cli/commands.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "base/file.h"
#include "base/strings.h"
#include "cli/client.h"
#include "cli/output.h"
#include "cli/render.h"
#include "cli/session.h"
#include "cli/start_agent.h"

namespace sluice::cli {
namespace {

using Stub = v1::Agent::Stub;

Result<v1::ApplyRequest> apply_request(Session& session) {
  const std::string file = session.call().text("FILE");
  v1::ApplyRequest request;
  auto text = read_file(file == "-" ? "/dev/stdin" : file);
  if (!text) return fail(std::move(text).error().within("the policy document"));
  request.set_document(*text);
  request.set_source_name(file == "-" ? "standard input" : file);
  request.set_clear_rollbacks(session.call().has("clear-rollbacks"));
  request.set_no_migrate(session.call().has("no-migrate"));
  request.set_timeout_ms(session.work_timeout_ms());
  return request;
}

// Follows the progress of a command that changes the host and returns its last message, the one with the result. However the
// stream ends, the agent goes on: so the error says how far it was seen, and where to look.
template <class Request>
Result<v1::Progress> follow(Session& session, Client& client,
                            std::unique_ptr<grpc::ClientReader<v1::Progress>> (Stub::*method)(grpc::ClientContext*,
                                                                                              const Request&),
                            const Request& request) {
  ProgressLine line(session);
  v1::Progress last;
  const Status ended = client.stream<Request, v1::Progress>(method, request, [&](const v1::Progress& progress) {
    last = progress;
    if (progress.result_case() == v1::Progress::RESULT_NOT_SET)
      line.show(progress.steps() == 0 ? progress.message()
                                      : fmt::format("[{}/{}] {}", progress.step(), progress.steps(), progress.message()));
    return true;
  });
  line.clear();
  if (ended && last.result_case() != v1::Progress::RESULT_NOT_SET) return last;

  Error error;
  if (!ended) error = ended.error();
  const bool agent_answered = !ended && error.code != Code::kUnavailable && error.code != Code::kTimeout;
  if (agent_answered) return fail(std::move(error));
  const std::string seen =
      last.steps() != 0 ? fmt::format("; last seen at step {} of {}: {}", last.step(), last.steps(), last.message()) : "";
  if (client.interrupted()) {
    error.what = "interrupted: only the waiting has ended, the agent finishes what it began" + seen;
  } else if (error.code == Code::kTimeout) {
    error.what += ", and goes on" + seen;
  } else if (ended || last.steps() != 0) {
    error.code = Code::kUnavailable;
    error.where = session.socket();
    error.what = "the agent went away in the middle of the command" + seen +
                 "; when it starts again it finishes or undoes what it began";
  } else {
    return fail(std::move(error));  // it never began
  }
  error.remedy = "`sluice status` shows the state";
  return fail(std::move(error));
}

Result<int> apply(Session& session) {
  SLUICE_TRY(request, apply_request(session));
  SLUICE_TRY(client, Client::connect(session));
  SLUICE_TRY(last, follow(session, client, &Stub::Apply, request));
  session.result(last.applied(), render_apply(last.applied(), session.style()));
  return last.applied().has_migration() ? status_of(last.applied().migration()) : kOk;
}

// "10.0.0.1:443", "[fd00::1]:443", "name:443", or any of them without a port.
struct Destination {
  std::string host;
  std::optional<std::uint16_t> port;
};
Result<Destination> parse_destination(const std::string& text) {
  Destination destination{text, std::nullopt};
  std::string port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string::npos || (end + 1 < text.size() && text[end + 1] != ':'))
      return fail(
          make_error(Code::kInvalid, fmt::format("'{}' is not [ADDRESS]:PORT", text), "close the bracket before the port"));
    destination.host = text.substr(1, end - 1);
    if (end + 1 == text.size()) return destination;
    port = text.substr(end + 2);
  } else if (const std::size_t colon = text.find(':');
             colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
    destination.host = text.substr(0, colon);
    port = text.substr(colon + 1);
  } else {
    return destination;
  }
  destination.port = parse_int<std::uint16_t>(port);
  if (!destination.port || *destination.port == 0)
    return fail(make_error(Code::kInvalid, fmt::format("'{}' is not a TCP port", port), "give one from 1 to 65535"));
  return destination;
}

// The first address of a name, as connect() would take it; an address stays what it is.
Result<std::string> resolve(const std::string& host, int family) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  char text[NI_MAXHOST] = {};
  if (error == 0 && ::getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
    return text;
  return fail(make_error(Code::kNotFound,
                         fmt::format("'{}' has no {}address ({})", host,
                                     family == AF_INET    ? "IPv4 "
                                     : family == AF_INET6 ? "IPv6 "
                                                          : "",
                                     ::gai_strerror(error)),
                         "give an address, or a name that this host resolves"));
}

// Waits for the next look of --watch; false when it is time to end.
bool pause(Session& session, double seconds) {
  pollfd interrupt = {session.interrupt_fd(), POLLIN, 0};
  const int ready = ::poll(&interrupt, 1, poll_ms(session.deadline(), static_cast<int>(seconds * 1000)));
  return ready == 0 && !passed(session.deadline());
}

// A frame of --watch: over the one before, without the flicker of clearing the screen first.
std::string frame(std::string_view text) {
  std::string out = "\x1b[H";
  for (char c : text) {
    if (c == '\n') out += "\x1b[K";
    out += c;
  }
  return out + "\x1b[J";
}

Result<v1::DoctorReply> doctor_without_agent(Session& session) {
  auto run =
      run_program({session.env().agent_program, "--doctor", "--output", "json"}, session.deadline(), session.interrupt_fd());
  if (!run)
    return fail(std::move(run)
                    .error()
                    .within("no agent answers, so sluiced was asked")
                    .fix("install sluiced beside sluice, or into PATH"));
  v1::DoctorReply reply;
  if (!from_json(run->out, reply) || reply.checks().empty()) {
    Error error;
    error.code = Code::kUnavailable;
    error.what = fmt::format("no agent answers, and `{} --doctor` ended with status {} and without a report",
                             session.env().agent_program, run->status);
    error.remedy = "install the same version of sluice and sluiced";
    error.detail = run->err;
    return fail(std::move(error));
  }
  return reply;
}

}  // namespace

Result<int> run_up(Session& session) {
  // A document that cannot be read starts nothing.
  if (const std::string file = session.call().text("FILE"); file != "-" && ::access(file.c_str(), R_OK) != 0)
    return fail_errno(errno, "cannot read the policy document {}", file);
  SLUICE_CHECK(ensure_agent(session));
  return apply(session);
}

Result<int> run_apply(Session& session) { return apply(session); }

Result<int> run_diff(Session& session) {
  SLUICE_TRY(request, apply_request(session));
  SLUICE_TRY(client, Client::connect(session));
  SLUICE_TRY(reply, (client.call<v1::ApplyRequest, v1::DiffReply>(&Stub::Diff, request)));
  session.reply(reply, render_diff(reply, session.verbose(), session.style()));
  return kOk;
}

Result<int> run_status(Session& session) {
  const bool watch = session.call().has("watch");
  const bool redraw = watch && session.env().out_is_terminal && session.format() == Format::kTable;
  const double interval = session.call().seconds("interval");
  if (watch) session.run_unbounded();
  v1::StatusRequest request;
  request.set_count_sockets(!session.call().has("no-sockets"));
  SLUICE_TRY(client, Client::connect(session));
  if (redraw) session.print("\x1b[2J");
  while (true) {
    auto reply = client.call<v1::StatusRequest, v1::StatusReply>(&Stub::GetStatus, request);
    if (!reply) {
      if (watch && client.interrupted()) return kOk;
      return fail(std::move(reply).error());
    }
    const bool degraded = reply->state() == "degraded";
    const bool last = !watch && (!degraded || !session.wait());
    const auto show = [&] {
      const std::string text = render_status(*reply, session.env().clock->wall_ns(), session.verbose(), session.style());
      session.reply(*reply, redraw ? frame(text) : watch ? text + "\n" : text, watch);
    };
    if (watch || last) show();
    if (last) return degraded ? kDegraded : kOk;
    if (!pause(session, watch ? interval : 0.2)) {
      if (!watch) show();
      return degraded ? kDegraded : kOk;
    }
  }
}

Result<int> run_explain(Session& session) {
  v1::ExplainRequest request;
  request.set_destination(session.call().text("DST"));
  request.set_source(session.call().text("from"));
  request.set_local_port(static_cast<std::uint32_t>(session.call().number("port")));
  request.set_pid(static_cast<std::int32_t>(session.call().number("pid")));
  request.set_cgroup(session.call().text("cgroup"));
  SLUICE_TRY(client, Client::connect(session));
  SLUICE_TRY(reply, (client.call<v1::ExplainRequest, v1::ExplainReply>(&Stub::Explain, request)));
  session.reply(reply, render_explain(request.destination(), reply, session.env().clock->wall_ns(), session.style()));
  return kOk;
}

Result<int> run_sockets(Session& session) {
  v1::SocketsRequest request;
  request.set_cca(session.call().text("cca"));
  request.set_locality(session.call().text("locality"));
  request.set_netns_ino(static_cast<std::uint32_t>(session.call().number("netns")));
  request.set_limit(static_cast<std::uint32_t>(session.call().number("limit")));
  SLUICE_TRY(client, Client::connect(session));

  if (session.call().has("by")) {
    SocketCount count(session.call().text("by"));
    SLUICE_CHECK((client.stream<v1::SocketsRequest, v1::Sockets>(&Stub::ListSockets, request, [&](const v1::Sockets& batch) {
      for (const auto& socket : batch.sockets()) count.add(socket);
      return true;
    })));
    if (session.format() == Format::kTable)
      session.print(count.table(session.style()));
    else
      session.print(session.format() == Format::kJson ? count.json() + "\n" : yaml_from_json(count.json()));
    return kOk;
  }

  // Batches are printed as they come, as one message of all: a host may have a million sockets.
  const bool ecn = session.call().has("ecn");
  Table table = ecn ? ecn_table(session.style()) : socket_table(session.style());
  std::uint64_t sent = 0;
  if (session.format() == Format::kJson) session.print("{\"sockets\":[");
  const Status ended =
      client.stream<v1::SocketsRequest, v1::Sockets>(&Stub::ListSockets, request, [&](const v1::Sockets& batch) {
        std::string text;
        for (const auto& socket : batch.sockets()) {
          switch (session.format()) {
            case Format::kTable:
              table.add(ecn ? ecn_row(socket) : socket_row(socket));
              break;
            case Format::kJson:
              text += (sent == 0 ? "\n" : ",\n") + to_json(socket, false);
              break;
            case Format::kYaml:
              text += (sent == 0 ? "sockets:\n" : "") + yaml_from_json("[" + to_json(socket, false) + "]");
              break;
          }
          ++sent;
        }
        session.print(session.format() == Format::kTable ? table.flush() : text);
        return true;
      });
  if (session.format() == Format::kJson && ended) session.print(sent == 0 ? "]}\n" : "\n]}\n");
  if (session.format() == Format::kYaml && ended && sent == 0) session.print("sockets: []\n");
  if (!ended) return fail(ended.error());
  if (session.format() == Format::kTable && sent == 0) session.note("no sockets\n");
  return kOk;
}

Result<int> run_cca_list(Session& session) {
  SLUICE_TRY(client, Client::connect(session));
  SLUICE_TRY(reply, (client.call<v1::CcasRequest, v1::CcasReply>(&Stub::ListCcas, {})));
  session.reply(reply, render_ccas(reply, session.style()));
  return kOk;
}

Result<int> run_cca_show(Session& session) {
  v1::CcasRequest request;
  request.set_name(session.call().text("NAME"));
  SLUICE_TRY(client, Client::connect(session));
  SLUICE_TRY(reply, (client.call<v1::CcasRequest, v1::CcasReply>(&Stub::ListCcas, request)));
  std::string text;
  for (const auto& cca : reply.ccas()) text += (text.empty() ? "" : "\n") + render_cca(cca, session.style());
  session.reply(reply, text);
  return kOk;
}

Result<int> run_migrate(Session& session) {
  v1::MigrateRequest request;
  request.set_timeout_ms(session.work_timeout_ms());
  request.set_dry_run(session.call().has("dry-run"));
  SLUICE_TRY(client, Client::connect(session));
  SLUICE_TRY(last, follow(session, client, &Stub::Migrate, request));
  const std::string text = render_migrate(last.migrated(), request.dry_run(), session.style());
  if (request.dry_run()) {
    session.reply(last.migrated(), text);  // asked for, so --quiet does not keep it back
    return kOk;
  }
  session.result(last.migrated(), text);
  return status_of(last.migrated());
}

Result<int> run_rollback(Session& session) {
  v1::RollbackRequest request;
  request.set_target(session.call().text("TARGET"));
  request.set_timeout_ms(session.work_timeout_ms());
  SLUICE_TRY(client, Client::connect(session));
  SLUICE_TRY(last, follow(session, client, &Stub::Rollback, request));
  session.result(last.rolled_back(), render_rollback(last.rolled_back(), session.style()));
  return last.rolled_back().retired() ? status_of(last.rolled_back().migration()) : kDegraded;
}

Result<int> run_down(Session& session) {
  v1::DownRequest request;
  request.set_timeout_ms(session.work_timeout_ms());
  request.set_move_to(session.call().text("move-to"));
  SLUICE_TRY(client, Client::connect(session));
  SLUICE_TRY(last, follow(session, client, &Stub::Down, request));
  session.result(last.down(), render_down(last.down(), session.style()));
  return last.down().has_migration() ? status_of(last.down().migration()) : kOk;
}

Result<int> run_doctor(Session& session) {
  v1::DoctorReply reply;
  if (auto client = Client::connect(session)) {
    SLUICE_TRY(answer, (client->call<v1::DoctorRequest, v1::DoctorReply>(&Stub::GetDoctor, {})));
    reply = std::move(answer);
  } else if (client.error().code == Code::kUnavailable) {
    SLUICE_TRY(answer, doctor_without_agent(session));
    reply = std::move(answer);
  } else {
    return fail(std::move(client).error());
  }
  session.reply(reply, render_doctor(reply, session.style()));
  return status_of(reply);
}

Result<int> run_audit(Session& session) {
  v1::AuditRequest request;
  request.set_skip_sockets(session.call().has("no-sockets"));
  SLUICE_TRY(client, Client::connect(session));
  SLUICE_TRY(reply, (client.call<v1::AuditRequest, v1::AuditReply>(&Stub::GetAudit, request)));
  session.reply(reply, render_audit(reply, session.verbose(), session.style()));
  return status_of(reply);
}

Result<int> run_ecn_probe(Session& session) {
  const Invocation& call = session.call();
  if (call.has("ipv4") && call.has("ipv6"))
    return fail(make_error(Code::kInvalid, "-4 and -6 exclude each other", "give one of them"));
  SLUICE_TRY(destination, parse_destination(call.text("DST")));
  SLUICE_TRY(address, resolve(destination.host, call.has("ipv4") ? AF_INET : call.has("ipv6") ? AF_INET6 : AF_UNSPEC));
  v1::EcnProbeRequest request;
  request.set_destination(address);
  request.set_port(destination.port ? *destination.port : static_cast<std::uint32_t>(call.number("port")));
  request.set_source(call.text("from"));
  request.set_dscp(static_cast<std::uint32_t>(call.number("dscp")));
  request.set_timeout_ms(session.work_timeout_ms());
  SLUICE_TRY(client, Client::connect(session));
  SLUICE_TRY(last, follow(session, client, &Stub::ProbeEcn, request));
  session.reply(last.ecn_probed(), render_ecn_probe(last.ecn_probed(), session.style()));
  return status_of(last.ecn_probed());
}

Result<int> run_ecn_list(Session& session) {
  v1::EcnProbesRequest request;
  request.set_destination(session.call().text("DST"));
  SLUICE_TRY(client, Client::connect(session));
  SLUICE_TRY(reply, (client.call<v1::EcnProbesRequest, v1::EcnProbesReply>(&Stub::ListEcnProbes, request)));
  std::string text;
  if (request.destination().empty())
    text = render_ecn_probes(reply, session.env().clock->wall_ns(), session.style());
  else
    for (const auto& probe : reply.probes()) text += (text.empty() ? "" : "\n") + render_ecn_probe(probe, session.style());
  session.reply(reply, text.empty() ? "no path was probed\n" : text);
  return kOk;
}

Result<int> run_events(Session& session) {
  v1::EventsRequest request;
  request.set_after_id(session.call().number("after"));
  request.set_limit(static_cast<std::uint32_t>(session.call().number("limit")));
  request.set_follow(session.call().has("follow"));
  if (request.follow()) session.run_unbounded();
  SLUICE_TRY(client, Client::connect(session));
  const Status ended = client.stream<v1::EventsRequest, v1::Event>(&Stub::ListEvents, request, [&](const v1::Event& event) {
    session.reply(event, render_event(event, session.style()), true);
    return true;
  });
  if (!ended && request.follow() && client.interrupted()) return kOk;
  // --follow --timeout: it followed as long as it was asked to.
  if (!ended && request.follow() && ended.error().code == Code::kTimeout) return kOk;
  if (!ended) return fail(ended.error());
  return kOk;
}

}  // namespace sluice::cli
