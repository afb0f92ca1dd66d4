// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bundles as the agent finds them: manifests, and objects that nobody opens here.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "bundle/catalog.h"

namespace sluice::sim {

class Bundles {
 public:
  explicit Bundles(const std::string& kernel = "min: \"6.12\"") {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-sim-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    add("cubic", "1.0.0", true, kernel);
    add("cubic", "2.0.0", false, kernel);
  }
  ~Bundles() { std::filesystem::remove_all(root_); }
  Bundles(const Bundles&) = delete;
  Bundles& operator=(const Bundles&) = delete;

  const std::string& root() const { return root_; }
  bundle::Catalog scan() const { return bundle::Catalog::scan({root_}); }

 private:
  void add(const std::string& name, const std::string& version, bool transitional, const std::string& kernel) {
    const auto folder = std::filesystem::path(root_) / name / version;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / (name + ".bpf.o")) << name << version;
    std::ofstream(folder / "bundle.yaml") << fmt::format(
        "name: {0}\nversion: {1}\nclass: cca\nsummary: for the simulation\nlicense: Dual BSD/GPL\nobjects: [{0}.bpf.o]\n"
        "kernel: {{{3}}}\nhooks: [init, release, ssthresh, cong_avoid, undo_cwnd]\n"
        "signals: {{ecn: tolerates, delay: true, loss: true}}\n"
        "parameters:\n  - {{name: beta, type: u64, unit: permille, min: 100, max: 1000, default: 700, when: live, summary: "
        "b}}\n"
        "transitional: {2}\n",
        name, version, transitional, kernel);
  }
  std::string root_;
};

}  // namespace sluice::sim
