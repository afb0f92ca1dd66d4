// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// sluiced: the host agent. Options, start-up order, signals; everything else is in the engine.
#include <google/protobuf/util/json_util.h>
#include <grp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <iostream>
#include <mutex>
#include <thread>

#include "agent/doctor.h"
#include "agent/engine.h"
#include "agent/metrics.h"
#include "agent/real_kernel.h"
#include "agent/server.h"
#include "agent/sqlite_store.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/paths.h"
#include "bundle/catalog.h"
#include "net/systemd.h"

namespace sluice::agent {
namespace {

constexpr char kVersion[] = SLUICE_VERSION;
constexpr char kMetricsDefault[] = "127.0.0.1:9620";
constexpr int kExitState = 78;  // EX_CONFIG: systemd must not restart into the same corrupt state
constexpr std::chrono::seconds kMaintainEvery{5};
constexpr std::chrono::seconds kMaintainAtMost{300};
constexpr std::chrono::seconds kRetryAtMost{10};
constexpr rlim_t kDescriptorsMin = 65'536;  // one for each namespace, and more

struct Options {
  std::string instance;
  std::string socket, state_dir, pin_dir, cgroup, metrics, log_level = "info";
  std::vector<std::string> bundle_path, namespaces;
  bool foreground = false, reset_state = false, doctor = false, json = false;
};

std::string own_path() {
  auto path = read_link("/proc/self/exe");
  return path ? *path : "";
}

Result<UniqueFd> lock_instance(const std::string& state_dir) {
  SLUICE_CHECK(make_dirs(state_dir, 0700).map_error([](Error e) {
    return std::move(e).fix("run the agent as root, or give --state-dir");
  }));
  const std::string path = state_dir + "/lock";
  SLUICE_TRY(fd, open_file(path, O_RDWR | O_CREAT, 0600));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(make_error(Code::kConflict, "an agent is running already for this instance",
                           "use it, stop it first, or give this one another --instance")
                    .at(path));
  return fd;
}

Result<std::unique_ptr<SqliteStore>> open_store(const std::string& path, bool reset) {
  if (reset) {
    for (const char* suffix : {"", "-wal", "-shm"}) {
      const std::string from = path + suffix;
      if (::access(from.c_str(), F_OK) != 0) continue;
      const std::string to = fmt::format("{}.corrupt-{}{}", path, RealClock().wall_ns() / 1'000'000'000, suffix);
      if (::rename(from.c_str(), to.c_str()) != 0) return fail_errno(errno, "cannot set {} aside", from);
    }
  }
  return SqliteStore::open(path);
}

int report(const Error& error) {
  std::cerr << "sluiced: " << error.message() << "\n";
  return error.code == Code::kCorrupt ? kExitState : error_traits(error.code).exit_status;
}

int run_doctor(bool json) {
  const auto reply = doctor_report();
  int missing = 0;
  for (const auto& check : reply.checks()) missing += check.verdict() == "missing" || check.verdict() == "failed";
  if (json) {
    std::string text;
    google::protobuf::util::JsonPrintOptions print;
    print.preserve_proto_field_names = true;
    print.always_print_primitive_fields = true;
    if (!google::protobuf::util::MessageToJsonString(reply, &text, print).ok()) return 1;
    std::cout << text << "\n";
  } else {
    for (const auto& check : reply.checks()) {
      std::cout << fmt::format("{:<8} {:<26} {}\n", check.verdict(), check.name(), check.what());
      if (!check.remedy().empty()) std::cout << fmt::format("{:36}-> {}\n", "", check.remedy());
    }
  }
  return missing == 0 ? 0 : 3;
}

// maintain() in a thread of its own: a long walk must not keep the main thread from signals and the watchdog.
class Maintenance {
 public:
  explicit Maintenance(Engine& engine) : engine_(engine), thread_([this] { loop(); }) {}
  ~Maintenance() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

 private:
  void loop() {
    auto wait = kMaintainEvery;
    std::string last_error;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        if (wake_.wait_for(lock, wait, [this] { return ending_; })) return;
      }
      const auto pending = engine_.maintain();
      if (!pending && pending.error().message() != last_error) log_error("maintenance failed", pending.error());
      last_error = pending ? "" : pending.error().message();
      // What stays pending stays so for long (a locked route, a stranger's socket): look less and less often. What failed may
      // be mended from outside any time (a full hook, a cgroup that is made again).
      wait = pending && !*pending ? kMaintainEvery : std::min(wait * 2, pending ? kMaintainAtMost : kRetryAtMost);
    }
  }

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread thread_;
};

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max = std::max<rlim_t>(limit.rlim_max, kDescriptorsMin);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) log_debug("the descriptor limit could not be raised");
}

Result<int> serve(const Options& options) {
  SLUICE_TRY(paths, instance_paths(options.instance));
  const std::string socket = options.socket.empty() ? paths.socket : options.socket;
  const std::string state_dir = options.state_dir.empty() ? paths.state_dir : options.state_dir;
  const std::string pin_dir = options.pin_dir.empty() ? paths.pin_dir : options.pin_dir;
  if (::geteuid() != 0)
    return fail(
        make_error(Code::kPermission, "the agent loads BPF programs and needs root", "run it with sudo, or through systemd"));
  SLUICE_TRY(lock, lock_instance(state_dir));
  raise_descriptor_limit();

  const auto roots = options.bundle_path.empty() ? default_bundle_path(own_path()) : options.bundle_path;
  const auto scan = [roots] { return bundle::Catalog::scan(roots); };
  const bundle::Catalog catalog = scan();
  for (const auto& error : catalog.errors()) log_warning("a bundle cannot be used", error);
  const bundle::Bundle* policy = catalog.newest("policy");
  if (policy == nullptr) {
    std::string searched;
    for (const auto& root : roots) searched += (searched.empty() ? "" : ":") + root;
    return fail(make_error(Code::kNotFound, "bundle `policy`, the selection pipeline, is in none of the bundle folders",
                           "give --bundle-path DIR; the build puts bundles into build/PRESET/bundles")
                    .at(searched));
  }

  // Signals are read from a descriptor, so that nothing is interrupted half-way.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);  // a terminal that closes
  UniqueFd signal_fd(::signalfd(-1, &signals, SFD_CLOEXEC));
  if (!signal_fd.valid()) return fail_errno(errno, "cannot make a signalfd");

  RealClock clock;
  SLUICE_TRY(store, open_store(state_dir + "/agent.db", options.reset_state));
  RealKernelOptions kernel_options;
  kernel_options.pin_dir = pin_dir;
  kernel_options.log_dir = state_dir;
  kernel_options.cgroup = options.cgroup;
  kernel_options.namespaces = options.namespaces;
  SLUICE_TRY(kernel, RealKernel::open(kernel_options, *policy));

  EngineOptions engine_options;
  engine_options.instance = paths.instance == kDefaultInstance ? "" : paths.instance;
  engine_options.agent_version = kVersion;
  Engine engine(*kernel, *store, clock, scan, engine_options);
  SLUICE_CHECK(engine.recover());

  ServerOptions server_options;
  server_options.socket = socket;
  SLUICE_TRY(server, Server::start(engine, server_options));
  std::unique_ptr<Metrics> metrics;
  if (options.metrics.empty()) {
    // The default port is a convenience: an agent whose port is taken still serves.
    if (paths.instance == kDefaultInstance) {
      if (auto started = Metrics::start(engine, kMetricsDefault))
        metrics = std::move(*started);
      else
        log_warning("no metrics", started.error());
    }
  } else if (options.metrics != "off") {
    SLUICE_TRY(started, Metrics::start(engine, options.metrics));
    metrics = std::move(started);
  }

  const auto manager = net::ServiceManager::from_environment();
  bool told = true;
  const auto tell = [&](const Status& status) {  // a manager that does not read is spoken of once
    if (!status && told) log_warning("systemd could not be told", status.error());
    told = status.has_value();
  };
  tell(manager.ready("serving on " + socket));
  engine.event("started", "info", fmt::format("agent {} serves {} on kernel {}", kVersion, socket, kernel->release()));

  auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(kMaintainEvery);
  if (manager.watchdog()) wait = std::min(wait, std::chrono::duration_cast<std::chrono::milliseconds>(*manager.watchdog() / 2));
  pollfd fds[2] = {{signal_fd.get(), POLLIN, 0}, {server->finished_fd(), POLLIN, 0}};
  Maintenance maintenance(engine);
  while (true) {
    const int ready = ::poll(fds, 2, static_cast<int>(wait.count()));
    if (ready < 0 && errno != EINTR) return fail_errno(errno, "cannot wait for signals");
    if (ready > 0) break;
    tell(manager.alive());
  }
  tell(manager.stopping());
  engine.stop();
  log_info("stopping; what is pinned in the kernel stays");
  return 0;
}

int main_checked(int argc, char** argv) {
  Options options;
  CLI::App app{
      "sluiced: the Sluice host agent. Stopping it, or killing it, changes no connection: what it set up stays in the kernel.",
      "sluiced"};
  app.set_version_flag("--version", std::string("sluiced ") + kVersion);
  app.add_option("--instance", options.instance, "Name of this agent, where several share a kernel");
  app.add_option("--socket", options.socket, "Unix socket to serve (default /run/sluice/agent.sock)");
  app.add_option("--state-dir", options.state_dir, "Folder of the state database (default /var/lib/sluice)");
  app.add_option("--pin-dir", options.pin_dir, "Folder of the pins, on a bpffs (default /sys/fs/bpf/sluice/v1/INSTANCE)");
  app.add_option("--bundle-path", options.bundle_path, "Folder with NAME/VERSION/bundle.yaml; repeatable");
  app.add_option("--cgroup", options.cgroup, "cgroup2 folder whose sockets are managed (default: the root)");
  app.add_option("--netns", options.namespaces, "Manage only this network namespace (a path); repeatable (default: all)");
  app.add_option(
      "--metrics", options.metrics,
      std::string("HOST:PORT of the Prometheus endpoint, or off (default: ") + kMetricsDefault + " for the default instance)");
  app.add_option("--log-level", options.log_level, "debug, info, warning, error")->capture_default_str();
  app.add_flag("--foreground", options.foreground, "Log as text, also when stderr is not a terminal");
  app.add_flag("--reset-state", options.reset_state, "Set a corrupt state database aside and start with an empty one");
  app.add_flag("--doctor", options.doctor, "Report what this host can do, and end");
  std::string output = "table";
  app.add_option("--output", output, "With --doctor: table or json")->check(CLI::IsMember({"table", "json"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (options.doctor) return run_doctor(output == "json");

  LogOptions log;
  const auto level = parse_log_level(options.log_level);
  if (!level) return report(level.error());
  log.level = *level;
  log.format = options.foreground ? LogFormat::kText : LogFormat::kAuto;
  init_log(log);
  const auto status = serve(options);
  return status ? *status : report(status.error());
}

}  // namespace
}  // namespace sluice::agent

int main(int argc, char** argv) { return sluice::agent::main_checked(argc, argv); }
