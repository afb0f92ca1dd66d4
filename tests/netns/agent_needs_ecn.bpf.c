// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Reno as a CCA that asks for ECN (TCP_CONG_NEEDS_ECN), so that a connection without it has to run another one.
 */
#include <sluice/bpf/cca.bpf.h>

#define NEEDS_ECN 2	/* include/net/tcp.h */

struct needs_ecn {
	struct sl_core core;
};
SL_PRIVATE(struct needs_ecn);

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

SL_UNDO_CWND(sk)
{
	return max(sl_tcp(sk)->snd_cwnd, sl_tcp(sk)->prior_cwnd);
}

SL_CCA(needs_ecn,
	.flags = NEEDS_ECN,
	.ssthresh = SL_HOOK(ssthresh),
	.cong_avoid = SL_HOOK(cong_avoid),
	.undo_cwnd = SL_HOOK(undo_cwnd));
