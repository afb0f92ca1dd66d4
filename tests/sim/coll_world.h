// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A network that loses, doubles, delays, reorders and damages datagrams as its seed says, and a job of members and an
// aggregator on it, in virtual time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/random.h"
#include "coll/model/aggregator.h"
#include "coll/model/member.h"

namespace sluice::coll::sim {

struct NetworkSpec {
  double loss = 0;
  double duplicate = 0;
  double corrupt = 0;  // 1 to 3 bits, or a burst, or two words exchanged
  std::uint64_t delay_ns = 20'000;
  std::uint64_t jitter_ns = 20'000;  // reorders
  double late = 0;                   // chance of a delay of up to late_ns: beyond the reuse of a slot
  std::uint64_t late_ns = 0;
};

class Network {
 public:
  Network(const NetworkSpec& spec, std::uint64_t seed) : spec_(spec), random_(seed) {}

  struct Arrival {
    Address from, to;
    Bytes bytes;
  };
  void send(const Address& from, const Datagram& datagram, std::uint64_t now_ns) {
    if (random_.chance(spec_.loss)) return;
    const int copies = random_.chance(spec_.duplicate) ? 2 : 1;
    for (int i = 0; i < copies; i++) {
      std::uint64_t delay = spec_.delay_ns + random_.below(spec_.jitter_ns + 1);
      if (random_.chance(spec_.late)) delay += random_.below(spec_.late_ns + 1);
      Arrival arrival{from, datagram.to, datagram.bytes};
      if (random_.chance(spec_.corrupt)) damage(arrival.bytes);
      pending_.emplace(now_ns + delay, std::move(arrival));
    }
  }
  std::uint64_t next_ns() const { return pending_.empty() ? kNever : pending_.begin()->first; }
  Arrival pop() {
    Arrival arrival = std::move(pending_.begin()->second);
    pending_.erase(pending_.begin());
    return arrival;
  }
  std::size_t pending() const { return pending_.size(); }

 private:
  void damage(Bytes& bytes) {
    const std::size_t bits = bytes.size() * 8;
    switch (random_.below(3)) {
      case 0:
        for (std::uint64_t i = random_.between(1, 3); i > 0; i--) flip(bytes, random_.below(bits));
        break;
      case 1: {
        const std::uint64_t at = random_.below(bits - 32);
        for (std::uint64_t i = 0; i < 32; i++)
          if (i == 0 || random_.chance(0.5)) flip(bytes, at + i);
        break;
      }
      default: {
        const std::size_t words = bytes.size() / 4, a = random_.below(words), b = random_.below(words);
        std::swap_ranges(bytes.begin() + 4 * static_cast<long>(a), bytes.begin() + 4 * static_cast<long>(a) + 4,
                         bytes.begin() + 4 * static_cast<long>(b));
      }
    }
  }
  static void flip(Bytes& bytes, std::uint64_t bit) { bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8); }

  NetworkSpec spec_;
  SeededRandom random_;
  std::multimap<std::uint64_t, Arrival> pending_;
};

inline Address address(unsigned host) {
  Address address;
  address.ip[10] = address.ip[11] = 0xff;
  address.ip[12] = 10;
  address.ip[15] = static_cast<std::uint8_t>(host);
  address.port = 7000;
  return address;
}
inline const Address kAggregator = address(200);

inline sl_coll_member member_at(const Address& at, std::uint32_t weight) {
  sl_coll_member member{};
  std::copy(at.ip.begin(), at.ip.end(), member.addr);
  member.port = __builtin_bswap16(at.port);
  member.weight = weight;
  return member;
}

struct JobSpec {
  std::uint16_t members = 4;
  std::uint16_t window = 4;
  std::uint16_t words = 16;
  std::vector<std::uint32_t> weights = {};  // empty = all 1
  std::uint64_t weight_sum() const {
    std::uint64_t sum = 0;
    for (unsigned key = 0; key < members; key++) sum += weight(key);
    return sum;
  }
  std::uint32_t weight(unsigned key) const { return weights.empty() ? 1 : weights[key]; }
};

using MakeAggregator = std::function<std::unique_ptr<Aggregator>(AggregatorConfig)>;
using MakeMember = std::function<std::unique_ptr<Member>(const MemberConfig&)>;

class World {
 public:
  explicit World(const JobSpec& spec, const NetworkSpec& network, std::uint64_t seed, MakeAggregator make_aggregator = {},
                 MakeMember make_member = {})
      : spec_(spec),
        network_(network, seed),
        make_aggregator_(std::move(make_aggregator)),
        make_member_(std::move(make_member)) {
    start_aggregator(1);
    for (unsigned key = 0; key < spec.members; key++) start_member(key);
  }

  static constexpr std::uint64_t kToken = 0x5eed5eed5eed5eed;

  AggregatorConfig aggregator_config(std::uint16_t incarnation) const {
    AggregatorConfig config;
    config.job.token = kToken;
    config.job.weight_sum = spec_.weight_sum();
    config.job.job = 7;
    config.job.members = config.job.contributors = spec_.members;
    config.job.incarnation = incarnation;
    config.job.window = spec_.window;
    config.job.words = spec_.words;
    for (unsigned key = 0; key < spec_.members; key++) config.members.push_back(member_at(address(key + 1), spec_.weight(key)));
    return config;
  }
  MemberConfig member_config(unsigned key) {
    MemberConfig config;
    config.token = kToken;
    config.weight_sum = spec_.weight_sum();
    config.instance = ++instances_;
    config.job = 7;
    config.members = spec_.members;
    config.window = spec_.window;
    config.words = spec_.words;
    config.key = static_cast<std::uint8_t>(key);
    config.aggregator = kAggregator;
    return config;
  }
  void start_aggregator(std::uint16_t incarnation) {
    AggregatorConfig config = aggregator_config(incarnation);
    aggregator_ = make_aggregator_ ? make_aggregator_(config) : std::make_unique<Aggregator>(config);
  }
  void start_member(unsigned key) {
    const MemberConfig config = member_config(key);
    members_.resize(std::max<std::size_t>(members_.size(), key + 1));
    members_[key] = make_member_ ? make_member_(config) : std::make_unique<Member>(config);
    act(key, [&](Outbox& out) { members_[key]->join(now_ns_, out); });
  }
  void kill_member(unsigned key) { members_[key].reset(); }
  void kill_aggregator() { aggregator_.reset(); }

  // Lets a party do something; what it sends goes on the network.
  void act(unsigned key, const std::function<void(Outbox&)>& action) {
    Outbox out;
    action(out);
    for (const Datagram& datagram : out) network_.send(address(key + 1), datagram, now_ns_);
  }
  void act_aggregator(const std::function<void(Outbox&)>& action) {
    Outbox out;
    action(out);
    for (const Datagram& datagram : out) network_.send(kAggregator, datagram, now_ns_);
  }

  // Runs until `done`, or `limit_ns` of virtual time have passed; false in the latter case.
  bool run(const std::function<bool()>& done, std::uint64_t limit_ns) {
    const std::uint64_t end = now_ns_ + limit_ns;
    while (!done()) {
      std::uint64_t next = std::min(network_.next_ns(), aggregator_ ? aggregator_->next_tick_ns() : kNever);
      for (const auto& member : members_)
        if (member) next = std::min(next, member->next_tick_ns());
      if (next > end) {
        now_ns_ = end;
        return false;
      }
      now_ns_ = std::max(now_ns_, next);
      if (network_.next_ns() <= now_ns_) deliver(network_.pop());
      if (aggregator_ && aggregator_->next_tick_ns() <= now_ns_)
        act_aggregator([&](Outbox& out) { aggregator_->tick(now_ns_, out); });
      for (unsigned key = 0; key < members_.size(); key++)
        if (members_[key] && members_[key]->next_tick_ns() <= now_ns_)
          act(key, [&](Outbox& out) { members_[key]->tick(now_ns_, out); });
    }
    return true;
  }
  bool join_all(std::uint64_t limit_ns = 60'000'000'000) {
    return run([&] { return all([](const Member& member) { return member.state() != Member::State::kJoining; }); }, limit_ns);
  }
  bool all(const std::function<bool(const Member&)>& what) const {
    for (const auto& member : members_)
      if (member && !what(*member)) return false;
    return true;
  }
  Member& member(unsigned key) { return *members_[key]; }
  bool alive(unsigned key) const { return members_[key] != nullptr; }
  unsigned members() const { return static_cast<unsigned>(members_.size()); }
  Aggregator& aggregator() { return *aggregator_; }
  Network& network() { return network_; }
  std::uint64_t now_ns() const { return now_ns_; }
  const JobSpec& spec() const { return spec_; }

 private:
  void deliver(const Network::Arrival& arrival) {
    if (arrival.to == kAggregator) {
      if (aggregator_) act_aggregator([&](Outbox& out) { aggregator_->receive(arrival.from, arrival.bytes, now_ns_, out); });
      return;
    }
    const unsigned key = arrival.to.ip[15] - 1u;
    if (key < members_.size() && members_[key])
      act(key, [&](Outbox& out) { members_[key]->receive(arrival.from, arrival.bytes, now_ns_, out); });
  }

  JobSpec spec_;
  Network network_;
  MakeAggregator make_aggregator_;
  MakeMember make_member_;
  std::unique_ptr<Aggregator> aggregator_;
  std::vector<std::unique_ptr<Member>> members_;
  std::uint64_t now_ns_ = 1'000'000'000;
  std::uint64_t instances_ = 0;
};

}  // namespace sluice::coll::sim
