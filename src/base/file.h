// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Whole files and folders, with errors that name the path.
#pragma once

#include <sys/types.h>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice {

inline constexpr std::size_t kFileBytesMax = std::size_t{64} << 20;

// open(2) with O_CLOEXEC; `flags` as for open.
Result<UniqueFd> open_file(const std::string& path, int flags, mode_t mode = 0);

// The whole file; kExhausted when it is larger than `bytes_max`. Works for /proc and /sys files, whose size is not known
// before.
Result<std::string> read_file(const std::string& path, std::size_t bytes_max = kFileBytesMax);

// One write(2) to an existing file, for /proc and /sys, which take a value only whole.
Status write_file(const std::string& path, std::string_view text);

// The file holds either the old text or the new one, also after a power cut: temporary file beside it, fsync, rename, fsync of
// the folder. Its permissions are `mode`, whatever the umask.
Status write_file_atomic(const std::string& path, std::string_view text, mode_t mode = 0644);

// Names in a folder, sorted, without "." and "..".
Result<std::vector<std::string>> list_dir(const std::string& path);

// mkdir -p. Folders that exist keep their mode.
Status make_dirs(const std::string& path, mode_t mode = 0755);

// Where a symbolic link points.
Result<std::string> read_link(const std::string& path);

}  // namespace sluice
