// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "net/cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/file.h"

namespace sluice::net {

Result<std::string> find_cgroup2(const std::string& proc_root) {
  SLUICE_TRY(mounts, read_mounts(proc_root));
  CgroupMounts found = cgroup_mounts(mounts);
  if (!found.cgroup2.empty()) return found.cgroup2;
  Error error = fail(Code::kUnsupported, "no cgroup2 is mounted (control groups: {})", to_string(found.mode)).value();
  error.feature = "cgroup2";
  error.min_kernel = "4.5";
  return fail(std::move(error).fix(
      found.mode == CgroupMode::kV1
          ? "boot with systemd.unified_cgroup_hierarchy=1, or: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none "
            "/sys/fs/cgroup/unified"
          : "mount -t cgroup2 none /sys/fs/cgroup"));
}

Result<std::uint64_t> cgroup_id(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return fail(fail_errno(errno, "cannot find the cgroup").value().at(path));
  if (!S_ISDIR(info.st_mode)) return fail(fail(Code::kInvalid, "is not a cgroup: not a folder").value().at(path));
  return info.st_ino;
}

Result<std::string> cgroup_path(const std::string& cgroup2, std::uint64_t id) {
  constexpr int kKernfsHandle = 0xfe;  // FILEID_KERNFS: the handle is the id
  SLUICE_TRY(mount, sluice::open_file(cgroup2, O_RDONLY | O_DIRECTORY));
  alignas(file_handle) std::array<char, sizeof(file_handle) + sizeof(id)> storage{};
  auto* handle = reinterpret_cast<file_handle*>(storage.data());
  handle->handle_bytes = sizeof(id);
  handle->handle_type = kKernfsHandle;
  std::memcpy(storage.data() + offsetof(file_handle, f_handle), &id, sizeof(id));
  UniqueFd folder(::open_by_handle_at(mount.get(), handle, O_PATH | O_CLOEXEC));
  if (!folder) {
    if (errno == ESTALE || errno == ENOENT)
      return fail(fail(Code::kNotFound, "no cgroup has the id {}", id).value().at(cgroup2));
    return fail(fail_errno(errno, "cannot open the cgroup with id {}", id).value().at(cgroup2));
  }
  return read_link(fmt::format("/proc/self/fd/{}", folder.get()));
}

}  // namespace sluice::net
