/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One-way delay of a TCP connection's data, measured by a program outside Sluice (a *producer*): the value of the shared map sl_owd
 * (BPF_MAP_TYPE_SK_STORAGE). Contract sl.owd@1; what it asks of a producer is in docs/shared-maps.md.
 *
 * Way. From this socket to its peer: that of the data which it sends. What delays only acknowledgements is not in it.
 *
 * Origin. A producer with synchronised clocks writes the delay itself. One without them cannot know it: it subtracts the smallest it
 * has seen and says SL_OWD_RELATIVE. last_us - min_us is the time spent in queues in either case.
 *
 * Writer: one producer per socket. Readers: CCAs, at their per-RTT point (sluice/bpf/owd.bpf.h). Each field is one aligned store and
 * load; time_ns is stored last. A reader on another CPU may see last_us of one sample beside min_us of the one before it.
 *
 * Sluice never creates an element. Without a producer a socket has none, and the map costs nothing.
 */
#ifndef SLUICE_ABI_OWD_H
#define SLUICE_ABI_OWD_H

#include "policy.h"

#define SL_SCHEMA_OWD_NAME "sl.owd"
#define SL_SCHEMA_OWD_VERSION 1
/* sl_schema_entry.btf_hash of struct sl_owd, for producers that do not compute it themselves. tests/bpf/owd_test.cpp holds it true. */
#define SL_SCHEMA_OWD_HASH 0x64a4554956e89d6aULL

enum sl_owd_flags {
	SL_OWD_RELATIVE = 1 << 0,	/* the smallest delay is subtracted: min_us is 0, the delay itself unknown */
};

struct sl_owd {
	__u64 time_ns;	/* CLOCK_MONOTONIC, when the last sample was taken; 0 = none so far */
	__u32 last_us;	/* the last sample */
	__u32 min_us;	/* the smallest sample of this connection */
	__u32 count;	/* samples of this connection; wraps */
	__u16 version;	/* SL_SCHEMA_OWD_VERSION of the producer: values outlive a contract that is replaced; 0 = none so far */
	__u16 flags;	/* enum sl_owd_flags */
};
SL_ASSERT_SIZE(struct sl_owd, 24);

#endif
