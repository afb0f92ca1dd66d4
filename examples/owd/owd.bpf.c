// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A producer of one-way delays, as a team outside Sluice would write it: it knows of Sluice the ABI headers and nothing else.
 *
 * cgroup_skb/ingress sees every packet that a socket of the cgroup receives, before TCP does. It lets all of them pass, and of
 * the acknowledgements of established connections it
 *   1. asks whether the contract is still the one it was built for (sl_schemas): if not, it writes nothing,
 *   2. takes the timestamps out of the TCP header,
 *   3. turns them into a delay (delay.h), with what it remembers of the socket in owd_states,
 *   4. stores that in sl_owd.
 * Whatever it does not understand it counts and leaves alone.
 *
 * sl_owd and sl_schemas are the agent's: owd.c puts the pinned ones in the place of these before it loads the program.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include <sluice/abi/owd.h>

#include "counters.h"
#include "delay.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define TCP_OPTIONS_MAX 40
#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_TIMESTAMP 8
#define TCP_OPTION_TIMESTAMP_BYTES 10

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sl_owd);
} sl_owd SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SL_SCHEMA_COUNT);
	__type(key, __u32);
	__type(value, struct sl_schema_entry);
} sl_schemas SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct owd_state);
} owd_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OWD_COUNTER_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} owd_counters SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&owd_counters, &which);

	if (value) /* per-CPU, but a softirq may interrupt */
		__sync_fetch_and_add(value, 1);
}

static __always_inline int contract_holds(void)
{
	__u32 key = SL_SCHEMA_OWD;
	const struct sl_schema_entry *entry = bpf_map_lookup_elem(&sl_schemas, &key);

	return entry && entry->version == SL_SCHEMA_OWD_VERSION && entry->btf_hash == SL_SCHEMA_OWD_HASH;
}

struct timestamps {
	__u32 ack;
	__u32 val;
	__u32 ecr;
};

/* Offset of the TCP header. The packet begins with its network header here. 0 = not TCP, or behind extension headers. */
static __always_inline __u32 tcp_offset(struct __sk_buff *skb)
{
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP || ip.ihl < 5)
			return 0;
		return ip.ihl * 4;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
			return 0;
		return sizeof(ip);
	}
	return 0;
}

/* A walk over the options, for bpf_loop(): the verifier would follow each way through forty rounds. */
struct option_walk {
	__u8 options[TCP_OPTIONS_MAX];
	__u32 bytes;
	__u32 at;
	__u32 found; /* offset of the timestamps; ~0 = none so far */
};

static long next_option(__u32 round, struct option_walk *walk)
{
	__u32 i = walk->at;

	/* Whatever comes there, timestamps have no room any more. */
	if (i > TCP_OPTIONS_MAX - TCP_OPTION_TIMESTAMP_BYTES || i + TCP_OPTION_TIMESTAMP_BYTES > walk->bytes)
		return 1;
	switch (walk->options[i]) {
	case TCP_OPTION_END:
		return 1;
	case TCP_OPTION_NOP:
		walk->at = i + 1;
		return 0;
	case TCP_OPTION_TIMESTAMP:
		if (walk->options[i + 1] == TCP_OPTION_TIMESTAMP_BYTES)
			walk->found = i + 2;
		return 1;
	}
	walk->at = i + walk->options[i + 1];
	return walk->options[i + 1] < 2; /* malformed */
}

static __always_inline __u32 big_endian(const __u8 *at)
{
	return (__u32)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

/* enum owd_counter of why there are none, or OWD_COUNT_SAMPLE. */
static __always_inline __u32 read_timestamps(struct __sk_buff *skb, struct timestamps *ts)
{
	struct option_walk walk = { .found = ~0U };
	__u32 at = tcp_offset(skb);
	struct tcphdr tcp;

	if (!at || bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return OWD_COUNT_NOT_TCP;
	if (!tcp.ack || tcp.syn || tcp.rst)
		return OWD_COUNT_NO_ACK;
	if (tcp.doff * 4 <= (int)sizeof(tcp))
		return OWD_COUNT_NO_TIMESTAMPS;
	walk.bytes = tcp.doff * 4 - sizeof(tcp);
	if (walk.bytes > TCP_OPTIONS_MAX || bpf_skb_load_bytes(skb, at + sizeof(tcp), walk.options, walk.bytes))
		return OWD_COUNT_NO_TIMESTAMPS;
	bpf_loop(TCP_OPTIONS_MAX, next_option, &walk, 0);
	if (walk.found > TCP_OPTIONS_MAX - 8)
		return OWD_COUNT_NO_TIMESTAMPS;
	ts->ack = bpf_ntohl(tcp.ack_seq);
	ts->val = big_endian(walk.options + walk.found);
	ts->ecr = big_endian(walk.options + walk.found + 4);
	return OWD_COUNT_SAMPLE;
}

/* Returns the counter to bump. */
static __always_inline __u32 measure(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct owd_state *state;
	struct timestamps ts;
	struct sl_owd *owd;
	__u64 now_ns;
	__u32 why, delay_us;

	if (!contract_holds())
		return OWD_COUNT_SCHEMA;
	why = read_timestamps(skb, &ts);
	if (why != OWD_COUNT_SAMPLE)
		return why;
	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	if (!sk || (sk->state != BPF_TCP_ESTABLISHED && sk->state != BPF_TCP_CLOSE_WAIT))
		return OWD_COUNT_NOT_ESTABLISHED;
	state = bpf_sk_storage_get(&owd_states, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!state)
		return OWD_COUNT_NO_MEMORY;
	now_ns = bpf_ktime_get_ns();
	switch (owd_take(state, ts.ack, ts.val, ts.ecr, now_ns, &delay_us)) {
	case OWD_NOTHING_NEW:
		return OWD_COUNT_NOTHING_NEW;
	case OWD_CLOCK_UNPROVEN:
		return OWD_COUNT_CLOCK_UNPROVEN;
	case OWD_CLOCK_FOREIGN:
		return OWD_COUNT_CLOCK_FOREIGN;
	case OWD_SAMPLE:
		break;
	}

	owd = bpf_sk_storage_get(&sl_owd, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!owd)
		return OWD_COUNT_NO_MEMORY;
	*(volatile __u32 *)&owd->last_us = delay_us;
	owd->min_us = 0; /* it is what was subtracted */
	owd->count++;
	owd->version = SL_SCHEMA_OWD_VERSION;
	owd->flags = SL_OWD_RELATIVE;
	asm volatile("" ::: "memory");
	*(volatile __u64 *)&owd->time_ns = now_ns; /* last: it makes the rest valid */
	return OWD_COUNT_SAMPLE;
}

SEC("cgroup_skb/ingress")
int owd_ingress(struct __sk_buff *skb)
{
	count(measure(skb));
	return 1; /* pass */
}

/* The kernel's, as far as they are used. */
struct socket {
	struct sock *sk;
} __attribute__((preserve_access_index));

struct bpf_iter__task_file {
	__bpf_md_ptr(struct bpf_iter_meta *, meta);
	__bpf_md_ptr(struct task_struct *, task);
	__u32 fd;
	__bpf_md_ptr(struct file *, file);
};

/*
 * At the end: takes the samples of this producer, and no other's, off the sockets that processes hold. (Iterators over socket storage
 * itself are forbidden on some kernels.)
 */
SEC("iter/task_file")
int owd_forget(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	struct socket *socket = file ? bpf_sock_from_file(file) : NULL;
	struct sock *sk = socket ? socket->sk : NULL;

	if (!sk || !bpf_sk_storage_get(&owd_states, sk, NULL, 0))
		return 0;
	if (!bpf_sk_storage_delete(&sl_owd, sk))
		count(OWD_COUNT_FORGOTTEN);
	return 0;
}
