/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What `bench host` measures inside the kernel: single look-ups, many times between two readings of the clock, and the floor under
 * what a connection can cost: socket storage, and nothing else.
 */
#include <sluice/bpf/maps.bpf.h>

#include "host_abi.h"

char _license[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bench_lookups);
} bench_result SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, BENCH_PREFIXES_MAX);
	__type(key, struct sl_prefix);
	__type(value, struct sl_place);
} bench_places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BENCH_DESTINATIONS);
	__type(key, __u32);
	__type(value, struct sl_prefix);
} bench_destinations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sl_sock);
} bench_storage SEC(".maps");

struct lookup_ctx {
	struct sock_common *skc;
	bool look_up;
	__u64 found;
};

static long look_up_place(__u32 i, struct lookup_ctx *c)
{
	__u32 index = i % BENCH_DESTINATIONS;
	struct sl_prefix *to = bpf_map_lookup_elem(&bench_destinations, &index);
	struct sl_prefix key;

	if (!to)
		return 1;
	key = *to;	/* as the product does: the key is on the stack */
	barrier_var(to);
	if (c->look_up)
		c->found += bpf_map_lookup_elem(&bench_places, &key) != NULL;
	else
		c->found += key.addr[15] != 0xff;
	return 0;
}

static long look_up_storage(__u32 i, struct lookup_ctx *c)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(c->skc);

	if (!tp)
		return 1;
	if (c->look_up)
		c->found += bpf_sk_storage_get(&sl_sock, tp, NULL, 0) != NULL;
	return 0;
}

#define TIMED(callback, context) ({							\
	__u64 start = bpf_ktime_get_ns();						\
	bpf_loop(BENCH_ROUNDS, callback, context, 0);					\
	bpf_ktime_get_ns() - start;							\
})

static __always_inline struct bench_lookups *result(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&bench_result, &zero);
}

SEC("tc")
int bench_lpm(struct __sk_buff *skb)
{
	struct lookup_ctx c = {};
	struct bench_lookups *r = result();

	if (!r)
		return 1;
	r->empty_ns = TIMED(look_up_place, &c);
	c.found = 0;
	c.look_up = true;
	TIMED(look_up_place, &c);	/* warms */
	c.found = 0;
	r->lookup_ns = TIMED(look_up_place, &c);
	r->found = c.found;
	return 0;
}

/* On the first listening socket of the namespace. */
SEC("iter/tcp")
int bench_sk_storage(struct bpf_iter__tcp *ctx)
{
	struct lookup_ctx c = { .skc = ctx->sk_common };
	struct bench_lookups *r = result();

	if (!r || r->lookup_ns || !c.skc || c.skc->skc_state != BPF_TCP_LISTEN)
		return 0;
	r->empty_ns = TIMED(look_up_storage, &c);
	c.look_up = true;
	TIMED(look_up_storage, &c);
	c.found = 0;
	r->lookup_ns = TIMED(look_up_storage, &c);
	r->found = c.found;
	return 0;
}

SEC("sockops")
int bench_storage_only(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp;
	struct bpf_sock *sk;

	if (ctx->op != BPF_SOCK_OPS_TCP_CONNECT_CB && ctx->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	sk = ctx->sk;
	tp = sk ? bpf_skc_to_tcp_sock(sk) : NULL;
	if (tp)
		bpf_sk_storage_get(&bench_storage, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	return 1;
}

/* The least that moving sockets can cost: the walk and the kernel's switch, without looking at what a socket should run. */
const volatile char bench_move_to[SL_CCA_NAME_LEN];

SEC("iter/tcp")
int bench_move(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct tcp_sock *tp;
	char name[SL_CCA_NAME_LEN];

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	for (int i = 0; i < SL_CCA_NAME_LEN; i++)
		name[i] = bench_move_to[i];
	bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
	return 0;
}
