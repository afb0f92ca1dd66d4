// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "harness/bpf_object.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

namespace sluice::test {
namespace {

// The end of libbpf's warnings of this thread, shown only with an error: the verifier's reason is the last line of its log.
thread_local std::string said;
constexpr std::size_t kSaidMax = 4096;

int remember(libbpf_print_level level, const char* format, va_list arguments) {
  if (level == LIBBPF_DEBUG) return 0;
  char* text = nullptr;
  const int length = ::vasprintf(&text, format, arguments);
  if (length < 0) return length;
  said += text;
  std::free(text);
  if (said.size() > kSaidMax) said.erase(0, said.size() - kSaidMax);
  return length;
}

// What libbpf says meanwhile goes with the error; it answers a negative errno.
template <class Call>
Status quietly(Call call, const std::string& doing) {
  auto before = libbpf_set_print(remember);
  said.clear();
  int err = -call();
  libbpf_set_print(before);
  if (err == 0) return {};
  Error error = fail_errno(err, "cannot {}", doing).value();
  error.detail = std::move(said);
  return fail(std::move(error));
}

}  // namespace

Result<BpfObject> BpfObject::open(const std::string& file) {
  std::string path = std::string(TEST_HARNESS_OBJECTS) + "/" + file;
  BpfObject object;
  auto open_file = [&] {
    object.object_ = bpf_object__open_file(path.c_str(), nullptr);
    return object.object_ == nullptr ? -errno : 0;
  };
  SLUICE_CHECK(quietly(open_file, "open BPF object " + path));
  return object;
}

Status BpfObject::load() {
  return quietly([this] { return bpf_object__load(object_); }, fmt::format("load BPF object {}", bpf_object__name(object_)));
}

BpfObject::BpfObject(BpfObject&& other) noexcept
    : object_(std::exchange(other.object_, nullptr)), mappings_(std::exchange(other.mappings_, {})) {}

BpfObject& BpfObject::operator=(BpfObject&& other) noexcept {
  std::swap(object_, other.object_);
  std::swap(mappings_, other.mappings_);
  return *this;
}

BpfObject::~BpfObject() {
  for (auto [start, size] : mappings_) ::munmap(start, size);
  bpf_object__close(object_);
}

Result<int> BpfObject::program(const std::string& name) const {
  bpf_program* program = bpf_object__find_program_by_name(object_, name.c_str());
  if (program == nullptr) return fail(Code::kNotFound, "no BPF program {} in {}", name, bpf_object__name(object_));
  return bpf_program__fd(program);
}

Result<bpf_map*> BpfObject::map(const std::string& name) const {
  bpf_map* found = bpf_object__find_map_by_name(object_, name.c_str());
  if (found == nullptr) return fail(Code::kNotFound, "no BPF map {} in {}", name, bpf_object__name(object_));
  return found;
}

Result<void*> BpfObject::memory(const std::string& section, std::size_t size) {
  SLUICE_TRY(found, map(section));
  if (bpf_map__value_size(found) < size)
    return fail(Code::kInternal, "section {} has {} bytes, {} expected", section, bpf_map__value_size(found), size);
  // libbpf 1.4 maps it only for skeletons; bpf_map__initial_value() is a private copy once the object is loaded.
  void* start = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, bpf_map__fd(found), 0);
  if (start == MAP_FAILED) return fail_errno(errno, "cannot map section {}", section);
  mappings_.emplace_back(start, size);
  return start;
}

Status BpfObject::clear_array(const std::string& name) const {
  SLUICE_TRY(found, map(name));
  std::vector<std::uint8_t> zero(bpf_map__value_size(found));
  for (std::uint32_t key = 0; key < bpf_map__max_entries(found); key++)
    if (int err = bpf_map__update_elem(found, &key, sizeof(key), zero.data(), zero.size(), BPF_ANY); err != 0)
      return fail_errno(-err, "cannot clear entry {} of map {}", key, name);
  return {};
}

}  // namespace sluice::test
