// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Fuzz target: the agent's request handlers, on the simulated kernel and store of tests/sim, with refusals and deaths in the
// middle. Whatever is asked, in whatever order: every answer is one a peer can read, no invariant of the host breaks, nothing
// is left undecided, and `down` takes everything back.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "agent/audit.h"
#include "agent/ecn.h"
#include "agent/engine.h"
#include "agent/sqlite_store.h"
#include "base/log.h"
#include "fuzz/inputs.pb.h"
#include "fuzz/proto_input.h"
#include "sim/sim_bundles.h"
#include "sim/sim_kernel.h"
#include "sim/sim_store.h"
#include "wire/error.h"

namespace sluice::fuzz {
namespace {

constexpr int kStepsMax = 12;
constexpr char kForeign[] = "cubic.1.0.0";
constexpr char kUsed[] = "cubic.2.0.0";
constexpr int kEvents = 20;

// What all inputs share and none changes.
struct World {
  World() {
    check_covers_api(*Step::descriptor(), Side::kRequest, {"DoctorRequest", "EcnProbeRequest"});  // they look at the machine
    init_log({LogLevel::kOff, LogFormat::kText, nullptr});
    folder = (std::filesystem::temp_directory_path() / "sluice-fuzz-XXXXXX").string();
    SLUICE_ASSERT(::mkdtemp(folder.data()) != nullptr);
    auto opened = agent::SqliteStore::open(folder + "/agent.db");
    SLUICE_ASSERT(opened.has_value());
    events = std::move(*opened);
    for (int i = 0; i < kEvents; ++i) {
      agent::EventRecord record;
      record.kind = "applied";
      record.severity = "info";
      SLUICE_ASSERT(events->add_event(record).has_value());
    }
  }
  ~World() {
    events.reset();
    std::filesystem::remove_all(folder);
  }
  sim::Bundles bundles;
  bundle::Catalog catalog = bundles.scan();
  std::string folder;
  std::unique_ptr<agent::SqliteStore> events;
};
World& world() {
  static World world;
  return world;
}

// A peer must be able to read it: protobuf refuses strings that are not UTF-8.
template <class T>
void judge_message(const T& message) {
  T read;
  SLUICE_ASSERT(read.ParseFromString(message.SerializeAsString()));
}
void judge_error(const Error& error) {
  SLUICE_ASSERT(!error.what.empty());
  SLUICE_ASSERT(error.code != Code::kInternal);
  if (error.code == Code::kInvalid) SLUICE_ASSERT(!error.remedy.empty());
  judge_message(wire::to_proto(error));
}
template <class T>
bool judge(const Result<T>& result) {
  if (result)
    judge_message(*result);
  else
    judge_error(result.error());
  return result.has_value();
}
void judge(const Status& status) {
  if (!status) judge_error(status.error());
}

class Host {
 public:
  Host() : kernel_(chaos_, 1), store_(chaos_) {
    chaos_.world = [this] { kernel_.churn(); };
    start();
  }

  void run(const Step& step) {
    const uint32_t point = step.dies_at() != 0 ? step.dies_at() : step.refused_at();
    if (point != 0) chaos_.arm(step.dies_at() != 0 ? sim::Chaos::Mode::kCrash : sim::Chaos::Mode::kFail, point);
    try {
      act(step);
    } catch (const sim::SimCrash&) {
      chaos_.disarm();
      start();
    }
    chaos_.disarm();
    SLUICE_ASSERT(kernel_.broken_invariant.empty());
  }

  void end() {
    start();
    kernel_.foreign_ccas.clear();
    kernel_.others.clear();
    kernel_.hook_full = false;
    for (auto& socket : kernel_.all_sockets()) socket.locked = false;
    SLUICE_ASSERT(engine_->down({}, quiet).has_value());
    SLUICE_ASSERT(!kernel_.anything_pinned() && !store_.journal_open());
    SLUICE_ASSERT(kernel_.sysctls() == sysctls_before_);
    for (const auto& socket : kernel_.all_sockets()) SLUICE_ASSERT(socket.map_id == 0);
    SLUICE_ASSERT(kernel_.broken_invariant.empty());
  }

 private:
  static void quiet(const v1::Progress& line) { judge_message(line); }

  void start() {
    engine_ = std::make_unique<agent::Engine>(kernel_, store_, clock_, [] { return world().catalog; }, agent::EngineOptions{});
    SLUICE_ASSERT(engine_->recover().has_value());
  }

  void act(const Step& step) {
    switch (step.act_case()) {
      case Step::kApply:
        if (judge(engine_->apply(step.apply(), quiet))) judge_in_force(step.apply().document());
        return;
      case Step::kDiff:
        judge(engine_->diff(step.diff()));
        return;
      case Step::kMigrate:
        judge(engine_->migrate(step.migrate(), quiet));
        return;
      case Step::kRollback:
        judge(engine_->rollback(step.rollback(), quiet));
        return;
      case Step::kDown:
        if (judge(engine_->down(step.down(), quiet))) SLUICE_ASSERT(!kernel_.anything_pinned());
        return;
      case Step::kStatus:
        judge(agent::status_report(*engine_, step.status().count_sockets()));
        return;
      case Step::kCcas:
        judge(agent::cca_report(*engine_, step.ccas().name()));
        return;
      case Step::kExplain:
        judge(agent::explain_report(*engine_, step.explain()));
        return;
      case Step::kSockets:
        judge(agent::socket_report(*engine_, step.sockets(), [](const v1::Sockets& batch) {
          judge_message(batch);
          return true;
        }));
        return;
      case Step::kAudit:
        judge(agent::audit_report(*engine_, !step.audit().skip_sockets()));
        return;
      case Step::kEcnProbes:
        judge(agent::ecn_report(*engine_, step.ecn_probes()));
        return;
      case Step::kEvents:
        judge_events(step.events());
        return;
      case Step::kWorld:
        return happen(step.world());
      case Step::ACT_NOT_SET:
        return;
    }
  }

  void happen(fuzz::World what) {
    switch (what) {
      case WORLD_RESTART:
        return start();
      case WORLD_MAINTAIN:
        if (const auto pending = engine_->maintain(); !pending) judge_error(pending.error());
        return;
      case WORLD_DETACH:
        return kernel_.detach_by_somebody();
      case WORLD_LISTEN:
        return kernel_.listen();
      case WORLD_LOCK:
        if (!kernel_.all_sockets().empty()) kernel_.all_sockets().back().locked = true;
        return;
      case WORLD_UNLOCK:
        for (auto& socket : kernel_.all_sockets()) socket.locked = false;
        return;
      case WORLD_FOREIGN_CCA:
        // A name in use cannot be registered a second time.
        for (const auto& [id, cca] : kernel_.ccas())
          if (cca.loaded.kernel_name == kForeign) return;
        kernel_.foreign_ccas = {kForeign};
        return;
      case WORLD_NO_FOREIGN_CCA:
        return kernel_.foreign_ccas.clear();
      case WORLD_OTHER_USER:
        kernel_.others[kUsed] = {{"netns 4026531840: sysctl net.ipv4.tcp_congestion_control"}};
        return;
      case WORLD_NO_OTHER_USER:
        return kernel_.others.clear();
      case WORLD_HOOK_FULL:
      case WORLD_HOOK_FREE:
        kernel_.hook_full = what == WORLD_HOOK_FULL;
        return;
      default:
        return;
    }
  }

  void judge_in_force(const std::string& document) {
    SLUICE_ASSERT(engine_->view()->desired.document == document);
    SLUICE_ASSERT(kernel_.generation() == engine_->view()->desired.generation && kernel_.hook());
    SLUICE_ASSERT(!store_.journal_open());
  }

  static void judge_events(const v1::EventsRequest& request) {
    const auto events = world().events->events(request.after_id(), request.limit());
    SLUICE_ASSERT(events.has_value());
    SLUICE_ASSERT(events->size() <= request.limit());
    for (const auto& event : *events) SLUICE_ASSERT(event.id > request.after_id());
  }

  sim::Chaos chaos_;
  FakeClock clock_;
  sim::SimKernel kernel_;
  sim::SimStore store_;
  const std::map<std::string, std::string> sysctls_before_ = kernel_.sysctls();
  std::unique_ptr<agent::Engine> engine_;
};

}  // namespace

const google::protobuf::Message& prototype() { return AgentScript::default_instance(); }

}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice::fuzz;
  AgentScript script;
  if (!read_input(data, size, script) || script.steps_size() > kStepsMax) return -1;
  Host host;
  for (const Step& step : script.steps()) host.run(step);
  host.end();
  return 0;
}
