// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "base/log.h"

namespace sluice::agent {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  void add(const char* name, const char* help, MetricType type, double value, Labels labels = {}) {
    MetricFamily* family = nullptr;
    for (auto& existing : list_)
      if (existing.name == name) family = &existing;
    if (family == nullptr) {
      list_.push_back({name, help, type, {}});
      family = &list_.back();
    }
    ClientMetric metric;
    metric.label = std::move(labels);
    if (type == MetricType::Counter)
      metric.counter.value = value;
    else
      metric.gauge.value = value;
    family->metric.push_back(std::move(metric));
  }
  std::vector<MetricFamily> take() { return std::move(list_); }

 private:
  std::vector<MetricFamily> list_;
};

}  // namespace

std::vector<MetricFamily> metric_families(const v1::StatusReply& status) {
  Families families;
  families.add("sluice_up", "1 while the agent can read the kernel", MetricType::Gauge, 1);
  families.add("sluice_degraded", "1 while `sluice status` reports a problem", MetricType::Gauge, status.state() == "degraded");
  families.add("sluice_policy_revision", "Revision of the policy document", MetricType::Gauge,
               static_cast<double>(status.revision()));
  families.add("sluice_policy_generation", "Generation published in the kernel", MetricType::Gauge,
               static_cast<double>(status.generation()));
  families.add("sluice_rolled_back_versions", "Bundle versions replaced by the transitional CCA", MetricType::Gauge,
               status.rolled_back_size());
  // Summed over namespaces: a host may have thousands, and a label each would be a series each.
  struct Sum {
    uint64_t sockets = 0;
    double cwnd_segments = 0, srtt_us = 0;
  };
  std::map<std::array<std::string, 7>, Sum> sums;
  for (const auto& usage : status.usage()) {
    Sum& sum = sums[{usage.cca(), usage.version(), std::to_string(usage.map_id()), usage.locality(), usage.rule(),
                     usage.listener() ? "1" : "0", usage.current() ? "1" : "0"}];
    sum.sockets += usage.sockets();
    sum.cwnd_segments += usage.cwnd_mean_segments() * static_cast<double>(usage.sockets());
    sum.srtt_us += usage.srtt_mean_us() * static_cast<double>(usage.sockets());
  }
  for (const auto& [key, sum] : sums) {
    const Labels labels = {{"cca", key[0]},  {"version", key[1]},  {"map_id", key[2]}, {"locality", key[3]},
                           {"rule", key[4]}, {"listener", key[5]}, {"current", key[6]}};
    const auto sockets = static_cast<double>(sum.sockets);
    families.add("sluice_sockets", "TCP sockets by what they run", MetricType::Gauge, sockets, labels);
    if (key[5] == "1" || sum.sockets == 0) continue;
    families.add("sluice_cwnd_mean_segments", "Mean congestion window", MetricType::Gauge, sum.cwnd_segments / sockets, labels);
    families.add("sluice_srtt_mean_us", "Mean smoothed RTT, microseconds", MetricType::Gauge, sum.srtt_us / sockets, labels);
  }
  for (const auto& counter : status.counters())
    families.add("sluice_policy_events_total", "Events counted by the selection pipeline", MetricType::Counter,
                 static_cast<double>(counter.value()), {{"event", counter.name()}});
  const auto ours = std::ranges::count_if(status.hooks(), [](const auto& hook) { return hook.ours(); });
  families.add("sluice_hook_attached", "1 while our program is at its hook", MetricType::Gauge, ours > 0);
  families.add("sluice_hook_foreign_programs", "Programs of others on our cgroup's hook", MetricType::Gauge,
               static_cast<double>(status.hooks_size() - ours));
  for (const auto& repair : status.repairs())
    families.add("sluice_damage_total", "Damage by others that the agent found since it started", MetricType::Counter,
                 static_cast<double>(repair.found()), {{"kind", repair.kind()}});
  for (const auto& cca : status.ccas())
    for (const auto& counter : cca.counters())
      families.add("sluice_cca_events_total", "Events counted by a CCA", MetricType::Counter,
                   static_cast<double>(counter.value()),
                   {{"cca", cca.name()}, {"version", cca.version()}, {"event", counter.name()}});
  return families.take();
}

namespace {

class Collector final : public prometheus::Collectable {
 public:
  explicit Collector(Engine& engine) : engine_(engine) {}

  std::vector<MetricFamily> Collect() const override {
    const std::lock_guard lock(mutex_);
    const uint64_t now = engine_.clock().monotonic_ns();
    if (read_at_ns_ == 0 || now - read_at_ns_ > Metrics::kFreshMs * 1'000'000) {
      auto status = status_report(engine_, true);
      read_at_ns_ = now;
      if (status) {
        last_ = metric_families(*status);
      } else {
        log_warning("a scrape could not read the kernel", status.error());
        Families down;
        down.add("sluice_up", "1 while the agent can read the kernel", MetricType::Gauge, 0);
        last_ = down.take();
      }
    }
    return last_;
  }

 private:
  Engine& engine_;
  mutable std::mutex mutex_;
  mutable uint64_t read_at_ns_ = 0;
  mutable std::vector<MetricFamily> last_;
};

}  // namespace

class Metrics::Impl {
 public:
  Impl(Engine& engine, const std::string& address)
      : collector_(std::make_shared<Collector>(engine)), exposer_(address, /*num_threads=*/1) {
    exposer_.RegisterCollectable(collector_);
  }

 private:
  std::shared_ptr<Collector> collector_;
  prometheus::Exposer exposer_;
};

Metrics::Metrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Metrics::~Metrics() = default;

Result<std::unique_ptr<Metrics>> Metrics::start(Engine& engine, const std::string& address) {
  try {
    return std::unique_ptr<Metrics>(new Metrics(std::make_unique<Impl>(engine, address)));
  } catch (const std::exception& e) {
    return fail(make_error(Code::kUnavailable, fmt::format("the metrics endpoint cannot listen: {}", e.what()),
                           "give another --metrics HOST:PORT, or --metrics off")
                    .at(address));
  }
}

}  // namespace sluice::agent
