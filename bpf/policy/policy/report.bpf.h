/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a socket runs, and the record that says so: for the iterators of bundle `policy`.
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

static __always_inline void fill_report(struct sl_report *r, const struct tcp_sock *tp, const struct sl_sock *st)
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
	if (st) {
		r->generation = st->generation;
		r->place_id = st->place_id;
		r->service_id = st->service_id;
		r->rule_id = st->rule_id;
		r->params = st->params;
		r->locality = st->locality;
		r->origin = st->origin;
		r->sock_flags = st->flags;
	}
}

#endif
