// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The agent's state in SQLite: what is there is read back, what a damaged file holds is refused.
#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "agent/sqlite_store.h"

namespace sluice::agent {
namespace {

class StateFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "sluice-store-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    auto opened = SqliteStore::open(path());
    ASSERT_TRUE(opened) << opened.error().message();
    store_ = std::move(*opened);
  }
  void TearDown() override {
    store_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string path() const { return folder_ + "/agent.db"; }
  void damage(const std::string& statement) {
    SQLite::Database database(path(), SQLite::OPEN_READWRITE);
    ASSERT_EQ(database.exec(statement), 1);
  }

  std::string folder_;
  std::unique_ptr<SqliteStore> store_;
};

TEST_F(StateFile, a_journal_that_began_more_steps_than_it_has_is_refused) {
  Transaction transaction;
  transaction.kind = "apply";
  transaction.steps.emplace_back().kind = StepKind::kLoadPolicy;
  const auto id = store_->begin(transaction);
  ASSERT_TRUE(id) << id.error().message();
  ASSERT_TRUE(store_->started(*id, 1));
  const auto open = store_->open_transaction();
  ASSERT_TRUE(open) << open.error().message();
  EXPECT_EQ((*open)->started, 1u);

  for (const char* started : {"2", "-1"}) {
    damage(std::string("UPDATE journal SET started = ") + started);
    const auto refused = store_->open_transaction();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kCorrupt);
    EXPECT_THAT(refused.error().remedy, testing::HasSubstr("--reset-state"));
  }
}

TEST_F(StateFile, a_number_that_is_none_of_ours_is_refused) {
  Desired desired;
  desired.revision = 7;
  const auto id = store_->begin({});
  ASSERT_TRUE(id) << id.error().message();
  ASSERT_TRUE(store_->finish(*id, desired));
  const auto read = store_->desired();
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->revision, 7u);
  for (const char* number : {"1e300", "-1", "7.5"}) {
    damage(std::string("UPDATE desired SET state = replace(state, '\"revision\":7', '\"revision\":") + number + "')");
    const auto refused = store_->desired();
    ASSERT_FALSE(refused) << number;
    EXPECT_EQ(refused.error().code, Code::kCorrupt);
    ASSERT_TRUE(store_->finish(*id, desired));
  }
}

TEST_F(StateFile, events_begin_behind_the_number_asked_for) {
  for (int i = 0; i < 3; ++i) {
    EventRecord event;
    event.kind = "applied";
    ASSERT_TRUE(store_->add_event(event));
  }
  const auto count = [&](uint64_t after) {
    const auto events = store_->events(after, 10);
    return events ? events->size() : 99;
  };
  EXPECT_EQ(count(0), 3u);
  EXPECT_EQ(count(2), 1u);
  EXPECT_EQ(count(std::numeric_limits<uint64_t>::max()), 0u);
}

}  // namespace
}  // namespace sluice::agent
