// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// src/bpfio without a kernel's help: verifier logs, the table of features, probes under made-up roots.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "base/file.h"
#include "bpfio/object.h"
#include "bpfio/probe.h"

namespace sluice::bpfio {
namespace {

TEST(VerifierLog, TheLastLineThatSaysWhy) {
  EXPECT_EQ(
      last_verifier_line("reg type unsupported for arg#0 function prog#7\n"
                         "0: R1=ctx() R10=fp0\n"
                         "; int prog(struct __sk_buff *skb) @ x.c:7\n"
                         "0: (61) r2 = *(u32 *)(r1 +76)        ; R1=ctx() R2_w=pkt(r=0)\n"
                         "1: (71) r0 = *(u8 *)(r2 +0)\n"
                         "invalid access to packet, off=0 size=1, R2(id=0,off=0,r=0)\n"
                         "R2 offset is outside of the packet\n"
                         "processed 2 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n"
                         "-- END PROG LOAD LOG --\n"),
      "R2 offset is outside of the packet");
  EXPECT_EQ(
      last_verifier_line("; return x; @ y.c:3\n"
                         "3: (85) call bpf_probe_write_user#36\n"
                         "program of this type cannot use helper bpf_probe_write_user#36\n"
                         "processed 3 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n"),
      "program of this type cannot use helper bpf_probe_write_user#36");
  EXPECT_EQ(last_verifier_line("R0 !read_ok\nfrom 3 to 5: R0=0 R10=fp0\nR0=0 R10=fp0\n"), "R0 !read_ok");
  EXPECT_EQ(last_verifier_line("BPF program is too large. Processed 1000001 insn\nprocessed 1000001 insns (limit 1000000)\n"),
            "BPF program is too large. Processed 1000001 insn");
}

TEST(VerifierLog, ALogOfASuccessSaysNothing) {
  EXPECT_EQ(last_verifier_line(""), "");
  EXPECT_EQ(last_verifier_line("0: R1=ctx() R10=fp0\n0: (b7) r0 = 0\n1: (95) exit\nprocessed 2 insns (limit 1000000)\n"), "");
}

TEST(Features, TheTableIsCompleteAndItsNamesAreUnique) {
  std::set<std::string_view> names;
  std::set<FeatureId> ids;
  for (const Feature& each : features()) {
    EXPECT_TRUE(names.insert(each.name).second) << each.name;
    EXPECT_TRUE(ids.insert(each.id).second) << each.name;
    EXPECT_FALSE(each.how.empty() || each.remedy.empty()) << each.name;
    EXPECT_EQ(find_feature(each.name), &feature(each.id));
  }
  EXPECT_EQ(find_feature("no-such"), nullptr);
}

TEST(Features, MissingOnANewEnoughKernelContradicts) {
  const Feature& link = feature(FeatureId::kStructOpsLink);  // 6.4
  EXPECT_FALSE(contradicts(link, Presence::kAbsent, {6, 3, 99}));
  EXPECT_TRUE(contradicts(link, Presence::kAbsent, {6, 4, 0}));
  EXPECT_FALSE(contradicts(link, Presence::kUnknown, {6, 18, 0}));
  EXPECT_FALSE(contradicts(link, Presence::kPresent, {6, 18, 0}));
  EXPECT_FALSE(contradicts(feature(FeatureId::kBpffs), Presence::kAbsent, {6, 18, 0}));  // the host's choice
}

class Roots : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "sluice-roots-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    roots_.proc = pattern + "/proc";
    roots_.sys = pattern + "/sys";
    ASSERT_TRUE(make_dirs(roots_.proc + "/self") && make_dirs(roots_.sys));
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  ProbeRoots roots_;
  std::string dir_;
};

TEST_F(Roots, AHostWithoutAnything) {
  ASSERT_TRUE(write_file_atomic(roots_.proc + "/mounts", "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n"));
  ASSERT_TRUE(write_file_atomic(roots_.proc + "/self/status", "Name:\tx\nCapEff:\t0000000000000000\n"));
  for (FeatureId id : {FeatureId::kBtf, FeatureId::kBpffs, FeatureId::kCgroup2, FeatureId::kCapBpf, FeatureId::kCapNetAdmin,
                       FeatureId::kCapSysAdmin}) {
    ProbeResult result = probe(id, roots_);
    EXPECT_EQ(result.presence, Presence::kAbsent) << result.feature->name;
    EXPECT_FALSE(result.reason.empty());
    Status status = require(id, roots_);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kUnsupported);
    EXPECT_EQ(status.error().feature, result.feature->name);
    EXPECT_FALSE(status.error().remedy.empty());
  }
  EXPECT_EQ(probe(FeatureId::kCgroup2, roots_).reason, "control groups are v1");
}

TEST_F(Roots, AHostWithAll) {
  ASSERT_TRUE(
      write_file_atomic(roots_.proc + "/mounts", "bpf /sys/fs/bpf bpf rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"));
  ASSERT_TRUE(write_file_atomic(roots_.proc + "/self/status", "CapEff:\t000001ffffffffff\n"));
  for (FeatureId id : {FeatureId::kBpffs, FeatureId::kCgroup2, FeatureId::kCapBpf, FeatureId::kCapPerfmon})
    EXPECT_TRUE(require(id, roots_)) << feature(id).name;
  EXPECT_EQ(probe(FeatureId::kBpffs, roots_).reason, "mounted at /sys/fs/bpf");
}

TEST_F(Roots, WhatCannotBeReadIsUnknownNotAbsent) {
  EXPECT_EQ(probe(FeatureId::kCapBpf, roots_).presence, Presence::kUnknown);
  EXPECT_EQ(probe(FeatureId::kBpffs, roots_).presence, Presence::kUnknown);
  EXPECT_EQ(require(FeatureId::kBpffs, roots_).error().code, Code::kPermission);
}

}  // namespace
}  // namespace sluice::bpfio
