// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "base/mounts.h"

#include <algorithm>

#include "base/file.h"
#include "base/strings.h"

namespace sluice {
namespace {

// The kernel writes space, tab, newline and backslash as \ooo.
std::string unescape(std::string_view field) {
  std::string text;
  for (std::size_t i = 0; i < field.size(); i++) {
    if (field[i] == '\\' && i + 3 < field.size()) {
      if (auto code = parse_int<unsigned>(field.substr(i + 1, 3), 8); code && *code < 256) {
        text += static_cast<char>(*code);
        i += 3;
        continue;
      }
    }
    text += field[i];
  }
  return text;
}

}  // namespace

std::vector<Mount> parse_mounts(std::string_view text) {
  std::vector<Mount> mounts;
  for (std::string_view line : split(text, '\n')) {
    auto fields = words(line);
    if (fields.size() < 4) continue;
    mounts.push_back({.source = unescape(fields[0]),
                      .target = unescape(fields[1]),
                      .type = std::string(fields[2]),
                      .options = std::string(fields[3]),
                      .root = {}});
  }
  return mounts;
}

std::vector<Mount> parse_mountinfo(std::string_view text) {
  // id parent major:minor root target options [tag...] - type source super-options
  std::vector<Mount> mounts;
  for (std::string_view line : split(text, '\n')) {
    auto fields = words(line);
    auto dash = std::find(fields.begin(), fields.end(), "-");
    if (dash - fields.begin() < 6 || fields.end() - dash < 3) continue;
    mounts.push_back({.source = unescape(dash[2]),
                      .target = unescape(fields[4]),
                      .type = std::string(dash[1]),
                      .options = std::string(fields[5]),
                      .root = unescape(fields[3])});
  }
  return mounts;
}

Result<std::vector<Mount>> read_mounts(const std::string& proc_root) {
  SLUICE_TRY(text, read_file(proc_root + "/mounts"));
  return parse_mounts(text);
}

CgroupMounts cgroup_mounts(const std::vector<Mount>& mounts) {
  CgroupMounts found;
  bool v1 = false;
  for (const Mount& mount : mounts) {
    if (mount.type == "cgroup") v1 = true;
    if (mount.type == "cgroup2" && found.cgroup2.empty()) found.cgroup2 = mount.target;
  }
  if (!found.cgroup2.empty())
    found.mode = v1 ? CgroupMode::kHybrid : CgroupMode::kUnified;
  else if (v1)
    found.mode = CgroupMode::kV1;
  return found;
}

std::string_view to_string(CgroupMode mode) {
  switch (mode) {
    case CgroupMode::kNone:
      return "none";
    case CgroupMode::kV1:
      return "v1";
    case CgroupMode::kHybrid:
      return "hybrid";
    case CgroupMode::kUnified:
      return "unified";
  }
  panic("a cgroup mode without a name", __FILE__, __LINE__);
}

}  // namespace sluice
