// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "harness/impairment.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/types.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "harness/bpf_object.h"
#include "harness/impair_abi.h"

namespace sluice::test {
namespace {

Result<std::uint32_t> threshold(double probability) {
  if (!(probability >= 0 && probability <= 1)) return fail(Code::kInvalid, "{} is no probability", probability);
  return static_cast<std::uint32_t>(std::min(std::ldexp(probability, 32), 4294967295.0));
}

}  // namespace

struct Impairment::State {
  const Host* host = nullptr;
  BpfObject object;
  impair_shared* shared = nullptr;
  bpf_tc_hook hook{};
  bpf_tc_opts options{};
  bool hooked = false;
  bool attached = false;

  ~State() {
    if (!hooked) return;
    // The interface may be gone already, and the hook with it: nothing to report then.
    (void)host->call([this]() -> Status {
      if (attached) {
        options.flags = 0;
        options.prog_fd = 0;
        options.prog_id = 0;
        bpf_tc_detach(&hook, &options);
      }
      bpf_tc_hook whole = hook;
      whole.attach_point = static_cast<bpf_tc_attach_point>(BPF_TC_INGRESS | BPF_TC_EGRESS);  // the clsact qdisc itself
      bpf_tc_hook_destroy(&whole);
      return {};
    });
  }
};

Impairment::Impairment(std::unique_ptr<State> state) : state_(std::move(state)) {}
Impairment::Impairment(Impairment&&) noexcept = default;
Impairment& Impairment::operator=(Impairment&&) noexcept = default;
Impairment::~Impairment() = default;

Result<Impairment> Impairment::attach(const Host& host, const std::string& interface, const ImpairmentSpec& spec) {
  SLUICE_TRY(object, BpfObject::open("impair.o"));
  SLUICE_CHECK(object.load());
  auto state = std::make_unique<State>();
  state->host = &host;
  state->object = std::move(object);
  SLUICE_TRY(shared, state->object.memory(".data.impair", sizeof(impair_shared)));
  state->shared = static_cast<impair_shared*>(shared);
  SLUICE_TRY(program, state->object.program("impair"));
  Impairment impairment(std::move(state));
  SLUICE_CHECK(impairment.restart(spec));
  SLUICE_CHECK(host.call([&]() -> Status {
    State& s = *impairment.state_;
    s.hook.sz = sizeof(s.hook);
    s.hook.ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
    s.hook.attach_point = BPF_TC_INGRESS;
    if (s.hook.ifindex == 0) return fail_errno(errno, "host {} has no interface {}", host.name(), interface);
    if (int err = bpf_tc_hook_create(&s.hook); err != 0)
      return fail_errno(-err, "cannot add clsact to {} of host {}", interface, host.name());
    s.hooked = true;
    s.options.sz = sizeof(s.options);
    s.options.handle = 1;
    s.options.priority = 1;
    s.options.prog_fd = program;
    if (int err = bpf_tc_attach(&s.hook, &s.options); err != 0)
      return fail_errno(-err, "cannot attach to {} of host {}", interface, host.name());
    s.attached = true;
    return {};
  }));
  return impairment;
}

Status Impairment::restart(const ImpairmentSpec& spec) {
  impair_config config{};
  config.seed = spec.seed;
  const std::pair<int, double> probabilities[] = {{IMPAIR_CE, spec.ce},
                                                  {IMPAIR_DROP, spec.drop},
                                                  {IMPAIR_DUPLICATE, spec.duplicate},
                                                  {IMPAIR_CORRUPT, spec.corrupt},
                                                  {IMPAIR_REORDER, spec.reorder}};
  for (auto [action, probability] : probabilities) {
    SLUICE_TRY(value, threshold(probability));
    config.threshold[action] = value;
  }
  config.every[IMPAIR_CE] = spec.ce_every;
  config.every[IMPAIR_DROP] = spec.drop_every;
  config.queue_rate_bytes_per_s = spec.queue_rate_bytes_per_s;
  config.queue_mark_bytes = spec.queue_mark_bytes;
  config.queue_limit_bytes = spec.queue_limit_bytes;
  if (spec.reorder > 0 && spec.reorder_distance == 0) return fail(Code::kInvalid, "a reorder distance of 0 reorders nothing");
  config.reorder_distance = spec.reorder_distance;
  config.port = spec.port;
  config.drop_ecn_syn = spec.drop_ecn_syn ? 1 : 0;
  for (std::size_t i = 0; i < spec.ecn.size(); ++i) {
    if (spec.ecn[i] < ImpairmentSpec::kDrop || spec.ecn[i] > 3)
      return fail(Code::kInvalid, "{} is no ECN codepoint", spec.ecn[i]);
    config.ecn[i] = spec.ecn[i] == ImpairmentSpec::kDrop ? IMPAIR_ECN_DROP : static_cast<std::uint8_t>(spec.ecn[i]);
  }
  if (spec.dscp && (*spec.dscp < 0 || *spec.dscp > 63)) return fail(Code::kInvalid, "{} is no DSCP", *spec.dscp);
  config.set_dscp = spec.dscp ? 1 : 0;
  config.dscp = static_cast<std::uint8_t>(spec.dscp.value_or(0));

  impair_shared& shared = *state_->shared;
  __atomic_store_n(&shared.enabled, 0u, __ATOMIC_SEQ_CST);
  SLUICE_CHECK(state_->object.clear_array("held"));
  shared.config = config;
  std::fill(std::begin(shared.counters), std::end(shared.counters), 0);
  std::fill(std::begin(shared.journal), std::end(shared.journal), 0);
  shared.next = 0;
  __atomic_store_n(&shared.enabled, 1u, __ATOMIC_SEQ_CST);
  return {};
}

ImpairmentCounters Impairment::counters() const {
  auto read = [this](int counter) { return __atomic_load_n(&state_->shared->counters[counter], __ATOMIC_RELAXED); };
  return {.packets = read(IMPAIR_PACKETS),
          .other = read(IMPAIR_OTHER),
          .ce = read(IMPAIR_CE),
          .ce_not_ect = read(IMPAIR_CE_NOT_ECT),
          .dropped = read(IMPAIR_DROP),
          .duplicated = read(IMPAIR_DUPLICATE),
          .corrupted = read(IMPAIR_CORRUPT),
          .reordered = read(IMPAIR_REORDER),
          .rewritten = read(IMPAIR_REWRITE),
          .released = read(IMPAIR_RELEASED),
          .seen_not_ect = read(IMPAIR_SEEN_NOT_ECT),
          .seen_ect0 = read(IMPAIR_SEEN_ECT0),
          .seen_ect1 = read(IMPAIR_SEEN_ECT1),
          .seen_ce = read(IMPAIR_SEEN_CE),
          .hold_full = read(IMPAIR_HOLD_FULL),
          .failed = read(IMPAIR_FAILED)};
}

std::vector<std::uint8_t> Impairment::journal() const {
  std::uint64_t packets = __atomic_load_n(&state_->shared->next, __ATOMIC_ACQUIRE);
  const std::uint8_t* begin = state_->shared->journal;
  return {begin, begin + std::min<std::uint64_t>(packets, IMPAIR_JOURNAL_MAX)};
}

}  // namespace sluice::test
