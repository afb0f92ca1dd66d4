// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "netns/connection_states.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace sluice::test {
namespace {

constexpr std::size_t kExchangeBytes = 40000;
const std::string kEcnReno = "ecn_reno";

// The CCA of this document's words.
constexpr std::pair<const char*, const char*> kWords[] = {
    {"ecn_reno@1.0.0", "needs"},
    {"ecn_reno@1.0.1", "needs next"},
    {"cubic@1.0.0", "transitional"},
    {"cubic@1.0.1", "other"},
};

std::string trim(const std::string& text) {
  const auto first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(at, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(trim(text.substr(begin, end - begin)));
  parts.push_back(trim(text.substr(begin)));
  return parts;
}

bool with_ecn(const std::string& word) { return word == "negotiated" || word == "echoing"; }

// "needs / transitional" -> {client's, server's}; one word is both's.
std::array<std::string, 2> of_ends(const std::string& words) {
  const auto parts = split(words, '/');
  return {parts.front(), parts.back()};
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
  int family = AF_INET;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
};

Address socket_address(Ip ip, const std::string& host, Where where, std::uint16_t port) {
  Address out;
  if (ip == Ip::kV4) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&out.bytes);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    ::inet_pton(AF_INET, address(host, where).c_str(), &v4->sin_addr);
    out.size = sizeof *v4;
    return out;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.bytes);
  out.family = v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(port);
  const Where where6 = where == Where::kNear ? Where::kNear6 : Where::kFar6;
  const std::string text = ip == Ip::kV6 ? address(host, where6) : "::ffff:" + address(host, where);
  ::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr);
  out.size = sizeof *v6;
  return out;
}

// A socket's own or its peer's name, as everybody here writes it: v4-mapped addresses in dotted form.
std::string name_of(int fd, bool peer) {
  Address at;
  at.size = sizeof at.bytes;
  if ((peer ? ::getpeername(fd, at.get(), &at.size) : ::getsockname(fd, at.get(), &at.size)) != 0) return "?";
  char text[INET6_ADDRSTRLEN];
  if (at.bytes.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<sockaddr_in*>(&at.bytes);
    return fmt::format("{}:{}", ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text), ntohs(v4->sin_port));
  }
  const auto* v6 = reinterpret_cast<sockaddr_in6*>(&at.bytes);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
    return fmt::format("{}:{}", ::inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof text), ntohs(v6->sin6_port));
  return fmt::format("[{}]:{}", ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text), ntohs(v6->sin6_port));
}

std::string record_name(const std::string& address, std::uint16_t port) {
  return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port) : fmt::format("[{}]:{}", address, port);
}

template <class T>
Status set_option(int fd, int level, int option, const T& value) {
  if (::setsockopt(fd, level, option, &value, sizeof value) == 0) return {};
  return fail_errno(errno, "cannot set option {} of level {}", option, level);
}

// No call on it waits longer than kSoon, and closing it ends the connection at once: no cell leaves sockets to the next one.
Status make_bounded(int fd) {
  const timeval soon{kSoon.count() / 1000, 0};
  SLUICE_CHECK(set_option(fd, SOL_SOCKET, SO_RCVTIMEO, soon));
  SLUICE_CHECK(set_option(fd, SOL_SOCKET, SO_SNDTIMEO, soon));
  return set_option(fd, SOL_SOCKET, SO_LINGER, linger{1, 0});
}

Status transfer(int from, int to) {
  const std::vector<char> data(kExchangeBytes, 'x');
  std::vector<char> got(kExchangeBytes);
  for (std::size_t sent = 0; sent < data.size();) {
    const ssize_t n = ::send(from, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
    if (n < 0) return fail_errno(errno, "cannot send");
    sent += static_cast<std::size_t>(n);
  }
  if (::recv(to, got.data(), got.size(), MSG_WAITALL) != static_cast<ssize_t>(got.size()))
    return fail_errno(errno, "the other end did not receive it all");
  return {};
}

}  // namespace

Result<std::map<std::string, Row>> read_rows(const std::string& document) {
  std::ifstream file(document);
  if (!file) return fail_errno(errno, "cannot read {}", document);
  std::map<std::string, Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `")) continue;
    // | `cell` | moment | known | decision | runs | ECN | explain |
    const auto columns = split(line, '|');
    if (columns.size() != 9) return fail(Code::kInvalid, "a row of {} has not seven columns: {}", document, line);
    const std::string cell = columns[1].substr(1, columns[1].size() - 2);
    if (!rows.emplace(cell, Row{columns[5], columns[6], columns[7]}).second)
      return fail(Code::kInvalid, "{} has two rows for {}", document, cell);
  }
  return rows;
}

// ---------------------------------------------------------------------------------------------------------------- World

Result<std::unique_ptr<World>> World::create() {
  std::unique_ptr<World> world(new World);
  SLUICE_TRY(rows, read_rows(SLUICE_SOURCE_DIR "/docs/connection-states.md"));
  world->rows_ = std::move(rows);
  TopologySpec spec;
  for (const char* name : {"a", "b", "c"})
    spec.hosts.push_back({.name = name, .sysctls = {{"net.ipv4.tcp_congestion_control", kFallback}}});
  spec.bind_names = true;
  SLUICE_TRY(topology, Topology::create(spec));
  world->topology_.emplace(std::move(topology));
  for (const auto& host : world->topology_->hosts()) world->hosts_[host->name()] = host.get();
  const std::string outside = std::filesystem::path(world->topology_->cgroup()).parent_path();
  for (const auto& host : world->topology_->hosts())
    for (const Side side : {Side::kInside, Side::kOutside}) {
      SLUICE_TRY(maker, HostSockets::start(*host, side == Side::kOutside ? outside : ""));
      world->makers_.emplace(std::pair{host->name(), side}, std::move(maker));
    }
  SLUICE_TRY(recorder, Recorder::load());
  world->recorder_.emplace(std::move(recorder));
  world->agent_.emplace(*world->topology_);
  SLUICE_CHECK(world->agent_->copy_bundle("cubic/1.0.0", "1.0.1"));
  for (const char* version : {"1.0.0", "1.0.1"})
    SLUICE_CHECK(world->agent_->make_bundle(kEcnReno, "agent_ecn_reno.o",
                                            "init, release, ssthresh, cong_avoid, pkts_acked, undo_cwnd", "requires", version));
  SLUICE_CHECK(world->start_agent({}));
  std::vector<Wire::Port> ports;
  for (const auto& host : world->topology_->hosts()) {
    Wire::Port port{host.get(), {}};
    for (const Where where : kEverywhere) port.addresses.push_back(address(host->name(), where) + "/8");
    ports.push_back(std::move(port));
  }
  SLUICE_TRY(wire, Wire::create(ports));
  world->wire_.emplace(std::move(wire));
  world->wire_->mark(true);
  return world;
}

Policy World::policy(const std::string& far, const std::string& more_rules, const std::string& more) {
  Policy policy;
  policy.uses = {.near = kNative, .far = far, .external = kNative, .unknown = kNative};
  if (!far.starts_with("kernel:") && far != policy.transitional) policy.bundles.push_back(far);
  policy.rules_before = more_rules;
  policy.extra = more;
  return policy;
}

Status World::in_force(const Policy& policy, const std::vector<std::string>& options) {
  const std::string document = policy.document();
  if (!running_) SLUICE_CHECK(start_agent({}));
  if (document == document_) return {};
  document_.clear();
  std::vector<std::string> words = {"apply", "--clear-rollbacks", agent_->write_policy(document)};
  words.insert(words.end(), options.begin(), options.end());
  SLUICE_TRY(applied, agent_->json(words));
  (void)applied;
  document_ = document;
  known_.clear();
  for (const auto& [target, text] : kWords)
    if (auto found = agent_->identity(target)) known_[target] = *found;
  return {};
}

Status World::stop_agent() {
  if (!running_) return {};
  SLUICE_TRY(down, agent_->json({"down"}));
  (void)down;
  document_.clear();
  running_ = false;
  return agent_->wait_exit();
}

Status World::start_agent(const std::vector<std::string>& more_namespaces) {
  std::vector<std::string> more = {"--netns", later_namespace()};
  for (const auto& path : more_namespaces) more.insert(more.end(), {"--netns", path});
  SLUICE_CHECK(agent_->start(more));
  running_ = true;
  return {};
}

Status World::restart_agent(const std::vector<std::string>& more_namespaces) {
  running_ = false;
  SLUICE_CHECK(agent_->kill());
  return start_agent(more_namespaces);
}

Status World::rollback(const std::string& target) {
  document_.clear();
  SLUICE_TRY(rolled_back, agent_->json({"rollback", target}));
  (void)rolled_back;
  return {};
}

Status World::add(const Host& host) {
  SLUICE_TRY(maker, HostSockets::start(host, topology_->host("a").cgroup()));
  hosts_[host.name()] = &host;
  makers_.emplace(std::pair{host.name(), Side::kInside}, std::move(maker));
  return {};
}

void World::remove(const std::string& host) {
  makers_.erase({host, Side::kInside});
  hosts_.erase(host);
}

Result<Listening> World::listen(const Place& place) {
  Address at = socket_address(place.ip, place.host, place.where, place.port);
  SLUICE_TRY(fd, maker(place.host, place.side).open(at.family, SOCK_STREAM, place.protocol));
  SLUICE_CHECK(make_bounded(fd.get()));
  for (const int option : place.options) SLUICE_CHECK(set_option(fd.get(), SOL_SOCKET, option, 1));
  if (::bind(fd.get(), at.get(), at.size) != 0) return fail_errno(errno, "cannot bind a listener on host {}", place.host);
  if (place.fast_open > 0) SLUICE_CHECK(set_option(fd.get(), IPPROTO_TCP, TCP_FASTOPEN, place.fast_open));
  if (::listen(fd.get(), 64) != 0) return fail_errno(errno, "cannot listen on host {}", place.host);
  std::string name = name_of(fd.get(), false);
  return Listening{{std::move(fd), &host(place.host), place.side, std::move(name), ""}, place.ip, place.where, place.protocol};
}

Result<End> World::client(const Listening& to, const std::string& name, Side side, std::uint16_t port) {
  Address from = socket_address(to.ip, name, to.where, port);
  SLUICE_TRY(fd, maker(name, side).open(from.family, SOCK_STREAM, to.protocol));
  SLUICE_CHECK(make_bounded(fd.get()));
  if (::bind(fd.get(), from.get(), from.size) != 0) return fail_errno(errno, "cannot bind a client on host {}", name);
  std::string own = name_of(fd.get(), false);
  return End{std::move(fd), &host(name), side, std::move(own), to.end.name};
}

namespace {

Status connect_to(int fd, const Listening& to) {
  const auto port = static_cast<std::uint16_t>(std::stoi(to.end.name.substr(to.end.name.rfind(':') + 1)));
  Address at = socket_address(to.ip, to.end.host->name(), to.where, port);
  if (::connect(fd, at.get(), at.size) != 0) return fail_errno(errno, "cannot connect to {}", to.end.name);
  return {};
}

}  // namespace

Status World::connect(const End& client, const Listening& to) { return connect_to(client.fd.get(), to); }

Status World::begin_connect(const End& client, const Listening& to) {
  const int flags = ::fcntl(client.fd.get(), F_GETFL);
  ::fcntl(client.fd.get(), F_SETFL, flags | O_NONBLOCK);
  const auto begun = connect_to(client.fd.get(), to);
  ::fcntl(client.fd.get(), F_SETFL, flags);
  if (!begun && begun.error().sys_errno == EINPROGRESS) return {};
  return begun ? fail(Code::kInternal, "the handshake was over at once") : begun;
}

Status World::finish_connect(const End& client) {
  pollfd fd{client.fd.get(), POLLOUT, 0};
  if (::poll(&fd, 1, static_cast<int>(kSoon.count())) != 1) return fail(Code::kTimeout, "{} is not connected", client.name);
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(client.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return fail_errno(error, "{} is not connected", client.name);
  return {};
}

Result<End> World::accept(const Listening& from) {
  Fd fd(::accept4(from.end.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd) return fail_errno(errno, "cannot accept on {}", from.end.name);
  SLUICE_CHECK(make_bounded(fd.get()));
  std::string name = name_of(fd.get(), false), peer = name_of(fd.get(), true);
  return End{std::move(fd), from.end.host, from.end.side, std::move(name), std::move(peer)};
}

Result<Connection> World::open(const Listening& server, const std::string& host, Side side) {
  Connection connection;
  connection.first_packet = wire_->packets().size();
  SLUICE_TRY(made, client(server, host, side));
  SLUICE_CHECK(connect(made, server));
  SLUICE_TRY(accepted, accept(server));
  connection.client = std::move(made);
  connection.server = std::move(accepted);
  return connection;
}

Result<Connection> World::open(const Place& server, const std::string& host, Side side) {
  SLUICE_TRY(listening, listen(server));
  return open(listening, host, side);
}

// -------------------------------------------------------------------------------------------------------- what is so

Result<Row> World::row(const std::string& cell) const {
  const auto found = rows_.find(cell);
  if (found == rows_.end()) return fail(Code::kNotFound, "docs/connection-states.md has no row for {}", cell);
  return found->second;
}

std::string World::word(const std::string& cca, std::uint32_t struct_ops_id) const {
  for (const auto& [target, text] : kWords)
    if (const auto it = known_.find(target); it != known_.end() && it->second == Identity{cca, struct_ops_id}) return text;
  if (struct_ops_id == 0 && cca == kFallback) return "default";
  if (struct_ops_id == 0 && "kernel:" + cca == kNative) return "native";
  return fmt::format("{} (map {})", cca, struct_ops_id);
}

Result<std::string> World::runs(const End& end) {
  char name[16] = {};
  socklen_t size = sizeof name;
  if (::getsockopt(end.fd.get(), IPPROTO_TCP, TCP_CONGESTION, name, &size) != 0)
    return fail_errno(errno, "cannot ask {} for its congestion control", end.name);
  SLUICE_TRY(records, recorder_->list(end.host->netns_fd()));
  for (const auto& record : records) {
    if (!record.full || record_name(record.local, record.local_port) != end.name) continue;
    if (end.peer.empty() ? record.state != "LISTEN" : record_name(record.remote, record.remote_port) != end.peer) continue;
    if (record.cca != std::string(name, ::strnlen(name, sizeof name)))
      return fmt::format("{} by TCP_CONGESTION, {} by the recorder", name, record.cca);
    return word(record.cca, record.struct_ops_id);
  }
  return fail(Code::kNotFound, "the recorder does not see {} -> {} on host {}", end.name, end.peer, end.host->name());
}

Result<std::string> World::ecn(const End& end) {
  SLUICE_TRY(all, agent_->json({"sockets", "--ecn"}));
  for (const auto& socket : all["sockets"])
    if (socket["local"] == end.name && (end.peer.empty() ? socket["state"] == "listen" : socket["remote"] == end.peer))
      return socket["ecn"].get<std::string>();
  return fail(Code::kNotFound, "`sluice sockets` does not list {} -> {}", end.name, end.peer);
}

Result<std::vector<std::string>> World::events_since_apply() {
  SLUICE_TRY(output, agent_->cli({"--output", "json", "events", "--limit", "20"}));
  std::vector<std::string> events;
  std::istringstream lines(output.text);
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_discarded()) return fail(Code::kCorrupt, "`sluice events` printed {}", line);
    if (event["kind"] == "applied") events.clear();
    events.push_back(event["kind"].get<std::string>() + ": " + event["message"].get<std::string>());
  }
  return events;
}

Result<std::string> World::explain(const std::string& destination) {
  SLUICE_TRY(said, agent_->json({"explain", destination}));
  std::string text;
  for (const char* part : {"why", "notes"})
    for (const auto& line : said[part]) text += line.get<std::string>() + "\n";
  return text;
}

Flow World::flow(const End& from, std::size_t first_packet) const {
  Flow flow;
  const auto packets = wire_->packets();
  for (std::size_t i = first_packet; i < packets.size(); ++i) {
    const WirePacket& packet = packets[i];
    if (packet.from == from.peer && packet.to == from.name && packet.ece && !packet.syn) ++flow.echoes;
    if (packet.from != from.name || packet.to != from.peer) continue;
    if (packet.syn) continue;  // asks: it may be ECT, and may carry data
    if (packet.payload_bytes == 0)
      flow.other_ect += packet.ecn != 0;
    else
      ++(packet.ecn != 0 ? flow.data_ect : flow.data_not_ect);
  }
  return flow;
}

bool World::ecn_agreed(const Connection& connection) const {
  const auto packets = wire_->packets();
  const End& client = connection.client;
  for (std::size_t i = connection.first_packet; i < packets.size(); ++i)
    if (packets[i].syn && packets[i].ack && packets[i].ece && packets[i].from == client.peer && packets[i].to == client.name)
      return true;
  return false;
}

Status World::exchange(const Connection& connection) {
  SLUICE_CHECK(transfer(connection.client.fd.get(), connection.server.fd.get()));
  return transfer(connection.server.fd.get(), connection.client.fd.get());
}

std::uint64_t World::blind_senders(const Connection& connection, std::size_t first_packet) const {
  std::uint64_t blind = 0;
  for (const End* end : {&connection.client, &connection.server}) {
    const Flow sent = flow(*end, first_packet);
    if (sent.data_ect > 0 && sent.echoes == 0) ++blind;
  }
  return blind;
}

void World::expect_runs(const Row& row, const Connection& connection) {
  const auto words = of_ends(row.runs);
  for (const End* end : {&connection.client, &connection.server}) {
    const std::string& want = words[end == &connection.server ? 1 : 0];
    if (want == "-") continue;
    ASSERT_VALUE(now, runs(*end));
    EXPECT_EQ(now, want) << end->name << " -> " << end->peer << " on host " << end->host->name();
  }
}

void World::expect(const Row& row, const Connection& connection) {
  SCOPED_TRACE(connection.client.name + " -> " + connection.server.name);
  const End* const ends[] = {&connection.client, &connection.server};
  const auto words = of_ends(row.ecn);
  const auto expect_words = [&](bool marked) {
    for (int i = 0; i < 2; ++i) {
      if (words[i] == "-") continue;
      ASSERT_VALUE(now, ecn(*ends[i]));
      EXPECT_EQ(now, marked && with_ecn(words[i]) ? "echoing" : words[i]) << ends[i]->name;
    }
  };
  expect_runs(row, connection);
  expect_words(false);
  if (row.explain != "-") {
    const std::string& destination = ends[0]->side == Side::kInside ? ends[0]->peer : ends[1]->peer;
    ASSERT_VALUE(said, explain(without_port(destination)));
    EXPECT_NE(said.find(row.explain), std::string::npos) << said;
  }

  const std::size_t before = wire_->packets().size();
  ASSERT_OK(exchange(connection));
  expect_runs(row, connection);
  expect_words(true);
  for (int i = 0; i < 2; ++i) {
    if (words[i] == "-") continue;
    const Flow sent = flow(*ends[i], before), ever = flow(*ends[i], connection.first_packet);
    EXPECT_EQ(with_ecn(words[i]), ecn_agreed(connection)) << ends[i]->name;
    if (with_ecn(words[i])) {
      EXPECT_GT(sent.data_ect, 0u) << ends[i]->name;
      EXPECT_GT(sent.echoes, 0u) << ends[i]->name;
    } else {
      EXPECT_EQ(ever.data_ect + ever.other_ect, 0u) << ends[i]->name << " sends ECT to who did not agree";
    }
  }
  const std::uint64_t blind = blind_senders(connection, connection.first_packet);
  EXPECT_EQ(blind, 0u);
  totals_.blind_senders += blind;
  ++totals_.connections;
}

}  // namespace sluice::test
