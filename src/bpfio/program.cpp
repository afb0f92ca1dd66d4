// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/program.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include <cerrno>
#include <cstring>

#include "bpfio/kernel_btf.h"

namespace sluice::bpfio {

Result<Program> Program::adopt(UniqueFd fd) {
  SLUICE_CHECK(expect_kind(fd.get(), FdKind::kProgram));
  bpf_prog_info raw{};
  __u32 size = sizeof(raw);
  if (int err = bpf_prog_get_info_by_fd(fd.get(), &raw, &size); err != 0)
    return fail(libbpf_error(err, fmt::format("cannot describe the program of descriptor {}", fd.get())));
  return Program(std::move(fd), raw.id);
}

Result<Program> Program::from_id(std::uint32_t id) {
  UniqueFd fd(bpf_prog_get_fd_by_id(id));
  if (!fd) return fail(libbpf_error(errno, fmt::format("cannot open the program with id {}", id)));
  return adopt(std::move(fd));
}

Result<ProgramInfo> Program::info() const {
  ProgramInfo info;
  bpf_prog_info raw{};
  __u32 size = sizeof(raw);
  int err = bpf_prog_get_info_by_fd(fd_.get(), &raw, &size);
  if (err == 0 && raw.nr_map_ids > 0) {
    info.map_ids.resize(raw.nr_map_ids);
    raw = {};
    raw.nr_map_ids = static_cast<__u32>(info.map_ids.size());
    raw.map_ids = reinterpret_cast<std::uintptr_t>(info.map_ids.data());
    size = sizeof(raw);
    err = bpf_prog_get_info_by_fd(fd_.get(), &raw, &size);
    info.map_ids.resize(std::min<std::size_t>(info.map_ids.size(), raw.nr_map_ids));
  }
  if (err != 0) return fail(libbpf_error(err, fmt::format("cannot describe the program with id {}", id_)));
  info.id = raw.id;
  info.type = raw.type;
  const char* type_name = libbpf_bpf_prog_type_str(static_cast<bpf_prog_type>(raw.type));
  info.type_name = type_name == nullptr ? "?" : type_name;
  info.name = std::string(raw.name, ::strnlen(raw.name, sizeof(raw.name)));
  for (unsigned char byte : raw.tag) info.tag += fmt::format("{:02x}", byte);
  info.btf_id = raw.btf_id;
  info.xlated_bytes = raw.xlated_prog_len;
  info.jited_bytes = raw.jited_prog_len;
  info.verified_insns = raw.verified_insns;
  info.loaded_ns = raw.load_time;
  info.uid = raw.created_by_uid;
  info.run_ns = raw.run_time_ns;
  info.run_count = raw.run_cnt;
  return info;
}

Result<std::vector<std::byte>> Program::instructions() const {
  SLUICE_TRY(about, info());
  std::vector<std::byte> code(about.xlated_bytes);
  bpf_prog_info raw{};
  __u32 size = sizeof(raw);
  raw.xlated_prog_len = static_cast<__u32>(code.size());
  raw.xlated_prog_insns = reinterpret_cast<std::uintptr_t>(code.data());
  if (int err = bpf_prog_get_info_by_fd(fd_.get(), &raw, &size); err != 0)
    return fail(libbpf_error(err, fmt::format("cannot read the instructions of the program with id {}", id_)));
  if (raw.xlated_prog_insns == 0) code.clear();  // constants are blinded, and not for us to see
  code.resize(std::min<std::size_t>(code.size(), raw.xlated_prog_len));
  return code;
}

Result<TestRunResult> Program::test_run(const TestRun& run) const {
  TestRunResult result;
  result.data.resize(run.data_out_max);
  LIBBPF_OPTS(bpf_test_run_opts, options);
  options.data_in = run.data.data();
  options.data_size_in = static_cast<__u32>(run.data.size());
  options.data_out = result.data.data();
  options.data_size_out = static_cast<__u32>(result.data.size());
  options.ctx_in = run.context.data();
  options.ctx_size_in = static_cast<__u32>(run.context.size());
  options.repeat = static_cast<int>(run.repeat);
  if (int err = bpf_prog_test_run_opts(fd_.get(), &options); err != 0)
    return fail(libbpf_error(err, fmt::format("cannot test-run the program with id {}", id_)));
  result.value = options.retval;
  result.duration_ns = options.duration;
  result.data.resize(std::min<std::size_t>(result.data.size(), options.data_size_out));
  return result;
}

}  // namespace sluice::bpfio
