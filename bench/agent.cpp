// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "agent.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/paths.h"
#include "bundle/catalog.h"
#include "wire/error.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;
using test::Millis;
using test::Process;

constexpr auto kStartTimeout = std::chrono::seconds(30);
constexpr Millis kStopTimeout(30000);
constexpr int kReplyBytesMax = 64 << 20;
// Below gRPC's defaults of a second and more, which would be waited for at every start of the agent.
constexpr int kReconnect_ms = 5;

std::string build_dir() {
  std::error_code ec;
  return fs::read_symlink("/proc/self/exe", ec).parent_path().parent_path().string();
}

Status copy_bundle(const std::string& from, const std::string& to) {
  std::error_code ec;
  fs::create_directories(fs::path(to).parent_path(), ec);
  fs::copy(from, to, fs::copy_options::recursive, ec);
  if (ec) return fail(Code::kInternal, "cannot copy {} to {}: {}", from, to, ec.message());
  return {};
}

}  // namespace

std::string program(const std::string& name) { return build_dir() + "/bin/" + name; }
std::string build_file(const std::string& path) { return build_dir() + "/" + path; }
std::string netns_path(int netns_fd) { return fmt::format("/proc/{}/fd/{}", ::getpid(), netns_fd); }

Result<Workspace> Workspace::create() {
  std::string dir = "/tmp/sluice-bench-XXXXXX";
  if (::mkdtemp(dir.data()) == nullptr) return fail_errno(errno, "cannot make a folder {}", dir);
  Workspace workspace(dir);
  const bundle::Catalog built = bundle::Catalog::scan({build_file("bundles")});
  const bundle::Bundle* cubic = built.newest("cubic");
  const bundle::Bundle* policy = built.newest("policy");
  if (cubic == nullptr || policy == nullptr)
    return fail(
        make_error(Code::kNotFound, "the build has no bundles cubic and policy", "./dev build").at(build_file("bundles")));
  const std::string version = cubic->manifest.version.text();
  workspace.old_cubic_ = "cubic@" + version;
  const std::string fresh = workspace.bundles() + "/cubic/99.0.0";
  SLUICE_CHECK(copy_bundle(policy->folder, workspace.bundles() + "/policy/" + policy->manifest.version.text()));
  SLUICE_CHECK(copy_bundle(cubic->folder, workspace.bundles() + "/cubic/" + version));
  SLUICE_CHECK(copy_bundle(cubic->folder, fresh));
  SLUICE_TRY(manifest, read_file(fresh + "/bundle.yaml"));
  const std::string line = "\nversion: " + version;
  const auto at = manifest.find(line);
  if (at == std::string::npos) return fail(Code::kInternal, "bundle.yaml of cubic has no line 'version: {}'", version);
  manifest.replace(at, line.size(), "\nversion: 99.0.0");
  SLUICE_CHECK(write_file_atomic(fresh + "/bundle.yaml", manifest));
  return workspace;
}

Workspace::~Workspace() {
  std::error_code ec;
  if (!dir_.empty()) fs::remove_all(dir_, ec);
}

struct Agent::State {
  const test::Host& host;
  InstancePaths paths;
  std::vector<std::string> argv;
  std::string log;
  std::optional<Process> process;
  std::unique_ptr<v1::Agent::Stub> stub;

  Status start();
  // Reads a stream to its end and returns the last message.
  template <class Request>
  Result<v1::Progress> last(std::unique_ptr<grpc::ClientReader<v1::Progress>> (v1::Agent::Stub::*method)(grpc::ClientContext*,
                                                                                                         const Request&),
                            const Request& request) {
    grpc::ClientContext context;
    auto reader = (stub.get()->*method)(&context, request);
    v1::Progress progress, message;
    while (reader->Read(&message)) progress = message;
    if (const auto status = reader->Finish(); !status.ok()) return fail(wire::from_status(status, paths.socket));
    return progress;
  }
};

Status Agent::State::start() {
  SLUICE_TRY(started, host.spawn(argv, {.pipe_stdout = false, .merge_stderr = false}));
  process = std::move(started);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReplyBytesMax);
  for (const char* name :
       {GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS})
    arguments.SetInt(name, kReconnect_ms);
  // Or a new channel would share the old one's broken connection and its memory of failures.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto channel = grpc::CreateCustomChannel("unix:" + paths.socket, grpc::InsecureChannelCredentials(), arguments);
  stub = v1::Agent::NewStub(channel);
  const auto deadline = std::chrono::system_clock::now() + kStartTimeout;
  while (!channel->WaitForConnected(std::min(deadline, std::chrono::system_clock::now() + std::chrono::seconds(1)))) {
    if (auto ended = process->wait(Millis(0)); ended || std::chrono::system_clock::now() >= deadline)
      return fail(make_error(Code::kUnavailable,
                             ended ? fmt::format("sluiced ended with status {}", *ended) : "sluiced does not serve",
                             "its log: " + read_file(log).value_or("")));
  }
  return {};
}

Agent::Agent(std::unique_ptr<State> state) : state_(state.release()) {}

Result<Agent> Agent::start(const Workspace& workspace, const test::Host& host, const AgentOptions& options) {
  PathRoots roots;
  roots.run = workspace.dir() + "/run";
  roots.state = workspace.dir() + "/state";
  // The instance is part of the CCAs' kernel names, and their registry is the whole kernel's.
  SLUICE_TRY(paths, instance_paths(fmt::format("{}-{}", options.name, ::getpid()), roots));
  const std::string log = fmt::format("{}/{}.log", workspace.dir(), paths.instance);
  std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$@\" >>\"$0\" 2>&1", log};
  for (const std::string& word : {program("sluiced"), std::string("--foreground"), "--instance=" + paths.instance,
                                  "--socket=" + paths.socket, "--state-dir=" + paths.state_dir, "--pin-dir=" + paths.pin_dir,
                                  "--bundle-path=" + workspace.bundles(), "--cgroup=" + options.cgroup})
    argv.push_back(word);
  for (const std::string& path : options.namespaces) argv.push_back("--netns=" + path);
  SLUICE_CHECK(make_dirs(paths.run_dir));
  auto state = std::unique_ptr<State>(new State{host, paths, std::move(argv), log, std::nullopt, nullptr});
  SLUICE_CHECK(state->start());
  return Agent(std::move(state));
}

void Agent::Drop::operator()(State* state) const {
  const std::unique_ptr<State> owned(state);
  if (!state->stub) return;
  if (auto removed = state->last(&v1::Agent::Stub::Down, v1::DownRequest()); !removed)
    fmt::print(stderr, "bench: the policy could not be taken down: {}\n", removed.error().message());
  if (auto status = state->process->signal(SIGTERM); status) (void)state->process->wait(kStopTimeout);
}

Agent::~Agent() = default;

Status Agent::kill() {
  SLUICE_CHECK(state_->process->signal(SIGKILL));
  SLUICE_TRY(status, state_->process->wait(kStopTimeout));
  (void)status;
  return {};
}

Status Agent::resume() { return state_->start(); }

Result<v1::ApplyResult> Agent::apply(const std::string& document, bool migrate) {
  v1::ApplyRequest request;
  request.set_document(document);
  request.set_source_name("bench.yaml");
  request.set_no_migrate(!migrate);
  request.set_clear_rollbacks(true);
  SLUICE_TRY(progress, state_->last(&v1::Agent::Stub::Apply, request));
  return progress.applied();
}

Result<v1::MigrateResult> Agent::migrate() {
  SLUICE_TRY(progress, state_->last(&v1::Agent::Stub::Migrate, v1::MigrateRequest()));
  return progress.migrated();
}

Status Agent::down() {
  SLUICE_CHECK(state_->last(&v1::Agent::Stub::Down, v1::DownRequest()));
  SLUICE_TRY(status, state_->process->wait(kStopTimeout));
  return status == 0 ? Status{} : fail(Code::kInternal, "sluiced ended with status {} after `down`", status);
}

Result<std::vector<v1::Cca>> Agent::ccas() {
  grpc::ClientContext context;
  v1::CcasReply reply;
  if (const auto status = state_->stub->ListCcas(&context, v1::CcasRequest(), &reply); !status.ok())
    return fail(wire::from_status(status, state_->paths.socket));
  return std::vector<v1::Cca>(reply.ccas().begin(), reply.ccas().end());
}

Result<std::uint32_t> Agent::map_id(const std::string& bundle) {
  SLUICE_TRY(all, ccas());
  for (const v1::Cca& cca : all)
    if (cca.map_id() != 0 && cca.name() + "@" + cca.version() == bundle) return cca.map_id();
  return fail(Code::kNotFound, "{} is not registered", bundle);
}

Result<bpfio::PinRoot> Agent::pins() const { return bpfio::PinRoot::open(state_->paths.pin_dir); }

Result<Process> Agent::command(const std::vector<std::string>& words) const {
  std::vector<std::string> argv = {program("sluice"), "--socket", state_->paths.socket};
  argv.insert(argv.end(), words.begin(), words.end());
  return Process::exec(argv, {.pipe_stdout = true, .merge_stderr = true});
}

Result<double> Agent::timed_command(const std::vector<std::string>& words, Millis timeout) const {
  const auto start = std::chrono::steady_clock::now();
  SLUICE_TRY(process, command(words));
  SLUICE_TRY(output, process.read_all(timeout));
  SLUICE_TRY(status, process.wait(timeout));
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  if (status != 0) return fail(Code::kInternal, "sluice {} ended with status {}: {}", words.front(), status, output);
  return ms;
}

std::string document_for(const std::vector<std::string>& bundles, const std::string& use) {
  std::string text =
      "apiVersion: sluice/v1\nkind: Host\nplace: {region: eu, datacenter: eu1}\n"
      "topology:\n  - {prefix: 127.0.0.0/8, region: eu, datacenter: eu1}\n  - {prefix: 10.77.0.0/24, region: us}\nbundles:\n";
  for (const std::string& bundle : bundles) {
    const auto at = bundle.find('@');
    text += fmt::format("  - {{name: {}, version: {}}}\n", bundle.substr(0, at), bundle.substr(at + 1));
  }
  return text + fmt::format("transitional: \"{}\"\nrules:\n  - {{use: \"{}\"}}\n", bundles.front(), use);
}

}  // namespace sluice::bench
