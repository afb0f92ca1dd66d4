// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What tests/bpf/bpfio_test.cpp loads: one program or map for each thing that bpfio does with them.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile __u32 answer = 1;
const volatile __u64 wide = 2;

struct test_value {
	__u64 first;
	__s32 second;
	__u32 third[2];
	struct {
		__u16 inner;
		__u16 pad;
	} nested;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct test_value);
} t_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} t_mapped SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} t_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct test_value);
} t_storage SEC(".maps");

struct prefix {
	__u32 len;
	__u8 addr[16];
};

struct t_inner {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16);
	__uint(key_size, sizeof(struct prefix));
	__uint(value_size, sizeof(__u64));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, struct t_inner);
} t_outer SEC(".maps");

/* Returns the constant; counts; tells through t_mapped what user space stored. */
SEC("tc")
int t_classify(struct __sk_buff *skb)
{
	__u32 zero = 0, one = 1;
	__u64 *count = bpf_map_lookup_elem(&t_counters, &one);
	__u64 *in = bpf_map_lookup_elem(&t_mapped, &zero);
	__u64 *out = bpf_map_lookup_elem(&t_mapped, &one);

	if (count)
		*count += 1;
	if (in && out)
		*out = *in + wide;
	return answer;
}

/* Looks an all-zero address up in inner map 0. */
SEC("tc")
int t_resolve(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct prefix key = { .len = 128 };
	void *inner = bpf_map_lookup_elem(&t_outer, &zero);
	__u64 *found;

	if (!inner)
		return 1000;
	found = bpf_map_lookup_elem(inner, &key);
	return found ? *found : 1001;
}

SEC("sockops")
int t_sockops(struct bpf_sock_ops *ctx)
{
	return 1;
}

SEC("sockops")
int t_sockops_next(struct bpf_sock_ops *ctx)
{
	return ctx->op == 0xffff;
}

/* One record of 24 bytes a TCP socket: state, local port, namespace. */
struct t_record {
	__u64 cookie_or_zero;
	__u32 state;
	__u32 local_port;
	__u32 netns_ino;
	__u32 check;
};

SEC("iter/tcp")
int t_walk(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct t_record record = {};

	if (!sk)
		return 0;
	record.state = sk->skc_state;
	record.local_port = sk->skc_num;
	record.netns_ino = sk->skc_net.net->ns.inum;
	record.check = 0x5151;
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

/* Optional: a kernel may forbid iterators over the elements of maps. */
SEC("?iter/bpf_sk_storage_map")
int t_walk_storage(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct test_value *value = ctx->value;
	__u64 first;

	if (!value || !ctx->sk)
		return 0;
	first = value->first;
	bpf_seq_write(ctx->meta->seq, &first, sizeof(first));
	return 0;
}

SEC("struct_ops")
__u32 BPF_PROG(t_ssthresh, struct sock *sk)
{
	return 2;
}

SEC("struct_ops")
void BPF_PROG(t_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
}

SEC("struct_ops")
__u32 BPF_PROG(t_undo_cwnd, struct sock *sk)
{
	return 10;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops t_cca = {
	.ssthresh = (void *)t_ssthresh,
	.cong_avoid = (void *)t_cong_avoid,
	.undo_cwnd = (void *)t_undo_cwnd,
	.name = "sl_t_default",
};

/* Without a link, and without what a congestion control must have. */
SEC("?.struct_ops")
struct tcp_congestion_ops t_cca_unlinked = {
	.ssthresh = (void *)t_ssthresh,
	.cong_avoid = (void *)t_cong_avoid,
	.undo_cwnd = (void *)t_undo_cwnd,
	.name = "sl_t_unlinked",
};
