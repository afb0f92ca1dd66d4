/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a CCA on the SDK shares with the agent: identity, parameters, learned state, counters, and the logger's record.
 *
 * Identity. The kernel name, `<name>.<version>` cut to 15 characters, is chosen by the agent before load and written twice: into
 * the initial value of the object's one struct_ops map, and into `sl_self_name` (.rodata), by which the program knows itself.
 * An empty sl_self_name is legal (a CCA loaded by hand): such a CCA knows no policy, and never switches itself.
 *
 * Parameters. The object has an array map `sl_params` of SL_PARAM_SETS entries. Its value is a struct of the bundle's own:
 * first `sl_present`, then one __u64 member per live parameter of bundle.yaml, found by name through BTF. The agent writes
 * sl_present = 1 with an entry; an entry without it was never written, and the program uses its built-in defaults (counted).
 * Entry 0 is the global set. The agent never changes an entry that sockets use: a new value is a new entry and a new generation.
 * A parameter with `when: load` is a `const volatile __u64` of the parameter's name in .rodata instead.
 */
#ifndef SLUICE_ABI_CCA_H
#define SLUICE_ABI_CCA_H

#include "types.h"
#include "policy.h"

#define SL_PARAM_SETS 256

/* Names by which the agent finds things in a CCA's object. */
#define SL_NAME_SELF "sl_self_name"		/* .rodata, char[SL_CCA_NAME_LEN] */
#define SL_NAME_PARAMS "sl_params"		/* array map */
#define SL_NAME_PARAM_PRESENT "sl_present"	/* first member of its value */
#define SL_NAME_COUNTERS "sl_cca_counters"	/* per-CPU array map of __u64 */

/* ca_priv of struct inet_connection_sock: all the private state a CCA has. */
#define SL_CA_PRIV_BYTES 104

/*
 * Learned state, from the .release of a CCA on the SDK to the .init of the next one. The first part every CCA understands; `own`
 * only the CCA that finds its own own_tag there. 0 means "not known" in every field. cwnd and ssthresh are the socket's and
 * need no hand-over.
 */
struct sl_learned {
	__u32 rtt_min_us;	/* smallest RTT seen, the propagation delay as far as known */
	__u32 w_max_segments;	/* cwnd at the last congestion event, before the reduction */
	__u32 ecn_alpha_1024;	/* EWMA of the marked fraction, 1024 = every segment */
	__u32 ecn_rounds;	/* RTTs that alpha was learned from; 0 = alpha says nothing */
	__u32 own_tag;		/* layout of own; 0 = empty */
	__u32 flags;		/* enum sl_learned_flags */
	__u64 own[3];
};
SL_ASSERT_SIZE(struct sl_learned, 48);
enum sl_learned_flags {
	SL_LEARNED_SLOW_START = 1 << 0,	/* it left in its first slow start: an infinite ssthresh is meant */
};

/*
 * Value of sl_handover (per-CPU array of 1): learned state on its way. Release and init are two halves of one TCP_CONGESTION switch, on
 * one CPU unless an application's own setsockopt is preempted between them. Who interrupts writes over it, and then one socket starts
 * without: `owner` is written before the rest and compared after it, on both sides.
 */
#define SL_HANDOVER_MS_MAX 1000	/* older state is refused: it was left to a native CCA */
struct sl_handover {
	__u64 owner;		/* the socket's address; 0 = empty */
	__u64 time_ns;		/* CLOCK_MONOTONIC_COARSE */
	__u32 ports;		/* the socket's port pair: addresses of sockets are used again */
	__u32 pad;
	struct sl_learned learned;
};
SL_ASSERT_SIZE(struct sl_handover, 72);

/* Index into a CCA's sl_cca_counters (per-CPU array of u64). A CCA's own counters start at SL_CCA_COUNTER_OWN. */
enum sl_cca_counter {
	SL_CCA_INIT = 0,		/* sockets that started or were moved here */
	SL_CCA_RELEASE,
	SL_CCA_STATE_ADOPTED,		/* learned state was taken over from the CCA before */
	SL_CCA_STATE_REFUSED,		/* it was there, but too old, or another socket's */
	SL_CCA_STATE_LOST,		/* interrupted again and again while it was written: nothing handed over */
	SL_CCA_NO_PARAMS,		/* parameter set missing: built-in defaults used */
	SL_CCA_SELF_MOVED,		/* sockets that left by their own switch */
	SL_CCA_SELF_FAILED,		/* the switch was refused; the socket stays, the iterator will find it */
	SL_CCA_RTT,			/* per-RTT points passed */
	SL_CCA_LOG,			/* per-RTT records offered to the logger */
	SL_CCA_SCHEMA_MISMATCH,		/* sl_handover has another version: nothing is handed over, no policy is followed */
	SL_CCA_RESCOPED,		/* a new generation chose the same CCA: place and parameters refreshed */
	SL_CCA_ECN_FALLBACK,		/* the new generation's CCA needs ECN, the connection has none: fallback taken */
	SL_CCA_NO_VERDICT,		/* the policy had no rule for the socket, or changed underway; asked again next RTT */
	SL_CCA_OWD_NONE,		/* no one-way delay: no producer, or it has no sample of this connection yet */
	SL_CCA_OWD_STALE,		/* the last sample is too old: the producer is gone, or sees nothing of this connection */
	SL_CCA_OWD_SCHEMA,		/* sl_owd, or the sample in it, has another version: done without */
	SL_CCA_COUNTER_OWN = 24,
	SL_CCA_COUNTER_COUNT = 40,
};

/* One record per RTT per selected connection (fields: at least those of the CCALogger). */
struct sl_log_record {
	__u64 cookie;
	__u64 time_ns;		/* CLOCK_MONOTONIC */
	__u32 struct_ops_id;	/* filled by the consumer where the program cannot know it; 0 = unknown */
	__u32 cwnd_segments;
	__u32 ssthresh_segments;
	__u32 srtt_us;
	__u32 rtt_min_us;	/* of this RTT */
	__u32 delivered;	/* segments delivered in this RTT */
	__u32 delivered_ce;	/* of them, marked */
	__u32 ecn_alpha_1024;	/* CCA's own estimate, 1024 = every segment marked */
	__u32 flags;		/* enum sl_log_flags */
	__u32 pad;
	__u64 own[2];		/* the CCA's own words; its README names them */
};
SL_ASSERT_SIZE(struct sl_log_record, 72);
enum sl_log_flags {
	SL_LOG_LOSS = 1 << 0,		/* a segment was marked lost in this RTT */
	SL_LOG_ECE_ACK = 1 << 1,	/* a segment delivered in this RTT was reported as marked */
	SL_LOG_TX_START = 1 << 2,	/* the RTT began with nothing in flight */
	SL_LOG_SSTHRESH = 1 << 3,	/* the hook ssthresh ran in this RTT */
};

#endif
