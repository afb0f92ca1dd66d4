/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a CCA on the SDK shares with the agent: identity, counters, and the logger's record.
 *
 * Parameters: a bundle's object has an array map `sl_params` whose value is a struct of the bundle's own, one __u64 member per
 * parameter of bundle.yaml (found by name through BTF). Entry 0 is the global set; the agent never changes an entry that
 * sockets use: a new value is a new entry and a new generation.
 */
#ifndef SLUICE_ABI_CCA_H
#define SLUICE_ABI_CCA_H

#include "types.h"

#define SL_PARAM_SETS 256

/* Index into a CCA's sl_cca_counters (per-CPU array of u64). A CCA's own counters start at SL_CCA_COUNTER_OWN. */
enum sl_cca_counter {
	SL_CCA_INIT = 0,		/* sockets that started or were moved here */
	SL_CCA_RELEASE,
	SL_CCA_STATE_ADOPTED,		/* learned state was taken over from the CCA before */
	SL_CCA_STATE_REFUSED,		/* it was there, but of another layout or too old */
	SL_CCA_NO_STORAGE,		/* no sl_sock: global parameters used */
	SL_CCA_NO_PARAMS,		/* parameter set missing: built-in defaults used */
	SL_CCA_SELF_MOVED,		/* sockets that left by their own switch */
	SL_CCA_SELF_FAILED,
	SL_CCA_RTT,			/* per-RTT points passed */
	SL_CCA_LOG,			/* per-RTT records offered to the logger */
	SL_CCA_SCHEMA_MISMATCH,
	SL_CCA_COUNTER_OWN = 16,
	SL_CCA_COUNTER_COUNT = 32,
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
	SL_LOG_LOSS = 1 << 0,
	SL_LOG_ECE_ACK = 1 << 1,
	SL_LOG_TX_START = 1 << 2,
	SL_LOG_SSTHRESH = 1 << 3,
};

#endif
