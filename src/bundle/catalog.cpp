// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bundle folders and archives.
#include "bundle/catalog.h"

#include <archive.h>
#include <archive_entry.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>

#include "base/file.h"
#include "bundle/sha256.h"

namespace sluice::bundle {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kManifestName = "bundle.yaml";
constexpr std::string_view kReadmeName = "README.md";
constexpr std::size_t kArchiveEntriesMax = 64;

bool exists(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0;
}

// Visible folders, sorted (unpack() works in hidden ones). Not existing = none; why else it cannot be read goes to `errors`.
std::vector<std::string> folders(const std::string& path, std::vector<Error>& errors) {
  auto names = list_dir(path);
  if (!names) {
    if (names.error().sys_errno != ENOENT && names.error().sys_errno != ENOTDIR) errors.push_back(std::move(names).error());
    return {};
  }
  std::error_code ignored;
  std::erase_if(
      *names, [&](const std::string& name) { return name.starts_with('.') || !fs::is_directory(path + "/" + name, ignored); });
  return std::move(*names);
}

struct ArchiveFree {
  void operator()(archive* a) const { archive_free(a); }
};
struct EntryFree {
  void operator()(archive_entry* e) const { archive_entry_free(e); }
};
using ArchivePtr = std::unique_ptr<archive, ArchiveFree>;
using EntryPtr = std::unique_ptr<archive_entry, EntryFree>;

tl::unexpected<Error> archive_error(archive* a, const std::string& path, std::string_view doing) {
  const char* reason = archive_error_string(a);
  Error error = fail(Code::kInvalid, "cannot {} the archive: {}", doing, reason != nullptr ? reason : "unknown reason").value();
  if (int err = archive_errno(a); err == ENOSPC || err == EACCES || err == ENOENT) error.code = code_from_errno(err);
  return tl::unexpected(std::move(error).at(path));
}

Status write_entry(archive* a, const std::string& archive_path, const std::string& name, std::string_view data) {
  EntryPtr entry(archive_entry_new());
  archive_entry_set_pathname(entry.get(), name.c_str());
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(data.size()));
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), 0644);
  archive_entry_set_mtime(entry.get(), 0, 0);
  if (archive_write_header(a, entry.get()) != ARCHIVE_OK) return archive_error(a, archive_path, "write");
  if (archive_write_data(a, data.data(), data.size()) != static_cast<la_ssize_t>(data.size()))
    return archive_error(a, archive_path, "write");
  return {};
}

// Files of an archive by name, refused as unpack() says.
Result<std::map<std::string, std::string>> read_archive(const std::string& path) {
  ArchivePtr a(archive_read_new());
  archive_read_support_format_tar(a.get());
  archive_read_support_filter_zstd(a.get());
  if (archive_read_open_filename(a.get(), path.c_str(), 1 << 16) != ARCHIVE_OK) return archive_error(a.get(), path, "open");
  auto refuse = [&](std::string what) {
    return tl::unexpected(fail(Code::kInvalid, "{}", what)
                              .value()
                              .at(path)
                              .fix("make the archive with `sluice bundle pack`; do not trust this one"));
  };
  std::map<std::string, std::string> files;
  std::size_t total = 0;
  while (true) {
    archive_entry* entry = nullptr;
    int got = archive_read_next_header(a.get(), &entry);
    if (got == ARCHIVE_EOF) break;
    if (got != ARCHIVE_OK) return archive_error(a.get(), path, "read");
    const char* raw = archive_entry_pathname(entry);
    std::string name = raw != nullptr ? raw : "";
    if (name.starts_with("./")) name.erase(0, 2);
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos || name.size() > 64)
      return refuse(fmt::format("the archive holds '{}', which is not a plain file name", name.substr(0, 60)));
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr ||
        archive_entry_symlink(entry) != nullptr)
      return refuse(fmt::format("the archive holds '{}', which is not a plain file", name));
    if (files.size() >= kArchiveEntriesMax)
      return refuse(fmt::format("the archive holds more than {} files", kArchiveEntriesMax));
    std::string data;
    std::vector<char> chunk(1 << 16);
    while (true) {
      la_ssize_t length = archive_read_data(a.get(), chunk.data(), chunk.size());
      if (length < 0) return archive_error(a.get(), path, "read");
      if (length == 0) break;
      total += static_cast<std::size_t>(length);
      if (total > kFileBytesMax) return refuse("the archive holds more than 64 MiB");
      data.append(chunk.data(), static_cast<std::size_t>(length));
    }
    if (!files.emplace(name, std::move(data)).second) return refuse(fmt::format("the archive holds '{}' twice", name));
  }
  return files;
}

// Removes a folder on every way out, if there is nothing in it.
class RemovedIfEmpty {
 public:
  explicit RemovedIfEmpty(std::string path) : path_(std::move(path)) {}
  ~RemovedIfEmpty() { ::rmdir(path_.c_str()); }
  RemovedIfEmpty(const RemovedIfEmpty&) = delete;
  RemovedIfEmpty& operator=(const RemovedIfEmpty&) = delete;

 private:
  std::string path_;
};

// Removes a folder of ours on every way out, unless released.
class FolderGuard {
 public:
  explicit FolderGuard(std::string path) : path_(std::move(path)) {}
  FolderGuard(const FolderGuard&) = delete;
  FolderGuard& operator=(const FolderGuard&) = delete;
  ~FolderGuard() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  void release() { path_.clear(); }

 private:
  std::string path_;
};

}  // namespace

Result<Bundle> read_bundle(const std::string& folder) {
  Bundle bundle;
  bundle.folder = folder;
  std::string manifest_path = folder + "/" + std::string(kManifestName);
  SLUICE_TRY(text, read_file(manifest_path));
  SLUICE_TRY(manifest, parse_manifest(text, manifest_path));
  // Each file enters with its name and length, so that no two bundles give the same bytes to hash.
  auto part = [](std::string_view name, std::string_view data) {
    return fmt::format("{} {} {}\n", name, data.size(), sha256_hex(data));
  };
  std::string parts = part(kManifestName, text);
  std::vector<std::string> objects = manifest.objects;
  std::sort(objects.begin(), objects.end());
  for (const std::string& object : objects) {
    auto data = read_file(folder + "/" + object);
    if (!data) {
      Error error = std::move(data).error().within(fmt::format("object '{}' of bundle {}", object, manifest.ref()));
      if (error.code == Code::kNotFound) error.remedy = "build the bundle, or correct 'objects' in its bundle.yaml";
      return tl::unexpected(std::move(error));
    }
    parts += part(object, *data);
  }
  bundle.digest = "sha256:" + sha256_hex(parts);
  bundle.manifest = std::move(manifest);
  return bundle;
}

Catalog Catalog::scan(const std::vector<std::string>& roots) {
  Catalog catalog;
  for (const std::string& root : roots)
    for (const std::string& name : folders(root, catalog.errors_))
      for (const std::string& version : folders(root + "/" + name, catalog.errors_)) {
        std::string folder = root + "/" + name + "/" + version;
        if (!exists(folder + "/" + std::string(kManifestName))) continue;
        auto bundle = read_bundle(folder);
        if (!bundle) {
          catalog.errors_.push_back(std::move(bundle).error());
          continue;
        }
        const Manifest& manifest = bundle->manifest;
        if (manifest.name != name || manifest.version.text() != version) {
          catalog.errors_.push_back(
              fail(Code::kInvalid, "the folder says {}@{}, the manifest {}", name, version, manifest.ref())
                  .value()
                  .at(manifest.source)
                  .fix("name the folders NAME/VERSION as the manifest does"));
          continue;
        }
        if (catalog.find(name, manifest.version) == nullptr) catalog.bundles_.push_back(*std::move(bundle));
      }
  std::sort(catalog.bundles_.begin(), catalog.bundles_.end(), [](const Bundle& a, const Bundle& b) {
    if (a.manifest.name != b.manifest.name) return a.manifest.name < b.manifest.name;
    return a.manifest.version < b.manifest.version;
  });
  return catalog;
}

void Catalog::put(Bundle bundle) {
  for (Bundle& present : bundles_)
    if (present.manifest.name == bundle.manifest.name && present.manifest.version == bundle.manifest.version) {
      present = std::move(bundle);
      return;
    }
  bundles_.push_back(std::move(bundle));
}

const Bundle* Catalog::find(std::string_view name, const Version& version) const {
  for (const Bundle& bundle : bundles_)
    if (bundle.manifest.name == name && bundle.manifest.version == version) return &bundle;
  return nullptr;
}

const Bundle* Catalog::newest(std::string_view name) const {
  const Bundle* best = nullptr;
  for (const Bundle& bundle : bundles_) {
    if (bundle.manifest.name != name) continue;
    if (best != nullptr) {
      const Version& a = best->manifest.version;
      const Version& b = bundle.manifest.version;
      if (a.pre.empty() != b.pre.empty() ? a.pre.empty() : b < a) continue;
    }
    best = &bundle;
  }
  return best;
}

std::vector<const Manifest*> Catalog::manifests() const {
  std::vector<const Manifest*> out;
  for (const Bundle& bundle : bundles_) out.push_back(&bundle.manifest);
  return out;
}

Status pack(const std::string& folder, const std::string& archive_path) {
  SLUICE_TRY(bundle, read_bundle(folder));
  std::vector<std::string> names = bundle.manifest.objects;
  names.emplace_back(kManifestName);
  if (exists(folder + "/" + std::string(kReadmeName))) names.emplace_back(kReadmeName);
  std::sort(names.begin(), names.end());

  // Written aside and renamed: a reader never sees half an archive.
  std::string temporary = fmt::format("{}.{}.part", archive_path, ::getpid());
  FolderGuard guard(temporary);
  {
    ArchivePtr a(archive_write_new());
    archive_write_set_format_pax_restricted(a.get());
    if (archive_write_add_filter_zstd(a.get()) != ARCHIVE_OK) return archive_error(a.get(), archive_path, "compress");
    if (archive_write_open_filename(a.get(), temporary.c_str()) != ARCHIVE_OK)
      return archive_error(a.get(), archive_path, "create");
    for (const std::string& name : names) {
      SLUICE_TRY(data, read_file(folder + "/" + name));
      SLUICE_CHECK(write_entry(a.get(), archive_path, name, data));
    }
    if (archive_write_close(a.get()) != ARCHIVE_OK) return archive_error(a.get(), archive_path, "write");
  }
  if (::rename(temporary.c_str(), archive_path.c_str()) != 0)
    return fail(fail_errno(errno, "cannot put the archive in place").value().at(archive_path));
  guard.release();
  return {};
}

Result<Bundle> unpack(const std::string& archive_path, const std::string& root) {
  SLUICE_TRY(files, read_archive(archive_path));
  auto manifest_file = files.find(std::string(kManifestName));
  if (manifest_file == files.end())
    return fail(fail(Code::kInvalid, "the archive holds no bundle.yaml")
                    .value()
                    .at(archive_path)
                    .fix("make it with `sluice bundle pack`"));
  SLUICE_TRY(manifest, parse_manifest(manifest_file->second, archive_path + ":bundle.yaml"));
  for (const auto& [name, data] : files)
    if (name != kManifestName && name != kReadmeName &&
        std::find(manifest.objects.begin(), manifest.objects.end(), name) == manifest.objects.end())
      return fail(fail(Code::kInvalid, "the archive holds '{}', which bundle.yaml does not name", name)
                      .value()
                      .at(archive_path)
                      .fix("make it with `sluice bundle pack`"));

  std::string parent = root + "/" + manifest.name;
  std::string folder = parent + "/" + manifest.version.text();
  SLUICE_CHECK(make_dirs(parent));
  const RemovedIfEmpty nothing_left(parent);
  std::string temporary = parent + "/.unpack-XXXXXX";
  if (::mkdtemp(temporary.data()) == nullptr)
    return fail(fail_errno(errno, "cannot make a folder to unpack into").value().at(parent));
  FolderGuard guard(temporary);
  if (::chmod(temporary.c_str(), 0755) != 0) return fail(fail_errno(errno, "cannot set its mode").value().at(temporary));
  for (const auto& [name, data] : files) SLUICE_CHECK(write_file_atomic(temporary + "/" + name, data));
  SLUICE_TRY(fresh, read_bundle(temporary));

  if (::rename(temporary.c_str(), folder.c_str()) != 0) {
    int err = errno;
    if (err != EEXIST && err != ENOTEMPTY) return fail(fail_errno(err, "cannot put the bundle in place").value().at(folder));
    auto present = read_bundle(folder);
    if (present && present->digest == fresh.digest) return present;
    return fail(fail(Code::kConflict, "bundle {} is there already, with other contents", manifest.ref())
                    .value()
                    .at(folder)
                    .fix("a version never changes: give the new one a new version, or remove the folder"));
  }
  guard.release();
  return read_bundle(folder);
}

}  // namespace sluice::bundle
