// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// ECN of one socket in a word, from what the kernel keeps about it (docs/glossary.md defines each).
#pragma once

#include <string_view>

#include "agent/kernel.h"

namespace sluice::agent {

enum class EcnState {
  kNone,        // a listener
  kOff,         // not negotiated, not needed, no ECT sent
  kAsked,       // SYN_SENT, and the SYN asks
  kNegotiated,  // both ends agreed; no mark was seen so far
  kEchoing,     // negotiated, and marks come back
  kBlind,       // sends ECT although the peer did not agree: marks are lost
  kRefused,     // its rule's CCA needs ECN, the connection has none: it runs the transitional CCA
};

EcnState ecn_state(const SocketReport& socket);
std::string_view ecn_name(EcnState state);  // "off", "asked", ...; "" = kNone

}  // namespace sluice::agent
