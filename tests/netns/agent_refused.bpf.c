// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A CCA that the verifier refuses: it writes a field of the socket that is not a CCA's to write.
 */
#include <sluice/bpf/cca.bpf.h>

struct refused {
	struct sl_core core;
};
SL_PRIVATE(struct refused);

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
	sl_tcp(sk)->mss_cache = 1;
}

SL_UNDO_CWND(sk)
{
	return sl_tcp(sk)->snd_cwnd;
}

SL_CCA(refused,
	.ssthresh = SL_HOOK(ssthresh),
	.cong_avoid = SL_HOOK(cong_avoid),
	.undo_cwnd = SL_HOOK(undo_cwnd));
