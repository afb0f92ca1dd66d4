/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The numbers of a chunk, between a frame and a map: one unrolled pass over both does what is asked, and sums the payload for `integrity`.
 */
#ifndef SLUICE_BPF_COLL_VALUES_H
#define SLUICE_BPF_COLL_VALUES_H

#include "coll.bpf.h"

#define SL_COLL_VALUE_BYTES (SL_COLL_WORDS_MAX * 4)
#define SL_COLL_BLOCK 64	/* bytes that are bounds-checked together */

/* What is done to each word of a payload and of the values in a map. */
enum sl_pass {
	/* these sum the payload, as it is afterwards */
	SL_PASS_CHECK,	/* and nothing else */
	SL_PASS_STORE,	/* write it into the slot */
	SL_PASS_ADD,	/* add it to the slot */
	SL_PASS_ANSWER,	/* write the slot into it */
	/* these do not */
	SL_PASS_TAKE,	/* write it into the slot */
	SL_PASS_GIVE,	/* write the slot into it */
	SL_PASS_SUBTRACT,	/* take it out of the slot again */
	SL_PASS_CLEAR,	/* the slot becomes zeroes */
	SL_PASS_WEIGHTED32, SL_PASS_WEIGHTED64, SL_PASS_MAX32, SL_PASS_MAX64, SL_PASS_MIN32, SL_PASS_MIN64,
};

static __always_inline bool sl_is_wide(enum sl_pass pass)
{
	return pass == SL_PASS_WEIGHTED64 || pass == SL_PASS_MAX64 || pass == SL_PASS_MIN64;
}

static __always_inline bool sl_copies(enum sl_pass pass)
{
	return pass == SL_PASS_TAKE || pass == SL_PASS_GIVE;
}

static __always_inline void sl_one_wide(enum sl_pass pass, const __s64 *payload, __s64 *value, __u32 operand)
{
	__s64 in = *payload;

	if (pass == SL_PASS_WEIGHTED64)
		*value += (__u64)in * operand;
	else if (pass == SL_PASS_MAX64 ? in > *value : in < *value)
		*value = in;
}

static __always_inline void sl_one_word(enum sl_pass pass, __u32 *payload, __u32 *value, __u32 operand, struct sl_coll_sums *sums)
{
	__u32 word = 0;

	if (pass == SL_PASS_ANSWER || pass == SL_PASS_GIVE)
		word = *value;
	else if (pass != SL_PASS_CLEAR)
		word = *payload;
	switch (pass) {
	case SL_PASS_STORE:
	case SL_PASS_TAKE:
	case SL_PASS_CLEAR:
		*value = word;
		break;
	case SL_PASS_ADD:
		*value += word;
		break;
	case SL_PASS_ANSWER:
	case SL_PASS_GIVE:
		*payload = word;
		break;
	case SL_PASS_SUBTRACT:
		*value -= word;
		break;
	case SL_PASS_WEIGHTED32:
		*value += word * operand;
		break;
	case SL_PASS_MAX32:
		if ((__s32)word > (__s32)*value)
			*value = word;
		break;
	case SL_PASS_MIN32:
		if ((__s32)word < (__s32)*value)
			*value = word;
		break;
	default:
		break;
	}
	if (pass <= SL_PASS_ANSWER)
		sl_coll_sum(sums, word);
}

/* Copies that the verifier does not tie to the original: what it learns of them in a loop would make every turn's end another state. */
static __always_inline __u32 sl_untied(__u32 value)
{
	asm volatile("%0 &= 0xffff" : "+r"(value));
	return value;
}

/*
 * `bytes` of payload, a multiple of the word, and all in the frame; at most `place`, a constant. `operand`: the weight.
 */
static __always_inline void sl_each_of(__u32 place, enum sl_pass pass, const struct sl_frame *f, __u32 bytes, __u8 *values,
				       __u32 operand, struct sl_coll_sums *sums)
{
	void *payload = (void *)f->eth + sl_bounded((void *)(f->h + 1) - (void *)f->eth);
	__u32 whole = sl_untied(bytes) & ~(SL_COLL_BLOCK - 1), tail = sl_untied(bytes) & ~(SL_COLL_BLOCK - 1);
	__u32 rest = sl_untied(bytes) & (SL_COLL_BLOCK - 1);
	__u32 step = sl_is_wide(pass) ? 8 : 4, at, i;
	void *from, *to;

	for (at = 0; at < place && at < whole; at += SL_COLL_BLOCK) {
		from = payload + at;
		to = values + at;
		if (from + SL_COLL_BLOCK > f->end)
			return;
#pragma unroll
		for (i = 0; i < SL_COLL_BLOCK / 4; i++) {
			if (sl_copies(pass)) {
				if (i % 2 == 0 && pass == SL_PASS_TAKE)
					*(__u64 *)(to + 4 * i) = *(__u64 *)(from + 4 * i);
				else if (i % 2 == 0)
					*(__u64 *)(from + 4 * i) = *(__u64 *)(to + 4 * i);
			} else if (!sl_is_wide(pass)) {
				sl_one_word(pass, from + 4 * i, to + 4 * i, operand, sums);
			} else if (i % 2 == 0) {
				sl_one_wide(pass, from + 4 * i, to + 4 * i, operand);
			}
		}
	}
	if (tail > place - SL_COLL_BLOCK)
		return;
	from = payload + tail;
	to = values + tail;
	for (i = 0; i < SL_COLL_BLOCK - step && i < rest; i += step) {
		if (from + i + step > f->end)
			return;
		if (sl_is_wide(pass))
			sl_one_wide(pass, from + i, to + i, operand);
		else
			sl_one_word(pass, from + i, to + i, operand, sums);
	}
}

static __always_inline void sl_each(enum sl_pass pass, const struct sl_frame *f, __u32 bytes, __u8 *values, __u32 operand,
				    struct sl_coll_sums *sums)
{
	sl_each_of(SL_COLL_VALUE_BYTES, pass, f, bytes, values, operand, sums);
}

#endif
