// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A loaded BPF program by descriptor. Owns the descriptor only: links and pins keep programs alive on their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::bpfio {

struct ProgramInfo {
  std::uint32_t id = 0;
  std::uint32_t type = 0;  // enum bpf_prog_type
  std::string type_name;   // "sock_ops", "struct_ops", ...
  std::string name;        // as the kernel has it: at most 15 characters
  std::string tag;         // 16 hex digits over the instructions; with the id, a program's identity
  std::uint32_t btf_id = 0;
  std::uint32_t xlated_bytes = 0;
  std::uint32_t jited_bytes = 0;     // 0 = interpreted
  std::uint32_t verified_insns = 0;  // 0 before 5.16
  std::uint64_t loaded_ns = 0;       // since boot
  std::uint32_t uid = 0;
  std::uint64_t run_ns = 0;  // both 0 unless kernel.bpf_stats_enabled
  std::uint64_t run_count = 0;
  std::vector<std::uint32_t> map_ids;
};

struct TestRun {
  std::span<const std::byte> data;     // packet; empty where the program type has none
  std::span<const std::byte> context;  // struct __sk_buff, ...; empty = zeroes
  std::uint32_t repeat = 1;
  std::size_t data_out_max = 0;
};
struct TestRunResult {
  std::uint32_t value = 0;        // what the program returned
  std::uint32_t duration_ns = 0;  // mean of `repeat` runs
  std::vector<std::byte> data;
};

class Program {
 public:
  static Result<Program> adopt(UniqueFd fd);
  static Result<Program> from_id(std::uint32_t id);

  int fd() const { return fd_.get(); }
  std::uint32_t id() const { return id_; }
  Result<ProgramInfo> info() const;
  // As the verifier left them, struct bpf_insn each; empty where the kernel does not show them.
  Result<std::vector<std::byte>> instructions() const;
  // BPF_PROG_TEST_RUN: socket filters, TC, XDP and syscall programs, not the TCP hooks.
  Result<TestRunResult> test_run(const TestRun& run) const;

 private:
  Program(UniqueFd fd, std::uint32_t id) : fd_(std::move(fd)), id_(id) {}
  UniqueFd fd_;
  std::uint32_t id_ = 0;
};

}  // namespace sluice::bpfio
