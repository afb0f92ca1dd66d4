// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The database of an older release in the hands of today's agent, and the other way round. data/state-1.sql is what an agent of
// format 1 left when it died in the middle of a rollback. It stays as it is; a new format gets a file of its own:
//
//   SLUICE_WRITE_STATE=tests/sim/data/state-N.sql build/release/bin/agent_state_test
#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "agent/sqlite_store.h"
#include "base/file.h"
#include "base/log.h"
#include "sim_host.h"

namespace sluice::sim {
namespace {

namespace fs = std::filesystem;
using agent::SqliteStore;
using nlohmann::json;
using testing::HasSubstr;

const std::string kGolden = SLUICE_SOURCE_DIR "/tests/sim/data/state-1.sql";
constexpr char kBundlesMark[] = "@BUNDLES@";  // instead of the folder of this run's bundles
constexpr uint64_t kSeed = 20261130;
constexpr uint64_t kDeathAt = 6;  // point of the rollback: begun, not published

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) text.replace(at, what.size(), with);
  return text;
}

std::vector<std::string> column(SQLite::Database& database, const std::string& query) {
  std::vector<std::string> values;
  for (SQLite::Statement rows(database, query); rows.executeStep();) values.push_back(rows.getColumn(0).getString());
  return values;
}
std::vector<std::string> tables(SQLite::Database& database) {
  return column(database, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name");
}
std::string columns(SQLite::Database& database, const std::string& table) {
  std::string list;
  for (const auto& name : column(database, "SELECT name || ' ' || type FROM pragma_table_info('" + table + "')"))
    list += name + ", ";
  return list;
}

// The whole database as SQL.
std::string dump(const std::string& path) {
  SQLite::Database database(path, SQLite::OPEN_READWRITE);
  std::string text = fmt::format("PRAGMA user_version={};\n", database.execAndGet("PRAGMA user_version").getInt());
  auto all = tables(database);
  for (const auto& sql : column(database, "SELECT sql FROM sqlite_master WHERE sql NOT NULL AND name NOT LIKE 'sqlite_%'"))
    text += sql + ";\n";
  all.emplace_back("sqlite_sequence");
  for (const auto& table : all) {
    std::string values;
    for (const auto& name : column(database, "SELECT name FROM pragma_table_info('" + table + "')"))
      values += (values.empty() ? "quote(" : " || ', ' || quote(") + name + ")";
    if (table == "sqlite_sequence") text += "DELETE FROM sqlite_sequence;\n";
    for (const auto& row : column(database, "SELECT " + values + " FROM " + table))
      text += fmt::format("INSERT INTO {} VALUES ({});\n", table, row);
  }
  return text;
}

class AgentState : public testing::Test {
 protected:
  void SetUp() override {
    init_log({LogLevel::kOff, LogFormat::kText, nullptr});
    std::string pattern = testing::TempDir() + "sluice-state-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string golden() const {
    const auto text = read_file(kGolden);
    EXPECT_TRUE(text) << text.error().message();
    return replaced(text.value_or(""), kBundlesMark, bundles_.root());
  }
  std::string write_golden(const std::string& name) const {
    SQLite::Database(path(name), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE).exec(golden());
    return path(name);
  }
  static std::unique_ptr<SqliteStore> open(const std::string& path) {
    auto store = SqliteStore::open(path);
    EXPECT_TRUE(store) << store.error().message();
    return store ? std::move(*store) : nullptr;
  }

  // Two policies, a probe, and a rollback that the agent does not survive.
  static void live_and_die(Host& host) {
    ASSERT_TRUE(host.start());
    ASSERT_TRUE(host.run(Op::kApplyFirst));
    ASSERT_TRUE(host.run(Op::kApplySecond));
    ASSERT_TRUE(host.used_store_->put_ecn({"10.2.0.7", 443, 0, "us", host.clock.wall_ns(), "report"}));
    host.chaos.arm(Chaos::Mode::kCrash, kDeathAt);
    EXPECT_THROW((void)host.run(Op::kRollback), SimCrash);
    host.engine.reset();
  }

  // An agent on what `host` holds finds its policy, and what is told of it, as it was.
  static void expect_taken_up(Host& host) {
    const auto started = host.start();
    ASSERT_TRUE(started) << started.error().message();
    expect_state(host, State::kSecond, "taken up");
    const auto open = host.used_store_->open_transaction();
    ASSERT_TRUE(open) << open.error().message();
    EXPECT_FALSE(open->has_value()) << "the rollback cut short is not settled";
    const auto status = agent::status_report(*host.engine, false);
    ASSERT_TRUE(status) << status.error().message();
    EXPECT_EQ(status->state(), "active") << (status->problems_size() > 0 ? status->problems(0) : "");
    EXPECT_EQ(status->revision(), 2u);
    EXPECT_EQ(host.engine->view()->desired.document, kSecondPolicy);
    EXPECT_EQ(host.engine->view()->desired.source_name, "policy.yaml");
    EXPECT_EQ(host.engine->view()->desired.saved_sysctls.at("net.ipv4.tcp_ecn"), "2");
    const auto events = host.used_store_->events(0, 3);
    ASSERT_TRUE(events);
    EXPECT_GE(events->back().id, 3u);  // numbers go on
    const auto all = host.used_store_->events(0, 1000);
    ASSERT_TRUE(all);
    EXPECT_THAT(all->front().message, HasSubstr("revision 1 in force as generation 1"));
    const auto ecn = host.used_store_->ecn("10.2.0.7", "us", host.clock.wall_ns());
    ASSERT_TRUE(ecn);
    ASSERT_EQ(ecn->size(), 1u);
    EXPECT_EQ(ecn->front().report, "report");
    // And it goes on from there.
    ASSERT_TRUE(host.run(Op::kRollback));
    expect_state(host, State::kRolledBack, "rolled back");
    ASSERT_TRUE(host.run(Op::kDown));
    expect_state(host, State::kNone, "down");
  }

  Bundles bundles_;
  std::string folder_;
};

TEST_F(AgentState, what_an_older_release_left_is_taken_up_after_a_reboot) {
  const auto store = open(write_golden("agent.db"));
  ASSERT_NE(store, nullptr);
  Host host(bundles_, kSeed, store.get());
  expect_taken_up(host);
}

TEST_F(AgentState, what_an_older_release_left_is_taken_up_with_what_it_left_in_the_kernel) {
  const auto before = open(path("before.db"));
  ASSERT_NE(before, nullptr);
  Host host(bundles_, kSeed, before.get());
  ASSERT_NO_FATAL_FAILURE(live_and_die(host));
  const auto store = open(write_golden("agent.db"));
  ASSERT_NE(store, nullptr);
  host.used_store_ = store.get();
  expect_taken_up(host);
}

// Within a format an older agent reads what a newer one wrote: the tables and members it knows are there, of the same type.
TEST_F(AgentState, what_todays_agent_writes_an_older_release_of_the_format_can_read) {
  {
    const auto store = open(path("today.db"));
    ASSERT_NE(store, nullptr);
    Host host(bundles_, kSeed, store.get());
    ASSERT_NO_FATAL_FAILURE(live_and_die(host));
  }
  if (const char* target = std::getenv("SLUICE_WRITE_STATE")) {
    std::ofstream(target) << "-- SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause\n"
                          << replaced(dump(path("today.db")), bundles_.root(), kBundlesMark);
    return;
  }
  SQLite::Database old(write_golden("golden.db"), SQLite::OPEN_READWRITE);
  SQLite::Database today(path("today.db"), SQLite::OPEN_READWRITE);
  ASSERT_EQ(today.execAndGet("PRAGMA user_version").getInt(), old.execAndGet("PRAGMA user_version").getInt())
      << "a new format: keep the old data, write the new, and say in docs/operating/upgrade.md how one becomes the other";
  for (const auto& table : tables(old)) EXPECT_EQ(columns(today, table), columns(old, table)) << table;
  const std::function<void(const json&, const json&, const std::string&)> expect_members =
      [&](const json& now, const json& then, const std::string& where) {
        ASSERT_EQ(now.type(), then.type()) << where;
        if (!then.is_structured()) return;
        for (const auto& [key, value] : then.items()) {
          if (then.is_array()) {
            if (!now.empty()) expect_members(now[0], then[0], where + "[0]");
            return;
          }
          ASSERT_TRUE(now.contains(key)) << where << "." << key;
          expect_members(now[key], value, where + "." + key);
        }
      };
  for (const char* query : {"SELECT state FROM desired", "SELECT txn FROM journal"}) {
    const auto now = column(today, query), then = column(old, query);
    ASSERT_EQ(now.size(), 1u) << query;
    ASSERT_EQ(then.size(), 1u) << query;
    expect_members(json::parse(now[0]), json::parse(then[0]), query);
  }
}

TEST_F(AgentState, a_database_of_a_newer_format_is_refused_and_stays_as_it_is) {
  // As a killed agent leaves it: the newest pages are in the log beside it.
  const std::string file = write_golden("agent.db");
  SQLite::Database newer(file, SQLite::OPEN_READWRITE);
  newer.exec("PRAGMA journal_mode=WAL; CREATE TABLE later (x); PRAGMA user_version=2;");
  const std::string copy = path("copy.db");
  for (const char* suffix : {"", "-wal"}) fs::copy_file(file + suffix, copy + suffix);
  const auto bytes = [&](const std::string& suffix) { return read_file(copy + suffix).value_or("(gone)"); };
  const std::string before = bytes(""), wal_before = bytes("-wal");
  ASSERT_FALSE(wal_before.empty());

  const auto refused = SqliteStore::open(copy);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kConflict);
  EXPECT_EQ(refused.error().where, copy);
  EXPECT_THAT(refused.error().what, testing::AllOf(HasSubstr("format 2"), HasSubstr("format 1")));
  EXPECT_THAT(refused.error().remedy, HasSubstr("sluice down"));
  EXPECT_EQ(bytes(""), before);
  EXPECT_EQ(bytes("-wal"), wal_before);
}

}  // namespace
}  // namespace sluice::sim
