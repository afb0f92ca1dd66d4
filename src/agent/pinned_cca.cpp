// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/pinned_cca.h"

#include <sluice/abi/cca.h>

#include <algorithm>
#include <array>

#include "bpfio/enumerate.h"

namespace sluice::agent {
namespace {

const std::string kRoot = "cca/";
constexpr std::string_view kReady = "ready/";

std::string folder_of(const std::string& id) {
  std::string path = kRoot + id;
  std::ranges::replace(path, '@', '/');
  std::ranges::replace(path, '.', '_');
  return path + "/";
}

// "cca/cubic/1_0_0/ops" -> "cubic@1.0.0"; empty when it is not of that form.
std::string id_of(const std::string& pin) {
  const size_t version = pin.find('/', kRoot.size());
  if (version == std::string::npos) return "";
  const size_t rest = pin.find('/', version + 1);
  if (rest == std::string::npos) return "";
  std::string number = pin.substr(version + 1, rest - version - 1);
  std::ranges::replace(number, '_', '.');
  return pin.substr(kRoot.size(), version - kRoot.size()) + "@" + number;
}

// Empty when the load was cut short, or somebody took the struct_ops map away.
std::string digest_in(const std::vector<std::string>& pins, const std::string& folder) {
  if (std::ranges::find(pins, folder + "ops") == pins.end()) return "";
  for (const auto& pin : pins)
    if (pin.starts_with(folder + std::string(kReady))) return pin.substr(folder.size() + kReady.size());
  return "";
}

constexpr std::pair<sl_cca_counter, std::string_view> kCounterNames[] = {
    {SL_CCA_INIT, "init"},
    {SL_CCA_RELEASE, "release"},
    {SL_CCA_STATE_ADOPTED, "state_adopted"},
    {SL_CCA_STATE_REFUSED, "state_refused"},
    {SL_CCA_STATE_LOST, "state_lost"},
    {SL_CCA_NO_PARAMS, "no_params"},
    {SL_CCA_SELF_MOVED, "self_moved"},
    {SL_CCA_SELF_FAILED, "self_failed"},
    {SL_CCA_RTT, "rtt"},
    {SL_CCA_LOG, "log"},
    {SL_CCA_SCHEMA_MISMATCH, "schema_mismatch"},
    {SL_CCA_RESCOPED, "rescoped"},
    {SL_CCA_ECN_FALLBACK, "ecn_fallback"},
    {SL_CCA_NO_VERDICT, "no_verdict"},
    {SL_CCA_OWD_NONE, "owd_none"},
    {SL_CCA_OWD_STALE, "owd_stale"},
    {SL_CCA_OWD_SCHEMA, "owd_schema"},
};

}  // namespace

Result<std::map<std::string, std::vector<std::string>>> PinnedCcas::folders() const {
  SLUICE_TRY(pins, pins_.list());
  std::map<std::string, std::vector<std::string>> result;
  for (const auto& pin : pins) {
    if (!pin.starts_with(kRoot)) continue;
    if (const std::string id = id_of(pin); !id.empty()) result[id].push_back(pin);
  }
  return result;
}

Result<std::vector<LoadedCca>> PinnedCcas::list() const {
  SLUICE_TRY(all, folders());
  std::vector<LoadedCca> list;
  if (all.empty()) return list;
  SLUICE_TRY(registered, bpfio::struct_ops_ccas());
  for (const auto& [id, pins] : all) {
    const std::string folder = folder_of(id);
    LoadedCca cca;
    cca.digest = digest_in(pins, folder);
    if (cca.digest.empty()) continue;
    const size_t at = id.find('@');
    cca.name = id.substr(0, at);
    cca.version = id.substr(at + 1);
    SLUICE_TRY(ops, pins_.map(folder + "ops"));
    cca.map_id = ops.info().id;
    for (const auto& other : registered) {
      if (other.map_id != cca.map_id) continue;
      cca.kernel_name = other.cca_name;
      cca.registered = other.registered;
      // One reference is the map's own.
      cca.users = other.references > 0 ? other.references - 1 : 0;
    }
    for (const char* name : {"ops", "params", "counters"}) {
      if (std::ranges::find(pins, folder + name) == pins.end()) continue;
      SLUICE_TRY(map, pins_.map(folder + name));
      SLUICE_TRY(bytes, map.memory_bytes());
      cca.memory_bytes += bytes;
    }
    list.push_back(std::move(cca));
  }
  return list;
}

Result<std::vector<std::string>> PinnedCcas::debris() const {
  SLUICE_TRY(all, folders());
  std::vector<std::string> list;
  for (const auto& [id, pins] : all)
    if (digest_in(pins, folder_of(id)).empty()) list.push_back(id);
  return list;
}

Result<uint32_t> PinnedCcas::load(const CcaSpec& spec) {
  const std::string folder = folder_of(spec.id());
  SLUICE_TRY(loaded, list());
  for (const auto& cca : loaded)
    if (cca.id() == spec.id() && cca.registered && cca.digest == spec.digest) {
      // A pipeline made anew does not know it, and it does not know the pipeline's maps: it is loaded again, its sockets
      // follow.
      SLUICE_TRY(known, policy_.cca_id(spec.kernel_name));
      if (known == cca.map_id) return cca.map_id;
    }
  SLUICE_CHECK(retire(spec.id()));  // what a crash left

  SLUICE_TRY(object, bpfio::Object::open_file(spec.object));
  const auto ops_names = object.struct_ops_names();
  if (ops_names.size() != 1)
    return fail(make_error(Code::kInvalid, fmt::format("the object has {} struct_ops maps, a CCA has one", ops_names.size()),
                           "`sluice bundle lint` checks a bundle before it is applied")
                    .at(spec.object));
  SLUICE_CHECK(object.set_struct_ops_name(ops_names[0], spec.kernel_name));
  std::array<char, SL_CCA_NAME_LEN> self{};
  std::copy(spec.kernel_name.begin(), spec.kernel_name.end(), self.begin());
  SLUICE_CHECK(object.set_rodata(SL_NAME_SELF, self));
  for (const auto& [name, value] : spec.load_params) SLUICE_CHECK(object.set_rodata(name, value));
  SLUICE_CHECK(policy_.check_contracts(spec.id(), spec.shared_maps, object));
  SLUICE_TRY(shared, policy_.map_names());
  const auto own = object.map_names();
  for (const auto& name : shared) {
    if (std::ranges::find(own, name) == own.end()) continue;
    SLUICE_TRY(map, policy_.map(name));
    SLUICE_CHECK(object.reuse_map(name, map).map_error([&](Error e) {
      return std::move(e)
          .within(fmt::format("{} was built for another version of shared map {}", spec.id(), name))
          .fix("rebuild the bundle against this release's headers, under a new version");
    }));
  }
  SLUICE_CHECK(object.load({log_dir_}));

  SLUICE_TRY(ops, object.map(ops_names[0]));
  SLUICE_CHECK(pins_.pin(ops, folder + "ops"));
  for (const auto& [map_name, pin] : {std::pair(SL_NAME_PARAMS, "params"), std::pair(SL_NAME_COUNTERS, "counters")}) {
    if (std::ranges::find(own, map_name) == own.end()) continue;
    SLUICE_TRY(map, object.map(map_name));
    SLUICE_CHECK(pins_.pin(map, folder + pin));
  }
  SLUICE_TRY(link, object.attach_struct_ops(ops_names[0]));
  SLUICE_CHECK(pins_.pin(link, folder + "link"));
  SLUICE_CHECK(policy_.set_cca_id(spec.kernel_name, ops.info().id));
  SLUICE_CHECK(pins_.pin(ops, folder + std::string(kReady) + spec.digest));
  return ops.info().id;
}

Status PinnedCcas::retire(const std::string& id) {
  SLUICE_TRY(all, folders());
  const auto it = all.find(id);
  if (it == all.end()) return {};
  const std::string folder = folder_of(id);
  const auto& pins = it->second;
  const auto has = [&](const std::string& pin) { return std::ranges::find(pins, pin) != pins.end(); };

  for (const auto& pin : pins)
    if (pin.starts_with(folder + std::string(kReady))) SLUICE_CHECK(pins_.unpin(pin));
  if (has(folder + "ops")) {
    SLUICE_TRY(ops, pins_.map(folder + "ops"));
    SLUICE_TRY(registered, bpfio::struct_ops_ccas());
    for (const auto& cca : registered)
      if (cca.map_id == ops.info().id) {
        auto forgotten = policy_.forget_cca_id(cca.cca_name);
        if (!forgotten && forgotten.error().code != Code::kNotFound) return forgotten;  // not found: the pipeline is gone
      }
  }
  if (has(folder + "link")) {
    SLUICE_TRY(link, pins_.link(folder + "link"));
    // Unregisters now, whoever else holds the link; older kernels do it with the last reference.
    if (auto status = link.detach();
        !status && status.error().code != Code::kUnsupported && status.error().code != Code::kInvalid)
      return status;
    SLUICE_CHECK(pins_.unpin(folder + "link"));
  }
  for (const auto& pin : pins)
    if (!pin.starts_with(folder + std::string(kReady)) && pin != folder + "link") SLUICE_CHECK(pins_.unpin(pin));
  // The folders, as far as they are empty: other versions of the name may be left.
  const std::string own = folder.substr(0, folder.size() - 1);
  for (const std::string& path : {folder + "ready", own, own.substr(0, own.rfind('/'))})
    if (!pins_.unpin(path)) break;
  return {};
}

Status PinnedCcas::write_params(const std::string& id, uint32_t index, const std::map<std::string, uint64_t>& values) {
  SLUICE_TRY(there, pins_.exists(folder_of(id) + "params"));
  if (!there) {
    if (values.empty()) return {};
    return fail(Code::kInvalid, "{} has no map {} for its parameters", id, SL_NAME_PARAMS);
  }
  SLUICE_TRY(map, pins_.map(folder_of(id) + "params"));
  SLUICE_TRY(type, bpfio::value_type(map));
  std::vector<std::byte> bytes(map.info().value_size);
  const auto put = [&](std::string_view name, uint64_t value) -> Status {
    const bpfio::Member* member = type.find(name);
    if (member == nullptr || member->size_bytes != sizeof value)
      return fail(make_error(
          Code::kInvalid,
          fmt::format("{} declares parameter '{}', its {} has no __u64 member of that name", id, name, SL_NAME_PARAMS),
          "`sluice bundle lint` checks a bundle before it is applied"));
    std::memcpy(bytes.data() + member->offset_bytes, &value, sizeof value);
    return {};
  };
  SLUICE_CHECK(put(SL_NAME_PARAM_PRESENT, 1));
  for (const auto& [name, value] : values) SLUICE_CHECK(put(name, value));
  return map.update(bpfio::bytes_of(index), bytes);
}

Result<std::map<uint32_t, std::map<std::string, uint64_t>>> PinnedCcas::read_params(const std::string& id) const {
  std::map<uint32_t, std::map<std::string, uint64_t>> sets;
  SLUICE_TRY(there, pins_.exists(folder_of(id) + "params"));
  if (!there) return sets;
  SLUICE_TRY(map, pins_.map(folder_of(id) + "params"));
  SLUICE_TRY(type, bpfio::value_type(map));
  std::vector<std::byte> bytes(map.info().value_size);
  for (uint32_t index = 0; index < map.info().max_entries; ++index) {
    SLUICE_CHECK(map.lookup(bpfio::bytes_of(index), bytes));
    std::map<std::string, uint64_t> values;
    for (const auto& member : type.members)
      if (member.size_bytes == sizeof(uint64_t))
        std::memcpy(&values[member.name], bytes.data() + member.offset_bytes, sizeof(uint64_t));
    const bool written = values[SL_NAME_PARAM_PRESENT] != 0;
    values.erase(SL_NAME_PARAM_PRESENT);
    if (written) sets[index] = std::move(values);
  }
  return sets;
}

Result<std::vector<std::pair<std::string, uint64_t>>> PinnedCcas::counters(const std::string& id) const {
  std::vector<std::pair<std::string, uint64_t>> list;
  SLUICE_TRY(there, pins_.exists(folder_of(id) + "counters"));
  if (!there) return list;
  SLUICE_TRY(map, pins_.map(folder_of(id) + "counters"));
  SLUICE_TRY(values, bpfio::sum_per_cpu(map));
  for (const auto& [index, name] : kCounterNames)
    if (index < values.size()) list.emplace_back(name, values[index]);
  for (size_t i = SL_CCA_COUNTER_OWN; i < values.size(); ++i)
    if (values[i] != 0) list.emplace_back(fmt::format("own_{}", i - SL_CCA_COUNTER_OWN), values[i]);
  return list;
}

// A struct_ops map does not list its programs; those of one object share its counters.
Result<std::vector<std::string>> PinnedCcas::programs(const std::string& id) const {
  std::vector<std::string> list;
  SLUICE_TRY(there, pins_.exists(folder_of(id) + "counters"));
  if (!there) return list;
  SLUICE_TRY(map, pins_.map(folder_of(id) + "counters"));
  SLUICE_TRY(all, bpfio::all_programs());
  for (const auto& program : all)
    if (std::ranges::find(program.map_ids, map.info().id) != program.map_ids.end())
      list.push_back(fmt::format("{}: id {}, tag {}, {} instructions verified", program.name, program.id, program.tag,
                                 program.verified_insns));
  return list;
}

}  // namespace sluice::agent
