// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The one error type of Sluice. A function that can fail returns Result<T>; each level that knows more adds context.
//
//   Result<Policy> load(const std::string& path) {
//     SLUICE_TRY(text, read_file(path));
//     return parse(text).map_error(add_context("while reading policy {}", path));
//   }
//
// An Error says what failed, where, why, and what to do about it. Codes are few on purpose: one table (error_traits) maps each
// to an exit status, a gRPC status and a name.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace sluice {

enum class Code {
  kInvalid,      // the input is wrong: fix it
  kNotFound,     // something named does not exist
  kConflict,     // it exists, is in use, or someone else owns it
  kPermission,   // not allowed to
  kUnsupported,  // this kernel or host cannot; `feature` and `min_kernel` say what is missing
  kUnavailable,  // not now (agent not running, peer gone): try again
  kExhausted,    // disk, memory, descriptors, a limit
  kCorrupt,      // stored state cannot be trusted
  kTimeout,      // the deadline passed
  kDegraded,     // done, but not all of it: the message lists what is left
  kInternal,     // our bug
};

struct Error {
  Code code = Code::kInternal;
  int sys_errno = 0;                 // 0 = none
  std::string what;                  // what failed and why, one sentence, no final stop
  std::string where;                 // file:line:column, map, interface, ...; empty = none
  std::string remedy;                // what to do; empty = none known
  std::string feature;               // kUnsupported: the missing feature
  std::string min_kernel;            // kUnsupported: first kernel that has it, such as "6.12"
  std::string detail;                // long text (a verifier log); shown on request
  std::vector<std::string> context;  // innermost first
  std::vector<Error> also;           // further problems of the same input

  Error& at(std::string place) & {
    where = std::move(place);
    return *this;
  }
  Error&& at(std::string place) && {
    where = std::move(place);
    return std::move(*this);
  }
  Error&& fix(std::string text) && {
    remedy = std::move(text);
    return std::move(*this);
  }
  Error& within(std::string text) & {
    context.push_back(std::move(text));
    return *this;
  }
  Error&& within(std::string text) && {
    context.push_back(std::move(text));
    return std::move(*this);
  }

  // "<where>: <context outermost first>: <what> (<strerror>); <remedy>", one line.
  std::string message() const;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

struct ErrorTraits {
  Code code;
  std::string_view name;  // "invalid", "not-found", ...: in JSON output and logs
  int exit_status;        // docs: 0 ok, 1 failed, 2 usage, 3 degraded, 4 conflict
  int grpc_status;        // grpc::StatusCode
};
const ErrorTraits& error_traits(Code code);
Code code_from_name(std::string_view name);  // kInternal for an unknown name

template <class... Args>
tl::unexpected<Error> fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  Error error;
  error.code = code;
  error.what = fmt::format(format, std::forward<Args>(args)...);
  return tl::unexpected<Error>(std::move(error));
}

// As fail(), with an errno; the code follows from it (EPERM -> kPermission, ENOSPC -> kExhausted, ...), and for what a whole
// process or host runs out of (descriptors, memory) the remedy as well.
Code code_from_errno(int err);
std::string_view remedy_from_errno(int err);  // empty = the caller knows better
template <class... Args>
tl::unexpected<Error> fail_errno(int err, fmt::format_string<Args...> format, Args&&... args) {
  Error error;
  error.code = code_from_errno(err);
  error.sys_errno = err;
  error.what = fmt::format(format, std::forward<Args>(args)...);
  error.remedy = remedy_from_errno(err);
  return tl::unexpected<Error>(std::move(error));
}

inline Error make_error(Code code, std::string what, std::string remedy = {}) {
  Error error;
  error.code = code;
  error.what = std::move(what);
  error.remedy = std::move(remedy);
  return error;
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

// A programmer's error ends the process, in release too.
[[noreturn]] void panic(std::string_view what, const char* file, int line);

}  // namespace sluice

#define SLUICE_ASSERT(condition)                                       \
  do {                                                                 \
    if (!(condition)) ::sluice::panic(#condition, __FILE__, __LINE__); \
  } while (false)

#define SLUICE_CONCAT_(a, b) a##b
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_(a, b)

// SLUICE_TRY(name, expr): name = *expr, or return its error. SLUICE_CHECK(expr): the same for a Status.
#define SLUICE_TRY(name, ...)                                                                    \
  auto SLUICE_CONCAT(result_, __LINE__) = (__VA_ARGS__);                                         \
  if (!SLUICE_CONCAT(result_, __LINE__))                                                         \
    return tl::unexpected<::sluice::Error>(std::move(SLUICE_CONCAT(result_, __LINE__)).error()); \
  auto name = std::move(*SLUICE_CONCAT(result_, __LINE__))
#define SLUICE_CHECK(...)                                                             \
  do {                                                                                \
    auto status_ = (__VA_ARGS__);                                                     \
    if (!status_) return tl::unexpected<::sluice::Error>(std::move(status_).error()); \
  } while (false)
