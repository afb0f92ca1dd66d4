// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Broadcast streams on a seeded network: every message at every receiver, once, in order, whatever is lost; few packets and few
// acknowledgements; the silent receiver named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coll/model/broadcast.h"
#include "coll_world.h"

namespace sluice::coll::sim {
namespace {

using ::testing::HasSubstr;

const Address kSender = address(1);
Address receiver_address(unsigned key) { return address(100 + key); }

BroadcastConfig broadcast_config(std::uint16_t group, std::uint32_t window) {
  BroadcastConfig config;
  config.token = 9;
  config.job = 3;
  config.members = 33;
  config.incarnation = 1;
  config.words = 16;
  config.sender = 32;
  config.group = group;
  config.window = window;
  return config;
}

class Stream {
 public:
  Stream(const BroadcastConfig& config, unsigned count, const NetworkSpec& network, std::uint64_t seed)
      : sender(config, count == 32 ? ~0u : (1u << count) - 1, addresses(count)), network_(network, seed), loses_(count) {
    for (unsigned key = 0; key < count; key++) receivers.emplace_back(config, static_cast<std::uint8_t>(key), kSender);
  }
  static std::vector<Address> addresses(unsigned count) {
    std::vector<Address> list;
    for (unsigned key = 0; key < count; key++) list.push_back(receiver_address(key));
    return list;
  }
  void send(const std::vector<std::int32_t>& message) {
    Outbox out;
    sender.send(SL_COLL_I32, {reinterpret_cast<const std::uint8_t*>(message.data()), 4 * message.size()}, now_ns, out);
    carry(out);
  }
  // The copies are made here, as a switch or a kernel would.
  void carry(const Outbox& out) {
    for (const Datagram& datagram : out) {
      const std::uint32_t mask = parse(datagram.bytes)->key;
      wire_packets++;
      for (unsigned key = 0; key < receivers.size(); key++)
        if (mask >> key & 1) network_.send(kSender, {receiver_address(key), datagram.bytes}, now_ns);
    }
  }
  bool run(std::uint64_t limit_ns) {
    const std::uint64_t end = now_ns + limit_ns;
    while (!sender.done() && !sender.failure()) {
      std::uint64_t next = std::min(network_.next_ns(), sender.next_tick_ns());
      for (const auto& receiver : receivers) next = std::min(next, receiver.next_tick_ns());
      if (next > end) return false;
      now_ns = std::max(now_ns, next);
      Outbox from_sender;
      if (network_.next_ns() <= now_ns) {
        const Network::Arrival arrival = network_.pop();
        if (arrival.to == kSender) {
          sender.receive(arrival.from, arrival.bytes, now_ns, from_sender);
        } else {
          const unsigned key = arrival.to.ip[15] - 100u;
          Outbox out;
          if (!loses_[key]) receivers[key].receive(arrival.from, arrival.bytes, now_ns, out);
          answer(key, out);
        }
      }
      sender.tick(now_ns, from_sender);
      carry(from_sender);
      for (unsigned key = 0; key < receivers.size(); key++) {
        Outbox out;
        receivers[key].tick(now_ns, out);
        answer(key, out);
      }
    }
    return true;
  }
  void answer(unsigned key, const Outbox& out) {
    for (const Datagram& datagram : out) network_.send(receiver_address(key), datagram, now_ns);
  }
  void cut_off(unsigned key) { loses_[key] = true; }

  BroadcastSender sender;
  std::vector<BroadcastReceiver> receivers;
  std::uint64_t now_ns = 1'000'000'000;
  std::uint64_t wire_packets = 0;

 private:
  Network network_;
  std::vector<bool> loses_;
};

std::vector<std::int32_t> random_message(Random& random, std::size_t most) {
  std::vector<std::int32_t> message(random.below(most));
  for (auto& value : message) value = static_cast<std::int32_t>(random.next());
  return message;
}

TEST(CollBroadcastSim, EveryMessageArrivesOnceAndInOrderInEverySchedule) {
  std::uint64_t repaired = 0, duplicates = 0;
  for (std::uint64_t seed = 1; seed <= 200; seed++) {
    SeededRandom random(seed);
    static constexpr double kLoss[] = {0, 0.001, 0.01, 0.1};
    NetworkSpec network{
        .loss = kLoss[random.below(4)], .duplicate = random.chance(0.5) ? 0.1 : 0, .corrupt = random.chance(0.3) ? 0.02 : 0};
    network.jitter_ns = random.chance(0.5) ? 300'000 : 1'000;
    if (random.chance(0.3)) network.late = 0.02, network.late_ns = 30'000'000;
    const auto group = static_cast<std::uint16_t>(random.chance(0.3) ? 1 : random.between(4, 64));
    Stream stream(broadcast_config(group, group * 2u), static_cast<unsigned>(random.chance(0.1) ? 32 : random.between(1, 5)),
                  network, seed);
    std::vector<std::vector<std::int32_t>> messages;
    for (std::uint64_t i = random.between(1, 6); i > 0; i--) {
      messages.push_back(random_message(random, 16 * 100));
      stream.send(messages.back());
    }
    ASSERT_TRUE(stream.run(60'000'000'000)) << "seed " << seed << " hangs";
    ASSERT_FALSE(stream.sender.failure()) << "seed " << seed;
    for (auto& receiver : stream.receivers) {
      for (const auto& message : messages) {
        const auto got = receiver.take();
        ASSERT_TRUE(got) << "seed " << seed;
        ASSERT_EQ(got->bytes.size(), 4 * message.size()) << "seed " << seed;
        ASSERT_TRUE(message.empty() || std::memcmp(got->bytes.data(), message.data(), got->bytes.size()) == 0)
            << "seed " << seed;
      }
      ASSERT_FALSE(receiver.take());
      ASSERT_EQ(receiver.buffered(), 0u);
      duplicates += receiver.stats().duplicates;
    }
    repaired += stream.sender.stats().retransmitted;
  }
  EXPECT_GT(repaired, 0u);
  EXPECT_GT(duplicates, 0u);
}

TEST(CollBroadcastSim, WithoutLossAGroupCostsOneAcknowledgementPerReceiver) {
  Stream stream(broadcast_config(1024, 2048), 9, {.jitter_ns = 0}, 1);
  stream.send(std::vector<std::int32_t>(16 * 4096));
  ASSERT_TRUE(stream.run(10'000'000'000));
  EXPECT_EQ(stream.wire_packets, 4096u);
  EXPECT_EQ(stream.sender.stats().retransmitted + stream.sender.stats().probes, 0u);
  for (const auto& receiver : stream.receivers) EXPECT_EQ(receiver.stats().acks, 4u);
}

TEST(CollBroadcastSim, PerPacketModeAcknowledgesEachPacket) {
  Stream stream(broadcast_config(1, 64), 2, {.jitter_ns = 0}, 1);
  stream.send(std::vector<std::int32_t>(16 * 100));
  ASSERT_TRUE(stream.run(10'000'000'000));
  for (const auto& receiver : stream.receivers) EXPECT_EQ(receiver.stats().acks, 100u);
}

// 1 % loss, 32 receivers: nearly every packet is missed by somebody's neighbour in each group, yet one repair serves all who
// miss it, and receivers do not shout.
TEST(CollBroadcastSim, LossMakesNoStormOfAcknowledgements) {
  const unsigned kReceivers = 32;
  const std::uint64_t packets = 4096;
  Stream stream(broadcast_config(1024, 2048), kReceivers, {.loss = 0.01, .jitter_ns = 10'000}, 7);
  stream.send(std::vector<std::int32_t>(16 * packets));
  ASSERT_TRUE(stream.run(60'000'000'000));
  std::uint64_t acks = 0;
  for (const auto& receiver : stream.receivers) acks += receiver.stats().acks;
  // Some 0.01 * 32 * 4096 copies are lost, over as many as 0.275 * 4096 packets: repairs of those, and of repairs.
  EXPECT_LT(stream.sender.stats().retransmitted, packets);
  EXPECT_LT(acks, kReceivers * packets / 100);
  std::cout << stream.sender.stats().retransmitted << " repairs, " << stream.sender.stats().probes << " probes, " << acks
            << " acknowledgements for " << packets << " packets to " << kReceivers << " receivers\n";
}

TEST(CollBroadcastSim, OnlyWhoMissesAPacketGetsItAgain) {
  // Receiver 1 is cut off at first: what goes out later is for it alone.
  Stream stream(broadcast_config(16, 32), 3, {.jitter_ns = 0}, 1);
  stream.cut_off(1);
  stream.send(std::vector<std::int32_t>(16 * 16));
  EXPECT_FALSE(stream.run(5'000'000'000));
  EXPECT_GT(stream.sender.stats().probes, 0u);
  EXPECT_EQ(stream.receivers[0].stats().duplicates, 0u);
  EXPECT_EQ(stream.receivers[2].stats().duplicates, 0u);
}

TEST(CollBroadcastSim, ASilentReceiverIsNamedAndStopsAfterOneWindow) {
  Stream stream(broadcast_config(16, 32), 3, {.loss = 0.05}, 3);
  stream.cut_off(2);
  stream.send(std::vector<std::int32_t>(16 * 1000));
  ASSERT_TRUE(stream.run(40'000'000'000));
  ASSERT_TRUE(stream.sender.failure());
  EXPECT_EQ(stream.sender.failure()->code, Code::kTimeout);
  EXPECT_THAT(stream.sender.failure()->what, HasSubstr("KEY 2 did not acknowledge"));
  EXPECT_LE(stream.sender.stats().sent, 32u);
}

TEST(CollBroadcastSim, AReceiverHoldsNoMoreThanAWindow) {
  const BroadcastConfig config = broadcast_config(4, 8);
  BroadcastReceiver receiver(config, 0, kSender);
  BroadcastConfig wide = broadcast_config(4, 1000);
  BroadcastSender sender(wide, 1, {receiver_address(0)});
  Outbox out, acks;
  sender.send(SL_COLL_I32, Bytes(4 * 16 * 100), 0, out);
  ASSERT_EQ(out.size(), 100u);
  for (std::size_t i = 1; i < 100; i++) receiver.receive(kSender, out[i].bytes, 0, acks);  // all but the first
  EXPECT_EQ(receiver.buffered(), 7u);
  EXPECT_EQ(receiver.stats().beyond_window, 92u);
}

}  // namespace
}  // namespace sluice::coll::sim
