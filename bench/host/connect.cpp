// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// connect.overhead_ns: connect + accept over loopback with the pipeline against without. One process makes connections in
// blocks, in one cgroup after the other, so that whatever else goes on meets all of them alike.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "base/file.h"
#include "bpfio/object.h"
#include "host/host.h"

namespace sluice::bench {
namespace {

constexpr int kPerBlock = 100;
constexpr double kGoal_ns = 1500;
constexpr std::uint16_t kPort = 6000;
constexpr test::Millis kTimeout(600000);

enum Arm { kWithout, kPipeline, kStorage, kArms };

// Opens one connection and returns how long connect and accept took; 0 if one failed.
std::uint64_t connect_once(int listener, const sockaddr_in& to) {
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const std::uint64_t start = now_ns();
  const bool connected = ::connect(client, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  const int server = connected ? ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC) : -1;
  const std::uint64_t took = now_ns() - start;
  // A reset leaves no TIME_WAIT that the next blocks would wade through.
  const linger reset{1, 0};
  ::setsockopt(client, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  ::close(client);
  ::close(server);
  return server >= 0 ? took : 0;
}

bool enter_cgroup(int procs) { return ::pwrite(procs, "0", 1, 0) == 1; }

// In a process of its own. Writes kArms times `blocks * kPerBlock` durations to `out`; exit status 0 or the failing step.
int measure_arms(const std::array<std::string, kArms>& cgroups, int blocks, int out) {
  std::array<int, kArms> procs{}, listeners{};
  std::array<sockaddr_in, kArms> addresses{};
  for (std::size_t arm = 0; arm < kArms; ++arm) {
    procs[arm] = ::open((cgroups[arm] + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
    if (procs[arm] < 0 || !enter_cgroup(procs[arm])) return 2;
    // A socket belongs to the cgroup of whoever makes it, an accepted one to its listener's.
    listeners[arm] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    addresses[arm].sin_family = AF_INET;
    addresses[arm].sin_port = htons(static_cast<std::uint16_t>(kPort + arm));
    addresses[arm].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(listeners[arm], reinterpret_cast<const sockaddr*>(&addresses[arm]), sizeof addresses[arm]) != 0 ||
        ::listen(listeners[arm], 16) != 0)
      return 3;
  }
  std::array<std::vector<std::uint64_t>, kArms> times;
  for (int block = -1; block < blocks; ++block) {  // the first one warms and is not counted
    for (std::size_t turn = 0; turn < kArms; ++turn) {
      const std::size_t arm = (turn + static_cast<std::size_t>(block + 1)) % kArms;  // nobody always comes first
      if (!enter_cgroup(procs[arm])) return 4;
      for (int i = 0; i < kPerBlock; ++i) {
        const std::uint64_t took = connect_once(listeners[arm], addresses[arm]);
        if (took == 0) return 5;
        if (block >= 0) times[arm].push_back(took);
      }
    }
  }
  for (const auto& arm : times) {
    const auto bytes = static_cast<ssize_t>(arm.size() * sizeof(arm[0]));
    if (::write(out, arm.data(), static_cast<std::size_t>(bytes)) != bytes) return 6;
  }
  return 0;
}

Result<std::array<std::vector<double>, kArms>> read_times(const std::string& path, std::size_t per_arm) {
  std::ifstream file(path, std::ios::binary);
  std::array<std::vector<double>, kArms> arms;
  for (auto& arm : arms) {
    std::vector<std::uint64_t> times(per_arm);
    if (!file.read(reinterpret_cast<char*>(times.data()), static_cast<std::streamsize>(per_arm * sizeof(times[0]))))
      return fail(Code::kInternal, "the measuring process wrote too few times to {}", path);
    arm.assign(times.begin(), times.end());
  }
  return arms;
}

}  // namespace

Status measure_connect(Run& run) {
  // One namespace, three cgroups: a topology's hosts bring their own.
  SLUICE_TRY(topology, test::Topology::create({.hosts = {{.name = "without"}, {.name = "pipeline"}, {.name = "floor"}}}));
  const test::Host& host = topology.host("pipeline");
  SLUICE_TRY(agent, Agent::start(run.workspace, host, {"connect", {netns_path(host.netns_fd())}, host.cgroup()}));
  SLUICE_CHECK(agent.apply(document_for({run.workspace.old_cubic()}, run.workspace.old_cubic()), true));

  SLUICE_TRY(object, bpfio::Object::open_file(build_file("bench/host.o")));
  SLUICE_CHECK(object.load());
  SLUICE_TRY(storage_only, object.program("bench_storage_only"));
  SLUICE_TRY(cgroup, open_file(topology.host("floor").cgroup(), O_RDONLY | O_DIRECTORY));
  SLUICE_TRY(hook, bpfio::Link::attach_cgroup(storage_only, cgroup.get(), bpfio::CgroupHook::kSockOps));

  const int blocks = run.size(200, 100);
  const std::string path = run.workspace.dir() + "/connect.times";
  SLUICE_TRY(out, open_file(path, O_RDWR | O_CREAT | O_TRUNC, 0600));
  const std::array<std::string, kArms> cgroups = {topology.host("without").cgroup(), host.cgroup(),
                                                  topology.host("floor").cgroup()};
  SLUICE_TRY(process, test::Process::fork([&] { return measure_arms(cgroups, blocks, out.get()); }, {},
                                          [&] { return ::setns(host.netns_fd(), CLONE_NEWNET) == 0 ? 0 : errno; }));
  SLUICE_TRY(status, process.wait(kTimeout));
  if (status != 0) return fail(Code::kInternal, "the measuring process failed at step {}", status);
  SLUICE_TRY(arms, read_times(path, static_cast<std::size_t>(blocks) * kPerBlock));
  SLUICE_TRY(default_cca, host.sysctl("net.ipv4.tcp_congestion_control"));

  for (const auto& [name, q] : {std::pair("p50", 0.5), std::pair("p99", 0.99)}) {
    const double without = quantile(arms[kWithout], q), with = quantile(arms[kPipeline], q);
    const double storage = quantile(arms[kStorage], q) - without;
    Measurement overhead{.id = "connect.overhead_ns",
                         .params = {{"quantile", name}, {"connections", blocks * kPerBlock}, {"without", default_cca}},
                         .value = with - without,
                         .unit = "ns",
                         .baseline = Baseline{"connect_accept_ns", without}};
    if (q == 0.5) overhead.goal = Goal{"value", "<=", kGoal_ns};
    overhead.note = fmt::format(
        "with the pipeline and {} {:.0f} ns, without {:.0f} ns. For comparison, a hook that only creates a socket storage at "
        "each "
        "end costs {:.0f} ns",
        run.workspace.old_cubic(), with, without, storage);
    // One sample a block: the difference of the medians of neighbours in time.
    for (int block = 0; q == 0.5 && block < blocks; ++block) {
      const auto part = [&](Arm arm) {
        const auto from = arms[arm].begin() + block * kPerBlock;
        return median(std::vector<double>(from, from + kPerBlock));
      };
      overhead.samples.push_back(part(kPipeline) - part(kWithout));
    }
    run.report.add(std::move(overhead));
  }
  return {};
}

}  // namespace sluice::bench
