// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/model/coordinator.h"

#include <algorithm>
#include <bit>

#include "coll/model/limits.h"

namespace sluice::coll {
namespace {

constexpr std::uint8_t kTheJob = 255;  // instead of a KEY: what the job was created with

sl_coll_shape shape_of(const sl_coll_entry& entry, std::uint16_t members) {
  Header header;
  header.frag_offset = entry.frag_offset;
  header.members = members;
  header.exponent = entry.exponent;
  header.scale_low = entry.scale_low;
  header.op = entry.op;
  header.dtype = entry.dtype;
  header.flags = entry.flags;
  return shape_of(header, entry.elements);
}

sl_coll_failure about(std::uint64_t keys, sl_coll_reason reason) {
  sl_coll_failure failure{};
  failure.missing = keys;
  failure.reason = static_cast<std::uint8_t>(reason);
  failure.key_a = static_cast<std::uint8_t>(std::countr_zero(keys));
  return failure;
}

}  // namespace

Address address_of(const sl_coll_member& member) {
  Address address;
  std::copy(std::begin(member.addr), std::end(member.addr), address.ip.begin());
  const auto* port = reinterpret_cast<const std::uint8_t*>(&member.port);
  address.port = static_cast<std::uint16_t>(port[0] << 8 | port[1]);
  return address;
}

Status Coordinator::check(const AggregatorConfig& config) {
  const sl_coll_job& job = config.job;
  if (job.contributors > SL_COLL_MEMBERS_MAX || config.members.size() > SL_COLL_MEMBERS_MAX)
    return fail_members(std::max<std::size_t>(job.contributors, config.members.size()));
  if (job.contributors == 0 || job.contributors != config.members.size() || job.contributors > job.members)
    return sluice::fail(Code::kInvalid, "{} contributors of a job of {} members, {} addresses", job.contributors, job.members,
                        config.members.size());
  std::uint64_t weights = 0;
  for (const sl_coll_member& member : config.members) {
    if (member.weight == 0) return sluice::fail(Code::kInvalid, "a member's weight is 0");
    weights += member.weight;
  }
  if (weights > job.weight_sum || (weights != job.weight_sum && job.contributors == job.members))
    return sluice::fail(Code::kInvalid, "the weights add up to {}, the job says {}", weights, job.weight_sum);
  if (job.incarnation == 0) return sluice::fail(Code::kInvalid, "incarnation 0");
  return check_geometry(job.members, job.window, job.words, job.weight_sum);
}

Coordinator::Coordinator(AggregatorConfig config) : config_(std::move(config)) {
  SLUICE_ASSERT(check(config_).has_value());
  all_ = config_.job.contributors == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << config_.job.contributors) - 1;
}

void Coordinator::receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out) {
  const auto header = parse(packet);
  if (!header || header->magic == SL_COLL_MAGIC_BROADCAST) return;
  count(SL_COLL_RECEIVED);
  if (header->job != config_.job.job || header->token != config_.job.token) return count(SL_COLL_BAD_TOKEN);
  if (!trusts(packet)) return count(SL_COLL_CORRUPT);
  const bool joins = header->magic == SL_COLL_MAGIC_CONTROL && header->op == SL_COLL_JOIN;
  if (header->key >= config_.job.contributors) {
    // Whoever has the token and a KEY too many is told; nobody else can be meant by the address.
    if (!joins) return count(SL_COLL_MALFORMED);
  } else if (from != address_of(config_.members[header->key])) {
    return count(SL_COLL_BAD_SOURCE);
  }
  if (header->version != SL_COLL_VERSION && !joins) return count(SL_COLL_BAD_VERSION);
  if (header->flags & SL_COLL_RESULT) return count(SL_COLL_MALFORMED);
  if (joins) return control(from, *header, payload_of(packet), now_ns, out);
  if (header->incarnation() != config_.job.incarnation) {
    count(SL_COLL_OLD_EPOCH);
    return send_control(header->key, SL_COLL_EPOCH, header->position(), as_bytes(sl_coll_failure{}), out);
  }
  config_.members[header->key].heard_ns = now_ns;
  confirmed_ |= std::uint64_t{1} << header->key;  // only who was accepted knows the incarnation
  if (failed()) {
    count(SL_COLL_AFTER_FAILURE);
    return send_failure(header->key, out);
  }
  if (header->magic == SL_COLL_MAGIC_CONTROL)
    control(from, *header, payload_of(packet), now_ns, out);
  else
    contribute(*header, payload_of(packet), out);
}

void Coordinator::control(const Address& from, const Header& header, ByteSpan payload, std::uint64_t now_ns, Outbox& out) {
  const std::uint64_t bit = std::uint64_t{1} << (header.key & 63);
  switch (header.op) {
    case SL_COLL_JOIN: {
      const auto wanted = from_bytes<sl_coll_join>(payload);
      return wanted ? join(from, header, *wanted, now_ns, out) : count(SL_COLL_MALFORMED);
    }
    case SL_COLL_ALIVE:
      return send_status(header.key, SL_COLL_ALIVE, header.position(), 0, out);
    case SL_COLL_LEAVE:
      left_ |= bit;
      if (missed(bit)) return fail_left(bit, out);
      return send_control(header.key, SL_COLL_LEAVE, 0, {}, out);
    case SL_COLL_ABORT: {
      auto failure = from_bytes<sl_coll_failure>(payload);
      if (!failure) return count(SL_COLL_MALFORMED);
      failure->key_a = static_cast<std::uint8_t>(header.key);
      return fail(SL_COLL_ABORTED, *failure, out);
    }
    default:
      return count(SL_COLL_MALFORMED);
  }
}

void Coordinator::join(const Address& from, const Header& header, const sl_coll_join& join, std::uint64_t now_ns, Outbox& out) {
  const sl_coll_job& job = config_.job;
  sl_coll_accept accept{};
  accept.instance = join.instance;
  accept.weight_sum = job.weight_sum;
  accept.window = job.window;
  accept.words = job.words;
  accept.version = SL_COLL_VERSION;
  const std::uint64_t bit = std::uint64_t{1} << (header.key & 63);
  if (header.version != SL_COLL_VERSION)
    accept.reason = SL_COLL_REASON_VERSION;
  else if (header.key >= job.contributors)
    accept.reason = SL_COLL_REASON_MEMBERS;
  else if (join.window != job.window || join.words != job.words || join.weight_sum != job.weight_sum ||
           header.members != job.members)
    accept.reason = SL_COLL_REASON_GEOMETRY;
  else if ((joined_ & confirmed_ & bit) && instances_[header.key] != join.instance)
    accept.reason = SL_COLL_REASON_TAKEN;
  else if (failed())
    accept.reason = config_.job.state == SL_COLL_JOB_IS_GONE ? SL_COLL_REASON_GONE : SL_COLL_REASON_FAILED;
  if (accept.reason == SL_COLL_OK) {
    joined_ |= bit;
    instances_[header.key] = join.instance;
    config_.members[header.key].heard_ns = now_ns;
    fallback_ = join.mode == SL_COLL_FALLBACK ? fallback_ | bit : fallback_ & ~bit;
  }
  accept.joined = joined_;
  accept.fallback = fallback_;
  Header answer = header_to(header.key);
  answer.magic = SL_COLL_MAGIC_CONTROL;
  answer.op = accept.reason == SL_COLL_OK ? SL_COLL_ACCEPT : SL_COLL_REFUSED;
  out.push_back({from, encode(answer, as_bytes(accept))});
}

void Coordinator::tick(std::uint64_t now_ns, Outbox& out) {
  if (failed()) return;
  std::uint64_t silent = 0;
  for (std::uint32_t key = 0; key < config_.job.contributors; key++)
    if (((joined_ & ~left_) >> key & 1) && config_.members[key].heard_ns + config_.dead_after_ns <= now_ns)
      silent |= std::uint64_t{1} << key;
  if (silent) fail(SL_COLL_MEMBER_DEAD, about(silent, SL_COLL_REASON_SILENT), out);
}

std::uint64_t Coordinator::next_tick_ns() const {
  std::uint64_t next = kNever;
  if (failed()) return next;
  for (std::uint32_t key = 0; key < config_.job.contributors; key++)
    if ((joined_ & ~left_) >> key & 1)
      next = std::min<std::uint64_t>(next, config_.members[key].heard_ns + config_.dead_after_ns);
  return next;
}

void Coordinator::destroy(Outbox& out) {
  if (!failed()) fail(SL_COLL_JOB_GONE, {}, out);
  config_.job.state = SL_COLL_JOB_IS_GONE;
}

bool Coordinator::fits(const Header& header, ByteSpan payload) {
  const std::size_t element = wire_size(header);
  if (element != 0 && payload.size() % element == 0 && payload.size() <= std::size_t{4} * config_.job.words) return true;
  count(SL_COLL_MALFORMED);
  return false;
}

bool Coordinator::mismatched(const sl_coll_entry* entry, const Header& header, ByteSpan payload, Outbox& out) {
  sl_coll_failure failure{};
  failure.b = shape_of(header, payload.size() / wire_size(header));
  failure.key_b = static_cast<std::uint8_t>(header.key);
  if (entry != nullptr) {
    failure.a = shape_of(*entry, config_.job.members);
    failure.key_a = entry->first_key;
  } else {
    failure.a = failure.b;
    failure.a.members = config_.job.members;
    failure.key_a = kTheJob;
  }
  if (std::memcmp(&failure.a, &failure.b, sizeof failure.a) == 0) return false;
  count(SL_COLL_MISMATCHED);
  fail(SL_COLL_MISMATCH, failure, out);
  return true;
}

void Coordinator::fail_left(std::uint64_t keys, Outbox& out) {
  fail(SL_COLL_MEMBER_DEAD, about(keys, SL_COLL_REASON_LEFT), out);
}

void Coordinator::fail(sl_coll_control kind, const sl_coll_failure& failure, Outbox& out) {
  config_.job.state = SL_COLL_JOB_FAILED;
  failure_kind_ = kind;
  failure_ = failure;
  for (std::uint32_t key = 0; key < config_.job.contributors; key++) send_failure(key, out);
}

void Coordinator::send_failure(std::uint32_t key, Outbox& out) const {
  send_control(key, failure_kind_, 0, as_bytes(failure_), out);
}

void Coordinator::send_status(std::uint32_t key, sl_coll_control kind, std::uint64_t position, std::uint64_t bitmap,
                              Outbox& out) const {
  const sl_coll_status status{.bitmap = bitmap, .joined = joined_, .fallback = fallback_};
  send_control(key, kind, position, as_bytes(status), out);
}

Header Coordinator::header_to(std::uint32_t key) const {
  Header header;
  header.key = key;
  header.flags = SL_COLL_RESULT;
  header.job = config_.job.job;
  header.members = config_.job.members;
  header.token = config_.job.token;
  header.place(config_.job.incarnation, 0);
  return header;
}

void Coordinator::send_control(std::uint32_t key, sl_coll_control kind, std::uint64_t position, ByteSpan payload,
                               Outbox& out) const {
  Header header = header_to(key);
  header.magic = SL_COLL_MAGIC_CONTROL;
  header.op = static_cast<std::uint8_t>(kind);
  header.place(config_.job.incarnation, position);
  out.push_back({address_of(config_.members[key]), encode(header, payload)});
}

}  // namespace sluice::coll
