// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * TC ingress: impairs the packets an interface receives. The contract is in impairment.h, the shared memory in impair_abi.h.
 *
 * 1. A packet of the sequence gets the next index n. Each action is drawn by hashing {seed, n, action}, so what happens to
 *    packet n depends on neither time nor CPU, nor on what was drawn for others.
 * 2. A hold-back copies the packet's bytes away and drops it. After reorder_distance further packets the next packet of the
 *    same protocol carries it on: its own bytes are saved, replaced by the held ones, a clone is sent back into the
 *    interface, and its own bytes are restored. There is no other way to keep a packet in BPF.
 * 3. Clones (released and duplicated packets) come back through this program with MARK_OURS and pass.
 */
#include "vmlinux.h"

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "impair_abi.h"

#define TC_ACT_OK 0
#define TC_ACT_SHOT 2
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define ETH_HLEN 14
#define IPPROTO_ICMPV6 58	/* not in an enum that BTF keeps */
#define MARK_OURS 0x51c1a111	/* arbitrary; tests do not use marks of their own on these links */

enum hold_state { HOLD_FREE = 0, HOLD_BUSY, HOLD_FULL };

struct held_packet {
	__u32 state;
	__u32 len;
	__u64 due;		/* index of the packet after which it is sent on */
	__u16 protocol;		/* EtherType, network order */
	__u16 pad[3];
	__u8 bytes[IMPAIR_PACKET_MAX];
};

struct packet_bytes {
	__u8 bytes[IMPAIR_PACKET_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, IMPAIR_HOLD_MAX);
	__type(key, __u32);
	__type(value, struct held_packet);
} held SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_bytes);
} scratch SEC(".maps");

/* A section of its own, hence a map of its own with this at offset 0. */
struct impair_shared shared SEC(".data.impair");
/* Virtual queue: its backlog at `queue_time_ns`. Updated without a lock: it depends on time, thus is approximate anyway. */
static __u64 queue_time_ns;
static __u64 queue_backlog;

static void count(__u32 counter)
{
	__sync_fetch_and_add(&shared.counters[counter], 1);
}

/* The finalizer of splitmix64: every input bit reaches every output bit. */
static __u64 mix(__u64 x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ULL;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

static bool drawn(__u64 n, __u32 action)
{
	__u32 every = shared.config.every[action];

	if (every && (n + 1) % every == 0)
		return true;
	return (__u32)mix(mix(shared.config.seed + n) + action) < shared.config.threshold[action];
}

/* Is this packet of the sequence? Reports its payload's place, its TOS byte, and whether it is a SYN that asks for ECN. */
static bool classify(struct __sk_buff *skb, __u32 *payload, __u8 *tos, bool *ecn_syn)
{
	__u8 protocol, head[4], offset_flags[2];
	__u32 l4;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return false;
		if (ip.frag_off & bpf_htons(0x1fff))
			return false;
		protocol = ip.protocol;
		*tos = ip.tos;
		l4 = ETH_HLEN + (ip.ihl & 15) * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip6;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip6, sizeof(ip6)))
			return false;
		protocol = ip6.nexthdr;
		*tos = ip6.priority << 4 | ip6.flow_lbl[0] >> 4;
		l4 = ETH_HLEN + sizeof(ip6);
	} else {
		return false;
	}
	if (bpf_skb_load_bytes(skb, l4, head, sizeof(head)))
		return false;

	if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6) {
		*payload = l4 + 8;
		return !shared.config.port && (protocol == IPPROTO_ICMP ? head[0] == 8 || head[0] == 0 :
									  head[0] == 128 || head[0] == 129);
	}
	if (protocol == IPPROTO_UDP) {
		*payload = l4 + 8;
	} else if (protocol == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, l4 + 12, offset_flags, sizeof(offset_flags)))
			return false;
		*payload = l4 + (offset_flags[0] >> 4) * 4;
		*ecn_syn = (offset_flags[1] & 0xd2) == 0xc2;	/* SYN, ECE and CWR, no ACK */
	} else {
		return false;
	}
	return !shared.config.port || shared.config.port == (head[0] << 8 | head[1]) ||
	       shared.config.port == (head[2] << 8 | head[3]);
}

/* Writes the TOS byte, and what depends on it. */
static long put_tos(struct __sk_buff *skb, __u8 tos)
{
	__u8 head[2];
	__u16 before, after;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, head, sizeof(head)))
		return -1;
	__builtin_memcpy(&before, head, sizeof(before));
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		head[1] = tos;
		__builtin_memcpy(&after, head, sizeof(after));
		if (bpf_l3_csum_replace(skb, ETH_HLEN + 10, before, after, sizeof(after)))
			return -1;
	} else {
		head[0] = (head[0] & 0xf0) | tos >> 4;
		head[1] = (head[1] & 0x0f) | tos << 4;
	}
	return bpf_skb_store_bytes(skb, ETH_HLEN, head, sizeof(head), 0);
}

/* Puts the packet in the virtual queue; answers the action it asks for, or IMPAIR_ACTION_COUNT. */
static __u32 queue(__u32 len)
{
	__u64 rate = shared.config.queue_rate_bytes_per_s, now = bpf_ktime_get_ns(), gap, drained, backlog;

	if (!rate)
		return IMPAIR_ACTION_COUNT;
	gap = now - queue_time_ns;
	/* Ten seconds empty any queue in use, and keep the product within 64 bits up to 1.8 GB/s. */
	drained = gap > 10000000000ULL ? ~0ULL : gap * rate / 1000000000ULL;
	queue_time_ns = now;
	backlog = (queue_backlog > drained ? queue_backlog - drained : 0) + len;
	if (shared.config.queue_limit_bytes && backlog > shared.config.queue_limit_bytes) {
		queue_backlog = backlog - len;
		return IMPAIR_DROP;
	}
	queue_backlog = backlog;
	if (shared.config.queue_mark_bytes && backlog > shared.config.queue_mark_bytes)
		return IMPAIR_CE;
	return IMPAIR_ACTION_COUNT;
}

static bool send_clone(struct __sk_buff *skb)
{
	long err;

	skb->mark = MARK_OURS;
	err = bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = 0;
	if (err)
		count(IMPAIR_FAILED);
	return !err;
}

static bool hold(struct __sk_buff *skb, __u64 n)
{
	__u32 len = skb->len;

	if (len < ETH_HLEN || len > IMPAIR_PACKET_MAX)
		goto full;
	for (__u32 i = 0; i < IMPAIR_HOLD_MAX; i++) {
		__u32 key = i;
		struct held_packet *place = bpf_map_lookup_elem(&held, &key);

		if (!place || __sync_val_compare_and_swap(&place->state, HOLD_FREE, HOLD_BUSY) != HOLD_FREE)
			continue;
		if (bpf_skb_load_bytes(skb, 0, place->bytes, len)) {
			count(IMPAIR_FAILED);
			place->state = HOLD_FREE;
			return false;
		}
		place->len = len;
		place->protocol = skb->protocol;
		place->due = n + shared.config.reorder_distance;
		__sync_lock_test_and_set(&place->state, HOLD_FULL);
		return true;
	}
full:
	count(IMPAIR_HOLD_FULL);
	return false;
}

/* Rewrites the packet; the verifier wants the length's bounds here. */
static long put_bytes(struct __sk_buff *skb, __u8 *bytes, __u32 len)
{
	if (len < ETH_HLEN || len > IMPAIR_PACKET_MAX)
		return -1;
	return bpf_skb_change_tail(skb, len, 0) ?: bpf_skb_store_bytes(skb, 0, bytes, len, BPF_F_INVALIDATE_HASH);
}

/* Lets a packet that has passed carry the due held ones on. False: its own bytes are lost. */
static bool release(struct __sk_buff *skb, __u64 n)
{
	__u32 zero = 0, len = skb->len;
	struct packet_bytes *own = bpf_map_lookup_elem(&scratch, &zero);
	bool saved = false;

	if (!own || len < ETH_HLEN)
		return true;
	barrier_var(len);	/* clang would make it one comparison, of a copy: 6.12's verifier learns nothing of len then */
	if (len > IMPAIR_PACKET_MAX)
		return true;
	for (__u32 i = 0; i < IMPAIR_HOLD_MAX; i++) {
		__u32 key = i;
		struct held_packet *place = bpf_map_lookup_elem(&held, &key);

		if (!place || place->state != HOLD_FULL || place->due > n || place->protocol != skb->protocol)
			continue;
		if (__sync_val_compare_and_swap(&place->state, HOLD_FULL, HOLD_BUSY) != HOLD_FULL)
			continue;
		if (!saved && bpf_skb_load_bytes(skb, 0, own->bytes, len)) {
			count(IMPAIR_FAILED);
			place->state = HOLD_FREE;
			return true;
		}
		saved = true;
		if (put_bytes(skb, place->bytes, place->len))
			count(IMPAIR_FAILED);
		else if (send_clone(skb))
			count(IMPAIR_RELEASED);
		__sync_lock_test_and_set(&place->state, HOLD_FREE);
	}
	if (saved && put_bytes(skb, own->bytes, len)) {
		count(IMPAIR_FAILED);
		return false;
	}
	return true;
}

SEC("tc")
int impair(struct __sk_buff *skb)
{
	__u32 payload = 0, queued;
	__u8 tos = 0, ecn, becomes, done = 0;
	bool lost = false, ecn_syn = false;
	__u64 n;

	if (skb->mark == MARK_OURS) {
		skb->mark = 0;
		return TC_ACT_OK;
	}
	if (!shared.enabled)
		return TC_ACT_OK;
	if (!classify(skb, &payload, &tos, &ecn_syn)) {
		count(IMPAIR_OTHER);
		return TC_ACT_OK;
	}
	ecn = tos & 3;
	becomes = shared.config.ecn[ecn];
	n = __sync_fetch_and_add(&shared.next, 1);
	count(IMPAIR_PACKETS);
	count(ecn == 0 ? IMPAIR_SEEN_NOT_ECT : ecn == 1 ? IMPAIR_SEEN_ECT1 : ecn == 2 ? IMPAIR_SEEN_ECT0 : IMPAIR_SEEN_CE);

	queued = queue(skb->len);
	if (queued == IMPAIR_DROP || drawn(n, IMPAIR_DROP) || becomes == IMPAIR_ECN_DROP ||
	    (ecn_syn && shared.config.drop_ecn_syn)) {
		done |= 1 << IMPAIR_DROP;
		lost = true;
		goto out;
	}
	if (shared.config.set_dscp || becomes != ecn) {
		__u8 changed = (shared.config.set_dscp ? shared.config.dscp << 2 : tos & ~3) | (becomes & 3);

		if (put_tos(skb, changed))
			count(IMPAIR_FAILED);
		else
			done |= 1 << IMPAIR_REWRITE;
	}
	if (queued == IMPAIR_CE || drawn(n, IMPAIR_CE))
		done |= bpf_skb_ecn_set_ce(skb) == 1 ? 1 << IMPAIR_CE : 1 << IMPAIR_CE_NOT_ECT;
	if (drawn(n, IMPAIR_REORDER) && hold(skb, n)) {
		done |= 1 << IMPAIR_REORDER;
		lost = true;
		goto out;
	}
	if (drawn(n, IMPAIR_CORRUPT)) {
		__u64 random = mix(shared.config.seed ^ mix(n + 1));
		__u32 at = payload < skb->len ? payload + random % (skb->len - payload) : skb->len - 1;
		__u8 byte;

		if (bpf_skb_load_bytes(skb, at, &byte, 1)) {
			count(IMPAIR_FAILED);
		} else {
			byte ^= 1 << (random >> 61);
			if (bpf_skb_store_bytes(skb, at, &byte, 1, 0))
				count(IMPAIR_FAILED);
			else
				done |= 1 << IMPAIR_CORRUPT;
		}
	}
	if (drawn(n, IMPAIR_DUPLICATE) && send_clone(skb))
		done |= 1 << IMPAIR_DUPLICATE;
	if (!release(skb, n))
		lost = true;
out:
	for (__u32 action = 0; action < IMPAIR_ACTION_COUNT; action++)
		if (done & 1 << action)
			count(action);
	if (n < IMPAIR_JOURNAL_MAX)
		shared.journal[n] = done;
	return lost ? TC_ACT_SHOT : TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
