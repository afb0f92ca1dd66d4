// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Reno with a map of 256 MiB: a CCA that a host, or the agent's cgroup, has no memory for.
 */
#include <sluice/bpf/cca.bpf.h>

struct hungry {
	struct sl_core core;
};
SL_PRIVATE(struct hungry);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u8[4096]);
} hungry_map SEC(".maps");

SL_INIT(sk, learned)
{
}

SL_RELEASE(sk, learned)
{
}

SL_SSTHRESH(sk)
{
	__u32 key = 0;

	bpf_map_lookup_elem(&hungry_map, &key);
	return max(sl_tcp(sk)->snd_cwnd / 2, 2U);
}

SL_CONG_AVOID(sk, ack, acked)
{
}

SL_UNDO_CWND(sk)
{
	return sl_tcp(sk)->snd_cwnd;
}

SL_CCA(hungry,
	.ssthresh = SL_HOOK(ssthresh),
	.cong_avoid = SL_HOOK(cong_avoid),
	.undo_cwnd = SL_HOOK(undo_cwnd));
