// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// bench_coll: collectives in the kernel beside those over sockets. Run by `./dev bench coll`, as root.
#include "coll/coll.h"

int main(int argc, char** argv) {
  using namespace sluice::bench;
  const Suite suite{
      .name = "coll",
      .description = "Collectives in the kernel beside the same ones over sockets, Open MPI and Gloo, on the same wires.",
      .seed_help = "Of values and losses",
      .entries = {
          {{"bpf.agg_ns"}, "ns", measure_agg_ns},
          {{"allreduce.64MB", "allreduce.cpu_ratio"}, "", measure_all_reduce},
          {{"allreduce.1KB", "allreduce.64KB"}, "us", measure_small},
          {{"allreduce.loss_0.1pct"}, "Gbit/s", measure_loss},
      }};
  return run_suite(suite, argc, argv);
}
