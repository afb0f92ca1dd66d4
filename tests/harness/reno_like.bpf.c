// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A Reno as small as the kernel accepts, for tests of tools that must tell struct_ops CCAs apart. */
#include "vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

SEC("struct_ops")
__u32 BPF_PROG(reno_ssthresh, struct sock *sk)
{
	__u32 half = ((struct tcp_sock *)sk)->snd_cwnd / 2;

	return half > 2 ? half : 2;
}

SEC("struct_ops")
__u32 BPF_PROG(reno_undo_cwnd, struct sock *sk)
{
	return ((struct tcp_sock *)sk)->snd_cwnd;
}

SEC("struct_ops")
void BPF_PROG(reno_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;

	if (tp->snd_cwnd < tp->snd_ssthresh) {
		tp->snd_cwnd += acked;
		return;
	}
	tp->snd_cwnd_cnt += acked;
	if (tp->snd_cwnd_cnt >= tp->snd_cwnd) {
		tp->snd_cwnd_cnt -= tp->snd_cwnd;
		tp->snd_cwnd++;
	}
}

SEC(".struct_ops.link")
struct tcp_congestion_ops reno_like = {
	.ssthresh = (void *)reno_ssthresh,
	.undo_cwnd = (void *)reno_undo_cwnd,
	.cong_avoid = (void *)reno_cong_avoid,
	.name = "sl_test_reno",
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
