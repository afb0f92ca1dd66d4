// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/real_kernel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sluice/abi/policy.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "agent/hook_audit.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strings.h"
#include "bpfio/enumerate.h"
#include "bpfio/holders.h"
#include "bpfio/iterator.h"
#include "bpfio/probe.h"
#include "net/cgroup.h"
#include "net/route.h"

namespace sluice::agent {
namespace {

constexpr size_t kSocketBatch = 1024;
// Up to so many namespaces are simply walked; 2.3 ms each.
constexpr size_t kWalkAllMax = 8;

constexpr std::pair<sl_policy_counter, std::string_view> kCounterNames[] = {
    {SL_POLICY_CONNECT, "connect"},
    {SL_POLICY_ACTIVE, "active_established"},
    {SL_POLICY_PASSIVE, "passive_established"},
    {SL_POLICY_LISTEN, "listen"},
    {SL_POLICY_NEEDS_ECN, "needs_ecn"},
    {SL_POLICY_NEEDS_ECN_YES, "needs_ecn_yes"},
    {SL_POLICY_SELECTED, "selected"},
    {SL_POLICY_KEPT, "kept"},
    {SL_POLICY_RECONCILED, "reconciled"},
    {SL_POLICY_ECN_FALLBACK, "ecn_fallback"},
    {SL_POLICY_APPLICATION_NOTED, "application_noted"},
    {SL_POLICY_APPLICATION_OVERRIDDEN, "application_overridden"},
    {SL_POLICY_APPLICATION_REFUSED, "application_refused"},
    {SL_POLICY_APPLICATION_KEPT, "application_kept"},
    {SL_POLICY_LPM_FALLBACK, "lpm_fallback"},
    {SL_POLICY_NO_GENERATION, "no_generation"},
    {SL_POLICY_NO_RULE, "no_rule"},
    {SL_POLICY_NO_SOCK, "no_sock"},
    {SL_POLICY_SET_FAILED, "set_failed"},
    {SL_POLICY_SCHEMA_MISMATCH, "schema_mismatch"},
    {SL_POLICY_MPTCP, "mptcp"},
    {SL_POLICY_ITER_SEEN, "iter_seen"},
    {SL_POLICY_ITER_MOVED, "iter_moved"},
    {SL_POLICY_ITER_FAILED, "iter_failed"},
    {SL_POLICY_SELF_MOVED, "self_moved"},
    {SL_POLICY_SELF_FAILED, "self_failed"},
    {SL_POLICY_TORN, "torn"},
    {SL_POLICY_CGROUP_DEEP, "cgroup_deep"},
    {SL_POLICY_ECN_NO_FALLBACK, "ecn_no_fallback"},
    {SL_POLICY_IW_FAILED, "iw_failed"},
    {SL_POLICY_USAGE_FULL, "usage_full"},
    {SL_POLICY_NO_STAGE, "no_stage"},
    {SL_POLICY_ITER_ECN_FALLBACK, "iter_ecn_fallback"},
};
static_assert(std::size(kCounterNames) == SL_POLICY_COUNTER_COUNT, "every counter of the pipeline has a name");

std::string endpoint(const uint8_t (&address)[16], uint16_t port) {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  char text[INET6_ADDRSTRLEN];
  if (std::memcmp(address, kMapped, sizeof kMapped) == 0)
    return fmt::format("{}:{}", ::inet_ntop(AF_INET, address + 12, text, sizeof text), port);
  return fmt::format("[{}]:{}", ::inet_ntop(AF_INET6, address, text, sizeof text), port);
}

std::string cca_name(const char (&name)[SL_CCA_NAME_LEN]) { return {name, ::strnlen(name, sizeof name)}; }

SocketReport decode(const sl_report& record) {
  SocketReport report;
  report.local = endpoint(record.local_addr, record.local_port);
  report.remote = endpoint(record.remote_addr, record.remote_port);
  report.cookie = record.cookie;
  report.generation = record.generation;
  report.cgroup_id = record.cgroup_id;
  report.netns_ino = record.netns_ino;
  report.map_id = record.struct_ops_id;
  report.place_id = record.place_id;
  report.service_id = record.service_id;
  report.rule_id = record.rule_id;
  report.params = record.params;
  report.cwnd_segments = record.cwnd_segments;
  report.ssthresh_segments = record.ssthresh_segments;
  report.srtt_us = record.srtt_us;
  report.retransmits = record.retransmits;
  report.error = record.error;
  report.state = record.state;
  report.outcome = record.outcome;
  report.locality = record.locality;
  report.ecn = record.ecn;
  report.ecn_field = record.ecn_field;
  report.ecn_echoed = record.ecn_echoed != 0;
  report.flags = record.flags;
  report.cca = cca_name(record.cca);
  return report;
}

Error not_loaded() {
  return make_error(Code::kConflict, "the selection pipeline is not in the kernel", "apply a policy with `sluice apply FILE`");
}

// What an agent of another ABI has pinned for this instance runs: ours beside it would select every connection twice.
Status check_abi(const std::string& pin_dir) {
  const size_t instance = pin_dir.rfind('/');
  const size_t abi = instance == std::string::npos || instance == 0 ? std::string::npos : pin_dir.rfind('/', instance - 1);
  if (abi == std::string::npos || pin_dir.substr(abi + 1, instance - abi - 1) != fmt::format("v{}", SL_ABI)) return {};
  const std::string root = pin_dir.substr(0, abi);
  auto names = list_dir(root);
  if (!names) return names.error().code == Code::kNotFound ? Status{} : fail(std::move(names).error());
  for (const auto& name : *names) {
    const auto other = name.starts_with('v') ? parse_int<unsigned>(std::string_view(name).substr(1)) : std::nullopt;
    const std::string path = root + "/" + name + pin_dir.substr(instance);
    if (!other || *other == SL_ABI || ::access(path.c_str(), F_OK) != 0) continue;
    return fail(
        make_error(
            Code::kConflict,
            fmt::format("a release with pins of version {} runs in the kernel, this agent makes version {}", *other, SL_ABI),
            "connections are not affected; go on with that release, or end it with its own `sluice down` and start this "
            "agent again")
            .at(path));
  }
  return {};
}

}  // namespace

RealKernel::RealKernel(RealKernelOptions options, bundle::Bundle policy, std::string cgroup2)
    : options_(std::move(options)), bundle_(std::move(policy)), cgroup2_(std::move(cgroup2)) {}

Result<std::unique_ptr<RealKernel>> RealKernel::open(const RealKernelOptions& options, bundle::Bundle policy) {
  std::string cgroup2;
  if (auto found = net::find_cgroup2(options.proc_root))
    cgroup2 = *found;
  else if (found.error().code == Code::kExhausted)
    return fail(std::move(found).error());
  SLUICE_CHECK(check_abi(options.pin_dir));
  SLUICE_TRY(shape, PinnedPolicy::read_shape(policy));
  auto kernel = std::unique_ptr<RealKernel>(new RealKernel(options, std::move(policy), std::move(cgroup2)));
  kernel->shape_ = std::move(shape);
  SLUICE_TRY(pins, kernel->pins(false));
  (void)pins;
  return kernel;
}

Result<const bpfio::PinRoot*> RealKernel::pins(bool create) {
  const std::lock_guard lock(mutex_);
  if (pins_ != nullptr && !pins_->stale()) return pins_.get();
  ccas_.reset();  // the folder was removed, or never made
  policy_.reset();
  pins_.reset();
  if (!create && ::access(options_.pin_dir.c_str(), F_OK) != 0) return nullptr;
  SLUICE_TRY(root, bpfio::PinRoot::open(options_.pin_dir));
  pins_ = std::make_unique<bpfio::PinRoot>(std::move(root));
  policy_ = std::make_unique<PinnedPolicy>(*pins_, bundle_, shape_, options_.log_dir);
  ccas_ = std::make_unique<PinnedCcas>(*pins_, *policy_, options_.log_dir);
  return pins_.get();
}

std::string RealKernel::release() {
  utsname name{};
  return ::uname(&name) == 0 ? name.release : "unknown";
}

Result<Observed> RealKernel::observe() {
  const std::lock_guard lock(mutex_);
  Observed observed;
  SLUICE_TRY(root, pins(false));
  if (root == nullptr) return observed;
  SLUICE_TRY(digest, policy_->loaded_digest());
  SLUICE_TRY(all, root->list());
  observed.policy_loaded = digest.has_value();
  if (digest) {
    observed.policy_digest = *digest;
    if (*digest == PinnedPolicy::digest_of(bundle_)) {
      SLUICE_TRY(missing, policy_->missing());
      observed.policy_current = missing.empty();
      observed.missing_pins = std::move(missing);
    }
    SLUICE_TRY(generation, policy_->generation());
    observed.generation = generation;
    SLUICE_TRY(attachments, policy_->attachments(attach_cgroup()));
    observed.hooks_attached = true;
    for (const auto& attached : attachments) {
      if (!attached.link) {
        if (observed.hooks_attached)
          observed.hook_loss = fmt::format("the {} program is not attached: {}", attached.name, attached.why);
        observed.hooks_attached = false;
        continue;
      }
      HookState hook;
      hook.name = attached.name;
      hook.link_id = attached.link->id;
      hook.prog_id = attached.link->prog_id;
      if (auto path = net::cgroup_path(cgroup2_, attached.link->cgroup_id)) hook.target = *path;
      observed.hooks.push_back(std::move(hook));
    }
  } else if (std::ranges::any_of(all, [](const auto& pin) { return pin.starts_with("policy/"); })) {
    observed.debris.emplace_back("policy");
  }
  SLUICE_TRY(ccas, ccas_->list());
  observed.ccas = std::move(ccas);
  SLUICE_TRY(debris, ccas_->debris());
  observed.debris.insert(observed.debris.end(), debris.begin(), debris.end());

  // Others on the same hook, for the report: they run beside ours.
  const std::string& folder = attach_cgroup();
  if (auto fd = open_file(folder, O_RDONLY | O_DIRECTORY)) {
    for (const auto& audited : kAuditedHooks) {
      auto programs = bpfio::cgroup_programs(fd->get(), audited.hook, false);
      if (!programs) continue;
      for (const auto& program : *programs) {
        if (std::ranges::any_of(observed.hooks, [&](const HookState& hook) { return hook.prog_id == program.prog_id; }))
          continue;
        HookState hook;
        hook.name = fmt::format("{} ({})", audited.name, program.name);
        hook.prog_id = program.prog_id;
        hook.target = folder;
        hook.ours = false;
        observed.hooks.push_back(std::move(hook));
      }
    }
  }
  return observed;
}

Status RealKernel::require_feature(const std::string& name) {
  const bpfio::Feature* feature = bpfio::find_feature(name);
  if (feature == nullptr)
    return fail(
        make_error(Code::kInvalid, fmt::format("'{}' is no kernel feature", name), "`sluice doctor` lists their names"));
  return bpfio::require(feature->id, {options_.proc_root, "/sys"});
}

Result<std::string> RealKernel::default_cca() { return read_sysctl(std::string(net::kDefaultCcaSysctl)); }
Result<std::vector<std::string>> RealKernel::available_ccas() { return bpfio::available_ccas(options_.proc_root); }

Result<std::vector<std::string>> RealKernel::struct_ops_names() {
  SLUICE_TRY(ccas, bpfio::struct_ops_ccas());
  std::vector<std::string> names;
  for (const auto& cca : ccas)
    if (cca.registered) names.push_back(cca.cca_name);
  return names;
}

Status RealKernel::load_policy() {
  const std::lock_guard lock(mutex_);
  for (const auto feature : {bpfio::FeatureId::kBtf, bpfio::FeatureId::kBpffs, bpfio::FeatureId::kCgroup2,
                             bpfio::FeatureId::kStructOpsLink, bpfio::FeatureId::kIterTcpSetsockopt})
    SLUICE_CHECK(bpfio::require(feature, {options_.proc_root, "/sys"}));
  SLUICE_TRY(root, pins(true));
  (void)root;
  return policy_->load();
}

Status RealKernel::unload_policy() {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(false));
  if (root == nullptr) return {};
  SLUICE_CHECK(policy_->unload());
  SLUICE_TRY(left, root->list());
  if (!left.empty()) return {};
  SLUICE_CHECK(root->remove_all());
  ccas_.reset();
  policy_.reset();
  pins_.reset();
  return remove_empty_parents();
}

// /sys/fs/bpf/sluice/v1 and /sys/fs/bpf/sluice, unless another instance lives there.
Status RealKernel::remove_empty_parents() const {
  std::string path = options_.pin_dir;
  for (int level = 0; level < 2; ++level) {
    path.resize(path.rfind('/'));
    if (::rmdir(path.c_str()) == 0) continue;
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOENT || errno == EBUSY) return {};
    return fail_errno(errno, "cannot remove the empty folder {}", path);
  }
  return {};
}

Status RealKernel::attach_hooks() {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(false));
  if (root == nullptr) return fail(not_loaded());
  if (cgroup2_.empty()) return bpfio::require(bpfio::FeatureId::kCgroup2, {options_.proc_root, "/sys"});
  return policy_->attach(attach_cgroup());
}

Status RealKernel::detach_hooks() {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(false));
  return root == nullptr ? Status{} : policy_->detach();
}

Result<uint32_t> RealKernel::load_cca(const CcaSpec& spec) {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(true));
  (void)root;
  return ccas_->load(spec);
}

Status RealKernel::retire_cca(const std::string& id) {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(false));
  return root == nullptr ? Status{} : ccas_->retire(id);
}

Status RealKernel::remove_debris() {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(observed, observe());
  for (const auto& item : observed.debris) {
    log_warning("removing what an interrupted load left", {{"item", item}});
    SLUICE_CHECK(item == "policy" ? policy_->unload() : ccas_->retire(item));
  }
  return {};
}

Result<std::map<uint32_t, std::map<std::string, uint64_t>>> RealKernel::read_params(const std::string& id) {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(false));
  if (root == nullptr) return std::map<uint32_t, std::map<std::string, uint64_t>>{};
  return ccas_->read_params(id);
}

Status RealKernel::write_params(const std::string& id, uint32_t index, const std::map<std::string, uint64_t>& values) {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(false));
  if (root == nullptr) return fail(not_loaded());
  return ccas_->write_params(id, index, values);
}

Status RealKernel::write_generation(const policy::Compiled& compiled) {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(false));
  if (root == nullptr) return fail(not_loaded());
  return policy_->write_generation(compiled);
}

Status RealKernel::publish(uint64_t generation) {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(false));
  if (root == nullptr) return fail(not_loaded());
  return policy_->publish(generation);
}

Result<std::string> RealKernel::read_sysctl(const std::string& name) {
  SLUICE_TRY(own, net::current_netns());
  return net::read_sysctl(own.fd.get(), name);
}

Status RealKernel::write_sysctl(const std::string& name, const std::string& value) {
  SLUICE_TRY(own, net::current_netns());
  return net::write_sysctl(own.fd.get(), name, value);
}

Result<std::map<std::string, uint64_t>> RealKernel::cgroup_ids(const std::vector<std::string>& paths) {
  std::map<std::string, uint64_t> ids;
  for (const auto& path : paths)
    if (auto id = net::cgroup_id(cgroup2_ + path)) ids[path] = *id;
  return ids;
}

Result<std::string> RealKernel::cgroup_path(uint64_t id) { return net::cgroup_path(cgroup2_, id); }

// Read without the lock where it can be: a look at other processes' descriptors takes a while.
Result<Audit> RealKernel::audit() {
  Audit audit;
  std::vector<HookState> own_hooks;
  std::set<uint32_t> own_ccas;
  {
    const std::lock_guard lock(mutex_);
    SLUICE_TRY(observed, observe());
    audit.missing_pins = observed.missing_pins;
    audit.hook_loss = observed.hook_loss;
    own_hooks = std::move(observed.hooks);
    for (const auto& cca : observed.ccas) own_ccas.insert(cca.map_id);
  }
  SLUICE_CHECK(bpfio::require(bpfio::FeatureId::kCgroup2, {options_.proc_root, "/sys"}));
  SLUICE_TRY(holders, bpfio::find_holders(options_.proc_root));
  for (const auto& hook : kAuditedHooks) {
    AuditedCgroup where{cgroup2_, attach_cgroup(), 0, 0};
    for (const auto& own : own_hooks) {
      if (!own.ours || own.name != hook.name) continue;
      where.own_link = own.link_id;
      where.own_program = own.prog_id;
    }
    SLUICE_TRY(found, audit_hook(hook, where, holders));
    audit.hooks.push_back(std::move(found));
  }
  SLUICE_TRY(ccas, bpfio::struct_ops_ccas());
  for (const auto& cca : ccas) {
    if (!cca.registered || own_ccas.contains(cca.map_id)) continue;
    ForeignCca foreign{cca.cca_name, cca.map_id, cca.link_id, {}};
    if (const auto held = holders.links.find(cca.link_id); held != holders.links.end()) foreign.holders = held->second;
    audit.ccas.push_back(std::move(foreign));
  }
  return audit;
}

Result<std::vector<net::Netns>> RealKernel::namespaces() const {
  std::vector<net::Netns> list;
  if (options_.namespaces.empty()) {
    SLUICE_TRY(found, net::find_netns(options_.proc_root));
    return std::move(found.namespaces);
  }
  for (const auto& path : options_.namespaces) {
    auto opened = net::open_netns(path);
    if (!opened && opened.error().code == Code::kNotFound) continue;  // it ended
    if (!opened) return tl::unexpected<Error>(std::move(opened).error());
    list.push_back(std::move(*opened));
  }
  return list;
}

Result<std::map<uint32_t, RealKernel::HeldSpace>> RealKernel::held_by_namespace() {
  SLUICE_TRY(link, policy_->iterator("sl_iter_files"));
  SLUICE_TRY(iterator, bpfio::Iterator::create(link));
  std::map<uint32_t, HeldSpace> spaces;
  std::set<uint64_t> seen;
  SLUICE_CHECK(bpfio::for_each_record<sl_file>(iterator, [&](const sl_file& file) {
    auto& space = spaces[file.socket.netns_ino];
    space.waiting += file.ack_backlog;
    if (++space.count <= kHeldMax && seen.insert(file.socket.cookie).second) space.sockets.push_back(file);
    return true;
  }));
  return spaces;
}

Status RealKernel::walk_namespace(const bpfio::Link& link, const net::Netns& space, MigratePass& pass) {
  SLUICE_TRY(iterator, bpfio::Iterator::create(link, space.fd.get()));
  ++pass.namespaces;
  // Only sockets that are not as they should be are reported.
  return bpfio::for_each_record<sl_report>(iterator, [&](const sl_report& record) {
    note_left(record, pass);
    return true;
  });
}

void RealKernel::note_left(const sl_report& record, MigratePass& pass) {
  switch (record.outcome) {
    case SL_OUTCOME_MOVED:
    case SL_OUTCOME_CURRENT:
      return;
    default:
      break;
  }
  ++pass.left_total;
  if (record.outcome == SL_OUTCOME_SET_FAILED) ++pass.failed;
  if (pass.left.size() < MigratePass::kMaxLeft) pass.left.push_back(decode(record));
}

// Sockets of small namespaces one by one; false when the namespace has to be walked after all.
Result<bool> RealKernel::correct_held(const HeldSockets& held, const HeldSpace& space, bool dry_run, MigratePass& pass) {
  if (space.count > kHeldMax || space.waiting > 0) return false;  // what waits for accept is held by nobody
  uint64_t without_ecn = 0;
  for (const auto& file : space.sockets) {
    sl_report record = file.socket;
    int error = 0;
    auto outcome = held.correct(file, dry_run, error);
    if (!outcome) {
      // Closed, passed on, or out of our reach (a security policy): the walk sees it all the same.
      log_debug("a socket could not be corrected through its holder", {{"pid", file.pid}, {"why", outcome.error().message()}});
      return false;
    }
    record.outcome = *outcome;
    record.error = error;
    ++pass.seen;
    if (*outcome == SL_OUTCOME_MOVED) ++pass.moved;
    const bool right = *outcome == SL_OUTCOME_MOVED || *outcome == SL_OUTCOME_CURRENT;
    if (right && (record.flags & SL_REPORT_ECN_FALLBACK) != 0) ++without_ecn;
    note_left(record, pass);
  }
  pass.without_ecn += without_ecn;
  ++pass.namespaces;
  return true;
}

Result<MigratePass> RealKernel::migrate(Pass kind) {
  const bool dry_run = kind == Pass::kDryRun;
  SLUICE_TRY(spaces, namespaces());
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(false));
  if (root == nullptr) return fail(not_loaded());
  MigratePass pass;
  sl_iter_args args{};
  args.flags = dry_run ? SL_ITER_DRY_RUN : 0;
  SLUICE_TRY(fd, policy_->map("sl_iter_args"));
  SLUICE_TRY(arguments, (bpfio::Map<uint32_t, sl_iter_args>::from(std::move(fd))));
  SLUICE_CHECK(arguments.update(SL_ITER_MIGRATE, args));
  SLUICE_TRY(link, policy_->iterator("sl_iter_migrate"));
  SLUICE_TRY(counters, policy_->map("sl_policy_counters"));
  SLUICE_TRY(before, bpfio::sum_per_cpu(counters));

  std::vector<const net::Netns*> not_walked;
  if (spaces.size() > kWalkAllMax && kind != Pass::kThorough) {
    SLUICE_TRY(own, net::current_netns());
    SLUICE_TRY(by_namespace, held_by_namespace());
    SLUICE_TRY(held, HeldSockets::open(*policy_, cgroup2_));
    for (const auto& space : spaces) {
      const auto found = by_namespace.find(static_cast<uint32_t>(space.inode));
      // Sockets of the kernel itself (NFS, iSCSI) live in the host's namespace and are held by no process.
      bool corrected = space.inode != own.inode;
      if (corrected && found != by_namespace.end()) {
        SLUICE_TRY(done, correct_held(held, found->second, dry_run, pass));
        corrected = done;
      }
      if (corrected)
        not_walked.push_back(&space);
      else
        SLUICE_CHECK(walk_namespace(link, space, pass));
    }
    // A version that no rule names any more, and that the kernel still counts users of: some socket is held by no process
    // (closing, or on its way in a message), so it has to be searched for.
    SLUICE_TRY(ccas, ccas_->list());
    const bool missed =
        std::ranges::any_of(ccas, [&](const LoadedCca& cca) { return cca.users > 0 && !held.selects(cca.kernel_name); });
    if (!missed || dry_run) not_walked.clear();
  } else {
    for (const auto& space : spaces) not_walked.push_back(&space);
  }
  for (const auto* space : not_walked) SLUICE_CHECK(walk_namespace(link, *space, pass));

  SLUICE_TRY(after, bpfio::sum_per_cpu(counters));
  pass.seen += after[SL_POLICY_ITER_SEEN] - before[SL_POLICY_ITER_SEEN];
  pass.moved += after[SL_POLICY_ITER_MOVED] - before[SL_POLICY_ITER_MOVED];
  pass.without_ecn += after[SL_POLICY_ITER_ECN_FALLBACK] - before[SL_POLICY_ITER_ECN_FALLBACK];
  return pass;
}

Result<std::vector<UsageCount>> RealKernel::usage() {
  SLUICE_TRY(spaces, namespaces());
  const std::lock_guard walk_lock(usage_mutex_);
  std::optional<bpfio::Link> link;
  std::optional<bpfio::MapFd> fd;
  {
    const std::lock_guard lock(mutex_);
    SLUICE_TRY(root, pins(false));
    if (root == nullptr) return fail(not_loaded());
    SLUICE_TRY(count_link, policy_->iterator("sl_iter_count"));
    SLUICE_TRY(usage_fd, policy_->map("sl_usage"));
    link.emplace(std::move(count_link));
    fd.emplace(std::move(usage_fd));
  }
  SLUICE_TRY(counts, (bpfio::Map<sl_usage_key, sl_usage>::from(std::move(*fd))));
  SLUICE_TRY(stale, counts.entries());
  for (const auto& [key, value] : stale) SLUICE_CHECK(counts.erase(key));
  for (const auto& space : spaces) {
    SLUICE_TRY(iterator, bpfio::Iterator::create(*link, space.fd.get()));
    std::array<std::byte, 64> nothing{};
    while (true) {
      SLUICE_TRY(bytes, iterator.read(nothing));
      if (bytes == 0) break;
    }
  }
  SLUICE_TRY(entries, counts.entries());
  std::vector<UsageCount> list;
  for (const auto& [key, value] : entries) {
    UsageCount count;
    count.netns_ino = key.netns_ino;
    count.map_id = key.struct_ops_id;
    count.rule_id = key.rule_id;
    count.cca = cca_name(key.cca);
    count.locality = key.locality;
    count.listener = key.listener != 0;
    count.current = key.current_generation != 0;
    count.sockets = value.sockets;
    count.cwnd_segments_sum = value.cwnd_segments_sum;
    count.srtt_us_sum = value.srtt_us_sum;
    count.retransmits_sum = value.retransmits_sum;
    list.push_back(std::move(count));
  }
  return list;
}

Status RealKernel::sockets(const std::function<bool(std::vector<SocketReport>&&)>& sink) {
  SLUICE_TRY(spaces, namespaces());
  std::optional<bpfio::Link> link;
  {
    const std::lock_guard lock(mutex_);
    SLUICE_TRY(root, pins(false));
    if (root == nullptr) return fail(not_loaded());
    SLUICE_TRY(observe_link, policy_->iterator("sl_iter_observe"));
    link.emplace(std::move(observe_link));
  }
  std::vector<SocketReport> batch;
  for (const auto& space : spaces) {
    SLUICE_TRY(iterator, bpfio::Iterator::create(*link, space.fd.get()));
    bool open = true;
    SLUICE_CHECK(bpfio::for_each_record<sl_report>(iterator, [&](const sl_report& record) {
      batch.push_back(decode(record));
      if (batch.size() >= kSocketBatch) {
        open = sink(std::move(batch));
        batch.clear();
      }
      return open;
    }));
    if (!open) return {};
  }
  if (!batch.empty()) sink(std::move(batch));
  return {};
}

Result<std::map<std::string, std::vector<OtherUser>>> RealKernel::other_users() {
  SLUICE_TRY(spaces, namespaces());
  std::map<std::string, std::vector<OtherUser>> users;
  for (const auto& space : spaces) {
    SLUICE_TRY(native, net::read_sysctl(space.fd.get(), net::kDefaultCcaSysctl));
    users[native].push_back({fmt::format("netns {} ({}): sysctl {}", space.inode, space.holder, net::kDefaultCcaSysctl)});
    SLUICE_TRY(routes, net::congctl_routes(space.fd.get()));
    for (const auto& route : routes)
      users[route.cca].push_back({fmt::format("netns {} ({}): route {} table {} congctl {}", space.inode, space.holder,
                                              route.destination, route.table, route.cca)});
  }
  return users;
}

Result<std::vector<std::pair<std::string, uint64_t>>> RealKernel::policy_counters() {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::string, uint64_t>> list;
  SLUICE_TRY(root, pins(false));
  if (root == nullptr) return list;
  SLUICE_TRY(map, policy_->map("sl_policy_counters"));
  SLUICE_TRY(values, bpfio::sum_per_cpu(map));
  for (const auto& [index, name] : kCounterNames)
    if (index < values.size()) list.emplace_back(name, values[index]);
  return list;
}

Result<std::vector<std::pair<std::string, uint64_t>>> RealKernel::cca_counters(const std::string& id) {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(false));
  if (root == nullptr) return std::vector<std::pair<std::string, uint64_t>>{};
  return ccas_->counters(id);
}

Result<std::vector<std::string>> RealKernel::cca_programs(const std::string& id) {
  const std::lock_guard lock(mutex_);
  SLUICE_TRY(root, pins(false));
  if (root == nullptr) return std::vector<std::string>{};
  return ccas_->programs(id);
}

}  // namespace sluice::agent
