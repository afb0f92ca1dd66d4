// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cli/client.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/unique_fd.h"
#include "wire/deadline.h"
#include "wire/error.h"

namespace sluice::cli {
namespace {

// A host's status with thousands of usage rows passes gRPC's default of 4 MiB.
constexpr int kReplyBytesMax = 256 << 20;
constexpr int kProbeEvery_ms = 50;

tl::unexpected<Error> refuse(Code code, const std::string& socket, std::string what, std::string remedy) {
  Error error;
  error.code = code;
  error.where = socket;
  error.what = std::move(what);
  error.remedy = std::move(remedy);
  return fail(std::move(error));
}

// Cancels the call when the descriptor becomes readable; gRPC's blocking calls cannot wait for both.
class CancelOnInterrupt {
 public:
  CancelOnInterrupt(int interrupt_fd, grpc::ClientContext& context) {
    if (interrupt_fd < 0) return;
    stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    SLUICE_ASSERT(stop_.valid());
    thread_ = std::thread([this, interrupt_fd, &context] {
      std::array<pollfd, 2> fds = {{{interrupt_fd, POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
      while (::poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
      }
      if (fds[0].revents == 0) return;
      interrupted_ = true;
      context.TryCancel();
    });
  }
  ~CancelOnInterrupt() { finish(); }
  bool finish() {
    if (thread_.joinable()) {
      ::eventfd_write(stop_.get(), 1);
      thread_.join();
    }
    return interrupted_;
  }

 private:
  UniqueFd stop_;
  std::thread thread_;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace

Status probe_agent(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof(address.sun_path))
    return refuse(Code::kInvalid, socket,
                  fmt::format("a socket's path has {} characters at most", sizeof(address.sun_path) - 1),
                  "name a shorter one with --socket");
  std::memcpy(address.sun_path, socket.c_str(), socket.size() + 1);
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno(errno, "cannot make a socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return {};
  switch (const int error = errno) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
      return refuse(Code::kUnavailable, socket,
                    error == ECONNREFUSED ? "the agent has ended: nobody answers on its socket" : "the agent is not running",
                    "start it with `sudo sluice up FILE` or `sudo systemctl start sluiced`");
    case EACCES:
    case EPERM:
      return refuse(Code::kPermission, socket, "no permission to talk to the agent",
                    "use sudo; members of group sluice may use the commands that only read");
    case EAGAIN:
      return refuse(Code::kUnavailable, socket, "the agent does not accept connections", "see the agent's log, or restart it");
    default: {
      auto failed = fail_errno(error, "cannot connect to the agent");
      failed.value().where = socket;
      return failed;
    }
  }
}

Client::Client(Session& session) : session_(&session) {
  session.interrupt_fd();  // before gRPC starts threads: they inherit a mask that keeps SIGINT for the descriptor
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReplyBytesMax);
  stub_ =
      v1::Agent::NewStub(grpc::CreateCustomChannel("unix:" + session.socket(), grpc::InsecureChannelCredentials(), arguments));
}

Result<Client> Client::connect(Session& session) {
  while (true) {
    Status probe = probe_agent(session.socket());
    if (probe) return Client(session);
    if (!session.wait() || probe.error().code != Code::kUnavailable) return fail(std::move(probe).error());
    pollfd interrupt = {session.interrupt_fd(), POLLIN, 0};
    if (passed(session.deadline()) || ::poll(&interrupt, 1, poll_ms(session.deadline(), kProbeEvery_ms)) > 0)
      return fail(std::move(probe).error());
  }
}

Status Client::attempt(const std::function<grpc::Status(grpc::ClientContext&)>& call) {
  const std::string& socket = session_->socket();
  grpc::ClientContext context;
  if (session_->deadline()) context.set_deadline(wire::within(*session_->deadline() - std::chrono::steady_clock::now()));
  CancelOnInterrupt cancel(session_->interrupt_fd(), context);
  const grpc::Status status = call(context);
  interrupted_ = cancel.finish();
  if (status.ok()) return {};
  if (!status.error_details().empty()) return fail(wire::from_status(status, socket));
  if (interrupted_) return refuse(Code::kTimeout, "", "interrupted", "");
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return refuse(Code::kTimeout, socket, fmt::format("the agent did not answer within {} s", session_->timeout_s()),
                    "give it longer with --timeout; `sluice events` shows what it does");
    case grpc::StatusCode::UNAVAILABLE:
      // The probe was accepted, so an agent was there.
      return refuse(Code::kUnavailable, socket, "the agent closed the connection",
                    "use sudo, or join group sluice to read; if the agent has just ended, start it with `sudo sluice up FILE`; "
                    "one that has no room for another connection says so in its log");
    case grpc::StatusCode::UNIMPLEMENTED:
      return refuse(
          Code::kUnsupported, socket, "the agent is of another version and does not know this command",
          "install the same version of sluice and sluiced, and restart the agent; for readers of group sluice: use sudo");
    default:
      return fail(wire::from_status(status, socket));
  }
}

}  // namespace sluice::cli
