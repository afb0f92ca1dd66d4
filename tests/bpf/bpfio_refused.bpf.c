// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A program that the verifier must refuse: it reads a packet without a bounds check.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("tc")
int t_good(struct __sk_buff *skb)
{
	return 0;
}

SEC("tc")
int t_bad(struct __sk_buff *skb)
{
	return *(__u8 *)(long)skb->data;
}
