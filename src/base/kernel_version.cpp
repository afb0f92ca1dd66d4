// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "base/kernel_version.h"

#include <sys/utsname.h>

#include <cerrno>
#include <charconv>

namespace sluice {

std::string KernelVersion::text() const {
  return patch == 0 ? fmt::format("{}.{}", major, minor) : fmt::format("{}.{}.{}", major, minor, patch);
}

std::optional<KernelVersion> parse_kernel_version(std::string_view release) {
  KernelVersion version;
  const char* at = release.data();
  const char* end = at + release.size();
  unsigned* fields[] = {&version.major, &version.minor, &version.patch};
  for (int i = 0; i < 3; i++) {
    if (i > 0) {
      if (at == end || *at != '.') break;
      at++;
    }
    auto [next, error] = std::from_chars(at, end, *fields[i]);
    if (error != std::errc{}) {
      if (i == 2) break;  // "6.12.y", "6.12.-rc1": two numbers are enough
      return std::nullopt;
    }
    at = next;
    if (i == 0 && (at == end || *at != '.')) return std::nullopt;
  }
  return version;
}

Result<KernelVersion> running_kernel() {
  utsname name{};
  if (::uname(&name) != 0) return fail_errno(errno, "cannot ask for the kernel's version");
  auto version = parse_kernel_version(name.release);
  if (!version) return fail(Code::kUnsupported, "cannot understand the kernel's version \"{}\"", name.release);
  return *version;
}

}  // namespace sluice
