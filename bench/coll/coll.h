// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The measurements of `bench coll`, one function each. What each one does and means: docs/benchmarks.md.
#pragma once

#include "suite.h"

namespace sluice::bench {

Status measure_all_reduce(Run& run);  // allreduce.64MB, allreduce.cpu_ratio
Status measure_loss(Run& run);        // allreduce.loss_0.1pct
Status measure_small(Run& run);       // allreduce.1KB, allreduce.64KB
Status measure_agg_ns(Run& run);      // bpf.agg_ns

}  // namespace sluice::bench
