// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// For the files of bpfio only: the kernel's type information, errors of libbpf, and what a descriptor is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "bpfio/btf.h"

struct btf;

namespace sluice::bpfio {

// /sys/kernel/btf/vmlinux, parsed once a process (some 40 ms) and kept.
Result<const btf*> kernel_btf();

// A struct of `types` by name: members and hash as value_type() gives them.
Result<ValueType> describe_type(const btf* types, std::uint32_t type_id);

// `err` is an errno or one of libbpf's own numbers, of either sign.
Error libbpf_error(int err, std::string what);

enum class FdKind { kMap, kProgram, kLink };
// kConflict if the descriptor is something else: bpf(2) would take its info for the wrong struct.
Status expect_kind(int fd, FdKind kind);

}  // namespace sluice::bpfio
