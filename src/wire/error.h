// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Errors across the wire: Result's Error <-> sluice.v1.Error in the details of a gRPC status, so that the CLI prints
// the very sentence the agent wrote, and exits with the code of the same table.
#pragma once

#include <grpcpp/grpcpp.h>

#include "base/result.h"
#include "wire/agent.pb.h"

namespace sluice::wire {

v1::Error to_proto(const Error& error);
Error from_proto(const v1::Error& proto);

// Server side: a status whose details hold the serialized Error (gRPC carries them as grpc-status-details-bin).
grpc::Status to_status(const Error& error);

// Client side: the Error of a failed call; a transport failure becomes kUnavailable with `endpoint` in its text.
Error from_status(const grpc::Status& status, const std::string& endpoint);

}  // namespace sluice::wire
