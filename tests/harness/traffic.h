// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Runs the `traffic` program (traffic_main.cpp, `traffic --help`) on hosts of a topology and reads what it recorded.
//
//   auto server = Traffic::server(b, {"--listen", b.address(AF_INET) + ":5000"});      // returns when it listens
//   auto client = Traffic::client(a, {"--connect", b.address(AF_INET) + ":5000", "--connections", "2000"});
//   auto sent = client->finish(kSoon);                                                  // its summary
//   auto received = server->stop(kSoon);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "harness/process.h"
#include "harness/topology.h"

namespace sluice::test {

struct TrafficSummary {
  std::uint64_t opened = 0;  // connections established
  std::uint64_t closed = 0;  // ended in good order
  std::uint64_t failed = 0;  // refused, reset, timed out, data wrong
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;  // application bytes, both directions
  double seconds = 0;
  std::map<std::string, std::uint64_t> cca_at_open;  // TCP_CONGESTION -> connections
  std::map<std::string, std::uint64_t> cca_at_close;
  std::uint64_t ecn_at_open = 0;                // ECN negotiated
  std::uint64_t ecn_seen_at_close = 0;          // a packet with ECT arrived
  std::map<std::string, std::uint64_t> errors;  // reason -> count
};

// One line of --record.
struct TrafficRecord {
  std::string event;          // "open", "sample", "close", "fail"
  std::string role;           // "client", "server"
  std::uint64_t id;           // chosen by the client, the same at both ends
  std::uint64_t run;          // of the client process
  std::uint64_t time_ns;      // CLOCK_MONOTONIC
  std::string local, remote;  // "address:port", "[address]:port"
  std::string cca;
  bool ecn, ecn_seen;
  std::uint32_t cwnd_segments, rtt_us, retransmits;
  std::uint64_t delivered_ce;
  std::uint64_t cookie;
  std::uint64_t netns_inode;
};

class Traffic {
 public:
  static Result<Traffic> server(const Host& host, std::vector<std::string> arguments);
  static Result<Traffic> client(const Host& host, std::vector<std::string> arguments);

  // Blocks until the next line of that kind on its stdout: "ready", "open N" (all connections are open), "sampled N".
  Result<std::string> expect(const std::string& word, Millis timeout);
  // Records every open connection now; returns how many.
  Result<std::uint64_t> sample(Millis timeout);
  // Waits for its own end.
  Result<TrafficSummary> finish(Millis timeout);
  // Asks it to close everything, then as finish().
  Result<TrafficSummary> stop(Millis timeout);
  Process& process() { return process_; }

 private:
  explicit Traffic(Process process) : process_(std::move(process)) {}
  static Result<Traffic> start(const Host& host, std::vector<std::string> arguments);
  Process process_;
};

Result<std::vector<TrafficRecord>> read_traffic_records(const std::string& path);
Result<TrafficSummary> parse_traffic_summary(const std::string& json);

}  // namespace sluice::test
