// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "netns/agent_fixture.h"

#include <bpf/bpf.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

const std::string kPrograms = SLUICE_BUILD_DIR "/bin/";
const std::string kBundles = SLUICE_BUILD_DIR "/bundles";
const std::string kObjects = SLUICE_BUILD_DIR "/tests/netns";
constexpr char kTrafficSeconds[] = "1200";  // an upper bound; it ends when its owner does
constexpr char kBpffs[] = "/sys/fs/bpf";
constexpr Millis kCommand{60000};  // a change of everything, on a slow guest

// First parts of the addresses of each Where; hosts a, b, c end in 1, 2, 3.
constexpr std::pair<Where, const char*> kNetworks[] = {
    {Where::kNear, "10.1.0."},    {Where::kFar, "10.2.0."},  {Where::kExternal, "10.3.0."},
    {Where::kUnknown, "10.9.0."}, {Where::kNear6, "fd01::"}, {Where::kFar6, "fd02::"},
};

std::string with_port(const std::string& address, std::uint16_t port) {
  return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port) : fmt::format("[{}]:{}", address, port);
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail_errno(errno, "cannot read {}", path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

void PrivateBpffs::SetUp() {
  ASSERT_EQ(::unshare(CLONE_NEWNS), 0) << std::strerror(errno);
  ASSERT_EQ(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0) << std::strerror(errno);
  ASSERT_EQ(::mount("bpf", kBpffs, "bpf", 0, nullptr), 0) << std::strerror(errno);
}

std::string address(const std::string& host, Where where) {
  for (const auto& [place, network] : kNetworks)
    if (place == where) return network + std::to_string(host.at(0) - 'a' + 1);
  panic("no such place", __FILE__, __LINE__);
}

Where where_is(const std::string& address) {
  for (const auto& [place, network] : kNetworks)
    if (address.starts_with(network)) return place;
  panic("an address of nobody", __FILE__, __LINE__);
}

TopologySpec world_spec() {
  TopologySpec spec;
  LinkSpec link;
  link.a.host = "a";
  link.b.host = "b";
  for (const Where where : kEverywhere)
    for (LinkEnd* end : {&link.a, &link.b}) end->addresses.push_back(address(end->host, where) + "/8");
  for (const char* name : {"a", "b"})
    spec.hosts.push_back({.name = name, .sysctls = {{"net.ipv4.tcp_congestion_control", kFallback}}});
  spec.links.push_back(link);
  spec.bind_names = true;
  return spec;
}

const std::string& Uses::of(Where where) const {
  switch (where) {
    case Where::kNear:
    case Where::kNear6:
      return near;
    case Where::kFar:
    case Where::kFar6:
      return far;
    case Where::kExternal:
      return external;
    case Where::kUnknown:
      return unknown;
  }
  panic("no such place", __FILE__, __LINE__);
}

std::string Policy::document() const {
  std::string text =
      "apiVersion: sluice/v1\n"
      "kind: Host\n"
      "place: {region: eu, datacenter: eu1, rack: r1}\n"
      "topology:\n"
      "  - {prefix: 10.1.0.0/16, region: eu, datacenter: eu1, rack: r1}\n";
  text += fmt::format("  - {{prefix: {}, region: us}}\n", far_prefixes);
  text +=
      "  - {prefix: 10.3.0.0/16, external: true}\n"
      "  - {prefix: \"fd01::/32\", region: eu, datacenter: eu1, rack: r1}\n"
      "  - {prefix: \"fd02::/32\", region: us}\n";
  if (!bundles.empty()) text += "bundles:\n";
  for (const auto& bundle : bundles) {
    const auto at = bundle.find('@');
    text += fmt::format("  - {{name: {}, version: {}}}\n", bundle.substr(0, at), bundle.substr(at + 1));
  }
  if (!transitional.empty()) text += fmt::format("transitional: \"{}\"\n", transitional);
  text += extra;
  text += "rules:\n" + rules_before;
  text +=
      fmt::format("  - {{name: near, match: {{locality: [intra_rack, intra_dc, intra_region]}}, use: \"{}\"}}\n", uses.near);
  text += fmt::format("  - {{name: far, match: {{locality: cross_region}}, use: \"{}\"}}\n", uses.far);
  text += fmt::format("  - {{name: external, match: {{locality: external}}, use: \"{}\"}}\n", uses.external);
  text += fmt::format("  - {{name: unknown, match: {{locality: unknown}}, use: \"{}\"}}\n", uses.unknown);
  return text;
}

// -------------------------------------------------------------------------------------------------------------- Agent

Agent::Agent(const Topology& topology, Options options) : topology_(topology), options_(std::move(options)) {
  static int count = 0;
  instance_ = fmt::format("t{}-{}{}", ::getpid(), ++count, options_.tag);
  dir_ = fs::temp_directory_path() / fmt::format("sluice-{}", instance_);
  fs::create_directory(dir_);
  state_dir_ = options_.state_dir.empty() ? dir_ + "/state" : options_.state_dir;
  socket_ = dir_ + "/agent.sock";
  pin_dir_ = fmt::format("{}/sluice/v1/{}", kBpffs, instance_);
  cgroup_ = options_.cgroup.empty() ? topology.cgroup() : options_.cgroup;
}

Agent::~Agent() {
  process_.reset();
  std::error_code ignored;
  fs::remove_all(pin_dir_, ignored);  // only a failed test leaves pins
  fs::remove_all(dir_, ignored);
}

std::vector<std::string> Agent::command(const std::vector<std::string>& more) const {
  std::vector<std::string> words = {
      kPrograms + "sluiced", "--foreground", "--instance",    instance_,         "--socket",      socket_, "--cgroup", cgroup_,
      "--metrics",           "off",          "--bundle-path", dir_ + "/bundles", "--bundle-path", kBundles};
  if (std::ranges::find(more, "--state-dir") == more.end()) words.insert(words.end(), {"--state-dir", state_dir_});
  for (const auto& host : options_.hosts) {
    words.emplace_back("--netns");
    words.push_back(topology_.host(host).netns_path());
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The agent tells its service manager when it serves: the test is that manager.
Status Agent::launch(const std::vector<std::string>& more, const std::string& surroundings) {
  const std::string path = dir_ + "/notify";
  ::unlink(path.c_str());
  notify_ = Fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un own{};
  own.sun_family = AF_UNIX;
  path.copy(own.sun_path, sizeof own.sun_path - 1);
  if (::bind(notify_.get(), reinterpret_cast<sockaddr*>(&own), sizeof own) != 0)
    return fail_errno(errno, "cannot bind {}", path);
  std::vector<std::string> words;
  if (!surroundings.empty()) words = {"unshare", "-m"};
  words.insert(words.end(), {"sh", "-c", fmt::format("exec >>\"$0\" 2>&1; {}\nexec \"$@\"", surroundings), dir_ + "/log"});
  const auto daemon = command(more);
  words.insert(words.end(), daemon.begin(), daemon.end());
  std::vector<std::string> environment = {"NOTIFY_SOCKET=" + path};
  if (options_.watchdog_us != 0) environment.push_back(fmt::format("WATCHDOG_USEC={}", options_.watchdog_us));
  SLUICE_TRY(process, topology_.host("a").spawn(words, {.environment = environment}));
  process_.emplace(std::move(process));
  return {};
}

Status Agent::await_notice(const std::string& what) {
  Fd gone(static_cast<int>(::syscall(SYS_pidfd_open, process_->pid(), 0)));
  if (!gone) return fail_errno(errno, "cannot watch the agent");
  pollfd fds[2] = {{notify_.get(), POLLIN, 0}, {gone.get(), POLLIN, 0}};
  while (true) {
    const int ready = ::poll(fds, 2, static_cast<int>(kSoon.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return fail(Code::kTimeout, "the agent does not serve; its log:\n{}", log());
    if (fds[0].revents == 0) {
      SLUICE_TRY(status, process_->wait(kSoon));
      process_.reset();
      return fail(Code::kUnavailable, "the agent ended with status {}; its log:\n{}", status, log());
    }
    char text[256] = {};
    if (::recv(notify_.get(), text, sizeof text - 1, 0) < 0) return fail_errno(errno, "cannot read the notification");
    if (std::string_view(text).find(what) != std::string_view::npos) return {};
  }
}

Status Agent::start(const std::vector<std::string>& more, const std::string& surroundings) {
  SLUICE_CHECK(launch(more, surroundings));
  return await_notice("READY=1");
}

Status Agent::await_watchdog() {
  char text[256];
  while (::recv(notify_.get(), text, sizeof text, MSG_DONTWAIT) >= 0) {
  }
  return await_notice("WATCHDOG=1");
}

Status Agent::kill() {
  SLUICE_CHECK(process_->signal(SIGKILL));
  return wait_exit();
}

Status Agent::stop() {
  SLUICE_CHECK(process_->signal(SIGTERM));
  return wait_exit();
}

Status Agent::wait_exit() {
  auto ended = process_->wait(kCommand);  // its last programs and maps leave the kernel meanwhile
  if (!ended) return fail(std::move(ended).error().within("its log:\n" + log()));
  const int status = *ended;
  process_.reset();
  // What a sanitizer found, at the latest leaks when it ended.
  const std::string text = log();
  for (const char* found : {"Sanitizer:", "runtime error:"})
    if (text.find(found) != std::string::npos)
      return fail(Code::kInternal, "the agent ended with status {}, and its log:\n{}", status, text);
  return {};
}

Result<Output> Agent::run_daemon(const std::vector<std::string>& more) { return topology_.host("a").run(command(more), kSoon); }

Result<Process> Agent::start_cli(std::vector<std::string> arguments) const {
  std::vector<std::string> words = {kPrograms + "sluice", "--socket", socket_};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return Process::exec(words, {.pipe_stdout = true, .merge_stderr = true});
}

Result<Output> Agent::cli(std::vector<std::string> arguments) const {
  SLUICE_TRY(process, start_cli(std::move(arguments)));
  SLUICE_TRY(text, process.read_all(kSoon));
  SLUICE_TRY(status, process.wait(kSoon));
  return Output{status, std::move(text)};
}

Result<nlohmann::json> Agent::json(std::vector<std::string> arguments, const std::set<int>& accept) const {
  const std::string what = arguments.front();
  arguments.insert(arguments.begin(), {"--quiet", "--output", "json"});
  SLUICE_TRY(output, cli(std::move(arguments)));
  if (!accept.contains(output.status))
    return fail(Code::kInternal, "sluice {} ended with status {}: {}\nagent's log:\n{}", what, output.status, output.text,
                log());
  auto parsed = nlohmann::json::parse(output.text, nullptr, false);
  if (parsed.is_discarded()) return fail(Code::kCorrupt, "sluice {} printed no JSON: {}", what, output.text);
  return parsed;
}

std::string Agent::write_policy(const std::string& document) const {
  const std::string path = fmt::format("{}/policy-{}.yaml", dir_, ++documents_);
  std::ofstream(path) << document;
  return path;
}

Result<nlohmann::json> Agent::apply_text(const std::string& document, const std::set<int>& accept) const {
  return json({"apply", write_policy(document)}, accept);
}

Result<nlohmann::json> Agent::apply(const Policy& policy, const std::set<int>& accept) const {
  return apply_text(policy.document(), accept);
}

Result<Output> Agent::try_apply(const Policy& policy) const { return cli({"apply", write_policy(policy.document())}); }

Status Agent::copy_bundle(const std::string& from, const std::string& version,
                          const std::vector<std::pair<std::string, std::string>>& edits, const std::string& root) const {
  const auto slash = from.find('/');
  const std::string source = (root.empty() ? kBundles : root) + "/" + from;
  const std::string target = fmt::format("{}/bundles/{}/{}", dir_, from.substr(0, slash), version);
  std::error_code error;
  fs::create_directories(target, error);
  for (const auto& file : fs::directory_iterator(source, error))
    if (file.path().extension() == ".o") fs::copy_file(file.path(), target / file.path().filename(), error);
  if (error) return fail_errno(error.value(), "cannot copy bundle {}", from);
  SLUICE_TRY(manifest, read_text(source + "/bundle.yaml"));
  const auto replace = [&](const std::string& what, const std::string& with) -> Status {
    const auto at = manifest.find(what);
    if (at == std::string::npos) return fail(Code::kInvalid, "the manifest of {} does not hold '{}'", from, what);
    manifest.replace(at, what.size(), with);
    return {};
  };
  SLUICE_CHECK(replace("version: " + from.substr(slash + 1), "version: " + version));
  for (const auto& [what, with] : edits) SLUICE_CHECK(replace(what, with));
  std::ofstream(target + "/bundle.yaml") << manifest;
  return {};
}

Status Agent::make_bundle(const std::string& name, const std::string& object, const std::string& hooks, const std::string& ecn,
                          const std::string& version) const {
  const std::string target = fmt::format("{}/bundles/{}/{}", dir_, name, version);
  std::error_code error;
  fs::create_directories(target, error);
  fs::copy_file(kObjects + "/" + object, fmt::format("{}/{}.bpf.o", target, name), error);
  if (error) return fail_errno(error.value(), "cannot copy {}", object);
  std::ofstream(target + "/bundle.yaml") << fmt::format(
      "name: {0}\nversion: {3}\nclass: cca\nsummary: Of a test.\nlicense: Dual BSD/GPL\nobjects: [{0}.bpf.o]\n"
      "kernel: {{min: \"6.12\"}}\nhooks: [{1}]\nsignals: {{ecn: {2}, delay: false, loss: true}}\n"
      "transitions: [{{from: \"*\"}}, {{to: \"*\"}}]\n",
      name, hooks, ecn, version);
  return {};
}

Result<Identity> Agent::identity(const std::string& target) {
  if (target.starts_with("kernel:")) return Identity{target.substr(7), 0};
  if (!names_.contains(target)) {
    SLUICE_TRY(listed, json({"cca", "list"}));
    for (const auto& cca : listed["ccas"])
      if (cca["origin"] == "bundle")
        names_[cca["name"].get<std::string>() + "@" + cca["version"].get<std::string>()] = cca["kernel_name"];
  }
  std::string pin = target;
  std::ranges::replace(pin, '@', '/');
  std::ranges::replace(pin, '.', '_');
  pin = fmt::format("{}/cca/{}/ops", pin_dir_, pin);
  Fd map(::bpf_obj_get(pin.c_str()));
  if (!map || !names_.contains(target)) return fail_errno(errno, "{} is not pinned as {}", target, pin);
  bpf_map_info info{};
  std::uint32_t length = sizeof info;
  if (::bpf_obj_get_info_by_fd(map.get(), &info, &length) != 0) return fail_errno(errno, "cannot read map {}", pin);
  if (info.type != BPF_MAP_TYPE_STRUCT_OPS) return fail(Code::kInternal, "{} is no struct_ops map", pin);
  return Identity{names_.at(target), info.id};
}

Result<Identities> Agent::identities(const std::vector<std::string>& targets) {
  Identities all;
  for (const auto& target : targets) {
    SLUICE_TRY(found, identity(target));
    all[target] = std::move(found);
  }
  return all;
}

std::string Agent::log() const {
  auto text = read_text(dir_ + "/log");
  return text ? *text : std::string();
}

// -------------------------------------------------------------------------------------------------------- Connections

Result<Connections> Connections::open(const Topology& topology, int each, std::uint16_t port, const std::vector<Where>& where) {
  Connections connections;
  connections.port_ = port;
  std::vector<std::string> listen = {"--max-seconds", kTrafficSeconds};
  for (const Where place : kEverywhere) {
    listen.emplace_back("--listen");
    listen.push_back(with_port(address("b", place), port));
  }
  SLUICE_TRY(server, Traffic::server(topology.host("b"), std::move(listen)));
  connections.traffic_.push_back(std::move(server));
  SLUICE_CHECK(connections.more(topology, each, where));
  return connections;
}

Status Connections::more(const Topology& topology, int each, const std::vector<Where>& where, const std::string& cca) {
  for (const Where place : where) {
    std::vector<std::string> arguments = {
        "--bind",        address("a", place),  "--connect", with_port(address("b", place), port_),
        "--connections", std::to_string(each), "--hold",    kTrafficSeconds,
        "--max-seconds", kTrafficSeconds};
    if (!cca.empty()) arguments.insert(arguments.end(), {"--cca", cca});
    SLUICE_TRY(client, Traffic::client(topology.host("a"), std::move(arguments)));
    traffic_.insert(traffic_.begin(), std::move(client));  // clients go before their server
    count_ += each;
  }
  for (std::size_t i = 0; i < where.size(); ++i) SLUICE_CHECK(traffic_[i].expect("open", kSoon));
  return {};
}

std::string without_port(const std::string& endpoint) {
  const std::string host = endpoint.substr(0, endpoint.rfind(':'));
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

Status Churn::start(int connections_per_s) {
  constexpr std::uint16_t kChurnPort = 6000;
  std::vector<std::string> listen = {"--max-seconds", kTrafficSeconds, "--record", dir_ + "/churn-server"};
  for (const Where where : kEverywhere) listen.insert(listen.end(), {"--listen", with_port(address("b", where), kChurnPort)});
  SLUICE_TRY(server, Traffic::server(topology_.host("b"), std::move(listen)));
  server_.emplace(std::move(server));
  for (const Where where : kEverywhere) {
    SLUICE_TRY(client, Traffic::client(topology_.host("a"),
                                       {"--bind", address("a", where), "--connect", with_port(address("b", where), kChurnPort),
                                        "--connections", "100000000", "--concurrency", "4", "--requests", "3", "--rate",
                                        std::to_string(connections_per_s), "--max-seconds", kTrafficSeconds, "--record",
                                        fmt::format("{}/churn-client-{}", dir_, clients_.size())}));
    clients_.push_back(std::move(client));
  }
  return {};
}

Result<std::vector<TrafficRecord>> Churn::stop() {
  std::vector<TrafficRecord> all;
  const auto take = [&](Traffic& traffic, const std::string& file) -> Status {
    SLUICE_TRY(summary, traffic.stop(kSoon));
    SLUICE_TRY(records, read_traffic_records(file));
    if (summary.failed > 0) {
      const auto failed = std::ranges::find(records, "fail", &TrafficRecord::event);
      return fail(Code::kInternal, "{} connections failed, such as for {}{}", summary.failed, summary.errors.begin()->first,
                  failed == records.end()
                      ? ""
                      : fmt::format(": {} to {} on {}, window {}, {} retransmits", failed->local, failed->remote, failed->cca,
                                    failed->cwnd_segments, failed->retransmits));
    }
    all.insert(all.end(), records.begin(), records.end());
    return {};
  };
  for (std::size_t i = 0; i < clients_.size(); ++i) SLUICE_CHECK(take(clients_[i], fmt::format("{}/churn-client-{}", dir_, i)));
  SLUICE_CHECK(take(*server_, dir_ + "/churn-server"));
  return all;
}

Result<std::vector<SocketRecord>> established(const Recorder& recorder, const Topology& topology) {
  std::vector<SocketRecord> all;
  for (const char* name : {"a", "b"}) {
    SLUICE_TRY(list, recorder.list(topology.host(name).netns_fd()));
    for (auto& record : list)
      if (record.full && record.state == "ESTABLISHED") all.push_back(std::move(record));
  }
  return all;
}

Result<std::string> differences(const Recorder& recorder, const Topology& topology, const Uses& uses,
                                const std::string& listener, const Identities& identities) {
  std::string text;
  for (const char* name : {"a", "b"}) {
    SLUICE_TRY(list, recorder.list(topology.host(name).netns_fd()));
    for (const auto& record : list) {
      const bool listens = record.state == "LISTEN";
      if (!record.full || (!listens && record.state != "ESTABLISHED")) continue;
      const std::string& use = listens ? listener : uses.of(where_is(record.remote));
      const auto want = identities.find(use);
      if (want == identities.end()) return fail(Code::kInternal, "no identity of {}", use);
      if (want->second == Identity{record.cca, record.struct_ops_id}) continue;
      text += fmt::format("host {}: {} should be {} (map {}) by {}\n", name, to_json(record), want->second.name,
                          want->second.struct_ops_id, use);
    }
  }
  return text;
}

// ------------------------------------------------------------------------------------------------------------- Kernel

std::set<std::string> available_ccas() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  std::set<std::string> names;
  for (std::string name; file >> name;) names.insert(name);
  return names;
}

void AgentWorldTest::SetUp() {
  ASSERT_VALUE(topology, Topology::create(world_spec()));
  topology_.emplace(std::move(topology));
  ASSERT_VALUE(recorder, Recorder::load());
  recorder_.emplace(std::move(recorder));
  agent_.emplace(*topology_);
}

std::string AgentWorldTest::unlike(const Uses& uses, const std::string& listener) {
  const auto identities = agent_->identities({uses.near, uses.far, uses.external, uses.unknown, listener});
  if (!identities) return identities.error().message();
  const auto wrong = differences(*recorder_, *topology_, uses, listener, *identities);
  return wrong ? *wrong : wrong.error().message();
}

Result<std::vector<std::uint32_t>> sockops_programs(const std::string& cgroup) {
  Fd folder(::open(cgroup.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return fail_errno(errno, "cannot open {}", cgroup);
  std::uint32_t ids[64];
  std::uint32_t count = std::size(ids);
  if (::bpf_prog_query(folder.get(), BPF_CGROUP_SOCK_OPS, 0, nullptr, ids, &count) != 0)
    return fail_errno(errno, "cannot list the programs of {}", cgroup);
  return std::vector<std::uint32_t>(ids, ids + count);
}

}  // namespace sluice::test
