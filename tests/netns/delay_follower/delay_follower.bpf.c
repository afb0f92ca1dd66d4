// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * delay_follower: a consumer of sl_owd that tests can judge exactly. Once per RTT, with a sample not older than two RTTs,
 *
 *	cwnd = WINDOW * TARGET / (TARGET + queueing delay)
 *
 * so that a window says which delay it was made from (`queue_units`, right behind sl_core, where tests find it). Without a
 * sample it is Reno from the window it has.
 */
#include <sluice/bpf/cca.bpf.h>
#include <sluice/bpf/owd.bpf.h>

#define WINDOW_SEGMENTS 64
#define TARGET_US 20000
#define NO_SAMPLE 0xffff

struct follower {
	struct sl_core core;
	u16 queue_units;	/* of 64 us, what the window was made from; NO_SAMPLE = Reno */
};
SL_PRIVATE(struct follower);

SL_INIT(sk, learned)
{
	sl_priv(sk)->queue_units = NO_SAMPLE;
	sl_tcp(sk)->snd_ssthresh = min(sl_tcp(sk)->snd_ssthresh, WINDOW_SEGMENTS);
}

SL_RELEASE(sk, learned)
{
}

SL_SSTHRESH(sk)
{
	return max(sl_tcp(sk)->snd_cwnd / 2, 2U);
}

SL_CONG_AVOID(sk, ack, acked)
{
	struct tcp_sock *tp = sl_tcp(sk);

	if (sl_priv(sk)->queue_units != NO_SAMPLE || !sl_cwnd_limited(tp))
		return;
	if (sl_in_slow_start(tp))
		acked = sl_slow_start(tp, acked);
	if (acked)
		sl_additive_increase(tp, tp->snd_cwnd, acked);
}

SL_PKTS_ACKED(sk, sample)
{
	struct tcp_sock *tp = sl_tcp(sk);
	struct follower *ca = sl_priv(sk);
	struct sl_owd_sample owd;
	struct sl_round round;

	sl_rtt_sample(&ca->core, sample->rtt_us);
	if (!sl_rtt_ended(sk, &ca->core))
		return;
	sl_rtt_next(sk, &ca->core, &round);
	if (sl_owd_read(sk, 2 * (tp->srtt_us >> 3), &owd)) {
		ca->queue_units = min(owd.queue_us / 64, NO_SAMPLE - 1U);
		tp->snd_ssthresh = 2;
		sl_set_cwnd(tp, max(WINDOW_SEGMENTS * TARGET_US / (TARGET_US + 64U * ca->queue_units), 2U));
	} else {
		ca->queue_units = NO_SAMPLE;
	}
	sl_follow_policy(sk, &ca->core, &round);	/* last: the private state may be another CCA's now */
}

SL_UNDO_CWND(sk)
{
	return max(sl_tcp(sk)->snd_cwnd, sl_tcp(sk)->prior_cwnd);
}

SL_CCA(follower,
	.ssthresh = SL_HOOK(ssthresh),
	.cong_avoid = SL_HOOK(cong_avoid),
	.pkts_acked = SL_HOOK(pkts_acked),
	.undo_cwnd = SL_HOOK(undo_cwnd));
