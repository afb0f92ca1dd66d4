// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Reno as a CCA that any network namespace may take for its default (TCP_CONG_NON_RESTRICTED): the user of a CCA that no
 * migration can move.
 */
#include <sluice/bpf/cca.bpf.h>

#define NON_RESTRICTED 1	/* include/net/tcp.h */

struct unrestricted {
	struct sl_core core;
};
SL_PRIVATE(struct unrestricted);

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

SL_CCA(unrestricted,
	.flags = NON_RESTRICTED,
	.ssthresh = SL_HOOK(ssthresh),
	.cong_avoid = SL_HOOK(cong_avoid),
	.undo_cwnd = SL_HOOK(undo_cwnd));
