// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The kernel as the agent sees it: everything the engine reads from a host or does to it goes through this interface, so that
// the same engine runs on a real kernel (real_kernel.h) and on a simulated one that crashes it anywhere (tests/sim).
//
// Contract of every call that changes something: it is idempotent (doing it twice, or after a crash half-way, ends in the same
// state), it touches only what this instance owns, and when it fails it says what is left.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "bpfio/hook_programs.h"
#include "bundle/manifest.h"
#include "policy/compile.h"

namespace sluice::agent {

// A bundle version as the kernel may hold it. `digest` is of the bundle's content: the same version with other content is
// refused, never swapped silently.
struct CcaSpec {
  std::string name;
  std::string version;
  std::string digest;
  std::string kernel_name;
  std::string object;  // path of the BPF object
  bool needs_ecn = false;
  std::map<std::string, uint64_t> load_params;  // `const volatile` variables of the object, set before load
  std::vector<bundle::SharedMap> shared_maps;   // what its manifest says about the maps it shares

  std::string id() const { return name + "@" + version; }
};

struct LoadedCca {
  std::string name;
  std::string version;
  std::string digest;
  std::string kernel_name;
  uint32_t map_id = 0;      // identity of its struct_ops in the kernel
  bool registered = false;  // false: pinned, but the kernel no longer selects it
  uint64_t users = 0;       // sockets and sysctl defaults that hold it, as the kernel counts
  uint64_t memory_bytes = 0;

  std::string id() const { return name + "@" + version; }
};

struct HookState {
  std::string name;    // "sockops"
  std::string target;  // cgroup path
  uint32_t link_id = 0;
  uint32_t prog_id = 0;
  bool ours = true;
};

// What is in the kernel now, of this instance.
struct Observed {
  bool policy_loaded = false;   // maps and programs of a policy bundle are pinned
  bool policy_current = false;  // ... and they are those this agent came with
  std::string policy_digest;
  std::vector<std::string> missing_pins;  // of that pipeline, taken away by somebody
  bool hooks_attached = false;
  std::string hook_loss;    // what is not, and why
  uint64_t generation = 0;  // published; 0 = none
  std::vector<LoadedCca> ccas;
  std::vector<HookState> hooks;
  std::vector<std::string> debris;  // pins under our root that belong to nothing: a load that a crash cut short

  const LoadedCca* find(const std::string& id) const {
    for (const auto& cca : ccas)
      if (cca.id() == id) return &cca;
    return nullptr;
  }
};

// A program on one of our hooks, anybody's.
struct HookProgram {
  enum class Order {
    kOurs,
    kBefore,
    kAfter,
    kBeside,  // ours is not there now
    kNever,   // a cgroup nearer to the sockets overrules it: it does not run
  };
  uint32_t prog_id = 0, link_id = 0;  // link 0 = attached without one
  std::string name, tag;
  int64_t loaded_at_ns = 0;  // wall clock
  uint32_t uid = 0;          // who loaded it
  std::string cgroup;        // that it is attached to
  uint32_t attach_flags = 0;
  Order order = Order::kBeside;  // as its sockets meet it
  std::vector<std::string>
      holders;  // of the program or its link: "process 812 (agent)", "pin /sys/fs/bpf/x"; empty = none was found
  std::vector<bpfio::CallbackActs> acts;
};

struct HookAudit {
  std::string hook;    // "sockops"
  std::string cgroup;  // ours
  bool attached = false;
  uint32_t programs = 0, limit = 0;  // at that cgroup; how many it takes
  // Those of cgroups below ours first, each with the order its own sockets see; then what a socket of our cgroup meets, in the
  // order in which the kernel runs it.
  std::vector<HookProgram> list;
};

struct ForeignCca {
  std::string name;  // as in TCP_CONGESTION
  uint32_t map_id = 0, link_id = 0;
  std::vector<std::string> holders;
};

struct Audit {
  std::vector<HookAudit> hooks;
  std::vector<ForeignCca> ccas;  // registered struct_ops that are not ours
  std::vector<std::string> missing_pins;
  std::string hook_loss;  // as in Observed
};

// One socket, decoded from abi/report.h.
struct SocketReport {
  std::string local, remote;  // "10.0.0.1:443", "[fd00::1]:443"
  uint64_t cookie = 0, generation = 0, cgroup_id = 0;
  uint32_t netns_ino = 0, map_id = 0, place_id = 0, service_id = 0, rule_id = 0, params = 0;
  uint32_t cwnd_segments = 0, ssthresh_segments = 0, srtt_us = 0, retransmits = 0;
  int error = 0;
  uint8_t state = 0, outcome = 0, locality = 0, ecn = 0, flags = 0, ecn_field = 0;
  bool ecn_echoed = false;
  std::string cca;
};

// Sockets counted by what they run.
struct UsageCount {
  uint32_t netns_ino = 0, map_id = 0, rule_id = 0;
  std::string cca;
  uint8_t locality = 0;
  bool listener = false, current = false;
  uint64_t sockets = 0, cwnd_segments_sum = 0, srtt_us_sum = 0, retransmits_sum = 0;
};

struct MigratePass {
  uint64_t seen = 0, moved = 0, failed = 0;
  uint64_t without_ecn = 0;  // their rule's CCA needs ECN and they have none: they run the transitional CCA
  uint32_t namespaces = 0;
  std::vector<SocketReport> left;  // sockets not on what the published generation wants, at most kMaxLeft
  uint64_t left_total = 0;
  static constexpr size_t kMaxLeft = 64;
};

// Users of a CCA that hold it in the kernel besides sockets.
struct OtherUser {
  std::string text;  // "netns 4026532000 (pid 812): default congestion control", "route 10.0.0.0/8 dev eth0 (netns ...)"
};

class Kernel {
 public:
  virtual ~Kernel() = default;

  virtual Result<Observed> observe() = 0;
  virtual std::string release() = 0;                            // "6.18.44"
  virtual Status require_feature(const std::string& name) = 0;  // one that doctor lists; kUnsupported, kInvalid: no such name
  // The congestion control of the host where we do not choose: the initial (or own) namespace's sysctl.
  virtual Result<std::string> default_cca() = 0;
  virtual Result<std::vector<std::string>> available_ccas() = 0;
  virtual Result<std::vector<std::string>> struct_ops_names() = 0;  // those among them that are eBPF, anybody's

  // The policy bundle: maps and programs, pinned, attached to nothing.
  virtual Status load_policy() = 0;
  virtual Status unload_policy() = 0;
  virtual Status attach_hooks() = 0;
  virtual Status detach_hooks() = 0;

  // A CCA: loaded, registered through a link, pinned. Returns its struct_ops map id.
  virtual Result<uint32_t> load_cca(const CcaSpec& spec) = 0;
  // Unregisters and unpins; the caller has made sure that nobody uses it.
  virtual Status retire_cca(const std::string& id) = 0;
  // Removes half-loaded leftovers (Observed::debris).
  virtual Status remove_debris() = 0;
  // Entries of sl_params that were ever written.
  virtual Result<std::map<uint32_t, std::map<std::string, uint64_t>>> read_params(const std::string& id) = 0;
  virtual Status write_params(const std::string& id, uint32_t index, const std::map<std::string, uint64_t>& values) = 0;

  // Fills the slot of compiled.generation.generation; readers see nothing of it until publish().
  virtual Status write_generation(const policy::Compiled& compiled) = 0;
  virtual Status publish(uint64_t generation) = 0;

  virtual Result<std::string> read_sysctl(const std::string& name) = 0;
  virtual Status write_sysctl(const std::string& name, const std::string& value) = 0;

  // cgroup2 ids of the named paths; a path that does not exist is left out.
  virtual Result<std::map<std::string, uint64_t>> cgroup_ids(const std::vector<std::string>& paths) = 0;

  // One pass over every socket of every namespace in our scope: sockets whose CCA or scope is not what the published
  // generation wants are corrected. A thorough pass also searches for sockets that no process holds, in each namespace.
  enum class Pass { kQuick, kThorough, kDryRun };
  virtual Result<MigratePass> migrate(Pass pass) = 0;
  virtual Result<std::vector<UsageCount>> usage() = 0;
  // Calls `sink` with batches; returning false ends the walk.
  virtual Status sockets(const std::function<bool(std::vector<SocketReport>&&)>& sink) = 0;
  // CCA name -> its users, of all CCAs: one look at every namespace's default and routes.
  virtual Result<std::map<std::string, std::vector<OtherUser>>> other_users() = 0;

  virtual Result<std::vector<std::pair<std::string, uint64_t>>> policy_counters() = 0;
  virtual Result<std::vector<std::pair<std::string, uint64_t>>> cca_counters(const std::string& id) = 0;
  // Its programs in the kernel: "cubic_cong_avoid: id 812, tag 1a2b3c4d5e6f7081, 640 instructions verified".
  virtual Result<std::vector<std::string>> cca_programs(const std::string& id) = 0;

  // Everybody's programs on our hooks. Looks at every process's descriptors: for a command, not for a loop.
  virtual Result<Audit> audit() = 0;
  // Folder of a cgroup2 id; kNotFound once it was removed.
  virtual Result<std::string> cgroup_path(uint64_t id) = 0;
};

}  // namespace sluice::agent
