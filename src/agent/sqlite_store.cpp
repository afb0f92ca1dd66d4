// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/sqlite_store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <sqlite3.h>

#include <algorithm>
#include <filesystem>

namespace sluice::agent {
namespace {

constexpr int kSchemaVersion = 1;
constexpr int kBusyTimeoutMs = 2'000;

constexpr char kSchema[] = R"(
CREATE TABLE desired (only INTEGER PRIMARY KEY CHECK (only = 1), state TEXT NOT NULL);
CREATE TABLE journal (id INTEGER PRIMARY KEY AUTOINCREMENT, txn TEXT NOT NULL, started INTEGER NOT NULL DEFAULT 0);
CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, time_ns INTEGER NOT NULL, kind TEXT NOT NULL,
                     severity TEXT NOT NULL, message TEXT NOT NULL);
)";

// What came since, without a new format: an agent that does not know these tables can read the rest, and leaves them alone.
constexpr char kAdditions[] = R"(
CREATE TABLE IF NOT EXISTS ecn (destination TEXT NOT NULL, port INTEGER NOT NULL, dscp INTEGER NOT NULL, place TEXT NOT NULL,
                                time_ns INTEGER NOT NULL, report BLOB NOT NULL, PRIMARY KEY (destination, port, dscp));
)";

constexpr char kResetRemedy[] =
    "connections are not affected; start once with `sluiced --reset-state` (the file is kept beside, with a .corrupt suffix), "
    "then `sluice apply` your policy again";

// SQLiteCpp throws; this is the file where its exceptions end.
tl::unexpected<Error> sqlite_error(const SQLite::Exception& e, const std::string& path) {
  Error error;
  error.where = path;
  error.what = fmt::format("the state database failed: {}", e.what());
  switch (e.getErrorCode()) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      error.code = Code::kCorrupt;
      error.remedy = kResetRemedy;
      break;
    case SQLITE_FULL:
    case SQLITE_IOERR:
      error.code = Code::kExhausted;
      error.remedy = "free space on the file system that holds the state database, then repeat the command";
      break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      error.code = Code::kConflict;
      error.remedy = "another process holds the database: is a second agent running for this instance?";
      break;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
      error.code = Code::kPermission;
      error.remedy = "the agent needs a writable state folder: run it as root, or give --state-dir";
      break;
    default:
      error.code = Code::kInternal;
  }
  return fail(std::move(error));
}

}  // namespace

template <class F>
auto SqliteStore::guarded(F&& body) -> decltype(body()) {
  const std::lock_guard lock(mutex_);
  try {
    return body();
  } catch (const SQLite::Exception& e) {
    return sqlite_error(e, path_);
  }
}

tl::unexpected<Error> SqliteStore::corrupt(Error error) const {
  error.remedy = kResetRemedy;
  return fail(std::move(error).at(path_));
}

SqliteStore::SqliteStore(std::string path, std::unique_ptr<SQLite::Database> database)
    : path_(std::move(path)), database_(std::move(database)) {}
SqliteStore::~SqliteStore() = default;

Result<std::unique_ptr<SqliteStore>> SqliteStore::open(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  const fs::path folder = fs::path(path).parent_path();
  if (fs::create_directories(folder, ec)) fs::permissions(folder, fs::perms::owner_all, ec);
  if (ec) {
    auto error = fail_errno(ec.value(), "cannot create the state folder").value().at(folder.string());
    return fail(std::move(error).fix("run the agent as root, or give --state-dir"));
  }
  try {
    auto database = std::make_unique<SQLite::Database>(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE, kBusyTimeoutMs);
    database->exec("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;");
    if (const std::string check = database->execAndGet("PRAGMA quick_check(1)").getString(); check != "ok")
      throw SQLite::Exception(check, SQLITE_CORRUPT);
    const int version = database->execAndGet("PRAGMA user_version").getInt();
    if (version == 0) {
      SQLite::Transaction transaction(*database);
      database->exec(kSchema);
      database->exec(fmt::format("PRAGMA user_version={}", kSchemaVersion));
      transaction.commit();
    } else if (version != kSchemaVersion) {
      Error error;
      error.code = Code::kConflict;
      error.where = path;
      error.what = fmt::format("the state database has format {}, this agent writes format {}", version, kSchemaVersion);
      error.remedy = version > kSchemaVersion ? "install the newer agent that wrote it, or start with --reset-state"
                                              : "start with --reset-state and apply the policy again";
      return fail(std::move(error));
    }
    database->exec(kAdditions);
    return std::unique_ptr<SqliteStore>(new SqliteStore(path, std::move(database)));
  } catch (const SQLite::Exception& e) {
    return sqlite_error(e, path);
  }
}

Result<Desired> SqliteStore::desired() {
  return guarded([&]() -> Result<Desired> {
    SQLite::Statement query(*database_, "SELECT state FROM desired");
    if (!query.executeStep()) return Desired{};
    auto parsed = Desired::from_json(query.getColumn(0).getString());
    if (!parsed) return corrupt(std::move(parsed).error());
    return std::move(*parsed);
  });
}

Result<std::optional<Transaction>> SqliteStore::open_transaction() {
  return guarded([&]() -> Result<std::optional<Transaction>> {
    SQLite::Statement query(*database_, "SELECT id, txn, started FROM journal ORDER BY id DESC LIMIT 1");
    if (!query.executeStep()) return std::nullopt;
    auto parsed = Transaction::from_json(query.getColumn(1).getString());
    if (!parsed) return corrupt(std::move(parsed).error());
    Transaction transaction = std::move(*parsed);
    transaction.id = query.getColumn(0).getInt64();
    transaction.started = static_cast<size_t>(query.getColumn(2).getInt64());
    if (transaction.started > transaction.steps.size())
      return corrupt(
          fail(Code::kCorrupt, "the journal says that {} of {} steps began", transaction.started, transaction.steps.size())
              .value());
    return std::optional<Transaction>(std::move(transaction));
  });
}

Result<int64_t> SqliteStore::begin(const Transaction& transaction) {
  return guarded([&]() -> Result<int64_t> {
    SQLite::Transaction commit(*database_);
    if (database_->execAndGet("SELECT count(*) FROM journal").getInt() != 0)
      return fail(make_error(Code::kConflict, "an earlier change was not brought to its end",
                             "see `sluice events`; the agent ends it when it is started again")
                      .at(path_));
    SQLite::Statement insert(*database_, "INSERT INTO journal (txn) VALUES (?)");
    insert.bind(1, transaction.to_json());
    insert.exec();
    const int64_t id = database_->getLastInsertRowid();
    commit.commit();
    return id;
  });
}

Status SqliteStore::started(int64_t id, size_t steps) {
  return guarded([&]() -> Status {
    SQLite::Statement update(*database_, "UPDATE journal SET started = ? WHERE id = ?");
    update.bind(1, static_cast<int64_t>(steps));
    update.bind(2, id);
    update.exec();
    return {};
  });
}

Status SqliteStore::finish(int64_t id, const Desired& desired) {
  return guarded([&]() -> Status {
    SQLite::Transaction commit(*database_);
    SQLite::Statement erase(*database_, "DELETE FROM journal WHERE id = ?");
    erase.bind(1, id);
    erase.exec();
    SQLite::Statement upsert(
        *database_, "INSERT INTO desired (only, state) VALUES (1, ?) ON CONFLICT (only) DO UPDATE SET state = excluded.state");
    upsert.bind(1, desired.to_json());
    upsert.exec();
    commit.commit();
    return {};
  });
}

Status SqliteStore::add_event(const EventRecord& event) {
  return guarded([&]() -> Status {
    SQLite::Transaction commit(*database_);
    SQLite::Statement insert(*database_, "INSERT INTO events (time_ns, kind, severity, message) VALUES (?, ?, ?, ?)");
    insert.bind(1, event.time_ns);
    insert.bind(2, event.kind);
    insert.bind(3, event.severity);
    insert.bind(4, event.message);
    insert.exec();
    SQLite::Statement trim(*database_, "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?");
    trim.bind(1, kEventsMax);
    trim.exec();
    commit.commit();
    return {};
  });
}

Result<std::vector<EventRecord>> SqliteStore::events(uint64_t after_id, uint32_t limit) {
  return guarded([&]() -> Result<std::vector<EventRecord>> {
    SQLite::Statement query(
        *database_, after_id == 0 ? "SELECT * FROM (SELECT id, time_ns, kind, severity, message FROM events "
                                    "WHERE id > ? ORDER BY id DESC LIMIT ?) ORDER BY id"
                                  : "SELECT id, time_ns, kind, severity, message FROM events WHERE id > ? ORDER BY id LIMIT ?");
    query.bind(1, static_cast<int64_t>(std::min<uint64_t>(after_id, INT64_MAX)));  // SQLite's numbers are signed
    query.bind(2, limit);
    std::vector<EventRecord> list;
    while (query.executeStep()) {
      EventRecord event;
      event.id = static_cast<uint64_t>(query.getColumn(0).getInt64());
      event.time_ns = query.getColumn(1).getInt64();
      event.kind = query.getColumn(2).getString();
      event.severity = query.getColumn(3).getString();
      event.message = query.getColumn(4).getString();
      list.push_back(std::move(event));
    }
    return list;
  });
}

Status SqliteStore::put_ecn(const EcnRecord& record) {
  return guarded([&]() -> Status {
    SQLite::Transaction commit(*database_);
    SQLite::Statement put(
        *database_, "INSERT OR REPLACE INTO ecn (destination, port, dscp, place, time_ns, report) VALUES (?, ?, ?, ?, ?, ?)");
    put.bind(1, record.destination);
    put.bind(2, record.port);
    put.bind(3, record.dscp);
    put.bind(4, record.place);
    put.bind(5, record.time_ns);
    put.bind(6, record.report.data(), static_cast<int>(record.report.size()));
    put.exec();
    SQLite::Statement trim(
        *database_, "DELETE FROM ecn WHERE time_ns < ? OR rowid NOT IN (SELECT rowid FROM ecn ORDER BY time_ns DESC LIMIT ?)");
    trim.bind(1, record.time_ns - kEcnAgeMax_ns);
    trim.bind(2, kEcnRecordsMax);
    trim.exec();
    commit.commit();
    return {};
  });
}

Result<std::vector<EcnRecord>> SqliteStore::ecn(const std::string& destination, const std::string& place, int64_t now_ns) {
  return guarded([&]() -> Result<std::vector<EcnRecord>> {
    SQLite::Statement query(
        *database_,
        "SELECT destination, port, dscp, place, time_ns, report FROM ecn WHERE (?1 = '' OR destination = ?1) "
        "AND (?2 = '' OR place = ?2) AND time_ns >= ?3 ORDER BY time_ns DESC");
    query.bind(1, destination);
    query.bind(2, place);
    query.bind(3, now_ns - kEcnAgeMax_ns);
    std::vector<EcnRecord> list;
    while (query.executeStep()) {
      EcnRecord record;
      record.destination = query.getColumn(0).getString();
      record.port = query.getColumn(1).getUInt();
      record.dscp = query.getColumn(2).getUInt();
      record.place = query.getColumn(3).getString();
      record.time_ns = query.getColumn(4).getInt64();
      record.report = query.getColumn(5).getString();
      list.push_back(std::move(record));
    }
    return list;
  });
}

}  // namespace sluice::agent
