// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/map.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/file.h"
#include "base/strings.h"
#include "bpfio/kernel_btf.h"

namespace sluice::bpfio {
namespace {

constexpr int kErrnoNotSupported = 524;  // the kernel's ENOTSUPP, which has no name in user space

std::size_t round_up(std::size_t value, std::size_t step) { return (value + step - 1) / step * step; }

std::string place_of(const MapInfo& info) { return fmt::format("map {} (id {})", info.name, info.id); }

}  // namespace

std::string_view to_string(MapType type) {
  const char* name = libbpf_bpf_map_type_str(static_cast<bpf_map_type>(type));
  return name == nullptr ? "?" : name;
}

Result<MapInfo> map_info(int fd) {
  bpf_map_info raw{};
  __u32 size = sizeof(raw);
  if (int err = bpf_map_get_info_by_fd(fd, &raw, &size); err != 0)
    return fail(libbpf_error(err, fmt::format("cannot describe the map of descriptor {}", fd)));
  MapInfo info;
  info.id = raw.id;
  info.type = static_cast<MapType>(raw.type);
  info.name = std::string(raw.name, ::strnlen(raw.name, sizeof(raw.name)));
  info.key_size = raw.key_size;
  info.value_size = raw.value_size;
  info.max_entries = raw.max_entries;
  info.flags = raw.map_flags;
  info.btf_id = raw.btf_id;
  info.btf_key_type_id = raw.btf_key_type_id;
  info.btf_value_type_id = raw.btf_value_type_id;
  info.btf_vmlinux_value_type_id = raw.btf_vmlinux_value_type_id;
  return info;
}

Result<MapFd> MapFd::adopt(UniqueFd fd) {
  SLUICE_CHECK(expect_kind(fd.get(), FdKind::kMap));
  SLUICE_TRY(info, map_info(fd.get()));
  return MapFd(std::move(fd), std::move(info));
}

Result<MapFd> MapFd::from_id(std::uint32_t id) {
  UniqueFd fd(bpf_map_get_fd_by_id(id));
  if (!fd) return fail(libbpf_error(errno, fmt::format("cannot open the map with id {}", id)));
  return adopt(std::move(fd));
}

Result<MapFd> MapFd::create(const MapSpec& spec) {
  LIBBPF_OPTS(bpf_map_create_opts, options);
  options.map_flags = spec.flags;
  const std::string name = spec.name.substr(0, BPF_OBJ_NAME_LEN - 1);
  UniqueFd fd(bpf_map_create(static_cast<bpf_map_type>(spec.type), name.c_str(), spec.key_size, spec.value_size,
                             spec.max_entries, &options));
  if (!fd)
    return fail(libbpf_error(
        errno, fmt::format("cannot create the {} map {} of {} entries", to_string(spec.type), spec.name, spec.max_entries)));
  return adopt(std::move(fd));
}

Result<MapFd> MapFd::create_like(const MapFd& prototype, std::string_view name, std::uint32_t max_entries) {
  MapSpec spec = prototype.spec();
  spec.name = name;
  if (max_entries != 0) spec.max_entries = max_entries;
  return create(spec);
}

MapSpec MapFd::spec() const {
  return {info_.type, info_.name, info_.key_size, info_.value_size, info_.max_entries, info_.flags};
}

Result<MapFd> MapFd::duplicate() const {
  SLUICE_TRY(copy, sluice::duplicate(fd_.get()));
  return MapFd(std::move(copy), info_);
}

Result<std::uint64_t> MapFd::memory_bytes() const {
  SLUICE_TRY(text, read_file(fmt::format("/proc/self/fdinfo/{}", fd_.get())));
  for (std::string_view line : split(text, '\n')) {
    constexpr std::string_view kKey = "memlock:";
    if (!line.starts_with(kKey)) continue;
    if (auto bytes = parse_int<std::uint64_t>(trim(line.substr(kKey.size())))) return *bytes;
  }
  return fail(fail(Code::kUnsupported, "the kernel does not tell the memory of a map").value().at(place_of(info_)));
}

std::size_t MapFd::transfer_bytes() const {
  if (!info_.per_cpu()) return info_.value_size;
  const int cpus = libbpf_num_possible_cpus();
  SLUICE_ASSERT(cpus > 0);  // sysfs is there: the descriptor could not have been checked otherwise
  return round_up(info_.value_size, 8) * static_cast<std::size_t>(cpus);
}

Status MapFd::lookup(std::span<const std::byte> key, std::span<std::byte> value) const { return lookup(key, value, BPF_ANY); }

Status MapFd::lookup_locked(std::span<const std::byte> key, std::span<std::byte> value) const {
  return lookup(key, value, BPF_F_LOCK);
}

Status MapFd::lookup(std::span<const std::byte> key, std::span<std::byte> value, std::uint64_t flags) const {
  SLUICE_ASSERT(key.size() == info_.key_size && value.size() == transfer_bytes());
  if (int err = bpf_map_lookup_elem_flags(fd_.get(), key.data(), value.data(), flags); err != 0) {
    if (err == -ENOENT) return fail(fail(Code::kNotFound, "no such key").value().at(place_of(info_)));
    return fail(libbpf_error(err, "cannot look up an element").at(place_of(info_)));
  }
  return {};
}

Status MapFd::update(std::span<const std::byte> key, std::span<const std::byte> value, Update mode) const {
  SLUICE_ASSERT(key.size() == info_.key_size && value.size() == transfer_bytes());
  int err = bpf_map_update_elem(fd_.get(), key.data(), value.data(), static_cast<std::uint64_t>(mode));
  if (err == 0) return {};
  if (err == -E2BIG || err == -ENOSPC) {
    Error error = fail(Code::kExhausted, "full ({} entries), or no such index", info_.max_entries).value();
    return fail(std::move(error).at(place_of(info_)));
  }
  return fail(libbpf_error(err, "cannot write an element").at(place_of(info_)));
}

Status MapFd::erase(std::span<const std::byte> key) const {
  SLUICE_ASSERT(key.size() == info_.key_size);
  int err = bpf_map_delete_elem(fd_.get(), key.data());
  if (err == 0) return {};
  if (err == -ENOENT) return fail(fail(Code::kNotFound, "no such key").value().at(place_of(info_)));
  return fail(libbpf_error(err, "cannot delete an element").at(place_of(info_)));
}

Status MapFd::update_batch(std::span<const std::byte> keys, std::span<const std::byte> values, std::size_t count) const {
  const std::size_t value_bytes = transfer_bytes();
  SLUICE_ASSERT(keys.size() == count * info_.key_size && values.size() == count * value_bytes);
  SLUICE_ASSERT(count <= UINT32_MAX);
  if (count == 0) return {};
  auto done = static_cast<__u32>(count);
  LIBBPF_OPTS(bpf_map_batch_opts, options);
  int err = bpf_map_update_batch(fd_.get(), keys.data(), values.data(), &done, &options);
  if (err == 0) return {};
  // No batches for this map type (ENOTSUPP), none at all (EINVAL, before 5.6), or a bad element: one by one tells, and the
  // elements that are there already are written again with the same value.
  if (err != -kErrnoNotSupported && err != -EINVAL && err != -EOPNOTSUPP) {
    Error error = err == -E2BIG || err == -ENOSPC ? fail(Code::kExhausted, "full ({} entries)", info_.max_entries).value()
                                                  : libbpf_error(err, "cannot write elements");
    return fail(std::move(error).at(place_of(info_)).within(fmt::format("element {} of {}", done, count)));
  }
  for (std::size_t i = 0; i < count; i++) {
    Status status = update(keys.subspan(i * info_.key_size, info_.key_size), values.subspan(i * value_bytes, value_bytes));
    if (!status) return fail(std::move(status).error().within(fmt::format("element {} of {}", i, count)));
  }
  return {};
}

Status MapFd::for_each(const std::function<bool(std::span<const std::byte>, std::span<const std::byte>)>& visit) const {
  std::vector<std::byte> key(info_.key_size);
  std::vector<std::byte> next(info_.key_size);
  std::vector<std::byte> value(transfer_bytes());
  // A key that is deleted under the walk sends it back to the start: bounded, or a busy map would never end.
  const std::uint64_t steps_max = std::uint64_t{4} * info_.max_entries + 16;
  bool first = true;
  for (std::uint64_t step = 0; step < steps_max; step++) {
    int err = bpf_map_get_next_key(fd_.get(), first ? nullptr : key.data(), next.data());
    if (err == -ENOENT) return {};
    if (err != 0) return fail(libbpf_error(err, "cannot list its elements").at(place_of(info_)));
    first = false;
    key.swap(next);
    Status status = lookup(key, value);
    if (!status && status.error().code == Code::kNotFound) continue;
    if (!status) return status;
    if (!visit(key, value)) return {};
  }
  return fail(fail(Code::kUnavailable, "changes faster than it can be listed").value().at(place_of(info_)));
}

Status MapFd::set_inner(std::uint32_t index, const MapFd& inner) const {
  const int inner_fd = inner.fd();
  Status status = update(bytes_of(index), bytes_of(inner_fd));
  if (!status && status.error().code == Code::kInvalid)
    return fail(std::move(status).error().within(fmt::format("inner {} differs from the prototype", place_of(inner.info()))));
  return status;
}

Result<MapFd> MapFd::inner(std::uint32_t index) const {
  std::uint32_t id = 0;
  SLUICE_CHECK(lookup(bytes_of(index), std::as_writable_bytes(std::span<std::uint32_t, 1>(&id, 1))));
  return from_id(id);
}

Result<unsigned> possible_cpus() {
  int cpus = libbpf_num_possible_cpus();
  if (cpus < 0) return fail(libbpf_error(cpus, "cannot count CPUs").at("/sys/devices/system/cpu/possible"));
  return static_cast<unsigned>(cpus);
}

Result<std::vector<std::uint64_t>> sum_per_cpu(const MapFd& map) {
  const MapInfo& info = map.info();
  if (info.type != MapType::kPerCpuArray || info.value_size % sizeof(std::uint64_t) != 0)
    return fail(fail(Code::kInvalid, "is not a per-CPU array of 64-bit counters").value().at(place_of(info)));
  const std::size_t counters = info.value_size / sizeof(std::uint64_t);  // of one element
  std::vector<std::uint64_t> sums(info.max_entries * counters);
  std::vector<std::uint64_t> per_cpu(map.transfer_bytes() / sizeof(std::uint64_t));
  for (std::uint32_t i = 0; i < info.max_entries; i++) {
    SLUICE_CHECK(map.lookup(bytes_of(i), std::as_writable_bytes(std::span(per_cpu))));
    for (std::size_t at = 0; at < per_cpu.size(); at++) sums[i * counters + at % counters] += per_cpu[at];
  }
  return sums;
}

Result<MapMemory> MapMemory::map(const MapFd& array, bool writable) {
  const MapInfo& info = array.info();
  if ((info.flags & kMmapable) == 0)
    return fail(fail(Code::kInvalid, "cannot be mapped: it has no BPF_F_MMAPABLE").value().at(place_of(info)));
  const std::size_t size = round_up(info.value_size, 8) * info.max_entries;
  const std::size_t mapped = round_up(size, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  void* data = ::mmap(nullptr, mapped, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, array.fd(), 0);
  if (data == MAP_FAILED) return fail(fail_errno(errno, "cannot map {} bytes", mapped).value().at(place_of(info)));
  return MapMemory(static_cast<std::byte*>(data), size, mapped, writable);
}

MapMemory::MapMemory(MapMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(other.size_), mapped_(other.mapped_), writable_(other.writable_) {}

MapMemory& MapMemory::operator=(MapMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(writable_, other.writable_);
  return *this;
}

MapMemory::~MapMemory() {
  if (data_ != nullptr) ::munmap(data_, mapped_);
}

void MapMemory::store_u64(std::size_t offset, std::uint64_t value) {
  SLUICE_ASSERT(writable_ && offset % 8 == 0 && offset + 8 <= size_);
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(data_ + offset)).store(value, std::memory_order_release);
}

std::uint64_t MapMemory::load_u64(std::size_t offset) const {
  SLUICE_ASSERT(offset % 8 == 0 && offset + 8 <= size_);
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(data_ + offset)).load(std::memory_order_acquire);
}

}  // namespace sluice::bpfio
