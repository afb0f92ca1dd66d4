// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Pins: names in a bpffs that keep maps, programs and links alive. All of them lie below one root; nothing here can name, open
// or remove anything outside of it: paths are relative, are walked without symbolic links and do not cross mounts.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "bpfio/link.h"
#include "bpfio/map.h"
#include "bpfio/program.h"

namespace sluice::bpfio {

class PinRoot {
 public:
  // The folder is made if it is missing (mode 0700). kUnsupported if it does not lie on a bpffs, kInvalid if it is
  // the whole of one.
  static Result<PinRoot> open(const std::string& path);

  const std::string& path() const { return path_; }
  // Its folder was removed, or another one stands in its place: open it anew.
  bool stale() const;

  // `name`: components of [A-Za-z0-9_-] between '/' (the kernel refuses dots). Folders in between are made. kConflict if it
  // exists.
  Status pin(const MapFd& map, const std::string& name) const { return pin_fd(map.fd(), name); }
  Status pin(const Program& program, const std::string& name) const { return pin_fd(program.fd(), name); }
  Status pin(const Link& link, const std::string& name) const { return pin_fd(link.fd(), name); }

  // kNotFound if there is no such pin, kConflict if it holds another kind of object.
  Result<MapFd> map(const std::string& name) const;
  Result<Program> program(const std::string& name) const;
  Result<Link> link(const std::string& name) const;
  Result<bool> exists(const std::string& name) const;

  // One pin or one empty folder. kNotFound if it is gone already. The kernel lets go of the object after a grace period: a link
  // whose last pin it was may run a few milliseconds longer (Link::detach() first, where that matters).
  Status unpin(const std::string& name) const;
  // Atomic; replaces what `to` held.
  Status rename(const std::string& from, const std::string& to) const;
  // Every pin below the root (not folders), sorted, as names that the functions above take.
  Result<std::vector<std::string>> list() const;
  // Every pin and folder below the root, and the root itself.
  Status remove_all() const;

 private:
  PinRoot(std::string path, UniqueFd dir) : path_(std::move(path)), dir_(std::move(dir)) {}
  struct Place {
    UniqueFd dir;
    std::string leaf;
    std::string path() const;  // through /proc/self/fd, so that nobody can swap a folder underneath
  };
  Result<Place> locate(const std::string& name, bool make_folders) const;
  Status pin_fd(int fd, const std::string& name) const;
  Result<UniqueFd> get(const std::string& name) const;

  std::string path_;
  UniqueFd dir_;
};

}  // namespace sluice::bpfio
