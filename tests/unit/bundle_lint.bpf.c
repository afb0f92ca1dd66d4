// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A CCA that is never loaded: what lint is tested with. Built as it is, it keeps every rule; with LINT_BAD, it breaks those that
 * can be seen in an object.
 */
typedef unsigned char __u8;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))

static long (*const bpf_trace_printk)(const char *fmt, __u32 size, ...) __attribute__((unused)) = (void *)6;
static long (*const bpf_setsockopt)(void *ctx, int level, int name, void *value, int size) = (void *)49;

struct sock;
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*init)(struct sock *sk);
	char name[16];
	__u32 flags;
};

struct params {
	__u64 sl_present;
	__u64 beta;
#ifdef LINT_BAD
	__u32 narrow;
	__u64 stranger;
#endif
};
struct {
	int (*type)[2];
	int (*max_entries)[256];
	__u32 *key;
	struct params *value;
} sl_params SEC(".maps");

#ifndef LINT_BAD
struct {
	int (*type)[6];
	int (*max_entries)[32];
	__u32 *key;
	__u64 *value;
} sl_cca_counters SEC(".maps");

const volatile __u64 window_max = 100;
#endif

SEC("struct_ops")
__u32 lint_ssthresh(__u64 *ctx)
{
#ifdef LINT_BAD
	char text[] = "ssthresh";
	int one = 1;

	bpf_trace_printk(text, sizeof(text));
	bpf_setsockopt((void *)ctx[0], 6, 1, &one, sizeof(one));
#else
	int one = 1;

	/* SOL_TCP, TCP_CONGESTION: allowed */
	bpf_setsockopt((void *)ctx[0], 6, 13, &one, sizeof(one));
	return window_max;
#endif
	return 2;
}

SEC("struct_ops")
void lint_cong_avoid(__u64 *ctx)
{
}

SEC("struct_ops")
__u32 lint_undo_cwnd(__u64 *ctx)
{
	return 10;
}

SEC("struct_ops")
void lint_init(__u64 *ctx)
{
}

#ifdef LINT_BAD
SEC(".struct_ops")
struct tcp_congestion_ops lint_ops = {
	.ssthresh = (void *)lint_ssthresh,
	.undo_cwnd = (void *)lint_undo_cwnd,
	.init = (void *)lint_init,
	.name = "cubic",
	.flags = 2,
};
#else
SEC(".struct_ops.link")
struct tcp_congestion_ops lint_ops = {
	.ssthresh = (void *)lint_ssthresh,
	.cong_avoid = (void *)lint_cong_avoid,
	.undo_cwnd = (void *)lint_undo_cwnd,
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
#endif
