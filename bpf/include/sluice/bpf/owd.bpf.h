/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One-way delay for a CCA on the SDK, from whichever producer writes sl_owd. A bundle that includes this declares
 * `{name: sl_owd, schema: sl.owd@1, access: r}` in its shared_maps.
 *
 * To be called at the per-RTT point (one look-up of socket storage: not per ACK). A CCA must do without: there may be no producer, it may
 * have died, and the agent may have replaced the contract under a running CCA.
 */
#ifndef SLUICE_BPF_OWD_H
#define SLUICE_BPF_OWD_H

#include "cca.bpf.h"
#include "owd_map.bpf.h"

struct sl_owd_sample {
	u32 last_us;		/* delay of the data; with SL_OWD_RELATIVE only its excess over the smallest */
	u32 queue_us;		/* what of it was spent in queues */
	u32 age_us;
	u16 flags;		/* enum sl_owd_flags */
};

/* False, and counted why: there is no sample, it is older than age_us_max, or it is of another version of the contract. */
static __always_inline bool sl_owd_read(struct sock *sk, u32 age_us_max, struct sl_owd_sample *sample)
{
	const struct sl_owd *owd;
	u64 time_ns;
	u32 min_us;
	s64 age_ns;

	if (!sl_schema_is(SL_SCHEMA_OWD, SL_SCHEMA_OWD_VERSION)) {
		sl_cca_count(SL_CCA_OWD_SCHEMA);
		return false;
	}
	owd = bpf_sk_storage_get(&sl_owd, sk, NULL, 0);
	time_ns = owd ? READ_ONCE(owd->time_ns) : 0;
	if (!time_ns) {
		sl_cca_count(SL_CCA_OWD_NONE);
		return false;
	}
	if (READ_ONCE(owd->version) != SL_SCHEMA_OWD_VERSION) {
		sl_cca_count(SL_CCA_OWD_SCHEMA);
		return false;
	}
	age_ns = bpf_ktime_get_ns() - time_ns;
	if (age_ns > (s64)age_us_max * 1000) {
		sl_cca_count(SL_CCA_OWD_STALE);
		return false;
	}
	/* The producer may be writing on another CPU: a sample from the future is of now, one below the minimum has not queued. */
	sample->age_us = age_ns > 0 ? (u64)age_ns / 1000 : 0;
	sample->last_us = READ_ONCE(owd->last_us);
	min_us = READ_ONCE(owd->min_us);
	sample->queue_us = sample->last_us > min_us ? sample->last_us - min_us : 0;
	sample->flags = READ_ONCE(owd->flags);
	return true;
}

#endif
