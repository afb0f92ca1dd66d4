// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/model/member.h"

#include <cmath>
#include <limits>

#include "coll/model/numbers.h"

namespace sluice::coll {
namespace {

constexpr unsigned kOvertakenBy = 3;  // results of later-sent chunks

std::int64_t integer_at(std::uint8_t dtype, ByteSpan bytes, std::size_t index) {
  if (dtype == SL_COLL_I64) {
    std::int64_t value;
    std::memcpy(&value, bytes.data() + 8 * index, 8);
    return value;
  }
  std::int32_t value;
  std::memcpy(&value, bytes.data() + 4 * index, 4);
  return value;
}

void put_word(Bytes& payload, std::size_t size, std::size_t index, std::int64_t value) {
  std::memcpy(payload.data() + size * index, &value, size);  // little-endian: the low bytes come first
}

}  // namespace

Status Member::check(const MemberConfig& config) {
  if (config.key >= SL_COLL_MEMBERS_MAX) return fail_members(std::size_t{config.key} + 1);
  if (config.key >= config.members) return sluice::fail(Code::kInvalid, "KEY {} of {} members", config.key, config.members);
  return check_geometry(config.members, config.window, config.words, config.weight_sum);
}

Member::Member(const MemberConfig& config)
    : config_(config), rtt_(config.rto_initial_ns, config.rto_min_ns, config.rto_max_ns), flights_(config.window) {
  SLUICE_ASSERT(check(config_).has_value());
}

Header Member::header() const {
  Header header;
  header.key = config_.key;
  header.job = config_.job;
  header.members = config_.members;
  header.token = config_.token;
  header.place(incarnation_, 0);
  return header;
}

// Control packets that await an answer: often enough to be heard in time on a bad wire.
std::uint64_t Member::until_repeated(unsigned& tries) const {
  return std::min(config_.heartbeat_ns / 4, rtt_.backed_off(++tries));
}

void Member::send_control(sl_coll_control kind, ByteSpan payload, Outbox& out) {
  Header control = header();
  control.magic = SL_COLL_MAGIC_CONTROL;
  control.op = static_cast<std::uint8_t>(kind);
  out.push_back({config_.aggregator, encode(control, payload)});
}

void Member::send_join(std::uint64_t now_ns, Outbox& out) {
  sl_coll_join join{};
  join.instance = config_.instance;
  join.weight_sum = config_.weight_sum;
  join.window = config_.window;
  join.words = config_.words;
  join.mode = config_.mode;
  send_control(SL_COLL_JOIN, as_bytes(join), out);
  repeat_due_ns_ = now_ns + until_repeated(repeat_tries_);
}

void Member::join(std::uint64_t now_ns, Outbox& out) {
  SLUICE_ASSERT(state_ == State::kNew);
  state_ = State::kJoining;
  deadline_ns_ = now_ns + config_.join_timeout_ns;
  send_join(now_ns, out);
}

void Member::leave(std::uint64_t now_ns, Outbox& out) {
  if (state_ != State::kIdle) return;
  state_ = State::kLeaving;
  heartbeat_due_ns_ = kNever;
  deadline_ns_ = now_ns + config_.leave_timeout_ns;
  repeat_tries_ = 0;
  send_leave(now_ns, out);
}

void Member::send_leave(std::uint64_t now_ns, Outbox& out) {
  send_control(SL_COLL_LEAVE, {}, out);
  repeat_due_ns_ = now_ns + until_repeated(repeat_tries_);
}

void Member::end_leaving() {
  state_ = State::kLeft;
  repeat_due_ns_ = deadline_ns_ = kNever;
}

std::optional<Status> Member::take_outcome() {
  std::optional<Status> outcome = std::move(outcome_);
  outcome_.reset();
  return outcome;
}

void Member::fail(Error error) {
  failure_ = error.within(fmt::format("job {}, KEY {}", config_.job, config_.key));
  if (state_ == State::kCalling || state_ == State::kJoining) outcome_ = tl::unexpected<Error>(failure_);
  state_ = State::kFailed;
  for (auto& flight : flights_) flight.reset();
  heartbeat_due_ns_ = repeat_due_ns_ = deadline_ns_ = kNever;
}

// Calls.

bool Member::scaled() const {
  return is_float(call_.dtype) && (call_.op == SL_COLL_SUM || call_.op == SL_COLL_AVERAGE) && call_.fixed_scale == 0;
}

bool Member::plain(const Call& call) {
  return (call.dtype == SL_COLL_I32 || call.dtype == SL_COLL_I64) &&
         (call.op == SL_COLL_SUM || call.op == SL_COLL_MAX || call.op == SL_COLL_MIN);
}

bool Member::wants(std::size_t chunk) const {
  return first_of(chunk) < call_.wanted_end && first_of(chunk) + count_of(chunk) > call_.wanted_begin;
}

Status Member::begin(const Call& call, std::uint64_t now_ns, Outbox& out) {
  if (state_ == State::kFailed) return tl::unexpected<Error>(failure_);
  if (state_ != State::kIdle || outcome_)
    return sluice::fail(Code::kConflict, "a call can begin when the member has joined and no other call is under way");
  Header probe;
  probe.op = static_cast<std::uint8_t>(call.op);
  probe.dtype = static_cast<std::uint8_t>(call.dtype);
  if (call.fixed_scale != 0) probe.dtype |= SL_COLL_FIXED_SCALE;
  const std::size_t wire = wire_size(probe), element = size_of(probe.dtype);
  const bool barrier = call.op == SL_COLL_BARRIER;
  if (wire == 0) return sluice::fail(Code::kInvalid, "there is no {} of {}", op_name(probe.op), dtype_name(probe.dtype));
  if (!barrier && (call.input.size() % element != 0 || call.input.size() / element > SL_COLL_ELEMENTS_MAX))
    return sluice::fail(Code::kInvalid, "{} bytes are not 0 to {} elements of {}", call.input.size(), SL_COLL_ELEMENTS_MAX,
                        dtype_name(probe.dtype));
  if (barrier && !call.input.empty()) return sluice::fail(Code::kInvalid, "a barrier has no elements");
  if (call.output.size() != call.input.size() && call.wanted_begin < call.wanted_end)
    return sluice::fail(Code::kInvalid, "the output has {} bytes, the input {}", call.output.size(), call.input.size());
  if (!std::isfinite(call.fixed_scale) || call.fixed_scale < 0)
    return sluice::fail(Code::kInvalid, "{} is not a scale", call.fixed_scale);
  const bool adds_floats = is_float(probe.dtype) && (call.op == SL_COLL_SUM || call.op == SL_COLL_AVERAGE);
  if (adds_floats && config_.weight_sum > SL_COLL_WEIGHTS_MAX)
    return sluice::fail(Code::kInvalid, "the weights add up to {}; floats allow {}", config_.weight_sum, SL_COLL_WEIGHTS_MAX);

  SLUICE_CHECK(check_memory(call));

  call_ = call;
  element_ = element;
  chunk_elements_ = std::size_t{4} * config_.words / wire;
  chunks_.assign(std::max<std::size_t>(1, (elements() + chunk_elements_ - 1) / chunk_elements_), {});
  flagged_.clear();
  specials_.clear();
  overflow_ = false;
  last_status_.reset();
  state_ = State::kCalling;
  began_ns_ = now_ns;
  deadline_ns_ = now_ns + call.timeout_ns;
  if (scaled()) {
    std::vector<float> scratch;
    for (std::size_t chunk = 0; chunk < chunks_.size(); chunk++)
      chunks_[chunk].own_exponent = block_exponent(
          floats_of(probe.dtype, call.input.subspan(first_of(chunk) * element_, count_of(chunk) * element_), scratch));
  }
  enter(scaled() && elements() > 0 ? Phase::kExponents : Phase::kChunks);
  pump(now_ns, out);
  return {};
}

void Member::enter(Phase phase) {
  phase_ = phase;
  next_item_ = done_items_ = 0;
  carrying_ = false;
  items_ = phase == Phase::kExponents ? (chunks_.size() + config_.words - 1) / config_.words
           : phase == Phase::kChunks  ? chunks_.size()
                                      : flagged_.size();
}

// A slot is free when the result of the position before has come: the window rule.
void Member::pump(std::uint64_t now_ns, Outbox& out) {
  if (phase_ == Phase::kChunks && next_item_ == 0 && !carrying_) carrying_ = carry(now_ns, out);
  if (carrying_) return;
  while (next_item_ < items_ && !flights_[next_position_ % config_.window]) contribute(next_item_++, now_ns, out);
}

Header Member::call_header(std::uint64_t position) const {
  Header made = header();
  made.magic = SL_COLL_MAGIC_AGGREGATE;
  made.place(incarnation_, position);
  made.op = static_cast<std::uint8_t>(call_.op);
  made.dtype = static_cast<std::uint8_t>(call_.dtype);
  if (call_.fixed_scale != 0) {
    const auto bits = std::bit_cast<std::uint32_t>(call_.fixed_scale);
    made.dtype |= SL_COLL_FIXED_SCALE;
    made.exponent = static_cast<std::int16_t>(bits >> 16);
    made.scale_low = static_cast<std::int16_t>(bits);
  }
  return made;
}

void Member::contribute(std::size_t item, std::uint64_t now_ns, Outbox& out) {
  Flight flight;
  flight.position = next_position_++;
  flight.phase = phase_;
  flight.header = call_header(flight.position);
  switch (phase_) {
    case Phase::kExponents: {
      flight.chunk = item * config_.words;
      flight.header.frag_offset = SL_COLL_FRAG_EXPONENTS;
      flight.header.exponent = static_cast<std::int16_t>(elements() >> 16);
      flight.header.scale_low = static_cast<std::int16_t>(elements());
      const std::size_t count = std::min<std::size_t>(chunks_.size() - flight.chunk, config_.words);
      flight.payload.resize(4 * count);
      for (std::size_t i = 0; i < count; i++) put_word(flight.payload, 4, i, chunks_[flight.chunk + i].own_exponent);
      break;
    }
    case Phase::kChunks:
      flight.chunk = item;
      fill_chunk(item, flight.header, flight.payload);
      break;
    case Phase::kSpecials: {
      flight.chunk = flagged_[item];
      flight.header.frag_offset = SL_COLL_FRAG_SPECIAL | static_cast<std::uint32_t>(first_of(flight.chunk));
      if (!wants(flight.chunk)) flight.header.flags |= SL_COLL_NO_VALUES;
      flight.payload.resize(4 * count_of(flight.chunk));
      if (const auto own = specials_.find(flight.chunk); own != specials_.end())
        std::memcpy(flight.payload.data(), own->second.data(), flight.payload.size());
      break;
    }
  }
  auto& slot = flights_[flight.position % config_.window];
  slot = std::move(flight);
  send(*slot, now_ns, out);
}

std::uint8_t Member::flags_of(std::size_t chunk) const {
  return static_cast<std::uint8_t>((chunk + 1 == chunks_.size() ? SL_COLL_LAST_FRAGMENT : 0) |
                                   (wants(chunk) ? 0 : SL_COLL_NO_VALUES));
}

void Member::fill_chunk(std::size_t chunk, Header& header, Bytes& payload) {
  header.frag_offset = static_cast<std::uint32_t>(first_of(chunk));
  header.flags |= flags_of(chunk);
  if (call_.op == SL_COLL_BARRIER) return;
  const std::size_t count = count_of(chunk), wire = wire_size(header);
  const ByteSpan bytes = call_.input.subspan(first_of(chunk) * element_, count * element_);
  if (plain(call_)) return payload.assign(bytes.begin(), bytes.end());
  payload.resize(count * wire);
  if (!is_float(header.dtype)) {
    const auto limit = INT64_MAX / static_cast<std::int64_t>(config_.weight_sum);
    for (std::size_t i = 0; i < count; i++) {
      std::int64_t value = integer_at(header.dtype, bytes, i);
      if (call_.op == SL_COLL_COUNT) value = value != 0;
      if (call_.op == SL_COLL_AVERAGE && (value > limit || value < -limit)) {
        header.flags |= SL_COLL_OVERFLOW;
        value = 0;
      }
      put_word(payload, wire, i, value);
    }
    return;
  }
  std::vector<float> scratch;
  const auto values = floats_of(header.dtype, bytes, scratch);
  const std::span<std::int32_t> words(reinterpret_cast<std::int32_t*>(payload.data()), count);
  if (call_.op == SL_COLL_COUNT) {
    for (std::size_t i = 0; i < count; i++) words[i] = values[i] != 0;
  } else if (call_.op == SL_COLL_MAX || call_.op == SL_COLL_MIN) {
    for (std::size_t i = 0; i < count; i++) words[i] = ordered(values[i], call_.op == SL_COLL_MAX ? INT32_MAX : INT32_MIN);
  } else {
    if (scaled()) {
      header.exponent = static_cast<std::int16_t>(chunks_[chunk].agreed_exponent);
      quantise(values, chunks_[chunk].agreed_exponent, headroom(config_.weight_sum), words);
      header.flags |= special_flags(values);
    } else {
      header.flags |= quantise_fixed(values, call_.fixed_scale, config_.weight_sum, words);
    }
    if (header.flags & SL_COLL_SPECIAL) {
      auto& counts = specials_[chunk];
      for (float value : values) counts.push_back(special_count(value));
    }
  }
}

void Member::send(Flight& flight, std::uint64_t now_ns, Outbox& out) {
  flight.sent_ns = now_ns;
  flight.order = ++sends_;
  flight.due_ns = now_ns + rtt_.backed_off(++flight.tries);
  Header header = flight.header;
  if (flight.tries >= kStatusFromTry) header.flags |= SL_COLL_ACK_REQUEST;
  stats_.sent++;
  if (flight.tries > 1) stats_.retransmitted++;
  out.push_back({config_.aggregator, encode(header, flight.payload)});
}

// Packets.

void Member::receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out) {
  const auto header = parse(packet);
  if (!header || header->magic == SL_COLL_MAGIC_BROADCAST) return;
  if (from != config_.aggregator || header->token != config_.token || header->job != config_.job ||
      header->key != config_.key || !(header->flags & SL_COLL_RESULT)) {
    stats_.foreign++;
    return;
  }
  if (!trusts(packet) || (header->version != SL_COLL_VERSION && header->op != SL_COLL_REFUSED)) {
    stats_.corrupt++;
    return;
  }
  if (state_ == State::kNew || state_ == State::kFailed || state_ == State::kLeft) return;
  heard_ns_ = now_ns;
  if (header->magic == SL_COLL_MAGIC_CONTROL)
    take_control(*header, payload_of(packet), now_ns);
  else if (header->incarnation() == incarnation_ && state_ == State::kCalling)
    take_result(*header, payload_of(packet), now_ns, out);
  else
    stats_.unexpected++;
}

void Member::take_result(const Header& header, ByteSpan payload, std::uint64_t now_ns, Outbox& out) {
  auto& slot = flights_[header.position() % config_.window];
  if (!slot || !awaits(slot->position, header.position())) {
    stats_.unexpected++;
    return;
  }
  const Header& asked = slot->header;
  const bool values = !(asked.flags & SL_COLL_NO_VALUES);
  if (header.op != asked.op || header.dtype != asked.dtype || header.frag_offset != asked.frag_offset ||
      header.exponent != asked.exponent || header.scale_low != asked.scale_low ||
      payload.size() != (values ? slot->payload.size() : 0)) {
    stats_.corrupt++;
    return;
  }
  if (slot->phase == Phase::kExponents && !exponents_possible(slot->chunk, payload)) {
    stats_.corrupt++;
    return;
  }
  stats_.results++;
  if (slot->tries == 1) rtt_.sample(now_ns - slot->sent_ns);
  const Flight flight = std::move(*slot);
  slot.reset();
  if (last_status_ && last_status_->first == flight.position) last_status_.reset();

  for (auto& other : flights_)
    if (other && other->order < flight.order && !other->hurried && ++other->overtaken == kOvertakenBy) {
      other->hurried = true;
      stats_.overtaken++;
      send(*other, now_ns, out);
    }

  if (header.flags & SL_COLL_OVERFLOW) overflow_ = true;
  switch (flight.phase) {
    case Phase::kExponents:
      for (std::size_t i = 0; 4 * i < payload.size(); i++)
        chunks_[flight.chunk + i].agreed_exponent = static_cast<int>(integer_at(SL_COLL_I32, payload, i));
      break;
    case Phase::kChunks:
      chunks_[flight.chunk].result_flags = header.flags;
      if (values) store_chunk(flight.chunk, payload);
      break;
    case Phase::kSpecials:
      if (values) store_special(flight.chunk, payload);
      break;
  }
  if (++done_items_ == items_) return end_phase(now_ns, out);
  pump(now_ns, out);
}

// A maximum over members is not below what this one said, and none has an f32 beyond the largest.
bool Member::exponents_possible(std::size_t first_chunk, ByteSpan payload) const {
  for (std::size_t i = 0; 4 * i < payload.size(); i++) {
    const std::int64_t exponent = integer_at(SL_COLL_I32, payload, i);
    if (exponent < chunks_[first_chunk + i].own_exponent || exponent > std::numeric_limits<float>::max_exponent) return false;
  }
  return true;
}

void Member::store_chunk(std::size_t chunk, ByteSpan payload) {
  if (call_.op == SL_COLL_BARRIER) return;
  if (plain(call_) && !payload.empty())
    std::memcpy(call_.output.data() + first_of(chunk) * element_, payload.data(), payload.size());
  if (plain(call_)) return;
  const auto dtype = static_cast<std::uint8_t>(call_.dtype);
  const std::size_t count = count_of(chunk);
  const bool wide = count != 0 && payload.size() == 8 * count;
  const double divisor = call_.op == SL_COLL_AVERAGE ? static_cast<double>(config_.weight_sum) : 1;
  std::uint8_t* out = call_.output.data() + first_of(chunk) * element_;
  if (scaled()) return dequantise(payload, chunks_[chunk].agreed_exponent, headroom(config_.weight_sum), divisor, dtype, out);
  for (std::size_t i = 0; i < count; i++, out += element_) {
    const std::int64_t word = integer_at(wide ? SL_COLL_I64 : SL_COLL_I32, payload, i);
    const auto narrow = static_cast<std::int32_t>(word);
    if (!is_float(dtype)) {
      const std::int64_t value = call_.op == SL_COLL_AVERAGE ? word / static_cast<std::int64_t>(config_.weight_sum) : word;
      std::memcpy(out, &value, element_);
    } else if (call_.op == SL_COLL_COUNT) {
      store_float(dtype, static_cast<double>(word), out);
    } else if (call_.op == SL_COLL_MAX || call_.op == SL_COLL_MIN) {
      store_float(dtype, from_ordered(narrow), out);
    } else {
      store_float(dtype, dequantise_fixed(narrow, call_.fixed_scale, divisor), out);
    }
  }
}

void Member::store_special(std::size_t chunk, ByteSpan payload) {
  const auto dtype = static_cast<std::uint8_t>(call_.dtype);
  for (std::size_t i = 0; i < count_of(chunk); i++) {
    const auto counts = static_cast<std::int32_t>(integer_at(SL_COLL_I32, payload, i));
    if (counts == 0) continue;
    store_float(dtype, apply_special(0, counts), call_.output.data() + (first_of(chunk) + i) * element_);
  }
}

void Member::end_phase(std::uint64_t now_ns, Outbox& out) {
  if (phase_ == Phase::kExponents) {
    enter(Phase::kChunks);
    return pump(now_ns, out);
  }
  if (phase_ == Phase::kChunks) {
    for (std::size_t chunk = 0; chunk < chunks_.size(); chunk++)
      if (chunks_[chunk].result_flags & SL_COLL_SPECIAL) flagged_.push_back(chunk);
    if (!flagged_.empty()) {
      enter(Phase::kSpecials);
      return pump(now_ns, out);
    }
  }
  calls_completed_++;
  state_ = State::kIdle;
  deadline_ns_ = kNever;
  outcome_ = Status{};
  if (overflow_)
    outcome_ = call_.fixed_scale != 0
                   ? sluice::fail(make_error(Code::kInvalid,
                                             fmt::format("{} of {}: a value times the scale {} is beyond {}",
                                                         op_name(static_cast<std::uint8_t>(call_.op)),
                                                         dtype_name(static_cast<std::uint8_t>(call_.dtype)), call_.fixed_scale,
                                                         std::uint64_t{INT32_MAX} / config_.weight_sum),
                                             "use a smaller scale, or none"))
                   : sluice::fail(Code::kInvalid, "average of i64: a value is beyond {}, so that a sum of {} might overflow",
                                  INT64_MAX / static_cast<std::int64_t>(config_.weight_sum), config_.weight_sum);
}

void Member::take_control(const Header& header, ByteSpan payload, std::uint64_t now_ns) {
  if (header.op == SL_COLL_ACCEPT || header.op == SL_COLL_REFUSED) {
    if (const auto accept = from_bytes<sl_coll_accept>(payload); accept && accept->instance == config_.instance)
      return take_accept(header, *accept, now_ns);
    stats_.unexpected++;
    return;
  }
  // Before it is accepted a member cannot tell what is said to it from what was said to a process before it. Afterwards only
  // what is said about its incarnation matters, and that there is a later one.
  if (state_ == State::kJoining || header.incarnation() < incarnation_ ||
      (header.op == SL_COLL_EPOCH) != (header.incarnation() > incarnation_)) {
    stats_.unexpected++;
    return;
  }
  if (header.op == SL_COLL_ALIVE || header.op == SL_COLL_STATUS) {
    const auto status = from_bytes<sl_coll_status>(payload);
    if (!status) {
      stats_.corrupt++;
      return;
    }
    joined_ = status->joined;
    fallback_ = status->fallback;
    if (header.op == SL_COLL_ALIVE) {
      if (state_ == State::kLeaving) return;
      heartbeat_tries_ = 0;
      heartbeat_due_ns_ = now_ns + config_.heartbeat_ns;
      return;
    }
    if (!outstanding(header.position())) {
      stats_.unexpected++;
      return;
    }
    if (!last_status_ || header.position() <= last_status_->first) last_status_ = {header.position(), status->bitmap};
    return;
  }
  if (state_ == State::kLeaving) return end_leaving();  // LEAVE, or what became of the job: the aggregator knows
  const auto failure = from_bytes<sl_coll_failure>(payload);
  if (!failure) {
    stats_.corrupt++;
    return;
  }
  const auto key = [](std::uint8_t who) { return who == 255 ? -1 : int{who}; };
  switch (header.op) {
    case SL_COLL_MISMATCH:
      return fail(make_error(Code::kInvalid,
                             "mismatch: " + difference(failure->a, key(failure->key_a), failure->b, key(failure->key_b)),
                             "make all members call with the same arguments, in the same order"));
    case SL_COLL_MEMBER_DEAD:
      return fail(make_error(
          Code::kUnavailable,
          fmt::format("KEY {} {}", key_list(failure->missing),
                      failure->reason == SL_COLL_REASON_LEFT ? "left while others call" : "is dead: it is not heard any more"),
          "join again without it, or start it again"));
    case SL_COLL_ABORTED:
      return fail(make_error(Code::kTimeout, failure->missing ? fmt::format("KEY {} gave up waiting for KEY {}", failure->key_a,
                                                                            key_list(failure->missing))
                                                              : fmt::format("KEY {} gave up", failure->key_a)));
    case SL_COLL_JOB_GONE:
      return fail(make_error(Code::kNotFound, "the job was destroyed"));
    case SL_COLL_EPOCH:
      return fail(make_error(Code::kUnavailable,
                             fmt::format("the aggregator was restarted: incarnation {}, here {}; {} calls were completed here",
                                         header.incarnation(), incarnation_, calls_completed_),
                             "join again, and go on from a checkpoint that all members have"));
    default:
      stats_.unexpected++;
  }
}

void Member::take_accept(const Header& header, const sl_coll_accept& accept, std::uint64_t now_ns) {
  if (state_ != State::kJoining) return;
  switch (accept.reason) {
    case SL_COLL_OK:
      incarnation_ = header.incarnation();
      joined_ = accept.joined;
      fallback_ = accept.fallback;
      state_ = State::kIdle;
      repeat_due_ns_ = deadline_ns_ = kNever;
      heartbeat_due_ns_ = now_ns;  // at once: it confirms this process
      return;
    case SL_COLL_REASON_VERSION:
      return fail(make_error(Code::kUnsupported, fmt::format("the aggregator speaks version {} of the protocol, this member {}",
                                                             accept.version, SL_COLL_VERSION)));
    case SL_COLL_REASON_MEMBERS:
      return fail(fail_members(std::size_t{config_.key} + 1).value());
    case SL_COLL_REASON_TAKEN:
      return fail(make_error(Code::kConflict, "another process has joined under this KEY"));
    case SL_COLL_REASON_FAILED:
      return fail(make_error(Code::kUnavailable, "the job has failed", "join its next incarnation"));
    case SL_COLL_REASON_GONE:
      return fail(make_error(Code::kNotFound, "the job was destroyed"));
    default:
      return fail(make_error(
          Code::kInvalid,
          fmt::format(
              "the job has {} members, {} slots, chunks of {} words and weights of {} in all; here it is {}, {}, {}, {}",
              header.members, accept.window, accept.words, accept.weight_sum, config_.members, config_.window, config_.words,
              config_.weight_sum)));
  }
}

bool Member::outstanding(std::uint64_t position) const {
  const auto& slot = flights_[position % config_.window];
  return slot && slot->position == position;
}

// Time.

std::uint64_t Member::next_tick_ns() const {
  std::uint64_t next = std::min({heartbeat_due_ns_, repeat_due_ns_, deadline_ns_});
  for (const auto& flight : flights_)
    if (flight) next = std::min(next, flight->due_ns);
  return next;
}

void Member::tick(std::uint64_t now_ns, Outbox& out) {
  if (now_ns >= deadline_ns_) return pass_deadline(out);
  if (now_ns >= repeat_due_ns_) state_ == State::kJoining ? send_join(now_ns, out) : send_leave(now_ns, out);
  if (now_ns >= heartbeat_due_ns_) {
    send_control(SL_COLL_ALIVE, {}, out);
    heartbeat_due_ns_ = now_ns + until_repeated(heartbeat_tries_);
  }
  for (auto& flight : flights_)
    if (flight && now_ns >= flight->due_ns) send(*flight, now_ns, out);
}

void Member::pass_deadline(Outbox& out) {
  if (state_ == State::kLeaving) return end_leaving();
  if (state_ == State::kJoining)
    return fail(
        make_error(Code::kTimeout, "the aggregator did not answer", "check that it runs and that its UDP port can be reached"));
  sl_coll_failure failure{};
  failure.reason = SL_COLL_REASON_DEADLINE;
  std::string text;
  if (last_status_) {
    const std::uint64_t all = config_.members >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << config_.members) - 1;
    failure.missing = all & ~last_status_->second;
    text = fmt::format("KEY {} did not contribute in time", key_list(failure.missing));
  } else if (heard_ns_ <= began_ns_) {
    text = "the aggregator did not answer";
  } else {
    text = "the call did not end in time";
  }
  send_control(SL_COLL_ABORT, as_bytes(failure), out);
  fail(make_error(Code::kTimeout, fmt::format("{} of {}: {}", op_name(static_cast<std::uint8_t>(call_.op)),
                                              dtype_name(static_cast<std::uint8_t>(call_.dtype)), text)));
}

}  // namespace sluice::coll
