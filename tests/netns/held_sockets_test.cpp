// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The two ways in which the agent corrects sockets - the kernel's walk (bpf/policy/policy) and, where namespaces are many and
// small, one socket at a time (src/agent/held_sockets.h) - decide alike: what the second leaves, the first finds right.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "agent/engine.h"
#include "agent/real_kernel.h"
#include "agent/sqlite_store.h"
#include "base/file.h"
#include "base/log.h"
#include "harness/assert.h"
#include "harness/topology.h"

namespace sluice::test {
namespace {

constexpr size_t kNamespaces = 12;  // more than are simply walked

constexpr char kPolicy[] = R"(
apiVersion: sluice/v1
kind: Host
place: {region: eu, datacenter: eu1, rack: r1}
topology:
  - {prefix: 10.77.0.0/24, region: us}
  - {prefix: 10.78.0.0/24, region: eu, datacenter: eu1}
  - {prefix: "fd77::/64", region: ap}
bundles:
  - name: cubic
    version: 1.0.0
    overrides:
      - {match: {service: web, place: us}, parameters: {beta_percent: 80}}
      - {match: {service: batch}, parameters: {beta_percent: 60}}
services:
  - {name: web, ports: [8080]}
  - {name: lab, sources: [10.78.0.2/32]}
  - {name: batch, cgroups: [CGROUP]}
rules:
  - {name: lab, match: {service: lab}, use: "kernel:reno"}
  - {name: near, match: {locality: [intra_rack, intra_dc, intra_region]}, use: "kernel:bbr"}
  - {name: rest, match: {}, use: "cubic@1.0.0"}
)";

// A listener, a client and its accepted end, at one address.
Status connect_pair(const std::string& address, uint16_t port, std::vector<Fd>& fds) {
  const bool v6 = address.find(':') != std::string::npos;
  sockaddr_storage storage{};
  socklen_t size = 0;
  if (v6) {
    auto* in6 = reinterpret_cast<sockaddr_in6*>(&storage);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
    inet_pton(AF_INET6, address.c_str(), &in6->sin6_addr);
    size = sizeof *in6;
  } else {
    auto* in4 = reinterpret_cast<sockaddr_in*>(&storage);
    in4->sin_family = AF_INET;
    in4->sin_port = htons(port);
    inet_pton(AF_INET, address.c_str(), &in4->sin_addr);
    size = sizeof *in4;
  }
  auto* generic = reinterpret_cast<sockaddr*>(&storage);
  const int family = v6 ? AF_INET6 : AF_INET;
  Fd listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (::bind(listener.get(), generic, size) != 0 || ::listen(listener.get(), 8) != 0)
    return fail_errno(errno, "listen on {} port {}", address, port);
  Fd client(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(client.get(), generic, size) != 0) return fail_errno(errno, "connect to {} port {}", address, port);
  Fd server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (server.get() < 0) return fail_errno(errno, "accept on {} port {}", address, port);
  fds.push_back(std::move(listener));
  fds.push_back(std::move(client));
  fds.push_back(std::move(server));
  return {};
}

class HeldSocketsTest : public testing::Test {
 protected:
  void SetUp() override {
    init_log({LogLevel::kError, LogFormat::kText, nullptr});
    // A bpffs of our own, seen by this process only.
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-held-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    std::filesystem::create_directory(folder_ + "/bpf");
    ASSERT_EQ(::mount("bpf", (folder_ + "/bpf").c_str(), "bpf", 0, nullptr), 0);
    instance_ = fmt::format("held{}", ::getpid());

    TopologySpec spec;
    for (size_t i = 0; i < kNamespaces; ++i) spec.hosts.push_back({.name = fmt::format("h{}", i)});
    auto topology = Topology::create(spec);
    ASSERT_OK(topology);
    topology_ = std::make_unique<Topology>(std::move(*topology));
    for (const auto& host : topology_->hosts()) {
      for (const char* words : {"link set lo up", "address add 10.77.0.1/32 dev lo", "address add 10.78.0.1/32 dev lo",
                                "address add 10.78.0.2/32 dev lo", "-6 address add fd77::1/128 dev lo nodad"})
        ASSERT_OK(host->run({"sh", "-c", fmt::format("ip {}", words)}));
    }
  }
  void TearDown() override {
    fds_.clear();
    topology_.reset();
    ::umount2((folder_ + "/bpf").c_str(), MNT_DETACH);
    std::filesystem::remove_all(folder_);
  }

  std::string folder_, instance_;
  std::unique_ptr<Topology> topology_;
  std::vector<Fd> fds_;
};

TEST_F(HeldSocketsTest, ALeftoverFreePassOneByOneIsFoundRightByTheKernelsWalk) {
  for (const auto& host : topology_->hosts()) {
    ASSERT_OK(host->call([&]() -> Status {
      SLUICE_CHECK(connect_pair("10.77.0.1", 8080, fds_));
      SLUICE_CHECK(connect_pair("10.78.0.1", 5000, fds_));
      SLUICE_CHECK(connect_pair("10.78.0.2", 5000, fds_));
      SLUICE_CHECK(connect_pair("fd77::1", 5000, fds_));
      return connect_pair("127.0.0.1", 5000, fds_);
    }));
  }

  agent::RealKernelOptions options;
  options.pin_dir = folder_ + "/bpf/sluice/v1/" + instance_;
  options.log_dir = folder_;
  options.cgroup = topology_->cgroup();
  for (const auto& host : topology_->hosts()) options.namespaces.push_back(fmt::format("/proc/self/fd/{}", host->netns_fd()));
  const auto catalog = [] { return bundle::Catalog::scan({std::string(SLUICE_BUILD_DIR) + "/bundles"}); };
  const bundle::Catalog bundles = catalog();
  const bundle::Bundle* policy = bundles.newest("policy");
  ASSERT_NE(policy, nullptr);
  ASSERT_VALUE(kernel, agent::RealKernel::open(options, *policy));
  ASSERT_VALUE(store, agent::SqliteStore::open(folder_ + "/agent.db"));
  RealClock clock;
  agent::EngineOptions engine_options;
  engine_options.instance = instance_;
  agent::Engine engine(*kernel, *store, clock, catalog, engine_options);
  ASSERT_OK(engine.recover());

  // The sockets are this process's, in its cgroup; the service that names it must be found through the socket's own cgroup.
  ASSERT_VALUE(own_cgroup, read_file("/proc/self/cgroup"));
  const size_t line = own_cgroup.find("0::");
  ASSERT_NE(line, std::string::npos);
  std::string path = own_cgroup.substr(line + 3, own_cgroup.find('\n', line) - line - 3);
  std::string document = kPolicy;
  document.replace(document.find("CGROUP"), 6, path);
  v1::ApplyRequest request;
  request.set_document(document);
  request.set_source_name("policy.yaml");
  ASSERT_VALUE(applied, engine.apply(request, [](const v1::Progress&) {}));
  EXPECT_TRUE(applied.migration().complete());
  EXPECT_EQ(applied.migration().namespaces(), kNamespaces);
  EXPECT_EQ(applied.migration().seen(), fds_.size());

  // The walk, in every namespace, would change nothing: neither a CCA nor a place, service, rule or parameter set.
  ASSERT_VALUE(pins, bpfio::PinRoot::open(options.pin_dir));
  ASSERT_VALUE(link, pins.link("policy/iter/sl_iter_migrate"));
  ASSERT_VALUE(args_fd, pins.map("policy/maps/sl_iter_args"));
  ASSERT_VALUE(args, (bpfio::Map<uint32_t, sl_iter_args>::from(std::move(args_fd))));
  ASSERT_OK(args.update(SL_ITER_MIGRATE, {SL_ITER_DRY_RUN | SL_ITER_REPORT_ALL, 0}));
  size_t seen = 0;
  std::map<std::string, size_t> by_cca;
  for (const auto& host : topology_->hosts()) {
    ASSERT_VALUE(walk, bpfio::Iterator::create(link, host->netns_fd()));
    ASSERT_OK(bpfio::for_each_record<sl_report>(walk, [&](const sl_report& report) {
      ++seen;
      ++by_cca[report.cca];
      EXPECT_EQ(report.outcome, SL_OUTCOME_CURRENT) << "port " << report.local_port << " -> " << report.remote_port << " runs "
                                                    << report.cca << ", rule " << report.rule_id;
      return true;
    }));
  }
  EXPECT_EQ(seen, fds_.size());
  // 4 sockets a namespace go to natives (10.78.0.1: bbr at both ends, 10.78.0.2: reno), 11 to ours, listeners included.
  EXPECT_EQ(by_cca["bbr"], 2 * kNamespaces);
  EXPECT_EQ(by_cca["reno"], 2 * kNamespaces);

  ASSERT_VALUE(down, engine.down({}, [](const v1::Progress&) {}));
  EXPECT_TRUE(down.migration().complete());
  EXPECT_FALSE(std::filesystem::exists(options.pin_dir));
}

}  // namespace
}  // namespace sluice::test
