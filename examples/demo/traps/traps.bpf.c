// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What somebody may load by hand who wants a CCA that needs ECN: for ecn.sh, which shows what becomes of it.
 *
 * 1. Two CCAs that need ECN. `ecnreno` is the kernel's Reno, which leaves a mark to the kernel. `ecnfixed` has cong_control and thereby
 *    every reaction to itself: its window is 40 segments, whatever comes back.
 * 2. Three programs that put connections on `ecnreno`, at different moments. They differ in nothing else.
 *
 * The names of CCAs are the kernel's, one registry for all namespaces: ecn.sh writes its process id over the zeros.
 */
#include "vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define NEEDS_ECN 2	/* TCP_CONG_NEEDS_ECN of include/net/tcp.h */
#define TCP_CONGESTION 13
#define RENO_NAME "ecnreno.0000000"
#define FIXED_NAME "ecnfix.0000000"
#define WINDOW_SEGMENTS 40

/* ---- CCAs ---------------------------------------------------------------------------------------------------------------- */

extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

SEC("struct_ops")
__u32 BPF_PROG(reno_ssthresh, struct sock *sk)
{
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops")
void BPF_PROG(reno_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
__u32 BPF_PROG(reno_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(fixed_ssthresh, struct sock *sk)
{
	return ((struct tcp_sock *)sk)->snd_ssthresh;
}

SEC("struct_ops")
void BPF_PROG(fixed_cong_control, struct sock *sk, __u32 ack, int flag, const struct rate_sample *sample)
{
	((struct tcp_sock *)sk)->snd_cwnd = WINDOW_SEGMENTS;
}

SEC("struct_ops")
__u32 BPF_PROG(fixed_undo_cwnd, struct sock *sk)
{
	return WINDOW_SEGMENTS;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops ecnreno = {
	.ssthresh = (void *)reno_ssthresh,
	.cong_avoid = (void *)reno_cong_avoid,
	.undo_cwnd = (void *)reno_undo_cwnd,
	.flags = NEEDS_ECN,
	.name = RENO_NAME,
};

SEC(".struct_ops.link")
struct tcp_congestion_ops ecnfixed = {
	.ssthresh = (void *)fixed_ssthresh,
	.cong_control = (void *)fixed_cong_control,
	.undo_cwnd = (void *)fixed_undo_cwnd,
	.flags = NEEDS_ECN,
	.name = FIXED_NAME,
};

/* ---- who puts connections on them ---------------------------------------------------------------------------------------- */

static char reno[16] = RENO_NAME;

static int put(struct bpf_sock_ops *ops)
{
	ops->reply = -1;	/* no answer to what is asked */
	bpf_setsockopt(ops, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof(reno));
	return 1;
}

/* Before the SYN, and at the listener. */
SEC("sockops")
int at_connect(struct bpf_sock_ops *ops)
{
	return ops->op == BPF_SOCK_OPS_TCP_CONNECT_CB || ops->op == BPF_SOCK_OPS_TCP_LISTEN_CB ? put(ops) : 1;
}

/* When the handshake is over. */
SEC("sockops")
int at_established(struct bpf_sock_ops *ops)
{
	return ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB ? put(ops) : 1;
}

/* The same, and the kernel's question whether a SYN or a SYN-ACK is to have ECN is answered with yes. */
SEC("sockops")
int at_request(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_NEEDS_ECN) {
		ops->reply = 1;
		return 1;
	}
	return ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB ? put(ops) : 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
