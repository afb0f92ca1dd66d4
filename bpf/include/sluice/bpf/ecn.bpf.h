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

/* include/net/tcp.h: tcp_sock.ecn_flags */
#define SL_TCP_ECN_OK (1 << 0)		/* RFC 3168 was negotiated */
#define SL_TCP_ECN_ACCECN (1 << 4)	/* accurate ECN was (6.18); never set before */

/* True where the peer echoes marks. Valid once the handshake is over, that is in any state but SYN_SENT. */
static __always_inline bool sl_ecn_negotiated(const struct tcp_sock *tp)
{
	return tp->ecn_flags & (SL_TCP_ECN_OK | SL_TCP_ECN_ACCECN);
}

#endif
