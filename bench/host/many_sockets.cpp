// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// migrate.ns_per_socket, memory.bytes_per_socket: the product's iterator over many established sockets of one namespace.
#include <sluice/abi/policy.h>
#include <sluice/abi/report.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

#include "base/file.h"
#include "bpfio/iterator.h"
#include "bpfio/map.h"
#include "bpfio/object.h"
#include "host/host.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kIdle_ms = 3'600'000;  // connections that never pass a per-RTT point do not move themselves
constexpr std::uint32_t kNobody = 0xffffffff;  // a map id that no socket runs

// In use in the general caches, which socket storage is allocated from.
Result<std::uint64_t> slab_bytes() {
  SLUICE_TRY(text, read_file("/proc/slabinfo"));
  std::istringstream lines(text);
  std::uint64_t bytes = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name;
    std::uint64_t active = 0, objects = 0, object_bytes = 0;
    if (fields >> name >> active >> objects >> object_bytes && name.starts_with("kmalloc-")) bytes += active * object_bytes;
  }
  return bytes;
}

struct Walk {
  double cpu_ns = 0;
  double wall_ns = 0;
  std::uint64_t moved = 0;
};

// One walk of a pinned iterator over the namespace, as the agent does it.
Result<Walk> walk(const bpfio::PinRoot& pins, const std::string& iterator_name, int netns_fd) {
  SLUICE_TRY(link, pins.link("policy/iter/" + iterator_name));
  SLUICE_TRY(counters, pins.map("policy/maps/sl_policy_counters"));
  SLUICE_TRY(before, bpfio::sum_per_cpu(counters));
  const std::uint64_t wall = now_ns(), cpu = thread_cpu_ns();
  SLUICE_TRY(iterator, bpfio::Iterator::create(link, netns_fd));
  SLUICE_CHECK(bpfio::for_each_record<sl_report>(iterator, [](const sl_report&) { return true; }));
  Walk done{static_cast<double>(thread_cpu_ns() - cpu), static_cast<double>(now_ns() - wall)};
  SLUICE_TRY(after, bpfio::sum_per_cpu(counters));
  done.moved = after[SL_POLICY_ITER_MOVED] - before[SL_POLICY_ITER_MOVED];
  return done;
}

// The floor of a move: the walk and a bare bpf_setsockopt, to `cca`. CPU time.
Result<double> bare_move(const bpfio::PinRoot& pins, const std::string& cca, int netns_fd) {
  SLUICE_TRY(object, bpfio::Object::open_file(build_file("bench/host.o")));
  for (const std::string& name : object.map_names()) {
    SLUICE_TRY(shared, pins.exists("policy/maps/" + name));
    if (!shared) continue;
    SLUICE_TRY(map, pins.map("policy/maps/" + name));
    SLUICE_CHECK(object.reuse_map(name, map));
  }
  std::array<char, SL_CCA_NAME_LEN> name{};
  std::copy(cca.begin(), cca.end(), name.begin());
  SLUICE_CHECK(object.set_rodata("bench_move_to", name));
  SLUICE_CHECK(object.load());
  SLUICE_TRY(program, object.program("bench_move"));
  SLUICE_TRY(link, bpfio::Link::attach_iter(program));
  const std::uint64_t cpu = thread_cpu_ns();
  SLUICE_TRY(iterator, bpfio::Iterator::create(link, netns_fd));
  std::byte nothing[64];
  SLUICE_TRY(bytes, iterator.read(nothing));
  if (bytes != 0) return fail(Code::kInternal, "the iterator wrote {} bytes", bytes);
  return static_cast<double>(thread_cpu_ns() - cpu);
}

Status set_args(const bpfio::PinRoot& pins, sl_iter_kind kind, const sl_iter_args& args) {
  SLUICE_TRY(fd, pins.map("policy/maps/sl_iter_args"));
  SLUICE_TRY(map, (bpfio::Map<std::uint32_t, sl_iter_args>::from(std::move(fd))));
  return map.update(kind, args);
}

Status measure_population(Run& run, std::uint64_t sockets, bool largest) {
  const auto& [old_cubic, new_cubic] = std::pair(run.workspace.old_cubic(), run.workspace.new_cubic());
  SLUICE_TRY(topology, test::Topology::create({.hosts = {{.name = "a"}}}));
  const test::Host& host = topology.host("a");
  const int netns = host.netns_fd();
  // Opened before the agent comes.
  SLUICE_TRY(held, hold_connections(host, sockets / 2, kIdle_ms));
  SLUICE_TRY(agent, Agent::start(run.workspace, host, {"many", {netns_path(netns)}, host.cgroup()}));
  const auto switch_to = [&](const std::string& use) { return agent.apply(document_for({old_cubic, new_cubic}, use), false); };
  SLUICE_CHECK(switch_to(old_cubic));
  SLUICE_TRY(pins, agent.pins());
  SLUICE_CHECK(set_args(pins, SL_ITER_MIGRATE, {}));
  const auto n = static_cast<double>(sockets);

  SLUICE_TRY(slab_before, slab_bytes());
  SLUICE_TRY(first, walk(pins, "sl_iter_migrate", netns));
  SLUICE_TRY(slab_after, slab_bytes());
  if (first.moved < sockets) return fail(Code::kInternal, "the first walk moved {} of {} sockets", first.moved, sockets);

  Measurement migrate{.id = "migrate.ns_per_socket", .params = {{"sockets", sockets}, {"netns", 1}}, .unit = "ns"};
  std::vector<double> wall, bare;
  SLUICE_CHECK(set_args(pins, SL_ITER_OBSERVE, {0, kNobody}));
  for (int i = 0; i < run.size(7, 3); ++i) {
    SLUICE_CHECK(switch_to(i % 2 == 0 ? new_cubic : old_cubic));
    SLUICE_TRY(moved, walk(pins, "sl_iter_migrate", netns));
    if (moved.moved < sockets) return fail(Code::kInternal, "a walk moved {} of {} sockets", moved.moved, sockets);
    migrate.samples.push_back(moved.cpu_ns / n);
    wall.push_back(moved.wall_ns / n);
    SLUICE_TRY(only, walk(pins, "sl_iter_observe", netns));
    bare.push_back(only.cpu_ns / n);
  }
  SLUICE_CHECK(set_args(pins, SL_ITER_OBSERVE, {}));
  // Between the same two CCAs, there and back.
  std::vector<double> floor;
  SLUICE_TRY(ids_fd, pins.map("policy/maps/sl_cca_ids"));
  SLUICE_TRY(ids, (bpfio::Map<sl_cca_name, std::uint32_t>::from(std::move(ids_fd))));
  SLUICE_TRY(entries, ids.entries());
  for (int i = 0; i < run.size(3, 2); ++i)
    for (const auto& [name, id] : entries) {
      SLUICE_TRY(cpu_ns, bare_move(pins, std::string(name.name, ::strnlen(name.name, sizeof name.name)), netns));
      if (i > 0) floor.push_back(cpu_ns / n);
    }
  migrate.value = median(migrate.samples);
  migrate.baseline = {"walk_ns_per_socket", median(bare)};
  if (largest) migrate.goal = Goal{"value", "<=", 1050};

  SLUICE_CHECK(switch_to(old_cubic));
  SLUICE_CHECK(switch_to(new_cubic));
  SLUICE_TRY(whole, agent.migrate());
  migrate.note = fmt::format(
      "CPU time of one walk that moves every socket to another BPF CCA; elapsed {:.0f} ns. The floor here: the same walk with "
      "a "
      "bare bpf_setsockopt between the two CCAs and no decision, {:.0f} ns; the walk alone, {:.0f} ns. Sockets older than the "
      "agent, from the host's default: {:.0f} ns. The agent's `migrate`, which walks again to "
      "verify: {:.0f} ns",
      median(wall), median(floor), migrate.baseline->value, first.cpu_ns / n, whole.duration_ms() * 1e6 / n);
  run.report.add(std::move(migrate));
  if (!largest) return {};

  run.report.add({.id = "memory.bytes_per_socket",
                  .params = {{"sockets", sockets}},
                  .value = (static_cast<double>(slab_after) - static_cast<double>(slab_before)) / n,
                  .unit = "bytes",
                  .baseline = Baseline{"sk_storage_floor_bytes", 320},
                  .goal = Goal{"value", "<=", 384},
                  .note = "growth of the kernel's general caches while the first walk moves every socket: a move "
                          "stores nothing"});
  return {};
}

}  // namespace

Status measure_many_sockets(Run& run) {
  const auto sizes =
      run.quick ? std::vector<std::uint64_t>{2'000, 10'000, 40'000} : std::vector<std::uint64_t>{10'000, 50'000, 200'000};
  for (const std::uint64_t sockets : sizes) SLUICE_CHECK(measure_population(run, sockets, sockets == sizes.back()));
  return {};
}

}  // namespace sluice::bench
