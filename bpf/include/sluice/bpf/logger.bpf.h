/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The logger's hook in a CCA: one record per RTT for the connections that user space selected.
 *
 * Selection costs the data path one bit test on state it already holds (SL_SOCK_LOG of sl_sock, at hand at the per-RTT point).
 * The record is made by sl_log() in cca.bpf.h and handed to sl_log_emit(). Consumer for now: the counter SL_CCA_LOG; the ring
 * buffer to the agent takes its place without a change to any CCA.
 */
#ifndef SLUICE_BPF_LOGGER_H
#define SLUICE_BPF_LOGGER_H

#include "common.bpf.h"

#include <sluice/abi/cca.h>

static __always_inline bool sl_log_wanted(const struct sl_sock *ss)
{
	return ss && (ss->flags & SL_SOCK_LOG);
}

#endif
