// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A CCA on the SDK whose per-RTT point lies where the test wants it: a switch from inside each of these hooks has to work. Its
 * window is ssthresh-less slow start up to `cap`, so that a transfer is steady. Besides, CCAs that the kernel must refuse.
 */
#include <sluice/bpf/cca.bpf.h>

#define POINT_CONG_AVOID 1
#define POINT_CONG_CONTROL 2
#define POINT_IN_ACK_EVENT 3

const volatile __u64 point = POINT_CONG_AVOID;
const volatile __u64 cap = 64;

struct points {
	struct sl_core core;
};
SL_PRIVATE(struct points);

/* Learned state as the CCA before left it, for the test to look at. */
struct sl_learned adopted = {};
__u64 adoptions = 0;

SL_INIT(sk, learned)
{
	if (learned) {
		adopted = *learned;
		__sync_fetch_and_add(&adoptions, 1);
	}
}

SL_RELEASE(sk, learned)
{
	learned->rtt_min_us = 4321;
	learned->w_max_segments = 77;
	learned->ecn_alpha_1024 = 256;
	learned->ecn_rounds = 20;
}

static __always_inline void at(struct sock *sk, u64 here)
{
	struct sl_core *core = sl_core_of(sk);
	struct sl_round round;

	if (point != here || !sl_rtt_ended(sk, core))
		return;
	sl_rtt_next(sk, core, &round);
	sl_follow_policy(sk, core, &round);
}

static __always_inline void grow(struct sock *sk)
{
	struct tcp_sock *tp = sl_tcp(sk);

	if (tp->snd_cwnd < cap)
		sl_set_cwnd(tp, tp->snd_cwnd + 1);
}

SL_CONG_AVOID(sk, ack, acked)
{
	grow(sk);
	at(sk, POINT_CONG_AVOID);
}

SL_CONG_CONTROL(sk, ack, flag, rs)
{
	grow(sk);
	at(sk, POINT_CONG_CONTROL);
}

SL_IN_ACK_EVENT(sk, flags)
{
	at(sk, POINT_IN_ACK_EVENT);
}

SL_SSTHRESH(sk)
{
	return max(sl_tcp(sk)->snd_cwnd / 2, 2U);
}

SL_UNDO_CWND(sk)
{
	return sl_tcp(sk)->snd_cwnd;
}

/* Hooks that no other bundle of ours uses: they have to load and run, too. */
u64 state_changes = 0;
u64 events = 0;
SL_SET_STATE(sk, new_state)
{
	__sync_fetch_and_add(&state_changes, 1);
}
SL_CWND_EVENT(sk, event)
{
	__sync_fetch_and_add(&events, 1);
}
SL_MIN_TSO_SEGS(sk)
{
	return 2;
}
SL_SNDBUF_EXPAND(sk)
{
	return 3;
}

SL_CCA(points_avoid,
	.cong_avoid = SL_HOOK(cong_avoid), .in_ack_event = SL_HOOK(in_ack_event), .ssthresh = SL_HOOK(ssthresh),
	.undo_cwnd = SL_HOOK(undo_cwnd), .set_state = SL_HOOK(set_state), .cwnd_event = SL_HOOK(cwnd_event),
	.min_tso_segs = SL_HOOK(min_tso_segs), .sndbuf_expand = SL_HOOK(sndbuf_expand));
SL_CCA(points_ctl,
	.cong_control = SL_HOOK(cong_control), .ssthresh = SL_HOOK(ssthresh), .undo_cwnd = SL_HOOK(undo_cwnd));
SL_CCA(points_ecn,
	.cong_avoid = SL_HOOK(cong_avoid), .ssthresh = SL_HOOK(ssthresh), .undo_cwnd = SL_HOOK(undo_cwnd),
	.flags = SL_NEEDS_ECN);

/* To be refused. */
SL_CCA(no_ssthresh, .cong_avoid = SL_HOOK(cong_avoid), .undo_cwnd = SL_HOOK(undo_cwnd));
SL_CCA(no_undo, .cong_avoid = SL_HOOK(cong_avoid), .ssthresh = SL_HOOK(ssthresh));
SL_CCA(no_growth, .ssthresh = SL_HOOK(ssthresh), .undo_cwnd = SL_HOOK(undo_cwnd));
SL_CCA(bad_flags, .cong_avoid = SL_HOOK(cong_avoid), .ssthresh = SL_HOOK(ssthresh), .undo_cwnd = SL_HOOK(undo_cwnd),
	.flags = 1 << 7);
