// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What bundle `policy` costs; the numbers of its README.
//
//   policy_speed [sockets ...]     (default 10000 and 200000; root)
#include <sys/wait.h>

#include <algorithm>
#include <chrono>

#include "bpf/cca_fixture.h"

namespace sluice::test {
namespace {

using Clock = std::chrono::steady_clock;

// CPU time of this thread: others on the machine are not counted.
double cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double ns_since(Clock::time_point start) { return std::chrono::duration<double, std::nano>(Clock::now() - start).count(); }

// In use in the general caches, which socket storage is allocated from.
uint64_t slab_bytes() {
  std::ifstream in("/proc/slabinfo");
  uint64_t bytes = 0;
  for (std::string line; std::getline(in, line);) {
    char name[64];
    uint64_t active = 0, objects = 0, size = 0;
    if (sscanf(line.c_str(), "%63s %lu %lu %lu", name, &active, &objects, &size) == 4 && strncmp(name, "kmalloc", 7) == 0)
      bytes += active * size;
  }
  return bytes;
}

// `prefixes` place prefixes (IPv6 and IPv4 in one trie), one rule for clients and one for servers.
Tables tables(const std::string& cca, uint32_t params, size_t prefixes) {
  Tables t;
  t.places = {{prefix("127.1.0.0/16"), place(1, 1, SL_LOCALITY_INTRA_DC)},
              {prefix("127.2.0.0/16"), place(2, 2, SL_LOCALITY_CROSS_REGION)}};
  for (size_t i = t.places.size(); i < prefixes; ++i) {
    sl_prefix p = prefix("fd00::/48");
    p.addr[3] = static_cast<__u8>(i >> 16), p.addr[4] = static_cast<__u8>(i >> 8), p.addr[5] = static_cast<__u8>(i);
    t.places.push_back({p, place(static_cast<uint32_t>(i), 3, SL_LOCALITY_INTRA_DC)});
  }
  t.rules = {{{0, 1}, verdict(cca, 1, "", 0, params)}, {{0, 2}, verdict(cca, 2, "", 0, params)}};
  t.listener_cca = cca;
  return t;
}

void migrate(PolicyObject& policy, const char* what, size_t sockets) {
  const uint64_t seen = policy.counter(SL_POLICY_ITER_SEEN), moved = policy.counter(SL_POLICY_ITER_MOVED);
  policy.set_args(SL_ITER_MIGRATE, 0);
  const double start = cpu_ns();
  policy.iterate<sl_report>("sl_iter_migrate");
  const double ns = cpu_ns() - start;
  printf("  %-46s %7.1f ms %6.0f ns/socket (seen %lu, moved %lu)\n", what, ns / 1e6, ns / static_cast<double>(sockets),
         policy.counter(SL_POLICY_ITER_SEEN) - seen, policy.counter(SL_POLICY_ITER_MOVED) - moved);
}

// A process that holds `sockets` established sockets until this object goes. Younger ones have to go before.
class Holder {
 public:
  Holder(size_t sockets, uint8_t subnet) {
    int ready[2], stay[2];
    must(pipe2(ready, O_CLOEXEC) == 0 && pipe2(stay, O_CLOEXEC) == 0, "pipe");
    pid_ = fork();
    must(pid_ >= 0, "fork");
    char byte = 0;
    if (pid_ == 0) {
      close(stay[1]);
      _exit(hold(sockets, subnet, ready[1], stay[0]));
    }
    close(ready[1]);
    close(stay[0]);
    stay_ = UniqueFd(stay[1]);
    const UniqueFd answer(ready[0]);
    must(read(answer.get(), &byte, 1) == 1, "sockets of a holder");
  }
  ~Holder() {
    stay_.reset();
    waitpid(pid_, nullptr, 0);
  }

 private:
  static int hold(size_t sockets, uint8_t subnet, int ready, int stay) {
    try {
      const Listener listener;
      std::vector<std::unique_ptr<Connection>> connections;
      while (connections.size() < sockets / 2)
        connections.push_back(std::make_unique<Connection>(listener, IPPROTO_TCP, subnet));
      char byte = 0;
      must(write(ready, &byte, 1) == 1, "report");
      return static_cast<int>(read(stay, &byte, 1));
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }

  pid_t pid_ = -1;
  UniqueFd stay_;
};

void many_sockets(size_t sockets) {
  enter_new_netns();
  PolicyObject policy;
  const CcaObject older(policy), newer(policy);
  const std::string name = CcaObject::plain_name();
  const Link link = older.attach("slt_plain");
  policy.set_cca_id(name, older.map_id("slt_plain"));

  // Held by processes of their own: a process may not have so many descriptors.
  constexpr size_t kPerProcess = 16000;
  std::vector<std::unique_ptr<Holder>> holders;
  for (size_t left = sockets; left > 0; left -= std::min(left, kPerProcess))
    holders.push_back(std::make_unique<Holder>(std::min(left, kPerProcess), static_cast<uint8_t>(holders.size())));
  printf("%zu sockets in one network namespace\n", sockets);
  policy.set_args(SL_ITER_OBSERVE, 0, 0xffffffff);  // nobody runs it: the walk alone
  double start = cpu_ns();
  policy.iterate<sl_report>("sl_iter_observe");
  const double walk = (cpu_ns() - start);
  printf("  %-46s %7.1f ms %6.0f ns/socket\n", "walk", walk / 1e6, walk / static_cast<double>(sockets));

  const uint64_t before = slab_bytes();
  policy.publish(tables(name, 0, 10));
  migrate(policy, "migrate: native -> BPF", sockets);
  printf("  %-46s %10.0f bytes/socket\n", "storage", static_cast<double>(slab_bytes() - before) / static_cast<double>(sockets));
  migrate(policy, "migrate: nothing to do", sockets);
  must(bpf_link__update_map(link.get(), newer.map("slt_plain")) == 0, "update link");
  policy.set_cca_id(name, newer.map_id("slt_plain"));
  migrate(policy, "migrate: replaced version, same generation", sockets);
  policy.publish(tables("reno", 0, 10));
  migrate(policy, "migrate: BPF -> native, new generation", sockets);
  policy.publish(tables(name, 0, 10));
  migrate(policy, "migrate: native -> BPF, new generation", sockets);
  policy.publish(tables(name, 1, 10));
  migrate(policy, "migrate: new parameters only", sockets);
  start = cpu_ns();
  policy.iterate<char>("sl_iter_count");
  printf("  %-46s %7.1f ms %6.0f ns/socket\n", "count", (cpu_ns() - start) / 1e6,
         (cpu_ns() - start) / static_cast<double>(sockets));
  start = cpu_ns();
  const auto files = policy.iterate<sl_file>("sl_iter_files");
  printf("  %-46s %7.1f ms %6.0f ns/record\n", "files", (cpu_ns() - start) / 1e6,
         (cpu_ns() - start) / static_cast<double>(files.size()));
  while (!holders.empty()) holders.pop_back();  // the youngest first: it has the pipes of the older ones open
}

void selection() {
  enter_new_netns();
  PolicyObject policy;
  Object object(bpf_object__open_file(SLUICE_BUILD_DIR "/tests/bpf/policy_speed.o", nullptr));
  must(object != nullptr, "open policy_speed.o");
  policy.share_maps(object.get());
  must(bpf_object__load(object.get()) == 0, "load policy_speed.o");
  const int map = bpf_object__find_map_fd_by_name(object.get(), "speed_measured");
  bpf_program* program = bpf_object__find_program_by_name(object.get(), "speed_select");
  for (const size_t prefixes : {10u, 1000u, 100000u}) {
    policy.publish(tables("reno", 0, prefixes));
    const Listener listener;
    const Connection c(listener);
    policy.iterate<sl_report>("sl_iter_migrate");
    struct {
      uint64_t empty_ns, storage_ns, cached_ns, full_ns, sockets;
    } m{};
    const uint32_t zero = 0;
    must(bpf_map_update_elem(map, &zero, &m, BPF_ANY) == 0, "speed_measured");
    for (int i = 0; i < 20; ++i) PolicyObject::iterate<char>(program, nullptr);
    must(bpf_map_lookup_elem(map, &zero, &m) == 0, "speed_measured");
    const double rounds = 4096.0 * static_cast<double>(m.sockets), empty = static_cast<double>(m.empty_ns) / rounds;
    printf("selection, %6zu prefixes: storage %.1f ns, select with scope %.1f ns, select %.1f ns (an empty round: %.1f ns)\n",
           prefixes, static_cast<double>(m.storage_ns) / rounds - empty, static_cast<double>(m.cached_ns) / rounds - empty,
           static_cast<double>(m.full_ns) / rounds - empty, empty);
  }
}

// connect + accept with more and more of the pipeline, interleaved in blocks.
void handshakes() {
  enter_new_netns();
  const Cgroup with("sluice_policy_speed_" + std::to_string(getpid()));
  PolicyObject policy;
  const Link hook = policy.attach(with);
  const Cca cubic(Cca::cubic(&policy));
  const int selector = bpf_program__fd(policy.program("sl_selector"));
  const auto set_selector = [&](bool on) {
    const uint32_t stage = 1;
    if (on)
      must(bpf_map_update_elem(policy.map("sl_stages"), &stage, &selector, BPF_ANY) == 0, "sl_stages");
    else
      must(bpf_map_delete_elem(policy.map("sl_stages"), &stage) == 0, "sl_stages");
  };
  policy.publish(tables("reno", 0, 1000));  // slot 1
  policy.publish(tables(cubic.name(), 0, 1000));
  struct Arm {
    const char* what;
    bool in_cgroup;
    uint64_t generation;
    bool selector;
    const char* default_cca;  // of the namespace
    std::vector<double> times = {};
  };
  Arm arms[] = {{"without", false, 0, true, "bbr"},
                {"without, default reno", false, 0, true, "reno"},
                {"hook, no policy", true, 0, true, "bbr"},
                {"+ resolver", true, 2, false, "bbr"},
                {"+ selector, native CCA", true, 1, true, "bbr"},
                {"+ selector, bundle cubic", true, 2, true, "bbr"}};
  constexpr int kBlocks = 100, kPerBlock = 100;
  for (int block = 0; block < kBlocks; ++block) {
    for (Arm& arm : arms) {
      if (arm.in_cgroup) with.enter();
      policy.set_config(arm.generation);
      if (!arm.selector) set_selector(false);
      std::ofstream("/proc/sys/net/ipv4/tcp_congestion_control") << arm.default_cca;
      {
        const Listener listener;
        for (int i = 0; i < kPerBlock; ++i) {
          Address from = address(Ip::kV4, 1, 0), to = listener.where;
          const UniqueFd client = tcp_socket(AF_INET);
          must(bind(client.get(), from.get(), from.size) == 0, "bind");
          const auto start = Clock::now();
          must(connect(client.get(), to.get(), to.size) == 0, "connect");
          const UniqueFd server = listener.accept();
          arm.times.push_back(ns_since(start));
          const linger reset{1, 0};
          setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        }
      }
      if (!arm.selector) set_selector(true);
      if (arm.in_cgroup) Cgroup::enter_root();
    }
  }
  printf("connect + accept, %zu an arm\n", arms[0].times.size());
  for (Arm& arm : arms) {
    std::sort(arm.times.begin(), arm.times.end());
    const auto at = [&](const Arm& a, double q) {
      return a.times[static_cast<size_t>(q * static_cast<double>(a.times.size() - 1))];
    };
    printf("  %-26s p10 %6.0f  p50 %6.0f (%+6.0f)  p99 %6.0f ns\n", arm.what, at(arm, .1), at(arm, .5),
           at(arm, .5) - at(arms[0], .5), at(arm, .99));
  }
  policy.set_config(policy.generation());

  // What the programs themselves take of it (the statistics cost about 40 ns a run).
  const UniqueFd stats(bpf_enable_stats(BPF_STATS_RUN_TIME));
  must(stats.get() >= 0, "bpf_enable_stats");
  with.enter();
  constexpr int kConnections = 5000;
  {
    const Listener listener;
    for (int i = 0; i < kConnections; ++i) const Connection c(listener);
  }
  Cgroup::enter_root();
  for (const char* name : {"sl_sockops", "sl_resolver", "sl_selector"}) {
    bpf_prog_info info{};
    uint32_t size = sizeof(info);
    must(bpf_prog_get_info_by_fd(bpf_program__fd(policy.program(name)), &info, &size) == 0, name);
    printf("  %-12s %lu runs, %.0f ns each\n", name, static_cast<unsigned long>(info.run_cnt),
           info.run_cnt ? static_cast<double>(info.run_time_ns) / static_cast<double>(info.run_cnt) : 0.0);
  }
}

}  // namespace
}  // namespace sluice::test

int main(int argc, char** argv) try {
  using namespace sluice::test;
  std::vector<size_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::stoul(argv[i]));
  if (sizes.empty()) sizes = {10000, 200000};
  setvbuf(stdout, nullptr, _IOLBF, 0);
  selection();
  handshakes();
  for (const size_t sockets : sizes) many_sockets(sockets);
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "%s\n", error.what());
  return 1;
}
