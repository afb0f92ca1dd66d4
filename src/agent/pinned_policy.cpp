// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/pinned_policy.h"

#include <fcntl.h>
#include <sluice/abi/owd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "bpfio/enumerate.h"
#include "bundle/sha256.h"
#include "net/cgroup.h"

namespace sluice::agent {
namespace {

constexpr std::string_view kIterPrefix = "sl_iter_";
constexpr std::string_view kReplacing = "replacing";  // instead of a digest; sorts after every digest
// Maps that no CCA uses: a fresh one does as well.
constexpr std::string_view kOwnMaps[] = {"sl_stages",    "sl_handed",      "sl_usage",
                                         "sl_iter_args", "sl_application", "sl_policy_counters"};
const std::string kRoot = "policy/";
const std::string kReady = kRoot + "ready/";
const std::string kMaps = kRoot + "maps/";
const std::string kIter = kRoot + "iter/";
const std::string kPrograms = kRoot + "programs/";
const std::string kLink = kRoot + "link/";

// What is attached to the cgroup, in this order.
struct Hook {
  bpfio::CgroupHook type;
  std::string_view name;  // of its pin
  std::string_view program;
  std::string pin() const { return kLink + std::string(name); }
  std::string program_pin() const { return kPrograms + std::string(program); }
};
constexpr Hook kHooks[] = {
    {bpfio::CgroupHook::kSockOps, "sockops", "sl_sockops"},
    {bpfio::CgroupHook::kSetSockOpt, "setsockopt", "sl_setsockopt"},
};

// The shared maps that carry a contract, with the version this agent was built for.
struct Schema {
  sl_schema index;
  std::string_view name;
  std::string_view map;
  uint32_t version;
};
constexpr Schema kSchemas[] = {
    {SL_SCHEMA_POLICY, "sl.policy", "sl_generations", SL_SCHEMA_POLICY_VERSION},
    {SL_SCHEMA_SOCK, "sl.sock", "sl_sock", SL_SCHEMA_SOCK_VERSION},
    {SL_SCHEMA_HANDOVER, "sl.handover", "sl_handover", SL_SCHEMA_HANDOVER_VERSION},
    {SL_SCHEMA_OWD, SL_SCHEMA_OWD_NAME, "sl_owd", SL_SCHEMA_OWD_VERSION},
};

sl_cca_name to_key(const std::string& name) {
  sl_cca_name key{};
  SLUICE_ASSERT(name.size() < sizeof key.name);
  std::copy(name.begin(), name.end(), key.name);
  return key;
}

// Fills one slot of an outer map with a fresh inner map, and so drops what a generation before held there.
template <class K, class V>
Status fill_slot(const bpfio::MapFd& outer, const bpfio::MapSpec& prototype, uint32_t slot,
                 const std::vector<std::pair<K, V>>& entries) {
  bpfio::MapSpec spec = prototype;
  spec.max_entries = std::max<uint32_t>(1, static_cast<uint32_t>(entries.size()));
  SLUICE_TRY(fd, bpfio::MapFd::create(spec));
  SLUICE_TRY(inner, (bpfio::Map<K, V>::from(std::move(fd))));
  std::vector<K> keys;
  std::vector<V> values;
  keys.reserve(entries.size());
  values.reserve(entries.size());
  for (const auto& [key, value] : entries) {
    keys.push_back(key);
    values.push_back(value);
  }
  SLUICE_CHECK(inner.update_batch(std::span<const K>(keys), std::span<const V>(values)));
  return outer.set_inner(slot, inner.raw());
}

constexpr char kDownFirst[] =
    "connections are not affected; `sluice down` with the agent that loaded it, then start this one and apply the policy again";

Status share(bpfio::Object& object, const std::string& name, const bpfio::MapFd& existing) {
  return object.reuse_map(name, existing).map_error([&](Error e) {
    return std::move(e).within("map " + name + " of the running pipeline has another layout").fix(kDownFirst);
  });
}

// Who is on a hook that takes no more.
std::string full_hook(int cgroup_fd, bpfio::CgroupHook hook) {
  const auto programs = bpfio::cgroup_programs(cgroup_fd, hook, false);
  if (!programs) return "";
  std::string text = fmt::format(": {} programs are there", programs->size());
  constexpr size_t kNamed = 5;
  for (size_t i = 0; i < programs->size() && i < kNamed; ++i)
    text += fmt::format("{}{} (id {})", i == 0 ? ", such as " : ", ", (*programs)[i].name, (*programs)[i].prog_id);
  return text;
}

}  // namespace

Result<PinnedPolicy::Shape> PinnedPolicy::read_shape(const bundle::Bundle& bundle) {
  SLUICE_TRY(object, bpfio::Object::open_file(bundle.object_path()));
  Shape shape;
  for (const char* name : {"sl_places", "sl_sources", "sl_services", "sl_rules"}) {
    SLUICE_TRY(spec, object.inner_spec(name));
    shape.tables[name] = std::move(spec);
  }
  shape.maps = object.map_names();
  shape.programs = object.program_names();
  return shape;
}

std::string PinnedPolicy::digest_of(const bundle::Bundle& bundle) { return bundle::sha256_hex(bundle.digest).substr(0, 16); }

Result<std::optional<std::string>> PinnedPolicy::loaded_digest() const {
  SLUICE_TRY(names, pins_.list());
  std::optional<std::string> digest;
  for (const auto& name : names)
    if (name.starts_with(kReady)) digest = name.substr(kReady.size());
  // Without the maps that CCAs share with it, it is debris, whatever the mark says.
  if (std::ranges::find(names, kMaps + "sl_config") == names.end()) return std::nullopt;
  if (digest == digest_of(bundle_))
    for (const auto& map : shape_.maps)
      if (std::ranges::find(kOwnMaps, map) == std::end(kOwnMaps) && std::ranges::find(names, kMaps + map) == names.end())
        return std::nullopt;
  return digest;
}

Result<std::vector<std::string>> PinnedPolicy::missing() const {
  SLUICE_TRY(names, pins_.list());
  std::vector<std::string> gone;
  const auto expect = [&](std::string pin) {
    if (std::ranges::find(names, pin) == names.end()) gone.push_back(std::move(pin));
  };
  for (const auto& map : shape_.maps) expect(kMaps + map);
  for (const auto& program : shape_.programs) expect((program.starts_with(kIterPrefix) ? kIter : kPrograms) + program);
  return gone;
}

Result<bpfio::MapFd> PinnedPolicy::map(const std::string& name) const { return pins_.map(kMaps + name); }
Result<bpfio::Link> PinnedPolicy::iterator(const std::string& name) const { return pins_.link(kIter + name); }

Result<std::vector<std::string>> PinnedPolicy::map_names() const {
  SLUICE_TRY(pins, pins_.list());
  std::vector<std::string> names;
  for (const auto& pin : pins)
    if (pin.starts_with(kMaps)) names.push_back(pin.substr(kMaps.size()));
  return names;
}

Status PinnedPolicy::load() {
  const std::string digest = digest_of(bundle_);
  SLUICE_TRY(present, loaded_digest());
  SLUICE_TRY(gone, missing());
  if (present == digest && gone.empty()) return {};
  return present ? replace_programs(digest) : load_fresh(digest);
}

// Loads every object of the bundle over the maps that are pinned; only when all that must load has loaded do the pins change:
// `replaced` go, and what is new is pinned. The first object is the pipeline; the others are helpers that some kernels refuse,
// and the agent does without.
Status PinnedPolicy::load_objects(const std::vector<std::string>& replaced) {
  std::vector<bpfio::Object> objects;
  for (size_t i = 0; i < bundle_.manifest.objects.size(); ++i) {
    SLUICE_TRY(object, bpfio::Object::open_file(bundle_.object_path(i)));
    SLUICE_TRY(pinned, map_names());
    for (const auto& name : object.map_names()) {
      if (std::ranges::find(pinned, name) != pinned.end()) {
        SLUICE_TRY(existing, map(name));
        SLUICE_CHECK(share(object, name, existing));
      } else if (i > 0) {
        const auto before = objects.front().map_names();
        if (std::ranges::find(before, name) == before.end()) continue;
        SLUICE_TRY(existing, objects.front().map(name));
        SLUICE_CHECK(share(object, name, existing));
      }
    }
    if (auto loaded = object.load({log_dir_}); !loaded) {
      if (i == 0 || loaded.error().code == Code::kExhausted) return loaded;
      log_debug("an optional part of the pipeline does not load on this kernel",
                {{"object", object.name()}, {"why", loaded.error().message()}});
      continue;
    }
    objects.push_back(std::move(object));
  }

  for (const auto& pin : replaced) SLUICE_CHECK(pins_.unpin(pin));
  for (size_t i = 0; i < objects.size(); ++i) {
    SLUICE_TRY(pinned, map_names());
    for (const auto& name : objects[i].map_names()) {
      if (std::ranges::find(pinned, name) != pinned.end()) continue;
      SLUICE_TRY(fresh, objects[i].map(name));
      SLUICE_CHECK(pins_.pin(fresh, kMaps + name));
    }
    if (i == 0) SLUICE_CHECK(write_schemas(objects[i]));
    SLUICE_CHECK(take_programs(objects[i]));
  }
  return {};
}

Status PinnedPolicy::load_fresh(const std::string& digest) {
  SLUICE_CHECK(unload());
  SLUICE_CHECK(load_objects({}));
  return mark_ready(digest);
}

// An agent of another version: the maps, and with them the policy and what is noted about sockets, stay; the programs change
// under the hook in one step. Meanwhile the pins are marked as of no version, so that after a crash an agent of either version
// does this again.
Status PinnedPolicy::replace_programs(const std::string& digest) {
  for (size_t i = 0; i < bundle_.manifest.objects.size(); ++i) {
    SLUICE_TRY(object, bpfio::Object::open_file(bundle_.object_path(i)));
    SLUICE_CHECK(check_takeover(object));
  }
  SLUICE_TRY(before, pins_.list());
  std::vector<std::string> replaced;
  for (const auto& pin : before)
    if (pin.starts_with(kIter) || pin.starts_with(kPrograms)) replaced.push_back(pin);
  const std::string replacing = kReady + std::string(kReplacing);
  if (std::ranges::find(before, replacing) == before.end()) SLUICE_CHECK(mark_ready(std::string(kReplacing)));
  for (const auto& pin : before)
    if (pin.starts_with(kReady) && pin != replacing) SLUICE_CHECK(pins_.unpin(pin));
  SLUICE_CHECK(load_objects(replaced));
  for (const Hook& hook : kHooks) {
    SLUICE_TRY(hooked, pins_.exists(hook.pin()));
    if (!hooked) continue;
    SLUICE_TRY(link, pins_.link(hook.pin()));
    SLUICE_TRY(info, link.info());
    SLUICE_TRY(program, pins_.program(hook.program_pin()));
    if (info.cgroup_id != 0 && info.prog_id != 0) SLUICE_CHECK(link.update(program));
  }
  SLUICE_CHECK(mark_ready(digest));
  return pins_.unpin(replacing);
}

Status PinnedPolicy::mark_ready(const std::string& digest) {
  SLUICE_TRY(config, map("sl_config"));
  return pins_.pin(config, kReady + digest);
}

Status PinnedPolicy::take_programs(const bpfio::Object& object) {
  for (const auto& name : object.program_names()) {
    SLUICE_TRY(program, object.program(name));
    if (!name.starts_with(kIterPrefix)) {
      SLUICE_CHECK(pins_.pin(program, kPrograms + name));
      continue;
    }
    SLUICE_TRY(link, bpfio::Link::attach_iter(program));
    SLUICE_CHECK(pins_.pin(link, kIter + name));
  }
  // The manifest declares the order of the stages; each one calls the next.
  SLUICE_TRY(stages, map("sl_stages"));
  const auto names = object.program_names();
  for (uint32_t i = 0; i < bundle_.manifest.stages.size(); ++i) {
    if (std::ranges::find(names, bundle_.manifest.stages[i]) == names.end()) continue;
    SLUICE_TRY(stage, object.program(bundle_.manifest.stages[i]));
    const int fd = stage.fd();
    SLUICE_CHECK(stages.update(bpfio::bytes_of(i), bpfio::bytes_of(fd)));
  }
  return {};
}

Result<bpfio::Map<uint32_t, sl_schema_entry>> PinnedPolicy::schemas() const {
  SLUICE_TRY(fd, map("sl_schemas"));
  return bpfio::Map<uint32_t, sl_schema_entry>::from(std::move(fd));
}

Status PinnedPolicy::check_contracts(const std::string& id, const std::vector<bundle::SharedMap>& declared,
                                     const bpfio::Object& object) const {
  SLUICE_TRY(pinned, schemas());
  const auto refuse = [](std::string what) {
    return fail(
        make_error(Code::kConflict, std::move(what), "rebuild the bundle against this release's headers, under a new version"));
  };
  for (const auto& map : declared) {
    const auto schema = std::ranges::find(kSchemas, map.schema, &Schema::name);
    std::optional<sl_schema_entry> entry;
    if (schema != std::end(kSchemas)) {
      SLUICE_TRY(found, pinned.find(schema->index));
      if (found && found->name_hash == fnv1a64(schema->name)) entry = *found;
    }
    if (!entry)
      return refuse(fmt::format("{} wants shared map {} as {}@{}, and this agent has no schema of that name", id, map.name,
                                map.schema, map.schema_version));
    if (entry->version != map.schema_version)
      return refuse(fmt::format("{} wants shared map {} as {}@{}, and {}@{} is pinned", id, map.name, map.schema,
                                map.schema_version, map.schema, entry->version));
  }
  const auto names = object.map_names();
  for (const auto& schema : kSchemas) {
    if (std::ranges::find(names, schema.map) == names.end()) continue;
    SLUICE_TRY(entry, pinned.find(schema.index));
    SLUICE_TRY(type, object.value_type(std::string(schema.map)));
    if (!entry || entry->btf_hash != type.hash)
      return refuse(fmt::format("{} has shared map {} with layout {:016x}, and {}@{} with layout {:016x} is pinned", id,
                                schema.map, type.hash, schema.name, entry ? entry->version : 0, entry ? entry->btf_hash : 0));
  }
  return {};
}

Status PinnedPolicy::check_takeover(bpfio::Object& object) const {
  SLUICE_TRY(names, map_names());
  for (const auto& name : object.map_names()) {
    if (std::ranges::find(names, name) == names.end()) continue;
    SLUICE_TRY(existing, map(name));
    SLUICE_CHECK(share(object, name, existing));
  }
  SLUICE_TRY(pinned, schemas());
  const auto own = object.map_names();
  for (const auto& schema : kSchemas) {
    if (std::ranges::find(own, schema.map) == own.end()) continue;
    SLUICE_TRY(entry, pinned.find(schema.index));
    if (!entry || entry->name_hash != fnv1a64(schema.name)) continue;  // its maps are made anew
    SLUICE_TRY(type, object.value_type(std::string(schema.map)));
    if (entry->version == schema.version && entry->btf_hash == type.hash) continue;
    return fail(make_error(
        Code::kConflict,
        fmt::format("the running pipeline has shared map {} as {}@{} with layout {:016x}, this agent has {}@{} "
                    "with layout {:016x}",
                    schema.map, schema.name, entry->version, entry->btf_hash, schema.name, schema.version, type.hash),
        kDownFirst));
  }
  return {};
}

Status PinnedPolicy::write_schemas(const bpfio::Object& object) {
  SLUICE_TRY(pinned, schemas());
  for (const auto& schema : kSchemas) {
    SLUICE_TRY(type, object.value_type(std::string(schema.map)));
    sl_schema_entry entry{};
    entry.name_hash = fnv1a64(schema.name);
    entry.version = schema.version;
    entry.value_size = type.size_bytes;
    entry.btf_hash = type.hash;
    SLUICE_CHECK(pinned.update(schema.index, entry));
  }
  return {};
}

Status PinnedPolicy::unload() {
  SLUICE_TRY(pins, pins_.list());
  // "ready" first: from then on the rest is debris, whatever happens. The hooks next, so that no program runs without its maps.
  for (const auto& pin : pins)
    if (pin.starts_with(kReady)) SLUICE_CHECK(pins_.unpin(pin));
  SLUICE_CHECK(detach());
  for (const auto& pin : pins)
    if (pin.starts_with(kRoot) && !pin.starts_with(kReady) && !pin.starts_with(kLink)) SLUICE_CHECK(pins_.unpin(pin));
  return {};
}

Status PinnedPolicy::attach(const std::string& cgroup) {
  SLUICE_TRY(now, attachments(cgroup));
  auto folder = open_file(cgroup, O_RDONLY | O_DIRECTORY);
  if (!folder)
    return fail(std::move(folder)
                    .error()
                    .within("the cgroup of the hook")
                    .fix("make it again, or start the agent with another --cgroup"));
  for (size_t i = 0; i < std::size(kHooks); ++i) {
    const Hook& hook = kHooks[i];
    if (now[i].link) continue;
    SLUICE_TRY(program, pins_.program(hook.program_pin()));
    // The pin of a link may go while somebody holds the link: that one is taken back, or the program would run twice.
    SLUICE_TRY(id, net::cgroup_id(cgroup));
    SLUICE_TRY(links, bpfio::all_links());
    const auto held = std::ranges::find_if(links, [&](const bpfio::LinkInfo& other) {
      return other.type == bpfio::LinkType::kCgroup && other.attach_type == bpfio::attach_type(hook.type) &&
             other.cgroup_id == id && other.prog_id == program.id();
    });
    auto link =
        held != links.end() ? bpfio::Link::from_id(held->id) : bpfio::Link::attach_cgroup(program, folder->get(), hook.type);
    if (!link) {
      Error error = std::move(link).error().at(cgroup);
      if (error.sys_errno == E2BIG) error.what += full_hook(folder->get(), hook.type);
      return fail(std::move(error));
    }
    SLUICE_CHECK(detach(hook.pin()));  // a link that somebody emptied, or elsewhere
    SLUICE_CHECK(pins_.pin(*link, hook.pin()));
  }
  return {};
}

Status PinnedPolicy::detach() {
  for (const Hook& hook : kHooks) SLUICE_CHECK(detach(hook.pin()));
  return {};
}

Status PinnedPolicy::detach(const std::string& pin) {
  SLUICE_TRY(there, pins_.exists(pin));
  if (!there) return {};
  SLUICE_TRY(link, pins_.link(pin));
  // Now, not when the last descriptor is gone: some tool may hold one.
  if (auto status = link.detach();
      !status && status.error().code != Code::kUnsupported && status.error().code != Code::kInvalid)
    return status;
  return pins_.unpin(pin);
}

Result<std::vector<PinnedPolicy::Attachment>> PinnedPolicy::attachments(const std::string& cgroup) const {
  const auto id = net::cgroup_id(cgroup);
  std::vector<Attachment> list;
  for (const Hook& hook : kHooks) {
    Attachment& item = list.emplace_back(Attachment{hook.type, hook.name, std::nullopt, ""});
    SLUICE_TRY(there, pins_.exists(hook.pin()));
    if (!there) {
      item.why = "the pin of its link is gone";
      continue;
    }
    SLUICE_TRY(link, pins_.link(hook.pin()));
    SLUICE_TRY(info, link.info());
    if (!id)
      item.why = fmt::format("the cgroup {} is gone", cgroup);
    else if (info.cgroup_id == 0 || info.prog_id == 0)  // the kernel empties the link of a cgroup that goes, too
      item.why = "it was detached by somebody, or its cgroup was removed and made anew";
    else if (*id != info.cgroup_id)
      item.why = "it is at another cgroup, of an agent with other options";
    else
      item.link = std::move(info);
  }
  return list;
}

Result<uint64_t> PinnedPolicy::generation() const {
  SLUICE_TRY(config, map("sl_config"));
  SLUICE_TRY(memory, bpfio::MapMemory::map(config, /*writable=*/false));
  return memory.load_u64(offsetof(sl_config, generation));
}

Status PinnedPolicy::publish(uint64_t generation) {
  SLUICE_TRY(config, map("sl_config"));
  SLUICE_TRY(memory, bpfio::MapMemory::map(config, /*writable=*/true));
  memory.store_u64(offsetof(sl_config, generation), generation);
  return {};
}

Status PinnedPolicy::write_generation(const policy::Compiled& compiled) {
  const auto slot = static_cast<uint32_t>(compiled.generation.generation % SL_SLOTS);
  SLUICE_TRY(published, generation());
  SLUICE_ASSERT(published != compiled.generation.generation);  // its slot is being read

  const auto fill = [&](const std::string& name, const auto& entries) -> Status {
    SLUICE_TRY(outer, map(name));
    return fill_slot(outer, shape_.tables.at(name), slot, entries).map_error([&](Error e) {
      return std::move(e).within("table " + name);
    });
  };
  SLUICE_TRY(fd, map("sl_generations"));
  SLUICE_TRY(generations, (bpfio::Map<uint32_t, sl_generation>::from(std::move(fd))));
  // The slot belongs to no generation while its tables change.
  SLUICE_CHECK(generations.update(slot, sl_generation{}));
  SLUICE_CHECK(fill("sl_places", compiled.places));
  SLUICE_CHECK(fill("sl_sources", compiled.sources));
  SLUICE_CHECK(fill("sl_services", compiled.services));
  SLUICE_CHECK(fill("sl_rules", compiled.rules));
  return generations.update(slot, compiled.generation);
}

Status PinnedPolicy::set_cca_id(const std::string& kernel_name, uint32_t map_id) {
  SLUICE_TRY(fd, map("sl_cca_ids"));
  SLUICE_TRY(ids, (bpfio::Map<sl_cca_name, uint32_t>::from(std::move(fd))));
  return ids.update(to_key(kernel_name), map_id);
}

Result<uint32_t> PinnedPolicy::cca_id(const std::string& kernel_name) const {
  SLUICE_TRY(fd, map("sl_cca_ids"));
  SLUICE_TRY(ids, (bpfio::Map<sl_cca_name, uint32_t>::from(std::move(fd))));
  SLUICE_TRY(id, ids.find(to_key(kernel_name)));
  return id.value_or(0);
}

Status PinnedPolicy::forget_cca_id(const std::string& kernel_name) {
  SLUICE_TRY(fd, map("sl_cca_ids"));
  SLUICE_TRY(ids, (bpfio::Map<sl_cca_name, uint32_t>::from(std::move(fd))));
  auto status = ids.erase(to_key(kernel_name));
  if (!status && status.error().code == Code::kNotFound) return {};
  return status;
}

}  // namespace sluice::agent
