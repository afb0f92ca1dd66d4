/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a socket runs, what the policy says it should, and the record of both: for the iterators of bundle `policy`.
 */
#ifndef SLUICE_POLICY_REPORT_BPF_H
#define SLUICE_POLICY_REPORT_BPF_H

#include <sluice/bpf/select.bpf.h>

#include <sluice/abi/report.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SL_ITER_KINDS);
	__type(key, __u32);
	__type(value, struct sl_iter_args);
} sl_iter_args SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct sl_application);
} sl_application SEC(".maps");

/* include/linux/bpf.h, with POISON_POINTER_DELTA of the 64-bit architectures. */
#define BPF_MODULE_OWNER 0xdead00000003ae7cULL

/* A CCA's name as two words: compared and copied without a loop. */
struct cca_words {
	__u64 word[2];
};

static __always_inline struct cca_words name_of(const struct tcp_congestion_ops *ca)
{
	return (struct cca_words){ { *(const __u64 *)&ca->name[0], *(const __u64 *)&ca->name[8] } };
}

static __always_inline struct cca_words words_of(const char *name)
{
	struct cca_words words;

	__builtin_memcpy(&words, name, sizeof(words));
	return words;
}

/* The struct_ops map that a CCA lives in; 0 = native. The operations are the map's value, so the map is around them. */
static __always_inline __u32 struct_ops_id(const struct tcp_congestion_ops *ca)
{
	__u64 map = (__u64)ca;
	__u32 id = 0;

	if ((__u64)ca->owner != BPF_MODULE_OWNER)
		return 0;
	map -= bpf_core_field_offset(struct bpf_struct_ops_map, kvalue);
	map -= bpf_core_field_offset(struct bpf_struct_ops_value, data);
	bpf_probe_read_kernel(&id, sizeof(id), (void *)(map + bpf_core_field_offset(struct bpf_struct_ops_map, map.id)));
	return id;
}

static __always_inline struct sl_iter_args iter_args(enum sl_iter_kind kind)
{
	__u32 key = kind;
	struct sl_iter_args *args = bpf_map_lookup_elem(&sl_iter_args, &key);

	return args ? *args : (struct sl_iter_args){};
}

static __always_inline bool is_called(const struct tcp_congestion_ops *ca, const char *name)
{
	struct cca_words now = name_of(ca), want = words_of(name);

	return now.word[0] == want.word[0] && now.word[1] == want.word[1];
}

/* Is this the CCA that is registered as `wanted` now? Names alone cannot tell a replaced version from its successor. */
static __always_inline bool runs(const struct tcp_congestion_ops *ca, const char *wanted)
{
	struct cca_words want = words_of(wanted);
	__u32 *id;

	if (!is_called(ca, wanted))
		return false;
	id = bpf_map_lookup_elem(&sl_cca_ids, &want);
	return struct_ops_id(ca) == (id ? *id : 0);
}

/* What the application chose, if the socket runs it and it is not ours: versions of ours come and go as the policy says. */
static __always_inline const char *application_choice(struct tcp_sock *tp)
{
	struct sl_application *noted = bpf_sk_storage_get(&sl_application, tp, NULL, 0);

	if (!noted || !is_called(tp->inet_conn.icsk_ca_ops, noted->cca) || bpf_map_lookup_elem(&sl_cca_ids, noted->cca))
		return NULL;
	return noted->cca;
}

static __noinline bool is_applications(struct tcp_sock *tp)
{
	return application_choice(tp) != NULL;
}

static __noinline int respect_application(struct tcp_sock *tp, struct sl_choice *choice)
{
	const char *cca = application_choice(tp);

	if (!cca)
		return 0;
	choice->cca = cca;
	choice->params = 0;
	choice->ecn_fallback = false;
	choice->application = true;
	return 0;
}

/* What a listener gets: `cca` is a copy, since the entry may be written anew meanwhile. */
struct listener_choice {
	char cca[SL_CCA_NAME_LEN];
};

static __always_inline int choose_listener(struct tcp_sock *tp, struct listener_choice *copy, struct sl_selection *sel,
					   struct sl_choice *choice)
{
	struct sl_generation *entry;
	int result = sl_begin(sel, &entry);

	if (result != SL_SELECT_OK || !entry)
		return result;
	__builtin_memcpy(copy->cca, entry->listener_cca, sizeof(copy->cca));
	choice->params = entry->listener_params;
	choice->cca = copy->cca[0] ? copy->cca : NULL;
	if (entry->flags & SL_GEN_RESPECT)
		respect_application(tp, choice);
	return sl_consistent(sel, entry) ? SL_SELECT_OK : SL_SELECT_TORN;
}

static __always_inline bool is_listener(const struct tcp_sock *tp)
{
	return ((const struct sock_common *)tp)->skc_state == BPF_TCP_LISTEN;
}

static __always_inline void choose_connection(struct tcp_sock *tp, const struct sl_verdict *verdict, bool connecting,
					      struct sl_choice *choice)
{
	sl_choose(verdict, tp, connecting, choice);
	if (verdict->flags & SL_VERDICT_RESPECT)
		respect_application(tp, choice);
}

/* What the published policy says about a socket, in whatever state; enum sl_select_result. The choice is empty at the start, and without a CCA where there is none. */
static __always_inline int choose(struct tcp_sock *tp, struct listener_choice *copy, struct sl_selection *sel,
				  struct sl_choice *choice)
{
	int result;

	if (is_listener(tp))
		return choose_listener(tp, copy, sel, choice);
	result = sl_select((struct sock *)tp, NULL, sel);
	if (result == SL_SELECT_OK && sel->verdict)
		choose_connection(tp, sel->verdict, false, choice);
	return result;
}

/* What the published policy says about a socket. */
struct decision {
	__u64 generation;	/* 0 = none, or the socket does not run what it wants */
	__u32 place_id;
	__u32 service_id;
	__u32 rule_id;
	__u32 params;
	__u8 locality;
	__u8 flags;		/* enum sl_report_flags */
};

/* `sel` and `choice` as choose() left them. */
static __always_inline void make_decision(struct decision *d, const struct tcp_sock *tp, const struct sl_selection *sel,
					  const struct sl_choice *choice)
{
	if (is_listener(tp))
		d->flags |= SL_REPORT_LISTENER;
	if (!choice->cca)
		return;
	d->place_id = sel->place.place_id;
	d->service_id = sel->service_id;
	d->locality = sel->place.locality;
	d->rule_id = choice->rule_id;
	d->params = choice->params;
	if (choice->ecn_fallback)
		d->flags |= SL_REPORT_ECN_FALLBACK;
	if (runs(tp->inet_conn.icsk_ca_ops, choice->cca))
		d->generation = sel->generation;
}

/* Its own frame, gone before the record is made: a program has 512 bytes of stack in all. */
static __noinline int decision_of(struct tcp_sock *tp, struct decision *d)
{
	struct listener_choice copy;
	struct sl_selection sel = {};
	struct sl_choice choice = {};

	if (choose(tp, &copy, &sel, &choice) != SL_SELECT_OK)
		choice.cca = NULL;
	make_decision(d, tp, &sel, &choice);
	return 0;
}

static __always_inline void fill_report(struct sl_report *r, struct tcp_sock *tp, const struct decision *d)
{
	const struct sock *sk = (const struct sock *)tp;
	const struct sock_common *skc = (const struct sock_common *)tp;
	const struct tcp_congestion_ops *ca = tp->inet_conn.icsk_ca_ops;
	const struct kernfs_node *cgroup = sl_cgroup_of(sk);
	struct sl_endpoints e;
	struct cca_words name = name_of(ca);

	sl_addresses(skc, &e);
	__builtin_memcpy(r->local_addr, e.local.addr, sizeof(r->local_addr));
	__builtin_memcpy(r->remote_addr, e.remote.addr, sizeof(r->remote_addr));
	r->local_port = e.local_port;
	r->remote_port = bpf_ntohs(skc->skc_dport);
	r->family = skc->skc_family;
	r->state = skc->skc_state;
	r->cookie = skc->skc_cookie.counter;
	r->netns_cookie = skc->skc_net.net->net_cookie;
	r->netns_ino = skc->skc_net.net->ns.inum;
	r->cgroup_id = cgroup ? cgroup->id : 0;
	r->struct_ops_id = struct_ops_id(ca);
	__builtin_memcpy(r->cca, &name, sizeof(r->cca));
	r->cwnd_segments = tp->snd_cwnd;
	r->ssthresh_segments = tp->snd_ssthresh;
	r->srtt_us = tp->srtt_us >> 3;
	r->retransmits = tp->total_retrans;
	r->ecn = tp->ecn_flags;
	r->ecn_field = tp->inet_conn.icsk_inet.tos & SL_ECN_FIELD_MASK;	/* of IPv6 too: INET_ECN_xmit() */
	r->ecn_echoed = tp->delivered_ce != 0;
	r->generation = d->generation;
	r->place_id = d->place_id;
	r->service_id = d->service_id;
	r->rule_id = d->rule_id;
	r->params = d->params;
	r->locality = d->locality;
	r->flags = d->flags;
	if (is_applications(tp))
		r->flags |= SL_REPORT_APPLICATION;
}

#endif
