// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Sockops programs of other teams, one for each way to overrule Sluice, and some that only look like it: for `sluice audit` to find
 * and name. Written as such programs are, without anything of ours.
 */
#include <vmlinux.h>

#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual BSD/GPL";

#define SOL_TCP 6
#define TCP_CONGESTION 13
#define TCP_MAXSEG 2
#define TCP_BPF_IW 1001

/* Names that the compiler cannot put into instructions. */
char f_configured[16] = "cubic";
__u64 f_calls;

static __always_inline bool established(const struct bpf_sock_ops *ctx)
{
	return ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
}

/* Another CCA once a connection is open. */
SEC("sockops")
int f_sets_reno(struct bpf_sock_ops *ctx)
{
	char name[] = "reno";

	if (established(ctx))
		bpf_setsockopt(ctx, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
	return 1;
}

SEC("sockops")
int f_sets_config(struct bpf_sock_ops *ctx)
{
	if (ctx->op == BPF_SOCK_OPS_TCP_CONNECT_CB)
		bpf_setsockopt(ctx, SOL_TCP, TCP_CONGESTION, f_configured, sizeof(f_configured));
	return 1;
}

/* Later than any callback that Sluice has. */
static __noinline int set_bbr(struct bpf_sock_ops *ctx)
{
	char name[] = "bbr";

	return bpf_setsockopt(ctx, SOL_TCP, TCP_CONGESTION, name, sizeof(name)) ? 2 : 1;
}

SEC("sockops")
int f_in_function(struct bpf_sock_ops *ctx)
{
	if (ctx->op == BPF_SOCK_OPS_STATE_CB)
		set_bbr(ctx);
	return 1;
}

SEC("sockops")
int f_clears_ecn(struct bpf_sock_ops *ctx)
{
	if (ctx->op == BPF_SOCK_OPS_NEEDS_ECN)
		ctx->reply = 0;
	return 1;
}

SEC("sockops")
int f_asks_for_ecn(struct bpf_sock_ops *ctx)
{
	if (ctx->op == BPF_SOCK_OPS_NEEDS_ECN)
		ctx->reply = 1;
	return 1;
}

/* What many first programs do: 0 is not "fine" here, it voids the answers of all. */
SEC("sockops")
int f_returns_0(struct bpf_sock_ops *ctx)
{
	__sync_fetch_and_add(&f_calls, 1);
	return 0;
}

SEC("sockops")
int f_sets_windows(struct bpf_sock_ops *ctx)
{
	int segments = 40;

	switch (ctx->op) {
	case BPF_SOCK_OPS_RWND_INIT:
		ctx->reply = 40;
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_IW, &segments, sizeof(segments));
		break;
	}
	return 1;
}

/* Reads the CCA, sets something else, counts. */
SEC("sockops")
int f_harmless(struct bpf_sock_ops *ctx)
{
	char name[16] = {};
	int mss = 1000;

	__sync_fetch_and_add(&f_calls, 1);
	if (established(ctx)) {
		bpf_getsockopt(ctx, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
		bpf_setsockopt(ctx, SOL_TCP, TCP_MAXSEG, &mss, sizeof(mss));
		if (name[0] == 'x')
			bpf_sock_ops_cb_flags_set(ctx, BPF_SOCK_OPS_RTT_CB_FLAG);
	}
	return 1;
}

int f_sets_reno(struct bpf_sock_ops *ctx);
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} f_stages SEC(".maps") = {
	.values = {
		[2] = (void *)&f_sets_reno,
	},
};

SEC("sockops")
int f_calls_on(struct bpf_sock_ops *ctx)
{
	if (ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		bpf_tail_call(ctx, &f_stages, 2);
	return 1;
}
