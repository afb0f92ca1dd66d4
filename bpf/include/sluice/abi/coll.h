/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The collective protocol, version 1: packets, slots, limits, counters. docs/protocol.md says what they mean.
 *
 * Packets: the header is big-endian, payloads are little-endian (__le types). Maps: host order.
 */
#ifndef SLUICE_ABI_COLL_H
#define SLUICE_ABI_COLL_H

#include "types.h"

#define SL_COLL_VERSION 1

#define SL_COLL_MAGIC_AGGREGATE 0x534c4341u	/* "SLCA" */
#define SL_COLL_MAGIC_BROADCAST 0x534c4342u	/* "SLCB" */
#define SL_COLL_MAGIC_CONTROL 0x534c4343u	/* "SLCC" */

/* Limits. */
#define SL_COLL_MEMBERS_MAX 64		/* of one aggregator: bits of a bitmap */
#define SL_COLL_TOTAL_MAX 1023		/* of a job that adds floats: 10-bit counts of NaN and infinities */
#define SL_COLL_DESTINATIONS_MAX 32	/* bits of MASK */
#define SL_COLL_WINDOW_MAX 128		/* slots W; a power of two, at least 1 */
#define SL_COLL_WORDS_MIN 16		/* words of 4 bytes in a full chunk */
#define SL_COLL_WORDS_DEFAULT 352	/* fits an MTU of 1500 over IPv4 and IPv6 */
#define SL_COLL_WORDS_MAX 832		/* fits an MTU of 3500 */
#define SL_COLL_WEIGHTS_MAX 65535	/* sum of weights of a job that adds floats */
#define SL_COLL_GROUP_DEFAULT 1024	/* packets of a broadcast that share an acknowledgement */
#define SL_COLL_GROUP_MAX 1024		/* bits of a GROUP_ACK */

/* Header of every packet, right after UDP. */
struct sl_coll_header {
	__be32 magic;
	__be32 key;		/* KEY of a member; broadcast: MASK of destinations */
	__be32 seq;		/* low 32 bits of the position */
	__be32 frag_offset;	/* elements; or SL_COLL_FRAG_* */
	__u8 op;		/* enum sl_coll_op; control: enum sl_coll_control */
	__u8 dtype;		/* enum sl_coll_dtype, SL_COLL_FIXED_SCALE */
	__u8 flags;		/* enum sl_coll_flags */
	__u8 version;		/* SL_COLL_VERSION */
	__be16 job;
	__be16 members;		/* of the job */
	__be32 epoch;		/* incarnation << 16 | bits 32..47 of the position */
	__be16 exponent;	/* signed; broadcast: KEY of the sender; fixed scale: upper half of the scale's bits */
	__be16 scale_low;	/* fixed scale: lower half, else 0 */
	__be32 integrity;	/* over the packet as little-endian words, without this one */
	__be32 token[2];	/* upper half first: 8-byte alignment would move it */
};
SL_ASSERT_SIZE(struct sl_coll_header, 44);

/*
 * integrity: a += w, b += a over the words, in 64 bits from 0; then the low 32 bits of
 * (SL_COLL_INTEGRITY_B * b + SL_COLL_INTEGRITY_A * a) % SL_COLL_INTEGRITY_PRIME. A last word of less than 4 bytes is zero-filled.
 */
#define SL_COLL_INTEGRITY_A 15
#define SL_COLL_INTEGRITY_B 2
#define SL_COLL_INTEGRITY_PRIME 4294967311ULL	/* 2^32 + 15 */

enum sl_coll_op {
	SL_COLL_SUM = 1,
	SL_COLL_COUNT = 2,
	SL_COLL_MAX = 3,
	SL_COLL_MIN = 4,
	SL_COLL_AVERAGE = 5,
	SL_COLL_BARRIER = 6,
	SL_COLL_OP_COUNT = 7,
};

enum sl_coll_dtype {
	SL_COLL_NONE = 0,	/* of a barrier */
	SL_COLL_I32 = 1,
	SL_COLL_I64 = 2,
	SL_COLL_F32 = 3,
	SL_COLL_F16 = 4,
	SL_COLL_BF16 = 5,
	SL_COLL_DTYPE_COUNT = 6,
};
#define SL_COLL_FIXED_SCALE 0x80	/* in dtype, floats only */

enum sl_coll_flags {
	SL_COLL_LAST_FRAGMENT = 1 << 0,
	SL_COLL_RESULT = 1 << 1,	/* from the aggregator */
	SL_COLL_ACK_REQUEST = 1 << 2,
	SL_COLL_NAN = 1 << 3,
	SL_COLL_POS_INF = 1 << 4,
	SL_COLL_NEG_INF = 1 << 5,
	SL_COLL_NO_VALUES = 1 << 6,	/* the sender wants the result's header only; such a result carries it */
	SL_COLL_OVERFLOW = 1 << 7,
};
#define SL_COLL_SPECIAL (SL_COLL_NAN | SL_COLL_POS_INF | SL_COLL_NEG_INF)
#define SL_COLL_STICKY (SL_COLL_SPECIAL | SL_COLL_OVERFLOW)	/* ORed over contributions into the result */

/* frag_offset beyond the elements of a call. */
#define SL_COLL_FRAG_SPECIAL 0x80000000u	/* counts of NaN and infinities of the chunk at the other 31 bits */
#define SL_COLL_FRAG_EXPONENTS 0xffffffffu	/* exponents of the call's chunks */
#define SL_COLL_ELEMENTS_MAX 0x7fffffffu

/* What the aggregator does with wire words: follows from op, dtype and frag_offset. */
enum sl_coll_rule {
	SL_COLL_ADD32 = 0,
	SL_COLL_ADD64 = 1,
	SL_COLL_MAX32 = 2,
	SL_COLL_MAX64 = 3,
	SL_COLL_MIN32 = 4,
	SL_COLL_MIN64 = 5,
};

/* Block floating point. */
#define SL_COLL_MANTISSA_BITS 30		/* |m| <= 2^30 */
#define SL_COLL_EXPONENT_NONE (-32768)	/* no finite value other than zero */
#define SL_COLL_COUNT_BITS 10			/* NaN | +inf << 10 | -inf << 20 */

enum sl_coll_control {
	SL_COLL_JOIN = 1,	/* sl_coll_join */
	SL_COLL_ACCEPT = 2,	/* sl_coll_accept */
	SL_COLL_REFUSED = 3,	/* sl_coll_accept */
	SL_COLL_ALIVE = 4,	/* answered with sl_coll_status, bitmap 0 */
	SL_COLL_LEAVE = 5,	/* answered with itself */
	SL_COLL_STATUS = 6,	/* sl_coll_status */
	SL_COLL_ABORT = 7,	/* sl_coll_failure, from a member */
	SL_COLL_MISMATCH = 8,	/* this and below: sl_coll_failure, from the aggregator */
	SL_COLL_MEMBER_DEAD = 9,
	SL_COLL_ABORTED = 10,
	SL_COLL_JOB_GONE = 11,
	SL_COLL_EPOCH = 12,
	SL_COLL_GROUP_ACK = 13,	/* sl_coll_group_ack, from a receiver of a broadcast to its sender */
};

enum sl_coll_mode {
	SL_COLL_KERNEL = 1,
	SL_COLL_FALLBACK = 2,	/* src/coll/model */
};

enum sl_coll_reason {
	SL_COLL_OK = 0,
	SL_COLL_REASON_VERSION = 1,	/* protocol version */
	SL_COLL_REASON_MEMBERS = 2,	/* KEY beyond the job's members, or beyond 64 */
	SL_COLL_REASON_GEOMETRY = 3,	/* another window, chunk size, number of members or sum of weights */
	SL_COLL_REASON_TAKEN = 4,	/* another process joined under this KEY */
	SL_COLL_REASON_SILENT = 5,	/* not heard within the time */
	SL_COLL_REASON_LEFT = 6,	/* left while others still call */
	SL_COLL_REASON_DEADLINE = 7,	/* its deadline passed */
	SL_COLL_REASON_MEMBER = 8,	/* its program gave up for a reason of its own */
	SL_COLL_REASON_FAILED = 9,	/* the job has failed */
	SL_COLL_REASON_GONE = 10,	/* the job was destroyed */
};

/* Payload of JOIN. */
struct sl_coll_join {
	__le64 instance;	/* random: tells a repeated JOIN from a second process */
	__le64 weight_sum;
	__le16 window;
	__le16 words;		/* of a full chunk */
	__u8 mode;		/* enum sl_coll_mode */
	__u8 pad[3];
};
SL_ASSERT_SIZE(struct sl_coll_join, 24);

/* Payload of ACCEPT and REFUSED; the header's epoch is the job's. */
struct sl_coll_accept {
	__le64 instance;	/* of the JOIN that is answered */
	__le64 joined;		/* bitmap of KEYs */
	__le64 fallback;	/* of those in SL_COLL_FALLBACK */
	__le64 weight_sum;
	__le16 window;
	__le16 words;
	__u8 reason;		/* enum sl_coll_reason */
	__u8 version;		/* the aggregator's */
	__u8 pad[2];
};
SL_ASSERT_SIZE(struct sl_coll_accept, 40);

/* Payload of STATUS (who has contributed to the position of the header) and of an answered ALIVE. */
struct sl_coll_status {
	__le64 bitmap;
	__le64 joined;
	__le64 fallback;
};
SL_ASSERT_SIZE(struct sl_coll_status, 24);

/* What one member said about a chunk: all members must say the same. */
struct sl_coll_shape {
	__le32 frag_offset;
	__le32 elements;
	__le16 members;
	__le16 exponent;
	__le16 scale_low;
	__u8 op;
	__u8 dtype;
	__u8 last;		/* LAST_FRAGMENT */
	__u8 pad[3];
};
SL_ASSERT_SIZE(struct sl_coll_shape, 20);

/* Payload of ABORT and of what tells that a job failed. */
struct sl_coll_failure {
	__le64 missing;		/* ABORT, ABORTED: bitmap of members that had not contributed, as far as known */
	__u8 reason;		/* enum sl_coll_reason */
	__u8 key_a;		/* MISMATCH: first side; else whom it is about */
	__u8 key_b;		/* MISMATCH: second side */
	__u8 pad[5];
	struct sl_coll_shape a;	/* MISMATCH only */
	struct sl_coll_shape b;
};
SL_ASSERT_SIZE(struct sl_coll_failure, 56);

/* Payload of GROUP_ACK; the header's seq and epoch are the next position expected, its key is the receiver's KEY. */
struct sl_coll_group_ack {
	__le32 bits;		/* how many of bitmap are meaningful */
	__le32 room;		/* packets from the next one expected on that can be held */
	__u8 bitmap[SL_COLL_GROUP_MAX / 8];	/* bit i: next + i has been received */
};
SL_ASSERT_SIZE(struct sl_coll_group_ack, 136);

/*
 * A job at its aggregator. Writer: the agent. Readers: the XDP program, the model. `state` is also written by the reader that
 * finds a MISMATCH.
 */
enum sl_coll_job_state {
	SL_COLL_JOB_RUNS = 0,
	SL_COLL_JOB_FAILED = 1,	/* every packet is answered with the failure */
	SL_COLL_JOB_IS_GONE = 2,
};
struct sl_coll_job {
	__u64 token;
	__u64 weight_sum;
	__u16 job;
	__u16 members;		/* of the job, 1..SL_COLL_TOTAL_MAX: what headers say */
	__u16 contributors;	/* of this aggregator, 1..SL_COLL_MEMBERS_MAX: KEYs 0 to contributors - 1 */
	__u16 incarnation;	/* from 1 */
	__u16 window;		/* slots W */
	__u16 words;		/* of a full chunk */
	__be16 port;		/* UDP, of the aggregator */
	__u8 state;		/* enum sl_coll_job_state */
	__u8 pad;
};
SL_ASSERT_SIZE(struct sl_coll_job, 32);

/* A member at its aggregator, by KEY. Writer: the agent; heard_ns: the reader. */
struct sl_coll_member {
	__u8 addr[16];		/* IPv4 as ::ffff:a.b.c.d; packets must come from here */
	__be16 port;
	__u16 pad;
	__u32 weight;		/* 1 unless the job has weights */
	__u64 heard_ns;		/* CLOCK_MONOTONIC of its last packet; 0 = never */
};
SL_ASSERT_SIZE(struct sl_coll_member, 32);

/*
 * Head of one of the 2W entries; index = position mod 2W. Values, and in the kernel a spin lock around all of it, lie beside it.
 * Writer and reader: whoever aggregates.
 */
struct sl_coll_entry {
	__u64 position;		/* + 1; 0 = never used */
	__u64 bitmap;		/* who has contributed; complete = all members */
	__u64 no_values;	/* who wants the header only */
	__u32 frag_offset;
	__u16 elements;
	__s16 exponent;
	__s16 scale_low;
	__u8 op;
	__u8 dtype;
	__u8 flags;		/* sticky ones so far, and LAST_FRAGMENT */
	__u8 first_key;		/* whose shape this is: one side of a MISMATCH */
	__u8 pad[2];
};
SL_ASSERT_SIZE(struct sl_coll_entry, 40);

/* Offsets in a value of map sl_coll_slots, which begins with the kernel's own spin lock. */
#define SL_COLL_SLOT_ENTRY 8	/* struct sl_coll_entry */
#define SL_COLL_SLOT_VALUES 64	/* SL_COLL_WORDS_MAX words */

/*
 * Value of sl_coll_copies (per-CPU hash, key: ifindex): whom the copies of a result that leave by an interface are for. Writer of count and
 * keys: the agent, for every CPU, in the order of sl_coll_fan; of the rest: the egress program.
 */
struct sl_coll_copies {
	__u64 position;		/* + 1, of the result that is under way */
	__u32 next;		/* copies of it that have left */
	__u32 count;
	__u8 keys[SL_COLL_MEMBERS_MAX];
};
SL_ASSERT_SIZE(struct sl_coll_copies, 80);

/*
 * A member's kernel side (bundle `member`) carries the chunks of a call that user space has laid out: it takes results, and answers each
 * with the chunk W further on.
 */

/* The only value of map sl_coll_call. Writer: user space, while chunks is 0; `done`: the program. */
struct sl_coll_call {
	__u64 token;
	__u64 position;		/* of chunk 0 */
	__u64 done;		/* chunks whose results were taken */
	__u8 aggregator[16];	/* IPv4 as ::ffff:a.b.c.d */
	__be16 aggregator_port;
	__be16 port;		/* UDP, the member's own */
	__u16 job;
	__u16 members;
	__u16 incarnation;
	__u16 window;		/* slots W */
	__u32 chunks;		/* 0 = no call: whatever comes is user space's */
	__u32 first_element;	/* of chunk 0 */
	__u32 chunk_elements;
	__u32 chunk_bytes;	/* of payload */
	__u32 last_bytes;	/* of the last chunk */
	__u8 key;
	__u8 op;
	__u8 dtype;
	__u8 pad;
	__s16 scale_low;
	__u16 pad1;
	__u32 rtt_ns;		/* writer: the program; of a chunk that it sent itself, the last one */
	__u32 pad2;
};
SL_ASSERT_SIZE(struct sl_coll_call, 88);

/* A slot of a member; index = position mod W. Writers: user space at the start of a call and when it sends again, else the program. */
struct sl_coll_flight {
	__u64 position;		/* + 1, of the chunk whose result is missing; 0 = none; SL_COLL_FLIGHT_TAKEN = being taken */
	__u64 sent_ns;		/* CLOCK_MONOTONIC when the program sent it; 0 = user space did, or has to */
};
SL_ASSERT_SIZE(struct sl_coll_flight, 16);
#define SL_COLL_FLIGHT_TAKEN (~0ULL)

/* A chunk of a call, beside its numbers in map sl_coll_values. */
struct sl_coll_chunk {
	__u64 sum_a;		/* of `integrity`, over the contribution's payload alone */
	__u64 sum_b;
	__s16 exponent;		/* of its header */
	__u8 flags;		/* of its header */
	__u8 result_flags;	/* writer: the program */
	__u32 pad;
};
SL_ASSERT_SIZE(struct sl_coll_chunk, 24);

enum sl_coll_member_counter {
	SL_COLL_MEMBER_TAKEN = 0,	/* results */
	SL_COLL_MEMBER_UNEXPECTED,	/* of the call, but not outstanding: copies. Dropped, as all below */
	SL_COLL_MEMBER_CORRUPT,		/* integrity, or not what was asked for */
	SL_COLL_MEMBER_SENT,		/* chunks that answered a result */
	SL_COLL_MEMBER_NO_ROOM,		/* frame could not grow to the next chunk: user space sends it */
	SL_COLL_MEMBER_COUNTER_COUNT,
};

/* Jobs, or streams of them, that share an interface: entries of maps sl_coll_ports and sl_coll_programs. */
#define SL_COLL_PORTS_MAX 64

enum sl_coll_dispatch_counter {
	SL_COLL_DISPATCH_UNCLAIMED = 0,	/* no program for this port. To the host's stack, as below */
	SL_COLL_DISPATCH_GONE,		/* its job ended at this moment */
	SL_COLL_DISPATCH_COUNTER_COUNT,
};

/* Counters of an aggregator: index into the only, per-CPU value of map sl_coll_counters, and of the model. */
enum sl_coll_counter {
	SL_COLL_RECEIVED = 0,		/* packets with our magic */
	SL_COLL_BAD_TOKEN,		/* unknown job or wrong token: left to the host's stack */
	SL_COLL_BAD_SOURCE,		/* not the address of this KEY; dropped, as all below */
	SL_COLL_BAD_VERSION,
	SL_COLL_MALFORMED,		/* length, op, dtype or KEY impossible */
	SL_COLL_CORRUPT,		/* integrity */
	SL_COLL_OLD_EPOCH,		/* answered with EPOCH */
	SL_COLL_FIRST,			/* opened an entry */
	SL_COLL_ADDED,
	SL_COLL_COMPLETED,
	SL_COLL_DUPLICATE,		/* of an incomplete entry */
	SL_COLL_ANSWERED,		/* duplicate of a complete entry: stored result sent */
	SL_COLL_STALE,
	SL_COLL_FUTURE,
	SL_COLL_STATUS_SENT,
	SL_COLL_MISMATCHED,
	SL_COLL_AFTER_FAILURE,		/* answered with the failure */
	SL_COLL_COUNTER_COUNT,
};

#endif
