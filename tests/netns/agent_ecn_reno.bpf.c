// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Reno as a CCA that needs ECN and follows the policy: what the connection state tests select where a rule's CCA may not run on a
 * connection without ECN.
 */
#include <sluice/bpf/cca.bpf.h>

struct ecn_reno {
	struct sl_core core;
};
SL_PRIVATE(struct ecn_reno);

SL_INIT(sk, learned)
{
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

	if (sl_in_slow_start(tp))
		acked = sl_slow_start(tp, acked);
	if (acked)
		sl_additive_increase(tp, tp->snd_cwnd, acked);
}

SL_PKTS_ACKED(sk, sample)
{
	struct sl_core *core = &sl_priv(sk)->core;
	struct sl_round round;

	sl_rtt_sample(core, sample->rtt_us);
	if (!sl_rtt_ended(sk, core))
		return;
	sl_rtt_next(sk, core, &round);
	sl_follow_policy(sk, core, &round);
}

SL_UNDO_CWND(sk)
{
	return max(sl_tcp(sk)->snd_cwnd, sl_tcp(sk)->prior_cwnd);
}

SL_CCA(ecn_reno,
	.flags = SL_NEEDS_ECN,
	.ssthresh = SL_HOOK(ssthresh),
	.cong_avoid = SL_HOOK(cong_avoid),
	.pkts_acked = SL_HOOK(pkts_acked),
	.undo_cwnd = SL_HOOK(undo_cwnd));
