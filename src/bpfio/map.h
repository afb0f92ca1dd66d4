// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// BPF maps by descriptor: MapFd moves bytes, Map<K, V> checks sizes once and moves values.
//
// A MapFd owns its descriptor and nothing else: it outlives the object that it came from, and closing it does not unpin.
// Thread-safe as the kernel is: every call is one or more bpf(2) calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::bpfio {

// enum bpf_map_type, the part that Sluice creates or looks for; other values are possible.
enum class MapType : std::uint32_t {
  kHash = 1,
  kArray = 2,
  kPerCpuHash = 5,
  kPerCpuArray = 6,
  kLpmTrie = 11,
  kArrayOfMaps = 12,
  kHashOfMaps = 13,
  kSkStorage = 24,
  kStructOps = 26,
  kRingbuf = 27,
};
std::string_view to_string(MapType type);  // "hash", "lpm_trie", ...; "?" if unknown

inline constexpr std::uint32_t kNoPrealloc = 1U << 0;  // BPF_F_NO_PREALLOC: required for LPM tries and socket storage
inline constexpr std::uint32_t kMmapable = 1U << 10;   // BPF_F_MMAPABLE
inline constexpr std::uint32_t kInnerMap = 1U << 12;   // BPF_F_INNER_MAP: inner arrays may differ in max_entries
inline constexpr std::uint32_t kLinkFlag = 1U << 13;   // BPF_F_LINK: a struct_ops map registered by a link

struct MapSpec {
  MapType type = MapType::kHash;
  std::string name;  // cut to the kernel's 15 characters
  std::uint32_t key_size = 0;
  std::uint32_t value_size = 0;
  std::uint32_t max_entries = 0;
  std::uint32_t flags = 0;
};

struct MapInfo {
  std::uint32_t id = 0;
  MapType type = MapType::kHash;
  std::string name;
  std::uint32_t key_size = 0;
  std::uint32_t value_size = 0;
  std::uint32_t max_entries = 0;
  std::uint32_t flags = 0;
  std::uint32_t btf_id = 0;  // 0 = the map has no BTF
  std::uint32_t btf_key_type_id = 0;
  std::uint32_t btf_value_type_id = 0;
  std::uint32_t btf_vmlinux_value_type_id = 0;  // struct_ops maps only

  bool per_cpu() const { return type == MapType::kPerCpuHash || type == MapType::kPerCpuArray; }
};

enum class Update : std::uint64_t { kAny = 0, kCreateOnly = 1, kReplaceOnly = 2 };

class MapFd {
 public:
  static Result<MapFd> adopt(UniqueFd fd);  // checks that it is a map
  static Result<MapFd> from_id(std::uint32_t id);
  static Result<MapFd> create(const MapSpec& spec);
  // A fresh, empty map that an outer map takes in place of `prototype` (same type, sizes and flags).
  static Result<MapFd> create_like(const MapFd& prototype, std::string_view name, std::uint32_t max_entries = 0);

  int fd() const { return fd_.get(); }
  const MapInfo& info() const { return info_; }
  MapSpec spec() const;
  Result<MapFd> duplicate() const;

  // Bytes that the kernel accounts to the map (fdinfo's memlock): exact for arrays, an estimate for others.
  Result<std::uint64_t> memory_bytes() const;

  // Bytes of one value as bpf(2) moves it: per-CPU maps move every possible CPU's, each rounded up to 8.
  std::size_t transfer_bytes() const;

  // kNotFound if the key is not there.
  Status lookup(std::span<const std::byte> key, std::span<std::byte> value) const;
  // Under the value's bpf_spin_lock: no half of what a program writes.
  Status lookup_locked(std::span<const std::byte> key, std::span<std::byte> value) const;
  Status update(std::span<const std::byte> key, std::span<const std::byte> value, Update mode = Update::kAny) const;
  Status erase(std::span<const std::byte> key) const;

  // Keys and values lie back to back. One bpf(2) call for many elements where the kernel can (hash and array 5.6, LPM 5.16),
  // else one each. On an error the elements before the failing one are there; the error names its index.
  Status update_batch(std::span<const std::byte> keys, std::span<const std::byte> values, std::size_t count) const;
  // Every element, in no order. Elements that change meanwhile may be missed or seen twice, as bpf(2) has it. `visit` gets key
  // and value (transfer_bytes()) and returns false to stop.
  Status for_each(const std::function<bool(std::span<const std::byte>, std::span<const std::byte>)>& visit) const;

  // Map-in-map (outer array): the inner map at `index`; kNotFound if the slot is empty.
  Status set_inner(std::uint32_t index, const MapFd& inner) const;
  Result<MapFd> inner(std::uint32_t index) const;

 private:
  MapFd(UniqueFd fd, MapInfo info) : fd_(std::move(fd)), info_(std::move(info)) {}
  Status lookup(std::span<const std::byte> key, std::span<std::byte> value, std::uint64_t flags) const;
  UniqueFd fd_;
  MapInfo info_;
};

// MapInfo of an open descriptor.
Result<MapInfo> map_info(int fd);

// CPUs that per-CPU maps have a value for (/sys/devices/system/cpu/possible).
Result<unsigned> possible_cpus();

// Per-CPU array of u64, or of structures of them: each summed over CPUs, element after element.
Result<std::vector<std::uint64_t>> sum_per_cpu(const MapFd& map);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}

template <class K, class V>
class Map {
  static_assert(std::is_trivially_copyable_v<K> && std::is_trivially_copyable_v<V>);

 public:
  // Refuses a map whose key or value has another size.
  static Result<Map> from(MapFd fd) {
    if (fd.info().key_size != sizeof(K) || fd.info().value_size != sizeof(V) || fd.info().per_cpu())
      return fail(Code::kConflict, "map {} has keys of {} and values of {} bytes{}, not {} and {}", fd.info().name,
                  fd.info().key_size, fd.info().value_size, fd.info().per_cpu() ? " per CPU" : "", sizeof(K), sizeof(V));
    return Map(std::move(fd));
  }

  const MapFd& raw() const { return fd_; }
  const MapInfo& info() const { return fd_.info(); }

  // kNotFound if the key is not there.
  Result<V> lookup(const K& key) const {
    V value;
    SLUICE_CHECK(fd_.lookup(bytes_of(key), std::as_writable_bytes(std::span<V, 1>(&value, 1))));
    return value;
  }
  Result<std::optional<V>> find(const K& key) const {
    Result<V> value = lookup(key);
    if (value) return std::optional<V>(*value);
    if (value.error().code == Code::kNotFound) return std::optional<V>();
    return tl::unexpected<Error>(std::move(value).error());
  }
  Status update(const K& key, const V& value, Update mode = Update::kAny) const {
    return fd_.update(bytes_of(key), bytes_of(value), mode);
  }
  Status erase(const K& key) const { return fd_.erase(bytes_of(key)); }

  Status update_batch(std::span<const K> keys, std::span<const V> values) const {
    SLUICE_ASSERT(keys.size() == values.size());
    return fd_.update_batch(std::as_bytes(keys), std::as_bytes(values), keys.size());
  }
  Result<std::vector<std::pair<K, V>>> entries() const {
    std::vector<std::pair<K, V>> all;
    SLUICE_CHECK(fd_.for_each([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      std::pair<K, V> entry;
      std::memcpy(&entry.first, key.data(), sizeof(K));
      std::memcpy(&entry.second, value.data(), sizeof(V));
      all.push_back(entry);
      return true;
    }));
    return all;
  }

 private:
  explicit Map(MapFd fd) : fd_(std::move(fd)) {}
  MapFd fd_;
};

// The memory of a BPF_F_MMAPABLE array. Element i starts at i * round_up(value_size, 8).
class MapMemory {
 public:
  static Result<MapMemory> map(const MapFd& array, bool writable);
  MapMemory(MapMemory&& other) noexcept;
  MapMemory& operator=(MapMemory&& other) noexcept;
  ~MapMemory();

  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // One aligned 8-byte access: programs see the old value or the new one. Release, so that they see what was written before;
  // acquire.
  void store_u64(std::size_t offset, std::uint64_t value);
  std::uint64_t load_u64(std::size_t offset) const;

 private:
  MapMemory(std::byte* data, std::size_t size, std::size_t mapped, bool writable)
      : data_(data), size_(size), mapped_(mapped), writable_(writable) {}
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;  // size_ rounded up to whole pages
  bool writable_ = false;
};

}  // namespace sluice::bpfio
