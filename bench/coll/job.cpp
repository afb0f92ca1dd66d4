// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/job.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <map>
#include <optional>

#include "suite.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kToken = 0x0123456789abcdef;
constexpr std::uint64_t kSpin_ns = 500'000;  // a small call is over by then
constexpr std::uint64_t kPatience_ns = 60'000'000'000;

template <class T>
Result<T> in_host(const test::Host& host, const std::function<Result<T>()>& make) {
  std::optional<T> made;
  SLUICE_CHECK(host.call([&]() -> Status {
    SLUICE_TRY(value, make());
    made.emplace(std::move(value));
    return {};
  }));
  return std::move(*made);
}

Result<std::shared_ptr<coll::Interface>> attach(const test::Host& host, const std::string& name) {
  return in_host<std::shared_ptr<coll::Interface>>(host, [&] {
    return coll::Interface::attach(::if_nametoindex(name.c_str()), build_file("bundles/dispatch/1.0.0/dispatch.bpf.o"));
  });
}

}  // namespace

Result<std::unique_ptr<Job>> Job::start(const Wires& wires, const JobSpec& spec) {
  std::unique_ptr<Job> job(new Job);
  const auto members = static_cast<std::uint16_t>(wires.spec().members);
  job->members_.resize(members);
  for (unsigned s = 0; s < wires.spec().aggregators; s++) {
    const test::Host& center = wires.aggregator(s);
    SLUICE_TRY(center_port, (in_host<coll::UdpPort>(center, [] { return coll::UdpPort::open({}); })));
    coll::KernelAggregatorConfig config;
    config.object = build_file("bundles/aggregate/1.0.0/aggregate.bpf.o");
    sl_coll_job& about = config.aggregator.job;
    about.token = kToken;
    about.weight_sum = members;
    about.job = static_cast<std::uint16_t>(s + 1);
    about.members = about.contributors = members;
    about.incarnation = 1;
    about.window = spec.window;
    about.words = spec.words;
    about.port = htons(center_port.local().port);
    config.aggregator.dead_after_ns = kPatience_ns;
    for (unsigned i = 0; i < members; i++) {
      SLUICE_TRY(port,
                 (in_host<coll::UdpPort>(wires.member(i), [&] { return coll::UdpPort::open(wires.member_address(i, s)); })));
      sl_coll_member member{};
      member.port = htons(port.local().port);
      member.weight = 1;
      std::ranges::copy(port.local().ip, std::begin(member.addr));
      config.aggregator.members.push_back(member);
      coll::Address aggregator = wires.aggregator_address(i, s);
      aggregator.port = center_port.local().port;
      SLUICE_TRY(interface, attach(wires.member(i), fmt::format("eth{}", s)));
      SLUICE_TRY(stream, coll::KernelMember::start({.member = {.token = kToken,
                                                               .weight_sum = members,
                                                               .instance = i + 1,
                                                               .job = about.job,
                                                               .members = members,
                                                               .window = spec.window,
                                                               .words = spec.words,
                                                               .key = static_cast<std::uint8_t>(i),
                                                               .aggregator = aggregator},
                                                    .port = port.local().port,
                                                    .interface = interface,
                                                    .carried_bytes = spec.carried_bytes,
                                                    .object = build_file("bundles/member/1.0.0/member.bpf.o")}));
      job->members_[i].ports.push_back(std::move(port));
      job->members_[i].streams.push_back(std::move(stream));
    }
    std::map<std::string, std::shared_ptr<coll::Interface>> attached;
    for (unsigned i = 0; i < members; i++) {
      auto& interface = attached[wires.aggregator_interface(i)];
      if (!interface) {
        SLUICE_TRY(made, attach(center, wires.aggregator_interface(i)));
        interface = std::move(made);
      }
      config.interfaces.push_back(interface);
    }
    SLUICE_TRY(aggregator, (in_host<std::unique_ptr<coll::KernelAggregator>>(
                               center, [&] { return coll::KernelAggregator::start(config); })));
    job->ports_.push_back(std::move(center_port));
    job->aggregators_.push_back(std::move(aggregator));
  }
  return job;
}

Status Job::serve() {
  std::vector<coll::Station<coll::KernelAggregator>> stations;
  for (std::size_t s = 0; s < ports_.size(); s++) stations.push_back({&ports_[s], aggregators_[s].get()});
  return coll::drive(std::span<const coll::Station<coll::KernelAggregator>>(stations), RealClock(),
                     [this] { return stopped_.load(); });
}

Status JobMember::until_not(coll::Member::State state) {
  std::vector<coll::Station<coll::KernelMember>> stations;
  for (std::size_t s = 0; s < ports.size(); s++) stations.push_back({&ports[s], streams[s].get()});
  SLUICE_CHECK(coll::drive(
      std::span<const coll::Station<coll::KernelMember>>(stations), RealClock(),
      [&] { return std::ranges::none_of(streams, [&](const auto& stream) { return stream->state() == state; }); },
      now_ns() + kSpin_ns));
  for (const auto& stream : streams)
    if (stream->state() == coll::Member::State::kFailed) return tl::unexpected<Error>(stream->failure());
  return {};
}

Status JobMember::act(const std::function<Status(std::size_t stream, coll::Outbox&)>& begin, coll::Member::State until_not_in) {
  for (std::size_t s = 0; s < ports.size(); s++) {
    coll::Outbox out;
    SLUICE_CHECK(begin(s, out));
    SLUICE_CHECK(ports[s].send(out));
  }
  return until_not(until_not_in);
}

Status JobMember::join() {
  return act(
      [&](std::size_t s, coll::Outbox& out) -> Status {
        streams[s]->join(now_ns(), out);
        return {};
      },
      coll::Member::State::kJoining);
}

Status JobMember::leave() {
  return act(
      [&](std::size_t s, coll::Outbox& out) -> Status {
        streams[s]->leave(now_ns(), out);
        return {};
      },
      coll::Member::State::kLeaving);
}

Parts JobMember::memory(const Calls& calls) {
  const std::size_t words = calls.bytes / 4, count = streams.size();
  own_.resize(count);
  Parts parts;
  for (std::size_t s = 0; s < count; s++) {
    const std::size_t bytes = 4 * (words * (s + 1) / count - words * s / count);
    if (calls.floats) own_[s].resize(bytes);
    parts.push_back(calls.floats ? std::span(own_[s]) : streams[s]->values().first(bytes));
  }
  return parts;
}

Status JobMember::all_reduce(const Calls& calls) {
  const Parts parts = memory(calls);
  const sl_coll_dtype dtype = calls.floats ? SL_COLL_F32 : SL_COLL_I32;
  const auto begin = [&](std::size_t s, coll::Outbox& out) {
    return streams[s]->begin(
        {.op = SL_COLL_SUM, .dtype = dtype, .input = parts[s], .output = parts[s], .timeout_ns = kPatience_ns}, now_ns(), out);
  };
  SLUICE_CHECK(act(begin, coll::Member::State::kCalling));
  for (const auto& stream : streams)
    if (auto outcome = stream->take_outcome(); outcome && !*outcome) return *outcome;
  return {};
}

}  // namespace sluice::bench
