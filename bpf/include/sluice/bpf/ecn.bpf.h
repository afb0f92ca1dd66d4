/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Explicit congestion notification as typed state of a connection: may a CCA that needs ECN run on it?
 *
 * A CCA with TCP_CONG_NEEDS_ECN makes the kernel send ECT whatever was negotiated. Where the peer did not agree, marks are
 * never echoed and the sender is blind: that state is what sl_ecn_negotiated() exists to prevent.
 */
#ifndef SLUICE_BPF_ECN_H
#define SLUICE_BPF_ECN_H

#include "common.bpf.h"

#include <sluice/abi/ecn.h>

/* include/net/tcp.h: tcp_congestion_ops.flags. A CCA without SL_NEEDS_ECN must not rely on marks. */
#define SL_NEEDS_ECN 2

/* True where the peer echoes marks. Valid once the handshake is over, that is in any state but SYN_SENT. */
static __always_inline bool sl_ecn_negotiated(const struct tcp_sock *tp)
{
	return tp->ecn_flags & SL_ECN_NEGOTIATED;
}

/* True where the SYN asked because the CCA that runs needs ECN: whether the peer agrees is decided on when it answers. */
static __always_inline bool sl_ecn_is_asked(const struct tcp_sock *tp)
{
	return ((const struct sock_common *)tp)->skc_state == BPF_TCP_SYN_SENT &&
	       tp->inet_conn.icsk_ca_ops->flags & SL_NEEDS_ECN;
}

/*
 * For the hook ssthresh: does the kernel ask because of a mark? It also asks for losses, for a tail loss probe that repaired a loss, and
 * for a drop in the local queue. A loss has lost_out, a repaired one the probe: `tlp_seq` is tlp_high_seq as of pkts_acked of the
 * same ACK, because the kernel resets it before it asks. A local drop is taken for a mark on a connection with ECN: if it dropped
 * one of ours, that loss comes behind the mark.
 */
static __always_inline bool sl_ecn_is_mark(const struct tcp_sock *tp, u32 tlp_seq)
{
	if (!sl_ecn_negotiated(tp) || tp->lost_out)
		return false;
	return !(tlp_seq && BPF_CORE_READ_BITFIELD(tp, tlp_retrans) && (s32)(tlp_seq - tp->snd_una) < 0);
}

#endif
