// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// traffic: thousands of TCP connections, and what the kernel says of each at both ends. Shares no code with the product.
// `traffic --help` is its manual; traffic.h runs it from tests.
//
// One thread, one epoll. The client sends requests of a fixed size and the server answers each; every byte is checked. A
// request is a Header and a body; the one marked `last` makes the server close first, so that TIME_WAIT stays at the server
// and the client never runs out of ports.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr const char* kUsage = R"(usage: traffic server --listen ADDRESS:PORT... [OPTION...]
       traffic client --connect ADDRESS:PORT... [OPTION...]

Opens TCP connections (IPv6 as [ADDRESS]:PORT), moves data, and records for each connection, at its establishment and its end,
what the kernel says: TCP_CONGESTION, ECN, cwnd. Prints one line of JSON, the summary, as its last line; exit status 0 if no
connection failed, 1 if one did, 2 for wrong usage. Always ends by itself.

both:
  --record FILE          one JSON line for each event: open, sample, close, fail
  --control              commands on stdin: "sample" records all open connections (as SIGUSR1 does), "stop" ends (as SIGTERM
                         does); so does the end of stdin
  --max-seconds S        end after this time whatever happens; what is open then has failed (600)
  --cca NAME             TCP_CONGESTION of its own sockets; a server sets it on its listeners
server:
  --listen ADDRESS:PORT  may be repeated; [::] takes IPv4 too. Prints "ready" when it listens
  --connections N        end when so many have come and gone (0: on "stop" only)
client:
  --connect ADDRESS:PORT may be repeated: connections take turns
  --bind ADDRESS         source address; may be repeated: connections take turns
  --connections N        how many in all (1). Prints "open N" when no more is to be opened
  --concurrency C        how many at a time (64; with --hold: all)
  --rate R               at most R new ones a second (0: as fast as it can)
  --bytes B              body of a request (1024)
  --reply-bytes B        reply (1024)
  --requests K           requests on each connection, one after the other (1)
  --hold S               keep each connection S seconds, one request every --period, instead of --requests
  --period MS            (100)
)";

constexpr std::uint32_t kMagic = 0x534c5452;
constexpr std::size_t kPatternPeriod = 256;
constexpr std::size_t kChunk = 65536;
constexpr std::uint64_t kSecond = 1000000000;
constexpr std::uint64_t kDrainNs = 60 * kSecond;  // a stopped client gives up when nothing has moved for so long
constexpr std::uint32_t kMaxBody = 1u << 30;

[[noreturn]] void die(int status, const std::string& why) {
  fmt::print(stderr, "traffic: {}\n", why);
  std::exit(status);
}

[[noreturn]] void die_errno(const std::string& what) { die(1, fmt::format("{}: {}", what, std::strerror(errno))); }

std::uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * kSecond + static_cast<std::uint64_t>(now.tv_nsec);
}

// In host order: both ends run on one machine.
struct Header {
  std::uint32_t magic;
  std::uint32_t last;  // the server closes after this reply
  std::uint32_t body_bytes;
  std::uint32_t reply_bytes;
  std::uint64_t id;
  std::uint64_t run;
};

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

Address parse_address(const std::string& text, bool with_port) {
  std::string host = text;
  std::uint16_t port = 0;
  if (with_port) {
    auto colon = text.rfind(':');
    if (colon == std::string::npos) die(2, fmt::format("'{}' is not ADDRESS:PORT", text));
    host = text.substr(0, colon);
    auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
    if (error != std::errc() || end != text.data() + text.size()) die(2, fmt::format("'{}' has no valid port", text));
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  Address address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.length = sizeof(*v4);
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.length = sizeof(*v6);
  } else {
    die(2, fmt::format("'{}' is no IPv4 or IPv6 address", host));
  }
  return address;
}

std::string address_text(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN];
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return fmt::format("{}:{}", text, ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    ::inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text, sizeof(text));
    return fmt::format("{}:{}", text, ntohs(v6.sin6_port));
  }
  ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return fmt::format("[{}]:{}", text, ntohs(v6.sin6_port));
}

struct Options {
  bool server = false;
  bool control = false;
  std::vector<Address> listen, connect, bind;
  std::string record, cca;
  std::uint64_t connections = 0, concurrency = 0, rate = 0, bytes = 1024, reply_bytes = 1024, requests = 1;
  double hold_s = 0, max_s = 600;
  std::uint64_t period_ms = 100;
};

Options parse_options(int argc, char** argv) {
  Options options;
  std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "--help" || mode == "-h") {
    fmt::print("{}", kUsage);
    std::exit(0);
  }
  if (mode != "server" && mode != "client") die(2, "the first word must be server or client; see --help");
  options.server = mode == "server";
  for (int i = 2; i < argc; i++) {
    std::string name = argv[i];
    if (name == "--control") {
      options.control = true;
      continue;
    }
    if (++i == argc) die(2, fmt::format("{} needs a value, or is unknown; see --help", name));
    std::string value = argv[i];
    auto number = [&](std::uint64_t limit) {
      std::uint64_t n = 0;
      auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
      if (error != std::errc() || end != value.data() + value.size() || n > limit)
        die(2, fmt::format("{} takes a number up to {}, not '{}'", name, limit, value));
      return n;
    };
    auto seconds = [&] {
      char* end = nullptr;
      double s = std::strtod(value.c_str(), &end);
      if (*end != '\0' || !(s >= 0 && s <= 86400)) die(2, fmt::format("{} takes seconds up to a day, not '{}'", name, value));
      return s;
    };
    if (name == "--listen" && options.server)
      options.listen.push_back(parse_address(value, true));
    else if (name == "--connect" && !options.server)
      options.connect.push_back(parse_address(value, true));
    else if (name == "--bind" && !options.server)
      options.bind.push_back(parse_address(value, false));
    else if (name == "--record")
      options.record = value;
    else if (name == "--cca")
      options.cca = value;
    else if (name == "--connections")
      options.connections = number(100000000);
    else if (name == "--concurrency" && !options.server)
      options.concurrency = number(1000000);
    else if (name == "--rate" && !options.server)
      options.rate = number(1000000);
    else if (name == "--bytes" && !options.server)
      options.bytes = number(kMaxBody);
    else if (name == "--reply-bytes" && !options.server)
      options.reply_bytes = number(kMaxBody);
    else if (name == "--requests" && !options.server)
      options.requests = number(1000000000);
    else if (name == "--hold" && !options.server)
      options.hold_s = seconds();
    else if (name == "--period" && !options.server)
      options.period_ms = number(3600000);
    else if (name == "--max-seconds")
      options.max_s = seconds();
    else
      die(2, fmt::format("unknown option {} for a {}; see --help", name, mode));
  }
  if (options.server && options.listen.empty()) die(2, "a server needs --listen");
  if (!options.server) {
    if (options.connect.empty()) die(2, "a client needs --connect");
    if (options.connections == 0) options.connections = 1;
    if (options.requests == 0) options.requests = 1;
    if (options.period_ms == 0) options.period_ms = 1;
    if (options.concurrency == 0) options.concurrency = options.hold_s > 0 ? options.connections : 64;
  }
  return options;
}

// What the kernel says of a connection at one moment.
struct Sample {
  std::uint64_t time_ns = 0;
  std::string cca;
  bool ecn = false, ecn_seen = false;
  std::uint32_t cwnd = 0, rtt_us = 0, retransmits = 0, delivered_ce = 0;
};

Sample take_sample(int fd) {
  Sample sample;
  sample.time_ns = now_ns();
  char name[16] = {};
  socklen_t length = sizeof(name);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0) sample.cca.assign(name, ::strnlen(name, sizeof(name)));
  tcp_info info{};
  length = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0) {
    sample.ecn = (info.tcpi_options & TCPI_OPT_ECN) != 0;
    sample.ecn_seen = (info.tcpi_options & TCPI_OPT_ECN_SEEN) != 0;
    sample.cwnd = info.tcpi_snd_cwnd;
    sample.rtt_us = info.tcpi_rtt;
    sample.retransmits = info.tcpi_total_retrans;
    sample.delivered_ce = info.tcpi_delivered_ce;
  }
  return sample;
}

enum class Phase { kConnecting, kSendHeader, kSendBody, kReceiveHeader, kReceiveBody, kIdle, kAwaitEnd };

struct Connection {
  int fd = -1;
  std::uint64_t serial = 0;  // tells this connection from a later one on the same descriptor
  Phase phase = Phase::kReceiveHeader;
  std::uint32_t interest = 0;
  Header header{};
  bool known = false;  // the header with the id was seen
  std::uint64_t id = 0, run = 0;
  std::uint64_t done = 0;  // bytes of the header or body
  std::uint64_t requests = 0;
  std::uint64_t hold_until_ns = 0;
  std::uint64_t cookie = 0;
  std::string local, remote;
  std::optional<Sample> opened;
};

class Engine {
 public:
  explicit Engine(Options options) : options_(std::move(options)) {}
  int run();

 private:
  struct Timer {
    std::uint64_t due_ns;
    int fd;
    std::uint64_t serial;
    bool operator>(const Timer& other) const { return due_ns > other.due_ns; }
  };

  void watch(int fd, std::uint32_t events);
  void set_interest(Connection& c, std::uint32_t events);
  void listen_all();
  void accept_all(int listener);
  void start_connections(std::uint64_t now);
  void connect_one();
  Connection& adopt(int fd, Phase phase);
  void established(Connection& c);
  void begin_request(Connection& c);
  void step(Connection& c);
  bool transfer_header(Connection& c, bool send);
  bool transfer_body(Connection& c, bool send, std::uint64_t size);
  void reply_received(Connection& c);
  void fail(Connection& c, const std::string& reason);
  void fail_unopened(const std::string& reason);
  void finish(Connection& c);
  void drop(Connection& c);
  void record(const char* event, const Connection& c, const Sample& sample);
  void sample_all();
  void read_control();
  void request_stop(std::uint64_t now);
  void run_timers(std::uint64_t now);
  bool ended() const;
  int timeout_ms(std::uint64_t now) const;
  void print_summary(std::uint64_t elapsed_ns);
  void announce(const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  Options options_;
  int epoll_ = -1, signals_ = -1;
  std::vector<int> listeners_;
  std::vector<std::unique_ptr<Connection>> by_fd_;
  std::uint64_t live_ = 0;
  std::uint64_t serial_ = 0;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  std::string control_buffer_;
  std::FILE* record_ = nullptr;
  std::uint64_t netns_ = 0, run_ = 0;
  std::uint64_t started_ns_ = 0, deadline_ns_ = 0, drain_until_ns_ = 0;
  bool stopping_ = false, announced_open_ = false;
  std::uint64_t launched_ = 0;  // connections begun (client) or accepted (server)
  std::uint64_t opened_ = 0, closed_ = 0, failed_ = 0, requests_ = 0, bytes_ = 0;
  std::uint64_t ecn_at_open_ = 0, ecn_seen_at_close_ = 0;
  std::map<std::string, std::uint64_t> cca_at_open_, cca_at_close_, errors_;
  std::vector<unsigned char> pattern_, chunk_;
};

void Engine::watch(int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) < 0) die_errno("epoll_ctl");
}

void Engine::set_interest(Connection& c, std::uint32_t events) {
  if (c.interest == events) return;
  epoll_event event{};
  event.events = c.interest = events;
  event.data.fd = c.fd;
  if (::epoll_ctl(epoll_, EPOLL_CTL_MOD, c.fd, &event) < 0) die_errno("epoll_ctl");
}

void Engine::listen_all() {
  for (const Address& address : options_.listen) {
    int fd = ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) die_errno("socket");
    int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address.storage.ss_family == AF_INET6) {
      const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
      int only = IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr) ? 0 : 1;
      ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
    }
    if (!options_.cca.empty() &&
        ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, options_.cca.data(), static_cast<socklen_t>(options_.cca.size())) < 0)
      die_errno("TCP_CONGESTION " + options_.cca);
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.length) < 0)
      die_errno("bind " + address_text(address.storage));
    if (::listen(fd, SOMAXCONN) < 0) die_errno("listen");
    watch(fd, EPOLLIN);
    listeners_.push_back(fd);
  }
  announce("ready");
}

Connection& Engine::adopt(int fd, Phase phase) {
  auto c = std::make_unique<Connection>();
  c->fd = fd;
  c->serial = ++serial_;
  c->phase = phase;
  c->interest = phase == Phase::kConnecting ? EPOLLOUT : EPOLLIN;
  watch(fd, c->interest);
  if (by_fd_.size() <= static_cast<std::size_t>(fd)) by_fd_.resize(static_cast<std::size_t>(fd) + 1);
  by_fd_[static_cast<std::size_t>(fd)] = std::move(c);
  live_++;
  return *by_fd_[static_cast<std::size_t>(fd)];
}

void Engine::accept_all(int listener) {
  // Bounded, so that a flood of connections does not starve the open ones.
  for (int i = 0; i < 256 && !stopping_ && (options_.connections == 0 || launched_ < options_.connections); i++) {
    int fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) return;
      die_errno("accept");
    }
    launched_++;
    established(adopt(fd, Phase::kReceiveHeader));
  }
}

void Engine::fail_unopened(const std::string& reason) {
  failed_++;
  errors_[reason]++;
}

void Engine::connect_one() {
  std::uint64_t id = ++launched_;
  const Address& to = options_.connect[id % options_.connect.size()];
  int fd = ::socket(to.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return fail_unopened(fmt::format("socket: {}", ::strerrorname_np(errno)));
  int err = 0;
  if (!options_.cca.empty() &&
      ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, options_.cca.data(), static_cast<socklen_t>(options_.cca.size())) < 0)
    err = errno;
  if (err == 0 && !options_.bind.empty()) {
    const Address& from = options_.bind[id / options_.connect.size() % options_.bind.size()];
    int on = 1;
    ::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&from.storage), from.length) < 0) err = errno;
  }
  if (err == 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&to.storage), to.length) < 0 && errno != EINPROGRESS)
    err = errno;
  if (err != 0) {
    ::close(fd);
    return fail_unopened(fmt::format("connect: {}", ::strerrorname_np(err)));
  }
  Connection& c = adopt(fd, Phase::kConnecting);
  c.known = true;
  c.id = id;
  c.run = run_;
}

void Engine::start_connections(std::uint64_t now) {
  if (options_.server) return;
  while (!stopping_ && launched_ < options_.connections && live_ < options_.concurrency) {
    if (options_.rate != 0) {
      // 128 bits: launched * 10^9 would overflow after 1.8e10 connections, which the option allows in theory only.
      auto due = started_ns_ + static_cast<std::uint64_t>(static_cast<__uint128_t>(launched_) * kSecond / options_.rate);
      if (due > now) return;
    }
    connect_one();
  }
  if (!announced_open_ && launched_ == options_.connections && opened_ + failed_ >= options_.connections) {
    announced_open_ = true;
    announce(fmt::format("open {}", opened_));
  }
}

void Engine::established(Connection& c) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(c.fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) c.local = address_text(address);
  length = sizeof(address);
  if (::getpeername(c.fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) c.remote = address_text(address);
  length = sizeof(c.cookie);
  ::getsockopt(c.fd, SOL_SOCKET, SO_COOKIE, &c.cookie, &length);
  int on = 1;
  ::setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  c.opened = take_sample(c.fd);
  opened_++;
  cca_at_open_[c.opened->cca]++;
  ecn_at_open_ += c.opened->ecn;
  if (c.known) record("open", c, *c.opened);  // a server first waits for the id
}

void Engine::begin_request(Connection& c) {
  bool last = stopping_ || (options_.hold_s > 0 ? now_ns() >= c.hold_until_ns : c.requests + 1 >= options_.requests);
  c.header = {
      kMagic, last ? 1u : 0u, static_cast<std::uint32_t>(options_.bytes), static_cast<std::uint32_t>(options_.reply_bytes),
      c.id,   c.run};
  c.phase = Phase::kSendHeader;
  c.done = 0;
}

// Moves the rest of the header. False: not now, or the connection is gone.
bool Engine::transfer_header(Connection& c, bool send) {
  char* at = reinterpret_cast<char*>(&c.header) + c.done;
  std::size_t left = sizeof(c.header) - c.done;
  ssize_t moved =
      send ? ::send(c.fd, at, left, MSG_NOSIGNAL | (c.header.body_bytes != 0 ? MSG_MORE : 0)) : ::recv(c.fd, at, left, 0);
  if (moved < 0) {
    if (errno == EAGAIN)
      set_interest(c, send ? EPOLLOUT : EPOLLIN);
    else
      fail(c, fmt::format("{}: {}", send ? "send" : "receive", ::strerrorname_np(errno)));
    return false;
  }
  if (moved == 0 && !send) {
    if (c.done == 0 && c.requests != 0)
      finish(c);  // the client stopped between requests
    else
      fail(c, c.known ? "cut within a request" : "closed without a request");
    return false;
  }
  c.done += static_cast<std::uint64_t>(moved);
  return c.done == sizeof(c.header);
}

// Moves the rest of a body or a reply, whose byte p is (p + id) mod 256.
bool Engine::transfer_body(Connection& c, bool send, std::uint64_t size) {
  while (c.done < size) {
    std::size_t left = static_cast<std::size_t>(std::min<std::uint64_t>(size - c.done, kChunk));
    const unsigned char* expected = pattern_.data() + (c.done + c.id) % kPatternPeriod;
    ssize_t moved = send ? ::send(c.fd, expected, left, MSG_NOSIGNAL) : ::recv(c.fd, chunk_.data(), left, 0);
    if (moved < 0) {
      if (errno == EAGAIN)
        set_interest(c, send ? EPOLLOUT : EPOLLIN);
      else
        fail(c, fmt::format("{}: {}", send ? "send" : "receive", ::strerrorname_np(errno)));
      return false;
    }
    if (moved == 0 && !send) {
      fail(c, options_.server ? "cut within a request" : "cut within a reply");
      return false;
    }
    if (!send && std::memcmp(chunk_.data(), expected, static_cast<std::size_t>(moved)) != 0) {
      fail(c, "wrong data");
      return false;
    }
    c.done += static_cast<std::uint64_t>(moved);
    bytes_ += static_cast<std::uint64_t>(moved);
  }
  return true;
}

void Engine::reply_received(Connection& c) {
  c.requests++;
  requests_++;
  if (c.header.last != 0) {
    c.phase = Phase::kAwaitEnd;
    return;
  }
  if (options_.hold_s > 0 && !stopping_) {
    c.phase = Phase::kIdle;
    set_interest(c, EPOLLIN);  // only the end can come
    std::uint64_t next = now_ns() + options_.period_ms * 1000000;
    timers_.push({std::min(next, std::max(c.hold_until_ns, now_ns())), c.fd, c.serial});
    return;
  }
  begin_request(c);
}

// Drives a connection as far as it goes without waiting.
void Engine::step(Connection& c) {
  const int fd = c.fd;
  const std::uint64_t serial = c.serial;
  // A request loop on a fast path could go on for ever: let others have their turn, epoll is level-triggered.
  for (int turns = 0; turns < 64; turns++) {
    switch (c.phase) {
      case Phase::kConnecting: {
        int err = 0;
        socklen_t length = sizeof(err);
        ::getsockopt(c.fd, SOL_SOCKET, SO_ERROR, &err, &length);
        if (err != 0) return fail(c, fmt::format("connect: {}", ::strerrorname_np(err)));
        established(c);
        c.hold_until_ns = now_ns() + static_cast<std::uint64_t>(options_.hold_s * static_cast<double>(kSecond));
        begin_request(c);
        break;
      }
      case Phase::kSendHeader:
        if (!transfer_header(c, true)) return;
        c.phase = Phase::kSendBody;
        c.done = 0;
        break;
      case Phase::kSendBody:
        if (!transfer_body(c, true, options_.server ? c.header.reply_bytes : c.header.body_bytes)) return;
        c.done = 0;
        if (!options_.server) {
          c.phase = Phase::kReceiveBody;
        } else if (c.header.last != 0) {
          return finish(c);
        } else {
          c.phase = Phase::kReceiveHeader;
        }
        break;
      case Phase::kReceiveHeader:
        if (!transfer_header(c, false)) return;
        if (c.header.magic != kMagic || c.header.body_bytes > kMaxBody || c.header.reply_bytes > kMaxBody)
          return fail(c, "wrong header");
        if (!c.known) {
          c.known = true;
          c.id = c.header.id;
          c.run = c.header.run;
          record("open", c, *c.opened);
        }
        c.phase = Phase::kReceiveBody;
        c.done = 0;
        break;
      case Phase::kReceiveBody:
        if (!transfer_body(c, false, options_.server ? c.header.body_bytes : c.header.reply_bytes)) return;
        c.done = 0;
        if (options_.server) {
          c.requests++;
          requests_++;
          c.phase = Phase::kSendBody;
        } else {
          reply_received(c);
        }
        break;
      case Phase::kIdle:
      case Phase::kAwaitEnd: {
        char byte;
        ssize_t got = ::recv(c.fd, &byte, 1, 0);
        if (got < 0 && errno == EAGAIN) return set_interest(c, EPOLLIN);
        if (got < 0) return fail(c, fmt::format("receive: {}", ::strerrorname_np(errno)));
        if (got > 0) return fail(c, "data nobody asked for");
        if (c.phase == Phase::kIdle) return fail(c, "closed by the server");
        return finish(c);
      }
    }
    if (by_fd_[static_cast<std::size_t>(fd)] == nullptr || by_fd_[static_cast<std::size_t>(fd)]->serial != serial) return;
    if (c.phase == Phase::kIdle) return;
  }
  bool sends = c.phase == Phase::kSendHeader || c.phase == Phase::kSendBody;
  set_interest(c, sends ? EPOLLOUT : EPOLLIN);
}

void Engine::record(const char* event, const Connection& c, const Sample& s) {
  if (record_ == nullptr) return;
  fmt::print(record_,
             "{{\"event\":\"{}\",\"role\":\"{}\",\"id\":{},\"run\":{},\"time_ns\":{},\"local\":\"{}\",\"remote\":\"{}\","
             "\"cca\":\"{}\",\"ecn\":{},\"ecn_seen\":{},\"cwnd_segments\":{},\"rtt_us\":{},\"retransmits\":{},"
             "\"delivered_ce\":{},\"cookie\":{},\"netns\":{}}}\n",
             event, options_.server ? "server" : "client", c.id, c.run, s.time_ns, c.local, c.remote, s.cca, s.ecn, s.ecn_seen,
             s.cwnd, s.rtt_us, s.retransmits, s.delivered_ce, c.cookie, netns_);
}

void Engine::fail(Connection& c, const std::string& reason) {
  failed_++;
  errors_[reason]++;
  if (c.opened) {
    if (!c.known) record("open", c, *c.opened);
    record("fail", c, take_sample(c.fd));
  }
  drop(c);
}

void Engine::finish(Connection& c) {
  Sample sample = take_sample(c.fd);
  closed_++;
  cca_at_close_[sample.cca]++;
  ecn_seen_at_close_ += sample.ecn_seen;
  record("close", c, sample);
  drop(c);
}

void Engine::drop(Connection& c) {
  int fd = c.fd;
  ::close(fd);
  live_--;
  by_fd_[static_cast<std::size_t>(fd)].reset();
}

void Engine::sample_all() {
  std::uint64_t sampled = 0;
  for (const auto& c : by_fd_)
    if (c && c->opened) {
      record("sample", *c, take_sample(c->fd));
      sampled++;
    }
  if (record_ != nullptr) std::fflush(record_);
  announce(fmt::format("sampled {}", sampled));
}

void Engine::request_stop(std::uint64_t now) {
  if (stopping_) return;
  stopping_ = true;
  drain_until_ns_ = now + kDrainNs;
  for (int listener : listeners_) ::close(listener);
  listeners_.clear();
  for (std::size_t fd = 0; fd < by_fd_.size(); fd++) {
    if (!by_fd_[fd]) continue;
    Connection& c = *by_fd_[fd];
    if (options_.server) {
      finish(c);
    } else if (c.phase == Phase::kIdle) {
      begin_request(c);  // the last one
      step(c);
    }
    // One that still connects makes its request too: the server may have accepted it already.
  }
}

void Engine::read_control() {
  char text[256];
  ssize_t got = ::read(STDIN_FILENO, text, sizeof(text));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {  // whoever started us is gone
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, STDIN_FILENO, nullptr);
    return request_stop(now_ns());
  }
  control_buffer_.append(text, static_cast<std::size_t>(got));
  for (std::size_t end; (end = control_buffer_.find('\n')) != std::string::npos;) {
    std::string command = control_buffer_.substr(0, end);
    control_buffer_.erase(0, end + 1);
    if (command == "sample")
      sample_all();
    else if (command == "stop")
      request_stop(now_ns());
    else
      die(2, fmt::format("unknown command '{}' on stdin", command));
  }
  if (control_buffer_.size() > sizeof(text)) die(2, "a command on stdin is too long");
}

void Engine::run_timers(std::uint64_t now) {
  while (!timers_.empty() && timers_.top().due_ns <= now) {
    Timer timer = timers_.top();
    timers_.pop();
    Connection* c = by_fd_[static_cast<std::size_t>(timer.fd)].get();
    if (c == nullptr || c->serial != timer.serial || c->phase != Phase::kIdle) continue;
    begin_request(*c);
    step(*c);
  }
}

bool Engine::ended() const {
  if (live_ != 0) return false;
  if (stopping_) return true;
  return options_.connections != 0 && launched_ >= options_.connections;
}

int Engine::timeout_ms(std::uint64_t now) const {
  std::uint64_t due = stopping_ ? std::min(deadline_ns_, drain_until_ns_) : deadline_ns_;
  if (!timers_.empty()) due = std::min(due, timers_.top().due_ns);
  if (options_.rate != 0 && !stopping_ && launched_ < options_.connections && live_ < options_.concurrency)
    due =
        std::min(due, started_ns_ + static_cast<std::uint64_t>(static_cast<__uint128_t>(launched_) * kSecond / options_.rate));
  return due <= now ? 0 : static_cast<int>((due - now) / 1000000 + 1);
}

int Engine::run() {
  rlimit files{1048576, 1048576};
  if (::setrlimit(RLIMIT_NOFILE, &files) < 0 && ::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  struct stat netns{};
  if (::stat("/proc/self/ns/net", &netns) == 0) netns_ = netns.st_ino;
  if (::getrandom(&run_, sizeof(run_), 0) != sizeof(run_)) die_errno("getrandom");
  run_ >>= 11;  // JSON readers keep 53 bits
  pattern_.resize(kChunk + kPatternPeriod);
  chunk_.resize(kChunk);
  for (std::size_t i = 0; i < pattern_.size(); i++) pattern_[i] = static_cast<unsigned char>(i % kPatternPeriod);
  if (!options_.record.empty()) {
    record_ = std::fopen(options_.record.c_str(), "we");
    if (record_ == nullptr) die_errno(options_.record);
    std::setvbuf(record_, nullptr, _IOFBF, 1 << 20);
  }

  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) die_errno("epoll_create1");
  sigset_t handled;
  sigemptyset(&handled);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&handled, signal);
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);
  signals_ = ::signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC);
  if (signals_ < 0) die_errno("signalfd");
  watch(signals_, EPOLLIN);
  if (options_.control) watch(STDIN_FILENO, EPOLLIN);
  started_ns_ = now_ns();
  deadline_ns_ = started_ns_ + static_cast<std::uint64_t>(options_.max_s * static_cast<double>(kSecond));
  if (options_.server) listen_all();

  std::vector<epoll_event> events(1024);
  for (;;) {
    std::uint64_t now = now_ns();
    run_timers(now);
    start_connections(now);
    if (ended()) break;
    if (now >= deadline_ns_ || (stopping_ && now >= drain_until_ns_)) {
      for (std::size_t fd = 0; fd < by_fd_.size(); fd++) {
        if (!by_fd_[fd]) continue;
        fail(*by_fd_[fd], by_fd_[fd]->phase == Phase::kConnecting ? "not connected in time" : "not ended in time");
      }
      if (!options_.server && !stopping_ && launched_ < options_.connections) {
        errors_["not begun in time"] += options_.connections - launched_;
        failed_ += options_.connections - launched_;
      }
      break;
    }
    int ready = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout_ms(now));
    if (ready < 0 && errno != EINTR) die_errno("epoll_wait");
    // Listeners last: a descriptor freed here must not become a new connection while old events for it are pending.
    std::vector<int> accepting;
    for (int i = 0; i < ready; i++) {
      int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == signals_) {
        signalfd_siginfo info{};
        while (::read(signals_, &info, sizeof(info)) == sizeof(info)) {
          if (info.ssi_signo == SIGUSR1)
            sample_all();
          else
            request_stop(now_ns());
        }
      } else if (fd == STDIN_FILENO) {
        read_control();
      } else if (std::find(listeners_.begin(), listeners_.end(), fd) != listeners_.end()) {
        accepting.push_back(fd);
      } else if (static_cast<std::size_t>(fd) < by_fd_.size() && by_fd_[static_cast<std::size_t>(fd)]) {
        drain_until_ns_ = now_ns() + kDrainNs;
        step(*by_fd_[static_cast<std::size_t>(fd)]);
      }
    }
    for (int listener : accepting)
      if (!stopping_) accept_all(listener);
  }
  if (record_ != nullptr && std::fclose(record_) != 0) die_errno(options_.record);
  print_summary(now_ns() - started_ns_);
  return failed_ == 0 ? 0 : 1;
}

void Engine::print_summary(std::uint64_t elapsed_ns) {
  auto object = [](const std::map<std::string, std::uint64_t>& counts) {
    std::string text;
    for (const auto& [name, count] : counts) text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", name, count);
    return "{" + text + "}";
  };
  announce(
      fmt::format("{{\"role\":\"{}\",\"run\":{},\"netns\":{},\"opened\":{},\"closed\":{},\"failed\":{},\"requests\":{},"
                  "\"bytes\":{},\"seconds\":{:.6f},\"ecn_at_open\":{},\"ecn_seen_at_close\":{},\"cca_at_open\":{},"
                  "\"cca_at_close\":{},\"errors\":{}}}",
                  options_.server ? "server" : "client", run_, netns_, opened_, closed_, failed_, requests_, bytes_,
                  static_cast<double>(elapsed_ns) / static_cast<double>(kSecond), ecn_at_open_, ecn_seen_at_close_,
                  object(cca_at_open_), object(cca_at_close_), object(errors_)));
}

}  // namespace

int main(int argc, char** argv) { return Engine(parse_options(argc, argv)).run(); }
