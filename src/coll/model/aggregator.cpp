// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/model/aggregator.h"

#include <algorithm>

namespace sluice::coll {
namespace {

template <class T>
T combined(sl_coll_rule rule, T sum, T value) {
  using Unsigned = std::make_unsigned_t<T>;
  switch (rule) {
    case SL_COLL_MAX32:
    case SL_COLL_MAX64:
      return std::max(sum, value);
    case SL_COLL_MIN32:
    case SL_COLL_MIN64:
      return std::min(sum, value);
    default:
      return static_cast<T>(static_cast<Unsigned>(sum) + static_cast<Unsigned>(value));  // wraps
  }
}

template <class T>
void combine_words(sl_coll_rule rule, bool first, std::uint32_t weight, ByteSpan payload, std::uint32_t* words) {
  using Unsigned = std::make_unsigned_t<T>;
  auto* bytes = reinterpret_cast<std::uint8_t*>(words);
  for (std::size_t at = 0; at + sizeof(T) <= payload.size(); at += sizeof(T)) {
    T value, sum;
    std::memcpy(&value, payload.data() + at, sizeof value);
    value = static_cast<T>(static_cast<Unsigned>(value) * weight);
    if (!first) {
      std::memcpy(&sum, bytes + at, sizeof sum);
      value = combined(rule, sum, value);
    }
    std::memcpy(bytes + at, &value, sizeof value);
  }
}

}  // namespace

Aggregator::Aggregator(AggregatorConfig config) : Coordinator(std::move(config)) { slots_.resize(2 * config_.job.window); }

bool Aggregator::missed(std::uint64_t bit) const {
  return std::ranges::any_of(
      slots_, [&](const Slot& slot) { return slot.head.position != 0 && !complete(slot.head) && !(slot.head.bitmap & bit); });
}

bool Aggregator::may_open(std::uint64_t position) const {
  if (position < config_.job.window) return true;
  const std::uint64_t before = position - config_.job.window;
  const sl_coll_entry& previous = entry(index(before));
  return holds(previous, before) && complete(previous);
}

void Aggregator::contribute(const Header& header, ByteSpan payload, Outbox& out) {
  if (!fits(header, payload)) return;
  const std::uint64_t position = header.position();
  const std::uint64_t bit = std::uint64_t{1} << header.key;
  Slot& slot = slots_[index(position)];
  sl_coll_entry& head = slot.head;

  const bool first = !holds(head, position);
  if (first) {
    if (head.position > position + 1) return count(SL_COLL_STALE);
    if (!may_open(position)) return count(SL_COLL_FUTURE);
    if (mismatched(nullptr, header, payload, out)) return;
    head = {};
    head.position = position + 1;
    head.frag_offset = header.frag_offset;
    head.elements = static_cast<std::uint16_t>(payload.size() / wire_size(header));
    head.exponent = header.exponent;
    head.scale_low = header.scale_low;
    head.op = header.op;
    head.dtype = header.dtype;
    head.flags = header.flags & SL_COLL_LAST_FRAGMENT;
    head.first_key = static_cast<std::uint8_t>(header.key);
    slot.words.resize((payload.size() + 3) / 4);
    count(SL_COLL_FIRST);
  } else {
    if (mismatched(&head, header, payload, out)) return;
    if (has(head, bit)) {
      if (complete(head)) {
        count(SL_COLL_ANSWERED);
        return send_result(slots_[answer_index(position)], header, header.key, !(header.flags & SL_COLL_NO_VALUES), out);
      }
      count(SL_COLL_DUPLICATE);
      if (header.flags & SL_COLL_ACK_REQUEST) {
        count(SL_COLL_STATUS_SENT);
        send_status(header.key, SL_COLL_STATUS, position, head.bitmap, out);
      }
      return;
    }
    count(SL_COLL_ADDED);
  }
  combine(slot, header, payload, first);
  head.bitmap |= bit;
  if (header.flags & SL_COLL_NO_VALUES) head.no_values |= bit;
  head.flags |= header.flags & SL_COLL_STICKY;
  if (complete(head)) {
    count(SL_COLL_COMPLETED);
    for (std::uint32_t key = 0; key < config_.job.contributors; key++)
      send_result(slot, header, key, !(head.no_values >> key & 1), out);
  } else if (const std::uint64_t gone = left_ & ~head.bitmap; gone != 0) {
    fail_left(gone, out);
  }
}

void Aggregator::combine(Slot& slot, const Header& header, ByteSpan payload, bool first) const {
  const sl_coll_rule rule = rule_of(header);
  const std::uint32_t weight = is_weighted(header) ? config_.members[header.key].weight : 1;
  if (wire_size(header) == 8)
    combine_words<std::int64_t>(rule, first, weight, payload, slot.words.data());
  else
    combine_words<std::int32_t>(rule, first, weight, payload, slot.words.data());
}

void Aggregator::send_result(const Slot& slot, const Header& asked, std::uint32_t key, bool values, Outbox& out) const {
  Header header = header_to(key);
  header.magic = SL_COLL_MAGIC_AGGREGATE;
  header.place(config_.job.incarnation, asked.position());
  header.frag_offset = asked.frag_offset;
  header.op = asked.op;
  header.dtype = asked.dtype;
  header.exponent = slot.head.exponent;
  header.scale_low = slot.head.scale_low;
  header.flags |= slot.head.flags;
  ByteSpan payload{reinterpret_cast<const std::uint8_t*>(slot.words.data()), 4 * slot.words.size()};
  if (!values) {
    header.flags |= SL_COLL_NO_VALUES;
    payload = {};
  }
  out.push_back({address_of(config_.members[key]), encode(header, payload)});
}

}  // namespace sluice::coll
