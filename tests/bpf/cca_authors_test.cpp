// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// docs/cca-authors.md keeps its word: the bundle that stands on the page is taken out of it, checked, built, loaded and run,
// and its window differs from cubic's as the page says.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "bpf/cca_fixture.h"
#include "bundle/lint.h"
#include "bundle/manifest.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kThird = 38;  // RTTs

// Blocks that begin with "```LANGUAGE file=PATH", by path.
std::map<std::string, std::string> files_of(const std::string& page) {
  std::map<std::string, std::string> files;
  std::ifstream in(page);
  std::string line, open;
  while (std::getline(in, line)) {
    if (const auto at = line.find(" file="); line.starts_with("```") && at != std::string::npos)
      open = line.substr(at + 6);
    else if (line == "```")
      open.clear();
    else if (!open.empty())
      files[open] += line + "\n";
  }
  return files;
}

class Authors : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "sluice-authors-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    for (const auto& [path, text] : files_of(SLUICE_SOURCE_DIR "/docs/cca-authors.md")) {
      fs::create_directories((dir_ / path).parent_path());
      std::ofstream(dir_ / path) << text;
      folders_.insert((fs::path(path).parent_path()).string());
    }
    ASSERT_EQ(folders_, std::set<std::string>{"bpf/cca/aimd"}) << "one folder, no more";
    folder_ = dir_ / "bpf/cca/aimd";
    // As sluice_bpf_object() does.
    const std::string source = SLUICE_SOURCE_DIR;
    run("clang-19 -g -O2 -target bpf -mcpu=v3 -D__TARGET_ARCH_" SLUICE_BPF_ARCH
        " -Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-declarations -I" +
        source + "/bpf/include -I" + source + "/bpf/include/vmlinux/" SLUICE_BPF_ARCH " -c " +
        (folder_ / "aimd.bpf.c").string() + " -o " + (folder_ / "aimd.bpf.o").string());
  }
  void TearDown() override { fs::remove_all(dir_); }

  using Samples = std::optional<std::vector<double>>;

  // The window at the beginning of each RTT after recovery, kThird of them in each third; nothing until so many are there.
  static Samples by_rtt(const Trace& trace) {
    std::vector<double> windows;
    std::uint32_t end = 0;
    for (const auto& e : trace.events()) {
      if (e.kind != CCA_TRACE_ACK || e.time_ns < trace.entered(kOpen)->time_ns) continue;
      if (!windows.empty() && static_cast<std::int32_t>(e.snd_una - end) < 0) continue;
      windows.push_back(e.cwnd);
      end = e.snd_nxt;
      if (windows.size() > 3 * kThird) {
        return std::vector{windows[0], windows[kThird], windows[2 * kThird], windows[3 * kThird]};
      }
    }
    return std::nullopt;
  }
  // The window after each third of twice K (C = 20 segments / s^3, beta = 0.7).
  static Samples by_time(const Trace& trace) {
    const double k_s = std::cbrt(trace.entered(kRecovery)->prior_cwnd * 0.3 / 20);
    std::vector<double> windows;
    for (int third = 0; third <= 3; ++third) {
      const auto* ack = trace.at(trace.entered(kOpen)->time_ns + static_cast<std::uint64_t>(third * k_s * 2 / 3 * 1e9));
      if (ack == nullptr) return std::nullopt;
      windows.push_back(ack->cwnd);
    }
    return windows;
  }
  // The same path and the same loss for everybody. `kept`: the part of the window that the loss left.
  static std::vector<double> run_over_the_path(Cca& cca, Samples (*sample)(const Trace&), double& kept) {
    Path path({.one_way_us = 10000});  // no bottleneck: every RTT takes 20 ms
    path.on_data([](const Packet& p) { return Fate{.drop = p.number == 150}; });
    Trace trace(path);
    Flow flow(path, cca.name());
    flow.start();
    Samples samples;
    must(trace.until([&](const auto&) {
      if (trace.entered(kRecovery) && trace.entered(kOpen)) samples = sample(trace);
      return samples.has_value();
    }),
         "a trace long enough");
    const auto loss = *trace.entered(kRecovery);
    kept = static_cast<double>(loss.ssthresh) / loss.prior_cwnd;
    return *samples;
  }

  fs::path dir_, folder_;
  std::set<std::string> folders_;
};

TEST_F(Authors, TheBundleOnThePageIsWithoutFindings) {
  auto manifest = bundle::read_manifest((folder_ / "bundle.yaml").string());
  ASSERT_TRUE(manifest) << manifest.error().message();
  for (const auto& finding : bundle::lint(*manifest, folder_.string()))
    ADD_FAILURE() << finding.rule << ": " << finding.what << "; " << finding.remedy;
  EXPECT_NE(manifest->parameter("increase_segments"), nullptr);
}

TEST(Cubic, TheBundleIsWithoutFindings) {
  auto manifest = bundle::read_manifest(Cca::path("bundles/cubic/1.0.0/bundle.yaml"));
  ASSERT_TRUE(manifest) << manifest.error().message();
  for (const auto& finding : bundle::lint(*manifest, Cca::path("bundles/cubic/1.0.0")))
    ADD_FAILURE() << finding.rule << ": " << finding.what << "; " << finding.remedy;
}

// A default stands twice, in the manifest and in the object: it has to be the same.
void expect_same_defaults(const std::string& manifest_file, const std::string& object_file) {
  auto manifest = bundle::read_manifest(manifest_file);
  ASSERT_TRUE(manifest) << manifest.error().message();
  Object object(bpf_object__open_file(object_file.c_str(), nullptr));
  ASSERT_NE(object, nullptr);
  const btf* types = bpf_object__btf(object.get());
  const btf_type* section =
      btf__type_by_id(types, static_cast<__u32>(btf__find_by_name_kind(types, ".rodata", BTF_KIND_DATASEC)));
  const char* defaults = nullptr;
  bpf_map* map;
  bpf_object__for_each_map(map, object.get()) {
    if (!std::string_view(bpf_map__name(map)).ends_with(".rodata")) continue;
    std::size_t size = 0;
    const auto* data = static_cast<const char*>(bpf_map__initial_value(map, &size));
    for (int i = 0; i < btf_vlen(section); ++i) {
      const btf_var_secinfo& var = btf_var_secinfos(section)[i];
      if (std::string_view("sl_param_defaults") == btf__name_by_offset(types, btf__type_by_id(types, var.type)->name_off))
        defaults = data + var.offset;
    }
  }
  ASSERT_NE(defaults, nullptr);
  const auto layout = must(must(bpfio::Object::open_file(object_file)).value_type(SL_NAME_PARAMS));
  EXPECT_EQ(layout.members.size(), manifest->parameters.size() + 1);
  for (const auto& parameter : manifest->parameters) {
    const bpfio::Member* member = layout.find(parameter.name);
    ASSERT_NE(member, nullptr) << parameter.name;
    std::uint64_t value = 0;
    std::memcpy(&value, defaults + member->offset_bytes, sizeof(value));
    EXPECT_EQ(value, parameter.default_value) << parameter.name;
  }
}

TEST(Cubic, DefaultsOfManifestAndObjectAgree) {
  expect_same_defaults(Cca::path("bundles/cubic/1.0.0/bundle.yaml"), Cca::path(Cca::kCubic));
}

TEST_F(Authors, DefaultsOfManifestAndObjectAgree) {
  expect_same_defaults((folder_ / "bundle.yaml").string(), (folder_ / "aimd.bpf.o").string());
}

TEST_F(Authors, ItsWindowIsAStraightLineWhereCubicsIsACurve) {
  // sl_present, increase_segments, decrease_percent
  Cca aimd({.file = (folder_ / "aimd.bpf.o").string(), .struct_ops = "aimd", .suffix = "m"});
  aimd.set_params({1, 2, 50});
  Cca cubic(Cca::cubic(nullptr, "c"));
  // Steep enough to see in 2 s; without Reno's line underneath.
  cubic.set_params({1, 70, 20000, 1, 0, 30, 100, 16, 3, 16, 2000});

  double aimd_kept = 0, cubic_kept = 0;
  const auto line = run_over_the_path(aimd, by_rtt, aimd_kept);
  const auto curve = run_over_the_path(cubic, by_time, cubic_kept);

  EXPECT_NEAR(aimd_kept, 0.5, 0.02);
  EXPECT_NEAR(cubic_kept, 0.7, 0.02);
  for (std::size_t third = 0; third < 3; ++third)
    EXPECT_NEAR((line[third + 1] - line[third]) / kThird, 2, 0.3) << "segments per RTT, third " << third;
  const double first = curve[1] - curve[0], middle = curve[2] - curve[1], last = curve[3] - curve[2];
  EXPECT_GT(first, 2 * std::abs(middle)) << "concave: fast, then flat";
  EXPECT_GT(last, 2 * std::abs(middle)) << "convex: flat, then fast";
}

TEST_F(Authors, ItsParameterCounts) {
  Cca aimd({.file = (folder_ / "aimd.bpf.o").string(), .struct_ops = "aimd", .suffix = "m"});
  aimd.set_params({1, 4, 30});
  double kept = 0;
  const auto line = run_over_the_path(aimd, by_rtt, kept);
  EXPECT_NEAR(kept, 0.7, 0.02);
  EXPECT_NEAR((line[1] - line[0]) / kThird, 4, 0.6);
}

}  // namespace
}  // namespace sluice::test
