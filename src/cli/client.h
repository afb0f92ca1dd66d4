// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Calls to the agent: over its unix socket, under the session's deadline, cancelled by Ctrl-C, with errors that say what to do.
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "cli/session.h"
#include "wire/agent.grpc.pb.h"

namespace sluice::cli {

// Does something listen on the socket? kUnavailable: no agent there; kPermission: there is one, but not for us.
Status probe_agent(const std::string& socket);

class Client {
 public:
  // Probes first, because gRPC's own words for a missing socket help nobody; with --wait until the deadline.
  static Result<Client> connect(Session& session);

  template <class Request, class Reply>
  Result<Reply> call(grpc::Status (v1::Agent::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                     const Request& request) {
    Reply reply;
    SLUICE_CHECK(attempt([&](grpc::ClientContext& context) { return (stub_.get()->*method)(&context, request, &reply); }));
    return reply;
  }

  // Calls `each` for every message; it returns false to end the stream early, which is no error.
  template <class Request, class Message>
  Status stream(std::unique_ptr<grpc::ClientReader<Message>> (v1::Agent::Stub::*method)(grpc::ClientContext*, const Request&),
                const Request& request, const std::function<bool(const Message&)>& each) {
    return attempt([&](grpc::ClientContext& context) {
      auto reader = (stub_.get()->*method)(&context, request);
      Message message;
      while (reader->Read(&message))
        if (!each(message)) {
          context.TryCancel();
          reader->Finish();
          return grpc::Status::OK;
        }
      return reader->Finish();
    });
  }

  // The last call ended because of Ctrl-C.
  bool interrupted() const { return interrupted_; }

 private:
  explicit Client(Session& session);
  Status attempt(const std::function<grpc::Status(grpc::ClientContext&)>& call);

  Session* session_;
  std::unique_ptr<v1::Agent::Stub> stub_;
  bool interrupted_ = false;
};

}  // namespace sluice::cli
