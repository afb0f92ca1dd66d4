/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From TCP timestamps (RFC 7323) to the one-way delay of the data that a connection sends: arithmetic only, so that it is
 * tested without a kernel. The program (owd.bpf.c) keeps one struct owd_state per socket.
 *
 * An acknowledgement carries two clocks: TSecr, ours when we sent the segment that it answers, and TSval, the peer's when it
 * answered.
 *
 *   TSval - TSecr = delay of the segment + time until it was acknowledged + offset of the clocks
 *
 * The offset is unknown and constant, so the smallest difference is subtracted, and what remains is the delay above the
 * smallest.
 *
 * 1. Only acknowledgements of something new count: a duplicate repeats the TSecr of the segment before a hole.
 * 2. Both clocks must tick in milliseconds, as Linux's do (RFC 7323 allows 1 ms to 1 s, and tcp_usec_ts makes it 1 us). That
 * shows within OWD_PROOF_MS: both must have advanced by between half and twice the local time. Until then there is no sample,
 * after OWD_PATIENCE_MS there never is one.
 * 3. Clocks drift (50 ppm is 3 ms in a minute), so the smallest is that of this OWD_WINDOW_MS and the one before.
 */
#ifndef OWD_DELAY_H
#define OWD_DELAY_H

#define OWD_PROOF_MS 100
#define OWD_PATIENCE_MS 10000
#define OWD_WINDOW_MS 60000

enum owd_clock { OWD_CLOCK_UNKNOWN = 0, OWD_CLOCK_MS, OWD_CLOCK_OTHER };

enum owd_verdict {
  OWD_SAMPLE,         /* *delay_us is one */
  OWD_NOTHING_NEW,    /* acknowledges what was acknowledged before */
  OWD_CLOCK_UNPROVEN, /* too early to say how fast the clocks tick */
  OWD_CLOCK_FOREIGN,  /* not in milliseconds: no samples of this connection */
};

/* One writer at a time: packets of one connection that arrive on two CPUs at once may cost a sample. */
struct owd_state {
  __u64 first_ns;    /* when the first acknowledgement came; 0 = none so far */
  __u64 window_ns;   /* when this window began */
  __u32 first_tsval; /* what it carried */
  __u32 first_tsecr;
  __u32 ack;         /* highest acknowledged sequence number */
  __u32 base;        /* smallest difference of this window, milliseconds; wraps */
  __u32 base_before; /* ... of the window before */
  __u32 clock;       /* enum owd_clock */
};

static inline __u32 owd_smaller(__u32 a, __u32 b) { return (__s32)(a - b) < 0 ? a : b; }

static inline int owd_clock_ticks_ms(__u32 ticks, __u64 elapsed_ms) {
  return ticks >= elapsed_ms / 2 && ticks <= 2 * elapsed_ms;
}

static inline enum owd_verdict owd_take(struct owd_state* s, __u32 ack, __u32 tsval, __u32 tsecr, __u64 now_ns,
                                        __u32* delay_us) {
  __u32 difference = tsval - tsecr;
  __u32 above;

  if (!s->first_ns) {
    s->first_ns = s->window_ns = now_ns;
    s->first_tsval = tsval;
    s->first_tsecr = tsecr;
    s->ack = ack;
    s->base = s->base_before = difference;
    s->clock = OWD_CLOCK_UNKNOWN;
    return OWD_CLOCK_UNPROVEN;
  }
  if ((__s32)(ack - s->ack) <= 0) return OWD_NOTHING_NEW;
  s->ack = ack;
  if (s->clock == OWD_CLOCK_OTHER) return OWD_CLOCK_FOREIGN;

  if (now_ns - s->window_ns >= OWD_WINDOW_MS * 1000000ULL) {
    s->base_before = s->base;
    s->base = difference;
    s->window_ns = now_ns;
  } else {
    s->base = owd_smaller(difference, s->base);
  }

  if (s->clock == OWD_CLOCK_UNKNOWN) {
    __u64 elapsed_ms = (now_ns - s->first_ns) / 1000000;

    if (elapsed_ms < OWD_PROOF_MS) return OWD_CLOCK_UNPROVEN;
    if (!owd_clock_ticks_ms(tsval - s->first_tsval, elapsed_ms) || !owd_clock_ticks_ms(tsecr - s->first_tsecr, elapsed_ms)) {
      if (elapsed_ms < OWD_PATIENCE_MS) return OWD_CLOCK_UNPROVEN;
      s->clock = OWD_CLOCK_OTHER;
      return OWD_CLOCK_FOREIGN;
    }
    s->clock = OWD_CLOCK_MS;
  }

  above = difference - owd_smaller(s->base, s->base_before);
  *delay_us = above > 0xffffffffU / 1000 ? 0xffffffffU : above * 1000;
  return OWD_SAMPLE;
}

#endif
