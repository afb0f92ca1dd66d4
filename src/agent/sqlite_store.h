// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Store in one SQLite file, <state dir>/agent.db: WAL, synchronous=FULL, so that a journal entry is on disk before its step
// runs. A file that SQLite or its checks refuse is kCorrupt with the way out; it is never overwritten.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "agent/store.h"

namespace SQLite {
class Database;
}

namespace sluice::agent {

class SqliteStore final : public Store {
 public:
  // Creates the folder (0700) and the file when absent.
  static Result<std::unique_ptr<SqliteStore>> open(const std::string& path);
  ~SqliteStore() override;

  Result<Desired> desired() override;
  Result<std::optional<Transaction>> open_transaction() override;
  Result<int64_t> begin(const Transaction& transaction) override;
  Status started(int64_t id, size_t steps) override;
  Status finish(int64_t id, const Desired& desired) override;
  Status add_event(const EventRecord& event) override;
  Result<std::vector<EventRecord>> events(uint64_t after_id, uint32_t limit) override;
  Status put_ecn(const EcnRecord& record) override;
  Result<std::vector<EcnRecord>> ecn(const std::string& destination, const std::string& place, int64_t now_ns) override;

  // Events kept; older ones are deleted.
  static constexpr int kEventsMax = 10'000;

 private:
  SqliteStore(std::string path, std::unique_ptr<SQLite::Database> writer, std::unique_ptr<SQLite::Database> reader);

  tl::unexpected<Error> corrupt(Error error) const;
  // A connection and who uses it. What only reads has one of its own: it must not wait for a write that a slow disk keeps.
  struct Connection {
    std::unique_ptr<SQLite::Database> database;
    std::mutex mutex;
  };
  template <class F>
  auto guarded(Connection& connection, F&& body) -> decltype(body());

  std::string path_;
  Connection writer_, reader_;
};

}  // namespace sluice::agent
