// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/ecn_state.h"

#include <sluice/abi/ecn.h>
#include <sluice/abi/report.h>

namespace sluice::agent {
namespace {

constexpr uint8_t kSynSent = 2;  // TCP_SYN_SENT

}  // namespace

EcnState ecn_state(const SocketReport& socket) {
  if ((socket.flags & SL_REPORT_LISTENER) != 0) return EcnState::kNone;
  const bool negotiated = (socket.ecn & SL_ECN_NEGOTIATED) != 0;
  if (socket.state == kSynSent) return negotiated ? EcnState::kAsked : EcnState::kOff;
  if (negotiated) {
    const bool echo = (socket.ecn & SL_ECN_DEMAND_CWR) != 0 || socket.ecn_echoed;
    return echo ? EcnState::kEchoing : EcnState::kNegotiated;
  }
  if (socket.ecn_field != 0) return EcnState::kBlind;
  // Without a generation it does not run what the policy wants: nobody has asked for it yet.
  return (socket.flags & SL_REPORT_ECN_FALLBACK) != 0 && socket.generation != 0 ? EcnState::kRefused : EcnState::kOff;
}

std::string_view ecn_name(EcnState state) {
  switch (state) {
    case EcnState::kNone:
      return "";
    case EcnState::kOff:
      return "off";
    case EcnState::kAsked:
      return "asked";
    case EcnState::kNegotiated:
      return "negotiated";
    case EcnState::kEchoing:
      return "echoing";
    case EcnState::kBlind:
      return "blind";
    case EcnState::kRefused:
      return "refused";
  }
  return "";
}

}  // namespace sluice::agent
