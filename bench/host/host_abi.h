/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What host.bpf.c and host_lookup.cpp share. */
#ifndef SLUICE_BENCH_HOST_ABI_H
#define SLUICE_BENCH_HOST_ABI_H

#define BENCH_ROUNDS 65536      /* look-ups between two readings of the clock */
#define BENCH_DESTINATIONS 1024 /* addresses that are looked up in turn: what stays warm */
#define BENCH_PREFIXES_MAX 131072

/* Value of bench_result (array of 1). Writer: the programs; user space zeroes it before each run. */
struct bench_lookups {
  __u64 empty_ns;  /* BENCH_ROUNDS of the loop without the look-up */
  __u64 lookup_ns; /* the same with it */
  __u64 found;     /* of BENCH_ROUNDS */
};

#endif
