// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "base/result.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sluice {
namespace {

// The numbers of grpc::StatusCode, without its headers: base stands below gRPC. src/wire asserts that they agree.
constexpr std::array<ErrorTraits, 11> kTraits = {{
    {Code::kInvalid, "invalid", 1, 3},
    {Code::kNotFound, "not-found", 1, 5},
    {Code::kConflict, "conflict", 4, 9},
    {Code::kPermission, "permission", 1, 7},
    {Code::kUnsupported, "unsupported", 1, 12},
    {Code::kUnavailable, "unavailable", 1, 14},
    {Code::kExhausted, "exhausted", 1, 8},
    {Code::kCorrupt, "corrupt", 1, 15},
    {Code::kTimeout, "timeout", 1, 4},
    {Code::kDegraded, "degraded", 3, 2},
    {Code::kInternal, "internal", 1, 13},
}};

}  // namespace

const ErrorTraits& error_traits(Code code) {
  for (const auto& traits : kTraits)
    if (traits.code == code) return traits;
  panic("an error code without traits", __FILE__, __LINE__);
}

Code code_from_name(std::string_view name) {
  for (const auto& traits : kTraits)
    if (traits.name == name) return traits.code;
  return Code::kInternal;
}

Code code_from_errno(int err) {
  switch (err) {
    case EPERM:
    case EACCES:
      return Code::kPermission;
    case ENOENT:
    case ESRCH:
    case ENODEV:
      return Code::kNotFound;
    case EEXIST:
    case EBUSY:
    case EADDRINUSE:
      return Code::kConflict;
    case EINVAL:
      return Code::kInvalid;
    case EOPNOTSUPP:
    case ENOSYS:
      return Code::kUnsupported;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case E2BIG:
      return Code::kExhausted;
    case EAGAIN:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
      return Code::kUnavailable;
    case ETIMEDOUT:
      return Code::kTimeout;
    default:
      return Code::kInternal;
  }
}

std::string_view remedy_from_errno(int err) {
  switch (err) {
    case EMFILE:
      return "this process has no descriptors left: end what holds them (ls -l /proc/PID/fd), or raise its limit "
             "(LimitNOFILE=)";
    case ENFILE:
      return "this host has no descriptors left: end what holds them, or raise fs.file-max";
    case ENOMEM:
      return "free memory, or raise the limit of the process or its cgroup (MemoryMax=)";
    default:
      return "";
  }
}

std::string Error::message() const {
  std::string text;
  if (!where.empty()) text += where + ": ";
  for (auto it = context.rbegin(); it != context.rend(); ++it) text += *it + ": ";
  text += what;
  if (sys_errno != 0) text += fmt::format(" ({})", std::strerror(sys_errno));
  if (!feature.empty()) {
    text += fmt::format(" (needs {}", feature);
    if (!min_kernel.empty()) text += fmt::format(", Linux {} or newer", min_kernel);
    text += ")";
  }
  if (!remedy.empty()) text += "; " + remedy;
  return text;
}

void panic(std::string_view what, const char* file, int line) {
  std::fprintf(stderr, "sluice: %s:%d: this is a bug: %.*s\n", file, line, static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace sluice
