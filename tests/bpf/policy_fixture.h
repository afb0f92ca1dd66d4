// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bundle `policy` in the hands of a test: the object loaded with libbpf alone, maps filled by hand, hooks attached to a cgroup
// of the test's own, sockets in a network namespace of its own. Nothing is pinned, so all of it ends with the process.
#pragma once

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sluice/abi/policy.h>
#include <sluice/abi/report.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace sluice::test {

// A step of the set-up that has to work. Thrown, so that cgroups go with the stack; gtest makes a failure of it.
inline void must(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error("set-up failed: " + what + ": " + strerror(errno));
}

inline void run(const std::string& command) { must(std::system(command.c_str()) == 0, command); }

// A network namespace with 127/8, fd01::1 and fd02::1 on its loopback, which the process is in from now on.
inline void enter_new_netns() {
  must(unshare(CLONE_NEWNET) == 0, "unshare(CLONE_NEWNET)");
  run("ip link set lo up");
  for (const char* address : {"fd01::1", "fd02::1"}) run(std::string("ip -6 addr add ") + address + "/128 dev lo nodad");
}

class Cgroup {
 public:
  explicit Cgroup(const std::string& name) : Cgroup(std::filesystem::path(mount()) / name) {}
  Cgroup(const Cgroup& parent, const std::string& name) : Cgroup(parent.path_ / name) {}
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;
  ~Cgroup() {
    std::ofstream(std::filesystem::path(mount()) / "cgroup.procs") << getpid() << std::flush;  // in case we are still in it
    rmdir(path_.c_str());
  }

  void enter() const {
    std::ofstream procs(path_ / "cgroup.procs");
    procs << getpid() << std::flush;
    must(static_cast<bool>(procs), "enter " + path_.string());
  }
  static void enter_root() {
    std::ofstream procs(std::filesystem::path(mount()) / "cgroup.procs");
    procs << getpid() << std::flush;
    must(static_cast<bool>(procs), "leave the test's cgroup");
  }
  uint64_t id() const {
    struct stat info{};
    must(stat(path_.c_str(), &info) == 0, "stat " + path_.string());
    return info.st_ino;
  }
  int fd() const { return fd_.get(); }

 private:
  explicit Cgroup(std::filesystem::path path) : path_(std::move(path)) {
    must(mkdir(path_.c_str(), 0755) == 0, "mkdir " + path_.string());
    fd_ = UniqueFd(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  static std::string mount() {
    std::ifstream mounts("/proc/self/mounts");
    std::string device, where, type, rest;
    while (mounts >> device >> where >> type && std::getline(mounts, rest))
      if (type == "cgroup2") return where;
    must(false, "cgroup2 is not mounted");
    return {};
  }
  std::filesystem::path path_;
  UniqueFd fd_;
};

struct ObjectDeleter {
  void operator()(bpf_object* object) const { bpf_object__close(object); }
};
struct LinkDeleter {
  void operator()(bpf_link* link) const { bpf_link__destroy(link); }
};
using Object = std::unique_ptr<bpf_object, ObjectDeleter>;
using Link = std::unique_ptr<bpf_link, LinkDeleter>;

inline sl_prefix prefix(const std::string& text) {
  const auto slash = text.find('/');
  const std::string address = text.substr(0, slash);
  sl_prefix out{};
  out.prefix_len = static_cast<__u32>(std::stoi(text.substr(slash + 1)));
  if (address.find(':') != std::string::npos) {
    must(inet_pton(AF_INET6, address.c_str(), out.addr) == 1, text);
  } else {
    out.prefix_len += 96;
    out.addr[10] = out.addr[11] = 0xff;
    must(inet_pton(AF_INET, address.c_str(), out.addr + 12) == 1, text);
  }
  return out;
}

inline sl_place place(uint32_t id, uint16_t place_class, sl_locality locality) {
  return {id, place_class, static_cast<__u8>(locality), 0};
}

inline sl_verdict verdict(const std::string& cca, uint32_t rule, const std::string& fallback = "", uint16_t init_cwnd = 0,
                          uint32_t params = 0, uint32_t fallback_params = 0) {
  sl_verdict out{};
  strncpy(out.cca, cca.c_str(), sizeof(out.cca) - 1);
  strncpy(out.fallback, fallback.c_str(), sizeof(out.fallback) - 1);
  out.rule_id = rule;
  out.params = params;
  out.fallback_params = fallback_params;
  out.flags = fallback.empty() ? 0 : SL_VERDICT_NEEDS_ECN;
  out.init_cwnd_segments = init_cwnd;
  return out;
}

// One generation's tables.
struct Tables {
  std::vector<std::pair<sl_prefix, sl_place>> places = {};
  std::vector<std::pair<sl_prefix, sl_service_id>> sources = {};
  std::vector<std::pair<sl_service_key, sl_service_id>> services = {};
  std::vector<std::pair<sl_rule_key, sl_verdict>> rules = {};
  std::string listener_cca = "";
};

// The loaded object. CCA objects share its maps.
class PolicyObject {
 public:
  PolicyObject() {
    object_.reset(bpf_object__open_file(path("policy.bpf.o").c_str(), nullptr));
    must(object_ != nullptr, "open policy.bpf.o");
    must(bpf_object__load(object_.get()) == 0, "load policy.bpf.o");
    set_schema(SL_SCHEMA_POLICY, SL_SCHEMA_POLICY_VERSION);
    set_schema(SL_SCHEMA_SOCK, SL_SCHEMA_SOCK_VERSION);
    set_schema(SL_SCHEMA_HANDOVER, SL_SCHEMA_HANDOVER_VERSION);
  }

  static std::string path(const std::string& file) { return std::string(SLUICE_BUILD_DIR "/bundles/policy/1.0.0/") + file; }

  bpf_program* program(const char* name) const {
    bpf_program* found = bpf_object__find_program_by_name(object_.get(), name);
    must(found != nullptr, name);
    return found;
  }
  int map(const char* name) const {
    const int fd = bpf_object__find_map_fd_by_name(object_.get(), name);
    must(fd >= 0, name);
    return fd;
  }
  // Makes another object use our maps where the names agree.
  void share_maps(bpf_object* other) const {
    bpf_map* map;
    bpf_object__for_each_map(map, other) {
      if (const bpf_map* ours = bpf_object__find_map_by_name(object_.get(), bpf_map__name(map));
          ours && !bpf_map__is_internal(map))
        must(bpf_map__reuse_fd(map, bpf_map__fd(ours)) == 0, bpf_map__name(map));
    }
  }

  Link attach(const Cgroup& cgroup, const char* name = "sl_sockops") const {
    Link link(bpf_program__attach_cgroup(program(name), cgroup.fd()));
    must(link != nullptr, name);
    return link;
  }

  void set_schema(uint32_t which, uint32_t version) const {
    sl_schema_entry entry{};
    entry.version = version;
    must(bpf_map_update_elem(map("sl_schemas"), &which, &entry, BPF_ANY) == 0, "sl_schemas");
  }
  void set_cca_id(const std::string& name, uint32_t id) const {
    sl_cca_name key{};
    strncpy(key.name, name.c_str(), sizeof(key.name) - 1);
    must(bpf_map_update_elem(map("sl_cca_ids"), &key, &id, BPF_ANY) == 0, "sl_cca_ids");
  }
  void set_generation_entry(uint64_t generation, const sl_generation& entry) const {
    const auto slot = static_cast<uint32_t>(generation % SL_SLOTS);
    must(bpf_map_update_elem(map("sl_generations"), &slot, &entry, BPF_ANY) == 0, "sl_generations");
  }
  void set_config(uint64_t generation) const {
    const uint32_t zero = 0;
    const sl_config config{generation};
    must(bpf_map_update_elem(map("sl_config"), &zero, &config, BPF_ANY) == 0, "sl_config");
  }

  // Publishes `tables` as the next generation, in the order that sluice/abi/policy.h prescribes; returns its number.
  uint64_t publish(const Tables& tables) {
    const uint64_t generation = ++generation_;
    set_generation_entry(generation, {});
    fill("sl_places", BPF_MAP_TYPE_LPM_TRIE, generation, tables.places);
    fill("sl_sources", BPF_MAP_TYPE_LPM_TRIE, generation, tables.sources);
    fill("sl_services", BPF_MAP_TYPE_HASH, generation, tables.services);
    fill("sl_rules", BPF_MAP_TYPE_HASH, generation, tables.rules);
    sl_generation entry{};
    entry.generation = generation;
    if (!tables.sources.empty()) entry.flags |= SL_GEN_SOURCES;
    for (const auto& [key, id] : tables.services) entry.flags |= key.kind == SL_SERVICE_PORT ? SL_GEN_PORTS : SL_GEN_CGROUPS;
    strncpy(entry.listener_cca, tables.listener_cca.c_str(), sizeof(entry.listener_cca) - 1);
    set_generation_entry(generation, entry);
    set_config(generation);
    return generation;
  }
  uint64_t generation() const { return generation_; }

  uint64_t counter(sl_policy_counter which) const {
    std::vector<uint64_t> per_cpu(static_cast<size_t>(libbpf_num_possible_cpus()));
    const uint32_t key = which;
    must(bpf_map_lookup_elem(map("sl_policy_counters"), &key, per_cpu.data()) == 0, "sl_policy_counters");
    uint64_t sum = 0;
    for (const uint64_t value : per_cpu) sum += value;
    return sum;
  }

  std::optional<sl_sock> storage(int socket) const {
    sl_sock value{};
    if (bpf_map_lookup_elem(map("sl_sock"), &socket, &value) != 0) return std::nullopt;
    return value;
  }

  void set_args(sl_iter_kind kind, uint32_t flags, uint32_t only_map_id = 0) const {
    const uint32_t key = kind;
    const sl_iter_args args{flags, only_map_id};
    must(bpf_map_update_elem(map("sl_iter_args"), &key, &args, BPF_ANY) == 0, "sl_iter_args");
  }

  // Runs an iterator in the current network namespace and returns its records.
  template <class Record>
  std::vector<Record> iterate(const char* name, size_t read_size = 65536) const {
    return iterate<Record>(program(name), nullptr, read_size);
  }
  template <class Record>
  static std::vector<Record> iterate(bpf_program* program, const bpf_iter_attach_opts* options, size_t read_size = 65536) {
    const Link link(bpf_program__attach_iter(program, options));
    must(link != nullptr, "attach iterator");
    const UniqueFd iter(bpf_iter_create(bpf_link__fd(link.get())));
    must(iter.get() >= 0, "bpf_iter_create");
    std::string bytes;
    std::vector<char> buffer(read_size);
    for (;;) {
      const ssize_t n = read(iter.get(), buffer.data(), buffer.size());
      if (n == 0) break;
      if (n < 0 && errno == EAGAIN) continue;
      must(n > 0, "read iterator");
      bytes.append(buffer.data(), static_cast<size_t>(n));
    }
    must(bytes.size() % sizeof(Record) == 0, "whole records");
    std::vector<Record> records(bytes.size() / sizeof(Record));
    if (!records.empty()) memcpy(records.data(), bytes.data(), bytes.size());
    return records;
  }

 private:
  template <class Key, class Value>
  void fill(const char* name, bpf_map_type type, uint64_t generation, const std::vector<std::pair<Key, Value>>& entries) {
    bpf_map_create_opts options{};
    options.sz = sizeof(options);
    options.map_flags = type == BPF_MAP_TYPE_LPM_TRIE ? BPF_F_NO_PREALLOC : 0;
    const auto size = static_cast<uint32_t>(std::max<size_t>(entries.size(), 1));
    const UniqueFd inner(bpf_map_create(type, name, sizeof(Key), sizeof(Value), size, &options));
    must(inner.get() >= 0, name);
    for (const auto& [key, value] : entries) must(bpf_map_update_elem(inner.get(), &key, &value, BPF_NOEXIST) == 0, name);
    const auto slot = static_cast<uint32_t>(generation % SL_SLOTS);
    const int fd = inner.get();
    must(bpf_map_update_elem(map(name), &slot, &fd, BPF_ANY) == 0, name);
  }

  Object object_;
  uint64_t generation_ = 0;
};

// The CCAs of policy_cca.bpf.c, loaded but not registered; names carry the process id.
class CcaObject {
 public:
  explicit CcaObject(const PolicyObject& policy) {
    object_.reset(bpf_object__open_file(SLUICE_BUILD_DIR "/tests/bpf/policy_cca.o", nullptr));
    must(object_ != nullptr, "open policy_cca.o");
    policy.share_maps(object_.get());
    rename("slt_plain", plain_name());
    rename("slt_ecn", ecn_name());
    must(bpf_object__load(object_.get()) == 0, "load policy_cca.o");
  }
  static std::string plain_name() { return "sltp" + std::to_string(getpid()); }
  static std::string ecn_name() { return "slte" + std::to_string(getpid()); }

  bpf_map* map(const char* name) const { return bpf_object__find_map_by_name(object_.get(), name); }
  uint32_t map_id(const char* name) const {
    bpf_map_info info{};
    uint32_t size = sizeof(info);
    must(bpf_map_get_info_by_fd(bpf_map__fd(map(name)), &info, &size) == 0, name);
    return info.id;
  }
  Link attach(const char* name) const {
    Link link(bpf_map__attach_struct_ops(map(name)));
    must(link != nullptr, name);
    return link;
  }
  // A global variable of the object.
  template <class Value>
  Value global(const char* section_name, const char* variable) const {
    std::vector<char> data(bpf_map__value_size(map(section_name)));
    const uint32_t zero = 0;
    must(bpf_map_lookup_elem(bpf_map__fd(map(section_name)), &zero, data.data()) == 0, section_name);
    const btf* types = bpf_object__btf(object_.get());
    const btf_type* section =
        btf__type_by_id(types, static_cast<__u32>(btf__find_by_name_kind(types, section_name, BTF_KIND_DATASEC)));
    for (int i = 0; i < btf_vlen(section); ++i) {
      const btf_var_secinfo& var = btf_var_secinfos(section)[i];
      if (std::string(variable) != btf__name_by_offset(types, btf__type_by_id(types, var.type)->name_off)) continue;
      Value value;
      memcpy(&value, data.data() + var.offset, sizeof(value));
      return value;
    }
    must(false, variable);
    return {};
  }

 private:
  void rename(const char* map_name, const std::string& name) const {
    const btf* types = bpf_object__btf(object_.get());
    const btf_type* ops =
        btf__type_by_id(types, static_cast<__u32>(btf__find_by_name_kind(types, "tcp_congestion_ops", BTF_KIND_STRUCT)));
    size_t size = 0;
    auto* value = static_cast<char*>(bpf_map__initial_value(map(map_name), &size));
    for (int i = 0; i < btf_vlen(ops); ++i) {
      const btf_member& member = btf_members(ops)[i];
      if (std::string("name") != btf__name_by_offset(types, member.name_off)) continue;
      memset(value + member.offset / 8, 0, SL_CCA_NAME_LEN);
      memcpy(value + member.offset / 8, name.c_str(), std::min<size_t>(name.size(), SL_CCA_NAME_LEN - 1));
    }
  }
  Object object_;
};

// ---- sockets -----------------------------------------------------------------------------------------------------------

enum class Ip { kV4, kV6, kMapped };

struct Address {
  sockaddr_in6 bytes{};
  socklen_t size = 0;
  int family = AF_INET;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  uint16_t port() const { return ntohs(bytes.sin6_port); }  // sin_port is at the same place
};

// Host 1 is the client (127.1.0.1, fd01::1), host 2 the server (127.2.0.1, fd02::1).
inline Address address(Ip ip, int host, uint16_t port) {
  Address out;
  if (ip == Ip::kV4) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&out.bytes);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    v4->sin_addr.s_addr = htonl(0x7f000001u | static_cast<uint32_t>(host) << 16);
    out.size = sizeof(*v4);
    return out;
  }
  const std::string host_text = std::to_string(host);
  out.family = out.bytes.sin6_family = AF_INET6;
  out.bytes.sin6_port = htons(port);
  const std::string text = ip == Ip::kV6 ? "fd0" + host_text + "::1" : "::ffff:127." + host_text + ".0.1";
  must(inet_pton(AF_INET6, text.c_str(), &out.bytes.sin6_addr) == 1, text);
  out.size = sizeof(out.bytes);
  return out;
}

inline UniqueFd tcp_socket(int family, int type = 0, int protocol = IPPROTO_TCP) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | type, protocol));
  must(fd.get() >= 0, "socket");
  return fd;
}

// The kernel makes a cookie when it is first asked for; sockets of tests have theirs from the start, so that records can be
// told apart by it.
inline uint64_t cookie_of(const UniqueFd& fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  must(getsockopt(fd.get(), SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0, "SO_COOKIE");
  return cookie;
}

struct Listener {
  explicit Listener(Ip family = Ip::kV4, uint16_t port = 0, int protocol = IPPROTO_TCP) : ip(family) {
    Address at = address(ip, 2, port);
    fd = tcp_socket(at.family, 0, protocol);
    const int on = 1;
    must(setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0, "SO_REUSEADDR");
    must(bind(fd.get(), at.get(), at.size) == 0, "bind listener");
    must(listen(fd.get(), 4096) == 0, "listen");
    must(getsockname(fd.get(), at.get(), &at.size) == 0, "getsockname");
    cookie_of(fd);
    where = at;
  }
  UniqueFd accept() const {
    UniqueFd accepted(accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    must(accepted.get() >= 0, "accept");
    return accepted;
  }
  Ip ip;
  UniqueFd fd;
  Address where;
};

struct Connection {
  // `subnet`: the client is 127.1.SUBNET.1, for more connections than one address has ports (IPv4).
  explicit Connection(const Listener& listener, int protocol = IPPROTO_TCP, uint8_t subnet = 0) {
    Address from = address(listener.ip, 1, 0), to = listener.where;
    if (listener.ip == Ip::kV4) reinterpret_cast<sockaddr_in*>(&from.bytes)->sin_addr.s_addr |= htonl(uint32_t{subnet} << 8);
    client = tcp_socket(from.family, 0, protocol);
    must(bind(client.get(), from.get(), from.size) == 0, "bind client");
    must(connect(client.get(), to.get(), to.size) == 0, "connect");
    server = listener.accept();
    cookie_of(client);
    cookie_of(server);
  }
  UniqueFd client, server;
};

inline std::string cca_of(const UniqueFd& fd) {
  char name[SL_CCA_NAME_LEN] = {};
  socklen_t size = sizeof(name);
  must(getsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0, "TCP_CONGESTION");
  return name;
}
inline tcp_info info_of(const UniqueFd& fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  must(getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0, "TCP_INFO");
  return info;
}
inline bool has_ecn(const UniqueFd& fd) { return info_of(fd).tcpi_options & TCPI_OPT_ECN; }

}  // namespace sluice::test
