/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The shared maps (their values: sluice/abi/policy.h). One definition, included by bundle `policy` and by every CCA, because a
 * map is shared by handing its descriptor to the next object (bpf_map__reuse_fd): name, type, sizes and flags have to agree.
 *
 * The agent creates them once, from bundle `policy`, and pins them. All of them stay for as long as anything of ours runs.
 *
 * Outer maps hold one inner map per generation slot. The kernel compares type, key and value size and flags of an inner map
 * with the prototype given here, not max_entries: the agent sizes each generation's tables to its contents.
 */
#ifndef SLUICE_BPF_MAPS_H
#define SLUICE_BPF_MAPS_H

#include "common.bpf.h"

#include <sluice/abi/cca.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_config);
} sl_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SL_SLOTS);
	__type(key, __u32);
	__type(value, struct sl_generation);
} sl_generations SEC(".maps");

/*
 * Makes clang write the tables' keys and values into BTF: it follows pointers in the definition of a map, but not in that of a
 * map's inner map, and libbpf then finds a forward declaration where it needs a size. Never read.
 */
const struct {
	struct sl_prefix prefix;
	struct sl_place place;
	struct sl_service_key service_key;
	struct sl_rule_key rule_key;
	struct sl_verdict verdict;
} sl_table_types = {};

struct sl_places_table {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct sl_prefix);
	__type(value, struct sl_place);
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SL_SLOTS);
	__type(key, __u32);
	__array(values, struct sl_places_table);
} sl_places SEC(".maps");

struct sl_sources_table {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct sl_prefix);
	__type(value, sl_service_id);
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SL_SLOTS);
	__type(key, __u32);
	__array(values, struct sl_sources_table);
} sl_sources SEC(".maps");

struct sl_services_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct sl_service_key);
	__type(value, sl_service_id);
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SL_SLOTS);
	__type(key, __u32);
	__array(values, struct sl_services_table);
} sl_services SEC(".maps");

struct sl_rules_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct sl_rule_key);
	__type(value, struct sl_verdict);
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SL_SLOTS);
	__type(key, __u32);
	__array(values, struct sl_rules_table);
} sl_rules SEC(".maps");

/* No BPF_F_CLONE: a child never starts with what was noted about its listener. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sl_sock);
} sl_sock SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_handover);
} sl_handover SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SL_SCHEMA_COUNT);
	__type(key, __u32);
	__type(value, struct sl_schema_entry);
} sl_schemas SEC(".maps");

/*
 * TCP_CONGESTION name -> id of the struct_ops map registered under it now. Written by the agent when it registers or replaces a
 * bundle's CCA; no entry = not ours (native), told by its name alone. Same-name replacements are seen through it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SL_CCA_IDS);
	__type(key, struct sl_cca_name);
	__type(value, __u32);
} sl_cca_ids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SL_POLICY_COUNTER_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} sl_policy_counters SEC(".maps");

static __always_inline void sl_count(enum sl_policy_counter which)
{
	__u32 key = which;
	__u64 *value = bpf_map_lookup_elem(&sl_policy_counters, &key);

	if (value)	/* per-CPU, but a softirq may interrupt a process context program */
		__sync_fetch_and_add(value, 1);
}

#endif
