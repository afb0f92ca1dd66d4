// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/object.h"

#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/file.h"
#include "base/strings.h"
#include "bpfio/kernel_btf.h"

namespace sluice::bpfio {
namespace {

// A log of the verifier's level 1 for a program near the limit of a million instructions. Untouched pages cost nothing.
constexpr std::size_t kVerifierLogBytes = std::size_t{16} << 20;

// libbpf prints why something failed and returns an errno only. The warnings of the call that is running on this thread are
// collected here; without a collector they are dropped.
class Warnings {
 public:
  Warnings() : outer_(std::exchange(current(), this)) {
    static std::once_flag installed;
    std::call_once(installed, [] { libbpf_set_print(&Warnings::print); });
  }
  ~Warnings() { current() = outer_; }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;

  // The first names the cause; those after it tell how the failure went up.
  std::string_view first() const { return lines_.empty() ? std::string_view() : std::string_view(lines_.front()); }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  static Warnings*& current() {
    thread_local Warnings* warnings = nullptr;
    return warnings;
  }

  static int print(libbpf_print_level level, const char* format, va_list arguments) {
    constexpr std::size_t kLinesMax = 64;
    Warnings* sink = current();
    if (level != LIBBPF_WARN || sink == nullptr || sink->lines_.size() >= kLinesMax) return 0;
    char line[1024];
    vsnprintf(line, sizeof(line), format, arguments);
    std::string_view text = trim(line);
    if (text.starts_with("libbpf: ")) text.remove_prefix(sizeof("libbpf: ") - 1);
    sink->lines_.emplace_back(text);
    return 0;
  }

  Warnings* outer_;
  std::vector<std::string> lines_;
};

Error with_cause(Error error, const Warnings& warnings) {
  if (!warnings.first().empty()) error.what += fmt::format(": {}", warnings.first());
  return error;
}

bpf_map* find_map(const bpf_object* object, const std::string& name) {
  return bpf_object__find_map_by_name(object, name.c_str());
}

// "prog 'NAME': BPF program load failed: ..." is the only place where libbpf tells which program it was.
std::string refused_program(const Warnings& warnings) {
  for (std::string_view line : warnings.lines()) {
    constexpr std::string_view kStart = "prog '";
    if (!line.starts_with(kStart) || line.find("load failed") == std::string_view::npos) continue;
    line.remove_prefix(kStart.size());
    return std::string(line.substr(0, line.find('\'')));
  }
  return {};
}

std::string file_part(std::string_view name) {
  std::string safe(name);
  for (char& c : safe)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.') c = '_';
  return safe;
}

bool is_code_or_state(std::string_view line) {
  // "12: (85) call bpf_...", "; source line @ file.c:3", "R0=scalar() R1=ctx()", "from 3 to 5: R0=...", "0: R1=ctx() R10=fp0"
  if (line.empty() || line[0] == ';') return true;
  if (line.starts_with("from ") && line.find(" to ") != std::string_view::npos) return true;
  std::size_t digits = line.find_first_not_of("0123456789");
  if (digits != 0 && digits != std::string_view::npos && line[digits] == ':') return true;
  return line[0] == 'R' && line.size() > 2 && std::isdigit(static_cast<unsigned char>(line[1])) &&
         line.substr(0, 4).find('=') != std::string_view::npos;
}

bool is_statistic(std::string_view line) {
  for (std::string_view start : {"processed ",
                                 "verification time ",
                                 "stack depth ",
                                 "max_states",
                                 "peak_states",
                                 "mark_read",
                                 "-- BEGIN",
                                 "-- END",
                                 "func#",
                                 "Func#",
                                 "Validating ",
                                 "mark_precise:",
                                 "last_idx ",
                                 "regs=",
                                 "parent ",
                                 "frame",
                                 "caller:",
                                 "callee:",
                                 "returning from callee",
                                 "to caller"})
    if (line.starts_with(start)) return true;
  return false;
}

// Names that the kernel gives maps of global data, ".rodata" and its like, are not the author's.
bool is_named_map(const bpf_map* map) { return !bpf_map__is_internal(map); }

}  // namespace

std::string last_verifier_line(std::string_view log) {
  auto lines = split(log, '\n');
  for (auto at = lines.rbegin(); at != lines.rend(); ++at) {
    std::string_view line = trim(*at);
    if (!is_code_or_state(line) && !is_statistic(line)) return std::string(line);
  }
  return {};
}

namespace {

// libbpf asks the kernel once for each feature it may use, takes a descriptor that it could not have for a no, and keeps the
// answer for as long as the process lives: later loads would fail whatever was freed. So nothing is loaded that might run out.
Status check_descriptors(const bpf_object* object) {
  std::size_t needed = 16;  // of libbpf's own questions, type information and inner maps
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object) needed++;
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, object) needed += 2;
  SLUICE_TRY(first, open_file("/dev/null", O_RDONLY));
  std::vector<UniqueFd> taken;
  while (taken.size() < needed) {
    SLUICE_TRY(next, duplicate(first.get()));
    taken.push_back(std::move(next));
  }
  return {};
}

}  // namespace

void Object::Close::operator()(bpf_object* object) const { bpf_object__close(object); }

Object::Object(bpf_object* object, std::string name) : object_(object), name_(std::move(name)) {
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, object) bpf_map__set_pin_path(map, nullptr);
}

Result<Object> Object::open_file(const std::string& path) {
  // Read here rather than by libbpf: an error of the file is then told from an error of its contents.
  SLUICE_TRY(bytes, read_file(path));
  std::string name = path.substr(path.rfind('/') + 1);
  name = name.substr(0, name.find('.'));
  auto object = open_memory(std::as_bytes(std::span(bytes)), name);
  if (!object) return fail(std::move(object).error().at(path));
  return object;
}

Result<Object> Object::open_memory(std::span<const std::byte> elf, const std::string& name) {
  Warnings warnings;
  LIBBPF_OPTS(bpf_object_open_opts, options);
  options.object_name = name.c_str();
  bpf_object* object = bpf_object__open_mem(elf.data(), elf.size(), &options);
  if (object == nullptr)
    return fail(with_cause(libbpf_error(errno, fmt::format("cannot read the BPF object {}", name)), warnings));
  return Object(object, name);
}

std::vector<std::string> Object::program_names() const {
  std::vector<std::string> names;
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object_.get()) names.emplace_back(bpf_program__name(program));
  return names;
}

std::vector<std::string> Object::map_names() const {
  std::vector<std::string> names;
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, object_.get()) if (is_named_map(map)) names.emplace_back(bpf_map__name(map));
  return names;
}

std::vector<std::string> Object::struct_ops_names() const {
  std::vector<std::string> names;
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, object_.get()) if (bpf_map__type(map) == BPF_MAP_TYPE_STRUCT_OPS)
      names.emplace_back(bpf_map__name(map));
  return names;
}

namespace {

tl::unexpected<Error> no_such(const char* kind, const std::string& name, const std::string& object) {
  return fail(Code::kNotFound, "the BPF object {} has no {} {}", object, kind, name);
}

Status checked(int err, std::string what) {
  if (err != 0) return fail(libbpf_error(err, std::move(what)));
  return {};
}

}  // namespace

Status Object::set_rodata(std::string_view variable, std::span<const std::byte> value) {
  const std::string name(variable);
  const btf* types = bpf_object__btf(object_.get());
  const std::int32_t section_id = types == nullptr ? -1 : btf__find_by_name_kind(types, ".rodata", BTF_KIND_DATASEC);
  if (section_id < 0) return no_such("constant", name, name_);
  const btf_type* section = btf__type_by_id(types, static_cast<__u32>(section_id));
  const btf_var_secinfo* variables = btf_var_secinfos(section);
  for (std::uint32_t i = 0; i < btf_vlen(section); i++) {
    const btf_type* candidate = btf__type_by_id(types, variables[i].type);
    if (name != btf__name_by_offset(types, candidate->name_off)) continue;
    if (variables[i].size != value.size())
      return fail(Code::kInvalid, "the constant {} of {} has {} bytes, not {}", name, name_, variables[i].size, value.size());
    bpf_map* map = nullptr;
    bpf_object__for_each_map(map, object_.get()) {
      // "<object, cut>.rodata"; ".rodata.str1.1" and the like are maps of their own.
      if (!bpf_map__is_internal(map) || !std::string_view(bpf_map__name(map)).ends_with(".rodata")) continue;
      std::size_t size = 0;
      auto* data = static_cast<std::byte*>(bpf_map__initial_value(map, &size));
      if (data == nullptr || variables[i].offset + value.size() > size) break;
      if (bpf_map__fd(map) >= 0) return fail(Code::kConflict, "{} is loaded already: {} is constant now", name_, name);
      std::memcpy(data + variables[i].offset, value.data(), value.size());
      return {};
    }
  }
  return no_such("constant", name, name_);
}

namespace {

// The bytes of tcp_congestion_ops.name in the object's initial value; empty if `map` is not such a map.
std::span<char> name_field(const bpf_object* object, const bpf_map* map) {
  if (bpf_map__type(map) != BPF_MAP_TYPE_STRUCT_OPS) return {};
  auto described = describe_type(bpf_object__btf(object), bpf_map__btf_value_type_id(map));
  const Member* name = described ? described->find("name") : nullptr;
  std::size_t size = 0;
  auto* data = static_cast<char*>(bpf_map__initial_value(map, &size));
  if (name == nullptr || data == nullptr || name->offset_bytes + name->size_bytes > size) return {};
  return {data + name->offset_bytes, name->size_bytes};
}

}  // namespace

Status Object::set_struct_ops_name(const std::string& map, std::string_view name) {
  bpf_map* found = find_map(object_.get(), map);
  if (found == nullptr) return no_such("map", map, name_);
  std::span<char> field = name_field(object_.get(), found);
  if (field.empty()) return fail(Code::kInvalid, "{} of {} is not a struct_ops map with a name", map, name_);
  if (bpf_map__fd(found) >= 0) return fail(Code::kConflict, "{} is loaded already: its name is fixed", name_);
  const bool plain =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; });
  if (name.empty() || !plain || name.size() >= field.size())
    return fail(Code::kInvalid, "\"{}\" cannot name a congestion control: 1 to {} characters of [A-Za-z0-9_.]", name,
                field.size() - 1);
  std::fill(field.begin(), field.end(), '\0');
  std::copy(name.begin(), name.end(), field.begin());
  return {};
}

Result<std::string> Object::struct_ops_name(const std::string& map) const {
  const bpf_map* found = find_map(object_.get(), map);
  if (found == nullptr) return no_such("map", map, name_);
  std::span<char> field = name_field(object_.get(), found);
  if (field.empty()) return fail(Code::kInvalid, "{} of {} is not a struct_ops map with a name", map, name_);
  return std::string(field.data(), ::strnlen(field.data(), field.size()));
}

Status Object::reuse_map(const std::string& map, const MapFd& existing) {
  bpf_map* found = find_map(object_.get(), map);
  if (found == nullptr) return no_such("map", map, name_);
  const MapInfo& info = existing.info();
  auto differs = [&](const char* what, auto wanted, auto is) -> Status {
    if (wanted == is) return {};
    return fail(Code::kConflict, "map {} (id {}) cannot stand for {} of {}: its {} is {}, not {}", info.name, info.id, map,
                name_, what, is, wanted);
  };
  SLUICE_CHECK(differs("type", to_string(static_cast<MapType>(bpf_map__type(found))), to_string(info.type)));
  SLUICE_CHECK(differs("key size", bpf_map__key_size(found), info.key_size));
  SLUICE_CHECK(differs("value size", bpf_map__value_size(found), info.value_size));
  SLUICE_CHECK(differs("set of flags", bpf_map__map_flags(found), info.flags));
  return checked(bpf_map__reuse_fd(found, existing.fd()),
                 fmt::format("cannot use map {} (id {}) in {}", info.name, info.id, name_));
}

Status Object::set_max_entries(const std::string& map, std::uint32_t max_entries) {
  bpf_map* found = find_map(object_.get(), map);
  if (found == nullptr) return no_such("map", map, name_);
  return checked(bpf_map__set_max_entries(found, max_entries), fmt::format("cannot size {} of {}", map, name_));
}

Status Object::set_value_size(const std::string& map, std::uint32_t bytes) {
  bpf_map* found = find_map(object_.get(), map);
  if (found == nullptr) return no_such("map", map, name_);
  return checked(bpf_map__set_value_size(found, bytes), fmt::format("cannot size the values of {} of {}", map, name_));
}

Status Object::set_autoload(const std::string& program, bool load) {
  bpf_program* found = bpf_object__find_program_by_name(object_.get(), program.c_str());
  if (found == nullptr) return no_such("program", program, name_);
  return checked(bpf_program__set_autoload(found, load), fmt::format("cannot choose {} of {}", program, name_));
}

Status Object::set_autocreate(const std::string& map, bool create) {
  bpf_map* found = find_map(object_.get(), map);
  if (found == nullptr) return no_such("map", map, name_);
  return checked(bpf_map__set_autocreate(found, create), fmt::format("cannot choose {} of {}", map, name_));
}

Result<MapSpec> Object::inner_spec(const std::string& outer_map) const {
  bpf_map* outer = find_map(object_.get(), outer_map);
  if (outer == nullptr) return no_such("map", outer_map, name_);
  const bpf_map* inner = bpf_map__inner_map(outer);
  if (inner == nullptr) return fail(Code::kInvalid, "{} of {} does not describe its inner maps", outer_map, name_);
  return MapSpec{static_cast<MapType>(bpf_map__type(inner)),
                 outer_map,
                 bpf_map__key_size(inner),
                 bpf_map__value_size(inner),
                 bpf_map__max_entries(inner),
                 bpf_map__map_flags(inner)};
}

Status Object::load(const LoadOptions& options) {
  SLUICE_CHECK(check_descriptors(object_.get()).map_error([&](Error e) {
    return std::move(e).within(fmt::format("cannot load {}", name_));
  }));
  Warnings warnings;
  auto log = std::unique_ptr<char, decltype(&std::free)>(static_cast<char*>(std::malloc(kVerifierLogBytes)), &std::free);
  if (!log) return fail_errno(ENOMEM, "cannot load {}", name_);
  log.get()[0] = '\0';
  bpf_program* program = nullptr;
  // libbpf asks for a log only when a load has failed, and stops at the first failure: the buffer holds that one's.
  bpf_object__for_each_program(program, object_.get()) bpf_program__set_log_buf(program, log.get(), kVerifierLogBytes);
  const int err = bpf_object__load(object_.get());
  bpf_object__for_each_program(program, object_.get()) bpf_program__set_log_buf(program, nullptr, 0);
  if (err == 0) return {};

  const std::string_view text(log.get(), ::strnlen(log.get(), kVerifierLogBytes));
  const std::string reason = last_verifier_line(text);
  if (reason.empty()) return fail(with_cause(libbpf_error(err, fmt::format("cannot load {}", name_)), warnings));

  const std::string refused = refused_program(warnings);
  Error error =
      fail(Code::kInvalid, "the kernel's verifier refuses {}: {}", refused.empty() ? "a program" : refused, reason).value();
  error.at(name_);
  error.sys_errno = -err;
  error.detail = text;
  if (!options.log_dir.empty()) {
    const std::string path = fmt::format("{}/verifier-{}-{}.log", options.log_dir, file_part(name_), file_part(refused));
    Status saved = make_dirs(options.log_dir);
    if (saved) saved = write_file_atomic(path, text);
    error.remedy = saved ? fmt::format("the verifier's log is in {}", path)
                         : fmt::format("the verifier's log could not be saved ({})", saved.error().message());
  }
  return fail(std::move(error));
}

Result<Program> Object::program(const std::string& program) const {
  const bpf_program* found = bpf_object__find_program_by_name(object_.get(), program.c_str());
  if (found == nullptr) return no_such("program", program, name_);
  const int fd = bpf_program__fd(found);
  if (fd < 0) return fail(Code::kNotFound, "the program {} of {} is not loaded", program, name_);
  SLUICE_TRY(copy, duplicate(fd));
  return Program::adopt(std::move(copy));
}

Result<MapFd> Object::map(const std::string& map) const {
  const bpf_map* found = find_map(object_.get(), map);
  if (found == nullptr) return no_such("map", map, name_);
  const int fd = bpf_map__fd(found);
  if (fd < 0) return fail(Code::kNotFound, "the map {} of {} is not loaded", map, name_);
  SLUICE_TRY(copy, duplicate(fd));
  return MapFd::adopt(std::move(copy));
}

Result<Link> Object::attach_struct_ops(const std::string& map) const {
  Warnings warnings;
  const bpf_map* found = find_map(object_.get(), map);
  if (found == nullptr) return no_such("map", map, name_);
  if (bpf_map__type(found) != BPF_MAP_TYPE_STRUCT_OPS || (bpf_map__map_flags(found) & kLinkFlag) == 0)
    return fail(fail(Code::kInvalid, "{} of {} is not a struct_ops map with a link", map, name_)
                    .value()
                    .fix("declare it with SEC(\".struct_ops.link\")"));
  bpf_link* link = bpf_map__attach_struct_ops(found);
  if (link == nullptr) {
    const int err = errno;
    const std::string cca = struct_ops_name(map).value_or(map);
    if (err == EEXIST)
      return fail(fail(Code::kConflict, "the name {} is registered already", cca)
                      .value()
                      .at(name_)
                      .fix("choose another name, or retire the other"));
    return fail(with_cause(libbpf_error(err, fmt::format("cannot register {}", cca)), warnings).at(name_));
  }
  // libbpf's own link object is put away without detaching; its descriptor is ours now.
  UniqueFd fd(bpf_link__fd(link));
  bpf_link__disconnect(link);
  bpf_link__destroy(link);
  return Link::adopt(std::move(fd));
}

Result<ValueType> Object::value_type(const std::string& map) const {
  const bpf_map* found = find_map(object_.get(), map);
  if (found == nullptr) return no_such("map", map, name_);
  const btf* types = bpf_object__btf(object_.get());
  if (types == nullptr)
    return fail(fail(Code::kUnsupported, "no type information").value().at(name_).fix("compile it with -g"));
  auto described = describe_type(types, bpf_map__btf_value_type_id(found));
  if (!described) return fail(std::move(described).error().at(fmt::format("map {} of {}", map, name_)));
  return described;
}

}  // namespace sluice::bpfio
