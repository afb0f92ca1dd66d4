// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "sim_kernel.h"

#include <sluice/abi/report.h>

#include <algorithm>
#include <cstring>

namespace sluice::sim {
namespace {

constexpr size_t kSocketsMax = 60;

}  // namespace

SimKernel::SimKernel(Chaos& chaos, uint64_t seed) : chaos_(chaos), random_(seed) {
  for (const auto& sysctl : policy::kSysctls) sysctls_[std::string(sysctl.name)] = "0";
  sysctls_["net.ipv4.tcp_ecn"] = "2";
}

Result<agent::Observed> SimKernel::observe() {
  agent::Observed observed;
  observed.policy_loaded = policy_ == Policy::kLoaded;
  observed.policy_current = observed.policy_loaded && missing_pins_.empty();
  if (observed.policy_loaded) observed.missing_pins = missing_pins_;
  observed.policy_digest = "sim";
  observed.hooks_attached = hook_;
  if (!hook_) observed.hook_loss = "the sockops program is not attached: it was detached by somebody";
  observed.generation = policy_ == Policy::kLoaded ? generation_ : 0;
  if (policy_ == Policy::kPartial) observed.debris.emplace_back("policy");
  for (const auto& [id, cca] : ccas_) {
    if (!cca.complete) {
      observed.debris.push_back(id);
      continue;
    }
    observed.ccas.push_back(cca.loaded);
    observed.ccas.back().users = static_cast<uint64_t>(std::ranges::count(sockets_, cca.loaded.map_id, &SimSocket::map_id));
  }
  return observed;
}

Result<std::vector<std::string>> SimKernel::available_ccas() {
  std::vector<std::string> names = {"reno", "bbr", "cubic"};
  names.insert(names.end(), foreign_ccas.begin(), foreign_ccas.end());
  for (const auto& [id, cca] : ccas_)
    if (cca.loaded.registered) names.push_back(cca.loaded.kernel_name);
  return names;
}

Status SimKernel::load_policy() {
  SLUICE_CHECK(chaos_.gate("load_policy"));
  if (policy_ == Policy::kLoaded) {
    // Maps and the hook stay; what is gone is pinned anew, one by one.
    while (!missing_pins_.empty()) {
      missing_pins_.pop_back();
      chaos_.point();
    }
    return {};
  }
  missing_pins_.clear();
  policy_ = Policy::kPartial;
  chaos_.point();
  policy_ = Policy::kLoaded;
  generation_ = 0;
  for (auto& slot : slots_) slot.reset();
  chaos_.point();
  return {};
}

Status SimKernel::unload_policy() {
  SLUICE_CHECK(chaos_.gate("unload_policy"));
  if (policy_ == Policy::kNone) return {};
  policy_ = Policy::kPartial;
  hook_ = false;
  chaos_.point();
  policy_ = Policy::kNone;
  generation_ = 0;
  chaos_.point();
  return {};
}

Status SimKernel::attach_hooks() {
  SLUICE_CHECK(chaos_.gate("attach_hooks"));
  if (policy_ != Policy::kLoaded) return fail(Code::kConflict, "no program to attach");
  if (hook_full && !hook_) return fail(make_error(Code::kExhausted, "cannot attach: 64 programs are there", "detach one"));
  hook_ = true;
  chaos_.point();
  return {};
}

Status SimKernel::detach_hooks() {
  SLUICE_CHECK(chaos_.gate("detach_hooks"));
  hook_ = false;
  chaos_.point();
  return {};
}

Result<uint32_t> SimKernel::load_cca(const agent::CcaSpec& spec) {
  SLUICE_CHECK(chaos_.gate("load_cca"));
  auto& cca = ccas_[spec.id()];
  if (cca.complete && cca.loaded.digest == spec.digest) return cca.loaded.map_id;
  cca = SimCca{};
  cca.loaded.name = spec.name;
  cca.loaded.version = spec.version;
  cca.loaded.digest = spec.digest;
  cca.loaded.kernel_name = spec.kernel_name;
  cca.loaded.map_id = next_map_id_++;
  chaos_.point();  // maps pinned, not registered
  cca.loaded.registered = true;
  chaos_.point();  // registered, not marked complete
  cca.complete = true;
  chaos_.point();
  return cca.loaded.map_id;
}

Status SimKernel::retire_cca(const std::string& id) {
  SLUICE_CHECK(chaos_.gate("retire_cca"));
  const auto it = ccas_.find(id);
  if (it == ccas_.end()) return {};
  it->second.complete = false;
  chaos_.point();
  for (const auto& socket : sockets_)
    if (socket.map_id == it->second.loaded.map_id) violate("a CCA was retired while a socket ran it: " + id);
  ccas_.erase(it);
  chaos_.point();
  return {};
}

Status SimKernel::remove_debris() {
  SLUICE_CHECK(chaos_.gate("remove_debris"));
  if (policy_ == Policy::kPartial) policy_ = Policy::kNone;
  chaos_.point();
  std::erase_if(ccas_, [](const auto& item) { return !item.second.complete; });
  chaos_.point();
  return {};
}

Result<std::map<uint32_t, std::map<std::string, uint64_t>>> SimKernel::read_params(const std::string& id) {
  const auto it = ccas_.find(id);
  return it == ccas_.end() ? std::map<uint32_t, std::map<std::string, uint64_t>>{} : it->second.params;
}

Status SimKernel::write_params(const std::string& id, uint32_t index, const std::map<std::string, uint64_t>& values) {
  SLUICE_CHECK(chaos_.gate("write_params"));
  const auto it = ccas_.find(id);
  if (it == ccas_.end()) return fail(Code::kNotFound, "{} is not loaded", id);
  const auto old = it->second.params.find(index);
  if (old != it->second.params.end() && old->second != values)
    for (const auto& socket : sockets_)
      if (socket.map_id == it->second.loaded.map_id && socket.params == index)
        violate(fmt::format("parameter set {} of {} changed under a socket that uses it", index, id));
  it->second.params[index] = values;
  chaos_.point();
  return {};
}

Status SimKernel::write_generation(const policy::Compiled& compiled) {
  SLUICE_CHECK(chaos_.gate("write_generation"));
  if (policy_ != Policy::kLoaded) return fail(Code::kConflict, "no tables to write");
  const uint64_t generation = compiled.generation.generation;
  if (generation == generation_) violate("the published generation was overwritten");
  auto& slot = slots_[generation % SL_SLOTS];
  if (generation_ != 0 && generation % SL_SLOTS == generation_ % SL_SLOTS) violate("the slot being read was overwritten");
  slot.reset();
  chaos_.point();
  slot = compiled;
  chaos_.point();
  return {};
}

Status SimKernel::publish(uint64_t generation) {
  SLUICE_CHECK(chaos_.gate("publish"));
  if (policy_ != Policy::kLoaded) return fail(Code::kConflict, "nowhere to publish");
  generation_ = generation;
  chaos_.point();
  return {};
}

Result<std::string> SimKernel::read_sysctl(const std::string& name) {
  const auto it = sysctls_.find(name);
  if (it == sysctls_.end()) return fail(Code::kNotFound, "no sysctl {}", name);
  return it->second;
}

Status SimKernel::write_sysctl(const std::string& name, const std::string& value) {
  SLUICE_CHECK(chaos_.gate("write_sysctl"));
  sysctls_[name] = value;
  chaos_.point();
  return {};
}

Result<agent::Audit> SimKernel::audit() {
  agent::Audit audit;
  agent::HookAudit hook{"sockops", "/cg", hook_, static_cast<uint32_t>(foreign.size()) + (hook_ ? 1 : 0), 64, foreign};
  audit.hooks.push_back(std::move(hook));
  return audit;
}

Result<std::string> SimKernel::cgroup_path(uint64_t id) {
  const auto found = cgroups.find(id);
  if (found == cgroups.end()) return fail(Code::kNotFound, "no cgroup has the id {}", id);
  return found->second;
}

const sl_verdict* SimKernel::select(const policy::Prefix& remote) const {
  if (generation_ == 0) return nullptr;
  const auto& slot = slots_[generation_ % SL_SLOTS];
  if (!slot || slot->generation.generation != generation_) return nullptr;
  sl_rule_key key{0, 0};
  uint32_t best = 0;
  bool found = false;
  for (const auto& [prefix, place] : slot->places) {
    policy::Prefix candidate;
    std::copy(std::begin(prefix.addr), std::end(prefix.addr), candidate.addr.begin());
    candidate.length = prefix.prefix_len;
    if (!candidate.contains(remote) || (found && prefix.prefix_len < best)) continue;
    best = prefix.prefix_len;
    found = true;
    key.place_class = place.place_class;
  }
  for (const auto& [rule, verdict] : slot->rules)
    if (rule.service_id == key.service_id && rule.place_class == key.place_class) return &verdict;
  return nullptr;
}

uint32_t SimKernel::map_id_of(const std::string& name) const {
  for (const auto& [id, cca] : ccas_)
    if (cca.loaded.kernel_name == name) return cca.loaded.map_id;
  return 0;
}

bool SimKernel::registered(const std::string& name) const {
  if (name == "reno" || name == "bbr" || name == "cubic") return true;
  return std::ranges::any_of(
      ccas_, [&](const auto& item) { return item.second.loaded.kernel_name == name && item.second.loaded.registered; });
}

SimSocket& SimKernel::open_connection(const std::string& remote) {
  SimSocket socket;
  socket.remote = *policy::parse_prefix(remote);
  socket.cca = "bbr";
  if (hook_ && generation_ != 0) {
    const sl_verdict* verdict = select(socket.remote);
    if (verdict == nullptr || !registered(verdict->cca)) {
      socket.fell_back = true;
      violate(fmt::format("a connection to {} opened under generation {} fell back to the default", remote, generation_));
    } else {
      socket.cca = verdict->cca;
      socket.map_id = map_id_of(verdict->cca);
      socket.params = verdict->params;
      socket.generation = generation_;
      if (verdict->flags & SL_VERDICT_BUNDLE) {
        const auto owner =
            std::ranges::find_if(ccas_, [&](const auto& item) { return item.second.loaded.kernel_name == socket.cca; });
        if (!owner->second.params.contains(socket.params)) violate("a verdict names a parameter set that was not written");
      }
    }
  }
  sockets_.push_back(socket);
  return sockets_.back();
}

void SimKernel::listen() {
  SimSocket socket;
  socket.listener = true;
  socket.cca = "bbr";
  if (hook_ && generation_ != 0 && slots_[generation_ % SL_SLOTS]) {
    const std::string name = slots_[generation_ % SL_SLOTS]->generation.listener_cca;
    if (!name.empty()) {
      if (!registered(name)) violate("a listener was given a CCA that is not registered: " + name);
      socket.cca = name;
      socket.map_id = map_id_of(name);
      socket.params = slots_[generation_ % SL_SLOTS]->generation.listener_params;
    }
    socket.generation = generation_;
  }
  sockets_.push_back(socket);
}

void SimKernel::churn() {
  static constexpr const char* kRemotes[] = {"10.1.0.7", "10.2.0.7", "10.2.9.7", "192.0.2.1", "2001:db8::7"};
  while (sockets_.size() > kSocketsMax || (!sockets_.empty() && random_.chance(0.3))) {
    const size_t victim = random_.below(sockets_.size());
    if (sockets_[victim].locked) break;
    sockets_.erase(sockets_.begin() + static_cast<std::ptrdiff_t>(victim));
  }
  open_connection(kRemotes[random_.below(std::size(kRemotes))]);
  if (random_.chance(0.1)) listen();
}

Result<agent::MigratePass> SimKernel::migrate(Pass kind) {
  const bool dry_run = kind == Pass::kDryRun;
  SLUICE_CHECK(chaos_.gate("migrate"));
  agent::MigratePass pass;
  pass.namespaces = 1;
  for (size_t i = 0; i < sockets_.size(); ++i) {
    auto& socket = sockets_[i];
    ++pass.seen;
    std::string wanted = socket.cca;
    uint32_t params = 0;
    if (socket.listener) {
      const auto& slot = slots_[generation_ % SL_SLOTS];
      if (slot && slot->generation.listener_cca[0] != '\0') {
        wanted = slot->generation.listener_cca;
        params = slot->generation.listener_params;
      }
    } else {
      const sl_verdict* verdict = select(socket.remote);
      if (verdict == nullptr) {
        violate("a socket without a verdict");
        continue;
      }
      wanted = verdict->cca;
      params = verdict->params;
    }
    const uint32_t wanted_id = map_id_of(wanted);
    if (socket.cca == wanted && socket.map_id == wanted_id) {
      if (!dry_run) {
        socket.generation = generation_;
        socket.params = params;
      }
      continue;
    }
    if (socket.locked) {
      ++pass.failed;
      ++pass.left_total;
      agent::SocketReport left;
      left.outcome = SL_OUTCOME_SET_FAILED;
      left.error = -EPERM;
      left.cca = socket.cca;
      left.map_id = socket.map_id;
      pass.left.push_back(left);
      continue;
    }
    ++pass.moved;
    if (dry_run) continue;
    if (!registered(wanted)) violate("a socket was migrated to a CCA that is not registered: " + wanted);
    socket.cca = wanted;
    socket.map_id = wanted_id;
    socket.params = params;
    socket.generation = generation_;
    socket.fell_back = false;
    if (pass.moved == 1) SLUICE_CHECK(chaos_.in_walk());  // one is moved, the others are not
  }
  chaos_.point();
  return pass;
}

Result<std::vector<agent::UsageCount>> SimKernel::usage() {
  std::map<std::tuple<std::string, uint32_t, bool>, agent::UsageCount> counts;
  for (const auto& socket : sockets_) {
    auto& count = counts[{socket.cca, socket.map_id, socket.listener}];
    count.cca = socket.cca;
    count.map_id = socket.map_id;
    count.listener = socket.listener;
    ++count.sockets;
  }
  std::vector<agent::UsageCount> list;
  for (auto& [key, count] : counts) list.push_back(std::move(count));
  return list;
}

Status SimKernel::sockets(const std::function<bool(std::vector<agent::SocketReport>&&)>& sink) {
  std::vector<agent::SocketReport> list;
  for (const auto& socket : sockets_) {
    agent::SocketReport report;
    report.cca = socket.cca;
    report.map_id = socket.map_id;
    report.generation = socket.generation;
    report.cgroup_id = socket.cgroup_id;
    report.state = socket.listener ? 10 : 1;  // TCP_LISTEN, TCP_ESTABLISHED
    if (const sl_verdict* verdict = socket.listener ? nullptr : select(socket.remote)) report.rule_id = verdict->rule_id;
    list.push_back(std::move(report));
  }
  sink(std::move(list));
  return {};
}

Result<std::map<std::string, std::vector<agent::OtherUser>>> SimKernel::other_users() { return others; }

}  // namespace sluice::sim
