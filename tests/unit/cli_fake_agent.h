// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// An agent for the CLI's tests: the real service interface with replies that the test sets, on a unix socket that it accepts
// itself, as sluiced does, so that a test can cut a connection in the middle of a stream.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "cli/run.h"
#include "wire/agent.grpc.pb.h"
#include "wire/error.h"

namespace sluice::cli {

class TempFolder {
 public:
  TempFolder() {
    char pattern[] = "/tmp/sluice_cli.XXXXXX";
    SLUICE_ASSERT(::mkdtemp(pattern) != nullptr);
    path_ = pattern;
  }
  ~TempFolder() {
    const std::string command = "rm -rf -- '" + path_ + "'";
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

inline UniqueFd listen_on(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  SLUICE_ASSERT(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  SLUICE_ASSERT(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  SLUICE_ASSERT(::listen(fd.get(), 16) == 0);
  return fd;
}

// Calls `accepted` with every connection, on a thread of its own, until destroyed.
class Acceptor {
 public:
  Acceptor(const std::string& path, std::function<void(UniqueFd)> accepted)
      : listener_(listen_on(path)), stop_(::eventfd(0, EFD_CLOEXEC)), thread_([this, accepted = std::move(accepted)] {
          while (true) {
            pollfd fds[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
            if (::poll(fds, 2, -1) < 0) continue;
            if (fds[1].revents != 0) return;
            accepted(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
          }
        }) {}
  ~Acceptor() {
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }

 private:
  UniqueFd listener_, stop_;
  std::thread thread_;
};

class FakeAgent final : public v1::Agent::Service {
 public:
  FakeAgent() {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeAgent() override {
    acceptor_.reset();
    release();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  void serve(const std::string& socket) {
    acceptor_ = std::make_unique<Acceptor>(socket, [this](UniqueFd fd) {
      auto copy = duplicate(fd.get());
      SLUICE_ASSERT(copy.has_value());
      {
        const std::lock_guard lock(mutex_);
        connections_.push_back(std::move(*copy));
      }
      grpc::AddInsecureChannelFromFd(server_.get(), fd.release());
    });
  }

  // What the next calls get. An error, when set, ends every call; `stuck` makes calls wait (after what they send) for
  // release().
  v1::DiffReply diff;
  v1::StatusReply status;
  v1::ExplainReply explain;
  v1::CcasReply ccas;
  v1::DoctorReply doctor;
  v1::AuditReply audit;
  std::vector<v1::Progress> progress;
  std::vector<v1::Sockets> sockets;
  std::vector<v1::Event> events;
  v1::EcnProbesReply ecn_probes;
  std::optional<Error> error;
  bool stuck = false;
  std::function<void()> before_status = [] {};

  // What the last calls asked.
  v1::ApplyRequest apply_request;
  v1::StatusRequest status_request;
  v1::ExplainRequest explain_request;
  v1::SocketsRequest sockets_request;
  v1::CcasRequest ccas_request;
  v1::MigrateRequest migrate_request;
  v1::RollbackRequest rollback_request;
  v1::AuditRequest audit_request;
  v1::EventsRequest events_request;
  v1::DownRequest down_request;
  v1::EcnProbeRequest ecn_probe_request;
  v1::EcnProbesRequest ecn_probes_request;

  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  // Returns when a call has come this far: it has sent what it sends.
  void wait_for_call() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return calls_ != 0; });
  }
  // As when the process dies: the kernel closes its sockets.
  void die() {
    const std::lock_guard lock(mutex_);
    for (const UniqueFd& fd : connections_) ::shutdown(fd.get(), SHUT_RDWR);
  }

  grpc::Status Apply(grpc::ServerContext*, const v1::ApplyRequest* request, grpc::ServerWriter<v1::Progress>* writer) override {
    apply_request = *request;
    return send(progress, writer);
  }
  grpc::Status Diff(grpc::ServerContext*, const v1::ApplyRequest* request, v1::DiffReply* reply) override {
    apply_request = *request;
    *reply = diff;
    return end();
  }
  grpc::Status GetStatus(grpc::ServerContext*, const v1::StatusRequest* request, v1::StatusReply* reply) override {
    status_request = *request;
    before_status();
    *reply = status;
    return end();
  }
  grpc::Status Explain(grpc::ServerContext*, const v1::ExplainRequest* request, v1::ExplainReply* reply) override {
    explain_request = *request;
    *reply = explain;
    return end();
  }
  grpc::Status ListSockets(grpc::ServerContext*, const v1::SocketsRequest* request,
                           grpc::ServerWriter<v1::Sockets>* writer) override {
    sockets_request = *request;
    return send(sockets, writer);
  }
  grpc::Status ListCcas(grpc::ServerContext*, const v1::CcasRequest* request, v1::CcasReply* reply) override {
    ccas_request = *request;
    *reply = ccas;
    return end();
  }
  grpc::Status Migrate(grpc::ServerContext*, const v1::MigrateRequest* request,
                       grpc::ServerWriter<v1::Progress>* writer) override {
    migrate_request = *request;
    return send(progress, writer);
  }
  grpc::Status Rollback(grpc::ServerContext*, const v1::RollbackRequest* request,
                        grpc::ServerWriter<v1::Progress>* writer) override {
    rollback_request = *request;
    return send(progress, writer);
  }
  grpc::Status GetDoctor(grpc::ServerContext*, const v1::DoctorRequest*, v1::DoctorReply* reply) override {
    *reply = doctor;
    return end();
  }
  grpc::Status GetAudit(grpc::ServerContext*, const v1::AuditRequest* request, v1::AuditReply* reply) override {
    audit_request = *request;
    *reply = audit;
    return end();
  }
  grpc::Status ListEvents(grpc::ServerContext*, const v1::EventsRequest* request,
                          grpc::ServerWriter<v1::Event>* writer) override {
    events_request = *request;
    return send(events, writer);
  }
  grpc::Status Down(grpc::ServerContext*, const v1::DownRequest* request, grpc::ServerWriter<v1::Progress>* writer) override {
    down_request = *request;
    return send(progress, writer);
  }

  grpc::Status ProbeEcn(grpc::ServerContext*, const v1::EcnProbeRequest* request,
                        grpc::ServerWriter<v1::Progress>* writer) override {
    ecn_probe_request = *request;
    return send(progress, writer);
  }
  grpc::Status ListEcnProbes(grpc::ServerContext*, const v1::EcnProbesRequest* request, v1::EcnProbesReply* reply) override {
    ecn_probes_request = *request;
    *reply = ecn_probes;
    return end();
  }

 private:
  template <class Message>
  grpc::Status send(const std::vector<Message>& messages, grpc::ServerWriter<Message>* writer) {
    for (const Message& message : messages) writer->Write(message);
    return end();
  }
  grpc::Status end() {
    std::unique_lock lock(mutex_);
    ++calls_;
    changed_.notify_all();
    if (stuck) changed_.wait(lock, [this] { return released_; });
    return error ? wire::to_status(*error) : grpc::Status::OK;
  }

  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
  unsigned calls_ = 0;
  std::vector<UniqueFd> connections_;
  std::unique_ptr<Acceptor> acceptor_;
};

// Text written so far, and a call on every flush: the place where a test acts "when this line has been printed".
class WatchedText final : public std::stringbuf {
 public:
  std::function<void(const std::string&)> on_flush = [](const std::string&) {};

 protected:
  int sync() override {
    on_flush(str());
    return 0;
  }
};

// The CLI with everything outside it in the test's hand.
class Cli {
 public:
  explicit Cli(const TempFolder& folder) : clock(1'000'000'000, 1'700'000'600'000'000'000) {
    environment.clock = &clock;
    environment.roots = {folder / "run", folder / "state", folder / "bpf"};
    environment.systemd_run_dir = folder / "no-systemd";
    environment.agent_program = folder / "no-agent";
    environment.interrupts = [this] { return interrupt_.get(); };
    environment.variable = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
    SLUICE_ASSERT(::mkdir((folder / "run").c_str(), 0700) == 0);
  }

  int operator()(const std::vector<std::string>& words) {
    out_text.str("");
    err_text.str("");
    return run(words, environment);
  }
  std::string out() const { return out_text.str(); }
  std::string err() const { return err_text.str(); }
  void interrupt() { ::eventfd_write(interrupt_.get(), 1); }

  WatchedText out_text, err_text;
  std::map<std::string, std::string> variables;
  FakeClock clock;

 private:
  UniqueFd interrupt_{::eventfd(0, EFD_CLOEXEC)};
  std::ostream out_{&out_text}, err_{&err_text};

 public:
  Environment environment{.out = out_, .err = err_};
};

}  // namespace sluice::cli
