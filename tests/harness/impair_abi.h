/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What impair.bpf.c and its owner (impairment.h) share: one struct in mapped memory.
 *
 * Writer of config: user space, with enabled = 0 while it writes. Writer of the rest: the program, by atomic adds.
 */
#ifndef SLUICE_TEST_IMPAIR_ABI_H
#define SLUICE_TEST_IMPAIR_ABI_H

/* What happened to a packet: bits of journal[]. */
enum impair_action {
	IMPAIR_CE = 0,		/* marked CE */
	IMPAIR_CE_NOT_ECT,	/* would have been marked but does not carry ECT */
	IMPAIR_DROP,
	IMPAIR_DUPLICATE,
	IMPAIR_CORRUPT,
	IMPAIR_REORDER,		/* held back */
	IMPAIR_REWRITE,		/* its TOS byte was changed */
	IMPAIR_ACTION_COUNT,
};

enum impair_counter {
	IMPAIR_PACKETS = IMPAIR_ACTION_COUNT,	/* packets of the sequence; the actions come first */
	IMPAIR_OTHER,				/* packets left alone: not TCP, UDP or ICMP echo, or of another port */
	IMPAIR_RELEASED,			/* held packets sent on */
	IMPAIR_SEEN_NOT_ECT,			/* ECN field as received, of the packets of the sequence */
	IMPAIR_SEEN_ECT1,
	IMPAIR_SEEN_ECT0,
	IMPAIR_SEEN_CE,
	IMPAIR_HOLD_FULL,			/* not reordered: too long, or no free place */
	IMPAIR_FAILED,				/* a helper refused; the packet was passed or dropped as it was */
	IMPAIR_COUNTER_COUNT,
};

#define IMPAIR_ECN_DROP 255		/* impair_config.ecn: drop packets of the codepoint */
#define IMPAIR_HOLD_MAX 16		/* packets held at a time */
#define IMPAIR_PACKET_MAX 2048		/* bytes; longer ones are not reordered */
#define IMPAIR_JOURNAL_MAX 65536	/* packets of the sequence whose actions are recorded */

struct impair_config {
	__u64 seed;
	__u32 threshold[IMPAIR_ACTION_COUNT];	/* probability * 2^32, at most 2^32 - 1; 0 = never */
	__u32 every[IMPAIR_ACTION_COUNT];	/* act on packets N, 2N, 3N, ...; 0 = off */
	__u64 queue_rate_bytes_per_s;		/* virtual queue; 0 = none */
	__u64 queue_mark_bytes;			/* mark above this backlog; 0 = never */
	__u64 queue_limit_bytes;		/* drop above this backlog; 0 = never */
	__u32 reorder_distance;			/* packets that overtake a held one */
	__u16 port;				/* host order; only TCP and UDP from or to it; 0 = all */
	__u8 drop_ecn_syn;			/* not 0: drop TCP SYNs with ECE and CWR */
	__u8 set_dscp;				/* not 0: write `dscp` */
	__u8 dscp;
	__u8 pad[3];
	__u8 ecn[4];				/* by codepoint as received: what it becomes, or IMPAIR_ECN_DROP */
};

struct impair_shared {
	struct impair_config config;
	__u32 enabled;
	__u32 pad;
	__u64 next;				/* index of the next packet of the sequence, from 0 */
	__u64 counters[IMPAIR_COUNTER_COUNT];
	__u8 journal[IMPAIR_JOURNAL_MAX];
};

#endif
