// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/server.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <new>

#include "agent/audit.h"
#include "agent/doctor.h"
#include "agent/ecn.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strings.h"
#include "net/socket.h"
#include "wire/agent.grpc.pb.h"
#include "wire/deadline.h"
#include "wire/error.h"

namespace sluice::agent {
namespace {

constexpr auto kShutdownGrace = std::chrono::seconds(2);
constexpr auto kEventPoll = std::chrono::milliseconds(200);
constexpr uint32_t kEventsDefault = 100;
constexpr int kListenBacklog = 64;
constexpr int kThreadsMax = 64;              // per kind of peer: a reader cannot take the threads of root
constexpr size_t kConnectionsMax = 256;      // per kind of peer: nor the descriptors
constexpr int kDocumentBytesMax = 64 << 20;  // as much as the policy parser takes

// The cgroup2 path of a process: the line "0::/path" of /proc/PID/cgroup.
Result<std::string> cgroup_of(const std::string& proc_root, int pid) {
  auto text = read_file(fmt::format("{}/{}/cgroup", proc_root, pid));
  if (!text && text.error().code == Code::kExhausted) return fail(std::move(text).error());
  if (!text)
    return fail(make_error(Code::kNotFound, fmt::format("there is no process {}", pid), "give the pid of a running process"));
  for (const auto line : split(*text, '\n'))
    if (line.starts_with("0::")) return std::string(line.substr(3));
  return fail(make_error(Code::kUnsupported, fmt::format("process {} is in no cgroup2", pid),
                         "`sluice doctor` shows the cgroup layout"));
}

class Service final : public v1::Agent::Service {
 public:
  Service(Engine& engine, EcnProbes& ecn, std::string proc_root, bool may_change, int finished_fd)
      : engine_(engine), ecn_(ecn), proc_root_(std::move(proc_root)), may_change_(may_change), finished_fd_(finished_fd) {}

  grpc::Status Apply(grpc::ServerContext* context, const v1::ApplyRequest* request,
                     grpc::ServerWriter<v1::Progress>* writer) override {
    return change(
        writer, [&](const auto& progress) { return engine_.apply(*request, progress, given_up(context)); },
        [](v1::Progress& line, v1::ApplyResult&& result) { *line.mutable_applied() = std::move(result); });
  }
  grpc::Status Migrate(grpc::ServerContext* context, const v1::MigrateRequest* request,
                       grpc::ServerWriter<v1::Progress>* writer) override {
    return change(
        writer, [&](const auto& progress) { return engine_.migrate(*request, progress, given_up(context)); },
        [](v1::Progress& line, v1::MigrateResult&& result) { *line.mutable_migrated() = std::move(result); });
  }
  grpc::Status Rollback(grpc::ServerContext* context, const v1::RollbackRequest* request,
                        grpc::ServerWriter<v1::Progress>* writer) override {
    return change(
        writer, [&](const auto& progress) { return engine_.rollback(*request, progress, given_up(context)); },
        [](v1::Progress& line, v1::RollbackResult&& result) { *line.mutable_rolled_back() = std::move(result); });
  }
  grpc::Status Down(grpc::ServerContext* context, const v1::DownRequest* request,
                    grpc::ServerWriter<v1::Progress>* writer) override {
    const auto status = change(
        writer, [&](const auto& progress) { return engine_.down(*request, progress, given_up(context)); },
        [](v1::Progress& line, v1::DownResult&& result) { *line.mutable_down() = std::move(result); });
    if (status.ok() && eventfd_write(finished_fd_, 1) != 0) log_error("the end of `down` could not be signalled");
    return status;
  }

  grpc::Status ProbeEcn(grpc::ServerContext*, const v1::EcnProbeRequest* request,
                        grpc::ServerWriter<v1::Progress>* writer) override {
    return change(
        writer, [&](const auto& progress) { return ecn_.probe(*request, progress); },
        [](v1::Progress& line, v1::EcnProbe&& result) { *line.mutable_ecn_probed() = std::move(result); });
  }
  grpc::Status ListEcnProbes(grpc::ServerContext*, const v1::EcnProbesRequest* request, v1::EcnProbesReply* reply) override {
    return answer([&] { return ecn_report(engine_, *request); }, reply);
  }

  grpc::Status Diff(grpc::ServerContext*, const v1::ApplyRequest* request, v1::DiffReply* reply) override {
    return answer([&] { return engine_.diff(*request); }, reply);
  }
  grpc::Status GetStatus(grpc::ServerContext*, const v1::StatusRequest* request, v1::StatusReply* reply) override {
    const auto status = answer([&] { return status_report(engine_, request->count_sockets()); }, reply);
    reply->set_uptime_ms((engine_.clock().monotonic_ns() - started_ns_) / 1'000'000);
    return status;
  }
  grpc::Status ListCcas(grpc::ServerContext*, const v1::CcasRequest* request, v1::CcasReply* reply) override {
    return answer([&] { return cca_report(engine_, request->name()); }, reply);
  }
  grpc::Status GetDoctor(grpc::ServerContext*, const v1::DoctorRequest*, v1::DoctorReply* reply) override {
    return guarded([&] {
      *reply = doctor_report();
      add_agent_checks(engine_, *reply);
      return grpc::Status::OK;
    });
  }
  grpc::Status GetAudit(grpc::ServerContext*, const v1::AuditRequest* request, v1::AuditReply* reply) override {
    return answer([&] { return audit_report(engine_, !request->skip_sockets()); }, reply);
  }
  grpc::Status Explain(grpc::ServerContext*, const v1::ExplainRequest* request, v1::ExplainReply* reply) override {
    v1::ExplainRequest resolved = *request;
    if (request->pid() != 0) {
      auto cgroup = cgroup_of(proc_root_, request->pid());
      if (!cgroup) return wire::to_status(cgroup.error());
      resolved.set_cgroup(*cgroup);
    }
    return answer([&] { return explain_report(engine_, resolved); }, reply);
  }
  grpc::Status ListSockets(grpc::ServerContext* context, const v1::SocketsRequest* request,
                           grpc::ServerWriter<v1::Sockets>* writer) override {
    return guarded([&] {
      const auto status = socket_report(
          engine_, *request, [&](const v1::Sockets& batch) { return !context->IsCancelled() && writer->Write(batch); });
      return status ? grpc::Status::OK : wire::to_status(status.error());
    });
  }
  grpc::Status ListEvents(grpc::ServerContext* context, const v1::EventsRequest* request,
                          grpc::ServerWriter<v1::Event>* writer) override {
    uint64_t after = request->after_id();
    while (!context->IsCancelled()) {
      auto events = engine_.store().events(after, request->limit() != 0 ? request->limit() : kEventsDefault);
      if (!events) return wire::to_status(events.error());
      for (const auto& event : *events) {
        v1::Event out;
        out.set_id(event.id);
        out.set_time_ns(event.time_ns);
        out.set_kind(event.kind);
        out.set_severity(event.severity);
        out.set_message(event.message);
        if (!writer->Write(out)) return grpc::Status::OK;
        after = event.id;
      }
      if (!request->follow()) break;
      std::this_thread::sleep_for(kEventPoll);
    }
    return grpc::Status::OK;
  }

 private:
  // Out of memory in the middle of a call: what it held is free again, and what a change began is undone before the next one.
  template <class Body>
  static grpc::Status guarded(Body&& body) {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      return wire::to_status(
          make_error(Code::kExhausted, "the agent has no memory for this", std::string(remedy_from_errno(ENOMEM))));
    }
  }

  template <class Act, class T>
  static grpc::Status answer(Act&& act, T* reply) {
    return guarded([&] {
      auto result = act();
      if (!result) return wire::to_status(result.error());
      *reply = std::move(*result);
      return grpc::Status::OK;
    });
  }

  static GivenUp given_up(grpc::ServerContext* context) {
    return [context] { return context->IsCancelled(); };
  }

  // A peer that goes away does not stop a change: what was begun is finished. What waits for its turn is not begun.
  template <class Act, class Finish>
  grpc::Status change(grpc::ServerWriter<v1::Progress>* writer, Act&& act, Finish&& finish) {
    if (!may_change_)
      return wire::to_status(
          make_error(Code::kPermission, "members of the group may read, only root may change", "repeat the command as root"));
    return guarded([&] {
      auto result = act([&](const v1::Progress& line) { writer->Write(line); });
      if (!result) return wire::to_status(result.error());
      v1::Progress last;
      last.set_message("done");
      finish(last, std::move(*result));
      writer->Write(last);
      return grpc::Status::OK;
    });
  }

  Engine& engine_;
  EcnProbes& ecn_;
  std::string proc_root_;
  bool may_change_;
  int finished_fd_;
  uint64_t started_ns_ = engine_.clock().monotonic_ns();
};

// The connections of one kind of peer. gRPC owns their descriptors and does not tell when it closes them: a descriptor that is
// another socket by now, or none, was closed.
class Connections {
 public:
  bool full() {
    if (cookies_.size() < kConnectionsMax) return false;
    std::erase_if(cookies_, [](const auto& item) { return cookie_of(item.first) != item.second; });
    return cookies_.size() >= kConnectionsMax;
  }
  void add(int fd) { cookies_[fd] = cookie_of(fd); }

 private:
  static uint64_t cookie_of(int fd) {
    uint64_t cookie = 0;  // of no socket
    socklen_t size = sizeof cookie;
    ::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size);
    return cookie;
  }
  std::map<int, uint64_t> cookies_;
};

// A descriptor to give away when there is no other: with it a connection can be accepted and closed, so that its peer hears at
// once instead of waiting.
Result<UniqueFd> spare_descriptor() { return open_file("/dev/null", O_RDONLY); }

Result<UniqueFd> listen_on(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return fail(make_error(Code::kInvalid,
                           fmt::format("the socket path has {} characters, at most {} are possible", path.size(),
                                       sizeof address.sun_path - 1),
                           "give a shorter --socket")
                    .at(path));
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (const size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0)
    SLUICE_CHECK(make_dirs(path.substr(0, slash), 0755));

  UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe.valid()) return fail_errno(errno, "cannot make a unix socket");
  if (::connect(probe.get(), generic, sizeof address) == 0)
    return fail(make_error(Code::kConflict, "an agent is running already: it answers on this socket",
                           "use it, stop it first, or give this one another --instance")
                    .at(path));
  struct stat there{};
  if (errno == ECONNREFUSED && ::stat(path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode))
    ::unlink(path.c_str());  // left by an agent that was killed

  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return fail_errno(errno, "cannot make a unix socket");
  if (::bind(fd.get(), generic, sizeof address) != 0) {
    Error error = fail_errno(errno, "cannot bind the agent's socket").value();
    return fail(std::move(error).at(path).fix("run the agent as root, or give --socket"));
  }
  // Anybody may connect: who may ask is decided by credentials, and a refusal then says why.
  if (::chmod(path.c_str(), 0666) != 0 || ::listen(fd.get(), kListenBacklog) != 0)
    return fail_errno(errno, "cannot listen on {}", path);
  return fd;
}

}  // namespace

class Server::Impl {
 public:
  Impl(Engine& engine, const ServerOptions& options, UniqueFd listener, UniqueFd spare, UniqueFd stop, UniqueFd finished)
      : options_(options),
        listener_(std::move(listener)),
        spare_(std::move(spare)),
        stop_(std::move(stop)),
        finished_(std::move(finished)),
        ecn_(engine),
        admin_(engine, ecn_, options.proc_root, true, finished_.get()),
        reader_(engine, ecn_, options.proc_root, false, finished_.get()) {
    admin_server_ = build(admin_);
    reader_server_ = build(reader_);
    acceptor_ = std::thread([this] { accept_loop(); });
  }

  ~Impl() {
    eventfd_write(stop_.get(), 1);
    acceptor_.join();
    admin_server_->Shutdown(wire::within(kShutdownGrace));
    reader_server_->Shutdown(wire::within(kShutdownGrace));
    ::unlink(options_.socket.c_str());
  }

  int finished_fd() const { return finished_.get(); }

 private:
  static std::unique_ptr<grpc::Server> build(Service& service) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kDocumentBytesMax);
    builder.SetResourceQuota(grpc::ResourceQuota("sluiced").SetMaxThreads(kThreadsMax));
    builder.RegisterService(&service);
    return builder.BuildAndStart();
  }

  void accept_loop() {
    pollfd fds[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    while (true) {
      if (::poll(fds, 2, -1) < 0 && errno != EINTR) return log_error("the agent's socket cannot be polled", {{"errno", errno}});
      if (fds[1].revents != 0) return;
      if (fds[0].revents == 0) continue;
      UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (connection.valid()) {
        turned_away_ = false;
        admit(std::move(connection));
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        // It stays in the backlog and would be polled for at once.
        turn_away("no descriptors or memory left to accept a connection");
        spare_.reset();
        const UniqueFd refused(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!refused.valid()) ::poll(&fds[1], 1, 1000);
      }
      if (!spare_.valid())
        if (auto spare = spare_descriptor()) spare_ = std::move(*spare);
    }
  }

  // Told of once, until a connection is accepted again: its peers may come back any number of times.
  void turn_away(const char* why) {
    if (!turned_away_) log_error(why, {{"errno", errno}});
    turned_away_ = true;
  }

  void serve(grpc::Server& server, Connections& connections, UniqueFd connection) {
    if (connections.full())
      return log_warning("a peer was refused: so many of its kind are connected already", {{"connections", kConnectionsMax}});
    connections.add(connection.get());
    grpc::AddInsecureChannelFromFd(&server, connection.release());
  }

  void admit(UniqueFd connection) {
    const auto peer = net::peer_of(connection.get());
    if (!peer) return log_warning("a peer without credentials was refused", peer.error());
    if (peer->uid == 0) return serve(*admin_server_, admin_connections_, std::move(connection));
    const auto group = net::group_id(options_.group);
    if (group && peer->in_group(*group)) return serve(*reader_server_, reader_connections_, std::move(connection));
    log_debug("a peer was refused: neither root nor in the group",
              {{"uid", peer->uid}, {"pid", peer->pid}, {"group", options_.group}});
  }

  ServerOptions options_;
  UniqueFd listener_, spare_, stop_, finished_;
  bool turned_away_ = false;  // the last connection was
  EcnProbes ecn_;
  Service admin_, reader_;
  std::unique_ptr<grpc::Server> admin_server_, reader_server_;
  Connections admin_connections_, reader_connections_;
  std::thread acceptor_;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;
int Server::finished_fd() const { return impl_->finished_fd(); }

Result<std::unique_ptr<Server>> Server::start(Engine& engine, const ServerOptions& options) {
  SLUICE_TRY(listener, listen_on(options.socket));
  SLUICE_TRY(spare, spare_descriptor());
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC)), finished(::eventfd(0, EFD_CLOEXEC));
  if (!stop.valid() || !finished.valid()) return fail_errno(errno, "cannot make an eventfd");
  return std::unique_ptr<Server>(new Server(
      std::make_unique<Impl>(engine, options, std::move(listener), std::move(spare), std::move(stop), std::move(finished))));
}

}  // namespace sluice::agent
