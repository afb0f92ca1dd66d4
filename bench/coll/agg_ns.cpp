// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// bpf.agg_ns: what the aggregator's program takes for a contribution, by the kernel's own clock around it.
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <linux/bpf.h>

#include "base/random.h"
#include "bpf/coll_frames.h"
#include "bpfio/object.h"
#include "coll/coll.h"
#include "coll/model/packet.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kToken = 0x0123456789abcdef;
constexpr std::uint16_t kMemberPort = 20000;
constexpr unsigned kMembers = 4, kWindow = 64;
constexpr std::uint32_t kLoopback = 1;  // ifindex: a test run sends nothing
constexpr double kGoal_ns = 180;

coll::Address member_of(std::uint32_t key) {
  coll::Address address = test::ours(false);
  address.ip[15] = static_cast<std::uint8_t>(2 + key);
  address.port = kMemberPort;
  return address;
}

// A sum of int32, as it arrives.
coll::Bytes frame_of(std::uint64_t position, std::uint32_t key, coll::ByteSpan values) {
  coll::Header header;
  header.magic = SL_COLL_MAGIC_AGGREGATE;
  header.key = key;
  header.op = SL_COLL_SUM;
  header.dtype = SL_COLL_I32;
  header.job = 1;
  header.members = kMembers;
  header.place(1, position);
  header.frag_offset = static_cast<std::uint32_t>(position * values.size() / 4);
  header.token = kToken;
  return test::frame_of({}, member_of(key), test::ours(false), coll::encode(header, values));
}

Status set_up(const bpfio::Object& object, std::uint16_t words) {
  SLUICE_TRY(jobs, object.map("sl_coll_job"));
  SLUICE_TRY(members, object.map("sl_coll_members"));
  SLUICE_TRY(fan, object.map("sl_coll_fan"));
  const std::uint32_t zero = 0;
  const sl_coll_job job{.token = kToken,
                        .weight_sum = kMembers,
                        .job = 1,
                        .members = kMembers,
                        .contributors = kMembers,
                        .incarnation = 1,
                        .window = kWindow,
                        .words = words,
                        .port = htons(test::kPort),
                        .state = 0,
                        .pad = 0};
  SLUICE_CHECK(jobs.update(bpfio::bytes_of(zero), bpfio::bytes_of(job)));
  for (std::uint32_t key = 0; key < kMembers; key++) {
    sl_coll_member member{};
    std::ranges::copy(member_of(key).ip, std::begin(member.addr));
    member.port = htons(kMemberPort);
    member.weight = 1;
    SLUICE_CHECK(members.update(bpfio::bytes_of(key), bpfio::bytes_of(member)));
    const bpf_devmap_val way{.ifindex = kLoopback, .bpf_prog = {.fd = -1}};
    SLUICE_CHECK(fan.update(bpfio::bytes_of(key), bpfio::bytes_of(way)));
  }
  return {};
}

Status measure(Run& run, std::uint16_t words) {
  SLUICE_TRY(object, bpfio::Object::open_file(build_file("bundles/aggregate/1.0.0/aggregate.bpf.o")));
  SLUICE_CHECK(object.set_max_entries("sl_coll_slots", 2 * kWindow));
  SLUICE_CHECK(object.load());
  SLUICE_CHECK(set_up(object, words));
  SLUICE_TRY(program, object.program("sl_coll_aggregate"));
  const UniqueFd statistics(::bpf_enable_stats(BPF_STATS_RUN_TIME));
  if (!statistics) return fail_errno(errno, "cannot enable the statistics of BPF programs");

  SeededRandom random(run.seed);
  coll::Bytes values(std::size_t{4} * words);
  for (auto& byte : values) byte = static_cast<std::uint8_t>(random.next());
  // Every slot is in the caches once its pool has been gone through.
  const std::uint64_t positions = run.size(40U, 10U) * std::uint64_t{kWindow};
  std::vector<double> samples;
  std::uint64_t position = 0;
  for (int block = 0; block <= run.size(20, 5); block++) {
    SLUICE_TRY(before, program.info());
    for (std::uint64_t i = 0; i < positions; i++, position++)
      for (std::uint32_t key = 0; key < kMembers; key++) {
        const coll::Bytes frame = frame_of(position, key, values);
        SLUICE_TRY(result,
                   program.test_run({.data = std::as_bytes(std::span(frame)), .context = {}, .data_out_max = frame.size()}));
        const std::uint32_t expected = key + 1 == kMembers ? XDP_REDIRECT : XDP_DROP;
        if (result.value != expected)
          return fail(Code::kInternal, "the program returned {} for KEY {} at {}, not {}", result.value, key, position,
                      expected);
      }
    SLUICE_TRY(after, program.info());
    if (block == 0) continue;  // warms up
    samples.push_back(static_cast<double>(after.run_ns - before.run_ns) /
                      static_cast<double>(after.run_count - before.run_count));
  }
  Measurement m{.id = "bpf.agg_ns", .params = {{"values", words}, {"members", kMembers}}, .unit = "ns", .samples = samples};
  m.value = median(samples);
  if (words == SL_COLL_WORDS_DEFAULT) m.goal = Goal{.of = "value", .op = "<=", .value = kGoal_ns};
  m.note = "a fourth of the contributions open a slot, half are added, a fourth complete it and become the result";
  run.report.add(std::move(m));
  return {};
}

}  // namespace

Status measure_agg_ns(Run& run) {
  SLUICE_CHECK(measure(run, SL_COLL_WORDS_DEFAULT));
  return measure(run, SL_COLL_WORDS_MAX);
}

}  // namespace sluice::bench
