// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "net/ecn_path.h"

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace sluice::net {
namespace {

constexpr std::uint32_t kControlMin = 2;  // of unmarked probes must arrive before the loss of marked ones means something
constexpr std::uint32_t kLostMin = 3;     // and so many marked ones must be lost, all of them
constexpr std::uint32_t kEchoMin = 2;     // CE segments acknowledged without an echo before that means something

constexpr std::array<std::pair<EcnVerdict, std::string_view>, 12> kVerdictNames = {{
    {EcnVerdict::kUnknown, "unknown"},
    {EcnVerdict::kUsable, "usable"},
    {EcnVerdict::kRefused, "refused"},
    {EcnVerdict::kReflected, "reflected"},
    {EcnVerdict::kSynDropped, "syn-dropped"},
    {EcnVerdict::kSynReset, "syn-reset"},
    {EcnVerdict::kEctDropped, "ect-dropped"},
    {EcnVerdict::kEctCleared, "ect-cleared"},
    {EcnVerdict::kCeCleared, "ce-cleared"},
    {EcnVerdict::kClosed, "closed"},
    {EcnVerdict::kSilent, "silent"},
    {EcnVerdict::kUnreachable, "unreachable"},
}};

bool accepted(SynAnswer answer) {
  return answer == SynAnswer::kSynAck || answer == SynAnswer::kSynAckEcn || answer == SynAnswer::kReflected;
}

std::string where(const Finding& finding) {
  return finding.at_destination ? "at the destination" : fmt::format("at hop {}", finding.hop);
}

const EcnObservations::Delivery& delivery(const EcnObservations& seen, Ecn ecn) {
  return seen.delivery[static_cast<std::size_t>(ecn)];
}

std::string counts(const EcnObservations& seen, Ecn ecn) {
  const auto& marked = delivery(seen, ecn);
  const auto& plain = delivery(seen, Ecn::kNotEct);
  return fmt::format("{} of {} arrived, {} of {} without ECT", marked.arrived, marked.sent, plain.arrived, plain.sent);
}

// What the hops say of one codepoint, or of the DSCP. A change that a later hop does not see is one of the quotation only.
template <class Wanted, class FateOf, class TextOf>
Finding judge_hops(const EcnObservations& seen, Wanted&& wanted, FateOf&& fate_of, TextOf&& text_of) {
  Finding finding;
  for (const HopSeen& hop : seen.hops) {  // by distance
    if (!wanted(hop)) continue;
    const Fate fate = fate_of(hop);
    if (fate != Fate::kIntact && finding.fate != Fate::kUnknown && finding.fate != Fate::kIntact) continue;
    finding = {fate, hop.hop, hop.at_destination, ""};
    finding.text = fate == Fate::kIntact ? fmt::format("still {}", where(finding))
                                         : fmt::format("{} {} ({})", text_of(hop), where(finding), hop.router.text());
  }
  return finding;
}

Finding judge_hops(const EcnObservations& seen, Ecn ecn, std::uint8_t protocol) {
  return judge_hops(
      seen, [&](const HopSeen& hop) { return hop.sent == ecn && hop.protocol == protocol; },
      [&](const HopSeen& hop) {
        const bool congestion = ecn != Ecn::kCe && hop.seen == Ecn::kCe;  // marked on the way, as it should be
        return hop.seen == ecn || congestion ? Fate::kIntact : hop.seen == Ecn::kNotEct ? Fate::kCleared : Fate::kChanged;
      },
      [&](const HopSeen& hop) { return fmt::format("{} is {}", ecn_name(ecn), ecn_name(hop.seen)); });
}

Finding judge_outward(const EcnObservations& seen, Ecn ecn) {
  const auto& marked = delivery(seen, ecn);
  if (delivery(seen, Ecn::kNotEct).arrived >= kControlMin && marked.sent >= kLostMin && marked.arrived == 0)
    return {Fate::kDropped, 0, false, counts(seen, ecn)};
  // TCP is what this is about; UDP stands in where no hop answers TCP, and reaches further: the destination itself quotes it.
  Finding finding = judge_hops(seen, ecn, IPPROTO_TCP);
  Finding udp = judge_hops(seen, ecn, IPPROTO_UDP);
  if (!udp.text.empty()) udp.text += " (UDP)";
  const bool further = finding.fate == Fate::kIntact && udp.fate == Fate::kIntact && udp.at_destination;
  if (finding.fate == Fate::kUnknown || further)
    finding = std::move(udp);
  else if (finding.fate == Fate::kIntact && udp.fate != Fate::kUnknown && udp.fate != Fate::kIntact)
    finding.text += "; " + udp.text;
  if (marked.sent != 0) finding.text += (finding.text.empty() ? "no hop answers; " : "; ") + counts(seen, ecn);
  if (finding.text.empty()) finding.text = seen.out_of_time ? "the time ran out" : "no hop answers, and there is no connection";
  return finding;
}

Finding judge_ce(const EcnObservations& seen) {
  Finding finding = judge_outward(seen, Ecn::kCe);
  if (finding.fate == Fate::kDropped) return finding;
  if (seen.ce_echoed != 0)  // proof of the whole way, whatever a hop quotes
    return {Fate::kIntact, 0, true, fmt::format("{} of {} echoed by the peer", seen.ce_echoed, seen.ce_judged)};
  if (finding.fate != Fate::kUnknown && finding.fate != Fate::kIntact) return finding;
  if (seen.ce_judged >= kEchoMin) {
    finding.text = fmt::format("none of {} echoed: {}", seen.ce_judged,
                               finding.at_destination ? "the peer ignores marks"
                               : finding.fate == Fate::kIntact
                                   ? "cleared behind hop " + std::to_string(finding.hop) + ", or the peer ignores marks"
                                   : "cleared on the way, or the peer ignores marks");
    finding.fate = Fate::kNotEchoed;
  } else if (seen.ecn_syn == SynAnswer::kSynAckEcn) {
    finding.text +=
        seen.ece_unasked ? "; ECE comes without a mark of ours, so an echo tells nothing" : "; too few marks were acknowledged";
  }
  return finding;
}

Finding judge_dscp(const EcnObservations& seen) {
  Finding finding = judge_hops(
      seen, [](const HopSeen&) { return true; },
      [&](const HopSeen& hop) {
        return hop.dscp == seen.dscp ? Fate::kIntact : hop.dscp == 0 ? Fate::kCleared : Fate::kChanged;
      },
      [&](const HopSeen& hop) { return fmt::format("{} is {}", seen.dscp, hop.dscp); });
  if (finding.text.empty()) finding.text = seen.out_of_time ? "the time ran out" : "no hop answers";
  return finding;
}

Finding judge_inbound(const EcnObservations& seen) {
  const auto count = [&](Ecn ecn) { return seen.inbound[static_cast<std::size_t>(ecn)]; };
  const std::uint32_t marked = count(Ecn::kEct0) + count(Ecn::kEct1) + count(Ecn::kCe);
  const std::uint32_t all = marked + count(Ecn::kNotEct);
  Finding finding;
  if (marked != 0)
    finding = {Fate::kIntact, 0, false,
               fmt::format("{} of {} data segments came with ECT, {} of them CE", marked, all, count(Ecn::kCe))};
  else if (seen.ecn_syn != SynAnswer::kSynAckEcn)
    finding.text = "ECN is not negotiated, so the peer sends no ECT";
  else if (all != 0)
    finding.text = "the peer's data came without ECT: cleared on the way, or never set";
  else
    finding.text = "the peer sent no data";
  return finding;
}

std::pair<EcnVerdict, std::string> decide(const EcnObservations& seen, const EcnFindings& found) {
  using V = EcnVerdict;
  // How connections begin.
  if (!accepted(seen.ecn_syn)) {
    const std::string control = accepted(seen.plain_syn) ? ", one without ECN is answered" : "";
    if (seen.ecn_syn == SynAnswer::kSilence && accepted(seen.plain_syn))
      return {V::kSynDropped, "a SYN that asks for ECN is dropped" + control};
    if (seen.ecn_syn == SynAnswer::kReset && accepted(seen.plain_syn))
      return {V::kSynReset, "a SYN that asks for ECN is reset" + control};
    for (const SynAnswer answer : {seen.ecn_syn, seen.plain_syn}) {
      if (answer == SynAnswer::kUnreachable) return {V::kUnreachable, seen.unreachable};
      if (answer == SynAnswer::kReset) return {V::kClosed, "nothing listens on the port"};
    }
    if (seen.ecn_syn == SynAnswer::kSilence && seen.plain_syn == SynAnswer::kSilence)
      return {V::kSilent, "no SYN is answered, with ECN or without"};
    return {V::kUnknown, "the time ran out before a SYN was answered"};
  }
  // What the path does, then what the peer does.
  for (const auto* finding : {&found.ect0, &found.ce})
    if (finding->fate == Fate::kDropped)
      return {V::kEctDropped, fmt::format("packets with {} are dropped", finding == &found.ce ? "CE" : "ECT(0)")};
  if (found.ect0.fate == Fate::kCleared || found.ect0.fate == Fate::kChanged)
    return {V::kEctCleared, "ECT(0) does not survive: " + found.ect0.text};
  if (found.ce.fate == Fate::kCleared || found.ce.fate == Fate::kChanged)
    return {V::kCeCleared, "CE does not survive: " + found.ce.text};
  if (seen.ecn_syn == SynAnswer::kReflected)
    return {V::kReflected, "the peer returns ECE and CWR as they came, which is no answer"};
  if (seen.ecn_syn == SynAnswer::kSynAck) return {V::kRefused, "the peer answers without ECN, or the path removes the flags"};
  if (found.ce.fate == Fate::kNotEchoed) return {V::kCeCleared, "marks do not come back: " + found.ce.text};
  if (found.ce.fate == Fate::kIntact && seen.ce_echoed != 0) return {V::kUsable, "ECN is negotiated and marks come back"};
  return {V::kUnknown, "ECN is negotiated; whether marks come back is not known: " + found.ce.text};
}

}  // namespace

std::string_view fate_name(Fate fate) {
  static constexpr std::string_view kNames[] = {"unknown", "intact", "changed", "cleared", "dropped", "not-echoed"};
  return kNames[static_cast<std::size_t>(fate)];
}

std::string_view verdict_name(EcnVerdict verdict) {
  return std::ranges::find(kVerdictNames, verdict, &std::pair<EcnVerdict, std::string_view>::first)->second;
}

EcnVerdict verdict_from_name(std::string_view name) {
  const auto* found = std::ranges::find(kVerdictNames, name, &std::pair<EcnVerdict, std::string_view>::second);
  return found == kVerdictNames.end() ? EcnVerdict::kUnknown : found->first;
}

EcnFindings judge(const EcnObservations& seen) {
  EcnFindings found;
  found.ect0 = judge_outward(seen, Ecn::kEct0);
  found.ect1 = judge_outward(seen, Ecn::kEct1);
  found.ce = judge_ce(seen);
  found.dscp = judge_dscp(seen);
  found.inbound = judge_inbound(seen);
  std::tie(found.verdict, found.summary) = decide(seen, found);
  return found;
}

}  // namespace sluice::net
