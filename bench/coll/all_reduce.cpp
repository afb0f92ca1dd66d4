// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// allreduce.*
#include <barrier>
#include <thread>

#include "base/random.h"
#include "coll/coll.h"
#include "coll/job.h"

namespace sluice::bench {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Seconds that all processors have worked since boot, softirqs included, by the kernel's own sums.
double busy_seconds() {
  std::FILE* file = std::fopen("/proc/stat", "re");
  if (file == nullptr) return 0;
  unsigned long long user, nice, system, idle, iowait, irq, softirq;
  const int read = std::fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait, &irq, &softirq);
  std::fclose(file);
  return read == 7 ? static_cast<double>(user + nice + system + irq + softirq) / static_cast<double>(::sysconf(_SC_CLK_TCK)) : 0;
}

struct Timing {
  std::vector<double> seconds;  // of member 0, by call
  double busy_seconds = 0;      // of all processors, of all calls
  std::uint64_t wrong = 0;      // parts of results
};

struct Calls {
  sl_coll_dtype dtype = SL_COLL_I32;
  std::size_t bytes = 0;
  unsigned warm = 2, measured = 10;
};

std::int32_t value_of(unsigned member, std::size_t index) { return static_cast<std::int32_t>(index * 2654435761U >> 12) + static_cast<std::int32_t>(member); }

Result<Timing> time_job(Job& job, unsigned members, const Calls& calls) {
  Timing timing;
  std::vector<Status> statuses(members);
  std::barrier gate(members);
  std::atomic<std::uint64_t> wrong = 0;
  std::vector<std::thread> threads;
  std::thread server([&] { std::ignore = job.serve(); });
  for (unsigned i = 0; i < members; i++)
    threads.emplace_back([&, i] {
      statuses[i] = [&]() -> Status {
        JobMember& member = job.member(i);
        SLUICE_CHECK(member.join());
        const auto memory = member.memory(calls.bytes);
        std::vector<std::vector<std::uint8_t>> given, expected;
        std::size_t index = 0;
        for (const auto part : memory) {
          std::vector<std::uint8_t> own(part.size()), sums(part.size());
          for (std::size_t at = 0; at < part.size(); at += 4, index++) {
            const std::int32_t value = value_of(i, index);
            const std::uint32_t sum = members * static_cast<std::uint32_t>(value_of(0, index)) + members * (members - 1) / 2;
            std::memcpy(&own[at], &value, 4);
            std::memcpy(&sums[at], &sum, 4);
          }
          given.push_back(std::move(own));
          expected.push_back(std::move(sums));
        }
        double busy = 0;
        for (unsigned call = 0; call < calls.warm + calls.measured; call++) {
          for (std::size_t s = 0; s < memory.size(); s++) std::ranges::copy(given[s], memory[s].begin());
          gate.arrive_and_wait();
          if (i == 0) busy = busy_seconds();
          const std::uint64_t begun = now_ns();
          SLUICE_CHECK(member.all_reduce(calls.dtype, memory));
          const std::uint64_t ended = now_ns();
          gate.arrive_and_wait();
          if (i == 0 && call >= calls.warm) {
            timing.seconds.push_back(static_cast<double>(ended - begun) / 1e9);
            timing.busy_seconds += busy_seconds() - busy;
          }
          for (std::size_t s = 0; s < memory.size(); s++) wrong += !std::ranges::equal(memory[s], expected[s]);
        }
        return member.leave();
      }();
      if (!statuses[i]) gate.arrive_and_drop();
    });
  for (std::thread& thread : threads) thread.join();
  job.stop();
  server.join();
  for (const Status& status : statuses) SLUICE_CHECK(status);
  timing.wrong = wrong;
  return timing;
}

}  // namespace

Status measure_all_reduce(Run& run) {
  for (const WireKind kind : {WireKind::kDirect, WireKind::kXdpSwitch, WireKind::kBridge})
    for (const int mtu : {1500, 3500})
      for (const unsigned aggregators : {1U, 2U}) {
        if (const char* only = ::getenv("SLUICE_ONLY"); only && only != fmt::format("{}/{}/{}", wire_name(kind), mtu, aggregators)) continue;
        SLUICE_TRY(wires, Wires::create({.kind = kind, .mtu = mtu, .members = 4, .aggregators = aggregators}));
        if (::getenv("SLUICE_NAPI")) SLUICE_CHECK(wires.thread_napi());
        const char* b_ = ::getenv("SLUICE_BYTES"); const std::size_t bytes = b_ ? std::strtoull(b_, nullptr, 0) : run.size(64 * kMiB, 16 * kMiB);
        const auto words = static_cast<std::uint16_t>(mtu == 1500 ? SL_COLL_WORDS_DEFAULT : SL_COLL_WORDS_MAX);
        JobSpec spec{.window = 32, .words = words, .carried_bytes = bytes / aggregators + 4096};
        if (const char* w = ::getenv("SLUICE_W")) spec.window = static_cast<std::uint16_t>(std::atoi(w));
        SLUICE_TRY(job, Job::start(wires, spec));
        SLUICE_TRY(timing, time_job(*job, 4, {.bytes = bytes, .measured = ::getenv("SLUICE_CALLS") ? static_cast<unsigned>(std::atoi(::getenv("SLUICE_CALLS"))) : run.size(10U, 5U)}));
        Measurement m{.id = "allreduce.64MB",
                      .params = {{"wire", wire_name(kind)}, {"mtu", mtu}, {"shards", aggregators}},
                      .unit = "Gbit/s"};
        for (const double seconds : timing.seconds) m.samples.push_back(static_cast<double>(bytes) * 8 / seconds / 1e9);
        m.value = median(m.samples);
        const double gigabytes = static_cast<double>(bytes) * static_cast<double>(timing.seconds.size()) / 1e9;
        SLUICE_TRY(answered, job->counter(SL_COLL_ANSWERED));
        SLUICE_TRY(duplicates, job->counter(SL_COLL_DUPLICATE));
        SLUICE_TRY(noroom, job->counter(SL_COLL_MEMBER_NO_ROOM));
        m.note = fmt::format("{:.2f} CPU s/GB, {} wrong; dup {} answered {} noroom {}", timing.busy_seconds / gigabytes, timing.wrong, duplicates, answered, noroom);
        run.report.add(std::move(m));
      }
  return {};
}

}  // namespace sluice::bench
