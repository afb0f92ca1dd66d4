/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Explicit congestion notification of a connection, as the kernel keeps it: bits of tcp_sock.ecn_flags (include/net/tcp.h) and the ECN
 * field of IP. Read by the pipeline, by CCAs and, from the records of iterators, by the agent; written by the kernel alone.
 */
#ifndef SLUICE_ABI_ECN_H
#define SLUICE_ABI_ECN_H

enum sl_ecn_flags {
	SL_ECN_OK = 1 << 0,		/* RFC 3168 was negotiated; in SYN_SENT: the SYN asked */
	SL_ECN_QUEUE_CWR = 1 << 1,	/* the window was reduced, for an echo or a loss: CWR goes out with the next data */
	SL_ECN_DEMAND_CWR = 1 << 2,	/* a mark came, this end echoes it until CWR comes */
	SL_ECN_SEEN = 1 << 3,		/* a packet with ECT came */
	SL_ECN_ACCECN = 1 << 4,		/* accurate ECN was negotiated (6.18); never set before */
	SL_ECN_NEGOTIATED = SL_ECN_OK | SL_ECN_ACCECN,
};

#define SL_ECN_FIELD_MASK 3	/* of the TOS byte or the traffic class; 0 = not ECT */

#endif
