/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What differs between kernels, seen from a CCA: one block per kernel change, with its reason. Every test is decided when the
 * program is loaded (CO-RE against the running kernel's BTF, so that a distribution's backport counts as the new kernel);
 * nothing of it costs an instruction at run time.
 */
#ifndef SLUICE_BPF_COMPAT_H
#define SLUICE_BPF_COMPAT_H

#include "common.bpf.h"

/*
 * 6.10: cong_control(sk, ack, flag, rs); before it cong_control(sk, rs). A BPF program reads its arguments by position, so the
 * position of the rate sample depends on the prototype. The prototype is in BTF; the release number is not asked.
 */
struct tcp_congestion_ops___sl_610 {
	void (*cong_control)(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs);
};
#define SL_HAS_CONG_CONTROL_FLAGS() bpf_core_type_matches(struct tcp_congestion_ops___sl_610)

/*
 * 6.0: rate_sample.delivered_ce and prior_delivered_ce. Before, the marks of a sample are the difference of
 * tcp_sock.delivered_ce between two calls, which the caller has to keep anyway.
 */
#define SL_HAS_RATE_SAMPLE_CE() bpf_core_field_exists(((struct rate_sample *)0)->delivered_ce)

/*
 * Between 6.12 and 6.18: in_ack_event moved behind the counting of the acknowledged segments; before, it ran ahead of that. A CCA that compares
 * tcp_sock.delivered or delivered_ce between two calls of in_ack_event therefore sees this ACK's segments now (6.18) or at the
 * next call (6.12). pkts_acked comes after `delivered` on every kernel: prefer it.
 *
 * 6.18: accurate ECN. tcp_sock.ecn_flags has a bit of its own for it (ecn.bpf.h); delivered_ce then counts exact marks, not
 * segments acknowledged while ECE was up.
 *
 * 7.1: a new hook cwnd_event_tx_start; CA_EVENT_TX_START no longer reaches cwnd_event. The SDK needs neither: an RTT that starts
 * with nothing in flight is known at the per-RTT point (sl_round.idle_before), and it is the same event on every kernel.
 */

/* Bitfields move between kernels; BPF_CORE_READ_BITFIELD follows them, direct access does not. */
static __always_inline u8 sl_ca_state(const struct sock *sk)
{
	const struct inet_connection_sock *icsk = (const void *)sk;

	return BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state);
}

#endif
