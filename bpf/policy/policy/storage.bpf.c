// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * sl_iter_storage: one record for every TCP socket with our storage, in all network namespaces at once: those that changed their CCA
 * and were handed over, or that the logger selected. Not every socket of ours has storage.
 *
 * An object of its own because some kernels refuse every iterator that is attached to a map (EPERM at load: seen on a hardened
 * 6.18). Where it does not load, sl_iter_files finds the sockets that a process holds. Sockets are not locked here: fields of one
 * record may be of slightly different moments.
 */
#include "report.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

SEC("iter/bpf_sk_storage_map")
int sl_iter_storage(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sl_iter_args args = iter_args(SL_ITER_STORAGE);
	struct sl_sock *st = ctx->value;
	struct sock *sk = ctx->sk;
	struct decision d = {};
	struct sl_report r = {};
	struct tcp_sock *tp;

	if (!sk || !st)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	if (args.only_map_id && struct_ops_id(tp->inet_conn.icsk_ca_ops) != args.only_map_id)
		return 0;
	decision_of(tp, st, &d);
	fill_report(&r, tp, &d);
	bpf_seq_write(ctx->meta->seq, &r, sizeof(r));
	return 0;
}
