// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/kernel/member.h"

#include <arpa/inet.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <span>

#include "coll/model/bulk.h"

namespace sluice::coll {
namespace {

// A program for each size of a chunk's place in the maps.
struct Take {
  const char* program;
  std::size_t place;
};
constexpr Take kTakes[] = {{"sl_coll_take", std::size_t{4} * SL_COLL_WORDS_DEFAULT},
                           {"sl_coll_take_large", std::size_t{4} * SL_COLL_WORDS_MAX}};
constexpr std::size_t kCarriedBytes = std::size_t{64} << 20;
constexpr std::uint64_t kLook_ns = 1'000'000;  // how often lost packets are looked for

}  // namespace

KernelMember::KernelMember(const KernelMemberConfig& config, std::size_t place, std::size_t capacity, Maps maps,
                           bpfio::RingBuffer ended, bpfio::Program program, Interface::Claim claim)
    : Member(config.member),
      port_(config.port),
      place_(place),
      capacity_(capacity),
      maps_(std::move(maps)),
      ended_(std::move(ended)),
      program_(std::move(program)),
      claim_(std::move(claim)),
      sent_(config.member.window) {}

Result<std::unique_ptr<KernelMember>> KernelMember::start(KernelMemberConfig config) {
  SLUICE_CHECK(check(config.member));
  config.member.mode = SL_COLL_KERNEL;
  const Take& take = kTakes[config.member.words > SL_COLL_WORDS_DEFAULT];
  const std::size_t carried = config.carried_bytes ? config.carried_bytes : kCarriedBytes;
  const std::size_t capacity = std::max<std::size_t>(config.member.window, (carried + take.place - 1) / take.place);
  SLUICE_TRY(object, bpfio::Object::open_file(config.object));
  SLUICE_CHECK(object.set_value_size("sl_coll_values", static_cast<std::uint32_t>(take.place)));
  SLUICE_CHECK(object.set_max_entries("sl_coll_values", static_cast<std::uint32_t>(capacity)));
  for (const Take& other : kTakes) SLUICE_CHECK(object.set_autoload(other.program, &other == &take));
  SLUICE_CHECK(object.set_max_entries("sl_coll_chunks", static_cast<std::uint32_t>(capacity)));
  SLUICE_CHECK(object.load());
  const auto memory = [&](const char* name) -> Result<bpfio::MapMemory> {
    SLUICE_TRY(map, object.map(name));
    return bpfio::MapMemory::map(map, true);
  };
  SLUICE_TRY(call, memory("sl_coll_call"));
  SLUICE_TRY(flights, memory("sl_coll_flights"));
  SLUICE_TRY(chunks, memory("sl_coll_chunks"));
  SLUICE_TRY(values, memory("sl_coll_values"));
  SLUICE_TRY(counters, object.map("sl_coll_member_counters"));
  SLUICE_TRY(ended_map, object.map("sl_coll_ended"));
  SLUICE_TRY(ended, bpfio::RingBuffer::open(ended_map));
  SLUICE_TRY(program, object.program(take.program));
  SLUICE_TRY(claim, config.interface->claim(config.port, program));
  Maps maps{std::move(call), std::move(flights), std::move(chunks), std::move(values), std::move(counters)};
  return std::unique_ptr<KernelMember>(
      new KernelMember(config, take.place, capacity, std::move(maps), std::move(ended), std::move(program), std::move(claim)));
}

bool KernelMember::carry(std::uint64_t now_ns, Outbox& out) {
  if (call_.op == SL_COLL_BARRIER || elements() == 0) return false;
  piece_ = 0;
  begin_piece(now_ns, out);
  return true;
}

bool KernelMember::contiguous(const Call& call) const { return plain(call) && std::size_t{4} * config_.words == place_; }

Status KernelMember::check_memory(const Call& call) const {
  const ByteSpan ours(reinterpret_cast<const std::uint8_t*>(maps_.values.bytes().data()), maps_.values.bytes().size());
  const auto lies_in = [&](ByteSpan memory) {
    return !memory.empty() && std::less<>()(memory.data(), ours.data() + ours.size()) &&
           std::less<>()(ours.data(), memory.data() + memory.size());
  };
  if (!lies_in(call.input) && !lies_in(call.output)) return {};
  if (contiguous(call) && call.input.data() == ours.data() && call.output.data() == ours.data() &&
      call.input.size() <= ours.size())
    return {};
  return sluice::fail(make_error(
      Code::kInvalid,
      fmt::format("{} of {} cannot be computed in the memory that the kernel works in",
                  op_name(static_cast<std::uint8_t>(call.op)), dtype_name(static_cast<std::uint8_t>(call.dtype))),
      "only sum, max and min of i32 and i64 in full chunks can, in place and from its beginning on; give it other memory"));
}

void KernelMember::begin_piece(std::uint64_t now_ns, Outbox& out) {
  const std::size_t window = config_.window;
  count_ = std::min(chunks_.size() - piece_, capacity_);
  position_ = next_position_;
  next_position_ += count_;

  const std::size_t first_element = first_of(piece_), last = piece_ + count_ - 1;
  if (contiguous(call_)) {
    const std::uint8_t* from = call_.input.data() + first_element * element();
    if (from != values().data())
      std::memcpy(values().data(), from, (first_of(last) + count_of(last) - first_element) * element());
  }
  Header own = call_header(position_);
  Bytes payload;
  for (std::size_t i = 0; i < count_; i++) {
    const std::size_t chunk = piece_ + i;
    sl_coll_chunk& at = about(i);
    std::size_t bytes = count_of(chunk) * element();
    own.flags = flags_of(chunk);
    if (!contiguous(call_)) {
      fill_chunk(chunk, own, payload);
      std::ranges::copy(payload, values_of(i).begin());
      bytes = payload.size();
    }
    const Sums sums = sums_of(values_of(i).first(bytes));
    at = {.sum_a = sums.a, .sum_b = sums.b, .exponent = own.exponent, .flags = own.flags, .result_flags = 0, .pad = 0};
  }
  const Header header = call_header(position_);
  const std::size_t wire = wire_size(header);

  sl_coll_call& call = call_in_kernel();
  call = {};
  call.token = config_.token;
  call.position = position_;
  std::ranges::copy(config_.aggregator.ip, std::begin(call.aggregator));
  call.aggregator_port = htons(config_.aggregator.port);
  call.port = htons(port_);
  call.job = config_.job;
  call.members = config_.members;
  call.incarnation = incarnation();
  call.window = config_.window;
  call.first_element = static_cast<std::uint32_t>(first_element);
  call.chunk_elements = static_cast<std::uint32_t>(chunk_elements_);
  call.chunk_bytes = static_cast<std::uint32_t>(count_of(piece_) * wire);
  call.last_bytes = static_cast<std::uint32_t>(count_of(last) * wire);
  call.key = config_.key;
  call.op = header.op;
  call.dtype = header.dtype;
  call.scale_low = header.scale_low;
  for (std::size_t slot = 0; slot < window; slot++) maps_.flights.store_u64(slot * sizeof(sl_coll_flight), 0);
  for (std::size_t i = 0; i < std::min(count_, window); i++) {
    const std::uint64_t slot = (position_ + i) % window;
    maps_.flights.store_u64(slot * sizeof(sl_coll_flight) + offsetof(sl_coll_flight, sent_ns), 0);
    maps_.flights.store_u64(slot * sizeof(sl_coll_flight), position_ + i + 1);
    sent_[slot] = {.position = position_ + i + 1, .due_ns = now_ns + rtt_.rto(), .tries = 1};
  }
  std::atomic_ref(call.chunks).store(static_cast<std::uint32_t>(count_), std::memory_order_release);
  for (std::size_t i = 0; i < std::min(count_, window); i++) contribute(i, 1, out);
  look_due_ns_ = now_ns + kLook_ns;
}

// What the program would send for the chunk, from here.
void KernelMember::contribute(std::size_t index, unsigned tries, Outbox& out) {
  Header header = call_header(position_ + index);
  const sl_coll_chunk& at = about(index);
  const sl_coll_call& call = call_in_kernel();
  header.flags = at.flags;
  header.exponent = at.exponent;
  header.frag_offset = static_cast<std::uint32_t>(first_of(piece_ + index));
  if (tries >= kStatusFromTry) header.flags |= SL_COLL_ACK_REQUEST;
  const auto numbers = values_of(index).first(index + 1 == count_ ? call.last_bytes : call.chunk_bytes);
  Bytes payload(numbers.begin(), numbers.end());
  stats_.sent++;
  if (tries > 1) stats_.retransmitted++;
  out.push_back({config_.aggregator, encode(header, payload)});
}

// What of the piece's results is not with the model yet; the program has nothing more to do.
void KernelMember::end_piece() {
  const sl_coll_call call = call_in_kernel();
  std::atomic_ref(call_in_kernel().chunks).store(0, std::memory_order_release);
  const bool in_place = contiguous(call_) && call_.output.data() + first_of(piece_) * element() == values().data();
  for (std::size_t i = 0; i < count_; i++) {
    const std::size_t chunk = piece_ + i;
    const std::uint8_t flags = about(i).result_flags;
    chunks_[chunk].result_flags = flags;
    if (flags & SL_COLL_OVERFLOW) overflow_ = true;
    if (!wants(chunk) || in_place) continue;
    store_chunk(chunk, values_of(i).first(i + 1 == count_ ? call.last_bytes : call.chunk_bytes));
  }
  stats_.results += count_;
  piece_ += count_;
  count_ = 0;
  look_due_ns_ = kNever;
}

void KernelMember::look(std::uint64_t now_ns, Outbox& out) {
  std::ignore = ended_.drain([](std::span<const std::byte>) {});
  sl_coll_call& call = call_in_kernel();
  if (std::atomic_ref(call.done).load(std::memory_order_acquire) == count_) {
    end_piece();
    if (piece_ < chunks_.size()) return begin_piece(now_ns, out);
    return carried(now_ns, out);
  }
  if (const std::uint32_t sample = std::atomic_ref(call.rtt_ns).exchange(0); sample != 0) rtt_.sample(sample);
  for (std::uint64_t slot = 0; slot < config_.window; slot++) {
    const std::uint64_t position = flight(slot);
    if (position == 0 || position == SL_COLL_FLIGHT_TAKEN) continue;
    Sent& sent = sent_[slot];
    const std::size_t at = slot * sizeof(sl_coll_flight) + offsetof(sl_coll_flight, sent_ns);
    if (sent.position != position) {
      const std::uint64_t when = maps_.flights.load_u64(at);  // 0: the program could not send it
      sent = {.position = position, .due_ns = when == 0 ? now_ns : when + rtt_.rto(), .tries = when == 0 ? 0U : 1U};
    }
    if (now_ns < sent.due_ns) continue;
    maps_.flights.store_u64(at, 0);  // no sample of a chunk that was sent twice
    sent.due_ns = now_ns + rtt_.backed_off(++sent.tries);
    contribute(position - 1 - position_, sent.tries, out);
  }
  look_due_ns_ = now_ns + kLook_ns;
}

void KernelMember::stop_if_over() {
  if (count_ == 0 || state() == State::kCalling) return;
  std::atomic_ref(call_in_kernel().chunks).store(0, std::memory_order_release);
  count_ = 0;
  look_due_ns_ = kNever;
}

void KernelMember::receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out) {
  Member::receive(from, packet, now_ns, out);
  stop_if_over();
}

void KernelMember::tick(std::uint64_t now_ns, Outbox& out) {
  Member::tick(now_ns, out);
  stop_if_over();
  if (count_ != 0) look(now_ns, out);
}

std::uint64_t KernelMember::next_tick_ns() const { return std::min(Member::next_tick_ns(), look_due_ns_); }

bool KernelMember::outstanding(std::uint64_t position) const {
  return count_ != 0 ? flight(position % config_.window) == position + 1 : Member::outstanding(position);
}

Result<std::uint64_t> KernelMember::counter(sl_coll_member_counter index) const {
  SLUICE_TRY(sums, bpfio::sum_per_cpu(maps_.counters));
  return sums[index];
}

}  // namespace sluice::coll
