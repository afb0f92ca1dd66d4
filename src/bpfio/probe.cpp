// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Probes load programs written as instructions below: what they need is the kernel's answer, not a compiler or a file.
#include "bpfio/probe.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "base/file.h"
#include "base/mounts.h"
#include "base/strings.h"
#include "base/unique_fd.h"
#include "bpfio/instructions.h"
#include "bpfio/kernel_btf.h"
#include "bpfio/map.h"
#include "bpfio/object.h"
#include "bpfio/program.h"

namespace sluice::bpfio {
namespace {

constexpr std::string_view kNewerKernel = "use a newer kernel";
constexpr std::string_view kRunAsRoot = "run as root, or give the service this capability";

const std::vector<Feature> kFeatures = {
    {FeatureId::kBtf,
     "btf",
     FeatureKind::kKernel,
     {5, 4, 0},
     "reads /sys/kernel/btf/vmlinux",
     "use a kernel built with CONFIG_DEBUG_INFO_BTF"},
    {FeatureId::kJit,
     "jit",
     FeatureKind::kHost,
     {3, 16, 0},
     "loads a program and asks for its machine code's size",
     "sysctl net.core.bpf_jit_enable=1"},
    {FeatureId::kBpffs,
     "bpffs",
     FeatureKind::kHost,
     {4, 4, 0},
     "looks for a mount of type bpf",
     "mount -t bpf bpf /sys/fs/bpf"},
    {FeatureId::kCgroup2,
     "cgroup2",
     FeatureKind::kHost,
     {4, 5, 0},
     "looks for a mount of type cgroup2",
     "boot with systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 none DIR"},
    {FeatureId::kCapBpf, "cap_bpf", FeatureKind::kHost, {5, 8, 0}, "reads CapEff of /proc/self/status", kRunAsRoot},
    {FeatureId::kCapNetAdmin, "cap_net_admin", FeatureKind::kHost, {2, 2, 0}, "reads CapEff of /proc/self/status", kRunAsRoot},
    {FeatureId::kCapNetRaw, "cap_net_raw", FeatureKind::kHost, {2, 2, 0}, "reads CapEff of /proc/self/status", kRunAsRoot},
    {FeatureId::kCapPerfmon, "cap_perfmon", FeatureKind::kHost, {5, 8, 0}, "reads CapEff of /proc/self/status", kRunAsRoot},
    {FeatureId::kCapSysAdmin, "cap_sys_admin", FeatureKind::kHost, {2, 2, 0}, "reads CapEff of /proc/self/status", kRunAsRoot},
    {FeatureId::kMemlock,
     "memlock",
     FeatureKind::kHost,
     {2, 6, 0},
     "kernel >= 5.11 (memory is the cgroup's), or the limit of locked memory",
     "set LimitMEMLOCK=infinity (ulimit -l unlimited)"},
    {FeatureId::kSockopsLink,
     "sockops-link",
     FeatureKind::kKernel,
     {5, 7, 0},
     "attaches a sock_ops program to no cgroup: EBADF",
     "use a kernel built with CONFIG_CGROUP_BPF"},
    {FeatureId::kStructOps,
     "struct_ops",
     FeatureKind::kKernel,
     {5, 6, 0},
     "creates a tcp_congestion_ops map",
     "use a kernel built with CONFIG_BPF_JIT and CONFIG_DEBUG_INFO_BTF"},
    {FeatureId::kStructOpsLink,
     "struct_ops-link",
     FeatureKind::kKernel,
     {6, 4, 0},
     "creates a tcp_congestion_ops map with BPF_F_LINK",
     kNewerKernel},
    {FeatureId::kCongControl4,
     "cong_control-4",
     FeatureKind::kKernel,
     {6, 10, 0},
     "counts the arguments of tcp_congestion_ops.cong_control",
     kNewerKernel},
    {FeatureId::kStructOpsSkStorage,
     "struct_ops-sk_storage",
     FeatureKind::kKernel,
     {6, 1, 0},
     "loads a tcp_congestion_ops program that calls bpf_sk_storage_get",
     kNewerKernel},
    {FeatureId::kIterTcp, "iter-tcp", FeatureKind::kKernel, {5, 9, 0}, "loads an iter/tcp program", kNewerKernel},
    {FeatureId::kIterTcpSetsockopt,
     "iter-tcp-setsockopt",
     FeatureKind::kKernel,
     {5, 15, 0},
     "loads an iter/tcp program that calls bpf_setsockopt",
     kNewerKernel},
    {FeatureId::kIterSkStorage,
     "iter-sk_storage",
     FeatureKind::kKernel,
     {5, 9, 0},
     "loads an iter/bpf_sk_storage_map program",
     kNewerKernel},
    {FeatureId::kIterTaskFile,
     "iter-task_file",
     FeatureKind::kKernel,
     {5, 8, 0},
     "loads an iter/task_file program",
     kNewerKernel},
    {FeatureId::kLpmInArrayOfMaps,
     "lpm-in-array_of_maps",
     FeatureKind::kKernel,
     {4, 12, 0},
     "creates an array of maps with an LPM trie as its prototype",
     kNewerKernel},
};

struct Finding {
  Presence presence;
  std::string reason;
  int lacks = 0;  // kUnknown: the errno of what ran out, so that the question could not be asked
};
Finding present(std::string reason) { return {Presence::kPresent, std::move(reason)}; }
Finding absent(std::string reason) { return {Presence::kAbsent, std::move(reason)}; }
Finding unknown(std::string reason, int lacks = 0) { return {Presence::kUnknown, std::move(reason), lacks}; }
Finding unknown(const Error& error) { return unknown(error.message(), error.code == Code::kExhausted ? error.sys_errno : 0); }

// One of CapEff's bits, or nothing if it cannot be read.
std::optional<bool> has_capability(const std::string& proc, unsigned bit) {
  auto text = read_file(proc + "/self/status");
  if (!text) return std::nullopt;
  for (std::string_view line : split(*text, '\n')) {
    constexpr std::string_view kKey = "CapEff:";
    if (!line.starts_with(kKey)) continue;
    auto mask = parse_int<std::uint64_t>(trim(line.substr(kKey.size())), 16);
    if (mask) return (*mask >> bit & 1) != 0;
  }
  return std::nullopt;
}

// What a refused load or creation means.
Finding refused(int err, std::string_view what, std::string_view log = {}) {
  err = std::abs(err);
  if (err == EPERM) {
    // No right to ask is no answer; but CAP_SYS_ADMIN is every right that bpf(2) asks for.
    if (has_capability("/proc", CAP_SYS_ADMIN) != true) return unknown(fmt::format("{}: not permitted", what));
    return absent(fmt::format("{}: forbidden, whatever the rights: a security policy of this kernel", what));
  }
  if (err == ENOMEM || err == ENOSPC || err == EMFILE || err == ENFILE)
    return unknown(fmt::format("{}: {}", what, std::strerror(err)), err);
  std::string reason = fmt::format("{}: {}", what, std::strerror(err));
  if (!log.empty()) reason += fmt::format(" ({})", log);
  return absent(std::move(reason));
}

struct Load {
  bpf_prog_type type = BPF_PROG_TYPE_UNSPEC;
  std::uint32_t expected_attach_type = 0;
  std::uint32_t attach_btf_id = 0;
};

struct Loaded {
  UniqueFd fd;
  int err = 0;
  std::string log;
};

Loaded load(const Load& what, std::span<const bpf_insn> code) {
  Loaded loaded;
  std::vector<char> log(64 << 10);
  LIBBPF_OPTS(bpf_prog_load_opts, options);
  options.expected_attach_type = static_cast<bpf_attach_type>(what.expected_attach_type);
  options.attach_btf_id = what.attach_btf_id;
  int fd = bpf_prog_load(what.type, "sl_probe", "GPL", code.data(), code.size(), &options);
  if (fd < 0) {
    loaded.err = fd;
    options.log_level = 1;
    options.log_buf = log.data();
    options.log_size = static_cast<__u32>(log.size());
    log[0] = '\0';
    fd = bpf_prog_load(what.type, "sl_probe", "GPL", code.data(), code.size(), &options);
    loaded.log = last_verifier_line(log.data());
  }
  if (fd >= 0) loaded.err = 0;
  loaded.fd.reset(fd);
  return loaded;
}

constexpr std::array kReturnZero = {set_imm(BPF_REG_0, 0), leave()};

// --- probes ---

Finding probe_btf(const ProbeRoots& roots) {
  const std::string path = roots.sys + "/kernel/btf/vmlinux";
  auto fd = open_file(path, O_RDONLY);
  if (fd) return present(path);
  const bool asked = fd.error().code != Code::kPermission && fd.error().code != Code::kExhausted;
  return asked ? absent(fd.error().message()) : unknown(fd.error());
}

Finding probe_jit() {
  Loaded loaded = load({BPF_PROG_TYPE_SOCKET_FILTER, 0, 0}, kReturnZero);
  if (loaded.err != 0) {
    const Finding why = refused(loaded.err, "loading a socket filter", loaded.log);
    return unknown(why.reason, why.lacks);
  }
  auto program = Program::adopt(std::move(loaded.fd));
  if (!program) return unknown(program.error());
  auto info = program->info();
  if (!info) return unknown(info.error());
  return info->jited_bytes > 0 ? present("programs are machine code") : absent("programs are interpreted");
}

Finding probe_bpffs(const ProbeRoots& roots) {
  auto mounts = read_mounts(roots.proc);
  if (!mounts) return unknown(mounts.error());
  for (const Mount& mount : *mounts)
    if (mount.type == "bpf") return present("mounted at " + mount.target);
  return absent("no bpffs is mounted");
}

Finding probe_cgroup2(const ProbeRoots& roots) {
  auto mounts = read_mounts(roots.proc);
  if (!mounts) return unknown(mounts.error());
  CgroupMounts found = cgroup_mounts(*mounts);
  if (found.cgroup2.empty()) return absent(fmt::format("control groups are {}", to_string(found.mode)));
  return present(fmt::format("{}, at {}", to_string(found.mode), found.cgroup2));
}

Finding probe_capability(const ProbeRoots& roots, unsigned bit) {
  auto held = has_capability(roots.proc, bit);
  if (!held) return unknown(roots.proc + "/self/status does not tell");
  return *held ? present("held") : absent("not held");
}

Finding probe_memlock() {
  auto kernel = running_kernel();
  if (kernel && *kernel >= KernelVersion{5, 11, 0}) return present("memory is accounted to the cgroup");
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return unknown(std::strerror(errno));
  if (limit.rlim_cur == RLIM_INFINITY) return present("locked memory is unlimited");
  return absent(fmt::format("locked memory is limited to {} bytes", limit.rlim_cur));
}

Finding probe_sockops_link() {
  Loaded loaded = load({BPF_PROG_TYPE_SOCK_OPS, 0, 0}, kReturnZero);
  if (loaded.err != 0) return refused(loaded.err, "loading a sock_ops program", loaded.log);
  // A kernel with links looks for the cgroup; one without does not know the command.
  UniqueFd link(bpf_link_create(loaded.fd.get(), -1, BPF_CGROUP_SOCK_OPS, nullptr));
  if (errno == EBADF) return present("links are known");
  return refused(errno, "creating a link");
}

// Type information that holds "int" as type 1: for maps that cannot be had without.
struct IntType {
  std::unique_ptr<btf, decltype(&btf__free)> types{btf__new_empty(), &btf__free};
  int id = -1;
};
Result<IntType> load_int_type() {
  IntType made;
  if (!made.types) return fail(libbpf_error(errno, "making type information"));
  made.id = btf__add_int(made.types.get(), "int", 4, BTF_INT_SIGNED);
  if (made.id < 0) return fail(libbpf_error(made.id, "making type information"));
  if (int err = btf__load_into_kernel(made.types.get()); err != 0) return fail(libbpf_error(err, "loading type information"));
  return made;
}

Result<UniqueFd> create_sk_storage() {
  SLUICE_TRY(integer, load_int_type());
  LIBBPF_OPTS(bpf_map_create_opts, options);
  options.map_flags = BPF_F_NO_PREALLOC;
  options.btf_fd = static_cast<__u32>(btf__fd(integer.types.get()));
  options.btf_key_type_id = static_cast<__u32>(integer.id);
  options.btf_value_type_id = static_cast<__u32>(integer.id);
  UniqueFd map(bpf_map_create(BPF_MAP_TYPE_SK_STORAGE, "sl_probe", 4, 4, 0, &options));
  if (!map) return fail(libbpf_error(errno, "creating socket storage"));
  return map;
}

Finding create_struct_ops(std::uint32_t flags) {
  auto types = kernel_btf();
  if (!types) return unknown(types.error());
  const int id = btf__find_by_name_kind(*types, "bpf_struct_ops_tcp_congestion_ops", BTF_KIND_STRUCT);
  if (id < 0) return absent("the kernel has no bpf_struct_ops_tcp_congestion_ops");
  auto integer = load_int_type();  // the map must come with some type information, though none of it is used
  if (!integer) return refused(integer.error().sys_errno, integer.error().what);
  LIBBPF_OPTS(bpf_map_create_opts, options);
  options.btf_fd = static_cast<__u32>(btf__fd(integer->types.get()));
  options.btf_vmlinux_value_type_id = static_cast<__u32>(id);
  options.map_flags = flags;
  const auto size = static_cast<__u32>(btf__resolve_size(*types, static_cast<__u32>(id)));
  UniqueFd map(bpf_map_create(BPF_MAP_TYPE_STRUCT_OPS, "sl_probe", sizeof(__u32), size, 1, &options));
  if (!map) return refused(errno, "creating a struct_ops map");
  return present("a tcp_congestion_ops map was created");
}

Finding probe_cong_control4() {
  auto types = kernel_btf();
  if (!types) return unknown(types.error());
  const int id = btf__find_by_name_kind(*types, "tcp_congestion_ops", BTF_KIND_STRUCT);
  if (id < 0) return absent("the kernel has no tcp_congestion_ops");
  const btf_type* ops = btf__type_by_id(*types, static_cast<__u32>(id));
  for (std::uint32_t i = 0; i < btf_vlen(ops); i++) {
    if (std::string_view(btf__name_by_offset(*types, btf_members(ops)[i].name_off)) != "cong_control") continue;
    const btf_type* pointer = btf__type_by_id(*types, btf_members(ops)[i].type);
    const btf_type* function = btf__type_by_id(*types, pointer->type);
    const unsigned arguments = btf_vlen(function);
    return arguments == 4 ? present("cong_control(sk, ack, flag, rs)")
                          : absent(fmt::format("cong_control takes {} arguments", arguments));
  }
  return absent("tcp_congestion_ops has no cong_control");
}

Finding probe_struct_ops_sk_storage() {
  auto types = kernel_btf();
  if (!types) return unknown(types.error());
  const int id = btf__find_by_name_kind(*types, "tcp_congestion_ops", BTF_KIND_STRUCT);
  if (id < 0) return absent("the kernel has no tcp_congestion_ops");
  const btf_type* ops = btf__type_by_id(*types, static_cast<__u32>(id));
  std::optional<std::uint32_t> init;
  for (std::uint32_t i = 0; i < btf_vlen(ops); i++)
    if (std::string_view(btf__name_by_offset(*types, btf_members(ops)[i].name_off)) == "init") init = i;
  if (!init) return absent("tcp_congestion_ops has no init");
  auto storage = create_sk_storage();
  if (!storage) return refused(storage.error().sys_errno, storage.error().what);
  const std::array code = {
      load_u64(BPF_REG_2, BPF_REG_1, 0),  // sk
      insn(BPF_LD | BPF_DW | BPF_IMM, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, storage->get()),
      insn(0, 0, 0, 0, 0),
      set_imm(BPF_REG_3, 0),
      set_imm(BPF_REG_4, 0),
      call(BPF_FUNC_sk_storage_get),
      set_imm(BPF_REG_0, 0),
      leave(),
  };
  Loaded loaded = load({BPF_PROG_TYPE_STRUCT_OPS, *init, static_cast<std::uint32_t>(id)}, code);
  if (loaded.err != 0) return refused(loaded.err, "loading tcp_congestion_ops.init", loaded.log);
  return present("tcp_congestion_ops.init may call it");
}

Finding probe_iter(const char* function, std::span<const bpf_insn> code) {
  auto types = kernel_btf();
  if (!types) return unknown(types.error());
  const int id = btf__find_by_name_kind(*types, function, BTF_KIND_FUNC);
  if (id < 0) return absent(fmt::format("the kernel has no {}", function));
  Loaded loaded = load({BPF_PROG_TYPE_TRACING, BPF_TRACE_ITER, static_cast<std::uint32_t>(id)}, code);
  if (loaded.err != 0) return refused(loaded.err, fmt::format("loading a program for {}", function), loaded.log);
  return present(fmt::format("a program for {} was loaded", function));
}

// struct bpf_iter__tcp { meta; sk_common; uid; }: bpf_setsockopt(tcp_sock, IPPROTO_TCP, TCP_CONGESTION, "", 16)
constexpr std::array kIterTcpSetsockopt = {
    load_u64(BPF_REG_1, BPF_REG_1, 8), skip_if_zero(BPF_REG_1, 11),     call(BPF_FUNC_skc_to_tcp_sock),
    skip_if_zero(BPF_REG_0, 9),        set_reg(BPF_REG_1, BPF_REG_0),   store_zero(BPF_REG_10, -16),
    store_zero(BPF_REG_10, -8),        set_imm(BPF_REG_2, IPPROTO_TCP), set_imm(BPF_REG_3, TCP_CONGESTION),
    set_reg(BPF_REG_4, BPF_REG_10),    add_imm(BPF_REG_4, -16),         set_imm(BPF_REG_5, 16),
    call(BPF_FUNC_setsockopt),         set_imm(BPF_REG_0, 0),           leave(),
};

Finding probe_lpm_in_array_of_maps() {
  LIBBPF_OPTS(bpf_map_create_opts, options);
  options.map_flags = BPF_F_NO_PREALLOC;
  UniqueFd inner(bpf_map_create(BPF_MAP_TYPE_LPM_TRIE, "sl_probe", 20, 8, 1, &options));
  if (!inner) return refused(errno, "creating an LPM trie");
  LIBBPF_OPTS(bpf_map_create_opts, outer_options);
  outer_options.inner_map_fd = static_cast<__u32>(inner.get());
  UniqueFd outer(bpf_map_create(BPF_MAP_TYPE_ARRAY_OF_MAPS, "sl_probe", 4, 4, 1, &outer_options));
  if (!outer) return refused(errno, "creating an array of LPM tries");
  return present("an array of LPM tries was created");
}

Finding find(FeatureId id, const ProbeRoots& roots) {
  switch (id) {
    case FeatureId::kBtf:
      return probe_btf(roots);
    case FeatureId::kJit:
      return probe_jit();
    case FeatureId::kBpffs:
      return probe_bpffs(roots);
    case FeatureId::kCgroup2:
      return probe_cgroup2(roots);
    case FeatureId::kCapBpf:
      return probe_capability(roots, CAP_BPF);
    case FeatureId::kCapNetAdmin:
      return probe_capability(roots, CAP_NET_ADMIN);
    case FeatureId::kCapNetRaw:
      return probe_capability(roots, CAP_NET_RAW);
    case FeatureId::kCapPerfmon:
      return probe_capability(roots, CAP_PERFMON);
    case FeatureId::kCapSysAdmin:
      return probe_capability(roots, CAP_SYS_ADMIN);
    case FeatureId::kMemlock:
      return probe_memlock();
    case FeatureId::kSockopsLink:
      return probe_sockops_link();
    case FeatureId::kStructOps:
      return create_struct_ops(0);
    case FeatureId::kStructOpsLink:
      return create_struct_ops(kLinkFlag);
    case FeatureId::kCongControl4:
      return probe_cong_control4();
    case FeatureId::kStructOpsSkStorage:
      return probe_struct_ops_sk_storage();
    case FeatureId::kIterTcp:
      return probe_iter("bpf_iter_tcp", kReturnZero);
    case FeatureId::kIterTcpSetsockopt:
      return probe_iter("bpf_iter_tcp", kIterTcpSetsockopt);
    case FeatureId::kIterSkStorage:
      return probe_iter("bpf_iter_bpf_sk_storage_map", kReturnZero);
    case FeatureId::kIterTaskFile:
      return probe_iter("bpf_iter_task_file", kReturnZero);
    case FeatureId::kLpmInArrayOfMaps:
      return probe_lpm_in_array_of_maps();
  }
  panic("a feature without a probe", __FILE__, __LINE__);
}

}  // namespace

const std::vector<Feature>& features() { return kFeatures; }

const Feature& feature(FeatureId id) {
  for (const Feature& candidate : kFeatures)
    if (candidate.id == id) return candidate;
  panic("a feature without a line in the table", __FILE__, __LINE__);
}

const Feature* find_feature(std::string_view name) {
  for (const Feature& candidate : kFeatures)
    if (candidate.name == name) return &candidate;
  return nullptr;
}

bool contradicts(const Feature& feature, Presence presence, const KernelVersion& kernel) {
  return presence == Presence::kAbsent && feature.kind == FeatureKind::kKernel && kernel >= feature.min_kernel;
}

ProbeResult probe(FeatureId id, const ProbeRoots& roots) {
  ProbeResult result;
  result.feature = &feature(id);
  Finding finding = find(id, roots);
  result.presence = finding.presence;
  result.reason = std::move(finding.reason);
  result.lacks = finding.lacks;
  auto kernel = running_kernel();
  result.contradicts_version = kernel && contradicts(*result.feature, result.presence, *kernel);
  return result;
}

std::vector<ProbeResult> probe_all(const ProbeRoots& roots) {
  std::vector<ProbeResult> results;
  results.reserve(kFeatures.size());
  for (const Feature& each : kFeatures) results.push_back(probe(each.id, roots));
  return results;
}

Status require(FeatureId id, const ProbeRoots& roots) {
  ProbeResult result = probe(id, roots);
  if (result.presence == Presence::kPresent) return {};
  const Feature& missing = *result.feature;
  Error error = fail(Code::kUnsupported, "{} {}: {}", missing.name,
                     result.presence == Presence::kAbsent ? "is missing" : "cannot be probed", result.reason)
                    .value();
  if (result.presence == Presence::kUnknown && result.lacks != 0) {
    error.code = code_from_errno(result.lacks);
    return fail(std::move(error).fix(std::string(remedy_from_errno(result.lacks))));
  }
  if (result.presence == Presence::kUnknown) error.code = Code::kPermission;
  error.feature = missing.name;
  if (missing.kind == FeatureKind::kKernel) error.min_kernel = missing.min_kernel.text();
  if (result.contradicts_version) error.what += " (this kernel is new enough: it is switched off in its configuration)";
  return fail(std::move(error).fix(std::string(missing.remedy)));
}

std::string_view to_string(Presence presence) {
  switch (presence) {
    case Presence::kPresent:
      return "present";
    case Presence::kAbsent:
      return "absent";
    case Presence::kUnknown:
      return "unknown";
  }
  panic("a presence without a name", __FILE__, __LINE__);
}

}  // namespace sluice::bpfio
