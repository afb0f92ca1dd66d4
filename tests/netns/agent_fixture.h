// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The real agent (sluiced) and CLI (sluice) in the hands of a test, and a world for them to manage: two hosts with addresses of
// every locality, traffic between them, and the expectation, written by hand, of what each socket must run.
//
// The hosts' default congestion control is reno and no policy of these tests selects that: a socket found on it is one that
// nobody selected. Nothing here reads what the agent says about sockets: the recorder does.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "harness/assert.h"
#include "harness/process.h"
#include "harness/recorder.h"
#include "harness/topology.h"
#include "harness/traffic.h"

namespace sluice::test {

// The CCAs the kernel has registered: /proc/sys/net/ipv4/tcp_available_congestion_control.
std::set<std::string> available_ccas();

inline constexpr std::uint16_t kPort = 5000;
inline const std::string kFallback = "reno";  // what a socket runs that nobody selected; any namespace may default to it
inline const std::string kFallbackUse = "kernel:" + kFallback;
// Native CCAs that policies select.
inline const std::string kNative = "kernel:cubic";
inline const std::string kNative2 = available_ccas().contains("bbr") ? "kernel:bbr" : kNative;

// The test program in a mount namespace of its own, with a bpffs of its own.
class PrivateBpffs : public testing::Environment {
 public:
  void SetUp() override;
};

// Where the remote end is, seen from a host at eu/eu1/r1. One address of each host ("a", "b", "c") lies in each.
enum class Where { kNear, kFar, kExternal, kUnknown, kNear6, kFar6 };
inline constexpr Where kEverywhere[] = {Where::kNear,    Where::kFar,   Where::kExternal,
                                        Where::kUnknown, Where::kNear6, Where::kFar6};
std::string address(const std::string& host, Where where);  // 10.1.0.1, fd02::2, ...
// The Where of an address of these hosts.
Where where_is(const std::string& address);

// "a" and "b" on one link, named under /run/netns.
TopologySpec world_spec();

// What a socket runs, in the recorder's words; the id is 0 for native CCAs.
struct Identity {
  std::string name;
  std::uint32_t struct_ops_id = 0;
  bool operator==(const Identity&) const = default;
};
using Identities = std::map<std::string, Identity>;  // by the words of a policy: kNative, "cubic@1.0.0"

// The rules of a policy, as words of the document: kNative, "cubic@1.0.0". IPv6 goes with its locality.
struct Uses {
  std::string near, far, external, unknown;
  const std::string& of(Where where) const;
};

struct Policy {
  Uses uses;
  std::vector<std::string> bundles = {"cubic@1.0.0"};
  std::string transitional = "cubic@1.0.0";  // "" = the document names none
  std::string far_prefixes = "10.2.0.0/16";  // IPv4 prefix that is region us
  std::string extra = {};                    // more top-level keys, whole lines
  std::string rules_before = {};             // more rules, whole lines, before the others
  std::string document() const;
};

// An agent of an instance of its own. It runs on host "a", in whose namespace it reads and sets sysctls.
class Agent {
 public:
  struct Options {
    std::string tag = "";                         // tells several agents of one test apart
    std::vector<std::string> hosts = {"a", "b"};  // whose namespaces it manages
    std::string cgroup = "";                      // empty = the topology's
    std::string state_dir = "";                   // empty = below dir()
    int watchdog_us = 0;                          // the service manager wants to hear from it so often; 0 = never
  };
  Agent(const Topology& topology, Options options);
  explicit Agent(const Topology& topology) : Agent(topology, Options{}) {}
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();

  // Returns when it serves; the error says what it printed if it ended before.
  // `surroundings` is a shell command that runs first, in a mount namespace of its own.
  Status start(const std::vector<std::string>& more = {}, const std::string& surroundings = "");
  // Starts it and does not wait.
  Status launch(const std::vector<std::string>& more = {}, const std::string& surroundings = "");
  // SIGKILL, and gone.
  Status kill();
  // SIGTERM, and gone.
  Status stop();
  Status wait_exit();
  // The agent tells its service manager, once more from now on, that it is alive.
  Status await_watchdog();
  pid_t pid() const { return process_->pid(); }
  // Another one with the same options, to its end.
  Result<Output> run_daemon(const std::vector<std::string>& more);

  // `sluice ARGUMENTS...` to its end.
  Result<Output> cli(std::vector<std::string> arguments) const;
  // The same, started; stdout and stderr come mixed.
  Result<Process> start_cli(std::vector<std::string> arguments) const;
  // `sluice --output json ...`; any exit status of `accept`.
  Result<nlohmann::json> json(std::vector<std::string> arguments, const std::set<int>& accept = {0}) const;
  // Writes the document to a file and applies it.
  Result<nlohmann::json> apply(const Policy& policy, const std::set<int>& accept = {0}) const;
  Result<nlohmann::json> apply_text(const std::string& document, const std::set<int>& accept = {0}) const;
  std::string write_policy(const std::string& document) const;  // returns the path
  Result<Output> try_apply(const Policy& policy) const;         // whatever comes of it

  // A bundle like `from` of the folder `root` (empty = the build's bundles), in dir()/bundles, its manifest edited: each first
  // part replaced by its second.
  Status copy_bundle(const std::string& from, const std::string& version,
                     const std::vector<std::pair<std::string, std::string>>& edits = {}, const std::string& root = "") const;
  // A CCA bundle without parameters of one of this folder's objects.
  Status make_bundle(const std::string& name, const std::string& object, const std::string& hooks,
                     const std::string& ecn = "ignores", const std::string& version = "1.0.0") const;

  // What the words of a policy are in the kernel. Of a bundle: the name that the agent tells once, and the id of the pinned
  // struct_ops map. A native CCA has no map.
  Result<Identity> identity(const std::string& target);
  Result<Identities> identities(const std::vector<std::string>& targets);
  const std::string& instance() const { return instance_; }
  const std::string& dir() const { return dir_; }
  const std::string& state_dir() const { return state_dir_; }
  const std::string& pin_dir() const { return pin_dir_; }
  const std::string& socket() const { return socket_; }
  std::string log() const;

 private:
  std::vector<std::string> command(const std::vector<std::string>& more) const;
  Status await_notice(const std::string& what);

  const Topology& topology_;
  Options options_;
  std::string instance_, dir_, state_dir_, pin_dir_, socket_, cgroup_;
  Fd notify_;
  std::optional<Process> process_;
  std::map<std::string, std::string> names_;  // NAME@VERSION -> kernel name, which never changes
  mutable int documents_ = 0;
};

// Servers on both hosts' addresses, and connections that stay open.
class Connections {
 public:
  // `each` connections to b from a for every Where given, held until the destructor.
  static Result<Connections> open(const Topology& topology, int each, std::uint16_t port = kPort,
                                  const std::vector<Where>& where = {std::begin(kEverywhere), std::end(kEverywhere)});
  // More of them, to the same server; with `cca`, the client sets that TCP_CONGESTION before it connects.
  Status more(const Topology& topology, int each, const std::vector<Where>& where, const std::string& cca = "");
  int count() const { return count_; }

 private:
  std::uint16_t port_ = 0;
  int count_ = 0;
  std::vector<Traffic> traffic_;
};

// Short connections of every kind, from start() to stop().
class Churn {
 public:
  // `dir` holds what both ends record.
  Churn(const Topology& topology, std::string dir) : topology_(topology), dir_(std::move(dir)) {}
  Status start(int connections_per_s);  // for each Where
  // Every connection's opening and end as both ends saw them. An error if one failed.
  Result<std::vector<TrafficRecord>> stop();

 private:
  const Topology& topology_;
  std::string dir_;
  std::optional<Traffic> server_;
  std::vector<Traffic> clients_;
};
// The address of "10.1.0.1:5000" or "[fd01::1]:5000".
std::string without_port(const std::string& endpoint);

// What is wrong with the sockets of both hosts under a policy: one line for each difference, empty = as expected. A socket must
// be on what the rules say for its remote end, a listener on `listener`.
Result<std::string> differences(const Recorder& recorder, const Topology& topology, const Uses& uses,
                                const std::string& listener, const Identities& identities);
// Established sockets of both hosts.
Result<std::vector<SocketRecord>> established(const Recorder& recorder, const Topology& topology);

// The world, the recorder, and an agent that does not run yet.
class AgentWorldTest : public testing::Test {
 protected:
  void SetUp() override;
  // What is wrong under a policy, or why that cannot be told; empty = nothing.
  std::string unlike(const Uses& uses, const std::string& listener = "cubic@1.0.0");

  std::optional<Topology> topology_;
  std::optional<Recorder> recorder_;
  std::optional<Agent> agent_;
  std::optional<Connections> open_;
};

// Ids of the sockops programs attached to a cgroup.
Result<std::vector<std::uint32_t>> sockops_programs(const std::string& cgroup);

}  // namespace sluice::test
