// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * dctcp: Data Center TCP (RFC 8257). Marks say how far the queue is beyond its threshold, and the window gives way in proportion.
 *
 * 1. Alpha (section 3.3). Once per RTT alpha += g (M - alpha), M the marked share of the segments that the RTT delivered and
 *    g = 1 / ecn_window_rtts. It begins at alpha_initial_1024: 1 unless set otherwise, so that the first mark halves the window.
 * 2. Marks (section 3.3). ssthresh = cwnd (1 - alpha / 2), rounded to the nearest segment. The kernel asks for it at the first echo
 *    and then not again before that window of data is acknowledged (CWR): at most once per RTT.
 * 3. Losses (section 3.5) weigh as in Reno: half of the window. A loss behind a mark of the same RTT completes that reduction to half of
 *    the window before the mark, instead of taking half of what the mark has left. A loss that turns out to be none is undone; behind a
 *    mark the kernel undoes nothing.
 * 4. Growth is Reno's (RFC 5681): slow start, then one segment per RTT.
 * 5. Receiver (section 3.2). The ECE flag of an ACK has to be the CE mark of all segments that it acknowledges. So when a segment
 *    arrives whose mark differs from the one before: what is still unacknowledged is acknowledged at once with the old flag, the flag
 *    turns over, and the segment itself is acknowledged at once. As long as the mark stays the same, ACKs are delayed as usual. The
 *    kernel reports every segment's mark (CA_EVENT_ECN_*); RFC 3168's latch, ECE until the sender's CWR, is overwritten at each.
 *    Under accurate ECN the ACKs count marks, and nothing of this is done.
 * 6. Without ECN. A CCA that needs ECN makes the kernel send ECT even to a peer that does not echo marks. .init knows what was
 *    negotiated (but in SYN_SENT): it hands the socket to the CCA that the policy has for it, or to the kernel's reno. Where a switch is
 *    refused (inside another switch) it is tried again at the next ACK. Meanwhile 3 and 4 are plain Reno.
 *
 * Differences from Linux's tcp_dctcp: a loss behind a mark (3); rounding (2; there towards the larger window); alpha has 26 bits, not
 * 10; what is unacknowledged is known from sequence numbers, not from the delayed-ACK timer, which does not run while a process owns
 * the socket (5).
 */
#include <sluice/bpf/cca.bpf.h>

/* Alpha of a connection that knows nothing of its path, 1024 = every segment marked. When loaded. */
const volatile __u64 alpha_initial_1024 = 1024;

struct dctcp_params {
	u64 sl_present;
	u64 ecn_window_rtts;	/* 1 / g */
};

SL_PARAMS(struct dctcp_params,
	.ecn_window_rtts = 16);

/* include/net/inet_connection_sock.h: icsk_ack.pending */
#define ICSK_ACK_NOW 16
/* include/net/tcp.h: tcp_sock.ecn_flags; ACKs carry ECE */
#define TCP_ECN_DEMAND_CWR 4

#define ROUNDS_MAX 255U
#define ALPHA_SHIFT 16		/* alpha has that many bits beyond those of alpha_1024 */

struct dctcp {
	struct sl_core core;
	u32 alpha;		/* first, where tests find it */
	u8 alpha_rounds;	/* RTTs it was learned from */
	bool mark_cut;		/* the reduction under way answers a mark */
	u16 ce;			/* receiver: the last segment was marked; 0 or 1 */
	u32 tlp_seq;		/* tlp_high_seq as of this ACK; 0 = no probe out */
	u32 received_seq;	/* receiver: rcv_nxt as of the segment before */
	u32 ahead_seq;		/* receiver: rcv_nxt when an ACK was last sent ahead of a segment's own */
};
SL_PRIVATE(struct dctcp);

enum {
	DCTCP_COUNT_LOSS = SL_CCA_COUNTER_OWN,	/* reductions that answered a loss */
	DCTCP_COUNT_MARK,			/* ... a mark */
	DCTCP_COUNT_MARK_THEN_LOSS,		/* ... a mark, completed when a loss turned up behind it */
	DCTCP_COUNT_UNDO,
	DCTCP_COUNT_BOUNDED,			/* moved in without a usable ssthresh; given one */
	DCTCP_COUNT_CE_CHANGE,			/* receiver: the mark turned over */
	DCTCP_COUNT_CE_ACK,			/* ... and an ACK went out for what was pending */
	DCTCP_COUNT_NO_ECN,			/* handed to reno: no ECN, and no policy says what else */
	DCTCP_COUNT_NO_ECN_STAYED,		/* the switch was refused; tried again at the next ACK */
};

/* ---- sender -------------------------------------------------------------------------------------------------------------- */

SL_CONG_AVOID(sk, ack, acked)
{
	struct tcp_sock *tp = sl_tcp(sk);

	if (!sl_cwnd_limited(tp))
		return;
	if (sl_in_slow_start(tp)) {
		acked = sl_slow_start(tp, acked);
		if (!acked)
			return;
	}
	sl_additive_increase(tp, tp->snd_cwnd, acked);
}

static __always_inline u32 half_of(u32 cwnd)
{
	return max(cwnd / 2, SL_CWND_MIN);
}

SL_SSTHRESH(sk)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct dctcp *ca = sl_priv(sk);
	u32 cwnd = tp->snd_cwnd, reduced;

	if (sl_ecn_is_mark(tp, ca->tlp_seq)) {
		/* + half a segment, in units of alpha / 2 */
		u32 cut = ((u64)cwnd * ca->alpha + (1024 << ALPHA_SHIFT)) / (2048 << ALPHA_SHIFT);

		reduced = max(cwnd - cut, SL_CWND_MIN);
		ca->mark_cut = true;
		sl_cca_count(DCTCP_COUNT_MARK);
	} else {
		reduced = half_of(cwnd);
		ca->mark_cut = false;
		sl_cca_count(DCTCP_COUNT_LOSS);
	}
	return reduced;
}

SL_SET_STATE(sk, new_state)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct dctcp *ca = sl_priv(sk);

	if (new_state == TCP_CA_CWR || !ca->mark_cut)
		return;
	ca->mark_cut = false;
	if (new_state > TCP_CA_CWR) {	/* a loss behind the mark: the kernel does not ask for ssthresh again */
		tp->snd_ssthresh = min(tp->snd_ssthresh, half_of(tp->prior_cwnd));
		sl_cca_count(DCTCP_COUNT_MARK_THEN_LOSS);
	}
}

SL_UNDO_CWND(sk)
{
	sl_cca_count(DCTCP_COUNT_UNDO);
	return max(sl_tcp(sk)->snd_cwnd, sl_tcp(sk)->prior_cwnd);
}

/* ---- without ECN --------------------------------------------------------------------------------------------------------- */

static __always_inline bool is_blind(const struct sock *sk)
{
	return sk->__sk_common.skc_state != BPF_TCP_SYN_SENT && !sl_ecn_negotiated(sl_tcp(sk));
}

/* After sl_follow_policy() had nothing better. The private state is reno's, or as it was. */
static __always_inline void leave_to_reno(struct sock *sk, struct dctcp *ca)
{
	static const char reno[SL_CCA_NAME_LEN] = "reno";

	if (!sl_set_cca(sk, reno)) {
		sl_cca_count(DCTCP_COUNT_NO_ECN);
		return;
	}
	ca->core.end_seq = sl_tcp(sk)->snd_una;
	sl_cca_count(DCTCP_COUNT_NO_ECN_STAYED);
}

/* ---- per RTT ------------------------------------------------------------------------------------------------------------- */

/* Out of line, so that the ACKs between two RTTs do not save registers for it. */
SL_SUBPROG int next_round(struct sock *sk)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct dctcp *ca = sl_priv(sk);
	struct sl_round round;

	sl_rtt_next(sk, &ca->core, &round);
	if (sl_ecn_negotiated(tp)) {
		u32 settled = ROUNDS_MAX;	/* g from the first RTT on, as RFC 8257 wants it */

		ca->alpha = sl_ecn_alpha(ca->alpha, sl_ecn_fraction_1024(&round) << ALPHA_SHIFT, &settled,
					 min(sl_param(&ca->core)->ecn_window_rtts, (u64)ROUNDS_MAX));
		ca->alpha_rounds = min(ca->alpha_rounds + 1U, ROUNDS_MAX);
	}
	sl_log(sk, &ca->core, &round, ca->alpha >> ALPHA_SHIFT, 0, 0);
	if (!sl_follow_policy(sk, &ca->core, &round) && is_blind(sk))	/* or the private state is another CCA's now */
		leave_to_reno(sk, ca);
	return 0;
}

SL_PKTS_ACKED(sk, sample)
{
	struct dctcp *ca = sl_priv(sk);

	ca->tlp_seq = sl_tcp(sk)->tlp_high_seq;
	sl_rtt_sample(&ca->core, sample->rtt_us);
	if (sl_rtt_ended(sk, &ca->core))
		next_round(sk);
}

/* ---- receiver ------------------------------------------------------------------------------------------------------------ */

static __always_inline void echo(struct tcp_sock *tp, u32 ce)
{
	tp->ecn_flags = ce ? tp->ecn_flags | TCP_ECN_DEMAND_CWR : tp->ecn_flags & ~TCP_ECN_DEMAND_CWR;
}

/* The mark of the segment at hand, `ce`, is not that of the one before. */
SL_SUBPROG int turn_over(struct sock *sk, u32 ce)
{
	struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;
	struct tcp_sock *tp = sl_tcp(sk);
	struct dctcp *ca = sl_priv(sk);
	bool pending;

	/*
	 * Is anything before this segment unacknowledged? rcv_wup is what the last ACK said, but an ACK sent ahead moves it past the segment
	 * at hand too; then ACK_NOW tells whether that one's own ACK is still to come (it waits while a process owns the socket).
	 */
	if (ca->received_seq == ca->ahead_seq)
		pending = icsk->icsk_ack.pending & ICSK_ACK_NOW;
	else
		pending = sl_before(tp->rcv_wup, ca->received_seq) && !sl_before(tp->rcv_nxt, ca->received_seq);
	if (pending) {
		echo(tp, !ce);	/* this segment's CWR has reset it */
		bpf_tcp_send_ack(tp, ca->received_seq);
		ca->ahead_seq = tp->rcv_nxt;
		sl_cca_count(DCTCP_COUNT_CE_ACK);
	}
	icsk->icsk_ack.pending |= ICSK_ACK_NOW;
	ca->ce = ce;
	ca->received_seq = tp->rcv_nxt;
	echo(tp, ce);
	sl_cca_count(DCTCP_COUNT_CE_CHANGE);
	return 0;
}

/* Once for every segment that arrives: short, and the rest out of line. */
SL_CWND_EVENT(sk, event)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct dctcp *ca = sl_priv(sk);
	u32 ce = event - CA_EVENT_ECN_NO_CE, ecn;

	if (ce > 1)	/* CA_EVENT_ECN_NO_CE and CA_EVENT_ECN_IS_CE follow each other */
		return;
	ecn = tp->ecn_flags & (SL_ECN_OK | TCP_ECN_DEMAND_CWR);
	if (ce != ca->ce) {
		if (ecn & SL_ECN_OK)
			turn_over(sk, ce);
		return;
	}
	ca->received_seq = tp->rcv_nxt;
	/* One comparison for the usual: ECN, and the flag as it should be. This segment's CWR may have reset it. */
	if (ecn != ce * TCP_ECN_DEMAND_CWR + SL_ECN_OK && ecn & SL_ECN_OK)
		tp->ecn_flags ^= TCP_ECN_DEMAND_CWR;
}

/* ---- coming and going ---------------------------------------------------------------------------------------------------- */

SL_INIT(sk, learned)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct dctcp *ca = sl_priv(sk);
	struct sl_round none = {};

	ca->alpha = min(alpha_initial_1024, 1024ULL) << ALPHA_SHIFT;
	ca->alpha_rounds = 0;
	if (learned && learned->ecn_rounds) {
		ca->alpha = min(learned->ecn_alpha_1024, 1024U) << ALPHA_SHIFT;
		ca->alpha_rounds = min(learned->ecn_rounds, ROUNDS_MAX);
	}
	/* A CCA before this one may have left an echo that is still owed. */
	ca->ce = !!(tp->ecn_flags & TCP_ECN_DEMAND_CWR);
	ca->mark_cut = false;
	ca->tlp_seq = 0;
	ca->received_seq = tp->rcv_nxt;
	ca->ahead_seq = tp->rcv_nxt - 1;	/* never */
	if (sl_bound_ssthresh(sk, learned, 50))
		sl_cca_count(DCTCP_COUNT_BOUNDED);
	if (is_blind(sk) && !sl_follow_policy(sk, &ca->core, &none))
		leave_to_reno(sk, ca);
}

SL_RELEASE(sk, learned)
{
	const struct tcp_sock *tp = sl_tcp(sk);
	const struct dctcp *ca = sl_priv(sk);

	if (tp->rtt_min.s[0].v != ~0U)
		learned->rtt_min_us = tp->rtt_min.s[0].v;
	learned->ecn_alpha_1024 = ca->alpha >> ALPHA_SHIFT;
	learned->ecn_rounds = ca->alpha_rounds;
	if (tp->snd_ssthresh >= TCP_INFINITE_SSTHRESH)
		learned->flags = SL_LEARNED_SLOW_START;
}

SL_CCA(dctcp,
	.ssthresh = SL_HOOK(ssthresh),
	.cong_avoid = SL_HOOK(cong_avoid),
	.set_state = SL_HOOK(set_state),
	.cwnd_event = SL_HOOK(cwnd_event),
	.pkts_acked = SL_HOOK(pkts_acked),
	.undo_cwnd = SL_HOOK(undo_cwnd),
	.flags = SL_NEEDS_ECN);
