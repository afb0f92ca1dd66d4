// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The world in which each cell of docs/connection-states.md is tried: hosts "a" and "b" under an agent, host "c" outside (its
// namespace is not the agent's, its sockets are of another cgroup), and a wire between them that sees every packet.
//
// What is expected stands in the document and nowhere else: a cell's columns `runs`, `ECN` and `explain` are read from there.
// What happens is judged from three sides that share nothing with the product: TCP_CONGESTION at each end, the recorder's
// struct_ops ids, and the packets.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "harness/host_sockets.h"
#include "harness/wire.h"
#include "netns/agent_fixture.h"

namespace sluice::test {

// A row of the document.
struct Row {
  std::string runs;     // of each end: "needs / transitional", "-" = not looked at
  std::string ecn;      // of each end, as `sluice sockets --ecn` says it at that moment
  std::string explain;  // `sluice explain` says this; "-" = not asked
};
Result<std::map<std::string, Row>> read_rows(const std::string& document);

enum class Ip { kV4, kV6, kMapped };
enum class Side { kInside, kOutside };

// What one end sent; SYNs and SYN-ACKs are not counted.
struct Flow {
  std::uint64_t data_ect = 0;
  std::uint64_t data_not_ect = 0;
  std::uint64_t other_ect = 0;  // without data
  std::uint64_t echoes = 0;     // ECE from the other end, after the handshake
};

struct End {
  Fd fd;
  const Host* host = nullptr;
  Side side = Side::kInside;
  std::string name;  // "10.2.0.1:4711"
  std::string peer;  // the other end's; empty = a listener
};

struct Listening {
  End end;
  Ip ip = Ip::kV4;
  Where where = Where::kFar;
  int protocol = IPPROTO_TCP;
};

struct Connection {
  End client, server;
  std::size_t first_packet = 0;  // index in the wire's packets when it began
};

class World {
 public:
  static Result<std::unique_ptr<World>> create();

  // ---- the agent and its policies -----------------------------------------------------------------------------------------
  // `far` is the target of the rule for every connection here, as "ecn_reno@1.0.0", "cubic@1.0.1", kNative.
  static Policy policy(const std::string& far, const std::string& more_rules = "", const std::string& more = "");
  // Puts it in force unless it is already.
  Status in_force(const Policy& policy, const std::vector<std::string>& options = {});
  Agent& agent() { return *agent_; }
  // `sluice down`: nothing of it is left in the kernel. in_force() starts it again.
  Status stop_agent();
  // Killed and started anew, with more namespaces to manage.
  Status restart_agent(const std::vector<std::string>& more_namespaces);
  // `sluice rollback`; in_force() takes it back.
  Status rollback(const std::string& target);

  // ---- sockets ------------------------------------------------------------------------------------------------------------
  struct Place {
    std::string host = "b";
    Side side = Side::kInside;
    Ip ip = Ip::kV4;
    Where where = Where::kFar;
    std::set<int> options = {};  // of SOL_SOCKET, set to 1
    std::uint16_t port = 0;      // 0 = any
    int protocol = IPPROTO_TCP;
    int fast_open = 0;  // queue length of TCP_FASTOPEN; 0 = off
  };
  Result<Listening> listen(const Place& place);
  // Bound to `host`'s own address, not connected.
  Result<End> client(const Listening& to, const std::string& host, Side side, std::uint16_t port = 0);
  static Status connect(const End& client, const Listening& to);        // to the end
  static Status begin_connect(const End& client, const Listening& to);  // SYN_SENT
  static Status finish_connect(const End& client);
  Result<End> accept(const Listening& from);
  Result<Connection> open(const Place& server, const std::string& client, Side side = Side::kInside);
  Result<Connection> open(const Listening& server, const std::string& client, Side side = Side::kInside);

  // ---- what is so ---------------------------------------------------------------------------------------------------------
  // What a socket runs, in the document's words, if TCP_CONGESTION and the recorder agree; else what each says.
  Result<std::string> runs(const End& end);
  // As `sluice sockets --ecn` says it.
  Result<std::string> ecn(const End& end);
  // Events since the last policy was applied: "KIND: MESSAGE".
  Result<std::vector<std::string>> events_since_apply();
  // All that `sluice explain DESTINATION` says.
  Result<std::string> explain(const std::string& destination);
  // What `from` sent since that packet.
  Flow flow(const End& from, std::size_t first_packet) const;
  bool ecn_agreed(const Connection& connection) const;  // by the handshake's flags
  // 40 kB from each end to the other.
  static Status exchange(const Connection& connection);
  // Ends that sent data with ECT which nobody echoed, on this wire that marks all of it, since that packet.
  std::uint64_t blind_senders(const Connection& connection, std::size_t first_packet) const;
  // All that `row` says of a connection, before and after data was sent; counts it.
  void expect(const Row& row, const Connection& connection);
  void expect_runs(const Row& row, const Connection& connection);

  Result<Row> row(const std::string& cell) const;
  const Host& host(const std::string& name) const { return *hosts_.at(name); }
  const std::string& cgroup_name() const { return topology_->name(); }
  Wire& wire() { return *wire_; }
  // A host of another topology, whose sockets are made in a cgroup of the agent's; and gone again.
  Status add(const Host& host);
  void remove(const std::string& host);
  // Where the agent looks for a namespace that is not there yet.
  std::string later_namespace() const { return agent_->dir() + "/later"; }
  std::string kernel_name(const std::string& target) const { return known_.at(target).name; }
  // Of the whole run.
  struct Totals {
    std::uint64_t connections = 0, blind_senders = 0;
  };
  const Totals& totals() const { return totals_; }

 private:
  World() = default;
  Status start_agent(const std::vector<std::string>& more_namespaces);
  std::string word(const std::string& cca, std::uint32_t struct_ops_id) const;
  const HostSockets& maker(const std::string& host, Side side) const { return makers_.at({host, side}); }

  std::map<std::string, Row> rows_;
  std::optional<Topology> topology_;
  std::map<std::string, const Host*> hosts_;
  std::map<std::pair<std::string, Side>, HostSockets> makers_;
  std::optional<Recorder> recorder_;
  std::optional<Agent> agent_;
  std::optional<Wire> wire_;  // last: its thread is the first to go
  bool running_ = false;
  std::string document_;  // in force; "" = unknown
  std::map<std::string, Identity> known_;
  Totals totals_;
};

}  // namespace sluice::test
