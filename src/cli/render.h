// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Replies for people. Pure: a message in, text out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/text.h"
#include "wire/agent.pb.h"

namespace sluice::cli {

std::string render_apply(const v1::ApplyResult& result, const Style& style);
std::string render_migrate(const v1::MigrateResult& result, bool dry_run, const Style& style);
std::string render_rollback(const v1::RollbackResult& result, const Style& style);
std::string render_down(const v1::DownResult& result, const Style& style);
std::string render_diff(const v1::DiffReply& reply, bool verbose, const Style& style);
std::string render_status(const v1::StatusReply& reply, std::int64_t now_ns, bool verbose, const Style& style);
std::string render_explain(const std::string& destination, const v1::ExplainReply& reply, std::int64_t now_ns,
                           const Style& style);
std::string render_ecn_probe(const v1::EcnProbe& probe, const Style& style);
std::string render_ecn_probes(const v1::EcnProbesReply& reply, std::int64_t now_ns, const Style& style);
std::string render_ccas(const v1::CcasReply& reply, const Style& style);
std::string render_cca(const v1::Cca& cca, const Style& style);
std::string render_doctor(const v1::DoctorReply& reply, const Style& style);
std::string render_audit(const v1::AuditReply& reply, bool verbose, const Style& style);
std::string render_event(const v1::Event& event, const Style& style);

Table socket_table(const Style& style);
std::vector<Cell> socket_row(const v1::Socket& socket);
Table ecn_table(const Style& style);
std::vector<Cell> ecn_row(const v1::Socket& socket);

// Sockets counted by one of cca, version, locality, netns: rows of agent.proto's Usage whose other key fields are empty.
class SocketCount {
 public:
  explicit SocketCount(std::string by) : by_(std::move(by)) {}
  void add(const v1::Socket& socket);
  std::vector<v1::Usage> rows() const;  // most sockets first
  std::string table(const Style& style) const;
  std::string json() const;  // {"by": "cca", "usage": [...]}

 private:
  struct Group {
    v1::Usage usage;
    std::string label;
    double cwnd_sum = 0, srtt_sum = 0;  // listeners have neither and are counted apart
    std::uint64_t listeners = 0;
  };
  std::vector<const Group*> sorted() const;

  std::string by_;
  std::map<std::string, Group> groups_;
};

// Exit statuses of replies.
int status_of(const v1::MigrateResult& result);
int status_of(const v1::DoctorReply& reply);
int status_of(const v1::AuditReply& reply);
int status_of(const v1::EcnProbe& probe);

// "sluice: what", then the remedy and the detail (or how to see it) on lines of their own; problems of a file each as compilers
// print them: file:line:column: error: what.
std::string render_error(const Error& error, bool verbose, const Style& style);

}  // namespace sluice::cli
