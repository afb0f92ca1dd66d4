// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Fuzz target: BPF objects as `sluice bundle lint` reads them: ELF, BTF, instructions, relocations. Whatever the bytes, lint
// ends with findings that have a place and a remedy, and the reader with an object or with an error that has both.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "bundle/lint.h"
#include "bundle/object.h"

namespace {

constexpr char kManifest[] =
    "name: fuzz\nversion: 1.0.0\nclass: cca\nsummary: as lint sees it\nlicense: Dual BSD/GPL\nobjects: [fuzz.bpf.o]\n"
    "kernel: {min: \"6.1\"}\nhooks: [init, release, ssthresh, cong_avoid, undo_cwnd]\n"
    "signals: {ecn: tolerates, delay: true, loss: true}\n"
    "parameters:\n"
    "  - {name: beta, type: u64, min: 100, max: 1000, default: 700, when: live, summary: b}\n"
    "  - {name: gamma, type: u32, min: 1, max: 2, default: 1, when: load, summary: g}\n"
    "shared_maps:\n  - {name: sl_sock, schema: \"sl_sock@1\", access: rw}\n";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  using namespace sluice::bundle;
  static Manifest manifest = parse_manifest(kManifest, "fuzz").value();
  static const UniqueFd kFile(::memfd_create("object", MFD_CLOEXEC));
  static const std::string kFolder = "/proc/self/fd";
  SLUICE_ASSERT(::ftruncate(kFile.get(), 0) == 0);
  SLUICE_ASSERT(::pwrite(kFile.get(), data, size, 0) == static_cast<ssize_t>(size));
  manifest.objects = {std::to_string(kFile.get())};

  const auto object = read_object(kFolder + "/" + manifest.objects[0]);
  if (!object) SLUICE_ASSERT(!object.error().where.empty() && !object.error().what.empty());
  for (const Finding& finding : lint(manifest, kFolder))
    SLUICE_ASSERT(!finding.rule.empty() && !finding.where.empty() && !finding.what.empty() && !finding.remedy.empty());
  return 0;
}
