// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Two CCAs as small as the kernel accepts, one of which needs ECN: what the tests of bundle `policy` select. They are given names of
 * the test's own before they are loaded. Their .init asks the policy, as one on the SDK does for a socket that is moved in.
 */
#include <sluice/bpf/select.bpf.h>

#define TCP_CONG_NEEDS_ECN 2

char _license[] SEC("license") = "Dual BSD/GPL";

__u64 slt_init_params;		/* params that the last .init was told by sl_select(), + 1; 0 = none */
int slt_init_selected = -1;	/* result of sl_select() in the last .init: it works in struct_ops; -1 = never ran */

SEC("struct_ops")
void BPF_PROG(slt_init, struct sock *sk)
{
	struct sl_selection sel = {};

	slt_init_selected = sl_select(sk, NULL, &sel);
	slt_init_params = sel.verdict ? sel.verdict->params + 1ULL : 0;
}

SEC("struct_ops")
__u32 BPF_PROG(slt_ssthresh, struct sock *sk)
{
	return ((struct tcp_sock *)sk)->snd_cwnd;
}

SEC("struct_ops")
__u32 BPF_PROG(slt_undo_cwnd, struct sock *sk)
{
	return ((struct tcp_sock *)sk)->snd_cwnd;
}

SEC("struct_ops")
void BPF_PROG(slt_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
}

SEC(".struct_ops.link")
struct tcp_congestion_ops slt_plain = {
	.init = (void *)slt_init,
	.ssthresh = (void *)slt_ssthresh,
	.undo_cwnd = (void *)slt_undo_cwnd,
	.cong_avoid = (void *)slt_cong_avoid,
	.name = "slt_plain",
};

SEC(".struct_ops.link")
struct tcp_congestion_ops slt_ecn = {
	.init = (void *)slt_init,
	.ssthresh = (void *)slt_ssthresh,
	.undo_cwnd = (void *)slt_undo_cwnd,
	.cong_avoid = (void *)slt_cong_avoid,
	.flags = TCP_CONG_NEEDS_ECN,
	.name = "slt_ecn",
};
