// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Bundle `member`: the member of one job and stream, in XDP (docs/protocol.md). One object per member and stream: its maps are its call.
 *
 * User space lays out the numbers of a call in sl_coll_values, contributes the first W chunks and waits. From there on the call runs by
 * itself, at the pace of the slowest member:
 *
 *   1. Frames that are not results for a chunk of the call under way pass to the host's stack: control packets, the exponents before and the
 *      counts of NaN behind the chunks, other jobs, ordinary traffic.
 *   2. A result is taken by who turns its slot from outstanding to taken, in one compare-and-swap: copies of it come to nothing.
 *   3. If `integrity` says so, its numbers are copied to the place of this member's own; else the slot is outstanding again.
 *   4. The frame becomes the contribution W chunks further on, goes back where it came from, and the slot is outstanding for that one.
 *      User space has summed what it carries: the numbers are only copied.
 *   5. The last result of a call wakes user space through sl_coll_ended.
 *
 * Lost packets are user space's business: it sees in sl_coll_flights what is outstanding, and since when.
 */
#include <sluice/bpf/coll.bpf.h>
#include <sluice/bpf/coll_values.bpf.h>

char _license[] SEC("license") = "Dual BSD/GPL";

/*
 * Chunks lie in the maps one behind the other, so that a chunk of the size of its place can be used where it is. Linux 6.1 verifies
 * places of a size that is known when this is compiled; so there is a program for each.
 */
#define PLACE_BYTES (SL_COLL_WORDS_DEFAULT * 4)
#define PLACE_BYTES_LARGE SL_COLL_VALUE_BYTES

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_coll_call);
} sl_coll_call SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SL_COLL_WINDOW_MAX);
	__type(key, __u32);
	__type(value, struct sl_coll_flight);
} sl_coll_flights SEC(".maps");

/* The agent sizes both to the chunks that are carried at once, and values to the place that the program is for. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_coll_chunk);
} sl_coll_chunks SEC(".maps");

/* Contributions, and in their places the results. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, PLACE_BYTES_LARGE);
} sl_coll_values SEC(".maps");

/* One record, the position of chunk 0, when all results of a call have been taken. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} sl_coll_ended SEC(".maps");

struct counters {
	__u64 of[SL_COLL_MEMBER_COUNTER_COUNT];	/* enum sl_coll_member_counter */
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} sl_coll_member_counters SEC(".maps");

/* The frame goes back to where it came from. */
static __always_inline void turn_round(const struct sl_frame *f, bool v6)
{
	struct udphdr *udp = f->udp;
	__u8 mac[ETH_ALEN];
	__be16 port = udp->source;

	__builtin_memcpy(mac, f->eth->h_source, ETH_ALEN);
	__builtin_memcpy(f->eth->h_source, f->eth->h_dest, ETH_ALEN);
	__builtin_memcpy(f->eth->h_dest, mac, ETH_ALEN);
	udp->source = udp->dest;
	udp->dest = port;
	if (v6) {
		struct ipv6hdr *ip = f->ip;
		struct in6_addr from = ip->saddr;

		ip->saddr = ip->daddr;
		ip->daddr = from;
	} else {
		struct iphdr *ip = f->ip;
		__be32 from = ip->saddr;

		ip->saddr = ip->daddr;
		ip->daddr = from;
	}
}

static __always_inline __u32 bytes_of_chunk(const struct sl_coll_call *call, __u32 chunk)
{
	return chunk + 1 == call->chunks ? call->last_bytes : call->chunk_bytes;
}

/* The frame becomes the contribution of `chunk`. False: there is no room for it, and the frame is spoilt. */
static __always_inline bool refill(struct xdp_md *ctx, __u32 ip_at, bool v6, __u32 place, const struct sl_coll_call *call,
				   __u32 chunk, const struct sl_coll_chunk *about, struct sl_frame *f)
{
	__u32 udp_length = sizeof(struct udphdr) + sizeof(struct sl_coll_header), bytes = bytes_of_chunk(call, chunk);
	__u32 length = ip_at + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	__u64 position = call->position + chunk, residue;
	struct sl_coll_sums sums = {};
	struct sl_coll_header *h;
	__u8 *values;

	values = bpf_map_lookup_elem(&sl_coll_values, &chunk);
	if (!values || bytes > place)
		return false;
	udp_length += bytes;
	length += udp_length;
	if (length != bpf_xdp_get_buff_len(ctx)) {
		if (bpf_xdp_adjust_tail(ctx, (int)length - (int)bpf_xdp_get_buff_len(ctx)))
			return false;
	}
	if (!sl_frame_at(ctx, ip_at, v6, f))
		return false;
	h = f->h;
	sl_frame_length(f, v6, udp_length);
	turn_round(f, v6);
	h->seq = bpf_htonl((__u32)position);
	h->epoch = bpf_htonl((__u32)call->incarnation << 16 | (__u32)(position >> 32 & 0xffff));
	h->frag_offset = bpf_htonl(call->first_element + chunk * call->chunk_elements);
	h->flags = about->flags;
	h->exponent = bpf_htons(about->exponent);
	h->scale_low = bpf_htons(call->scale_low);
	sl_coll_sum_header(h, &sums);
	sums.b += sums.a * (bytes / 4) + about->sum_b;
	sums.a += about->sum_a;
	sl_each_of(place, SL_PASS_GIVE, f, bytes, values, 0, &sums);
	residue = sl_coll_residue(&sums);
	h->integrity = bpf_htonl((__u32)residue);
	sl_frame_finish(f, v6, sums.a + h->integrity);
	return true;
}

/* A result for a chunk of the call. Returns the XDP verdict. */
static __always_inline int result(struct xdp_md *ctx, __u32 ip_at, bool v6, __u32 place)
{
	struct sl_coll_chunk *about, *later;
	struct sl_coll_sums sums = {};
	struct sl_coll_flight *flight;
	struct sl_coll_header *h;
	struct counters *count;
	struct sl_coll_call *call;
	__u8 *values;
	struct sl_frame f;
	__u32 zero = 0, slot, chunk, next, bytes, length, chunks;
	__u64 position, sent_ns, now;
	bool good;

	call = bpf_map_lookup_elem(&sl_coll_call, &zero);
	count = bpf_map_lookup_elem(&sl_coll_member_counters, &zero);
	if (!call || !count || !sl_frame_at(ctx, ip_at, v6, &f))
		return XDP_PASS;
	h = f.h;
	chunks = READ_ONCE(call->chunks);
	position = sl_coll_position(h);
	if (position - call->position >= chunks)
		return XDP_PASS;
	chunk = position - call->position;
	slot = position & (call->window - 1);
	flight = bpf_map_lookup_elem(&sl_coll_flights, &slot);
	about = bpf_map_lookup_elem(&sl_coll_chunks, &chunk);
	values = bpf_map_lookup_elem(&sl_coll_values, &chunk);
	if (!flight || !about || !values) {
		count->of[SL_COLL_MEMBER_UNEXPECTED]++;
		return XDP_DROP;
	}
	sent_ns = READ_ONCE(flight->sent_ns);
	if (__sync_val_compare_and_swap(&flight->position, position + 1, SL_COLL_FLIGHT_TAKEN) != position + 1) {
		count->of[SL_COLL_MEMBER_UNEXPECTED]++;
		return XDP_DROP;
	}

	bytes = about->flags & SL_COLL_NO_VALUES ? 0 : bytes_of_chunk(call, chunk);
	length = bpf_ntohs(f.udp->len);
	good = h->op == call->op && h->dtype == call->dtype &&
	       bpf_ntohl(h->frag_offset) == call->first_element + chunk * call->chunk_elements &&
	       (__s16)bpf_ntohs(h->exponent) == about->exponent && (__s16)bpf_ntohs(h->scale_low) == call->scale_low &&
	       length == sizeof(struct udphdr) + sizeof(*h) + bytes && bytes <= place && (void *)(h + 1) + bytes <= f.end;
	if (good) {
		sl_coll_sum_header(h, &sums);
		sl_each_of(place, SL_PASS_CHECK, &f, bytes, values, 0, &sums);
		good = (__u32)sl_coll_residue(&sums) == bpf_ntohl(h->integrity);
	}
	if (!good) {
		WRITE_ONCE(flight->position, position + 1);
		count->of[SL_COLL_MEMBER_CORRUPT]++;
		return XDP_DROP;
	}
	sl_each_of(place, SL_PASS_TAKE, &f, bytes, values, 0, &sums);
	count->of[SL_COLL_MEMBER_TAKEN]++;
	about->result_flags = h->flags;
	now = bpf_ktime_get_ns();
	if (sent_ns)
		call->rtt_ns = now - sent_ns;

	next = chunk + call->window;
	if (next < chunks) {
		later = bpf_map_lookup_elem(&sl_coll_chunks, &next);
		good = later && refill(ctx, ip_at, v6, place, call, next, later, &f);
		count->of[good ? SL_COLL_MEMBER_SENT : SL_COLL_MEMBER_NO_ROOM]++;
		WRITE_ONCE(flight->sent_ns, good ? now : 0);
		__sync_lock_test_and_set(&flight->position, call->position + next + 1);
	} else {
		good = false;
		__sync_lock_test_and_set(&flight->position, 0);
	}
	if (__sync_fetch_and_add(&call->done, 1) + 1 == chunks) {
		position = call->position;
		bpf_ringbuf_output(&sl_coll_ended, &position, sizeof(position), 0);
	}
	return good ? bpf_redirect(ctx->ingress_ifindex, 0) : XDP_DROP;
}

/* Functions of their own: verified once, with or without a VLAN tag. */
__noinline int sl_coll_result_v4(struct xdp_md *ctx, __u32 ip_at)
{
	return result(ctx, ip_at, false, PLACE_BYTES);
}

__noinline int sl_coll_result_v6(struct xdp_md *ctx, __u32 ip_at)
{
	return result(ctx, ip_at, true, PLACE_BYTES);
}

__noinline int sl_coll_large_result_v4(struct xdp_md *ctx, __u32 ip_at)
{
	return result(ctx, ip_at, false, PLACE_BYTES_LARGE);
}

__noinline int sl_coll_large_result_v6(struct xdp_md *ctx, __u32 ip_at)
{
	return result(ctx, ip_at, true, PLACE_BYTES_LARGE);
}

/* Where the IP header of a result for the call under way is; 0: the frame is something else. */
static __always_inline __u32 result_at(struct xdp_md *ctx, bool *v6)
{
	__u32 ip_at = sl_ip_at(ctx, v6), zero = 0;
	struct sl_coll_call *call;
	struct sl_coll_header *h;
	struct sl_frame f;

	call = bpf_map_lookup_elem(&sl_coll_call, &zero);
	if (!ip_at || !call || !READ_ONCE(call->chunks) || !sl_frame_at(ctx, ip_at, *v6, &f) || f.udp->dest != call->port)
		return 0;
	h = f.h;
	if (h->magic != bpf_htonl(SL_COLL_MAGIC_AGGREGATE) || !(h->flags & SL_COLL_RESULT) || h->version != SL_COLL_VERSION ||
	    !sl_coll_is_job(h, call->job, call->token) || bpf_ntohl(h->key) != call->key ||
	    bpf_ntohl(h->epoch) >> 16 != call->incarnation || !sl_is_from(&f, *v6, call->aggregator, call->aggregator_port))
		return 0;
	return ip_at;
}

SEC("xdp")
int sl_coll_take(struct xdp_md *ctx)
{
	bool v6 = false;
	__u32 ip_at = result_at(ctx, &v6);

	if (!ip_at)
		return XDP_PASS;
	return v6 ? sl_coll_result_v6(ctx, ip_at) : sl_coll_result_v4(ctx, ip_at);
}

SEC("xdp")
int sl_coll_take_large(struct xdp_md *ctx)
{
	bool v6 = false;
	__u32 ip_at = result_at(ctx, &v6);

	if (!ip_at)
		return XDP_PASS;
	return v6 ? sl_coll_large_result_v6(ctx, ip_at) : sl_coll_large_result_v4(ctx, ip_at);
}
