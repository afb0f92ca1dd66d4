// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "wire/error.h"

namespace sluice::wire {

v1::Error to_proto(const Error& error) {
  v1::Error proto;
  proto.set_code(std::string(error_traits(error.code).name));
  proto.set_sys_errno(error.sys_errno);
  proto.set_what(error.what);
  proto.set_where(error.where);
  proto.set_remedy(error.remedy);
  proto.set_feature(error.feature);
  proto.set_min_kernel(error.min_kernel);
  proto.set_detail(error.detail);
  for (const auto& line : error.context) proto.add_context(line);
  for (const auto& other : error.also) *proto.add_also() = to_proto(other);
  return proto;
}

Error from_proto(const v1::Error& proto) {
  Error error;
  error.code = code_from_name(proto.code());
  error.sys_errno = proto.sys_errno();
  error.what = proto.what();
  error.where = proto.where();
  error.remedy = proto.remedy();
  error.feature = proto.feature();
  error.min_kernel = proto.min_kernel();
  error.detail = proto.detail();
  for (const auto& line : proto.context()) error.context.push_back(line);
  for (const auto& other : proto.also()) error.also.push_back(from_proto(other));
  return error;
}

grpc::Status to_status(const Error& error) {
  static_assert(grpc::StatusCode::FAILED_PRECONDITION == 9 && grpc::StatusCode::UNIMPLEMENTED == 12,
                "src/base/result.cpp writes gRPC's numbers without its headers");
  return {static_cast<grpc::StatusCode>(error_traits(error.code).grpc_status), error.message(),
          to_proto(error).SerializeAsString()};
}

Error from_status(const grpc::Status& status, const std::string& endpoint) {
  v1::Error proto;
  if (!status.error_details().empty() && proto.ParseFromString(status.error_details())) return from_proto(proto);
  Error error;
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      error.code = Code::kTimeout;
      error.what = "the agent did not answer in time";
      error.remedy = "raise --timeout, or see `sluice events`";
      break;
    case grpc::StatusCode::UNAVAILABLE:
      error.code = Code::kUnavailable;
      error.what = "the agent cannot be reached: " + status.error_message();
      error.remedy = "start it with `sluice up FILE` or `systemctl start sluiced`";
      break;
    default:
      error.code = Code::kInternal;
      error.what = status.error_message();
  }
  error.where = endpoint;
  return error;
}

}  // namespace sluice::wire
