// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The wire `xdpsw` of bench_coll: on each port of a bridge, frames leave by the port of their destination MAC, what is not known goes
 * to the bridge. The nearest to a switch of silicon that a veth has.
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

SEC("xdp")
int forward(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	__u64 mac = 0;
	__u32 *port;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	__builtin_memcpy(&mac, eth->h_dest, ETH_ALEN);
	port = bpf_map_lookup_elem(&stations, &mac);
	return port ? bpf_redirect_map(&ports, *port, XDP_PASS) : XDP_PASS;
}

/* On ports of a bridge that forwards by itself: what XDP sends into a veth is received by NAPI only. */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}
