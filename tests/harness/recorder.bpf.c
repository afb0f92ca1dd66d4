// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * iter/tcp: one recorder_record per TCP socket of the namespace. Reads the CCA's struct_ops map id from the map around the
 * operations that the socket points to: the name says nothing, two versions can share it.
 */
#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "recorder_abi.h"

#define AF_INET 2
#define AF_INET6 10
/*
 * Owner of operations that BPF registered (include/linux/bpf.h): 0xeB9F << 2 plus the illegal pointer value, which is
 * 0xdead << 48 on x86-64 and arm64.
 */
#define BPF_MODULE_OWNER ((0xeB9FULL << 2) + (0xdeadULL << 48))

static void put_v4(__u8 *out, __be32 address)
{
	out[10] = out[11] = 0xff;
	__builtin_memcpy(out + 12, &address, sizeof(address));
}

static __u32 struct_ops_id(const struct tcp_congestion_ops *ops)
{
	__u64 offset = bpf_core_field_offset(struct bpf_struct_ops_map, kvalue) +
		       bpf_core_field_offset(struct bpf_struct_ops_value, data);
	const struct bpf_struct_ops_map *map;

	if ((__u64)BPF_CORE_READ(ops, owner) != BPF_MODULE_OWNER)
		return 0;
	map = (void *)ops - offset;
	return BPF_CORE_READ(map, map.id);
}

SEC("iter/tcp")
int record(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct recorder_record r = {};
	struct tcp_sock *tp;

	if (!skc)
		return 0;
	r.family = skc->skc_family;
	r.state = skc->skc_state;
	r.local_port = skc->skc_num;
	r.remote_port = bpf_ntohs(skc->skc_dport);
	if (r.family == AF_INET) {
		put_v4(r.local, skc->skc_rcv_saddr);
		put_v4(r.remote, skc->skc_daddr);
	} else {
		BPF_CORE_READ_INTO(&r.local, skc, skc_v6_rcv_saddr.in6_u.u6_addr8);
		BPF_CORE_READ_INTO(&r.remote, skc, skc_v6_daddr.in6_u.u6_addr8);
	}
	tp = bpf_skc_to_tcp_sock(skc);
	if (tp) {
		const struct inet_connection_sock *icsk = &tp->inet_conn;
		const struct tcp_congestion_ops *ops = icsk->icsk_ca_ops;
		struct sock *sk = (struct sock *)tp;

		r.full = 1;
		r.cookie = bpf_get_socket_cookie(sk);
		r.cgroup_id = BPF_CORE_READ(sk, sk_cgrp_data.cgroup, kn, id);
		r.struct_ops_id = struct_ops_id(ops);
		BPF_CORE_READ_STR_INTO(&r.cca, ops, name);
		r.ecn_flags = tp->ecn_flags;
		r.cwnd_segments = tp->snd_cwnd;
		r.ssthresh_segments = tp->snd_ssthresh;
		r.srtt_us = tp->srtt_us >> 3;
		r.delivered = tp->delivered;
		r.delivered_ce = tp->delivered_ce;
	}
	bpf_seq_write(ctx->meta->seq, &r, sizeof(r));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
