// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The agent's database on a disk that hangs: SQLite's own file layer, with an fsync that does not return until the test lets
// it. What only reads is answered meanwhile.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "agent/sqlite_store.h"

namespace sluice::agent {
namespace {

// The default file layer of SQLite with one method replaced.
class HangingDisk {
 public:
  static HangingDisk& instance() {
    static HangingDisk disk;
    return disk;
  }
  void hang(bool on) {
    const std::lock_guard lock(mutex_);
    hang_ = on;
    changed_.notify_all();
  }
  void wait_until_it_hangs() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return hanging_ > 0; });
  }

 private:
  HangingDisk() : base_(sqlite3_vfs_find(nullptr)), vfs_(*base_) {
    vfs_.zName = "hanging";
    vfs_.xOpen = [](sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out) {
      HangingDisk& disk = instance();
      const int status = disk.base_->xOpen(disk.base_, name, file, flags, out);
      if (status != SQLITE_OK || file->pMethods == nullptr) return status;
      // Databases and logs have methods of their own; they share one fsync.
      const std::lock_guard lock(disk.mutex_);
      disk.sync_ = file->pMethods->xSync;
      auto [methods, fresh] = disk.methods_.try_emplace(file->pMethods, *file->pMethods);
      methods->second.xSync = [](sqlite3_file* synced, int how) {
        instance().pass();
        return instance().sync_(synced, how);
      };
      file->pMethods = &methods->second;
      return status;
    };
    sqlite3_vfs_register(&vfs_, 1);
  }
  ~HangingDisk() { sqlite3_vfs_unregister(&vfs_); }

  void pass() {
    std::unique_lock lock(mutex_);
    ++hanging_;
    if (hang_) changed_.notify_all();
    changed_.wait(lock, [&] { return !hang_; });
    --hanging_;
  }

  sqlite3_vfs* base_;
  sqlite3_vfs vfs_;
  std::map<const sqlite3_io_methods*, sqlite3_io_methods> methods_;
  int (*sync_)(sqlite3_file*, int) = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool hang_ = false;
  int hanging_ = 0;
};

TEST(StoreOnASlowDisk, EventsAndProbesAreReadWhileAWriteHangs) {
  HangingDisk& disk = HangingDisk::instance();
  std::string folder = testing::TempDir() + "sluice-disk-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  {
    auto store = SqliteStore::open(folder + "/agent.db");
    ASSERT_TRUE(store) << store.error().message();
    ASSERT_TRUE((*store)->add_event({0, 1, "applied", "info", "before"}));
    ASSERT_TRUE((*store)->put_ecn({"10.2.0.2", 443, 0, "us", 1, "report"}));
    disk.hang(true);
    Status written;
    std::thread writer([&] { written = (*store)->add_event({0, 2, "applied", "info", "meanwhile"}); });
    disk.wait_until_it_hangs();
    const auto events = (*store)->events(0, 10);
    const auto probes = (*store)->ecn("", "", 1);
    disk.hang(false);
    writer.join();
    ASSERT_TRUE(events) << events.error().message();
    ASSERT_TRUE(probes) << probes.error().message();
    EXPECT_EQ(events->size(), 1u);  // what hangs is not yet there
    EXPECT_EQ(probes->size(), 1u);
    ASSERT_TRUE(written) << written.error().message();
    const auto after = (*store)->events(0, 10);
    ASSERT_TRUE(after);
    EXPECT_EQ(after->size(), 2u);
    EXPECT_EQ(after->back().message, "meanwhile");
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace sluice::agent
