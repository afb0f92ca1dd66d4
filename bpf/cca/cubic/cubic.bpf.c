// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * cubic: CUBIC (RFC 9438) with HyStart, correct under ECN. Sluice's transitional CCA: safe for a socket that comes from any
 * other CCA, in any state, with or without ECN.
 *
 * 1. Growth. W_cubic(t) = C (t - K)^3 + W_max with K = cbrt((W_max - cwnd) / C); the target is W_cubic(t + RTT), at most 1.5
 *    cwnd. Where Reno would be faster, W_est is followed (section 4.3), with alpha = 1 once it reaches the cwnd before the last
 *    reduction. Time stands still while the window is not what limits the sender (section 4.2).
 * 2. Loss. ssthresh = beta cwnd. Fast convergence: W_max falls to the middle of old and new cwnd if it was not reached again.
 *    After an RTO growth starts anew (section 4.8). An undone reduction restores the whole epoch (section 4.9).
 * 3. Marks. ssthresh = cwnd (1 - ecn_reduction alpha), alpha = EWMA of the marked fraction; but at least what the connection keeps
 *    in the queue is given up (ecn_drain of it), up to 65 % of the window: the queue empties, and the link hardly runs dry.
 *    Without that floor reductions are small and frequent, and the queue stays at the marking threshold.
 *    The kernel asks for a new ssthresh alike for marks and losses, so sl_ecn_is_mark() tells them apart; and where a loss turns up
 *    behind a mark within the same RTT, the kernel does not ask again, so set_state completes the reduction to that of a loss.
 *    Why not RFC 8257's alpha / 2: with the default ecn_reduction = 1 - beta = 30 % a fully marked RTT weighs as much as a loss and
 *    every other RTT less; and since CUBIC's Reno-friendly increase is 3 (1 - beta) / (1 + beta) = 0.53 segments per RTT and
 *    not 1, the equilibrium window, increase / (reduction alpha), is 1.76 / alpha beside DCTCP's 2 / alpha, not half of it.
 * 4. HyStart (delay and ACK train), as in Linux: slow start ends before the queue overflows.
 * 5. Moving in. Learned state of the CCA before is used (W_max, minimum RTT, alpha; from another cubic the running epoch too).
 *    A socket without a finite ssthresh that is not in a genuine slow start (BBR, or limited by its application) gets one:
 *    its window, or the bandwidth-delay product where that is larger (BBR in PROBE_RTT).
 *
 * Differences from Linux's tcp_cubic: marks; RFC 9438's W_est; undo restores the epoch; no cwnd_event hook (idle time is seen by the
 * gap between window-limited ACKs, which also covers application-limited phases); state survives a migration.
 *
 * What a connection gets where something is missing: without its parameter set the defaults below, without ECN the
 * loss reaction only. Each is counted.
 *
 * Time is kept in ticks of 1024 us, so that no division is needed to get it; sequence numbers and times wrap.
 */
#include <sluice/bpf/cca.bpf.h>

struct cubic_params {
	u64 sl_present;
	u64 beta_percent;		/* cwnd kept after a loss */
	u64 c_milli;			/* C: thousandths of a segment per second cubed */
	u64 fast_convergence;		/* bool */
	u64 reno_friendly;		/* bool */
	u64 ecn_reduction_percent;	/* cwnd given up when every segment is marked; alpha scales it */
	u64 ecn_drain_percent;		/* of the own queue, given up at a mark at least */
	u64 ecn_window_rtts;		/* alpha averages over so many RTTs: gain 1 / window */
	u64 hystart;			/* bits: 1 ACK train, 2 delay; 0 = off */
	u64 hystart_min_segments;	/* smaller windows never leave slow start by HyStart */
	u64 hystart_spacing_us;		/* ACKs closer than this belong to one train */
};

SL_PARAMS(struct cubic_params,
	.beta_percent = 70,
	.c_milli = 400,
	.fast_convergence = 1,
	.reno_friendly = 1,
	.ecn_reduction_percent = 30,
	.ecn_drain_percent = 110,
	.ecn_window_rtts = 16,
	.hystart = 3,
	.hystart_min_segments = 16,
	.hystart_spacing_us = 2000);

#define HYSTART_TRAIN 1
#define HYSTART_DELAY 2
#define HYSTART_SAMPLES 8
#define HYSTART_DELAY_MIN_US 4000
#define HYSTART_DELAY_MAX_US 16000

#define DRAIN_MAX_PERCENT 65	/* of cwnd, at once: docs/design/0007 */

#define TICK_SHIFT 10		/* 1 tick = 1024 us */
#define UPDATE_TICKS 31		/* the target is computed at least this often, and when cwnd moved */
#define OFFSET_TICKS_MAX (1U << 17)	/* 134 s: C t^3 fits 64 bits */
#define DISTANCE_SEGMENTS_MAX (1U << 23)	/* the same for K */
#define C_UNIT 931322574615ULL	/* 1000 / (1024e-6)^3: c_milli * ticks^3 / C_UNIT is in segments */

enum cubic_flags {
	CUBIC_EPOCH = 1 << 0,		/* growing from `epoch`; else the next cong_avoid starts an epoch */
	CUBIC_HYSTART_DONE = 1 << 1,	/* HyStart ended this slow start */
	CUBIC_MARK_CUT = 1 << 2,	/* the reduction under way answers a mark */
	CUBIC_UNDO = 1 << 3,		/* `undo` holds the epoch before the last reduction */
};

struct cubic_epoch {
	u32 w_max;		/* cwnd before the last reduction, after fast convergence; 0 = none so far */
	u32 origin;		/* plateau of the curve */
	u32 k_ticks;
	u32 start_ticks;
	u32 w_est;		/* what Reno would have */
};

struct cubic {
	struct sl_core core;
	u16 alpha_1024;		/* first, where tests find it */
	u8 alpha_rounds;
	u8 flags : 4;		/* enum cubic_flags */
	u8 samples : 4;		/* HyStart: in this RTT */
	struct cubic_epoch now;
	struct cubic_epoch undo;
	u32 ack_count;		/* acknowledged segments not yet in w_est */
	u32 per;		/* acknowledged segments per segment of growth */
	u32 last_ticks;		/* when `per` was computed, */
	u32 last_cwnd;		/* and for what */
	u32 delay_min_us;	/* 0 = no sample */
	u32 train_us;		/* HyStart: last ACK of the train */
	u32 tlp_seq;		/* tlp_high_seq as of this ACK; 0 = no probe out */
};
SL_PRIVATE(struct cubic);

/* Layout of sl_learned.own: see SL_RELEASE. "cub1" */
#define CUBIC_STATE_TAG 0x31627563

enum {
	CUBIC_COUNT_LOSS = SL_CCA_COUNTER_OWN,	/* reductions that answered a loss */
	CUBIC_COUNT_MARK,			/* ... a mark */
	CUBIC_COUNT_MARK_THEN_LOSS,		/* ... a mark, completed when a loss turned up behind it */
	CUBIC_COUNT_UNDO,
	CUBIC_COUNT_HYSTART_TRAIN,
	CUBIC_COUNT_HYSTART_DELAY,
	CUBIC_COUNT_BOUNDED,			/* moved in without a usable ssthresh; given one */
};

/*
 * Cube root by Newton's method, from a power of two that is above the root and less than twice it; from there six steps reach the
 * precision of the integers below 2^21. No branch depends on the data inside the loop: the verifier would follow each.
 */
static __always_inline u32 cube_root(u64 x)
{
	u64 root, rest = x;
	u32 bits = 0;
	int i;

	for (i = 32; i > 0; i /= 2) {
		if (rest >> i) {
			rest >>= i;
			bits += i;
		}
	}
	root = 1ULL << (bits / 3 + 1);
	for (i = 0; i < 6; i++)
		root = (2 * root + x / (root * root)) / 3;
	return root;
}

static __always_inline u32 ticks_now(const struct tcp_sock *tp)
{
	return tp->tcp_mstamp >> TICK_SHIFT;
}

/* A reduction from `cwnd` to `reduced`: growth will start from there. */
static __always_inline void end_epoch(struct cubic *ca, const struct cubic_params *p, u32 cwnd, u32 reduced)
{
	ca->now.w_max = p->fast_convergence && cwnd < ca->now.w_max ? (cwnd + reduced) / 2 : cwnd;
	ca->flags &= ~CUBIC_EPOCH;
}

static __always_inline void start_epoch(struct cubic *ca, const struct cubic_params *p, u32 cwnd, u32 now, u32 acked)
{
	ca->flags |= CUBIC_EPOCH;
	ca->now.start_ticks = now;
	ca->now.w_est = cwnd;
	ca->ack_count = acked;
	if (ca->now.w_max <= cwnd) {
		ca->now.k_ticks = 0;
		ca->now.origin = cwnd;
	} else {
		u64 distance = min(ca->now.w_max - cwnd, DISTANCE_SEGMENTS_MAX);

		ca->now.k_ticks = cube_root(distance * C_UNIT / max(p->c_milli, 1ULL));
		ca->now.origin = ca->now.w_max;
	}
}

/* How many acknowledged segments let the window grow by one. Sets ca->per. */
static __always_inline void update(const struct tcp_sock *tp, struct cubic *ca, u32 cwnd, u32 acked)
{
	u32 now = ticks_now(tp), since = now - ca->last_ticks, per;
	const struct cubic_params *p;

	ca->ack_count += acked;
	if (ca->last_cwnd == cwnd && since <= UPDATE_TICKS)
		return;

	p = sl_param(&ca->core);
	if (!(ca->flags & CUBIC_EPOCH)) {
		start_epoch(ca, p, cwnd, now, acked);
	} else if (since > 2 * UPDATE_TICKS + (tp->srtt_us >> (3 + TICK_SHIFT - 1))) {
		/* No window-limited ACK for longer than two RTTs: idle, or limited by the application. */
		ca->now.start_ticks += since;
	} else if (!since) {
		per = ca->per;	/* W_cubic moves with time only */
		goto reno;
	}

	{
		u32 t = now - ca->now.start_ticks + (ca->delay_min_us >> TICK_SHIFT);
		u64 offset = t < ca->now.k_ticks ? ca->now.k_ticks - t : t - ca->now.k_ticks;
		u64 delta, target;

		offset = min(offset, (u64)OFFSET_TICKS_MAX);
		delta = offset * offset * offset * p->c_milli / C_UNIT;
		if (t < ca->now.k_ticks)
			target = ca->now.origin > delta ? ca->now.origin - delta : 0;
		else
			target = ca->now.origin + delta;
		per = target > cwnd ? cwnd / min(target - cwnd, (u64)cwnd) : 100 * cwnd;
		/* Nothing known about the path yet: 5 % per RTT at least. */
		if (!ca->now.w_max)
			per = min(per, 20U);
	}
reno:
	if (p->reno_friendly) {
		u32 keep = min(p->beta_percent, 99ULL);
		u32 each = ca->now.w_est < tp->prior_cwnd ? cwnd * (100 + keep) / (3 * (100 - keep)) : cwnd;
		u32 grown = ca->ack_count / max(each, 1U);

		ca->now.w_est += grown;
		ca->ack_count -= grown * each;
		if (ca->now.w_est > cwnd)
			per = min(per, cwnd / (ca->now.w_est - cwnd));
	}
	ca->per = max(per, 2U);		/* at most 1.5 cwnd in an RTT */
	ca->last_ticks = now;
	ca->last_cwnd = cwnd;
}

SL_CONG_AVOID(sk, ack, acked)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct cubic *ca = sl_priv(sk);

	if (!sl_cwnd_limited(tp))
		return;
	if (sl_in_slow_start(tp)) {
		acked = sl_slow_start(tp, acked);
		if (!acked)
			return;
	}
	update(tp, ca, tp->snd_cwnd, acked);
	sl_additive_increase(tp, ca->per, acked);
}

/*
 * Segments of the window that wait in a queue, because the path does not hold them at its minimum RTT. By the rate of delivery and by the
 * RTT, the smaller of both: right behind a reduction the RTT is still the old one, and a rate may be too low (the application's).
 */
static __always_inline u32 queued(const struct tcp_sock *tp, const struct cubic *ca)
{
	u32 cwnd = tp->snd_cwnd, rtt_us = tp->srtt_us >> 3, least_us = ca->delay_min_us;
	u64 held;

	if (!least_us || rtt_us <= least_us || !tp->rate_interval_us)
		return 0;
	held = max((u64)tp->rate_delivered * least_us / tp->rate_interval_us, (u64)cwnd * least_us / rtt_us);
	return held < cwnd ? cwnd - held : 0;
}

SL_SSTHRESH(sk)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct cubic *ca = sl_priv(sk);
	const struct cubic_params *p = sl_param(&ca->core);
	u32 cwnd = tp->snd_cwnd, reduced;

	if (sl_ecn_is_mark(tp, ca->tlp_seq)) {
		/* In hundredths. */
		u64 share = (u64)cwnd * ca->alpha_1024 * p->ecn_reduction_percent / 1024;
		u64 drain = (u64)queued(tp, ca) * p->ecn_drain_percent;
		u32 cut = max(share, min(drain, (u64)cwnd * DRAIN_MAX_PERCENT)) / 100;

		reduced = cwnd - min(max(cut, 1U), cwnd);
		ca->flags |= CUBIC_MARK_CUT;
		ca->flags &= ~CUBIC_UNDO;	/* a mark is never spurious */
		sl_cca_count(CUBIC_COUNT_MARK);
	} else {
		reduced = (u64)cwnd * p->beta_percent / 100;
		ca->flags &= ~CUBIC_MARK_CUT;
		if (ca->flags & CUBIC_EPOCH) {
			ca->undo = ca->now;
			ca->flags |= CUBIC_UNDO;
		}
		sl_cca_count(CUBIC_COUNT_LOSS);
	}
	reduced = max(reduced, SL_CWND_MIN);
	end_epoch(ca, p, cwnd, reduced);
	return reduced;
}

SL_SET_STATE(sk, new_state)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct cubic *ca = sl_priv(sk);

	if (new_state < TCP_CA_CWR) {
		ca->flags &= ~CUBIC_MARK_CUT;
		return;
	}
	if (new_state == TCP_CA_CWR)
		return;

	if (ca->flags & CUBIC_MARK_CUT) {	/* a loss behind the mark */
		const struct cubic_params *p = sl_param(&ca->core);
		u32 reduced = max((u32)((u64)tp->prior_cwnd * p->beta_percent / 100), SL_CWND_MIN);

		ca->flags &= ~CUBIC_MARK_CUT;
		if (reduced < tp->snd_ssthresh) {
			tp->snd_ssthresh = reduced;
			end_epoch(ca, p, tp->prior_cwnd, reduced);
		}
		sl_cca_count(CUBIC_COUNT_MARK_THEN_LOSS);
	}
	if (new_state == TCP_CA_Loss) {
		ca->now.w_max = 0;
		ca->flags &= ~(CUBIC_EPOCH | CUBIC_HYSTART_DONE);
	}
}

SL_UNDO_CWND(sk)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct cubic *ca = sl_priv(sk);

	if (ca->flags & CUBIC_UNDO) {
		ca->now = ca->undo;
		ca->flags = (ca->flags & ~CUBIC_UNDO) | CUBIC_EPOCH;
		ca->last_cwnd = 0;
	}
	sl_cca_count(CUBIC_COUNT_UNDO);
	return max(tp->snd_cwnd, tp->prior_cwnd);
}

/* Ends slow start where the path is full: the ACKs of a window arrive over a whole RTT, or the RTT has grown. */
static __always_inline void hystart(struct sock *sk, struct tcp_sock *tp, struct cubic *ca)
{
	const struct cubic_params *p = sl_param(&ca->core);
	u32 now = tp->tcp_mstamp;

	if (!p->hystart || tp->snd_cwnd < p->hystart_min_segments)
		return;

	if (p->hystart & HYSTART_TRAIN && now - ca->train_us <= p->hystart_spacing_us) {
		u64 threshold = ca->delay_min_us, rate = sk->sk_pacing_rate;

		ca->train_us = now;
		/* Bursts of pacing and segmentation offload stretch a train, without pacing half an RTT of it is enough. */
		if (rate)
			threshold += min(4ULL * sk->sk_gso_max_size * 1000000 / rate, 1000ULL);
		if (!sk->sk_pacing_status)
			threshold /= 2;
		if (sl_rtt_elapsed_us(sk, &ca->core) > threshold) {
			sl_cca_count(CUBIC_COUNT_HYSTART_TRAIN);
			goto full;
		}
	}
	if (p->hystart & HYSTART_DELAY) {
		u32 slack = min(max(ca->delay_min_us / 8, (u32)HYSTART_DELAY_MIN_US), (u32)HYSTART_DELAY_MAX_US);

		if (ca->samples < HYSTART_SAMPLES) {
			ca->samples++;
		} else if (ca->core.rtt_min_us > ca->delay_min_us + slack) {
			sl_cca_count(CUBIC_COUNT_HYSTART_DELAY);
			goto full;
		}
	}
	return;
full:
	ca->flags |= CUBIC_HYSTART_DONE;
	tp->snd_ssthresh = tp->snd_cwnd;
}

/* The per-RTT point. */
static __always_inline void next_round(struct sock *sk, struct tcp_sock *tp, struct cubic *ca)
{
	struct sl_round round;

	sl_rtt_next(sk, &ca->core, &round);
	ca->train_us = ca->core.start_us;
	ca->samples = 0;
	if (sl_ecn_negotiated(tp)) {
		u32 rounds = ca->alpha_rounds;

		ca->alpha_1024 = sl_ecn_alpha(ca->alpha_1024, sl_ecn_fraction_1024(&round), &rounds,
					      min(sl_param(&ca->core)->ecn_window_rtts, 255ULL));
		ca->alpha_rounds = rounds;
	}
	sl_log(sk, &ca->core, &round, ca->alpha_1024, ca->now.w_max, ca->now.k_ticks);
	sl_follow_policy(sk, &ca->core, &round);	/* last: the private state may be another CCA's now */
}

SL_PKTS_ACKED(sk, sample)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct cubic *ca = sl_priv(sk);
	s32 rtt_us = sample->rtt_us;

	ca->tlp_seq = tp->tlp_high_seq;
	if (rtt_us >= 0) {
		sl_rtt_sample(&ca->core, rtt_us);
		if (!ca->delay_min_us || (u32)rtt_us < ca->delay_min_us)
			ca->delay_min_us = max(rtt_us, 1);
		if (sl_in_slow_start(tp) && !(ca->flags & CUBIC_HYSTART_DONE))
			hystart(sk, tp, ca);
	}
	if (sl_rtt_ended(sk, &ca->core))
		next_round(sk, tp, ca);
}

SL_INIT(sk, learned)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct cubic *ca = sl_priv(sk);

	ca->now = (struct cubic_epoch){};
	ca->undo = (struct cubic_epoch){};
	ca->ack_count = 0;
	ca->per = 0;
	ca->last_ticks = ticks_now(tp);
	ca->last_cwnd = 0;
	ca->delay_min_us = 0;
	ca->train_us = ca->core.start_us;
	ca->tlp_seq = 0;
	ca->alpha_1024 = 1024;
	ca->alpha_rounds = 0;
	ca->flags = 0;
	ca->samples = 0;

	if (learned) {
		ca->delay_min_us = learned->rtt_min_us;
		ca->now.w_max = learned->w_max_segments;
		if (learned->ecn_rounds) {
			ca->alpha_1024 = min(learned->ecn_alpha_1024, 1024U);
			ca->alpha_rounds = min(learned->ecn_rounds, 255U);
		}
		if (learned->own_tag == CUBIC_STATE_TAG) {
			ca->now.origin = learned->own[0];
			ca->now.k_ticks = learned->own[0] >> 32;
			ca->now.start_ticks = learned->own[1];
			ca->now.w_est = learned->own[1] >> 32;
			ca->last_ticks = learned->own[2];
			ca->flags = (learned->own[2] >> 32) & (CUBIC_EPOCH | CUBIC_HYSTART_DONE);
		}
	}

	if (sl_bound_ssthresh(sk, learned, sl_param(&ca->core)->beta_percent))
		sl_cca_count(CUBIC_COUNT_BOUNDED);
	/* Moved in: what it has is what the path bears, as far as known. */
	if (!ca->now.w_max && tp->snd_ssthresh < TCP_INFINITE_SSTHRESH)
		ca->now.w_max = max(tp->snd_cwnd, tp->snd_ssthresh);
}

SL_RELEASE(sk, learned)
{
	const struct tcp_sock *tp = sl_tcp(sk);
	const struct cubic *ca = sl_priv(sk);

	learned->rtt_min_us = ca->delay_min_us;
	learned->w_max_segments = ca->now.w_max;
	learned->ecn_alpha_1024 = ca->alpha_1024;
	learned->ecn_rounds = ca->alpha_rounds;
	if (tp->snd_ssthresh >= TCP_INFINITE_SSTHRESH)
		learned->flags = SL_LEARNED_SLOW_START;
	learned->own_tag = CUBIC_STATE_TAG;
	learned->own[0] = (u64)ca->now.k_ticks << 32 | ca->now.origin;
	learned->own[1] = (u64)ca->now.w_est << 32 | ca->now.start_ticks;
	learned->own[2] = (u64)ca->flags << 32 | ca->last_ticks;
}

SL_CCA(cubic,
	.ssthresh = SL_HOOK(ssthresh),
	.cong_avoid = SL_HOOK(cong_avoid),
	.set_state = SL_HOOK(set_state),
	.pkts_acked = SL_HOOK(pkts_acked),
	.undo_cwnd = SL_HOOK(undo_cwnd));
