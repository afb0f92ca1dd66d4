/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What XDP programs of collectives share: frames, addresses, integrity, checksums (docs/protocol.md).
 *
 * A frame is Ethernet, at most one VLAN tag, IPv4 without options or IPv6 without extension headers, UDP. Everything else belongs to
 * the host's stack. Offsets into it are scalars, so that one subprogram serves all forms of it.
 */
#ifndef SLUICE_BPF_COLL_H
#define SLUICE_BPF_COLL_H

#include "common.bpf.h"

#include <sluice/abi/coll.h>

#define ETH_ALEN 6
#define ETH_P_IP 0x0800
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define ETH_P_IPV6 0x86dd
#define SL_IP_FRAGMENT 0x3fff	/* MF and the offset: not of a whole datagram */

/* Running sums over 32-bit little-endian words. */
struct sl_coll_sums {
	__u64 a;
	__u64 b;
};

/*
 * Adds one word. By hand, and in the place where it stands: clang keeps the sums of a block of words for its end, and spills them until then
 * (7 instructions a word that is copied, instead of 4).
 */
static __always_inline void sl_coll_sum(struct sl_coll_sums *sums, __u64 word)
{
	asm volatile("%0 += %2\n\t%1 += %0" : "+r"(sums->a), "+r"(sums->b) : "r"(word) : "memory");
}

/* The remainder whose lower half is `integrity`. */
static __always_inline __u64 sl_coll_residue(const struct sl_coll_sums *sums)
{
	__u64 x = SL_COLL_INTEGRITY_B * sums->b + SL_COLL_INTEGRITY_A * sums->a;
	/* 2^32 = -15: one multiplication instead of a division. b < 2^53, so the upper half is far below 2^28. */
	__s64 folded = (__s64)(x & 0xffffffff) - 15 * (__s64)(x >> 32);

	return folded < 0 ? folded + SL_COLL_INTEGRITY_PRIME : folded;
}

/* What word `value`, with `behind` words from it to the end, itself included, adds to the residue. */
static __always_inline __u64 sl_coll_residue_with(__u64 residue, __u32 value, __u32 behind)
{
	struct sl_coll_sums one = { .a = value, .b = (__u64)value * behind };

	residue += sl_coll_residue(&one);
	return residue >= SL_COLL_INTEGRITY_PRIME ? residue - SL_COLL_INTEGRITY_PRIME : residue;
}

/* The words of a header, but for `integrity`. */
static __always_inline void sl_coll_sum_header(const struct sl_coll_header *h, struct sl_coll_sums *sums)
{
	const __u32 *word = (const void *)h;
	int i;

#pragma unroll
	for (i = 0; i < (int)(sizeof(*h) / 4); i++) {
		if (i == offsetof(struct sl_coll_header, integrity) / 4)
			continue;
		sl_coll_sum(sums, word[i]);
	}
}

/* Ones' complement sum of 16-bit words, from one of wider words. */
static __always_inline __u16 sl_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Where the IP header is; 0 if the frame is of another kind. */
static __always_inline __u32 sl_ip_at(struct xdp_md *ctx, bool *v6)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	__u32 at = sizeof(*eth);
	__be16 proto;

	if ((void *)(eth + 1) > end)
		return 0;
	proto = eth->h_proto;
	if (proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD)) {
		struct vlan_hdr *vlan = data + at;

		if ((void *)(vlan + 1) > end)
			return 0;
		proto = vlan->h_vlan_encapsulated_proto;
		at += sizeof(*vlan);
	}
	*v6 = proto == bpf_htons(ETH_P_IPV6);
	if (*v6) {
		struct ipv6hdr *ip = data + at;

		return (void *)(ip + 1) <= end && ip->nexthdr == IPPROTO_UDP ? at : 0;
	}
	if (proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + at;

		return (void *)(ip + 1) <= end && *(__u8 *)ip == 0x45 && ip->protocol == IPPROTO_UDP &&
		       !(ip->frag_off & bpf_htons(SL_IP_FRAGMENT)) ? at : 0;
	}
	return 0;
}

/* Pointers into a frame whose IP header is at `ip_at`. They have to be made anew when the frame's length was changed. */
struct sl_frame {
	struct ethhdr *eth;
	void *ip;			/* struct iphdr or struct ipv6hdr */
	struct udphdr *udp;
	struct sl_coll_header *h;
	void *end;
};

/* The compiler compares copies of what the verifier then does not know to be bounded; an AND of the register itself is. */
static __always_inline __u32 sl_bounded(__u32 at)
{
	asm volatile("%0 &= 127" : "+r"(at));
	return at;
}

static __always_inline bool sl_frame_at(struct xdp_md *ctx, __u32 ip_at, bool v6, struct sl_frame *frame)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 l3 = v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	frame->eth = data;
	frame->ip = data + sl_bounded(ip_at);
	frame->udp = data + sl_bounded(ip_at + l3);
	frame->h = (void *)(frame->udp + 1);
	frame->end = end;
	return (void *)(frame->eth + 1) <= end && frame->ip + l3 <= end && (void *)(frame->h + 1) <= end;
}

/* Lengths in the headers, for a frame that was cut or grown to that. */
static __always_inline void sl_frame_length(const struct sl_frame *f, bool v6, __u32 udp_length)
{
	f->udp->len = bpf_htons(udp_length);
	if (v6)
		((struct ipv6hdr *)f->ip)->payload_len = f->udp->len;
	else
		((struct iphdr *)f->ip)->tot_len = bpf_htons(sizeof(struct iphdr) + udp_length);
}

/* Hop limit and checksums of a frame that is otherwise ready to go. `words`: ones' complement sum of what UDP carries. */
static __always_inline void sl_frame_finish(const struct sl_frame *f, bool v6, __u64 words)
{
	struct udphdr *udp = f->udp;
	__u32 sum = 0, i;

	udp->check = 0;
	if (v6) {
		struct ipv6hdr *ip = f->ip;
		const __u16 *half = (const void *)&ip->saddr;

		ip->hop_limit = 64;
#pragma unroll
		for (i = 0; i < 2 * sizeof(ip->saddr) / 2; i++)
			words += half[i];
		words += bpf_htons(IPPROTO_UDP) + 2 * (__u32)udp->len + udp->source + udp->dest;
		udp->check = ~sl_fold(words);
		if (!udp->check)
			udp->check = 0xffff;
	} else {
		struct iphdr *ip = f->ip;
		const __u16 *half = (const void *)ip;

		ip->ttl = 64;
		ip->check = 0;
#pragma unroll
		for (i = 0; i < sizeof(*ip) / 2; i++)
			sum += half[i];
		ip->check = ~sl_fold(sum);	/* the UDP checksum may be left out over IPv4 */
	}
}

/* An IPv4 address as struct sl_coll_member has it: the second half of ::ffff:a.b.c.d. */
static __always_inline __u64 sl_mapped(__be32 addr)
{
	return (__u64)addr << 32 | bpf_htonl(0xffff);
}

/* The frame is from this address (IPv4 mapped) and port. */
static __always_inline bool sl_is_from(const struct sl_frame *f, bool v6, const __u8 *address, __be16 port)
{
	const __u64 *addr = (const void *)address;

	if (f->udp->source != port)
		return false;
	if (v6) {
		const __u64 *from = (const void *)&((struct ipv6hdr *)f->ip)->saddr;

		return from[0] == addr[0] && from[1] == addr[1];
	}
	return !addr[0] && sl_mapped(((struct iphdr *)f->ip)->saddr) == addr[1];
}

static __always_inline __u64 sl_coll_position(const struct sl_coll_header *h)
{
	return (__u64)(bpf_ntohl(h->epoch) & 0xffff) << 32 | bpf_ntohl(h->seq);
}

static __always_inline bool sl_coll_is_job(const struct sl_coll_header *h, __u16 job, __u64 token)
{
	return bpf_ntohs(h->job) == job && ((__u64)bpf_ntohl(h->token[0]) << 32 | bpf_ntohl(h->token[1])) == token;
}

#endif
