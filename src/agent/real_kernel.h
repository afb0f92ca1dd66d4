// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Kernel on a real host: pins and BPF through bpfio, namespaces, sysctls and routes through net.
#pragma once

#include <sluice/abi/report.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "agent/held_sockets.h"
#include "agent/kernel.h"
#include "agent/pinned_cca.h"
#include "agent/pinned_policy.h"
#include "bpfio/pin.h"
#include "bundle/catalog.h"
#include "net/netns.h"

namespace sluice::agent {

struct RealKernelOptions {
  std::string pin_dir;                  // /sys/fs/bpf/sluice/v1/INSTANCE
  std::string log_dir;                  // verifier logs
  std::string cgroup;                   // folder the sockops program is attached to; empty = the cgroup2 root
  std::vector<std::string> namespaces;  // paths; empty = every namespace of the host
  std::string proc_root = "/proc";
};

class RealKernel final : public Kernel {
 public:
  // `policy` is the policy bundle to use.
  static Result<std::unique_ptr<RealKernel>> open(const RealKernelOptions& options, bundle::Bundle policy);

  Result<Observed> observe() override;
  std::string release() override;
  Status require_feature(const std::string& name) override;
  Result<std::string> default_cca() override;
  Result<std::vector<std::string>> available_ccas() override;
  Result<std::vector<std::string>> struct_ops_names() override;
  Status load_policy() override;
  Status unload_policy() override;
  Status attach_hooks() override;
  Status detach_hooks() override;
  Result<uint32_t> load_cca(const CcaSpec& spec) override;
  Status retire_cca(const std::string& id) override;
  Status remove_debris() override;
  Result<std::map<uint32_t, std::map<std::string, uint64_t>>> read_params(const std::string& id) override;
  Status write_params(const std::string& id, uint32_t index, const std::map<std::string, uint64_t>& values) override;
  Status write_generation(const policy::Compiled& compiled) override;
  Status publish(uint64_t generation) override;
  Result<std::string> read_sysctl(const std::string& name) override;
  Status write_sysctl(const std::string& name, const std::string& value) override;
  Result<std::map<std::string, uint64_t>> cgroup_ids(const std::vector<std::string>& paths) override;
  Result<MigratePass> migrate(Pass kind) override;
  Result<std::vector<UsageCount>> usage() override;
  Status sockets(const std::function<bool(std::vector<SocketReport>&&)>& sink) override;
  Result<std::map<std::string, std::vector<OtherUser>>> other_users() override;
  Result<std::vector<std::pair<std::string, uint64_t>>> policy_counters() override;
  Result<std::vector<std::pair<std::string, uint64_t>>> cca_counters(const std::string& id) override;
  Result<std::vector<std::string>> cca_programs(const std::string& id) override;
  Result<Audit> audit() override;
  Result<std::string> cgroup_path(uint64_t id) override;

 private:
  RealKernel(RealKernelOptions options, bundle::Bundle policy, std::string cgroup2);

  // The pin folder exists only while something is pinned: a host without a policy carries no trace of us.
  Result<const bpfio::PinRoot*> pins(bool create);
  const std::string& attach_cgroup() const { return options_.cgroup.empty() ? cgroup2_ : options_.cgroup; }
  Result<std::vector<net::Netns>> namespaces() const;

  // TCP sockets that processes hold in one namespace: all of them while they are few.
  struct HeldSpace {
    std::vector<sl_file> sockets;
    size_t count = 0;
    uint64_t waiting = 0;  // connections that wait for accept
  };
  // Beyond this a walk is cheaper than single sockets (15 us each against 2.3 ms).
  static constexpr size_t kHeldMax = 128;
  Result<std::map<uint32_t, HeldSpace>> held_by_namespace();
  Result<bool> correct_held(const HeldSockets& held, const HeldSpace& space, bool dry_run, MigratePass& pass);
  Status walk_namespace(const bpfio::Link& link, const net::Netns& space, MigratePass& pass);
  static void note_left(const sl_report& record, MigratePass& pass);
  Status remove_empty_parents() const;

  RealKernelOptions options_;
  bundle::Bundle bundle_;
  PinnedPolicy::Shape shape_;
  std::string cgroup2_;
  std::mutex usage_mutex_;      // sl_usage, filled by one walk at a time
  std::recursive_mutex mutex_;  // pins_ and what hangs on it
  std::unique_ptr<bpfio::PinRoot> pins_;
  std::unique_ptr<PinnedPolicy> policy_;
  std::unique_ptr<PinnedCcas> ccas_;
};

}  // namespace sluice::agent
