// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Store in memory. It outlives simulated crashes, as a file would: each call happens whole or not at all.
#pragma once

#include <optional>
#include <vector>

#include "agent/store.h"
#include "chaos.h"

namespace sluice::sim {

class SimStore final : public agent::Store {
 public:
  explicit SimStore(Chaos& chaos) : chaos_(chaos) {}

  Result<agent::Desired> desired() override {
    if (desired_.empty()) return agent::Desired{};
    return agent::Desired::from_json(desired_);
  }
  Result<std::optional<agent::Transaction>> open_transaction() override {
    if (!journal_) return std::nullopt;
    SLUICE_TRY(transaction, agent::Transaction::from_json(journal_->text));
    transaction.id = journal_->id;
    transaction.started = journal_->started;
    return std::optional<agent::Transaction>(std::move(transaction));
  }
  Result<int64_t> begin(const agent::Transaction& transaction) override {
    SLUICE_CHECK(chaos_.gate("begin"));
    SLUICE_ASSERT(!journal_);  // one change at a time: an open one must be settled first
    journal_ = Row{++last_id_, transaction.to_json(), 0};
    chaos_.point();
    return last_id_;
  }
  Status started(int64_t id, size_t steps) override {
    SLUICE_CHECK(chaos_.gate("started"));
    SLUICE_ASSERT(journal_ && journal_->id == id);
    journal_->started = steps;
    chaos_.point();
    return {};
  }
  Status finish(int64_t id, const agent::Desired& desired) override {
    SLUICE_CHECK(chaos_.gate("finish"));
    SLUICE_ASSERT(journal_ && journal_->id == id);
    journal_.reset();
    desired_ = desired.to_json();
    chaos_.point();
    return {};
  }
  Status add_event(const agent::EventRecord& event) override {
    events_.push_back(event);
    return {};
  }
  Result<std::vector<agent::EventRecord>> events(uint64_t, uint32_t) override { return events_; }

  Status put_ecn(const agent::EcnRecord& record) override {
    ecn_.insert(ecn_.begin(), record);
    return {};
  }
  Result<std::vector<agent::EcnRecord>> ecn(const std::string&, const std::string&, int64_t) override { return ecn_; }

  bool journal_open() const { return journal_.has_value(); }

 private:
  struct Row {
    int64_t id;
    std::string text;
    size_t started;
  };
  Chaos& chaos_;
  std::string desired_;
  std::optional<Row> journal_;
  int64_t last_id_ = 0;
  std::vector<agent::EventRecord> events_;
  std::vector<agent::EcnRecord> ecn_;
};

}  // namespace sluice::sim
