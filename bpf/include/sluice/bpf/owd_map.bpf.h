/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The shared map sl_owd (sluice/abi/owd.h), apart from the others so that only those depend on its layout who use it: bundle `policy`,
 * from which the agent creates it, and CCAs that read one-way delays (owd.bpf.h).
 */
#ifndef SLUICE_BPF_OWD_MAP_H
#define SLUICE_BPF_OWD_MAP_H

#include "common.bpf.h"

#include <sluice/abi/owd.h>

/* No BPF_F_CLONE: what was measured on a listener says nothing about its children. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sl_owd);
} sl_owd SEC(".maps");

#endif
