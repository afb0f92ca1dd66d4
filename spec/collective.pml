/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Slots, window, retransmission and death of docs/protocol.md, with a network that loses, doubles, reorders and delays beyond any reuse of a
 * slot. Checked by spec/run:
 *   - a member takes a result only if it is the sum of every member's contribution to that position, each once (assert);
 *   - no entry is overwritten that someone may still ask for, and the window rule is never broken by members that keep it (assert);
 *   - nobody waits for ever: whatever happens, every survivor ends with all results or with the dead member's name (no invalid end state; every
 *     step uses up something, so there are no endless runs).
 *
 * N members, W slots, P positions of one chunk each. LOSSES and COPIES bound what the network may do wrong in one run; a delay is unbounded.
 * A timer fires only when the contribution or its result is really missing: one that fires too early is a copy.
 *
 * ONE_BIT_VERSION and WRONG_ANSWER put errors in that must be found.
 */
#ifndef N
#define N 3
#endif
#ifndef W
#define W 1
#endif
#ifndef P
#define P 5
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef COPIES
#define COPIES 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

#define NP (N * P)
#define ALL ((1 << N) - 1)
#define BIT(member, position) (1 << ((member) * P + (position)))
#define EVERYBODY(position) everybody = 0; m2 = 0; do :: m2 < N -> everybody = everybody | BIT(m2, position); m2++ :: else -> break od

/* The network: a message is there or not. Bit m * P + p. */
int contributions;
int results, wrong_results;	/* to m for p; wrong: not the sum that it should be */

/* Members. */
int sent, done;			/* bit m * P + p */
byte next[4];			/* position to send next */
byte alive = ALL, failed;	/* bit m */

/* The aggregator: 2 W entries. */
byte held[2 * W];		/* position + 1; 0 = empty */
byte bitmap[2 * W];
bit spoilt[2 * W];		/* ghost: not only contributions to `real`, or one of them twice */
byte real[2 * W];		/* ghost: position of the numbers */
int waiting;			/* ghost: contributions that entries hold which are not complete */
bit declared;			/* the job has failed: a member is dead */
byte named;

byte losses = LOSSES, copies = COPIES, deaths = DEATHS;

hidden byte i, m, p, e, o, m2;
hidden int everybody;
hidden byte bad;

#define OPTION(k, set) :: ((set) >> k) & 1 -> i = k
inline pick(set) {
	if
	OPTION(0, set) OPTION(1, set) OPTION(2, set) OPTION(3, set) OPTION(4, set) OPTION(5, set) OPTION(6, set)
	OPTION(7, set) OPTION(8, set) OPTION(9, set) OPTION(10, set) OPTION(11, set) OPTION(12, set) OPTION(13, set)
	OPTION(14, set) OPTION(15, set) OPTION(16, set) OPTION(17, set) OPTION(18, set) OPTION(19, set)
	fi;
	m = i / P;
	p = i % P
}

#define MAY_SEND(k) (k < N && ((alive & ~failed) >> k & 1) && next[k] < P && (next[k] < W || (done & BIT(k, next[k] - W))))
#define ENDED(k) (k >= N || !(alive >> k & 1) || (failed >> k & 1) || (done >> (k * P) & ((1 << P) - 1)) == (1 << P) - 1)
#define THEIRS(k) ((alive >> k & 1) * ((1 << P) - 1) << (k * P))
#define OUTSTANDING (sent & ~done & (THEIRS(0) | THEIRS(1) | THEIRS(2) | THEIRS(3)))
#define MISSING (OUTSTANDING & ~contributions & ~results & ~wrong_results & ~waiting)

/* A result of the numbers in entry `from`, for position p, to member `to`. */
inline answer(to, from) {
	if
	:: spoilt[from] || real[from] != p -> wrong_results = wrong_results | BIT(to, p)
	:: else -> results = results | BIT(to, p)
	fi
}

inline add_to_entry() {
	bitmap[e] = bitmap[e] | (1 << m);
	waiting = waiting | BIT(m, p);
	if
	:: bitmap[e] == ALL ->
		EVERYBODY(p);
		waiting = waiting & ~everybody;
		m2 = 0;
		do
		:: m2 < N -> answer(m2, e); m2++
		:: else -> break
		od
	:: else
	fi
}

inline receive_contribution() {
	e = p % (2 * W);
	o = (p + W) % (2 * W);
	if
	:: declared			/* answered with the failure */
#ifdef ONE_BIT_VERSION
	/* The entry is all that tells versions apart; contributing to one version takes a member out of the other one's bitmap. */
	:: !declared && (bitmap[e] >> m & 1) ->
		if
		:: bitmap[e] == ALL -> answer(m, e)
		:: else
		fi
	:: !declared && !(bitmap[e] >> m & 1) ->
		bitmap[o] = bitmap[o] & ~(1 << m);
		if
		:: bitmap[e] == 0 -> real[e] = p; spoilt[e] = 0
		:: else -> spoilt[e] = spoilt[e] || real[e] != p
		fi;
		add_to_entry()
#else
	:: !declared && held[e] > p + 1	/* stale */
	:: !declared && held[e] == p + 1 && (bitmap[e] >> m & 1) ->
		if
		:: bitmap[e] == ALL ->
#ifdef WRONG_ANSWER
			answer(m, o)
#else
			answer(m, e)
#endif
		:: else
		fi
	:: !declared && held[e] == p + 1 && !(bitmap[e] >> m & 1) ->
		spoilt[e] = spoilt[e] || real[e] != p;
		add_to_entry()
	:: !declared && held[e] < p + 1 ->
		assert(p < W || (held[o] == p - W + 1 && bitmap[o] == ALL));	/* the window rule */
		if
		:: held[e] != 0 ->
			m2 = 0;
			do
			:: m2 < N -> assert(done & BIT(m2, held[e] - 1)); m2++	/* nobody needs it */
			:: else -> break
			od
		:: else
		fi;
		held[e] = p + 1;
		bitmap[e] = 0;
		real[e] = p;
		spoilt[e] = 0;
		add_to_entry()
#endif
	fi
}

active proctype world() {
	do
	/* A member contributes the next position. */
	:: atomic { (MAY_SEND(0) || MAY_SEND(1) || MAY_SEND(2) || MAY_SEND(3)) ->
		if
		:: MAY_SEND(0) -> m = 0
		:: MAY_SEND(1) -> m = 1
		:: MAY_SEND(2) -> m = 2
		:: MAY_SEND(3) -> m = 3
		fi;
		p = next[m];
		sent = sent | BIT(m, p);
		contributions = contributions | BIT(m, p);
		next[m]++ }

	/* The network delivers, delivers a copy, or loses. */
	:: atomic { contributions != 0 -> pick(contributions);
		if
		:: contributions = contributions & ~(1 << i)
		:: copies > 0 -> copies--
		fi;
		receive_contribution() }
	:: atomic { contributions != 0 && losses > 0 -> pick(contributions);
		losses--;
		contributions = contributions & ~(1 << i) }
	:: atomic { (results | wrong_results) != 0 -> pick(results | wrong_results);
		bad = wrong_results >> i & 1;
		if
		:: results = results & ~(1 << i); wrong_results = wrong_results & ~(1 << i)
		:: copies > 0 -> copies--
		fi;
		if
		:: (OUTSTANDING >> i & 1) && !(failed >> m & 1) ->
			assert(!bad);
			done = done | (1 << i)
		:: else		/* not awaited: dropped */
		fi }
	:: atomic { (results | wrong_results) != 0 && losses > 0 -> pick(results | wrong_results);
		losses--;
		results = results & ~(1 << i);
		wrong_results = wrong_results & ~(1 << i) }

	/* The retransmission timer. */
	:: atomic { !declared && MISSING != 0 -> pick(MISSING); contributions = contributions | (1 << i) }

	/* A member dies; the aggregator misses it and says so; the others learn it. */
	:: atomic { deaths > 0 ->
		deaths--;
		if
		:: alive = alive & ~1
		:: alive = alive & ~2
		:: alive = alive & ~4
		fi }
	:: atomic { alive != ALL && !declared ->
		declared = 1;
		if
		:: !(alive & 1) -> named = 0
		:: !(alive & 2) -> named = 1
		:: !(alive & 4) -> named = 2
		fi }
	:: atomic { declared && !(ENDED(0) && ENDED(1) && ENDED(2) && ENDED(3)) ->
		if
		:: !ENDED(0) -> m = 0
		:: !ENDED(1) -> m = 1
		:: !ENDED(2) -> m = 2
		:: !ENDED(3) -> m = 3
		fi;
		assert(!(alive >> named & 1));
		failed = failed | (1 << m) }

	:: ENDED(0) && ENDED(1) && ENDED(2) && ENDED(3) -> break
	od;
	assert(alive != ALL || failed == 0)
}
