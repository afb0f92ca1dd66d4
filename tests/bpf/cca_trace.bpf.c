// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What a sender's window did: one event per ACK it receives and one per change of its congestion state, from the kernel's own
 * tracepoints, so that nothing of the CCA under test is believed. Only sockets of
 * one network namespace that are connected to `watched_port`.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "cca_trace.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile __u16 watched_port = 0;
const volatile __u32 watched_netns = 0;	/* inode number */
/* Where a __u16 of the CCA's private state lies that the test wants to see. */
const volatile __u32 private_offset = 0;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 23);
} trace SEC(".maps");

__u64 lost_events = 0;

static __always_inline void emit(struct sock *sk, __u32 kind, __u32 new_state)
{
	const struct inet_connection_sock *icsk;
	const struct tcp_sock *tp;
	struct cca_trace_event *event;

	if (sk->__sk_common.skc_dport != bpf_htons(watched_port) ||
	    sk->__sk_common.skc_net.net->ns.inum != watched_netns)
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return;
	icsk = &tp->inet_conn;
	event = bpf_ringbuf_reserve(&trace, sizeof(*event), 0);
	if (!event) {
		__sync_fetch_and_add(&lost_events, 1);
		return;
	}
	event->time_ns = bpf_ktime_get_ns();
	event->kind = kind;
	event->state = BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state);
	event->new_state = new_state;
	event->cwnd = tp->snd_cwnd;
	event->ssthresh = tp->snd_ssthresh;
	event->prior_cwnd = tp->prior_cwnd;
	event->delivered = tp->delivered;
	event->delivered_ce = tp->delivered_ce;
	event->snd_una = tp->snd_una;
	event->snd_nxt = tp->snd_nxt;
	event->lost_out = tp->lost_out;
	event->srtt_us = tp->srtt_us >> 3;
	event->private_word = 0;
	if (private_offset < sizeof(icsk->icsk_ca_priv) - 1) {
		__u16 word = 0;

		bpf_probe_read_kernel(&word, sizeof(word), (const char *)icsk->icsk_ca_priv + private_offset);
		event->private_word = word;
	}
	event->cca[0] = 0;
	BPF_CORE_READ_STR_INTO(&event->cca, icsk, icsk_ca_ops, name);
	bpf_ringbuf_submit(event, 0);
}

SEC("tp_btf/tcp_probe")
int BPF_PROG(on_ack, struct sock *sk)
{
	emit(sk, CCA_TRACE_ACK, 0);
	return 0;
}

SEC("tp_btf/tcp_cong_state_set")
int BPF_PROG(on_state, struct sock *sk, const u8 new_state)
{
	emit(sk, CCA_TRACE_STATE, new_state);
	return 0;
}
