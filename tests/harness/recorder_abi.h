/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What recorder.bpf.c writes for each TCP socket and recorder.cpp reads. */
#ifndef SLUICE_TEST_RECORDER_ABI_H
#define SLUICE_TEST_RECORDER_ABI_H

struct recorder_record {
	__u64 cookie;		/* 0 for TIME_WAIT and request sockets */
	__u64 cgroup_id;	/* cgroup2 id of the socket; 0 = none */
	__u8 local[16];		/* network order; IPv4 as IPv4-mapped IPv6 */
	__u8 remote[16];
	__u16 local_port;	/* host order */
	__u16 remote_port;
	__u8 state;		/* TCP_ESTABLISHED, ... */
	__u8 family;
	__u8 ecn_flags;		/* TCP_ECN_OK = 1, TCP_ECN_SEEN = 8, ... of include/net/tcp.h */
	__u8 full;		/* a full socket: what follows is known */
	__u32 struct_ops_id;	/* map id of the CCA; 0 = the CCA is native */
	__u32 cwnd_segments;
	__u32 ssthresh_segments;
	__u32 srtt_us;
	__u32 delivered;
	__u32 delivered_ce;
	char cca[16];		/* name in icsk_ca_ops */
};

#endif
