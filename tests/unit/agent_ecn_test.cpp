// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What `sluice sockets --ecn` calls a socket, from what the kernel keeps about it.
#include <gtest/gtest.h>
#include <sluice/abi/ecn.h>
#include <sluice/abi/report.h>

#include "agent/ecn_state.h"

namespace sluice::agent {
namespace {

constexpr uint8_t kEstablished = 1, kSynSent = 2;
constexpr uint8_t kEct0 = 2;

struct Case {
  const char* word;
  SocketReport socket;
};

SocketReport socket(uint8_t ecn, uint8_t field, uint8_t flags = 0, uint8_t state = kEstablished) {
  SocketReport report;
  report.state = state;
  report.ecn = ecn;
  report.ecn_field = field;
  report.flags = flags;
  report.generation = 7;
  return report;
}

SocketReport with(SocketReport report, void (*change)(SocketReport&)) {
  change(report);
  return report;
}

TEST(EcnState, IsOneWordForEachState) {
  const Case cases[] = {
      {"", socket(0, 0, SL_REPORT_LISTENER)},
      {"", socket(0, kEct0, SL_REPORT_LISTENER)},
      {"off", socket(0, 0)},
      {"off", socket(SL_ECN_SEEN, 0)},
      {"off", socket(0, 0, 0, kSynSent)},
      {"asked", socket(SL_ECN_OK, kEct0, 0, kSynSent)},
      {"negotiated", socket(SL_ECN_OK, 0)},
      {"negotiated", socket(SL_ECN_OK | SL_ECN_SEEN, kEct0)},
      {"negotiated", socket(SL_ECN_ACCECN, kEct0)},
      {"negotiated", socket(SL_ECN_OK | SL_ECN_QUEUE_CWR, kEct0)},  // a loss does that too
      {"echoing", socket(SL_ECN_OK | SL_ECN_SEEN | SL_ECN_DEMAND_CWR, 0)},
      {"echoing", with(socket(SL_ECN_OK, kEct0), [](SocketReport& r) { r.ecn_echoed = true; })},
      {"blind", socket(0, kEct0)},
      {"blind", socket(SL_ECN_SEEN, kEct0, SL_REPORT_ECN_FALLBACK)},
      {"refused", socket(0, 0, SL_REPORT_ECN_FALLBACK)},
      // It does not run what the policy wants (an MPTCP subflow, not migrated so far): nobody was refused.
      {"off", with(socket(0, 0, SL_REPORT_ECN_FALLBACK), [](SocketReport& r) { r.generation = 0; })},
  };
  for (const auto& [word, report] : cases)
    EXPECT_EQ(ecn_name(ecn_state(report)), word) << "ecn " << int{report.ecn} << ", field " << int{report.ecn_field}
                                                 << ", flags " << int{report.flags} << ", state " << int{report.state};
}

}  // namespace
}  // namespace sluice::agent
