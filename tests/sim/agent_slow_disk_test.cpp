// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A disk that takes as long as it likes: whichever write of a change hangs, what reads is answered, few commands wait behind it
// and only while somebody waits for them, and once the disk is back the host is as the change says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "sim_host.h"

namespace sluice::sim {
namespace {

using testing::HasSubstr;

// Passes everything on to another store; at one chosen write the disk hangs until it is let go.
class SlowStore final : public agent::Store {
 public:
  explicit SlowStore(agent::Store& inner) : inner_(inner) {}

  void hang_at(uint64_t write) {
    const std::lock_guard lock(mutex_);
    hang_at_ = writes_ + write;
  }
  // False when `done` comes true without a write that hangs.
  bool wait_until_it_hangs(const std::atomic<bool>& done) {
    std::unique_lock lock(mutex_);
    while (!hangs_ && !done) changed_.wait_for(lock, std::chrono::milliseconds(1));
    return hangs_;
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    hang_at_ = 0;
    changed_.notify_all();
  }

  Result<agent::Desired> desired() override { return inner_.desired(); }
  Result<std::optional<agent::Transaction>> open_transaction() override { return inner_.open_transaction(); }
  Result<int64_t> begin(const agent::Transaction& transaction) override {
    write();
    return inner_.begin(transaction);
  }
  Status started(int64_t id, size_t steps) override {
    write();
    return inner_.started(id, steps);
  }
  Status finish(int64_t id, const agent::Desired& desired) override {
    write();
    return inner_.finish(id, desired);
  }
  Status add_event(const agent::EventRecord& event) override {
    write();
    return inner_.add_event(event);
  }
  Result<std::vector<agent::EventRecord>> events(uint64_t after_id, uint32_t limit) override {
    return inner_.events(after_id, limit);
  }
  Status put_ecn(const agent::EcnRecord& record) override {
    write();
    return inner_.put_ecn(record);
  }
  Result<std::vector<agent::EcnRecord>> ecn(const std::string& destination, const std::string& place, int64_t now_ns) override {
    return inner_.ecn(destination, place, now_ns);
  }

 private:
  void write() {
    std::unique_lock lock(mutex_);
    if (++writes_ != hang_at_) return;
    hangs_ = true;
    while (hang_at_ != 0) changed_.wait(lock);
    hangs_ = false;
  }

  agent::Store& inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t writes_ = 0, hang_at_ = 0;
  bool hangs_ = false;
};

const auto kQuiet = [](const v1::Progress&) {};

class AgentSlowDisk : public testing::Test {
 protected:
  void SetUp() override {
    init_log({LogLevel::kOff, LogFormat::kText, nullptr});
    host_ = std::make_unique<Host>(bundles_, 1);
    store_ = std::make_unique<SlowStore>(host_->store);
    host_->used_store_ = store_.get();
    ASSERT_TRUE(host_->start());
    ASSERT_TRUE(host_->run(Op::kApplyFirst));
  }
  // A change in a thread of its own, that hangs at its `write`-th write; false when it is over without.
  bool hang(Op op, uint64_t write) {
    done_ = false;
    store_->hang_at(write);
    change_ = std::thread([this, op] {
      result_ = host_->run(op);
      done_ = true;
    });
    return store_->wait_until_it_hangs(done_);
  }
  void finish() {
    store_->let_go();
    change_.join();
    EXPECT_TRUE(result_) << result_.error().message();
  }
  void expect_answers() {
    agent::Engine& engine = *host_->engine;
    EXPECT_TRUE(agent::status_report(engine, true));
    EXPECT_TRUE(agent::cca_report(engine, ""));
    v1::ExplainRequest explain;
    explain.set_destination("10.2.0.7");
    EXPECT_TRUE(agent::explain_report(engine, explain));
    EXPECT_TRUE(agent::socket_report(engine, {}, [](const v1::Sockets&) { return true; }));
    EXPECT_TRUE(engine.store().events(0, 10));
    v1::ApplyRequest diff;
    diff.set_document(kSecondPolicy);
    EXPECT_TRUE(engine.diff(diff));
    const auto looked = engine.maintain();
    EXPECT_TRUE(looked) << looked.error().message();
  }

  Bundles bundles_;
  std::unique_ptr<Host> host_;
  std::unique_ptr<SlowStore> store_;
  std::thread change_;
  std::atomic<bool> done_ = false;
  Status result_;
};

TEST_F(AgentSlowDisk, whichever_write_hangs_what_reads_is_answered_and_no_other_change_begins) {
  uint64_t writes = 0;
  Op op = Op::kApplySecond;
  State before = State::kFirst;
  while (hang(op, writes + 1)) {
    SCOPED_TRACE(fmt::format("write {}", writes + 1));
    expect_answers();
    int asked = 0;
    const auto second = host_->engine->rollback({}, kQuiet, [&] { return ++asked == 2; });
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Code::kUnavailable);
    EXPECT_THAT(second.error().message(), testing::AllOf(HasSubstr("`sluice apply` is under way"), HasSubstr("sluice events")));
    EXPECT_EQ(asked, 2);
    finish();
    before = after(op, before);
    expect_state(*host_, before, "let go");
    op = op == Op::kApplySecond ? Op::kApplyFirst : Op::kApplySecond;
    ++writes;
  }
  finish();
  EXPECT_GE(writes, 10u);
}

TEST_F(AgentSlowDisk, few_commands_wait_and_what_nobody_waits_for_is_not_done) {
  ASSERT_TRUE(hang(Op::kApplySecond, 3));
  std::atomic<int> asked = 0, refused = 0;
  std::atomic<bool> gone = false;
  std::vector<std::thread> waiting;
  for (int i = 0; i < agent::Turns::kWaitingMax; ++i)
    waiting.emplace_back([&] {
      bool counted = false;
      const auto result = host_->engine->down({}, kQuiet, [&] {
        if (!std::exchange(counted, true)) ++asked;
        return gone.load();
      });
      if (!result && result.error().code == Code::kUnavailable) ++refused;
    });
  while (asked < agent::Turns::kWaitingMax) std::this_thread::yield();
  const auto one_more = host_->engine->migrate({}, kQuiet);
  ASSERT_FALSE(one_more);
  EXPECT_EQ(one_more.error().code, Code::kUnavailable);
  EXPECT_THAT(one_more.error().message(), HasSubstr(fmt::format("{} commands wait", agent::Turns::kWaitingMax)));
  expect_answers();
  gone = true;
  for (auto& thread : waiting) thread.join();
  EXPECT_EQ(refused, agent::Turns::kWaitingMax);
  finish();
  expect_state(*host_, State::kSecond, "the only change that was made");
}

TEST_F(AgentSlowDisk, who_waits_gets_its_turn) {
  ASSERT_TRUE(hang(Op::kApplySecond, 3));
  std::atomic<bool> asked = false;
  Status rolled_back;
  std::thread second([&] {
    const auto result = host_->engine->rollback({}, kQuiet, [&] {
      asked = true;
      return false;
    });
    if (!result) rolled_back = tl::unexpected<Error>(result.error());
  });
  while (!asked) std::this_thread::yield();
  finish();
  second.join();
  EXPECT_TRUE(rolled_back) << rolled_back.error().message();
  expect_state(*host_, State::kRolledBack, "one after the other");
}

}  // namespace
}  // namespace sluice::sim
