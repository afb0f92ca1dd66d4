// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* What one selection costs: run many times on one socket, between two readings of the clock. */
#include <sluice/bpf/select.bpf.h>

#define ROUNDS 4096

char _license[] SEC("license") = "Dual BSD/GPL";

struct measured {
	__u64 empty_ns;		/* ROUNDS of an empty call */
	__u64 storage_ns;	/* of sl_storage() */
	__u64 cached_ns;	/* of sl_select() with a scope of this generation */
	__u64 full_ns;		/* of sl_select() without */
	__u64 sockets;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct measured);
} speed_measured SEC(".maps");

struct loop_ctx {
	struct sock_common *skc;
	struct sl_selection scope;
	__u32 what;
	int sink;
};

static long once(__u32 i, struct loop_ctx *c)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(c->skc);
	struct sl_selection sel = {};

	if (!tp)
		return 1;
	if (c->what == 0)
		return 0;
	if (c->what == 1) {
		c->sink += sl_storage(tp) != NULL;
		return 0;
	}
	c->sink += sl_select((struct sock *)tp, c->what == 2 ? &c->scope : NULL, &sel);
	return 0;
}

static __always_inline __u64 rounds(struct sock_common *skc, __u32 what)
{
	struct loop_ctx c = { .skc = skc, .what = what };
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(skc);
	__u64 start;

	if (!tp)
		return 0;
	sl_select_scope((struct sock *)tp, &c.scope);
	start = bpf_ktime_get_ns();
	bpf_loop(ROUNDS, once, &c, 0);
	return bpf_ktime_get_ns() - start;
}

SEC("iter/tcp")
int speed_select(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct measured *m;
	__u32 zero = 0;

	if (!skc || skc->skc_state != BPF_TCP_ESTABLISHED)
		return 0;
	m = bpf_map_lookup_elem(&speed_measured, &zero);
	if (!m)
		return 0;
	m->empty_ns += rounds(skc, 0);
	m->storage_ns += rounds(skc, 1);
	m->cached_ns += rounds(skc, 2);
	m->full_ns += rounds(skc, 3);
	m->sockets++;
	return 0;
}
