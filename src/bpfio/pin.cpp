// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/pin.h"

#include <bpf/bpf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>

#include "base/file.h"
#include "base/strings.h"
#include "bpfio/kernel_btf.h"

namespace sluice::bpfio {
namespace {

constexpr int kDepthMax = 16;

Result<bool> on_bpffs(const std::string& path) {
  struct statfs info;
  if (::statfs(path.c_str(), &info) != 0) return fail(fail_errno(errno, "cannot look at the file system").value().at(path));
  return static_cast<std::uint32_t>(info.f_type) == 0xcafe4a11;  // BPF_FS_MAGIC
}

Result<struct stat> status_at(int dir, const std::string& leaf) {
  struct stat info;
  if (::fstatat(dir, leaf.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return fail_errno(errno, "cannot find {}", leaf);
  return info;
}

// A folder below `dir` on the same file system, never through a symbolic link.
Result<UniqueFd> enter(int dir, const std::string& name) {
  UniqueFd folder(::openat(dir, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return fail_errno(errno, "cannot enter the folder {}", name);
  struct stat outer;
  struct stat inner;
  if (::fstat(dir, &outer) != 0 || ::fstat(folder.get(), &inner) != 0) return fail_errno(errno, "cannot look at {}", name);
  if (outer.st_dev != inner.st_dev) return fail(Code::kConflict, "{} is another mount", name);
  return folder;
}

// Depth first, a folder after its contents.
Status walk(int dir, const std::string& prefix, int depth,
            const std::function<Status(int dir, const std::string& leaf, const std::string& name, bool folder)>& visit) {
  if (depth > kDepthMax) return fail(Code::kCorrupt, "{} is nested too deeply", prefix);
  SLUICE_TRY(names, list_dir(fmt::format("/proc/self/fd/{}", dir)));
  for (const std::string& leaf : names) {
    SLUICE_TRY(info, status_at(dir, leaf));
    const std::string name = prefix.empty() ? leaf : prefix + "/" + leaf;
    if (S_ISDIR(info.st_mode)) {
      SLUICE_TRY(folder, enter(dir, leaf));
      SLUICE_CHECK(walk(folder.get(), name, depth + 1, visit));
    }
    SLUICE_CHECK(visit(dir, leaf, name, S_ISDIR(info.st_mode)));
  }
  return {};
}

}  // namespace

std::string PinRoot::Place::path() const { return fmt::format("/proc/self/fd/{}/{}", dir.get(), leaf); }

Result<PinRoot> PinRoot::open(const std::string& path) {
  // Before a folder is made, its nearest parent says whether this is the right file system.
  std::string existing = path;
  struct stat info;
  while (existing.size() > 1 && ::stat(existing.c_str(), &info) != 0 && errno == ENOENT)
    existing = existing.substr(0, std::max<std::size_t>(existing.rfind('/'), 1));
  SLUICE_TRY(good, on_bpffs(existing));
  if (!good) {
    Error error = fail(Code::kUnsupported, "does not lie on a bpffs").value();
    error.feature = "bpffs";
    error.min_kernel = "4.4";
    return fail(std::move(error).at(path).fix("mount -t bpf bpf /sys/fs/bpf"));
  }
  SLUICE_CHECK(make_dirs(path, 0700));
  struct stat parent;
  if (::stat(path.c_str(), &info) != 0 || ::stat((path + "/..").c_str(), &parent) != 0)
    return fail(fail_errno(errno, "cannot look at the folder").value().at(path));
  if (info.st_dev != parent.st_dev)
    return fail(fail(Code::kInvalid, "is a whole bpffs, which others use too").value().at(path).fix("name a folder in it"));
  SLUICE_TRY(dir, sluice::open_file(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  return PinRoot(path, std::move(dir));
}

Result<PinRoot::Place> PinRoot::locate(const std::string& name, bool make_folders) const {
  auto parts = split(name, '/');
  const bool plain = !parts.empty() && std::all_of(parts.begin(), parts.end(), [](std::string_view part) {
    return !part.empty() &&
           std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
  });
  if (!plain || parts.size() > kDepthMax)
    return fail(Code::kInvalid, "\"{}\" cannot name a pin: folders and names of [A-Za-z0-9_-] below {}", name, path_);
  SLUICE_TRY(dir, duplicate(dir_.get()));
  for (std::size_t i = 0; i + 1 < parts.size(); i++) {
    const std::string part(parts[i]);
    if (make_folders && ::mkdirat(dir.get(), part.c_str(), 0700) != 0 && errno != EEXIST)
      return fail(fail_errno(errno, "cannot make the folder {}", part).value().at(path_ + "/" + name));
    auto next = enter(dir.get(), part);
    if (!next) return fail(std::move(next).error().at(path_ + "/" + name));
    dir = std::move(*next);
  }
  return Place{std::move(dir), std::string(parts.back())};
}

Status PinRoot::pin_fd(int fd, const std::string& name) const {
  SLUICE_TRY(place, locate(name, true));
  if (int err = bpf_obj_pin(fd, place.path().c_str()); err != 0)
    return fail(libbpf_error(err, err == -EEXIST ? "there is a pin already" : "cannot pin").at(path_ + "/" + name));
  return {};
}

Result<UniqueFd> PinRoot::get(const std::string& name) const {
  SLUICE_TRY(place, locate(name, false));
  const std::string shown = path_ + "/" + name;
  auto info = status_at(place.dir.get(), place.leaf);
  if (!info) return fail(std::move(info).error().at(shown));
  if (!S_ISREG(info->st_mode)) return fail(fail(Code::kConflict, "is not a pin").value().at(shown));
  UniqueFd fd(bpf_obj_get(place.path().c_str()));
  if (!fd) return fail(libbpf_error(errno, "cannot open the pin").at(shown));
  return fd;
}

namespace {

template <class T>
Result<T> adopt_pin(Result<UniqueFd> fd, const std::string& shown) {
  if (!fd) return fail(std::move(fd).error());
  auto object = T::adopt(std::move(*fd));
  if (!object) return fail(std::move(object).error().at(shown));
  return object;
}

}  // namespace

Result<MapFd> PinRoot::map(const std::string& name) const { return adopt_pin<MapFd>(get(name), path_ + "/" + name); }
Result<Program> PinRoot::program(const std::string& name) const { return adopt_pin<Program>(get(name), path_ + "/" + name); }
Result<Link> PinRoot::link(const std::string& name) const { return adopt_pin<Link>(get(name), path_ + "/" + name); }

bool PinRoot::stale() const {
  struct stat held{};
  struct stat there{};
  return ::fstat(dir_.get(), &held) != 0 || ::stat(path_.c_str(), &there) != 0 || held.st_dev != there.st_dev ||
         held.st_ino != there.st_ino;
}

Result<bool> PinRoot::exists(const std::string& name) const {
  auto place = locate(name, false);
  if (place) {
    auto info = status_at(place->dir.get(), place->leaf);
    if (info) return true;
    if (info.error().sys_errno == ENOENT) return false;
    return fail(std::move(info).error().at(path_ + "/" + name));
  }
  if (place.error().sys_errno == ENOENT) return false;
  return fail(std::move(place).error());
}

Status PinRoot::unpin(const std::string& name) const {
  SLUICE_TRY(place, locate(name, false));
  if (::unlinkat(place.dir.get(), place.leaf.c_str(), 0) == 0) return {};
  if ((errno == EISDIR || errno == EPERM) && ::unlinkat(place.dir.get(), place.leaf.c_str(), AT_REMOVEDIR) == 0) return {};
  const int err = errno;
  if (err == ENOTEMPTY) return fail(fail(Code::kConflict, "the folder is not empty").value().at(path_ + "/" + name));
  return fail(fail_errno(err, "cannot remove the pin").value().at(path_ + "/" + name));
}

Status PinRoot::rename(const std::string& from, const std::string& to) const {
  SLUICE_TRY(source, locate(from, false));
  SLUICE_TRY(target, locate(to, true));
  if (::renameat(source.dir.get(), source.leaf.c_str(), target.dir.get(), target.leaf.c_str()) == 0) return {};
  return fail(fail_errno(errno, "cannot rename the pin to {}", to).value().at(path_ + "/" + from));
}

Result<std::vector<std::string>> PinRoot::list() const {
  std::vector<std::string> names;
  Status status = walk(dir_.get(), "", 0, [&](int, const std::string&, const std::string& name, bool folder) -> Status {
    if (!folder) names.push_back(name);
    return {};
  });
  if (!status) return fail(std::move(status).error().at(path_));
  std::sort(names.begin(), names.end());
  return names;
}

Status PinRoot::remove_all() const {
  Status status =
      walk(dir_.get(), "", 0, [&](int dir, const std::string& leaf, const std::string& name, bool folder) -> Status {
        if (::unlinkat(dir, leaf.c_str(), folder ? AT_REMOVEDIR : 0) != 0) return fail_errno(errno, "cannot remove {}", name);
        return {};
      });
  if (!status) return fail(std::move(status).error().at(path_));
  if (::rmdir(path_.c_str()) != 0) return fail(fail_errno(errno, "cannot remove the folder").value().at(path_));
  return {};
}

}  // namespace sluice::bpfio
