// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// CCAs in the hands of a test: objects on the SDK loaded under a name of the test's own and registered while the object lives,
// and the trace of a sender's window (cca_trace.bpf.c).
#pragma once

#include <bpf/libbpf.h>
#include <sluice/abi/cca.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bpf/cca_path.h"
#include "bpf/cca_trace.h"
#include "bpf/policy_fixture.h"
#include "bpfio/object.h"
#include "harness/assert.h"

namespace sluice::test {

enum : std::uint32_t { kOpen = 0, kDisorder = 1, kCwr = 2, kRecovery = 3, kLoss = 4 };  // enum tcp_ca_state

// 2000 segments a second and 20 ms: 40 segments in flight, then a queue.
inline const PathSpec kLine = {.one_way_us = 10000, .rate_bytes_per_s = 3000000};

// One rule, for everything; with `self`, CCAs move their sockets themselves. Returns the generation.
inline std::uint64_t publish_for_all(PolicyObject& policy, const sl_verdict& verdict, bool self = true) {
  const std::uint64_t generation = policy.publish({.rules = {{{0, 0}, verdict}}});
  if (self) policy.set_generation_entry(generation, {generation, SL_GEN_SELF_MIGRATE, 0, {}});
  return generation;
}

// A CCA's object, loaded and registered.
class Cca {
 public:
  struct Spec {
    std::string file;         // absolute, or below the build directory
    std::string struct_ops;   // which of its struct_ops maps
    std::string suffix = "";  // tells several of one test apart
    std::function<void(bpfio::Object&)> configure = {};
    const PolicyObject* policy = nullptr;  // shares its maps
  };
  static constexpr const char* kCubic = "bundles/cubic/1.0.0/cubic.bpf.o";
  static constexpr const char* kDctcp = "bundles/dctcp/1.0.0/dctcp.bpf.o";

  static Spec cubic(const PolicyObject* policy, const std::string& suffix = "a") {
    return {.file = kCubic, .struct_ops = "cubic", .suffix = suffix, .policy = policy};
  }
  static Spec dctcp(const PolicyObject* policy, const std::string& suffix = "d") {
    return {.file = kDctcp, .struct_ops = "dctcp", .suffix = suffix, .policy = policy};
  }

  explicit Cca(const Spec& spec)
      : name_("slt" + std::to_string(getpid()) + spec.suffix), object_(must(bpfio::Object::open_file(path(spec.file)))) {
    for (const std::string& map : object_.struct_ops_names())
      if (map != spec.struct_ops) must(object_.set_autocreate(map, false));
    must(object_.set_struct_ops_name(spec.struct_ops, name_));
    char self[SL_CCA_NAME_LEN] = {};
    name_.copy(self, sizeof(self) - 1);
    must(object_.set_rodata(SL_NAME_SELF, self));
    if (spec.policy != nullptr)
      for (const char* map : {"sl_config", "sl_generations", "sl_places", "sl_sources", "sl_services", "sl_rules", "sl_sock",
                              "sl_handover", "sl_schemas", "sl_cca_ids", "sl_policy_counters"})
        must(object_.reuse_map(map, must(bpfio::MapFd::adopt(UniqueFd(::dup(spec.policy->map(map)))))));
    if (spec.configure) spec.configure(object_);
    must(object_.load());
    link_ = must(object_.attach_struct_ops(spec.struct_ops));
  }

  static std::string path(const std::string& file) { return file.starts_with('/') ? file : SLUICE_BUILD_DIR "/" + file; }
  const std::string& name() const { return name_; }
  bpfio::Object& object() { return object_; }

  std::uint64_t count(std::uint32_t which) const {
    return must(bpfio::sum_per_cpu(must(object_.map(SL_NAME_COUNTERS))))[which];
  }
  // Writes parameter set 0 in the order of the struct; sl_present comes first.
  void set_params(const std::vector<std::uint64_t>& values) const {
    const bpfio::MapFd map = must(object_.map(SL_NAME_PARAMS));
    must(map.info().value_size == values.size() * 8, "number of parameters");
    const std::uint32_t zero = 0;
    must(map.update(bpfio::bytes_of(zero), std::as_bytes(std::span(values))));
  }

 private:
  std::string name_;
  bpfio::Object object_;
  std::optional<bpfio::Link> link_;
};

// What the sender's window did so far.
class Trace {
 public:
  using Event = cca_trace_event;

  explicit Trace(const Path& path, std::uint32_t private_offset = ~0U)
      : object_(must(bpfio::Object::open_file(SLUICE_BUILD_DIR "/tests/bpf/cca_trace.o"))) {
    must(object_.set_rodata("watched_port", Path::kPort));
    must(object_.set_rodata("watched_netns", path.netns_inode()));
    must(object_.set_rodata("private_offset", private_offset));
    must(object_.load());
    for (const std::string& name : object_.program_names()) {
      const int fd = bpf_raw_tracepoint_open(nullptr, must(object_.program(name)).fd());
      must(fd >= 0, "attach " + name);
      links_.emplace_back(fd);
    }
    ring_.reset(ring_buffer__new(must(object_.map("trace")).fd(), &Trace::take, this, nullptr));
    must(ring_ != nullptr, "ring_buffer__new");
  }

  const std::vector<Event>& events() const { return events_; }
  // Events that found no room.
  std::uint64_t lost() const {
    const std::uint32_t zero = 0;
    std::uint64_t events = 0;  // the object's only global without an initial value
    must(bpf_map_lookup_elem(must(object_.map(".bss")).fd(), &zero, &events) == 0, "lost_events");
    return events;
  }
  // Follows the trace until `done` says so; false after `limit`. Woken by events.
  bool until(const std::function<bool(const std::vector<Event>&)>& done,
             std::chrono::seconds limit = std::chrono::seconds(60)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!done(events_)) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      ring_buffer__poll(ring_.get(), 100);
    }
    return true;
  }
  // Each change to that state.
  std::vector<Event> changes_to(std::uint32_t state) const {
    std::vector<Event> out;
    for (const Event& e : events_)
      if (is_change_to(e, state)) out.push_back(e);
    return out;
  }
  // The first one.
  std::optional<Event> entered(std::uint32_t state) const {
    for (const Event& e : events_)
      if (is_change_to(e, state)) return e;
    return std::nullopt;
  }
  // The first ACK at or after a time; its cwnd is what the sender has then, before the ACK counts.
  const Event* at(std::uint64_t time_ns) const {
    for (const Event& e : events_)
      if (e.kind == CCA_TRACE_ACK && e.time_ns >= time_ns) return &e;
    return nullptr;
  }

 private:
  struct RingFree {
    void operator()(ring_buffer* ring) const { ring_buffer__free(ring); }
  };
  static bool is_change_to(const Event& e, std::uint32_t state) {
    return e.kind == CCA_TRACE_STATE && e.new_state == state && e.state != state;
  }
  static int take(void* self, void* data, std::size_t) {
    static_cast<Trace*>(self)->events_.push_back(*static_cast<const Event*>(data));
    return 0;
  }

  bpfio::Object object_;
  std::vector<UniqueFd> links_;
  std::vector<Event> events_;
  std::unique_ptr<ring_buffer, RingFree> ring_;
};

}  // namespace sluice::test
