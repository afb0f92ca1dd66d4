/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the iterators write: one record a socket, read by the agent from the iterator's descriptor.
 */
#ifndef SLUICE_ABI_REPORT_H
#define SLUICE_ABI_REPORT_H

#include "types.h"
#include "ecn.h"

/* What an iterator did, or would not do, with a socket. */
enum sl_outcome {
	SL_OUTCOME_OBSERVED = 0,
	SL_OUTCOME_MOVED = 1,
	SL_OUTCOME_CURRENT = 3,		/* nothing to do: the right CCA. New parameters it takes itself, at its next RTT */
	SL_OUTCOME_NO_RULE = 4,
	SL_OUTCOME_MPTCP = 5,		/* left alone */
	SL_OUTCOME_SET_FAILED = 6,	/* error holds the errno, e.g. EPERM: locked by a route's congctl */
	SL_OUTCOME_NO_POLICY = 9,	/* no generation published, or it was being replaced, or a schema differs */
	SL_OUTCOME_NO_FALLBACK = 10,	/* the CCA needs ECN, the connection has none, no fallback is named: left alone */
};

/*
 * Who asked for what: value of sl_iter_args (array, one entry per iterator program), written before the iterator starts and not
 * changed until it ends.
 */
enum sl_iter_kind {
	SL_ITER_OBSERVE = 0,
	SL_ITER_MIGRATE = 1,
	SL_ITER_COUNT = 2,
	SL_ITER_FILES = 3,
	SL_ITER_KINDS = 4,
};
enum sl_iter_flags {
	SL_ITER_REPORT_ALL = 1 << 0,	/* migrate: a record for every socket; else only for those that are not as they should be */
	SL_ITER_DRY_RUN = 1 << 1,	/* migrate: outcomes say what would be done; nothing is changed */
};
struct sl_iter_args {
	__u32 flags;		/* enum sl_iter_flags */
	__u32 only_map_id;	/* struct_ops map id; only sockets that run it; 0 = all */
};
SL_ASSERT_SIZE(struct sl_iter_args, 8);

enum sl_report_flags {
	SL_REPORT_ECN_FALLBACK = 1 << 0,	/* its rule's CCA needs ECN, the connection has none: the fallback is what it should run */
	SL_REPORT_LISTENER = 1 << 1,
	SL_REPORT_APPLICATION = 1 << 2,		/* it runs what the application chose, and that is not ours */
};

struct sl_report {
	__u64 cookie;		/* socket cookie; 0 = not generated so far */
	__u64 netns_cookie;
	__u64 cgroup_id;
	__u64 generation;	/* the published one, if it runs what that wants; else 0 */
	__u32 netns_ino;	/* inode number of its network namespace */
	__u32 struct_ops_id;	/* map id of its CCA; 0 = native */
	__u32 place_id;		/* from here to params, and locality and flags: what the published policy says about the socket */
	__u32 service_id;
	__u32 rule_id;
	__u32 params;
	__u32 cwnd_segments;
	__u32 ssthresh_segments;	/* 0x7fffffff = infinite */
	__u32 srtt_us;
	__u32 retransmits;	/* segments, over the connection's life */
	__s32 error;		/* 0 or -errno, with SL_OUTCOME_SET_FAILED */
	__u16 family;		/* AF_INET, AF_INET6 */
	__u16 local_port;	/* host order */
	__u16 remote_port;	/* host order */
	__u8 state;		/* TCP_ESTABLISHED, ... */
	__u8 outcome;		/* enum sl_outcome */
	__u8 locality;		/* enum sl_locality */
	__u8 ecn;		/* enum sl_ecn_flags */
	__u8 flags;		/* enum sl_report_flags */
	__u8 ecn_field;		/* of the last packet it sent, or will send: 0 = not ECT */
	__u8 ecn_echoed;	/* 1 = the peer has echoed a mark */
	__u8 pad[3];
	__u8 local_addr[16];	/* IPv4 as IPv4-mapped IPv6 */
	__u8 remote_addr[16];
	char cca[SL_CCA_NAME_LEN];
};
SL_ASSERT_SIZE(struct sl_report, 144);

/*
 * What sl_iter_files writes: one record per descriptor of a process that is a TCP socket (not a request or time-wait one).
 * Sockets that no process holds (orphans, in flight in a unix socket, io_uring's own) are not found this way.
 */
struct sl_file {
	struct sl_report socket;	/* cookie never 0: equal cookies are one socket held several times */
	__u32 pid;		/* process (thread group) id in the initial pid namespace */
	__u32 fd;
	__u32 ack_backlog;	/* listener: connections that wait for accept, held by nobody */
	__u32 pad;
};
SL_ASSERT_SIZE(struct sl_file, 160);

/* Key and value of sl_usage (hash): sockets counted in the kernel, for hosts with too many of them to list. */
#define SL_USAGE_ENTRIES 65536
struct sl_usage_key {
	__u32 netns_ino;
	__u32 struct_ops_id;	/* 0 = native */
	char cca[SL_CCA_NAME_LEN];
	__u8 locality;
	__u8 listener;		/* 1 = a listening socket */
	__u8 current_generation;	/* 1 = it runs what the published generation wants */
	__u8 pad;
	__u32 rule_id;
};
SL_ASSERT_SIZE(struct sl_usage_key, 32);
struct sl_usage {
	__u64 sockets;
	__u64 cwnd_segments_sum;
	__u64 srtt_us_sum;
	__u64 retransmits_sum;
};
SL_ASSERT_SIZE(struct sl_usage, 32);

#endif
