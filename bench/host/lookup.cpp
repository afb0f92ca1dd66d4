// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// lookup.sk_storage_ns, lookup.lpm_ns: what a BPF program pays for one look-up in the product's maps.
#include <netinet/in.h>
#include <sluice/abi/policy.h>
#include <sys/socket.h>

#include <cerrno>
#include <random>

#include "bpfio/iterator.h"
#include "bpfio/map.h"
#include "bpfio/object.h"
#include "host/host.h"
#include "host/host_abi.h"

namespace sluice::bench {
namespace {

constexpr int kSamples = 21;
constexpr std::size_t kPacketBytes = 64;

// The object's copies of the product's maps become the agent's.
Result<bpfio::Object> load_object(const bpfio::PinRoot& pins) {
  SLUICE_TRY(object, bpfio::Object::open_file(build_file("bench/host.o")));
  for (const std::string& name : object.map_names()) {
    SLUICE_TRY(shared, pins.exists("policy/maps/" + name));
    if (!shared) continue;
    SLUICE_TRY(map, pins.map("policy/maps/" + name));
    SLUICE_CHECK(object.reuse_map(name, map));
  }
  SLUICE_CHECK(object.load());
  return object;
}

// Racks as an operator would number them: half of them IPv4 /24 in 10.0.0.0/8, half IPv6 /64 in fd00::/16.
sl_prefix rack_prefix(std::uint32_t i) {
  sl_prefix prefix{};
  const std::uint32_t n = i / 2;
  if (i % 2 == 0) {
    prefix.prefix_len = 96 + 24;
    prefix.addr[10] = prefix.addr[11] = 0xff;
    prefix.addr[12] = 10;
    prefix.addr[13] = static_cast<__u8>(n >> 8);
    prefix.addr[14] = static_cast<__u8>(n);
  } else {
    prefix.prefix_len = 64;
    prefix.addr[0] = 0xfd;
    prefix.addr[5] = static_cast<__u8>(n >> 16);
    prefix.addr[6] = static_cast<__u8>(n >> 8);
    prefix.addr[7] = static_cast<__u8>(n);
  }
  return prefix;
}

struct LookupMaps {
  bpfio::Map<std::uint32_t, bench_lookups> result;
  bpfio::Map<sl_prefix, sl_place> places;
  bpfio::Map<std::uint32_t, sl_prefix> destinations;
};

Status fill(const LookupMaps& maps, std::uint32_t from, std::uint32_t prefixes, std::uint64_t seed) {
  std::vector<sl_prefix> keys;
  std::vector<sl_place> values;
  for (std::uint32_t i = from; i < prefixes; ++i) {
    keys.push_back(rack_prefix(i));
    values.push_back({i + 1, 1, SL_LOCALITY_INTRA_REGION, 0});
  }
  SLUICE_CHECK(maps.places.update_batch(std::span<const sl_prefix>(keys), std::span<const sl_place>(values)));
  std::mt19937_64 random(seed);
  for (std::uint32_t i = 0; i < BENCH_DESTINATIONS; ++i) {
    sl_prefix to = rack_prefix(static_cast<std::uint32_t>(random() % prefixes));
    to.prefix_len = 128;
    to.addr[15] = static_cast<__u8>(random() % 254 + 1);
    SLUICE_CHECK(maps.destinations.update(i, to));
  }
  return {};
}

// A socket of the host with an sl_sock, which only user space gives it.
Result<UniqueFd> socket_with_storage(const test::Host& host, const bpfio::PinRoot& pins) {
  UniqueFd fd;
  SLUICE_CHECK(host.call([&]() -> Status {
    fd.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd.valid() || ::listen(fd.get(), 1) != 0) return fail_errno(errno, "cannot listen");
    return {};
  }));
  SLUICE_TRY(map, pins.map("policy/maps/sl_sock"));
  SLUICE_TRY(storage, (bpfio::Map<int, sl_sock>::from(std::move(map))));
  SLUICE_CHECK(storage.update(fd.get(), {}));
  return fd;
}

// Each sample: ns a look-up, the loop around it taken off.
Status sample(const bpfio::Map<std::uint32_t, bench_lookups>& result, const std::function<Status()>& once,
              Measurement& measurement) {
  std::vector<double> empty;
  for (int i = 0; i < kSamples; ++i) {
    SLUICE_CHECK(result.update(0, {}));
    SLUICE_CHECK(once());
    SLUICE_TRY(r, result.lookup(0));
    if (r.found != BENCH_ROUNDS) return fail(Code::kInternal, "{} of {} look-ups found something", r.found, BENCH_ROUNDS);
    empty.push_back(static_cast<double>(r.empty_ns) / BENCH_ROUNDS);
    measurement.samples.push_back((static_cast<double>(r.lookup_ns) - static_cast<double>(r.empty_ns)) / BENCH_ROUNDS);
  }
  measurement.value = median(measurement.samples);
  measurement.baseline = {"empty_loop_ns", median(empty)};
  return {};
}

}  // namespace

Status measure_lookups(Run& run) {
  SLUICE_TRY(topology, test::Topology::create({.hosts = {{.name = "a"}}}));
  const test::Host& host = topology.host("a");
  SLUICE_TRY(agent, Agent::start(run.workspace, host, {"lookup", {netns_path(host.netns_fd())}, host.cgroup()}));
  SLUICE_TRY(applied, agent.apply(document_for({run.workspace.old_cubic()}, run.workspace.old_cubic()), true));
  SLUICE_TRY(pins, agent.pins());
  SLUICE_TRY(held, socket_with_storage(host, pins));
  SLUICE_TRY(object, load_object(pins));
  SLUICE_TRY(result_fd, object.map("bench_result"));
  SLUICE_TRY(places_fd, object.map("bench_places"));
  SLUICE_TRY(destinations_fd, object.map("bench_destinations"));
  SLUICE_TRY(result, (bpfio::Map<std::uint32_t, bench_lookups>::from(std::move(result_fd))));
  SLUICE_TRY(places, (bpfio::Map<sl_prefix, sl_place>::from(std::move(places_fd))));
  SLUICE_TRY(destinations, (bpfio::Map<std::uint32_t, sl_prefix>::from(std::move(destinations_fd))));
  const LookupMaps maps{std::move(result), std::move(places), std::move(destinations)};

  SLUICE_TRY(iterator_program, object.program("bench_sk_storage"));
  SLUICE_TRY(link, bpfio::Link::attach_iter(iterator_program));
  Measurement storage{.id = "lookup.sk_storage_ns", .params = {{"sockets", 1}}, .unit = "ns", .goal = Goal{"value", "<=", 25}};
  SLUICE_CHECK(sample(
      maps.result,
      [&]() -> Status {
        SLUICE_TRY(iterator, bpfio::Iterator::create(link, host.netns_fd()));
        std::byte nothing[64];
        SLUICE_TRY(bytes, iterator.read(nothing));
        return bytes == 0 ? Status{} : fail(Code::kInternal, "the iterator wrote {} bytes", bytes);
      },
      storage));
  run.report.add(std::move(storage));

  SLUICE_TRY(program, object.program("bench_lpm"));
  const std::vector<std::byte> packet(kPacketBytes);
  std::uint32_t filled = 0;
  for (const std::uint32_t prefixes : {10u, 1000u, 100000u}) {
    SLUICE_CHECK(fill(maps, filled, prefixes, run.seed));
    filled = prefixes;
    Measurement lpm{.id = "lookup.lpm_ns",
                    .params = {{"prefixes", prefixes}, {"destinations", BENCH_DESTINATIONS}},
                    .unit = "ns",
                    .goal = Goal{"value", "<=", 400}};
    SLUICE_CHECK(sample(
        maps.result,
        [&]() -> Status {
          SLUICE_TRY(ran, program.test_run({.data = packet, .context = {}}));
          return ran.value == 0 ? Status{} : fail(Code::kInternal, "bench_lpm has no result map");
        },
        lpm));
    run.report.add(std::move(lpm));
  }
  return {};
}

}  // namespace sluice::bench
