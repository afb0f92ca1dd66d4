// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/kernel/aggregator.h"

#include <arpa/inet.h>
#include <linux/bpf.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>

namespace sluice::coll {
namespace {

// How often entries are looked at once a member has left: somebody may wait for its contribution.
constexpr std::uint64_t kLook_ns = 100'000'000;

std::span<std::byte> writable(auto& value) { return std::as_writable_bytes(std::span(&value, 1)); }

// The maps of a job that begins, but for its slots, which are empty as they are.
Status fill(const bpfio::Object& object, const KernelAggregatorConfig& config, int copy_fd) {
  const AggregatorConfig& job = config.aggregator;
  SLUICE_TRY(jobs, object.map("sl_coll_job"));
  SLUICE_TRY(members, object.map("sl_coll_members"));
  SLUICE_TRY(fan, object.map("sl_coll_fan"));
  SLUICE_TRY(copies, object.map("sl_coll_copies"));
  const std::uint32_t zero = 0;
  SLUICE_CHECK(jobs.update(bpfio::bytes_of(zero), bpfio::bytes_of(job.job)));

  std::map<std::uint32_t, sl_coll_copies> behind;  // by interface
  for (std::uint32_t key = 0; key < job.members.size(); key++) {
    sl_coll_member member = job.members[key];
    member.heard_ns = 0;
    SLUICE_CHECK(members.update(bpfio::bytes_of(key), bpfio::bytes_of(member)));
    const bpf_devmap_val way{.ifindex = config.interfaces[key]->index(), .bpf_prog = {.fd = copy_fd}};
    SLUICE_CHECK(fan.update(bpfio::bytes_of(key), bpfio::bytes_of(way)));
    sl_coll_copies& list = behind[config.interfaces[key]->index()];
    list.keys[list.count++] = static_cast<std::uint8_t>(key);
  }
  for (const auto& [interface, list] : behind) {
    std::vector<std::byte> all;  // the same for every CPU
    while (all.size() < copies.transfer_bytes())
      all.insert(all.end(), bpfio::bytes_of(list).begin(), bpfio::bytes_of(list).end());
    SLUICE_CHECK(copies.update(bpfio::bytes_of(interface), all));
  }
  return {};
}

}  // namespace

KernelAggregator::KernelAggregator(const KernelAggregatorConfig& config, bpfio::MapFd slots, bpfio::MapFd counters,
                                   bpfio::MapMemory job, bpfio::MapMemory members)
    : Coordinator(config.aggregator),
      slots_(std::move(slots)),
      counters_map_(std::move(counters)),
      job_(std::move(job)),
      members_(std::move(members)) {}

Result<std::unique_ptr<KernelAggregator>> KernelAggregator::start(const KernelAggregatorConfig& config) {
  SLUICE_CHECK(check(config.aggregator));
  if (config.interfaces.size() != config.aggregator.members.size())
    return sluice::fail(Code::kInvalid, "{} interfaces for {} members", config.interfaces.size(),
                        config.aggregator.members.size());
  SLUICE_TRY(object, bpfio::Object::open_file(config.object));
  SLUICE_CHECK(object.set_max_entries("sl_coll_slots", 2U * config.aggregator.job.window));
  // A broadcast looks at every entry.
  SLUICE_CHECK(object.set_max_entries("sl_coll_fan", config.aggregator.job.contributors));
  SLUICE_CHECK(object.load());
  SLUICE_TRY(program, object.program("sl_coll_aggregate"));
  SLUICE_TRY(copy, object.program("sl_coll_copy"));
  SLUICE_CHECK(fill(object, config, copy.fd()));

  SLUICE_TRY(slots, object.map("sl_coll_slots"));
  SLUICE_TRY(counters, object.map("sl_coll_counters"));
  SLUICE_TRY(jobs, object.map("sl_coll_job"));
  SLUICE_TRY(members, object.map("sl_coll_members"));
  SLUICE_TRY(job_memory, bpfio::MapMemory::map(jobs, true));
  SLUICE_TRY(members_memory, bpfio::MapMemory::map(members, false));
  std::unique_ptr<KernelAggregator> started(
      new KernelAggregator(config, std::move(slots), std::move(counters), std::move(job_memory), std::move(members_memory)));
  std::vector<std::shared_ptr<Interface>> interfaces = config.interfaces;
  std::ranges::sort(interfaces);
  const auto doubles = std::ranges::unique(interfaces);
  interfaces.erase(doubles.begin(), doubles.end());
  for (const auto& interface : interfaces) {
    SLUICE_TRY(claim, interface->claim(ntohs(config.aggregator.job.port), program));
    started->claims_.push_back(std::move(claim));
  }
  return started;
}

void KernelAggregator::receive(const Address& from, ByteSpan packet, std::uint64_t now_ns, Outbox& out) {
  const auto before = counters_;
  Coordinator::receive(from, packet, now_ns, out);
  publish_state();
  // The program has counted this packet; of control packets, that there was one.
  const auto header = parse(packet);
  if (header && header->magic == SL_COLL_MAGIC_CONTROL) {
    for (const auto counted : {SL_COLL_RECEIVED, SL_COLL_BAD_TOKEN}) counters_[counted] = before[counted];
  } else {
    const std::uint64_t sent = counters_[SL_COLL_STATUS_SENT];
    counters_ = before;
    counters_[SL_COLL_STATUS_SENT] = sent;
  }
}

void KernelAggregator::contribute(const Header& header, ByteSpan payload, Outbox& out) {
  if (!fits(header, payload)) return;
  const std::uint64_t position = header.position();
  const sl_coll_entry now = entry(static_cast<std::uint32_t>(position & (2U * config_.job.window - 1)));
  const bool holds = now.position == position + 1;
  if (mismatched(holds ? &now : nullptr, header, payload, out) || !holds) return;
  // If it has become complete meanwhile, the program answers the next time.
  if (!(now.bitmap >> header.key & 1) || complete(now) || !(header.flags & SL_COLL_ACK_REQUEST)) return;
  count(SL_COLL_STATUS_SENT);
  send_status(header.key, SL_COLL_STATUS, position, now.bitmap, out);
}

bool KernelAggregator::missed(std::uint64_t bit) const {
  for (std::uint32_t index = 0; index < slots_.info().max_entries; index++)
    if (const sl_coll_entry now = entry(index); now.position != 0 && !complete(now) && !(now.bitmap & bit)) return true;
  return false;
}

void KernelAggregator::tick(std::uint64_t now_ns, Outbox& out) {
  for (std::uint32_t key = 0; key < config_.job.contributors; key++) {
    auto& heard = config_.members[key].heard_ns;
    heard = std::max<__u64>(heard, members_.load_u64(key * sizeof(sl_coll_member) + offsetof(sl_coll_member, heard_ns)));
  }
  Coordinator::tick(now_ns, out);
  if (left_ != 0 && !failed() && now_ns >= looked_ns_ + kLook_ns) {
    looked_ns_ = now_ns;
    for (std::uint64_t rest = left_; rest != 0 && !failed(); rest &= rest - 1)
      if (const std::uint64_t bit = rest & -rest; missed(bit)) fail_left(bit, out);
  }
  publish_state();
}

std::uint64_t KernelAggregator::next_tick_ns() const {
  const std::uint64_t next = Coordinator::next_tick_ns();
  return left_ != 0 && !failed() ? std::min(next, looked_ns_ + kLook_ns) : next;
}

void KernelAggregator::destroy(Outbox& out) {
  Coordinator::destroy(out);
  publish_state();
}

Result<std::uint64_t> KernelAggregator::counter(sl_coll_counter index) const {
  SLUICE_TRY(sums, bpfio::sum_per_cpu(counters_map_));
  return sums[index] + Coordinator::counter(index);
}

sl_coll_entry KernelAggregator::entry(std::uint32_t index) const {
  std::vector<std::byte> value(slots_.transfer_bytes());
  sl_coll_entry head{};
  if (slots_.lookup_locked(bpfio::bytes_of(index), value)) std::memcpy(&head, value.data() + SL_COLL_SLOT_ENTRY, sizeof head);
  return head;
}

// The program passes everything to user space from here on.
void KernelAggregator::publish_state() {
  constexpr std::size_t kWord = offsetof(sl_coll_job, window);  // ... to the end of the structure: one store
  static_assert(kWord + 8 == sizeof(sl_coll_job) && offsetof(sl_coll_job, state) > kWord);
  if (!failed()) return;
  std::uint64_t word;
  std::memcpy(&word, reinterpret_cast<const std::byte*>(&config_.job) + kWord, sizeof word);
  job_.store_u64(kWord, word);
}

}  // namespace sluice::coll
