// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Fuzz target: archives of bundles. The bytes are those of a tar, whose checksums are put right first: that they are wrong is
// the least interesting reason to refuse it. Whatever the bytes, unpack() makes one folder NAME/VERSION of plain files, or
// nothing at all.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/unique_fd.h"
#include "bundle/catalog.h"

namespace {

using namespace sluice;
namespace fs = std::filesystem;

constexpr std::size_t kBlock = 512, kSizeAt = 124, kSizeDigits = 11, kSumAt = 148, kSumBytes = 8;

void mend_checksums(std::string& tar) {
  for (std::size_t at = 0; at + kBlock <= tar.size();) {
    std::fill_n(tar.begin() + static_cast<std::ptrdiff_t>(at + kSumAt), kSumBytes, ' ');
    unsigned sum = 0;
    for (std::size_t i = 0; i < kBlock; ++i) sum += static_cast<unsigned char>(tar[at + i]);
    tar.replace(at + kSumAt, kSumBytes - 1, fmt::format("{:06o}", sum) + '\0');
    std::size_t size = 0;
    std::from_chars(tar.data() + at + kSizeAt, tar.data() + at + kSizeAt + kSizeDigits, size, 8);
    at += kBlock + (size + kBlock - 1) / kBlock * kBlock;
  }
}

// Where it may write.
struct Root {
  Root() {
    path = (fs::temp_directory_path() / "sluice-fuzz-XXXXXX").string();
    SLUICE_ASSERT(::mkdtemp(path.data()) != nullptr);
    path += "/bundles";
  }
  ~Root() { fs::remove_all(fs::path(path).parent_path()); }
  std::string path;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const UniqueFd kFile(::memfd_create("archive", MFD_CLOEXEC));
  static const std::string kPath = fmt::format("/proc/self/fd/{}", kFile.get());
  static const Root kRoot;
  std::string tar(reinterpret_cast<const char*>(data), size);
  mend_checksums(tar);
  SLUICE_ASSERT(::ftruncate(kFile.get(), 0) == 0);
  SLUICE_ASSERT(::pwrite(kFile.get(), tar.data(), tar.size(), 0) == static_cast<ssize_t>(tar.size()));

  const auto bundle = bundle::unpack(kPath, kRoot.path);
  if (!bundle) {
    SLUICE_ASSERT(!bundle.error().what.empty() && !bundle.error().where.empty());
    SLUICE_ASSERT(!fs::exists(kRoot.path) || fs::is_empty(kRoot.path));
  }
  for (const auto& entry : fs::directory_iterator(fs::path(kRoot.path).parent_path()))
    SLUICE_ASSERT(entry.path() == kRoot.path);
  std::size_t files = 0;
  if (fs::exists(kRoot.path))
    for (const auto& entry : fs::recursive_directory_iterator(kRoot.path)) {
      SLUICE_ASSERT(entry.is_directory() || (entry.is_regular_file() && !entry.is_symlink()));
      if (entry.is_directory()) continue;
      SLUICE_ASSERT(bundle && entry.path().parent_path() == bundle->folder);
      ++files;
    }
  SLUICE_ASSERT(!bundle || files > bundle->manifest.objects.size());  // and bundle.yaml
  fs::remove_all(kRoot.path);
  return 0;
}
