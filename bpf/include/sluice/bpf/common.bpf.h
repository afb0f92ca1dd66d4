/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What every BPF program of Sluice starts from: kernel types, libbpf's helpers, the shared ABI, and the constants that BTF does
 * not carry because the kernel has them as macros.
 */
#ifndef SLUICE_BPF_COMMON_H
#define SLUICE_BPF_COMMON_H

#include <vmlinux.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include <sluice/abi/policy.h>

#define AF_INET 2
#define AF_INET6 10
#define SOL_TCP 6
#define TCP_CONGESTION 13
#define TCP_INFINITE_SSTHRESH 0x7fffffff

/* A function of a shared header that is a subprogram of its own: verified per caller, its instructions are there once. */
#define SL_SUBPROG static __noinline __attribute__((unused))

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))

/* The compiler may not move memory accesses across it. On x86 loads are not reordered by the processor either. */
#if defined(__TARGET_ARCH_x86)
#define sl_read_barrier() asm volatile("" ::: "memory")
#else
#define sl_read_barrier() __sync_synchronize()
#endif

#endif
