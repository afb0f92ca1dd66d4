// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// bench_host: what one host pays for Sluice. Run by `./dev bench host`, as root in a mount namespace with a bpffs of its own.
#include "host/host.h"

int main(int argc, char** argv) {
  using namespace sluice::bench;
  // Large populations late: what they leave in the kernel's caches disturbs nobody then, guests of their own least.
  const Suite suite{
      .name = "host",
      .description = "What one host pays for Sluice: migration, look-ups, connections, upgrades, crashes, ECN, memory.",
      .seed_help = "Of addresses and of the moments when the agent is killed",
      .entries = {
          {{"lookup.sk_storage_ns", "lookup.lpm_ns"}, "ns", measure_lookups},
          {{"connect.overhead_ns"}, "ns", measure_connect},
          {{"apply.ms"}, "ms", measure_apply},
          {{"rollback.ms"}, "ms", measure_rollback},
          {{"migrate.ms_per_netns"}, "ms", measure_many_netns},
          {{"migrate.self_rtts"}, "share", measure_self_moves},
          {{"upgrade.fallbacks"}, "connections", measure_upgrade},
          {{"kill.fallbacks"}, "connections", measure_kill},
          {{"ecn.blind_senders"}, "senders", measure_blind_senders},
          {{"migrate.ns_per_socket", "memory.bytes_per_socket"}, "", measure_many_sockets},
          {{"rollback.sticky_ecn_goodput_dip_pct", "rollback.sticky_ecn_queue_ratio"}, "", measure_sticky_ecn},
          {{"cca.cubic_insn_ratio", "cca.dctcp_insn_ratio", "cca.cubic_goodput_ratio", "cca.dctcp_goodput_ratio",
            "cca.dctcp_queue_ratio"},
           "",
           measure_ccas},
      }};
  return run_suite(suite, argc, argv);
}
