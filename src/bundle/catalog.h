// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bundles on disk: a search path of folders ROOT/NAME/VERSION/bundle.yaml, their digests, and .tar.zst archives of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "bundle/manifest.h"

namespace sluice::bundle {

struct Bundle {
  Manifest manifest;
  std::string folder;
  std::string digest;  // "sha256:<hex>" over bundle.yaml and the objects, names included
  std::string object_path(std::size_t index = 0) const { return folder + "/" + manifest.objects.at(index); }
};

// Reads and digests one bundle folder. Every object named by the manifest must be there.
Result<Bundle> read_bundle(const std::string& folder);

class Catalog {
 public:
  // Roots in order of precedence: the first root that has a name@version wins. A root that does not exist is skipped, a
  // broken bundle is listed in errors() and hides nothing else.
  static Catalog scan(const std::vector<std::string>& roots);

  const Bundle* find(std::string_view name, const Version& version) const;  // nullptr = not there
  const Bundle* newest(std::string_view name) const;                        // releases before pre-releases
  const std::vector<Bundle>& list() const { return bundles_; }              // by name, then version
  const std::vector<Error>& errors() const { return errors_; }
  void put(Bundle bundle);  // instead of one with its name and version, or beside the others
  std::vector<const Manifest*> manifests() const;

 private:
  std::vector<Bundle> bundles_;
  std::vector<Error> errors_;
};

// Archive of a bundle folder: bundle.yaml, the objects and README.md, entries without owner or time, so that the same bundle
// gives the same bytes.
Status pack(const std::string& folder, const std::string& archive_path);
// Extracts into `root`/NAME/VERSION and returns what was read back. Only plain files directly at the archive's top are
// accepted: no folders, links, devices, "..", no file beyond 64 MiB. Nothing is left behind on failure; an existing folder
// with the same digest is success, with another one a conflict.
Result<Bundle> unpack(const std::string& archive_path, const std::string& root);

}  // namespace sluice::bundle
