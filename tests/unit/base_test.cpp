// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// src/base: files, text, time, randomness, log, mount tables.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/kernel_version.h"
#include "base/log.h"
#include "base/mounts.h"
#include "base/random.h"
#include "base/strings.h"
#include "base/unique_fd.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "sluice-base-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string path(const std::string& name) const { return dir_ + "/" + name; }
  std::string dir_;
};

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFd, ClosesOnceAndMovesOwnership) {
  int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(raw, 0);
  {
    UniqueFd first(raw);
    UniqueFd second(std::move(first));
    EXPECT_FALSE(first.valid());
    EXPECT_EQ(second.get(), raw);
    second = std::move(second);
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(UniqueFd, DuplicateSurvivesTheOriginal) {
  UniqueFd original(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto copy = duplicate(original.get());
  ASSERT_TRUE(copy);
  original.reset();
  EXPECT_TRUE(is_open(copy->get()));
  EXPECT_EQ(::fcntl(copy->get(), F_GETFD), FD_CLOEXEC);
  EXPECT_FALSE(duplicate(-1));
}

TEST_F(Files, AtomicWriteReplacesWholeAndSetsTheModeWhateverTheUmask) {
  mode_t old = ::umask(0077);
  Status first = write_file_atomic(path("a"), "one", 0644);
  Status second = write_file_atomic(path("a"), "two\n", 0640);
  ::umask(old);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(read_file(path("a")).value(), "two\n");
  struct stat info;
  ASSERT_EQ(::stat(path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640U);
  EXPECT_THAT(list_dir(dir_).value(), ElementsAre("a"));  // no temporary file is left
}

TEST_F(Files, AtomicWriteThatFailsLeavesTheOldFileAndNothingElse) {
  ASSERT_TRUE(make_dirs(path("target/inside")));  // a folder cannot be replaced by a file
  Status status = write_file_atomic(path("target"), "text");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().where, path("target"));
  EXPECT_THAT(list_dir(dir_).value(), ElementsAre("target"));
  EXPECT_THAT(list_dir(path("target")).value(), ElementsAre("inside"));
}

TEST_F(Files, ReadNamesThePathAndKeepsTheLimit) {
  auto missing = read_file(path("missing"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr(path("missing")));

  ASSERT_TRUE(write_file_atomic(path("big"), std::string(100'000, 'x')));
  EXPECT_EQ(read_file(path("big"), 100'000).value().size(), 100'000U);
  EXPECT_EQ(read_file(path("big"), 99'999).error().code, Code::kExhausted);
  EXPECT_THAT(read_file("/proc/self/status").value(), HasSubstr("CapEff"));  // a file without a size
}

TEST_F(Files, WriteFileIsForFilesThatExist) {
  EXPECT_EQ(write_file(path("new"), "1").error().code, Code::kNotFound);
  EXPECT_EQ(write_file("/dev/full", "1").error().code, Code::kExhausted);
}

TEST_F(Files, ListIsSortedAndMakeDirsIsIdempotent) {
  ASSERT_TRUE(make_dirs(path("b/c/d"), 0700));
  ASSERT_TRUE(make_dirs(path("b/c/d"), 0755));
  struct stat info;
  ASSERT_EQ(::stat(path("b/c").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  ASSERT_TRUE(write_file_atomic(path("z"), ""));
  ASSERT_TRUE(write_file_atomic(path("a"), ""));
  EXPECT_THAT(list_dir(dir_).value(), ElementsAre("a", "b", "z"));
  EXPECT_EQ(list_dir(path("none")).error().code, Code::kNotFound);
  EXPECT_EQ(make_dirs(path("a")).error().code, Code::kConflict);  // a file is there
}

TEST(Strings, SplitTrimWords) {
  EXPECT_THAT(split("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(split("", ','), IsEmpty());
  EXPECT_THAT(split("a,", ','), ElementsAre("a", ""));
  EXPECT_THAT(words("  a\t b "), ElementsAre("a", "b"));
  EXPECT_EQ(trim(" \n x y\t"), "x y");
  EXPECT_EQ(trim("  "), "");
}

TEST(Strings, ParseIntTakesWholeNumbersInRangeOnly) {
  EXPECT_EQ(parse_int<int>("-12"), -12);
  EXPECT_EQ(parse_int<unsigned>("ff", 16), 255U);
  EXPECT_EQ(parse_int<unsigned char>("256"), std::nullopt);
  for (const char* bad : {"", " 1", "1 ", "1x", "+1", "0x1"}) EXPECT_EQ(parse_int<int>(bad), std::nullopt) << bad;
}

TEST(Strings, JsonQuoteEscapesControlsAndMendsInvalidUtf8) {
  EXPECT_EQ(json_quote("a\"b\\c\n\t\x01"), R"("a\"b\\c\n\t\u0001")");
  EXPECT_EQ(json_quote("größe €"), "\"größe €\"");
  EXPECT_EQ(json_quote("\xff"
                       "a\xc3"),
            "\"\xef\xbf\xbd"
            "a\xef\xbf\xbd\"");
  EXPECT_EQ(json_quote("\xc0\xaf"), "\"\xef\xbf\xbd\xef\xbf\xbd\"");                  // overlong '/'
  EXPECT_EQ(json_quote("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");  // a surrogate
}

TEST(KernelVersion, ParsesReleasesAndOrdersThem) {
  EXPECT_EQ(parse_kernel_version("6.18.44-fc-v857"), (KernelVersion{6, 18, 44}));
  EXPECT_EQ(parse_kernel_version("6.1.0-28-amd64"), (KernelVersion{6, 1, 0}));
  EXPECT_EQ(parse_kernel_version("6.12"), (KernelVersion{6, 12, 0}));
  EXPECT_EQ(parse_kernel_version("7.0-rc1"), (KernelVersion{7, 0, 0}));
  for (const char* bad : {"", "6", "x.y", "6.", "6.x", ".1"}) EXPECT_EQ(parse_kernel_version(bad), std::nullopt) << bad;
  EXPECT_LT((KernelVersion{6, 4, 16}), (KernelVersion{6, 10, 0}));
  EXPECT_EQ((KernelVersion{6, 10, 0}).text(), "6.10");
  EXPECT_EQ((KernelVersion{6, 10, 3}).text(), "6.10.3");
  EXPECT_TRUE(running_kernel());
}

TEST(Clock, FakeStandsStillAndWallCanJumpAlone) {
  FakeClock clock;
  const auto start = clock.monotonic_ns();
  EXPECT_EQ(clock.monotonic_ns(), start);
  const auto wall = clock.wall_ns();
  clock.advance_ns(5);
  clock.jump_wall_ns(-100);
  EXPECT_EQ(clock.monotonic_ns(), start + 5);
  EXPECT_EQ(clock.wall_ns(), wall - 95);
}

TEST(Clock, RealMonotonicIsTheKernelsClock) {
  timespec before{}, after{};
  ::clock_gettime(CLOCK_MONOTONIC, &before);
  const std::uint64_t now = RealClock().monotonic_ns();
  ::clock_gettime(CLOCK_MONOTONIC, &after);
  auto ns = [](const timespec& t) {
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
  };
  EXPECT_LE(ns(before), now);
  EXPECT_LE(now, ns(after));
}

TEST(Random, SplitMix64AndXoshiroMatchPublishedOutputs) {
  std::uint64_t state = 1234567;
  EXPECT_EQ(split_mix64(state), 6457827717110365317U);
  EXPECT_EQ(split_mix64(state), 3203168211198807973U);
  SeededRandom random(0);
  EXPECT_EQ(random.next(), 0x99ec5f36cb75f2b4U);
  EXPECT_EQ(random.next(), 0xbf6e1f784956452aU);
  EXPECT_EQ(random.next(), 0x1a5f849d4933e6e0U);
}

TEST(Random, BelowIsUniformAndSeedsRepeat) {
  SeededRandom random(7);
  std::map<std::uint64_t, int> seen;
  for (int i = 0; i < 60'000; i++) seen[random.below(6)]++;
  ASSERT_EQ(seen.size(), 6U);
  for (auto [value, count] : seen) EXPECT_NEAR(count, 10'000, 500) << value;  // five standard deviations
  SeededRandom a(42), b(42), c(43);
  EXPECT_EQ(a.next(), b.next());
  EXPECT_NE(a.next(), c.next());
  for (int i = 0; i < 1000; i++) {
    const auto value = a.between(10, 12);
    EXPECT_TRUE(value >= 10 && value <= 12);
    const double unit = a.unit();
    EXPECT_TRUE(unit >= 0 && unit < 1);
  }
  EXPECT_FALSE(a.chance(0));
  EXPECT_TRUE(a.chance(1));
  OsRandom os;
  EXPECT_NE(os.next(), os.next());
}

TEST(Hash, Fnv1aMatchesPublishedValues) {
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325U);
  EXPECT_EQ(fnv1a64("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171f73967e8U);
  EXPECT_EQ(fnv1a64("bar", fnv1a64("foo")), fnv1a64("foobar"));
  EXPECT_EQ(fnv1a64(std::uint64_t{'a'}, kFnvOffset), fnv1a64(std::string_view("a\0\0\0\0\0\0\0", 8)));
}

constexpr std::string_view kHybrid =
    "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
    "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    "bpf /mnt/with\\040space\\134 bpf rw,mode=700 0 0\n"
    "short line\n";

TEST(Mounts, EscapesAreUndoneAndShortLinesSkipped) {
  auto mounts = parse_mounts(kHybrid);
  ASSERT_EQ(mounts.size(), 4U);
  EXPECT_EQ(mounts[3].target, "/mnt/with space\\");
  EXPECT_EQ(mounts[3].type, "bpf");
  EXPECT_EQ(mounts[3].options, "rw,mode=700");
}

TEST(Mounts, CgroupModes) {
  auto mode = [](std::string_view text) { return cgroup_mounts(parse_mounts(text)); };
  EXPECT_EQ(mode(kHybrid).mode, CgroupMode::kHybrid);
  EXPECT_EQ(mode(kHybrid).cgroup2, "/sys/fs/cgroup/unified");
  EXPECT_EQ(mode("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0").mode, CgroupMode::kUnified);
  EXPECT_EQ(mode("cgroup /sys/fs/cgroup/cpu cgroup rw 0 0").mode, CgroupMode::kV1);
  EXPECT_EQ(mode("").mode, CgroupMode::kNone);
}

TEST(Mounts, MountinfoWithAndWithoutOptionalFields) {
  auto mounts = parse_mountinfo(
      "36 35 0:4 net:[4026532281] /run/netns/blue\\040sky rw shared:12 master:1 - nsfs nsfs rw\n"
      "37 35 98:0 / /mnt rw,noatime - ext4 /dev/root rw\n"
      "cut - nsfs\n");
  ASSERT_EQ(mounts.size(), 2U);
  EXPECT_EQ(mounts[0].root, "net:[4026532281]");
  EXPECT_EQ(mounts[0].target, "/run/netns/blue sky");
  EXPECT_EQ(mounts[0].type, "nsfs");
  EXPECT_EQ(mounts[1].type, "ext4");
}

class Log : public testing::Test {
 protected:
  void start(LogFormat format, LogLevel level = LogLevel::kInfo) {
    LogOptions options;
    options.level = level;
    options.format = format;
    options.sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(out_);
    init_log(options);
  }
  void TearDown() override { init_log({}); }
  std::ostringstream out_;
};

TEST_F(Log, TextIsKeyValueWithQuotesWhereNeeded) {
  start(LogFormat::kText);
  log_info("policy applied", {{"rules", 12U}, {"file", "a b"}, {"ok", true}, {"share", 0.5}, {"delta", -3}});
  EXPECT_THAT(out_.str(), HasSubstr(R"(info    policy applied rules=12 file="a b" ok=true share=0.5 delta=-3)"));
}

TEST_F(Log, JsonIsOneObjectALineAndKeepsPercentSigns) {
  start(LogFormat::kJson);
  log_warning("100%v full", {{"path", "x\ny"}, {"n", std::uint64_t{1} << 63}});
  const std::string line = out_.str();
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_THAT(line, HasSubstr(R"("level":"warning","message":"100%v full","path":"x\ny","n":9223372036854775808})"));
  EXPECT_THAT(line, testing::StartsWith(R"({"time":")"));
}

TEST_F(Log, LevelsFilterAndErrorsCarryCodeAndMessage) {
  start(LogFormat::kJson, LogLevel::kError);
  log_debug("no");
  log_info("no");
  log_warning("no");
  EXPECT_EQ(out_.str(), "");
  log_error("apply failed", fail(Code::kConflict, "busy").value().at("hook"), {{"step", 3}});
  EXPECT_THAT(out_.str(), HasSubstr(R"("message":"apply failed","step":3,"code":"conflict","error":"hook: busy"})"));
  EXPECT_EQ(parse_log_level("debug").value(), LogLevel::kDebug);
  EXPECT_EQ(parse_log_level("loud").error().code, Code::kInvalid);
}

}  // namespace
}  // namespace sluice
