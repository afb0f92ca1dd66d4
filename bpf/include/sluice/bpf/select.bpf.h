/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which CCA should a socket run? The one implementation of the selection pipeline, for sockops programs, iterators and CCAs.
 *
 *   1. Read the published generation once; its tables are in slot generation % SL_SLOTS.
 *   2. Place: longest prefix of the remote address in sl_places. A miss is the unknown place, class 0.
 *   3. Service: the smallest of what the local address (sl_sources), the local port and the cgroup with its ancestors
 *      (sl_services) say. 0 = none.
 *   4. Verdict: sl_rules[{service, place class}].
 *   5. Read the slot's generation again. If it moved, nothing of the above counts: once more from 1, then leave.
 *
 * Steps 2 and 3 are skipped where the caller has their result already, of this generation (in sockops, one stage for the next).
 * Nothing is remembered on the socket: all of it costs some 60 ns, less than the storage it would be found in.
 *
 * `sk` is a struct sock or what contains one, as a pointer that the verifier knows: in sockops bpf_skc_to_tcp_sock(), in
 * struct_ops the argument, in iterators bpf_skc_to_tcp_sock(ctx->sk_common).
 */
#ifndef SLUICE_BPF_SELECT_H
#define SLUICE_BPF_SELECT_H

#include "ecn.bpf.h"
#include "maps.bpf.h"

#define SL_CGROUP_LEVELS 16

enum sl_select_result {
	SL_SELECT_OK = 0,
	SL_SELECT_NO_RULE,	/* place and service are valid, verdict is not */
	SL_SELECT_NO_GENERATION,
	SL_SELECT_TORN,
	SL_SELECT_SCHEMA,
};

struct sl_selection {
	__u64 generation;
	const struct sl_verdict *verdict;	/* set with SL_SELECT_OK; valid for this program run */
	struct sl_place place;
	__u32 service_id;
	__u32 pad;
};

/* What selection looks at. */
struct sl_endpoints {
	struct sl_prefix remote;
	struct sl_prefix local;
	__u32 local_port;
	const struct sock *holder;	/* whose cgroup counts; NULL = unknown */
};

/* The published generation; 0 = none. One load: cheap enough for every ACK. */
static __always_inline __u64 sl_generation_now(void)
{
	__u32 zero = 0;
	struct sl_config *config = bpf_map_lookup_elem(&sl_config, &zero);

	return config ? READ_ONCE(config->generation) : 0;
}

/* The entry of generation `generation`; NULL while its slot holds another one. */
static __always_inline struct sl_generation *sl_generation_entry(__u64 generation)
{
	__u32 slot = generation % SL_SLOTS;
	struct sl_generation *entry = bpf_map_lookup_elem(&sl_generations, &slot);

	return entry && READ_ONCE(entry->generation) == generation ? entry : NULL;
}

static __always_inline bool sl_schema_is(enum sl_schema which, __u32 version)
{
	__u32 key = which;
	struct sl_schema_entry *entry = bpf_map_lookup_elem(&sl_schemas, &key);

	return entry && entry->version == version;
}

static __always_inline struct sl_sock *sl_storage(void *sk)
{
	return bpf_sk_storage_get(&sl_sock, sk, NULL, 0);
}

static __always_inline void sl_host_v4(struct sl_prefix *prefix, __be32 addr)
{
	__u32 mapped = bpf_htonl(0xffff);

	prefix->prefix_len = 128;
	__builtin_memset(prefix->addr, 0, 8);
	__builtin_memcpy(prefix->addr + 8, &mapped, 4);
	__builtin_memcpy(prefix->addr + 12, &addr, 4);
}

static __always_inline void sl_host_v6(struct sl_prefix *prefix, __u32 a, __u32 b, __u32 c, __u32 d)
{
	prefix->prefix_len = 128;
	__builtin_memcpy(prefix->addr, &a, 4);
	__builtin_memcpy(prefix->addr + 4, &b, 4);
	__builtin_memcpy(prefix->addr + 8, &c, 4);
	__builtin_memcpy(prefix->addr + 12, &d, 4);
}

static __always_inline void sl_host_in6(struct sl_prefix *prefix, const struct in6_addr *addr)
{
	sl_host_v6(prefix, addr->in6_u.u6_addr32[0], addr->in6_u.u6_addr32[1], addr->in6_u.u6_addr32[2],
		   addr->in6_u.u6_addr32[3]);
}

/* Addresses of a full or a request socket, without the cgroup. */
static __always_inline void sl_addresses(const struct sock_common *skc, struct sl_endpoints *e)
{
	if (skc->skc_family == AF_INET6) {
		sl_host_in6(&e->remote, &skc->skc_v6_daddr);
		sl_host_in6(&e->local, &skc->skc_v6_rcv_saddr);
	} else {
		sl_host_v4(&e->remote, skc->skc_daddr);
		sl_host_v4(&e->local, skc->skc_rcv_saddr);
	}
	e->local_port = skc->skc_num;
}

static __always_inline const struct kernfs_node *sl_cgroup_of(const struct sock *sk)
{
	return sk->sk_cgrp_data.cgroup->kn;
}

/* kernfs_node.parent became __parent in 6.15. */
struct kernfs_node___before_6_15 {
	struct kernfs_node *parent;
} __attribute__((preserve_access_index));

static __always_inline const struct kernfs_node *sl_cgroup_parent(const struct kernfs_node *node)
{
	if (bpf_core_field_exists(node->__parent))
		return node->__parent;
	return ((const struct kernfs_node___before_6_15 *)node)->parent;
}

static __always_inline __u32 sl_earlier(__u32 a, const sl_service_id *b)
{
	return b && *b && (!a || *b < a) ? *b : a;
}

/* One level of the walk from a socket's cgroup to the root. bpf_loop(), because the verifier would follow each of 16 rounds. */
struct sl_cgroup_walk {
	const struct kernfs_node *node;
	void *table;
	__u32 service;
};
static long sl_cgroup_level(__u32 level, struct sl_cgroup_walk *walk)
{
	struct sl_service_key key = { .kind = SL_SERVICE_CGROUP };

	if (!walk->node)
		return 1;
	key.id = walk->node->id;
	walk->service = sl_earlier(walk->service, bpf_map_lookup_elem(walk->table, &key));
	walk->node = sl_cgroup_parent(walk->node);
	return 0;
}

/* Steps 2 and 3. */
SL_SUBPROG int sl_resolve(const struct sl_endpoints *e, __u32 slot, __u32 flags, struct sl_selection *out)
{
	struct sl_service_key key = {};
	struct sl_place *place;
	__u32 service = 0;
	void *table;

	__builtin_memset(&out->place, 0, sizeof(out->place));
	table = bpf_map_lookup_elem(&sl_places, &slot);
	if (table) {
		place = bpf_map_lookup_elem(table, &e->remote);
		if (place)
			out->place = *place;
	}

	if (flags & SL_GEN_SOURCES) {
		table = bpf_map_lookup_elem(&sl_sources, &slot);
		if (table)
			service = sl_earlier(service, bpf_map_lookup_elem(table, &e->local));
	}
	if (flags & (SL_GEN_PORTS | SL_GEN_CGROUPS)) {
		table = bpf_map_lookup_elem(&sl_services, &slot);
		if (table && (flags & SL_GEN_PORTS)) {
			key.kind = SL_SERVICE_PORT;
			key.id = e->local_port;
			service = sl_earlier(service, bpf_map_lookup_elem(table, &key));
		}
		if (table && (flags & SL_GEN_CGROUPS)) {
			struct sl_cgroup_walk walk = { .table = table, .service = service };

			if (e->holder)
				walk.node = sl_cgroup_of(e->holder);
			bpf_loop(SL_CGROUP_LEVELS, sl_cgroup_level, &walk, 0);
			service = walk.service;
			if (walk.node)
				sl_count(SL_POLICY_CGROUP_DEEP);
		}
	}
	out->service_id = service;
	return 0;
}

/* The schema, then step 1. */
static __always_inline int sl_begin(struct sl_selection *out, struct sl_generation **entry)
{
	*entry = NULL;
	out->verdict = NULL;
	if (!sl_schema_is(SL_SCHEMA_POLICY, SL_SCHEMA_POLICY_VERSION))
		return SL_SELECT_SCHEMA;
	out->generation = sl_generation_now();
	if (!out->generation)
		return SL_SELECT_NO_GENERATION;
	*entry = sl_generation_entry(out->generation);
	return *entry ? SL_SELECT_OK : SL_SELECT_TORN;
}

/* Step 5: true if all that was read since sl_begin() is of one generation. */
static __always_inline bool sl_consistent(const struct sl_selection *sel, const struct sl_generation *entry)
{
	sl_read_barrier();
	return READ_ONCE(entry->generation) == sel->generation;
}

static __always_inline bool sl_scope_is_current(const struct sl_selection *scope, const struct sl_selection *sel)
{
	return scope && scope->generation == sel->generation;
}

/* Steps 1 to 5. `scope` as in sl_select(); `with_rule` false leaves step 4 out. */
static __always_inline int sl_select_endpoints(const struct sl_endpoints *e, const struct sl_selection *scope,
					       struct sl_selection *out, bool with_rule)
{
	struct sl_generation *entry;
	struct sl_rule_key key;
	__u32 slot;
	void *rules;
	int attempt, result = SL_SELECT_TORN;

	for (attempt = 0; attempt < 2; attempt++) {
		result = sl_begin(out, &entry);
		if (result == SL_SELECT_TORN)
			continue;
		if (result != SL_SELECT_OK || !entry)
			return result;
		slot = out->generation % SL_SLOTS;

		if (sl_scope_is_current(scope, out)) {
			out->place = scope->place;
			out->service_id = scope->service_id;
		} else {
			sl_resolve(e, slot, entry->flags, out);
		}
		if (with_rule) {
			key.service_id = out->service_id;
			key.place_class = out->place.place_class;
			rules = bpf_map_lookup_elem(&sl_rules, &slot);
			out->verdict = rules ? bpf_map_lookup_elem(rules, &key) : NULL;
		}
		if (sl_consistent(out, entry))
			return with_rule && !out->verdict ? SL_SELECT_NO_RULE : SL_SELECT_OK;
		out->verdict = NULL;
		result = SL_SELECT_TORN;
	}
	return result;
}

static __always_inline void sl_endpoints_of(const struct sock *sk, struct sl_endpoints *e)
{
	sl_addresses(&sk->__sk_common, e);
	e->holder = sk;
}

/* The whole pipeline for a full socket. `scope`: of sl_select_scope() for it, or NULL. With SL_SELECT_OK, verdict is set. */
SL_SUBPROG int sl_select(struct sock *sk, const struct sl_selection *scope, struct sl_selection *out)
{
	struct sl_endpoints e;

	sl_endpoints_of(sk, &e);
	return sl_select_endpoints(&e, scope, out, true);
}

/* Place and service only: verdict stays NULL. */
SL_SUBPROG int sl_select_scope(struct sock *sk, struct sl_selection *out)
{
	struct sl_endpoints e;

	sl_endpoints_of(sk, &e);
	return sl_select_endpoints(&e, NULL, out, false);
}

/* For a request socket (no full socket, no storage): the caller says the addresses and the listener's cgroup. */
SL_SUBPROG int sl_select_remote(const struct sl_endpoints *e, struct sl_selection *out)
{
	return sl_select_endpoints(e, NULL, out, true);
}

/* Bumps the counter of a result that leaves the socket alone. */
static __always_inline void sl_count_result(int result)
{
	switch (result) {
	case SL_SELECT_NO_RULE:
		sl_count(SL_POLICY_NO_RULE);
		break;
	case SL_SELECT_NO_GENERATION:
		sl_count(SL_POLICY_NO_GENERATION);
		break;
	case SL_SELECT_TORN:
		sl_count(SL_POLICY_TORN);
		break;
	case SL_SELECT_SCHEMA:
		sl_count(SL_POLICY_SCHEMA_MISMATCH);
		break;
	}
}

/* What to run, and what to remember of it. */
struct sl_choice {
	const char *cca;	/* SL_CCA_NAME_LEN bytes; NULL = needs ECN, has none, and no fallback is named */
	__u32 params;
	__u32 rule_id;
	bool ecn_fallback;	/* the fallback was taken */
	bool application;	/* it is the application's, and stays */
};

/*
 * What the verdict means for this connection now. `connecting`: before its SYN, which then asks for ECN; ESTABLISHED_CB decides anew.
 * Later in SYN_SENT a CCA that needs ECN follows only another one: who walks sockets cannot know that ESTABLISHED_CB will come by.
 */
static __always_inline void sl_choose(const struct sl_verdict *verdict, const struct tcp_sock *tp, bool connecting,
				      struct sl_choice *choice)
{
	choice->cca = verdict->cca;
	choice->params = verdict->params;
	choice->rule_id = verdict->rule_id;
	choice->ecn_fallback = false;
	choice->application = false;
	if (!(verdict->flags & SL_VERDICT_NEEDS_ECN) || connecting || sl_ecn_is_asked(tp))
		return;
	if (((const struct sock_common *)tp)->skc_state != BPF_TCP_SYN_SENT && sl_ecn_negotiated(tp))
		return;
	choice->cca = verdict->fallback[0] ? verdict->fallback : NULL;
	choice->params = verdict->fallback_params;
	choice->ecn_fallback = true;
}

/* Sets a CCA by name (16 bytes). `target`: the context in sockops, the socket elsewhere. 0 or -errno. */
static __always_inline int sl_set_cca(void *target, const char *cca)
{
	return bpf_setsockopt(target, SOL_TCP, TCP_CONGESTION, (void *)cca, SL_CCA_NAME_LEN);
}

#endif
