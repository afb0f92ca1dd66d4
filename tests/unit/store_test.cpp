// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What the agent's database keeps of probed paths, within which bounds, and how a database of an agent that knew none is taken
// up and given back.
#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "agent/sqlite_store.h"

namespace sluice::agent {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

constexpr int64_t kNow = 1'700'000'000'000'000'000, kSecond = 1'000'000'000;

class StoreTest : public testing::Test {
 protected:
  StoreTest() {
    std::string pattern = testing::TempDir() + "sluice-store-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~StoreTest() override { fs::remove_all(folder_); }

  std::string path() const { return folder_ + "/agent.db"; }
  std::unique_ptr<SqliteStore> open() {
    auto store = SqliteStore::open(path());
    EXPECT_TRUE(store.has_value()) << store.error().message();
    return std::move(*store);
  }
  static std::vector<std::string> reports(Store& store, const std::string& destination, const std::string& place,
                                          int64_t now = kNow) {
    const auto records = store.ecn(destination, place, now);
    EXPECT_TRUE(records.has_value());
    std::vector<std::string> list;
    for (const auto& record : *records) list.push_back(record.report);
    return list;
  }

  std::string folder_;
};

TEST_F(StoreTest, KeepsTheNewestProbeOfADestinationPortAndDscp) {
  const std::string bytes("\0first\xff", 7);  // a report is bytes, not text
  {
    const auto store = open();
    ASSERT_TRUE(store->put_ecn({"10.2.0.2", 443, 0, "us", kNow, bytes}));
    ASSERT_TRUE(store->put_ecn({"10.2.0.2", 22, 0, "us", kNow + 1, "second"}));
    ASSERT_TRUE(store->put_ecn({"10.2.0.2", 443, 46, "us", kNow + 2, "third"}));
    ASSERT_TRUE(store->put_ecn({"fd00::1", 443, 0, "eu/eu1", kNow + 3, "fourth"}));
  }
  const auto store = open();
  EXPECT_THAT(reports(*store, "", ""), ElementsAre("fourth", "third", "second", bytes));
  EXPECT_THAT(reports(*store, "10.2.0.2", ""), ElementsAre("third", "second", bytes));
  EXPECT_THAT(reports(*store, "", "eu/eu1"), ElementsAre("fourth"));
  EXPECT_THAT(reports(*store, "", "eu"), ElementsAre());
  ASSERT_TRUE(store->put_ecn({"10.2.0.2", 443, 0, "eu", kNow + 4, "fifth"}));
  EXPECT_THAT(reports(*store, "", ""), ElementsAre("fifth", "fourth", "third", "second"));
  const auto record = store->ecn("10.2.0.2", "eu", kNow);
  ASSERT_TRUE(record.has_value());
  ASSERT_EQ(record->size(), 1U);
  EXPECT_EQ(record->front().port, 443U);
  EXPECT_EQ(record->front().dscp, 0U);
  EXPECT_EQ(record->front().place, "eu");
  EXPECT_EQ(record->front().time_ns, kNow + 4);
}

TEST_F(StoreTest, ProbesAndEventsKeepTheirOrderWhenTheWallClockIsSet) {
  constexpr int64_t kDay = 86'400 * kSecond;
  const auto store = open();
  std::vector<std::string> order;
  for (const int64_t time : {kNow, kNow - kDay, kNow + kDay, kNow - 2 * kDay}) {
    const std::string number = std::to_string(time);
    ASSERT_TRUE(store->put_ecn({"10.2.0.2", 1, static_cast<uint32_t>(order.size()), "us", time, number}));
    order.push_back(number);
    ASSERT_TRUE(store->add_event({0, time, "applied", "info", number}));
  }
  const auto events = store->events(0, 10);
  ASSERT_TRUE(events.has_value());
  std::vector<std::string> told;
  for (const auto& event : *events) told.push_back(event.message);
  EXPECT_EQ(told, order);
  std::ranges::reverse(order);
  EXPECT_EQ(reports(*store, "", ""), order);
  // Too many: the first that came goes, whatever time it says.
  for (uint32_t port = 2; port < 2 + Store::kEcnRecordsMax - 3; ++port)
    ASSERT_TRUE(store->put_ecn({"10.3.0.1", port, 0, "", kNow - 2 * kDay, "filler"}));
  const auto kept = reports(*store, "", "");
  EXPECT_EQ(std::ranges::count(kept, std::to_string(kNow)), 0);
  EXPECT_EQ(kept.back(), std::to_string(kNow - kDay));
}

TEST_F(StoreTest, ForgetsProbesThatAreTooOld) {
  const auto store = open();
  ASSERT_TRUE(store->put_ecn({"10.2.0.2", 1, 0, "", kNow, "old"}));
  EXPECT_THAT(reports(*store, "", "", kNow + Store::kEcnAgeMax_ns), ElementsAre("old"));
  EXPECT_THAT(reports(*store, "", "", kNow + Store::kEcnAgeMax_ns + 1), ElementsAre());
  ASSERT_TRUE(store->put_ecn({"10.2.0.3", 1, 0, "", kNow + Store::kEcnAgeMax_ns + 1, "new"}));
  EXPECT_THAT(reports(*store, "", "", kNow), ElementsAre("new"));  // the old one is gone, not only hidden
}

TEST_F(StoreTest, KeepsABoundedNumberOfProbes) {
  const auto store = open();
  for (int i = 0; i < Store::kEcnRecordsMax + 5; ++i)
    ASSERT_TRUE(store->put_ecn({fmt::format("fd00::{:x}", i + 1), 443, 0, "", kNow + i * kSecond, std::to_string(i)}));
  const auto kept = reports(*store, "", "", kNow);
  ASSERT_EQ(kept.size(), static_cast<size_t>(Store::kEcnRecordsMax));
  EXPECT_EQ(kept.front(), std::to_string(Store::kEcnRecordsMax + 4));
  EXPECT_EQ(kept.back(), "5");
}

// The format of 0.1: an agent of that version opens what this one writes, because what came since is beside it.
TEST_F(StoreTest, TakesUpADatabaseWithoutProbesAndLeavesItReadable) {
  constexpr int kFormat = 1;
  {
    SQLite::Database old(path(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    old.exec(
        "CREATE TABLE desired (only INTEGER PRIMARY KEY CHECK (only = 1), state TEXT NOT NULL);"
        "CREATE TABLE journal (id INTEGER PRIMARY KEY AUTOINCREMENT, txn TEXT NOT NULL, started INTEGER NOT NULL DEFAULT 0);"
        "CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, time_ns INTEGER NOT NULL, kind TEXT NOT NULL,"
        "                     severity TEXT NOT NULL, message TEXT NOT NULL);"
        "INSERT INTO events (time_ns, kind, severity, message) VALUES (5, 'started', 'info', 'before');");
    old.exec(fmt::format("PRAGMA user_version={}", kFormat));
  }
  {
    const auto store = open();
    ASSERT_TRUE(store->put_ecn({"10.2.0.2", 443, 0, "us", kNow, "report"}));
    const auto events = store->events(0, 10);
    ASSERT_TRUE(events.has_value());
    ASSERT_EQ(events->size(), 1U);
    EXPECT_EQ(events->front().message, "before");
  }
  SQLite::Database raw(path(), SQLite::OPEN_READONLY);
  EXPECT_EQ(raw.execAndGet("PRAGMA user_version").getInt(), kFormat);
  EXPECT_THAT(reports(*open(), "", ""), ElementsAre("report"));
}

}  // namespace
}  // namespace sluice::agent
