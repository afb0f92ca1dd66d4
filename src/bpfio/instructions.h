// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// BPF instructions by name, for programs of a few lines that no compiler makes: probes, and tests.
#pragma once

#include <linux/bpf.h>

#include <cstdint>

namespace sluice::bpfio {

constexpr bpf_insn insn(std::uint8_t code, unsigned dst, unsigned src, std::int16_t offset, std::int32_t immediate) {
  bpf_insn made{};
  made.code = code;
  made.dst_reg = dst & 0xf;
  made.src_reg = src & 0xf;
  made.off = offset;
  made.imm = immediate;
  return made;
}
constexpr bpf_insn set_imm(unsigned dst, std::int32_t value) { return insn(BPF_ALU64 | BPF_MOV | BPF_K, dst, 0, 0, value); }
constexpr bpf_insn set_reg(unsigned dst, unsigned src) { return insn(BPF_ALU64 | BPF_MOV | BPF_X, dst, src, 0, 0); }
constexpr bpf_insn add_imm(unsigned dst, std::int32_t value) { return insn(BPF_ALU64 | BPF_ADD | BPF_K, dst, 0, 0, value); }
constexpr bpf_insn load_u32(unsigned dst, unsigned base, std::int16_t offset) {
  return insn(BPF_LDX | BPF_MEM | BPF_W, dst, base, offset, 0);
}
constexpr bpf_insn store_u32(unsigned base, std::int16_t offset, unsigned src) {
  return insn(BPF_STX | BPF_MEM | BPF_W, base, src, offset, 0);
}
constexpr bpf_insn load_u64(unsigned dst, unsigned base, std::int16_t offset) {
  return insn(BPF_LDX | BPF_MEM | BPF_DW, dst, base, offset, 0);
}
constexpr bpf_insn store_zero(unsigned base, std::int16_t offset) {
  return insn(BPF_ST | BPF_MEM | BPF_DW, base, 0, offset, 0);
}
constexpr bpf_insn skip_if_zero(unsigned reg, std::int16_t count) { return insn(BPF_JMP | BPF_JEQ | BPF_K, reg, 0, count, 0); }
constexpr bpf_insn call(bpf_func_id helper) { return insn(BPF_JMP | BPF_CALL, 0, 0, 0, helper); }
constexpr bpf_insn leave() { return insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0); }

}  // namespace sluice::bpfio
