/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The CCA SDK: write a TCP congestion control in a few hundred lines of BPF C and get identity, policy, parameters, hand-over,
 * counters and the logger from here. docs/cca-authors.md is the tutorial; bpf/cca/cubic a complete example.
 *
 *	struct mine { struct sl_core core; u32 w; };	 private state, first member `core`, at most 104 bytes
 *	SL_PRIVATE(struct mine);			 sl_priv(sk), sizes asserted
 *	SL_PARAMS(struct mine_params, .gain = 4);	 sl_param(core), with these defaults
 *	SL_INIT(sk, learned) { ... }			 required; learned = the CCA before left this, or NULL
 *	SL_RELEASE(sk, learned) { ... }			 required; fill what the next CCA may use
 *	SL_SSTHRESH(sk) { ... }	 SL_UNDO_CWND(sk) { ... }  SL_CONG_AVOID(sk, ack, acked) { ... }	required by the kernel
 *	SL_CCA(mine, .ssthresh = SL_HOOK(ssthresh), ...);	declares it; init and release are there already
 *
 * The per-RTT point. One hook that runs at every ACK (pkts_acked, or cong_control) has to call the SDK once per RTT:
 *
 *	if (sl_rtt_ended(sk, core)) {
 *		struct sl_round round;
 *		sl_rtt_next(sk, core, &round);		 what happened in the RTT that ended; the next one begins
 *		... the CCA's own per-RTT work ...
 *		sl_log(sk, core, &round, alpha, own0, own1);
 *		if (sl_follow_policy(sk, core, &round))
 *			return;				 the socket runs another CCA now: its private state is gone
 *	}
 *
 * Policy. The selection pipeline says which parameter set a socket has. It is asked at the first per-RTT point, which for a new
 * connection or an idle one is the first ACK of data (before it nothing grows), and whenever the generation has moved: the CCA takes
 * other parameters or leaves for another CCA. Between two generations that is one compare per RTT. Until it was asked, and where the
 * policy chooses another CCA, sl_param() gives the global set.
 *
 * Storage. A socket has none (sl_sock) unless user space noted something about it; sl_core.state says whether one was seen. It is
 * looked up when the generation moves, and at the per-RTT point if it is there; never per ACK.
 *
 * Hand-over. .release of the old CCA and .init of the new one run inside the same TCP_CONGESTION switch, whoever asked for it
 * (the CCA itself, the iterator, sockops, an application): release leaves learned state in sl_handover, init takes it. cwnd and
 * ssthresh belong to the socket and survive by themselves; what a CCA makes of them is its init's business. Nothing is left when the
 * socket is being destroyed, or before anything but the handshake was acknowledged (nothing was learned). An init must do without:
 * a native CCA leaves nothing, and who interrupts a switch with another one may write over it (counted).
 */
#ifndef SLUICE_BPF_CCA_H
#define SLUICE_BPF_CCA_H

#include "common.bpf.h"
#include "compat.bpf.h"
#include "ecn.bpf.h"
#include "logger.bpf.h"
#include "maps.bpf.h"
#include "select.bpf.h"

char sl_license[] SEC("license") = "Dual BSD/GPL";

/* The name this object is registered under; written by the agent before load. Empty: never switches itself. */
const volatile char sl_self_name[SL_CCA_NAME_LEN] = "";

#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))

/* ---- counters ------------------------------------------------------------------------------------------------------------ */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SL_CCA_COUNTER_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} sl_cca_counters SEC(".maps");

/* `which`: enum sl_cca_counter, or SL_CCA_COUNTER_OWN + n for the CCA's own ones. */
static __always_inline void sl_cca_count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&sl_cca_counters, &which);

	if (value)	/* per-CPU, but a softirq may interrupt a system call that runs a hook */
		__sync_fetch_and_add(value, 1);
}

/* ---- private state ------------------------------------------------------------------------------------------------------- */

enum sl_core_state {
	/*
	 * .init has run, and sl_handover has the schema that is known here; else no hand-over, no policy. Hooks do run before .init, on
	 * private state of zeroes: a CCA that an application chose before connect() sees the SYN acknowledged.
	 */
	SL_CORE_ATTACHED = 1 << 0,
	SL_CORE_STORED = 1 << 1,	/* the socket has storage, as of the last move of the generation */
};

/* The SDK's part of a CCA's private state. Sequence numbers and times wrap; compare differences. */
struct sl_core {
	u32 end_seq;		/* the RTT ends when snd_una reaches it */
	u32 start_us;		/* tcp_mstamp when it began */
	u32 delivered;		/* tcp_sock.delivered, delivered_ce and lost when it began */
	u32 delivered_ce;
	u32 lost;
	u32 rtt_min_us;		/* smallest sample of this RTT; ~0 = none */
	u32 generation;		/* low bits of the generation that was followed; 0 = none so far */
	u16 params;		/* index in sl_params */
	u8 log_flags;		/* enum sl_log_flags, of this RTT */
	u8 state;		/* enum sl_core_state */
};
_Static_assert(sizeof(struct sl_core) == 32, "the SDK's share of ca_priv is a promise to authors: 32 bytes, 72 are theirs");

static __always_inline struct tcp_sock *sl_tcp(const struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

static __always_inline struct sl_core *sl_core_of(const struct sock *sk)
{
	return (struct sl_core *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

#define SL_PRIVATE(type)									\
	_Static_assert(sizeof(type) <= SL_CA_PRIV_BYTES, #type " does not fit into ca_priv");	\
	_Static_assert(offsetof(type, core) == 0, #type " has to begin with struct sl_core core");	\
	static __always_inline __attribute__((unused)) type *sl_priv(const struct sock *sk)	\
	{											\
		return (type *)((struct inet_connection_sock *)sk)->icsk_ca_priv;		\
	}

/* ---- parameters ---------------------------------------------------------------------------------------------------------- */

/*
 * `T`: first member `u64 sl_present`, then one u64 per live parameter. The rest of the arguments are the built-in defaults,
 * the same as in bundle.yaml. sl_param() never fails; what it returns is valid for this program run, and may be of another set
 * at the next per-RTT point.
 */
#define SL_PARAMS(T, ...)									\
	_Static_assert(offsetof(T, sl_present) == 0, #T " has to begin with u64 sl_present");	\
	_Static_assert(sizeof(T) % 8 == 0, #T ": every parameter is a u64");		\
	struct {										\
		__uint(type, BPF_MAP_TYPE_ARRAY);						\
		__uint(max_entries, SL_PARAM_SETS);						\
		__type(key, __u32);								\
		__type(value, T);								\
	} sl_params SEC(".maps");								\
	const T sl_param_defaults = { .sl_present = 1, __VA_ARGS__ };			\
	static __always_inline __attribute__((unused)) const T *sl_param(const struct sl_core *core)	\
	{											\
		__u32 set = core->params;							\
		const T *value = bpf_map_lookup_elem(&sl_params, &set);			\
												\
		if (value && value->sl_present)							\
			return value;								\
		sl_cca_count(SL_CCA_NO_PARAMS);							\
		return &sl_param_defaults;							\
	}

/* ---- RTTs and ECN -------------------------------------------------------------------------------------------------------- */

static __always_inline bool sl_before(u32 a, u32 b)
{
	return (s32)(a - b) < 0;
}

/* What happened in the RTT that ended. */
struct sl_round {
	struct sl_sock *sock;	/* the socket's storage if one was seen, or NULL */
	u32 elapsed_us;
	u32 rtt_min_us;		/* of the samples in it; 0 = none */
	u32 delivered;		/* segments */
	u32 delivered_ce;	/* of them, reported as marked */
	u32 lost;		/* segments marked lost */
	u8 log_flags;
	bool idle_before;	/* the RTT that begins now begins with nothing in flight */
};

static __always_inline void sl_rtt_begin(const struct sock *sk, struct sl_core *core)
{
	const struct tcp_sock *tp = sl_tcp(sk);

	core->end_seq = tp->snd_nxt;
	core->start_us = (u32)tp->tcp_mstamp;
	core->delivered = tp->delivered;
	core->delivered_ce = tp->delivered_ce;
	core->lost = tp->lost;
	core->rtt_min_us = ~0U;
	core->log_flags = tp->packets_out ? 0 : SL_LOG_TX_START;
}

/* For the hook that sees RTT samples; rtt_us as in ack_sample, negative = none. */
static __always_inline void sl_rtt_sample(struct sl_core *core, s32 rtt_us)
{
	if (rtt_us >= 0 && (u32)rtt_us < core->rtt_min_us)
		core->rtt_min_us = rtt_us;
}

/* All that was in flight when the RTT began has been acknowledged. Two loads and a branch: call it at every ACK. */
static __always_inline bool sl_rtt_ended(const struct sock *sk, const struct sl_core *core)
{
	return !sl_before(sl_tcp(sk)->snd_una, core->end_seq);
}

/* Time since this RTT began. */
static __always_inline u32 sl_rtt_elapsed_us(const struct sock *sk, const struct sl_core *core)
{
	return (u32)sl_tcp(sk)->tcp_mstamp - core->start_us;
}

static __always_inline void sl_rtt_next(struct sock *sk, struct sl_core *core, struct sl_round *round)
{
	const struct tcp_sock *tp = sl_tcp(sk);

	round->sock = core->state & SL_CORE_STORED ? sl_storage(sk) : NULL;
	round->elapsed_us = sl_rtt_elapsed_us(sk, core);
	round->rtt_min_us = core->rtt_min_us == ~0U ? 0 : core->rtt_min_us;
	round->delivered = tp->delivered - core->delivered;
	round->delivered_ce = tp->delivered_ce - core->delivered_ce;
	round->lost = tp->lost - core->lost;
	round->log_flags = core->log_flags;
	if (round->lost)
		round->log_flags |= SL_LOG_LOSS;
	if (round->delivered_ce)
		round->log_flags |= SL_LOG_ECE_ACK;
	round->idle_before = !tp->packets_out;

	sl_rtt_begin(sk, core);
	sl_cca_count(SL_CCA_RTT);
}

/* Marked fraction of the RTT, 1024 = every segment. */
static __always_inline u32 sl_ecn_fraction_1024(const struct sl_round *round)
{
	u32 marked = min(round->delivered_ce, round->delivered);

	return round->delivered ? ((u64)marked << 10) / round->delivered : 0;
}

/*
 * EWMA of the marked fraction (RFC 8257 section 3.3), 1024 = every segment, with the start corrected for its bias: the gain is
 * 1 / (rounds + 1) until that is smaller than 1 / window. With *rounds = 0 and alpha = 1024 at the start, alpha is the plain
 * mean of the RTTs seen so far and one imagined fully marked one: as cautious as RFC 8257 in the very first RTT, without
 * its forty RTTs of overreaction on an unmarked path. Call once per RTT on a connection with ECN.
 */
static __always_inline u32 sl_ecn_alpha(u32 alpha_1024, u32 fraction_1024, u32 *rounds, u32 window)
{
	u32 n = *rounds + 1;

	if (n < window)
		*rounds = n;
	n = max(min(n + 1, window), 1U);
	/* Rounded towards the new value, or alpha would stop short of it. */
	if (fraction_1024 >= alpha_1024)
		return alpha_1024 + (fraction_1024 - alpha_1024 + n - 1) / n;
	return alpha_1024 - (alpha_1024 - fraction_1024 + n - 1) / n;
}

/* ---- window helpers (the kernel's are kfuncs, absent on x86 before 6.12) ------------------------------------------------- */

#define SL_CWND_MIN 2U	/* no reduction goes below; an RTO does, by the kernel's hand */

static __always_inline bool sl_in_slow_start(const struct tcp_sock *tp)
{
	return tp->snd_cwnd < tp->snd_ssthresh;
}

/* The window was what held the sender back. In slow start it may grow to twice what was ever needed. */
static __always_inline bool sl_cwnd_limited(const struct tcp_sock *tp)
{
	if (BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited))
		return true;
	return sl_in_slow_start(tp) && tp->snd_cwnd < 2 * tp->max_packets_out;
}

static __always_inline void sl_set_cwnd(struct tcp_sock *tp, u32 segments)
{
	u32 most = tp->snd_cwnd_clamp;

	segments = min(segments, most);
	tp->snd_cwnd = max(segments, 1U);
}

/* One segment per acknowledged segment up to ssthresh; returns the acknowledged segments that are left over. */
static __always_inline u32 sl_slow_start(struct tcp_sock *tp, u32 acked)
{
	u32 cwnd = tp->snd_cwnd, ssthresh = tp->snd_ssthresh;
	u32 grown = min(cwnd + acked, ssthresh);

	sl_set_cwnd(tp, grown);
	return acked - (grown - cwnd);
}

/* One segment per `per` acknowledged ones; the remainder is kept in snd_cwnd_cnt. */
static __always_inline void sl_additive_increase(struct tcp_sock *tp, u32 per, u32 acked)
{
	u32 count = tp->snd_cwnd_cnt;

	if (count >= per) {	/* `per` shrank: the credit of the old one counts once */
		count = 0;
		sl_set_cwnd(tp, tp->snd_cwnd + 1);
	}
	count += acked;
	if (count >= per) {
		u32 grow = count / max(per, 1U);

		count -= grow * per;
		sl_set_cwnd(tp, tp->snd_cwnd + grow);
	}
	tp->snd_cwnd_cnt = count;
}

/*
 * For .init. An infinite ssthresh promises slow start, but a socket from a rate-based CCA, or one that its application held back, has
 * it without being in slow start: it would double its window until something is lost. Such a socket gets one: its window, or the
 * bandwidth-delay product where that is larger (BBR in PROBE_RTT); `keep_percent` of it while a reduction is under way. True if it did.
 */
static __always_inline bool sl_bound_ssthresh(struct sock *sk, const struct sl_learned *learned, u32 keep_percent)
{
	struct tcp_sock *tp = sl_tcp(sk);
	u64 product = 0;
	u32 window;

	if (tp->snd_ssthresh < TCP_INFINITE_SSTHRESH || (learned && learned->flags & SL_LEARNED_SLOW_START))
		return false;
	/* In slow start cwnd >= what was delivered. */
	if (tp->delivered / 2 <= tp->snd_cwnd)
		return false;
	if (tp->rate_interval_us && tp->rtt_min.s[0].v != ~0U)
		product = (u64)tp->rate_delivered * tp->rtt_min.s[0].v / tp->rate_interval_us;
	window = max((u64)tp->snd_cwnd, min(product, (u64)tp->snd_cwnd_clamp));
	if (sl_ca_state(sk) >= TCP_CA_CWR)
		window = max((u32)((u64)window * keep_percent / 100), SL_CWND_MIN);
	tp->snd_ssthresh = window;
	return true;
}

/* ---- logger -------------------------------------------------------------------------------------------------------------- */

/* `alpha_1024`, `own0`, `own1`: the CCA's own view; its README names the two words. */
static __always_inline void sl_log(struct sock *sk, const struct sl_core *core, const struct sl_round *round, u32 alpha_1024,
				   u64 own0, u64 own1)
{
	const struct tcp_sock *tp = sl_tcp(sk);
	struct sl_log_record *record;

	if (!sl_log_wanted(round->sock))
		return;
	record = sl_log_reserve();
	if (!record)
		return;
	record->cookie = sk->__sk_common.skc_cookie.counter;
	record->time_ns = bpf_ktime_get_ns();
	record->struct_ops_id = 0;
	record->cwnd_segments = tp->snd_cwnd;
	record->ssthresh_segments = tp->snd_ssthresh;
	record->srtt_us = tp->srtt_us >> 3;
	record->rtt_min_us = round->rtt_min_us;
	record->delivered = round->delivered;
	record->delivered_ce = round->delivered_ce;
	record->ecn_alpha_1024 = alpha_1024;
	record->flags = round->log_flags;
	record->pad = 0;
	record->own[0] = own0;
	record->own[1] = own1;
	sl_cca_count(SL_CCA_LOG);
}

/* ---- policy: follow a new generation ------------------------------------------------------------------------------------- */

static __always_inline bool sl_is_self(const char *name)
{
	const volatile u64 *self = (const volatile u64 *)sl_self_name;
	const u64 *other = (const u64 *)name;

	return self[0] == other[0] && self[1] == other[1];
}

/* The generation moved. Returns true if the socket left for another CCA. */
SL_SUBPROG bool sl_follow_generation(struct sock *sk)
{
	struct sl_core *core = sl_core_of(sk);
	struct sl_selection selection;
	struct sl_choice choice;
	struct sl_generation *entry;

	if (sl_storage(sk))	/* user space may have given it one since */
		core->state |= SL_CORE_STORED;
	if (sl_select(sk, NULL, &selection) != SL_SELECT_OK || !selection.verdict) {
		sl_cca_count(SL_CCA_NO_VERDICT);
		return false;
	}
	entry = sl_generation_entry(selection.generation);
	sl_choose(selection.verdict, sl_tcp(sk), false, &choice);
	if (!entry || !choice.cca) {	/* replaced just now; or needs ECN, and no fallback is named: stays where it is safe */
		sl_cca_count(SL_CCA_NO_VERDICT);
		return false;
	}
	if (choice.ecn_fallback)
		sl_cca_count(SL_CCA_ECN_FALLBACK);
	if (sl_is_self(choice.cca)) {
		if (core->generation)
			sl_cca_count(SL_CCA_RESCOPED);
		core->params = choice.params;
		core->generation = selection.generation;
		return false;
	}
	if (!(entry->flags & SL_GEN_SELF_MIGRATE)) {	/* the iterator's work */
		core->generation = selection.generation;
		return false;
	}
	if (sl_set_cca(sk, choice.cca)) {
		sl_cca_count(SL_CCA_SELF_FAILED);
		sl_count(SL_POLICY_SELF_FAILED);
		return false;
	}
	sl_cca_count(SL_CCA_SELF_MOVED);
	sl_count(SL_POLICY_SELF_MOVED);
	return true;
}

/*
 * To be called at the per-RTT point. True: the socket runs another CCA now, whose private state has taken the place of this
 * one's. Return from the hook without touching either.
 */
static __always_inline bool sl_follow_policy(struct sock *sk, struct sl_core *core, const struct sl_round *round)
{
	__u64 now = sl_generation_now();

	if (!now || core->generation == (u32)now)
		return false;
	if (!sl_self_name[0] || !(core->state & SL_CORE_ATTACHED))
		return false;
	/* The SYN is being acknowledged: ECN is not known yet, and ACTIVE_ESTABLISHED_CB decides in a moment. */
	if (sk->__sk_common.skc_state == BPF_TCP_SYN_SENT)
		return false;
	return sl_follow_generation(sk);
}

/* ---- coming and going ---------------------------------------------------------------------------------------------------- */

/* Nothing but the handshake was acknowledged: no CCA can have learned anything about the path. */
static __always_inline bool sl_is_new(const struct sock *sk)
{
	return sl_tcp(sk)->delivered <= 1;
}

static __always_inline struct sl_handover *sl_handover_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sl_handover, &zero);
}

static __always_inline void sl_hand_over(const struct sock *sk, const struct sl_learned *learned)
{
	struct sl_handover *slot = sl_handover_here();
	int attempt;

	for (attempt = 0; slot && attempt < 2; attempt++) {
		WRITE_ONCE(slot->owner, (u64)sk);
		barrier();
		slot->time_ns = bpf_ktime_get_coarse_ns();
		slot->ports = sk->__sk_common.skc_portpair;
		slot->learned = *learned;
		barrier();
		if (READ_ONCE(slot->owner) == (u64)sk)
			return;
	}
	sl_cca_count(SL_CCA_STATE_LOST);
}

/* Takes what was left for this socket, if anything. */
static __always_inline bool sl_take_over(const struct sock *sk, struct sl_learned *learned)
{
	struct sl_handover *slot = sl_handover_here();
	bool adopted;

	if (!slot || READ_ONCE(slot->owner) != (u64)sk)
		return false;
	barrier();
	*learned = slot->learned;
	adopted = slot->ports == sk->__sk_common.skc_portpair &&
		  bpf_ktime_get_coarse_ns() - slot->time_ns <= SL_HANDOVER_MS_MAX * 1000000ULL;
	barrier();
	adopted &= __sync_val_compare_and_swap(&slot->owner, (u64)sk, 0) == (u64)sk;
	sl_cca_count(adopted ? SL_CCA_STATE_ADOPTED : SL_CCA_STATE_REFUSED);
	return adopted;
}

/* First half of .init. True: *learned was left by the CCA before. */
static __always_inline bool sl_enter(struct sock *sk, struct sl_learned *learned)
{
	struct sl_core *core = sl_core_of(sk);

	sl_cca_count(SL_CCA_INIT);
	core->generation = 0;
	core->params = 0;
	core->state = 0;
	sl_rtt_begin(sk, core);
	/* snd_nxt is not set before the SYN is built; write_seq is its sequence number already. The first RTT ends with data. */
	if (sk->__sk_common.skc_state == BPF_TCP_SYN_SENT)
		core->end_seq = sl_tcp(sk)->write_seq + 2;

	if (!sl_schema_is(SL_SCHEMA_HANDOVER, SL_SCHEMA_HANDOVER_VERSION)) {
		sl_cca_count(SL_CCA_SCHEMA_MISMATCH);
		return false;
	}
	core->state |= SL_CORE_ATTACHED;
	return !sl_is_new(sk) && sl_take_over(sk, learned);
}

/* First half of .release. True: what was learned is of use to the next CCA. */
static __always_inline bool sl_leave(struct sock *sk)
{
	sl_cca_count(SL_CCA_RELEASE);
	/* The socket is being destroyed, or was never connected: there is no next CCA, or nothing was learned. */
	if (sk->__sk_common.skc_state == BPF_TCP_CLOSE || sk->__sk_common.skc_state == BPF_TCP_LISTEN)
		return false;
	return (sl_core_of(sk)->state & SL_CORE_ATTACHED) && !sl_is_new(sk);
}

/* ---- hooks --------------------------------------------------------------------------------------------------------------- */

/*
 * One macro per hook of tcp_congestion_ops; the body follows in braces. What each is for, and what the kernel ignores:
 *
 * SL_INIT(sk, learned)		the socket starts here or was moved here, in any state but LISTEN. In SYN_SENT neither RTT nor
 *				ECN is known and a cwnd set is overwritten.
 * SL_RELEASE(sk, learned)	it leaves or is destroyed. bpf_setsockopt is not available.
 * SL_SSTHRESH(sk)		returns the new ssthresh at a loss, an RTO, an ECN echo, or a local drop.
 * SL_CONG_AVOID(sk, ack, acked)	grow the window; called in Open and Disorder only, and only if cwnd may be raised.
 * SL_SET_STATE(sk, new_state)	sl_ca_state(sk) is still the old one.
 * SL_CWND_EVENT(sk, event)	enum tcp_ca_event; see compat.bpf.h for TX_START.
 * SL_IN_ACK_EVENT(sk, flags)	enum tcp_ca_ack_event_flags; see compat.bpf.h for its place.
 * SL_PKTS_ACKED(sk, sample)	every ACK while something is in flight, in every state; delivered is counted already.
 * SL_MIN_TSO_SEGS(sk)		returns the least segments a burst may have.
 * SL_CONG_CONTROL(sk, ack, flag, rs)	takes over everything: ssthresh is still asked, but PRR and cong_avoid are gone, and
 *				sk_pacing_rate is the CCA's to set. ack and flag are 0 before 6.10.
 * SL_UNDO_CWND(sk)		returns the cwnd to go back to: the loss was none.
 * SL_SNDBUF_EXPAND(sk)		returns the factor of cwnd that the send buffer holds (the kernel's is 2).
 */
#define SL_HOOK(hook) ((void *)sl_##hook)

#define SL_INIT(sk_, learned_)									\
	static __always_inline void sl_do_init(struct sock *, const struct sl_learned *);	\
	SEC("struct_ops") void BPF_PROG(sl_init, struct sock *sk)				\
	{											\
		struct sl_learned learned;							\
		bool adopted = sl_enter(sk, &learned);						\
												\
		sl_do_init(sk, adopted ? &learned : NULL);					\
	}											\
	static __always_inline void sl_do_init(struct sock *sk_, const struct sl_learned *learned_)

#define SL_RELEASE(sk_, learned_)								\
	static __always_inline void sl_do_release(struct sock *, struct sl_learned *);		\
	SEC("struct_ops") void BPF_PROG(sl_release, struct sock *sk)				\
	{											\
		struct sl_learned learned = {};							\
												\
		if (!sl_leave(sk))								\
			return;									\
		sl_do_release(sk, &learned);							\
		sl_hand_over(sk, &learned);							\
	}											\
	static __always_inline void sl_do_release(struct sock *sk_, struct sl_learned *learned_)

#define SL_SSTHRESH(sk_)									\
	static __always_inline u32 sl_do_ssthresh(struct sock *);				\
	SEC("struct_ops") u32 BPF_PROG(sl_ssthresh, struct sock *sk)				\
	{											\
		sl_core_of(sk)->log_flags |= SL_LOG_SSTHRESH;					\
		return sl_do_ssthresh(sk);							\
	}											\
	static __always_inline u32 sl_do_ssthresh(struct sock *sk_)

#define SL_CONG_AVOID(sk_, ack_, acked_) SEC("struct_ops") void BPF_PROG(sl_cong_avoid, struct sock *sk_, u32 ack_, u32 acked_)
#define SL_SET_STATE(sk_, state_) SEC("struct_ops") void BPF_PROG(sl_set_state, struct sock *sk_, u8 state_)
#define SL_CWND_EVENT(sk_, event_) SEC("struct_ops") void BPF_PROG(sl_cwnd_event, struct sock *sk_, enum tcp_ca_event event_)
#define SL_IN_ACK_EVENT(sk_, flags_) SEC("struct_ops") void BPF_PROG(sl_in_ack_event, struct sock *sk_, u32 flags_)
#define SL_PKTS_ACKED(sk_, sample_) \
	SEC("struct_ops") void BPF_PROG(sl_pkts_acked, struct sock *sk_, const struct ack_sample *sample_)
#define SL_MIN_TSO_SEGS(sk_) SEC("struct_ops") u32 BPF_PROG(sl_min_tso_segs, struct sock *sk_)
#define SL_UNDO_CWND(sk_) SEC("struct_ops") u32 BPF_PROG(sl_undo_cwnd, struct sock *sk_)
#define SL_SNDBUF_EXPAND(sk_) SEC("struct_ops") u32 BPF_PROG(sl_sndbuf_expand, struct sock *sk_)

#define SL_CONG_CONTROL(sk_, ack_, flag_, rs_)							\
	static __always_inline void sl_do_cong_control(struct sock *, u32, int, const struct rate_sample *);	\
	SEC("struct_ops") void sl_cong_control(unsigned long long *ctx)				\
	{											\
		struct sock *sk = (void *)ctx[0];						\
												\
		if (SL_HAS_CONG_CONTROL_FLAGS())						\
			sl_do_cong_control(sk, ctx[1], ctx[2], (void *)ctx[3]);			\
		else										\
			sl_do_cong_control(sk, 0, 0, (void *)ctx[1]);				\
	}											\
	static __always_inline void sl_do_cong_control(struct sock *sk_, u32 ack_, int flag_, const struct rate_sample *rs_)

/* Declares the CCA: its struct_ops map, registered through a link. Until the agent sets another name it is `sl_<cca>`. */
#define SL_CCA(cca, ...)									\
	SEC(".struct_ops.link") struct tcp_congestion_ops cca = {				\
		.init = SL_HOOK(init), .release = SL_HOOK(release), .name = "sl_" #cca, __VA_ARGS__ }

#endif
