/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The logger's hook in a CCA: one record per RTT for the connections that user space selected.
 *
 * Selection costs the data path one bit test at the per-RTT point: whether the socket has storage at all (SL_SOCK_LOG is in it).
 * sl_log() in cca.bpf.h makes the record. There is no consumer yet: it is counted (SL_CCA_LOG) and stays in a per-CPU slot, to be
 * looked at with bpftool. A ring buffer will take the slot's place without a change to any CCA.
 */
#ifndef SLUICE_BPF_LOGGER_H
#define SLUICE_BPF_LOGGER_H

#include "common.bpf.h"

#include <sluice/abi/cca.h>

static __always_inline bool sl_log_wanted(const struct sl_sock *ss)
{
	return ss && (ss->flags & SL_SOCK_LOG);
}

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_log_record);
} sl_log_last SEC(".maps");

static __always_inline struct sl_log_record *sl_log_reserve(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sl_log_last, &zero);
}

#endif
