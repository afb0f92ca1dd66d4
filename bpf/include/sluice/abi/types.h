/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fixed-width types and asserts for headers that BPF C, C and C++ share.
 *
 * In BPF the types come from vmlinux.h, which must be included before; in user space from <linux/types.h>. The headers in this
 * folder use nothing else.
 */
#ifndef SLUICE_ABI_TYPES_H
#define SLUICE_ABI_TYPES_H

#ifdef __bpf__
/* vmlinux.h has the big-endian ones only: whatever the kernel itself uses of a type is in its BTF. */
typedef __u16 __le16;
typedef __u32 __le32;
typedef __u64 __le64;
#else
#include <linux/types.h>
#include <stddef.h>
#endif

#ifdef __cplusplus
#define SL_ASSERT_SIZE(type, size) static_assert(sizeof(type) == (size), #type " changed its size")
#else
#define SL_ASSERT_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " changed its size")
#endif

/* Version of the pinned objects as a whole; names the folder /sys/fs/bpf/sluice/v<SL_ABI>. */
#define SL_ABI 1

/* TCP_CA_NAME_MAX: 15 characters of [A-Za-z0-9_.] and a NUL. */
#define SL_CCA_NAME_LEN 16

#endif
