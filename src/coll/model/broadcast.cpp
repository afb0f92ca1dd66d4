// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/model/broadcast.h"

#include <bit>

namespace sluice::coll {
namespace {

constexpr std::uint64_t kMergeMin = 100'000, kMergeMax = 5'000'000;  // ns that acknowledgements with gaps are collected
constexpr std::uint64_t kMaxProbes = 20;                             // shifts of the backoff

}  // namespace

Status check(const BroadcastConfig& config) {
  SLUICE_CHECK(check_geometry(config.members, 1, config.words, config.members));
  if (config.group == 0 || config.group > SL_COLL_GROUP_MAX)
    return fail(Code::kInvalid, "a group has 1 to {} packets, not {}", SL_COLL_GROUP_MAX, config.group);
  if (config.window < config.group)
    return fail(Code::kInvalid, "the window ({} packets) is smaller than a group ({})", config.window, config.group);
  if (config.incarnation == 0) return fail(Code::kInvalid, "incarnation 0");
  return {};
}

// The sender.

BroadcastSender::BroadcastSender(const BroadcastConfig& config, std::uint32_t receivers, std::vector<Address> addresses)
    : config_(config),
      receivers_(receivers),
      addresses_(std::move(addresses)),
      rtt_(config.rto_initial_ns, config.rto_min_ns, config.rto_max_ns) {
  SLUICE_ASSERT(check(config).has_value());
  SLUICE_ASSERT(static_cast<std::size_t>(std::bit_width(receivers)) <= addresses_.size());
  room_.fill(config.window);
}

void BroadcastSender::send(std::uint8_t dtype, ByteSpan message, std::uint64_t now_ns, Outbox& out) {
  const std::size_t element = size_of(dtype);
  SLUICE_ASSERT(element != 0 && message.size() % element == 0);
  const std::size_t full = std::size_t{4} * config_.words;
  std::size_t at = 0;
  do {
    const std::size_t size = std::min(full, message.size() - at);
    Packet packet;
    packet.header.magic = SL_COLL_MAGIC_BROADCAST;
    packet.header.frag_offset = static_cast<std::uint32_t>(at / element);
    packet.header.dtype = dtype;
    packet.header.job = config_.job;
    packet.header.members = config_.members;
    packet.header.exponent = config_.sender;
    packet.header.token = config_.token;
    packet.header.place(config_.incarnation, queued_++);
    packet.payload.assign(message.begin() + static_cast<std::ptrdiff_t>(at),
                          message.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
    if (at == message.size()) packet.header.flags |= SL_COLL_LAST_FRAGMENT;
    queue_.push_back(std::move(packet));
  } while (at < message.size());
  pump(now_ns, out);
}

std::uint64_t BroadcastSender::limit() const {
  std::uint64_t limit = first_ + config_.window;
  for (std::uint32_t left = receivers_; left; left &= left - 1) {
    const int key = std::countr_zero(left);
    limit = std::min(limit, next_[static_cast<std::size_t>(key)] + room_[static_cast<std::size_t>(key)]);
  }
  return limit;
}

void BroadcastSender::pump(std::uint64_t now_ns, Outbox& out) {
  if (failure_) return;
  while (!queue_.empty() && first_ + packets_.size() < limit()) {
    packets_.push_back(std::move(queue_.front()));
    queue_.pop_front();
    Packet& packet = packets_.back();
    const bool last_of_group = (packet.header.position() + 1) % config_.group == 0;
    const bool pauses = queue_.empty() || first_ + packets_.size() >= limit();
    for (std::size_t key = 0; key < next_.size(); key++)
      if (next_[key] == packet.header.position()) news_ns_[key] = now_ns;  // it had all there was
    stats_.sent++;
    transmit(packet, receivers_, last_of_group || pauses || (packet.header.flags & SL_COLL_LAST_FRAGMENT), now_ns, out);
  }
  arm(now_ns);
}

void BroadcastSender::transmit(Packet& packet, std::uint32_t mask, bool ask, std::uint64_t now_ns, Outbox& out) {
  packet.sent_ns = now_ns;
  packet.tries++;
  packet.missing = 0;
  Header header = packet.header;
  header.key = mask;
  if (ask) header.flags |= SL_COLL_ACK_REQUEST;
  out.push_back({kEveryone, encode(header, packet.payload)});
}

void BroadcastSender::arm(std::uint64_t now_ns) {
  probe_due_ns_ = packets_.empty() || failure_ ? kNever : now_ns + rtt_.backed_off(probes_ + 1);
  if (packets_.empty() || failure_) repair_due_ns_ = kNever;
}

void BroadcastSender::receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out) {
  const auto header = parse(packet);
  if (!header || header->magic != SL_COLL_MAGIC_CONTROL || header->op != SL_COLL_GROUP_ACK) return;
  if (header->token != config_.token || header->job != config_.job || header->incarnation() != config_.incarnation ||
      header->key >= SL_COLL_DESTINATIONS_MAX || !(receivers_ >> header->key & 1) || from != addresses_[header->key]) {
    stats_.foreign++;
    return;
  }
  const auto ack = from_bytes<sl_coll_group_ack>(payload_of(packet));
  if (!intact(packet) || !ack || ack->bits > SL_COLL_GROUP_MAX || header->position() > first_ + packets_.size()) {
    stats_.corrupt++;
    return;
  }
  stats_.acks++;
  if (failure_) return;
  take_ack(static_cast<std::uint8_t>(header->key), header->position(), *ack, now_ns);
  pump(now_ns, out);
}

void BroadcastSender::take_ack(std::uint8_t key, std::uint64_t next, const sl_coll_group_ack& ack, std::uint64_t now_ns) {
  const std::uint32_t bit = 1u << key;
  if (next < next_[key]) return;  // overtaken by a later one
  next_[key] = next;
  room_[key] = std::min<std::uint64_t>(ack.room, config_.window);
  std::uint64_t highest = next;  // one past the last one that it has
  for (std::uint32_t i = 0; i < ack.bits; i++)
    if (ack.bitmap[i / 8] >> i % 8 & 1) highest = next + i + 1;
  bool news = false, gaps = false;
  const std::uint64_t end = std::min(highest, first_ + packets_.size());
  for (std::uint64_t position = first_; position < end; position++) {
    Packet& packet = packets_[position - first_];
    const std::uint64_t i = position - next;
    if (position < next || (ack.bitmap[i / 8] >> i % 8 & 1)) {
      if (packet.have & bit) continue;
      packet.have |= bit;
      packet.missing &= ~bit;
      news = true;
      if (packet.tries == 1 && position + 1 == highest) rtt_.sample(now_ns - packet.sent_ns);
    } else if (packet.sent_ns + rtt_.srtt() <= now_ns) {
      packet.missing |= bit;  // it was sent long enough ago for this acknowledgement to know
      gaps = true;
    }
  }
  if (news) {
    probes_ = 0;
    news_ns_[key] = now_ns;
  }
  while (!packets_.empty() && (packets_.front().have & receivers_) == receivers_) {
    packets_.pop_front();
    first_++;
  }
  if (gaps) repair_due_ns_ = std::min(repair_due_ns_, now_ns + std::clamp(rtt_.srtt() / 4, kMergeMin, kMergeMax));
}

void BroadcastSender::tick(std::uint64_t now_ns, Outbox& out) {
  if (failure_ || packets_.empty()) return;
  std::uint64_t silent = 0;
  for (std::uint32_t left = receivers_ & ~packets_.front().have; left; left &= left - 1) {
    const int key = std::countr_zero(left);
    if (now_ns >= news_ns_[static_cast<std::size_t>(key)] + config_.timeout_ns) silent |= std::uint64_t{1} << key;
  }
  if (silent) {
    failure_ = make_error(
        Code::kTimeout, fmt::format("broadcast of job {}: KEY {} did not acknowledge in time", config_.job, key_list(silent)));
    return arm(now_ns);
  }
  if (now_ns >= repair_due_ns_) {
    repair_due_ns_ = kNever;
    Packet* last = nullptr;
    for (Packet& packet : packets_)
      if (packet.missing) last = &packet;
    for (Packet& packet : packets_) {
      if (!packet.missing) continue;
      stats_.retransmitted++;
      transmit(packet, packet.missing, &packet == last, now_ns, out);
    }
    arm(now_ns);
  }
  if (now_ns >= probe_due_ns_) {
    probes_ = static_cast<unsigned>(std::min<std::uint64_t>(probes_ + 1, kMaxProbes));
    stats_.probes++;
    transmit(packets_.front(), receivers_ & ~packets_.front().have, true, now_ns, out);
    arm(now_ns);
  }
}

std::uint64_t BroadcastSender::next_tick_ns() const { return std::min(repair_due_ns_, probe_due_ns_); }

// The receiver.

BroadcastReceiver::BroadcastReceiver(const BroadcastConfig& config, std::uint8_t key, const Address& sender)
    : config_(config), key_(key), sender_(sender) {
  SLUICE_ASSERT(check(config).has_value());
  SLUICE_ASSERT(key < SL_COLL_DESTINATIONS_MAX);
}

std::uint64_t BroadcastReceiver::patience_ns() const {
  return std::clamp(2 * gap_average_ns_, config_.reorder_min_ns, config_.reorder_max_ns);
}

void BroadcastReceiver::receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out) {
  const auto header = parse(packet);
  if (!header || header->magic != SL_COLL_MAGIC_BROADCAST) return;
  if (from != sender_ || header->token != config_.token || header->job != config_.job ||
      header->incarnation() != config_.incarnation || header->exponent != config_.sender || !(header->key >> key_ & 1)) {
    stats_.foreign++;
    return;
  }
  if (!intact(packet) || header->version != SL_COLL_VERSION || size_of(header->dtype) == 0 ||
      payload_of(packet).size() > std::size_t{4} * config_.words) {
    stats_.corrupt++;
    return;
  }
  const std::uint64_t position = header->position();
  const std::uint64_t before = next_;
  const bool known = position < next_ || held_.contains(position);
  if (known) {
    stats_.duplicates++;
  } else if (position >= next_ + config_.window) {
    stats_.beyond_window++;
    return;
  } else {
    const ByteSpan payload = payload_of(packet);
    held_.emplace(position, Held{*header, Bytes(payload.begin(), payload.end())});
    for (auto it = held_.begin(); it != held_.end() && it->first == next_; it = held_.erase(it), next_++) deliver(it->second);
  }
  if (held_.empty() || next_ != before) {
    // A gap that closed before it was reported was reordering: be that patient with the next one.
    if (gap_ns_) gap_average_ns_ = (7 * gap_average_ns_ + (now_ns - *gap_ns_)) / 8;
    gap_ns_.reset();
  }
  if (!held_.empty() && !gap_ns_) gap_ns_ = now_ns;

  const bool group_complete = before / config_.group != next_ / config_.group;
  if (header->flags & SL_COLL_ACK_REQUEST) asked_ = true;
  ack_due_ns_ = group_complete ? now_ns : gap_ns_ ? *gap_ns_ + patience_ns() : asked_ ? now_ns : kNever;
  // Progress is told at once; what would only repeat itself waits its turn.
  if (next_ == before && acked_ && ack_due_ns_ != kNever) ack_due_ns_ = std::max(ack_due_ns_, last_ack_ns_ + patience_ns());
  if (now_ns >= ack_due_ns_) acknowledge(now_ns, out);
}

void BroadcastReceiver::deliver(const Held& packet) {
  if (packet.header.frag_offset == 0) partial_ = {packet.header.dtype, {}};
  partial_.bytes.insert(partial_.bytes.end(), packet.payload.begin(), packet.payload.end());
  if (packet.header.flags & SL_COLL_LAST_FRAGMENT) {
    messages_.push_back(std::move(partial_));
    partial_ = {};
  }
}

void BroadcastReceiver::tick(std::uint64_t now_ns, Outbox& out) {
  if (now_ns >= ack_due_ns_) acknowledge(now_ns, out);
}

void BroadcastReceiver::acknowledge(std::uint64_t now_ns, Outbox& out) {
  ack_due_ns_ = kNever;
  last_ack_ns_ = now_ns;
  acked_ = true;
  asked_ = false;
  if (gap_ns_) gap_ns_ = now_ns;  // reported; again after the same patience, when something comes
  sl_coll_group_ack ack{};
  ack.room = config_.window;
  ack.bits = SL_COLL_GROUP_MAX;
  for (const auto& [position, packet] : held_) {
    const std::uint64_t i = position - next_;
    if (i < SL_COLL_GROUP_MAX) ack.bitmap[i / 8] |= static_cast<std::uint8_t>(1u << i % 8);
  }
  Header header;
  header.magic = SL_COLL_MAGIC_CONTROL;
  header.op = SL_COLL_GROUP_ACK;
  header.key = key_;
  header.job = config_.job;
  header.members = config_.members;
  header.token = config_.token;
  header.place(config_.incarnation, next_);
  stats_.acks++;
  out.push_back({sender_, encode(header, as_bytes(ack))});
}

std::optional<BroadcastReceiver::Message> BroadcastReceiver::take() {
  if (messages_.empty()) return std::nullopt;
  Message message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

}  // namespace sluice::coll
