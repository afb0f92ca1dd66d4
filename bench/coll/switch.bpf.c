// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The wire `xdpsw` of bench_coll: on each port of a bridge, frames leave by the port of their destination MAC, what is not known goes
 * to the bridge. The nearest to a switch of silicon that a veth has. Some are lost, and some leave twice, as `chances` says.
 */
#include <sluice/bpf/coll.bpf.h>

char _license[] SEC("license") = "Dual BSD/GPL";

#define PORTS_MAX 64

/* MAC, two bytes of zeroes behind it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PORTS_MAX);
	__type(key, __u64);
	__type(value, __u32);
} stations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, PORTS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

/* For each port a map that has it twice: what is broadcast through it leaves in two copies. */
struct twin {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, PORTS_MAX);
	__type(key, __u32);
	__array(values, struct twin);
} twins SEC(".maps");

/* Out of 2^32. */
struct chances {
	__u32 lost;
	__u32 twice;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct chances);
} chances SEC(".maps");

SEC("xdp")
int forward(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	__u32 *port, zero = 0, dice;
	struct chances *chance;
	__u64 mac = 0;
	void *twin;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	__builtin_memcpy(&mac, eth->h_dest, ETH_ALEN);
	port = bpf_map_lookup_elem(&stations, &mac);
	chance = bpf_map_lookup_elem(&chances, &zero);
	if (!port || !chance)
		return XDP_PASS;
	if (chance->lost || chance->twice) {
		dice = bpf_get_prandom_u32();
		if (dice < chance->lost)
			return XDP_DROP;
		twin = bpf_map_lookup_elem(&twins, port);
		if (twin && dice - chance->lost < chance->twice)
			return bpf_redirect_map(twin, 0, BPF_F_BROADCAST);
	}
	return bpf_redirect_map(&ports, *port, XDP_PASS);
}

/* On ports of a bridge that forwards by itself: what XDP sends into a veth is received by NAPI only. */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}
