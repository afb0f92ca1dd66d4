// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>

namespace sluice {
namespace {

std::string parent_of(const std::string& path) {
  std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(errno, "cannot write");
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace

Result<UniqueFd> open_file(const std::string& path, int flags, mode_t mode) {
  int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) return fail(fail_errno(errno, "cannot open").value().at(path));
  return UniqueFd(fd);
}

Result<std::string> read_file(const std::string& path, std::size_t bytes_max) {
  SLUICE_TRY(fd, open_file(path, O_RDONLY));
  std::string text;
  std::array<char, 16384> chunk;
  for (;;) {
    ssize_t n = ::read(fd.get(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(fail_errno(errno, "cannot read").value().at(path));
    if (n == 0) return text;
    if (text.size() + static_cast<std::size_t>(n) > bytes_max)
      return fail(fail(Code::kExhausted, "larger than {} bytes", bytes_max).value().at(path));
    text.append(chunk.data(), static_cast<std::size_t>(n));
  }
}

Status write_file(const std::string& path, std::string_view text) {
  SLUICE_TRY(fd, open_file(path, O_WRONLY));
  ssize_t n;
  do {
    n = ::write(fd.get(), text.data(), text.size());
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(text.size())) return {};
  if (n < 0) return fail(fail_errno(errno, "cannot write \"{}\"", text).value().at(path));
  return fail(fail(Code::kExhausted, "took only {} of {} bytes", n, text.size()).value().at(path));
}

Status write_file_atomic(const std::string& path, std::string_view text, mode_t mode) {
  std::string temporary = path + ".XXXXXX";
  auto refuse = [&](Error error) { return fail(std::move(error.at(path))); };
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return refuse(fail_errno(errno, "cannot make a temporary file beside it").value());
  Status status = write_all(fd.get(), text);
  if (status && ::fchmod(fd.get(), mode) != 0) status = fail_errno(errno, "cannot set its mode");
  if (status && ::fsync(fd.get()) != 0) status = fail_errno(errno, "cannot bring it to disk");
  if (status && ::rename(temporary.c_str(), path.c_str()) != 0) status = fail_errno(errno, "cannot replace it");
  if (!status) {
    ::unlink(temporary.c_str());
    return refuse(std::move(status).error());
  }
  SLUICE_TRY(folder, open_file(parent_of(path), O_RDONLY | O_DIRECTORY));
  if (::fsync(folder.get()) != 0) return refuse(fail_errno(errno, "cannot bring its folder to disk").value());
  return {};
}

Result<std::vector<std::string>> list_dir(const std::string& path) {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  auto refuse = [&](int err) { return fail(fail_errno(err, "cannot list").value().at(path)); };
  ;
  if (!dir) return refuse(errno);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) break;
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return refuse(errno);
  std::sort(names.begin(), names.end());
  return names;
}

Status make_dirs(const std::string& path, mode_t mode) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    std::string prefix = path.substr(0, end);
    if (::mkdir(prefix.c_str(), mode) != 0 && errno != EEXIST)
      return fail(fail_errno(errno, "cannot make the folder").value().at(prefix));
    if (end == std::string::npos) break;
  }
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode))
    return fail(fail(Code::kConflict, "is not a folder").value().at(path));
  return {};
}

Result<std::string> read_link(const std::string& path) {
  std::array<char, 4096> target;
  ssize_t n = ::readlink(path.c_str(), target.data(), target.size());
  if (n < 0) return fail(fail_errno(errno, "cannot read the link").value().at(path));
  return std::string(target.data(), static_cast<std::size_t>(n));
}

}  // namespace sluice
