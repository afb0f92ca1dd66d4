// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What a privileged test needs to leave nothing behind: a network namespace that is nothing but a descriptor, a bpffs in a
// mount namespace of the process, a cgroup that removes itself.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "net/cgroup.h"

namespace sluice::test {

inline UniqueFd scratch_netns() {
  UniqueFd fd;
  std::thread([&fd] {
    if (::unshare(CLONE_NEWNET) == 0) fd.reset(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  }).join();
  EXPECT_TRUE(fd.valid()) << std::strerror(errno);
  return fd;
}

// A folder with a bpffs at bpffs(), in mounts that only this process sees: they end with it.
class PrivateMounts : public testing::Environment {
 public:
  static const std::string& dir() { return place(); }
  static std::string bpffs() { return dir() + "/bpf"; }

  void SetUp() override {
    ASSERT_EQ(::geteuid(), 0U) << "this test needs root";
    std::string pattern = testing::TempDir() + "sluice-mounts-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    place() = pattern;
    std::filesystem::create_directory(bpffs());
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0) << std::strerror(errno);
    ASSERT_EQ(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0) << std::strerror(errno);
    ASSERT_EQ(::mount("bpf", bpffs().c_str(), "bpf", 0, nullptr), 0) << std::strerror(errno);
  }
  void TearDown() override {
    ::umount2(bpffs().c_str(), MNT_DETACH);
    std::filesystem::remove_all(dir());
  }

 private:
  static std::string& place() {
    static std::string path;
    return path;
  }
};

class ScratchCgroup {
 public:
  explicit ScratchCgroup(const std::string& name) {
    auto root = net::find_cgroup2();
    EXPECT_TRUE(root) << root.error().message();
    path_ = root.value_or("") + "/sluice-" + name + "-" + std::to_string(::getpid());
    EXPECT_TRUE(std::filesystem::create_directory(path_));
    fd_.reset(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~ScratchCgroup() { EXPECT_EQ(::rmdir(path_.c_str()), 0) << path_ << ": " << std::strerror(errno); }
  ScratchCgroup(const ScratchCgroup&) = delete;
  ScratchCgroup& operator=(const ScratchCgroup&) = delete;
  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }

 private:
  std::string path_;
  UniqueFd fd_;
};

}  // namespace sluice::test
