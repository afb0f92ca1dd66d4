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
tl::unexpected<Error> sqlite_error(const SQLite::Exception& e, const std::string& path, const SQLite::Database* database) {
  Error error;
  error.where = path;
  error.what = fmt::format("the state database failed: {}", e.what());
  if (database != nullptr && (e.getErrorCode() == SQLITE_CANTOPEN || e.getErrorCode() == SQLITE_IOERR)) {
    error.sys_errno = sqlite3_system_errno(database->getHandle());
    error.remedy = remedy_from_errno(error.sys_errno);
    if (!error.remedy.empty()) {
      error.code = Code::kExhausted;
      return fail(std::move(error));
    }
  }
  switch (e.getErrorCode()) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      error.code = Code::kCorrupt;
      error.remedy = kResetRemedy;
      break;
    case SQLITE_NOMEM:
      error.code = Code::kExhausted;
      error.remedy = remedy_from_errno(ENOMEM);
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

tl::unexpected<Error> other_format(const std::string& path, int version) {
  return fail(
      make_error(Code::kConflict,
                 fmt::format("the state database has format {}, this agent writes format {}", version, kSchemaVersion),
                 version > kSchemaVersion
                     ? "connections are not affected; go on with the newer release that wrote it, or end that one with its "
                       "own `sluice down` and start this agent with --reset-state"
                     : "start with --reset-state and apply the policy again")
          .at(path));
}

}  // namespace

template <class F>
auto SqliteStore::guarded(Connection& connection, F&& body) -> decltype(body()) {
  const std::lock_guard lock(connection.mutex);
  try {
    return body();
  } catch (const SQLite::Exception& e) {
    return sqlite_error(e, path_, connection.database.get());
  }
}

tl::unexpected<Error> SqliteStore::corrupt(Error error) const {
  error.remedy = kResetRemedy;
  return fail(std::move(error).at(path_));
}

SqliteStore::SqliteStore(std::string path, std::unique_ptr<SQLite::Database> writer, std::unique_ptr<SQLite::Database> reader)
    : path_(std::move(path)), writer_{std::move(writer), {}}, reader_{std::move(reader), {}} {}
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
  std::unique_ptr<SQLite::Database> database;
  try {
    database = std::make_unique<SQLite::Database>(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE, kBusyTimeoutMs);
    // Before anything is written, if only by closing it: a database of another format stays as it is.
    sqlite3_db_config(database->getHandle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    const int version = database->execAndGet("PRAGMA user_version").getInt();
    if (version != 0 && version != kSchemaVersion) return other_format(path, version);
    sqlite3_db_config(database->getHandle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr);
    database->exec("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;");
    if (const std::string check = database->execAndGet("PRAGMA quick_check(1)").getString(); check != "ok")
      throw SQLite::Exception(check, SQLITE_CORRUPT);
    if (version == 0) {
      SQLite::Transaction transaction(*database);
      database->exec(kSchema);
      database->exec(fmt::format("PRAGMA user_version={}", kSchemaVersion));
      transaction.commit();
    }
    database->exec(kAdditions);
    auto reader = std::make_unique<SQLite::Database>(path, SQLite::OPEN_READONLY, kBusyTimeoutMs);
    return std::unique_ptr<SqliteStore>(new SqliteStore(path, std::move(database), std::move(reader)));
  } catch (const SQLite::Exception& e) {
    return sqlite_error(e, path, database.get());
  }
}

Result<Desired> SqliteStore::desired() {
  return guarded(writer_, [&]() -> Result<Desired> {
    SQLite::Statement query(*writer_.database, "SELECT state FROM desired");
    if (!query.executeStep()) return Desired{};
    auto parsed = Desired::from_json(query.getColumn(0).getString());
    if (!parsed) return corrupt(std::move(parsed).error());
    return std::move(*parsed);
  });
}

Result<std::optional<Transaction>> SqliteStore::open_transaction() {
  return guarded(writer_, [&]() -> Result<std::optional<Transaction>> {
    SQLite::Statement query(*writer_.database, "SELECT id, txn, started FROM journal ORDER BY id DESC LIMIT 1");
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
  return guarded(writer_, [&]() -> Result<int64_t> {
    SQLite::Transaction commit(*writer_.database);
    if (writer_.database->execAndGet("SELECT count(*) FROM journal").getInt() != 0)
      return fail(make_error(Code::kConflict, "an earlier change was not brought to its end",
                             "see `sluice events`; the agent ends it when it is started again")
                      .at(path_));
    SQLite::Statement insert(*writer_.database, "INSERT INTO journal (txn) VALUES (?)");
    insert.bind(1, transaction.to_json());
    insert.exec();
    const int64_t id = writer_.database->getLastInsertRowid();
    commit.commit();
    return id;
  });
}

Status SqliteStore::started(int64_t id, size_t steps) {
  return guarded(writer_, [&]() -> Status {
    SQLite::Statement update(*writer_.database, "UPDATE journal SET started = ? WHERE id = ?");
    update.bind(1, static_cast<int64_t>(steps));
    update.bind(2, id);
    update.exec();
    return {};
  });
}

Status SqliteStore::finish(int64_t id, const Desired& desired) {
  return guarded(writer_, [&]() -> Status {
    SQLite::Transaction commit(*writer_.database);
    SQLite::Statement erase(*writer_.database, "DELETE FROM journal WHERE id = ?");
    erase.bind(1, id);
    erase.exec();
    SQLite::Statement upsert(
        *writer_.database,
        "INSERT INTO desired (only, state) VALUES (1, ?) ON CONFLICT (only) DO UPDATE SET state = excluded.state");
    upsert.bind(1, desired.to_json());
    upsert.exec();
    commit.commit();
    return {};
  });
}

Status SqliteStore::add_event(const EventRecord& event) {
  return guarded(writer_, [&]() -> Status {
    SQLite::Transaction commit(*writer_.database);
    SQLite::Statement insert(*writer_.database, "INSERT INTO events (time_ns, kind, severity, message) VALUES (?, ?, ?, ?)");
    insert.bind(1, event.time_ns);
    insert.bind(2, event.kind);
    insert.bind(3, event.severity);
    insert.bind(4, event.message);
    insert.exec();
    SQLite::Statement trim(*writer_.database, "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?");
    trim.bind(1, kEventsMax);
    trim.exec();
    commit.commit();
    return {};
  });
}

Result<std::vector<EventRecord>> SqliteStore::events(uint64_t after_id, uint32_t limit) {
  return guarded(reader_, [&]() -> Result<std::vector<EventRecord>> {
    SQLite::Statement query(*reader_.database,
                            after_id == 0
                                ? "SELECT * FROM (SELECT id, time_ns, kind, severity, message FROM events "
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
  return guarded(writer_, [&]() -> Status {
    SQLite::Transaction commit(*writer_.database);
    // rowid is the order in which they came; the wall clock may have been set between two of them.
    SQLite::Statement put(
        *writer_.database,
        "INSERT OR REPLACE INTO ecn (destination, port, dscp, place, time_ns, report) VALUES (?, ?, ?, ?, ?, ?)");
    put.bind(1, record.destination);
    put.bind(2, record.port);
    put.bind(3, record.dscp);
    put.bind(4, record.place);
    put.bind(5, record.time_ns);
    put.bind(6, record.report.data(), static_cast<int>(record.report.size()));
    put.exec();
    SQLite::Statement trim(
        *writer_.database,
        "DELETE FROM ecn WHERE time_ns < ? OR rowid NOT IN (SELECT rowid FROM ecn ORDER BY rowid DESC LIMIT ?)");
    trim.bind(1, record.time_ns - kEcnAgeMax_ns);
    trim.bind(2, kEcnRecordsMax);
    trim.exec();
    commit.commit();
    return {};
  });
}

Result<std::vector<EcnRecord>> SqliteStore::ecn(const std::string& destination, const std::string& place, int64_t now_ns) {
  return guarded(reader_, [&]() -> Result<std::vector<EcnRecord>> {
    SQLite::Statement query(
        *reader_.database,
        "SELECT destination, port, dscp, place, time_ns, report FROM ecn WHERE (?1 = '' OR destination = ?1) "
        "AND (?2 = '' OR place = ?2) AND time_ns >= ?3 ORDER BY rowid DESC");
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
