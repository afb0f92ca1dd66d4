// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The product as a benchmark uses it: sluiced of the same build, as a process of its own that manages hosts of a test topology,
// asked through its API or through the command line. Nothing of it outlives the object: `down`, then the process, then its
// files.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "bpfio/pin.h"
#include "harness/process.h"
#include "harness/topology.h"
#include "wire/agent.grpc.pb.h"

namespace sluice::bench {

// Files of one run below /tmp, and the build's bundles with a second version of `cubic`: the same program under another number,
// so that only the move between versions is measured.
class Workspace {
 public:
  static Result<Workspace> create();
  Workspace(Workspace&& other) noexcept : dir_(std::exchange(other.dir_, {})), old_cubic_(std::move(other.old_cubic_)) {}
  Workspace& operator=(Workspace&&) = delete;
  ~Workspace();

  const std::string& dir() const { return dir_; }
  std::string bundles() const { return dir_ + "/bundles"; }
  const std::string& old_cubic() const { return old_cubic_; }  // "cubic@1.0.0"
  std::string new_cubic() const { return "cubic@99.0.0"; }

 private:
  explicit Workspace(std::string dir) : dir_(std::move(dir)) {}
  std::string dir_;
  std::string old_cubic_;
};

std::string program(const std::string& name);     // beside this one: "sluice"
std::string build_file(const std::string& path);  // in the build directory: "bench/host.o"

struct AgentOptions {
  std::string name;                     // of this instance within the run
  std::vector<std::string> namespaces;  // paths; those whose sockets it manages
  std::string cgroup;                   // those whose new connections it decides
};
// The path of a host's namespace, valid while this process lives.
std::string netns_path(int netns_fd);

class Agent {
 public:
  // Runs in the namespace of `host`. Host and workspace must outlive it.
  static Result<Agent> start(const Workspace& workspace, const test::Host& host, const AgentOptions& options);
  Agent(Agent&&) noexcept = default;
  Agent& operator=(Agent&&) = delete;
  ~Agent();

  Status kill();    // SIGKILL
  Status resume();  // a new process of the same instance, after kill() or down()

  Result<v1::ApplyResult> apply(const std::string& document, bool migrate);
  Result<v1::MigrateResult> migrate();
  Status down();  // takes everything back, and with it the agent ends
  Result<std::vector<v1::Cca>> ccas();
  // The struct_ops map that "cubic@1.0.0" is registered with.
  Result<std::uint32_t> map_id(const std::string& bundle);
  Result<bpfio::PinRoot> pins() const;

  // The command line on this agent: `sluice WORDS...`, started; its output goes to a pipe.
  Result<test::Process> command(const std::vector<std::string>& words) const;
  // To its end, with status 0; milliseconds from before its start to its end.
  Result<double> timed_command(const std::vector<std::string>& words, test::Millis timeout) const;

 private:
  struct State;
  explicit Agent(std::unique_ptr<State> state);
  struct Drop {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Drop> state_;
};

// A document with these bundles, the first one transitional, and one rule: everything gets `use`.
std::string document_for(const std::vector<std::string>& bundles, const std::string& use);

}  // namespace sluice::bench
