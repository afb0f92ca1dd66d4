// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Bundle `dispatch`: the one XDP program of an interface, which all jobs on it share. An aggregator and a member of another, or of the same
 * job, several jobs, several streams of one: each has a UDP port of its own there, and a program.
 *
 * 1. A frame that has none of the protocol's magics, or is of another form than a collective packet, passes to the host's stack.
 * 2. Its destination port is looked up in sl_coll_ports, and the program at that index takes the frame over.
 * 3. A port that nobody has claimed is counted, and the frame passes: a member or an aggregator of user space may wait for it.
 */
#include <sluice/bpf/coll.bpf.h>

char _license[] SEC("license") = "Dual BSD/GPL";

/* Key: UDP port; value: index into sl_coll_programs. Writer of both: who owns the interface (coll/kernel/interface.h). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SL_COLL_PORTS_MAX);
	__type(key, __be16);
	__type(value, __u32);
} sl_coll_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, SL_COLL_PORTS_MAX);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} sl_coll_programs SEC(".maps");

/* One per-CPU value: enum sl_coll_dispatch_counter. */
struct counters {
	__u64 of[SL_COLL_DISPATCH_COUNTER_COUNT];
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} sl_coll_dispatch_counters SEC(".maps");

static __always_inline int passed(enum sl_coll_dispatch_counter why)
{
	__u32 zero = 0;
	struct counters *count = bpf_map_lookup_elem(&sl_coll_dispatch_counters, &zero);

	if (count)
		count->of[why]++;
	return XDP_PASS;
}

SEC("xdp")
int sl_coll_dispatch(struct xdp_md *ctx)
{
	bool v6 = false;
	__u32 ip_at = sl_ip_at(ctx, &v6), *index;
	struct sl_frame f;
	__be32 magic;
	__be16 port;

	if (!ip_at || !sl_frame_at(ctx, ip_at, v6, &f))
		return XDP_PASS;	/* not counted: ordinary traffic */
	magic = f.h->magic;
	if (magic != bpf_htonl(SL_COLL_MAGIC_AGGREGATE) && magic != bpf_htonl(SL_COLL_MAGIC_CONTROL) &&
	    magic != bpf_htonl(SL_COLL_MAGIC_BROADCAST))
		return XDP_PASS;
	port = f.udp->dest;
	index = bpf_map_lookup_elem(&sl_coll_ports, &port);
	if (!index)
		return passed(SL_COLL_DISPATCH_UNCLAIMED);
	bpf_tail_call(ctx, &sl_coll_programs, *index);
	return passed(SL_COLL_DISPATCH_GONE);
}
