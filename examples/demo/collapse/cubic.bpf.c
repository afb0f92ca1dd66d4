// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A broken CCA, for the demonstration only: version 3.0.0 of cubic, whose window collapses. The first segment and every ACK
 * put the window to window_segments. The verifier accepts it and `sluice bundle lint` finds no error: it is safe for the
 * kernel, and useless on a path. Everything else (identity, policy, hand-over) is the SDK's, so that it can be left like any
 * other CCA.
 */
#include <sluice/bpf/cca.bpf.h>

struct cubic_params {
	u64 sl_present;
	u64 window_segments;
};

SL_PARAMS(struct cubic_params,
	.window_segments = 1);

struct cubic {
	struct sl_core core;
};
SL_PRIVATE(struct cubic);

static __always_inline void collapse(struct sock *sk)
{
	sl_set_cwnd(sl_tcp(sk), sl_param(sl_core_of(sk))->window_segments);
}

SL_INIT(sk, learned)
{
	collapse(sk);
}

/* It learns nothing. */
SL_RELEASE(sk, learned)
{
	if (sl_tcp(sk)->snd_ssthresh >= TCP_INFINITE_SSTHRESH)
		learned->flags = SL_LEARNED_SLOW_START;
}

SL_SSTHRESH(sk)
{
	return sl_tcp(sk)->snd_ssthresh;
}

SL_CONG_AVOID(sk, ack, acked)
{
	collapse(sk);
}

/* The initial window is set after init: it goes when the first segment does. */
SL_CWND_EVENT(sk, event)
{
	if (event == CA_EVENT_TX_START)
		collapse(sk);
}

SL_PKTS_ACKED(sk, sample)
{
	struct cubic *ca = sl_priv(sk);
	struct sl_round round;

	collapse(sk);
	sl_rtt_sample(&ca->core, sample->rtt_us);
	if (!sl_rtt_ended(sk, &ca->core))
		return;
	sl_rtt_next(sk, &ca->core, &round);
	sl_log(sk, &ca->core, &round, 0, 0, 0);
	sl_follow_policy(sk, &ca->core, &round);	/* last: the private state may be another CCA's now */
}

SL_UNDO_CWND(sk)
{
	return sl_tcp(sk)->snd_cwnd;
}

SL_CCA(cubic,
	.ssthresh = SL_HOOK(ssthresh),
	.cong_avoid = SL_HOOK(cong_avoid),
	.cwnd_event = SL_HOOK(cwnd_event),
	.pkts_acked = SL_HOOK(pkts_acked),
	.undo_cwnd = SL_HOOK(undo_cwnd));
