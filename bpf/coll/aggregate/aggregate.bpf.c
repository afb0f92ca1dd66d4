// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Bundle `aggregate`: the aggregator of one job and stream, in XDP (docs/protocol.md). One object per stream: its maps are the job.
 *
 * sl_coll_aggregate, on the interface where contributions arrive:
 *
 *   1. Frames to another port, without the magic or the token, pass to the host's stack. So do those that user space answers: control
 *      packets, packets of another incarnation, all packets once the job has failed, and a duplicate that asks for STATUS.
 *   2. KEY, source address and port, operator, length are checked; then, with the slot locked, position and shape.
 *   3. Numbers are combined into the slot. The frequent case, sums of 32 bits, checks `integrity` in the same pass and takes a corrupt packet's
 *      numbers out again; every other case checks first. A first contribution is written, never added to zeroes.
 *   4. The last contribution's frame becomes the result: numbers, flags, exponents, and is broadcast through devmap sl_coll_fan; on the way
 *      out sl_coll_copy addresses each copy. Someone who asks again gets the stored result through the entry of his KEY. Not by XDP_TX:
 *      a veth does not wake a peer for that which has NAPI but no XDP program (veth_xdp_flush). Not by a redirect past the map: a device's batch
 *      goes through the egress program of its first frame, or through none (bq_enqueue).
 *
 * sl_coll_copy, the egress program of each entry of sl_coll_fan. The kernel does not say which entry a copy is for, and runs the first
 * entry's program for all of the same interface. Copies of one result leave an interface in the order of the entries, which is that of KEYs;
 * so sl_coll_copies lists the KEYs behind each interface, and counts on each CPU how far it is with the present result. An answer comes
 * finished, and leaves as it is.
 *
 * The receive queue of a slot's packets should be served by one CPU; the lock keeps numbers right where it is not.
 *
 * Handed from the first to the second program in the frame, which nobody else sees: `version` 0 = to be addressed, `key` = upper half of the
 * integrity residue without `key`, `integrity` = its lower half, UDP checksum = ones' complement sum of all words but those two.
 */
#include <sluice/bpf/coll.bpf.h>
#include <sluice/bpf/coll_values.bpf.h>

char _license[] SEC("license") = "Dual BSD/GPL";

/* The agent sizes it to 2 W. A whole number of cache lines before and in `values`. */
struct slot {
	struct bpf_spin_lock lock;
	__u32 pad;
	struct sl_coll_entry entry;
	__u8 line[16];
	__u8 values[SL_COLL_VALUE_BYTES];
};
SL_ASSERT_SIZE(struct slot, SL_COLL_SLOT_VALUES + SL_COLL_VALUE_BYTES);
_Static_assert(offsetof(struct slot, entry) == SL_COLL_SLOT_ENTRY && offsetof(struct slot, values) == SL_COLL_SLOT_VALUES, "abi");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * SL_COLL_WINDOW_MAX);
	__type(key, __u32);
	__type(value, struct slot);
} sl_coll_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_coll_job);
} sl_coll_job SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SL_COLL_MEMBERS_MAX);
	__type(key, __u32);
	__type(value, struct sl_coll_member);
} sl_coll_members SEC(".maps");

/*
 * Where the last packet of a KEY came from, and to which address of ours: what goes to it leaves by the same way, and follows a neighbour
 * that changes.
 */
struct next_hop {
	__u8 member[ETH_ALEN];
	__u8 ours[ETH_ALEN];
	__u32 pad;
	__u8 address[16];	/* IPv4: the first four bytes */
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SL_COLL_MEMBERS_MAX);
	__type(key, __u32);
	__type(value, struct next_hop);
} sl_coll_next_hops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, SL_COLL_MEMBERS_MAX);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} sl_coll_fan SEC(".maps");

/* Key: ifindex. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, SL_COLL_MEMBERS_MAX);
	__type(key, __u32);
	__type(value, struct sl_coll_copies);
} sl_coll_copies SEC(".maps");

struct counters {
	__u64 of[SL_COLL_COUNTER_COUNT];	/* enum sl_coll_counter */
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} sl_coll_counters SEC(".maps");

/* ---- what a header means -------------------------------------------------------------------------------------------------- */

static __always_inline bool is_float(__u8 dtype)
{
	dtype &= ~SL_COLL_FIXED_SCALE;
	return dtype == SL_COLL_F32 || dtype == SL_COLL_F16 || dtype == SL_COLL_BF16;
}

/* Bytes of one element in the payload; 0: op, dtype and frag_offset do not go together. */
static __always_inline __u32 wire_size(__u8 op, __u8 dtype, __u32 frag_offset)
{
	bool adds_floats = is_float(dtype) && (op == SL_COLL_SUM || op == SL_COLL_AVERAGE);
	bool fixed = dtype & SL_COLL_FIXED_SCALE;

	if (op == SL_COLL_BARRIER)
		return dtype == SL_COLL_NONE && !frag_offset ? 4 : 0;
	if (!op || op >= SL_COLL_OP_COUNT || (!is_float(dtype) && dtype != SL_COLL_I32 && dtype != SL_COLL_I64))
		return 0;
	if (fixed && !adds_floats)
		return 0;
	if (frag_offset == SL_COLL_FRAG_EXPONENTS)
		return adds_floats && !fixed ? 4 : 0;
	if (frag_offset & SL_COLL_FRAG_SPECIAL)
		return adds_floats ? 4 : 0;
	if (op == SL_COLL_COUNT)
		return 4;
	return dtype == SL_COLL_I64 || (op == SL_COLL_AVERAGE && dtype == SL_COLL_I32) ? 8 : 4;
}

static __always_inline enum sl_coll_rule rule_of(__u8 op, __u32 frag_offset, bool wide)
{
	if (frag_offset == SL_COLL_FRAG_EXPONENTS)
		return SL_COLL_MAX32;
	if (op == SL_COLL_MAX)
		return wide ? SL_COLL_MAX64 : SL_COLL_MAX32;
	if (op == SL_COLL_MIN)
		return wide ? SL_COLL_MIN64 : SL_COLL_MIN32;
	return wide ? SL_COLL_ADD64 : SL_COLL_ADD32;
}

static __always_inline bool is_weighted(__u8 op, __u32 frag_offset)
{
	return (op == SL_COLL_SUM || op == SL_COLL_AVERAGE) && !(frag_offset & SL_COLL_FRAG_SPECIAL);
}

/* docs/protocol.md, "Control": what the first contributor said about a chunk, all others have to say. */
static __always_inline bool same_shape(const struct sl_coll_entry *entry, const struct sl_coll_header *h, __u32 elements)
{
	return entry->frag_offset == bpf_ntohl(h->frag_offset) && entry->elements == elements && entry->op == h->op &&
	       entry->dtype == h->dtype && entry->exponent == (__s16)bpf_ntohs(h->exponent) &&
	       entry->scale_low == (__s16)bpf_ntohs(h->scale_low) &&
	       !((entry->flags ^ h->flags) & SL_COLL_LAST_FRAGMENT);
}

/* ---- frames ---------------------------------------------------------------------------------------------------------------- */

/*
 * Leaves the header alone, where the receiver wants no values. Lengths in the frame follow; checksums are the caller's. Pointers into the
 * frame are made anew.
 */
static __always_inline bool cut_values(struct xdp_md *ctx, __u32 ip_at, bool v6, struct sl_frame *f)
{
	__u32 udp_length = sizeof(struct udphdr) + sizeof(struct sl_coll_header);
	__u32 length = ip_at + udp_length + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));

	if (bpf_xdp_adjust_tail(ctx, (int)length - (int)bpf_xdp_get_buff_len(ctx)) || !sl_frame_at(ctx, ip_at, v6, f))
		return false;
	sl_frame_length(f, v6, udp_length);
	return true;
}

/*
 * Makes a frame that came from some member one from us to `member`. Lengths are right already. `words`: ones' complement
 * sum of what UDP carries.
 */
static __always_inline void address(const struct sl_frame *f, bool v6, const struct sl_coll_member *member,
				    const struct next_hop *hop, __be16 our_port, __u64 words)
{
	struct udphdr *udp = f->udp;

	__builtin_memcpy(f->eth->h_dest, hop->member, ETH_ALEN);
	__builtin_memcpy(f->eth->h_source, hop->ours, ETH_ALEN);
	udp->source = our_port;
	udp->dest = member->port;
	if (v6) {
		struct ipv6hdr *ip = f->ip;

		__builtin_memcpy(&ip->saddr, hop->address, sizeof(ip->saddr));
		__builtin_memcpy(&ip->daddr, member->addr, sizeof(ip->daddr));
	} else {
		struct iphdr *ip = f->ip;

		__builtin_memcpy(&ip->saddr, hop->address, sizeof(ip->saddr));
		__builtin_memcpy(&ip->daddr, member->addr + 12, sizeof(ip->daddr));
	}
	sl_frame_finish(f, v6, words);
}

/* ---- contributions --------------------------------------------------------------------------------------------------------- */

enum decision {
	DECIDED_DONE,		/* combined */
	DECIDED_COMPLETE,	/* the frame holds the result's numbers */
	DECIDED_ANSWER,		/* the same, for the one who asked again */
	DECIDED_DUPLICATE,
	DECIDED_STALE,
	DECIDED_FUTURE,
	DECIDED_CORRUPT,
	DECIDED_MISMATCH,
};

/* What is known of a contribution before its slot is locked. */
struct contribution {
	__u64 position;
	__u64 all;		/* bitmap of a complete entry */
	__u32 key;
	__u32 bytes;
	__u32 elements;
	__u32 weight;
	enum sl_coll_rule rule;
	bool may_open;		/* its predecessor in the slot is complete */
	bool members_agree;
};

/* The frequent cases check integrity in the pass that combines; all others after a pass that only checks. */
static __always_inline enum sl_pass pass_for(const struct contribution *c, bool first)
{
	if (first && c->weight == 1)
		return SL_PASS_STORE;
	switch (c->rule) {
	case SL_COLL_ADD32:
		return c->weight == 1 ? SL_PASS_ADD : SL_PASS_WEIGHTED32;
	case SL_COLL_ADD64:
		return SL_PASS_WEIGHTED64;
	case SL_COLL_MAX32:
		return SL_PASS_MAX32;
	case SL_COLL_MAX64:
		return SL_PASS_MAX64;
	case SL_COLL_MIN32:
		return SL_PASS_MIN32;
	case SL_COLL_MIN64:
		return SL_PASS_MIN64;
	}
	return SL_PASS_CHECK;
}

/* With the slot locked. `sums` holds the header; when the frame has become a result, that and its numbers. */
static __always_inline enum decision contribute(const struct contribution *c, struct slot *slot,
						const struct sl_frame *f, struct sl_coll_sums *sums, bool *first)
{
	struct sl_coll_entry *entry = &slot->entry;
	struct sl_coll_header *h = f->h;
	const __u32 integrity = bpf_ntohl(h->integrity);
	const __u64 bit = 1ULL << (c->key & 63);
	enum decision decision = DECIDED_DONE;
	enum sl_pass pass;

	*first = entry->position != c->position + 1;
	if (*first) {
		if (entry->position > c->position + 1)
			decision = DECIDED_STALE;
		else if (!c->may_open)
			decision = DECIDED_FUTURE;
		else if (!c->members_agree)
			decision = DECIDED_MISMATCH;
	} else if (!c->members_agree || !same_shape(entry, h, c->elements)) {
		decision = DECIDED_MISMATCH;
	} else if (entry->bitmap & bit) {
		decision = entry->bitmap == c->all ? DECIDED_ANSWER : DECIDED_DUPLICATE;
	}
	pass = decision != DECIDED_DONE ? SL_PASS_CHECK : pass_for(c, *first);
	if (pass == SL_PASS_STORE) {
		entry->position = c->position;	/* nobody's: what was there is lost, and any packet for it stale */
		sl_each(SL_PASS_STORE, f, c->bytes, slot->values, 1, sums);
	} else if (pass == SL_PASS_ADD) {
		sl_each(SL_PASS_ADD, f, c->bytes, slot->values, 1, sums);
	} else {
		sl_each(SL_PASS_CHECK, f, c->bytes, slot->values, 1, sums);
	}
	if ((__u32)sl_coll_residue(sums) != integrity) {
		if (pass == SL_PASS_ADD)
			sl_each(SL_PASS_SUBTRACT, f, c->bytes, slot->values, 1, sums);
		return DECIDED_CORRUPT;
	}
	if (decision == DECIDED_ANSWER)
		goto answer;
	if (decision != DECIDED_DONE)
		return decision;

	if (*first && pass != SL_PASS_STORE) {
		entry->position = c->position;
		sl_each(SL_PASS_CLEAR, f, c->bytes, slot->values, 1, sums);
	}
	switch (pass) {
	case SL_PASS_WEIGHTED32:
		sl_each(SL_PASS_WEIGHTED32, f, c->bytes, slot->values, c->weight, sums);
		break;
	case SL_PASS_WEIGHTED64:
		sl_each(SL_PASS_WEIGHTED64, f, c->bytes, slot->values, c->weight, sums);
		break;
	case SL_PASS_MAX32:
		sl_each(SL_PASS_MAX32, f, c->bytes, slot->values, 1, sums);
		break;
	case SL_PASS_MAX64:
		sl_each(SL_PASS_MAX64, f, c->bytes, slot->values, 1, sums);
		break;
	case SL_PASS_MIN32:
		sl_each(SL_PASS_MIN32, f, c->bytes, slot->values, 1, sums);
		break;
	case SL_PASS_MIN64:
		sl_each(SL_PASS_MIN64, f, c->bytes, slot->values, 1, sums);
		break;
	default:
		break;
	}
	if (*first) {
		entry->bitmap = 0;
		entry->no_values = 0;
		entry->frag_offset = bpf_ntohl(h->frag_offset);
		entry->elements = c->elements;
		entry->exponent = bpf_ntohs(h->exponent);
		entry->scale_low = bpf_ntohs(h->scale_low);
		entry->op = h->op;
		entry->dtype = h->dtype;
		entry->flags = h->flags & SL_COLL_LAST_FRAGMENT;
		entry->first_key = c->key;
		entry->position = c->position + 1;
	}
	entry->bitmap |= bit;
	if (h->flags & SL_COLL_NO_VALUES)
		entry->no_values |= bit;
	entry->flags |= h->flags & SL_COLL_STICKY;
	if (entry->bitmap != c->all)
		return DECIDED_DONE;
	decision = DECIDED_COMPLETE;
answer:
	h->key = 0;
	h->flags = SL_COLL_RESULT | entry->flags;
	h->exponent = bpf_htons(entry->exponent);
	h->scale_low = bpf_htons(entry->scale_low);
	sums->a = sums->b = 0;
	sl_coll_sum_header(h, sums);
	sl_each(SL_PASS_ANSWER, f, c->bytes, slot->values, 1, sums);
	return decision;
}

static __always_inline void put_residue(struct sl_coll_header *h, __u64 residue, __u32 key, __u32 words)
{
	h->key = bpf_htonl(key);
	h->integrity = bpf_htonl((__u32)sl_coll_residue_with(residue, h->key, words - offsetof(struct sl_coll_header, key) / 4));
}

/* The header alone, complete but for KEY and integrity, becomes the packet. Returns the sum of its words. */
static __always_inline __u64 finish_without_values(struct sl_coll_header *h, __u32 key)
{
	struct sl_coll_sums sums = {};

	h->key = 0;
	h->flags |= SL_COLL_NO_VALUES;
	sl_coll_sum_header(h, &sums);
	put_residue(h, sl_coll_residue(&sums), key, sizeof(*h) / 4 - 1);
	return sums.a + h->key + h->integrity;
}

/* A frame to our port, with our magic and token. Returns the XDP verdict. */
static __always_inline int contribution(struct xdp_md *ctx, __u32 ip_at, bool v6)
{
	struct sl_coll_sums sums = {};
	struct contribution c = {};
	struct slot *slot, *before;
	struct next_hop *hop;
	struct counters *count;
	struct sl_coll_member *member;
	struct sl_coll_header *h;
	struct sl_coll_job *job;
	enum decision decision;
	struct udphdr *udp;
	struct sl_frame f;
	__u32 zero = 0, index, length, size, words;
	bool first, wants_values;
	__u64 residue;

	job = bpf_map_lookup_elem(&sl_coll_job, &zero);
	count = bpf_map_lookup_elem(&sl_coll_counters, &zero);
	if (!job || !count || !sl_frame_at(ctx, ip_at, v6, &f))
		return XDP_PASS;
	h = f.h;
	udp = f.udp;

	c.key = bpf_ntohl(h->key);
	if (c.key >= job->contributors || c.key >= SL_COLL_MEMBERS_MAX || (h->flags & SL_COLL_RESULT)) {
		count->of[SL_COLL_MALFORMED]++;
		return XDP_DROP;
	}
	member = bpf_map_lookup_elem(&sl_coll_members, &c.key);
	hop = bpf_map_lookup_elem(&sl_coll_next_hops, &c.key);
	if (!member || !hop)
		return XDP_DROP;
	if (!sl_is_from(&f, v6, member->addr, member->port)) {
		count->of[SL_COLL_BAD_SOURCE]++;
		return XDP_DROP;
	}
	if (h->version != SL_COLL_VERSION) {
		count->of[SL_COLL_BAD_VERSION]++;
		return XDP_DROP;
	}
	if (bpf_ntohl(h->epoch) >> 16 != job->incarnation) {
		count->of[SL_COLL_OLD_EPOCH]++;
		return XDP_PASS;
	}
	if (READ_ONCE(job->state) != SL_COLL_JOB_RUNS) {
		count->of[SL_COLL_AFTER_FAILURE]++;
		return XDP_PASS;
	}

	length = bpf_ntohs(udp->len);
	c.bytes = length - sizeof(*udp) - sizeof(*h);
	size = wire_size(h->op, h->dtype, bpf_ntohl(h->frag_offset));
	if (length < sizeof(*udp) + sizeof(*h) || c.bytes > SL_COLL_VALUE_BYTES || c.bytes > 4 * (__u32)job->words || !size ||
	    c.bytes & (size - 1) || (void *)(h + 1) + c.bytes > f.end) {
		count->of[SL_COLL_MALFORMED]++;
		return XDP_DROP;
	}
	c.elements = size == 8 ? c.bytes / 8 : c.bytes / 4;
	c.rule = rule_of(h->op, bpf_ntohl(h->frag_offset), size == 8);
	c.weight = is_weighted(h->op, bpf_ntohl(h->frag_offset)) ? member->weight : 1;
	c.position = sl_coll_position(h);
	c.all = ~0ULL >> ((SL_COLL_MEMBERS_MAX - job->contributors) & 63);
	c.members_agree = bpf_ntohs(h->members) == job->members;
	index = c.position & (2 * job->window - 1);
	slot = bpf_map_lookup_elem(&sl_coll_slots, &index);
	index = (c.position - job->window) & (2 * job->window - 1);
	before = bpf_map_lookup_elem(&sl_coll_slots, &index);
	if (!slot || !before)
		return XDP_DROP;
	/* Not locked: once it is complete it stays so for as long as this position can be opened. */
	c.may_open = c.position < job->window ||
		     (READ_ONCE(before->entry.position) == c.position - job->window + 1 && READ_ONCE(before->entry.bitmap) == c.all);
	wants_values = !(h->flags & SL_COLL_NO_VALUES);
	sl_coll_sum_header(h, &sums);

	bpf_spin_lock(&slot->lock);
	decision = contribute(&c, slot, &f, &sums, &first);
	bpf_spin_unlock(&slot->lock);

	if (decision == DECIDED_CORRUPT) {
		count->of[SL_COLL_CORRUPT]++;
		return XDP_DROP;
	}
	/* It is a packet of this member's, whatever becomes of it. */
	member->heard_ns = bpf_ktime_get_coarse_ns();
	__builtin_memcpy(hop->member, f.eth->h_source, ETH_ALEN);
	__builtin_memcpy(hop->ours, f.eth->h_dest, ETH_ALEN);
	if (v6)
		__builtin_memcpy(hop->address, &((struct ipv6hdr *)f.ip)->daddr, sizeof(struct in6_addr));
	else
		__builtin_memcpy(hop->address, &((struct iphdr *)f.ip)->daddr, sizeof(__be32));
	switch (decision) {
	case DECIDED_STALE:
		count->of[SL_COLL_STALE]++;
		return XDP_DROP;
	case DECIDED_FUTURE:
		count->of[SL_COLL_FUTURE]++;
		return XDP_DROP;
	case DECIDED_MISMATCH:
		count->of[SL_COLL_MISMATCHED]++;
		WRITE_ONCE(job->state, SL_COLL_JOB_FAILED);
		return XDP_PASS;	/* user space compares it with the entry, and tells everybody */
	case DECIDED_DUPLICATE:
		count->of[SL_COLL_DUPLICATE]++;
		return h->flags & SL_COLL_ACK_REQUEST ? XDP_PASS : XDP_DROP;
	case DECIDED_ANSWER:
		count->of[SL_COLL_ANSWERED]++;
		break;
	case DECIDED_COMPLETE:
		count->of[SL_COLL_COMPLETED]++;
		/* fall through */
	default:
		count->of[first ? SL_COLL_FIRST : SL_COLL_ADDED]++;
		if (decision != DECIDED_COMPLETE)
			return XDP_DROP;
	}

	words = sizeof(*h) / 4 - 1 + c.bytes / 4;
	residue = sl_coll_residue(&sums);
	if (decision == DECIDED_COMPLETE) {
		h->version = 0;
		h->key = bpf_htonl(residue >> 32);
		h->integrity = bpf_htonl((__u32)residue);
		udp->check = sl_fold(sums.a);
		return bpf_redirect_map(&sl_coll_fan, 0, BPF_F_BROADCAST);
	}
	if (wants_values) {
		put_residue(h, residue, c.key, words);
		sums.a += h->key;
		sums.a += h->integrity;
	} else {
		sums.a = finish_without_values(h, c.key);
		if (!cut_values(ctx, ip_at, v6, &f))
			return XDP_DROP;
	}
	address(&f, v6, member, hop, job->port, sums.a);
	return bpf_redirect_map(&sl_coll_fan, c.key, XDP_DROP);
}

/* Functions of their own: verified once, with or without a VLAN tag. */
__noinline int sl_coll_contribution_v4(struct xdp_md *ctx, __u32 ip_at)
{
	return contribution(ctx, ip_at, false);
}

__noinline int sl_coll_contribution_v6(struct xdp_md *ctx, __u32 ip_at)
{
	return contribution(ctx, ip_at, true);
}

SEC("xdp")
int sl_coll_aggregate(struct xdp_md *ctx)
{
	bool v6 = false;
	__u32 ip_at = sl_ip_at(ctx, &v6), zero = 0;
	struct counters *count;
	struct sl_coll_header *h;
	struct sl_coll_job *job;
	struct sl_frame f;

	job = bpf_map_lookup_elem(&sl_coll_job, &zero);
	count = bpf_map_lookup_elem(&sl_coll_counters, &zero);
	if (!ip_at || !job || !count || !sl_frame_at(ctx, ip_at, v6, &f) || f.udp->dest != job->port)
		return XDP_PASS;
	h = f.h;
	if (h->magic != bpf_htonl(SL_COLL_MAGIC_AGGREGATE) && h->magic != bpf_htonl(SL_COLL_MAGIC_CONTROL))
		return XDP_PASS;
	count->of[SL_COLL_RECEIVED]++;
	if (!sl_coll_is_job(h, job->job, job->token)) {
		count->of[SL_COLL_BAD_TOKEN]++;
		return XDP_PASS;
	}
	if (h->magic == bpf_htonl(SL_COLL_MAGIC_CONTROL))
		return XDP_PASS;
	return v6 ? sl_coll_contribution_v6(ctx, ip_at) : sl_coll_contribution_v4(ctx, ip_at);
}

/* ---- on the way out ----------------------------------------------------------------------------------------------------------- */

/* Which KEY this copy of the result at `position` is for; -1: more copies than there are KEYs behind the interface. */
static __always_inline int next_key(__u32 ifindex, __u64 position)
{
	struct sl_coll_copies *copies = bpf_map_lookup_elem(&sl_coll_copies, &ifindex);

	if (!copies)
		return -1;
	if (copies->position != position + 1 || copies->next >= copies->count) {
		copies->position = position + 1;
		copies->next = 0;
	}
	return copies->keys[copies->next++ & (SL_COLL_MEMBERS_MAX - 1)];
}

/* A copy of a result, or an answer: see the head of this file. */
static __always_inline int address_copy(struct xdp_md *ctx, __u32 ip_at, bool v6)
{
	struct next_hop *hop;
	struct sl_coll_member *member;
	struct sl_coll_header *h;
	struct slot *slot;
	struct sl_coll_job *job;
	struct sl_frame f;
	__u64 position, residue, sum;
	__u32 zero = 0, index, key;
	int found;

	job = bpf_map_lookup_elem(&sl_coll_job, &zero);
	if (!job || !sl_frame_at(ctx, ip_at, v6, &f))
		return XDP_DROP;
	h = f.h;
	if (h->version)
		return XDP_PASS;
	h->version = SL_COLL_VERSION;
	position = sl_coll_position(h);
	found = next_key(ctx->egress_ifindex, position);
	if (found < 0)
		return XDP_DROP;
	key = found;
	index = position & (2 * job->window - 1);
	member = bpf_map_lookup_elem(&sl_coll_members, &key);
	hop = bpf_map_lookup_elem(&sl_coll_next_hops, &key);
	slot = bpf_map_lookup_elem(&sl_coll_slots, &index);
	if (!member || !hop || !slot)
		return XDP_DROP;

	/* The entry is complete: nothing of it changes before all have this result. */
	if (slot->entry.no_values & 1ULL << (key & 63)) {
		sum = finish_without_values(h, key);
		if (!cut_values(ctx, ip_at, v6, &f))
			return XDP_DROP;
	} else {
		residue = (__u64)bpf_ntohl(h->key) << 32 | bpf_ntohl(h->integrity);
		put_residue(h, residue, key, (bpf_ntohs(f.udp->len) - sizeof(*f.udp)) / 4 - 1);
		sum = (__u64)f.udp->check + h->key + h->integrity;
	}
	address(&f, v6, member, hop, job->port, sum);
	return XDP_PASS;
}

SEC("xdp/devmap")
int sl_coll_copy(struct xdp_md *ctx)
{
	bool v6 = false;
	__u32 ip_at = sl_ip_at(ctx, &v6);

	if (!ip_at)
		return XDP_DROP;
	return v6 ? address_copy(ctx, ip_at, true) : address_copy(ctx, ip_at, false);
}
