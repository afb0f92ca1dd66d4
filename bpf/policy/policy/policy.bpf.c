// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Bundle `policy`: gives every TCP socket the CCA that the published policy wants (sockops), and reads and corrects the sockets
 * that exist (iterators). What is looked up, and how a policy is replaced, is in sluice/bpf/select.bpf.h and sluice/abi/policy.h.
 *
 * Sockops, attached to a cgroup:
 *
 *   1. sl_sockops, the dispatcher, leaves alone: other callbacks, MPTCP subflows, everything while no policy is published.
 *      It answers NEEDS_ECN itself (there is neither a full socket nor storage), and hands the rest to the first stage.
 *   2. Stages run in the order of sl_stages (= `stages` of bundle.yaml), each tail-calling the next: sl_resolver leaves place
 *      and service in sl_handed, sl_selector decides. A stage may find nothing of its predecessor and then looks up itself.
 *   3. Per callback (docs/connection-states.md):
 *      CONNECT             decide, so that a CCA that needs ECN asks for it in the SYN. ECN is not known yet.
 *      ACTIVE_ESTABLISHED  decide anew: ECN is known (needs it, has none: the fallback), and the policy may have been replaced
 *                          since CONNECT: then the newer one holds for all of it. Initial window.
 *      LISTEN              the generation's listener CCA, never one that needs ECN: it would negotiate with everybody.
 *      NEEDS_ECN           a SYN that offers ECN: does the CCA of this place need it? Then accept, and send the SYN-ACK as ECT.
 *      PASSIVE_ESTABLISHED decide, with ECN known; the child starts with the listener's CCA and without sl_sock. Initial window.
 *   4. The CCA is set by name even where the name already fits: that is how a connection accepted from an old listener gets off a
 *      replaced version of the same name. The kernel makes nothing of it if the CCA is the very same. Only ACTIVE_ESTABLISHED leaves
 *      it out where CONNECT has set that name: who replaces a version migrates afterwards, and finds the socket.
 *   5. Nothing of it is remembered: deciding again is cheaper (docs/design/0004-no-storage-at-connect.md).
 *   6. `reply` is written only to say yes to NEEDS_ECN, callback flags never: other programs on the hook see no difference.
 *
 * Cgroup setsockopt: sl_setsockopt sees an application's own TCP_CONGESTION and lets it through, answers it without effect, or refuses
 * it, as the socket's rule says (`application`). A choice that was let through is noted in sl_application, on that socket alone; where
 * the rule respects it, 3. and the iterators leave such a socket as it is.
 *
 * Iterators: sl_iter_observe, sl_iter_count and sl_iter_migrate walk the TCP sockets of one network namespace with each socket
 * locked; sl_iter_files reads all that a process holds, in every namespace.
 *
 *   7. A socket is right if its CCA is the struct_ops map that sl_cca_ids gives for the wanted name (no entry: a native CCA of that
 *      name). Parameters that changed under the same CCA need no visit: a CCA on the SDK asks for them at its next RTT.
 *   8. A record that does not fit makes the kernel run the program again for the same socket, so room is tested before anything is
 *      changed: a socket that was moved is reported as moved.
 */
#include "report.bpf.h"
#include <sluice/bpf/owd_map.bpf.h>

char _license[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SL_USAGE_ENTRIES);
	__type(key, struct sl_usage_key);
	__type(value, struct sl_usage);
} sl_usage SEC(".maps");

/* ---- sockops ------------------------------------------------------------------------------------------------------------ */

int sl_resolver(struct bpf_sock_ops *ctx);
int sl_selector(struct bpf_sock_ops *ctx);

/* The kernel empties a program array when its last descriptor or pin goes: it has to be pinned like the programs. */
enum { STAGE_RESOLVER = 0, STAGE_SELECTOR = 1, STAGE_COUNT = 8 };
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, STAGE_COUNT);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} sl_stages SEC(".maps") = {
	.values = {
		[STAGE_RESOLVER] = (void *)&sl_resolver,
		[STAGE_SELECTOR] = (void *)&sl_selector,
	},
};

extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;
extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;

/*
 * What sl_resolver hands to sl_selector. Both run in process context too, where a program for another socket may come between them
 * on the same CPU (softirq, preemption): `owner` is taken by compare-and-swap and given back by the selector, and who finds it
 * taken by another socket leaves it alone: its selector looks up itself.
 */
struct handed {
	__u64 owner;			/* the socket's address; 0 = free */
	struct sl_selection scope;	/* of sl_select_scope() */
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct handed);
} sl_handed SEC(".maps");

static __always_inline struct handed *handed_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sl_handed, &zero);
}

static __always_inline struct tcp_sock *full_tcp_sock(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? bpf_skc_to_tcp_sock(sk) : NULL;
}

/* A subflow has an upper layer protocol, which stands beside the CCA; is_mptcp is far from everything else that is read here. */
static __always_inline bool is_mptcp(const struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_ulp_ops && bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp;
}

/*
 * A full socket (a client's SYN) is left to its CCA, which was set at CONNECT and asks for itself. A request socket has addresses,
 * its listener has the cgroup. It is asked about twice: when a SYN offers ECN (accept?), and for every SYN-ACK (send it as ECT?). The
 * second time, known by snt_synack, a peer that did not agree to ECN must not get ECT. It is not asked about where a SYN cookie is sent:
 * such a request has no listener, and the kernel no cgroup.
 */
static __always_inline void answer_needs_ecn(struct bpf_sock_ops *ctx)
{
	struct bpf_sock_ops_kern *kctx;
	struct tcp_request_sock *req;
	struct sl_selection sel = {};
	struct sl_endpoints e = {};
	struct sock *listener;
	int result;

	if (ctx->is_fullsock)
		return;
	sl_count(SL_POLICY_NEEDS_ECN);
	kctx = bpf_cast_to_kern_ctx(ctx);
	req = bpf_rdonly_cast(kctx->sk, bpf_core_type_id_kernel(struct tcp_request_sock));
	if (bpf_core_field_exists(req->is_mptcp) && req->is_mptcp) {
		sl_count(SL_POLICY_MPTCP);
		return;
	}
	if (req->snt_synack && !req->req.ecn_ok)
		return;
	sl_addresses(&req->req.req.__req_common, &e);
	/* a member of a union: BTF alone does not tell that it is a pointer */
	listener = bpf_rdonly_cast(req->req.req.__req_common.skc_listener, bpf_core_type_id_kernel(struct sock));
	e.holder = listener;
	result = sl_select_remote(&e, &sel);
	if (result != SL_SELECT_OK || !sel.verdict) {
		sl_count_result(result);
		return;
	}
	if (sel.verdict->flags & SL_VERDICT_NEEDS_ECN) {
		ctx->reply = 1;
		sl_count(SL_POLICY_NEEDS_ECN_YES);
	}
}

SEC("sockops")
int sl_sockops(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp;

	switch (ctx->op) {
	case BPF_SOCK_OPS_NEEDS_ECN:
		answer_needs_ecn(ctx);
		return 1;
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		sl_count(SL_POLICY_CONNECT);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		sl_count(SL_POLICY_ACTIVE);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		sl_count(SL_POLICY_PASSIVE);
		break;
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		sl_count(SL_POLICY_LISTEN);
		break;
	default:
		return 1;
	}
	tp = full_tcp_sock(ctx);
	if (!tp) {
		sl_count(SL_POLICY_NO_SOCK);
		return 1;
	}
	if (is_mptcp(tp)) {
		sl_count(SL_POLICY_MPTCP);
		return 1;
	}
	if (!sl_generation_now()) {
		sl_count(SL_POLICY_NO_GENERATION);
		return 1;
	}
	bpf_tail_call(ctx, &sl_stages, STAGE_RESOLVER);
	sl_count(SL_POLICY_NO_STAGE);
	return 1;
}

SEC("sockops")
int sl_resolver(struct bpf_sock_ops *ctx)
{
	struct handed *handed = handed_here();
	struct sl_selection scope = {};
	struct tcp_sock *tp;
	__u64 owner, self;
	int result;

	if (ctx->op == BPF_SOCK_OPS_TCP_LISTEN_CB || !handed)
		goto next;
	tp = full_tcp_sock(ctx);
	if (!tp)
		goto next;
	result = sl_select_scope((struct sock *)tp, &scope);
	if (result != SL_SELECT_OK) {
		sl_count_result(result);
		return 1;
	}
	self = (__u64)tp;
	owner = __sync_val_compare_and_swap(&handed->owner, 0, self);
	if (!owner || owner == self) {	/* its own: no selector ran after the last one */
		handed->scope.generation = scope.generation;
		handed->scope.place = scope.place;
		handed->scope.service_id = scope.service_id;
		bpf_tail_call(ctx, &sl_stages, STAGE_RESOLVER + 1);
		WRITE_ONCE(handed->owner, 0);	/* there is no next stage */
		return 1;
	}
next:
	bpf_tail_call(ctx, &sl_stages, STAGE_RESOLVER + 1);
	return 1;
}

/* Takes what the resolver left for this socket: false if nothing. */
static __always_inline bool take_scope(struct tcp_sock *tp, struct sl_selection *scope)
{
	struct handed *handed = handed_here();

	if (!handed || READ_ONCE(handed->owner) != (__u64)tp)
		return false;
	scope->generation = handed->scope.generation;
	scope->place = handed->scope.place;
	scope->service_id = handed->scope.service_id;
	sl_read_barrier();
	WRITE_ONCE(handed->owner, 0);
	return true;
}

static __always_inline void select_listener(struct bpf_sock_ops *ctx, struct tcp_sock *tp)
{
	const void *before = tp->inet_conn.icsk_ca_ops;
	struct listener_choice copy;
	struct sl_selection sel = {};
	struct sl_choice choice = {};
	int result = choose_listener(tp, &copy, &sel, &choice);

	if (result != SL_SELECT_OK) {
		sl_count_result(result);
		return;
	}
	if (!choice.cca) {
		sl_count(SL_POLICY_NO_RULE);
		return;
	}
	if (sl_set_cca(ctx, choice.cca)) {
		sl_count(SL_POLICY_SET_FAILED);
		return;
	}
	sl_count(before == tp->inet_conn.icsk_ca_ops ? SL_POLICY_KEPT : SL_POLICY_SELECTED);
}

SEC("sockops")
int sl_selector(struct bpf_sock_ops *ctx)
{
	bool connecting = ctx->op == BPF_SOCK_OPS_TCP_CONNECT_CB, active;
	struct sl_selection sel = {}, scope = {};
	struct sl_choice choice;
	struct tcp_sock *tp;
	const void *before;
	int result, iw;

	tp = full_tcp_sock(ctx);
	if (!tp) {
		sl_count(SL_POLICY_NO_SOCK);
		goto next;
	}
	if (ctx->op == BPF_SOCK_OPS_TCP_LISTEN_CB) {
		select_listener(ctx, tp);
		goto next;
	}

	if (!take_scope(tp, &scope))
		sl_count(SL_POLICY_LPM_FALLBACK);
	result = sl_select((struct sock *)tp, &scope, &sel);
	if (result != SL_SELECT_OK || !sel.verdict) {
		sl_count_result(result);
		goto next;
	}
	choose_connection(tp, sel.verdict, connecting, &choice);
	if (!choice.cca) {
		sl_count(SL_POLICY_ECN_NO_FALLBACK);
		goto next;
	}
	if (choice.application)
		sl_count(SL_POLICY_APPLICATION_KEPT);
	if (choice.ecn_fallback)
		sl_count(SL_POLICY_ECN_FALLBACK);

	before = tp->inet_conn.icsk_ca_ops;
	active = ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB;
	if (active && is_called(before, choice.cca)) {
		sl_count(SL_POLICY_KEPT);
	} else if (sl_set_cca(ctx, choice.cca)) {
		sl_count(SL_POLICY_SET_FAILED);
		goto next;
	} else if (before == tp->inet_conn.icsk_ca_ops) {
		sl_count(SL_POLICY_KEPT);
	} else {
		sl_count(SL_POLICY_SELECTED);
		if (active && !choice.ecn_fallback)
			sl_count(SL_POLICY_RECONCILED);
	}

	iw = sel.verdict->init_cwnd_segments;
	if (iw && !connecting && bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_IW, &iw, sizeof(iw)))
		sl_count(SL_POLICY_IW_FAILED);
next:
	bpf_tail_call(ctx, &sl_stages, STAGE_SELECTOR + 1);
	return 1;
}

/* ---- an application's own choice ---------------------------------------------------------------------------------------------- */

/* What setsockopt(TCP_CONGESTION) names; the kernel takes 15 characters at the most. */
static __always_inline bool asked_for(struct bpf_sockopt *ctx, struct sl_application *asked)
{
	const char *text = ctx->optval, *end = ctx->optval_end;
	int i;

	for (i = 0; i < SL_CCA_NAME_LEN - 1; i++) {
		if (i >= ctx->optlen || text + i + 1 > end || !text[i])
			break;
		asked->cca[i] = text[i];
	}
	return i > 0;
}

/*
 * Runs before the kernel's own handler, with the socket locked: 1 = go on, 0 = EPERM, and with optlen -1 success without effect. What is let
 * through may still be refused by the kernel (unknown, or not for this user), so a note alone means nothing: it counts while the
 * socket runs what it says. A socket without a remote address has no rule yet; its choice is noted, and the rule decides when it
 * connects or accepts.
 */
SEC("cgroup/setsockopt")
int sl_setsockopt(struct bpf_sockopt *ctx)
{
	struct bpf_sockopt_kern *kctx;
	struct sl_application asked = {}, *noted;
	struct sl_selection sel = {};
	struct tcp_sock *tp;
	int result;

	if (ctx->level != SOL_TCP || ctx->optname != TCP_CONGESTION) {
		ctx->optlen = 0;	/* the kernel reads the caller's own memory: larger values than a page do not fit here */
		return 1;
	}
	if (!ctx->sk || !asked_for(ctx, &asked))
		return 1;
	kctx = bpf_cast_to_kern_ctx(ctx);
	tp = bpf_rdonly_cast(kctx->sk, bpf_core_type_id_kernel(struct tcp_sock));
	if (is_mptcp(tp)) {
		sl_count(SL_POLICY_MPTCP);
		return 1;
	}
	if (((struct sock_common *)tp)->skc_state == BPF_TCP_CLOSE || is_listener(tp))
		goto note;
	result = sl_select((struct sock *)tp, NULL, &sel);
	if (result != SL_SELECT_OK || !sel.verdict) {
		sl_count_result(result);
		return 1;
	}
	if (sel.verdict->flags & SL_VERDICT_REFUSE) {
		sl_count(SL_POLICY_APPLICATION_REFUSED);
		return 0;
	}
	if (!(sel.verdict->flags & SL_VERDICT_RESPECT) || bpf_map_lookup_elem(&sl_cca_ids, asked.cca)) {
		sl_count(SL_POLICY_APPLICATION_OVERRIDDEN);
		ctx->optlen = -1;
		return 1;
	}
note:
	noted = bpf_sk_storage_get(&sl_application, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (noted) {
		*noted = asked;
		sl_count(SL_POLICY_APPLICATION_NOTED);
	}
	return 1;
}

/* ---- looking ---------------------------------------------------------------------------------------------------------------- */

SEC("iter/tcp")
int sl_iter_observe(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct sl_iter_args args = iter_args(SL_ITER_OBSERVE);
	struct decision d = {};
	struct sl_report r = {};
	struct tcp_sock *tp;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)	/* a request or time-wait socket: it runs no CCA */
		return 0;
	if (args.only_map_id && struct_ops_id(tp->inet_conn.icsk_ca_ops) != args.only_map_id)
		return 0;
	decision_of(tp, &d);
	fill_report(&r, tp, &d);
	bpf_seq_write(ctx->meta->seq, &r, sizeof(r));
	return 0;
}

SEC("iter/task_file")
int sl_iter_files(struct bpf_iter__task_file *ctx)
{
	struct sl_iter_args args = iter_args(SL_ITER_FILES);
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct socket *socket;
	struct tcp_sock *tp;
	struct decision d = {};
	struct sl_file f = {};

	if (!task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket || !socket->sk)
		return 0;
	tp = bpf_skc_to_tcp_sock(socket->sk);
	if (!tp)
		return 0;
	if (args.only_map_id && struct_ops_id(tp->inet_conn.icsk_ca_ops) != args.only_map_id)
		return 0;
	decision_of(tp, &d);
	fill_report(&f.socket, tp, &d);
	f.socket.cookie = bpf_get_socket_cookie(tp);
	f.pid = task->tgid;
	f.fd = ctx->fd;
	f.ack_backlog = ((struct sock *)tp)->sk_ack_backlog;
	bpf_seq_write(ctx->meta->seq, &f, sizeof(f));
	return 0;
}

SEC("iter/tcp")
int sl_iter_count(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct sl_iter_args args = iter_args(SL_ITER_COUNT);
	struct sl_usage *usage, none = {};
	struct sl_usage_key key = {};
	struct decision d = {};
	struct cca_words name;
	struct tcp_sock *tp;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	key.struct_ops_id = struct_ops_id(tp->inet_conn.icsk_ca_ops);
	if (args.only_map_id && key.struct_ops_id != args.only_map_id)
		return 0;
	name = name_of(tp->inet_conn.icsk_ca_ops);
	__builtin_memcpy(key.cca, &name, sizeof(key.cca));
	key.netns_ino = skc->skc_net.net->ns.inum;
	key.listener = is_listener(tp);
	decision_of(tp, &d);
	key.locality = d.locality;
	key.rule_id = d.rule_id;
	key.current_generation = d.generation != 0;
	usage = bpf_map_lookup_elem(&sl_usage, &key);
	if (!usage) {
		bpf_map_update_elem(&sl_usage, &key, &none, BPF_NOEXIST);	/* another iterator may have been first */
		usage = bpf_map_lookup_elem(&sl_usage, &key);
	}
	if (!usage) {
		sl_count(SL_POLICY_USAGE_FULL);
		return 0;
	}
	__sync_fetch_and_add(&usage->sockets, 1);
	__sync_fetch_and_add(&usage->cwnd_segments_sum, tp->snd_cwnd);
	__sync_fetch_and_add(&usage->srtt_us_sum, tp->srtt_us >> 3);
	__sync_fetch_and_add(&usage->retransmits_sum, tp->total_retrans);
	return 0;
}

/* ---- migration ------------------------------------------------------------------------------------------------------------- */

/* Makes one locked socket right. Returns its enum sl_outcome, and -errno in *error. */
static __always_inline int migrate_one(struct tcp_sock *tp, struct listener_choice *copy, struct sl_selection *sel,
				       struct sl_choice *choice, bool dry_run, __s32 *error)
{
	const struct tcp_congestion_ops *before = tp->inet_conn.icsk_ca_ops;
	int result = choose(tp, copy, sel, choice);

	if (result != SL_SELECT_OK) {
		choice->cca = NULL;
		sl_count_result(result);
		return result == SL_SELECT_NO_RULE ? SL_OUTCOME_NO_RULE : SL_OUTCOME_NO_POLICY;
	}
	if (!choice->cca) {
		if (is_listener(tp))	/* "" = leave */
			return SL_OUTCOME_CURRENT;
		sl_count(SL_POLICY_ECN_NO_FALLBACK);
		return SL_OUTCOME_NO_FALLBACK;
	}
	if (runs(before, choice->cca))
		return SL_OUTCOME_CURRENT;
	if (dry_run)
		return SL_OUTCOME_MOVED;
	*error = sl_set_cca(tp, choice->cca);
	if (*error)
		return SL_OUTCOME_SET_FAILED;
	/* The same as before: sl_cca_ids names a map that is not registered. */
	return before == tp->inet_conn.icsk_ca_ops ? SL_OUTCOME_CURRENT : SL_OUTCOME_MOVED;
}

static __noinline int write_report(struct seq_file *seq, struct tcp_sock *tp, const struct decision *d, int outcome,
				   __s32 error)
{
	struct sl_report r = {};

	fill_report(&r, tp, d);
	r.outcome = outcome;
	r.error = error;
	return bpf_seq_write(seq, &r, sizeof(r));
}

/*
 * Walking many sockets, each of these lines comes from memory. Asked for together they arrive together; one after the other, as
 * the look-ups, the switch, .release and .init need them, they cost several times that. Nothing is made of what is read: `skc` may be
 * a request or time-wait socket.
 */
static __always_inline void fetch(const struct sock_common *skc)
{
	const struct tcp_sock *tp = bpf_rdonly_cast(skc, bpf_core_type_id_kernel(struct tcp_sock));
	const struct inet_connection_sock *icsk = &tp->inet_conn;

	(void)READ_ONCE(icsk->icsk_inet.sk.sk_protocol);
	(void)READ_ONCE(icsk->icsk_inet.tos);
	(void)READ_ONCE(icsk->icsk_ca_ops);
	(void)READ_ONCE(icsk->icsk_ca_priv[0]);
	(void)READ_ONCE(icsk->icsk_ca_priv[SL_CA_PRIV_BYTES / 8 - 1]);
	(void)READ_ONCE(tp->snd_cwnd);
	(void)READ_ONCE(tp->snd_ssthresh);
	(void)READ_ONCE(tp->tcp_mstamp);
	(void)READ_ONCE(tp->delivered_ce);
	(void)READ_ONCE(tp->prior_ssthresh);
}

SEC("iter/tcp")
int sl_iter_migrate(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct sl_iter_args args = iter_args(SL_ITER_MIGRATE);
	struct listener_choice copy;
	struct sl_selection sel = {};
	struct sl_choice choice = {};
	struct decision d = {};
	struct seq_file *seq = ctx->meta->seq;
	__s32 error = 0;
	struct tcp_sock *tp;
	bool dry_run = args.flags & SL_ITER_DRY_RUN;
	int outcome;

	if (!skc)
		return 0;
	fetch(skc);
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	if (args.only_map_id && struct_ops_id(tp->inet_conn.icsk_ca_ops) != args.only_map_id)
		return 0;
	if (seq->count + sizeof(struct sl_report) >= seq->size) {
		/* This write fails, and the kernel hands out what there is and comes back to this socket. */
		write_report(seq, tp, &d, SL_OUTCOME_OBSERVED, 0);
		return 0;
	}

	sl_count(SL_POLICY_ITER_SEEN);
	if (is_mptcp(tp)) {
		sl_count(SL_POLICY_MPTCP);
		outcome = SL_OUTCOME_MPTCP;
	} else {
		outcome = migrate_one(tp, &copy, &sel, &choice, dry_run, &error);
	}
	switch (outcome) {
	case SL_OUTCOME_CURRENT:
		break;
	case SL_OUTCOME_MOVED:
		if (!dry_run)
			sl_count(SL_POLICY_ITER_MOVED);
		break;
	default:
		sl_count(SL_POLICY_ITER_FAILED);
		goto report;
	}
	if (choice.ecn_fallback)
		sl_count(SL_POLICY_ITER_ECN_FALLBACK);
	if (!(args.flags & SL_ITER_REPORT_ALL))
		return 0;
report:
	make_decision(&d, tp, &sel, &choice);
	write_report(seq, tp, &d, outcome, error);
	return 0;
}
