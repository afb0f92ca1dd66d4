// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// bench_flows: bulk TCP connections through a bottleneck that is there already, and what they cost and got. It runs in the
// guest of
// `./dev vm --icount` (paths.sh), where a nanosecond is an instruction and nothing else runs, so that elapsed time less idle
// time is the number of instructions of the whole machine: sender, switch, receiver.
//
//   bench_flows --sender NETNS --receiver NETNS --address IPV4 --flows N --warm-ms MS --ms MS [OPTION...]
//
//   --cca NAME      of both ends; without it, what the host gives them
//   --bytes B       each flow sends B bytes, waits for one byte of answer, and begins again; 0 (default): it sends without end
//   --queue NETNS   also sample, every millisecond, the backlog of the RED queue of this namespace
//   --label TEXT    of the result
//   --then COMMAND  repeatable: measure for --ms again, from the start of this shell command on; empty: of no command
//
// One line of JSON on stdout for each measured time: {"label", "bytes", "seconds", "instructions", "retransmits", "delivered",
// "delivered_ce", "jain"}, with --queue {"queue_bytes", "queue_p99_bytes", "marked"}, with --then {"cca", "ecn_ends",
// "echoed_flows", "received"}, and of a command {"command_seconds"}. `bytes` are acknowledged ones; `cca`: of all ends at the
// end of it; `ecn_ends`: those that have ECN then; `echoed_flows`: those whose receiver reported marks; `received`: what
// reached the receivers in order in each 10 ms. No payload is copied (sendfile, MSG_TRUNC): what is counted is the work per
// packet.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <future>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::uint16_t kPort = 5000;
constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::uint64_t kSample_ns = 1'000'000;
constexpr std::uint64_t kTick_ns = 10'000'000;
constexpr std::size_t kTicksMax = 12'000;
constexpr std::size_t kFlowsMax = 64;

[[noreturn]] void die(const std::string& what) {
  fmt::print(stderr, "bench_flows: {}: {}\n", what, std::strerror(errno));
  std::exit(1);
}
void check(bool ok, const std::string& what) {
  if (!ok) die(what);
}

struct Options {
  std::string sender, receiver, address, cca, queue, label;
  std::uint64_t flows = 1, warm_ms = 0, ms = 0, bytes = 0;
  std::vector<std::string> then;
};

Options parse(int argc, char** argv) {
  Options options;
  std::map<std::string, std::string*> texts = {{"--sender", &options.sender},   {"--receiver", &options.receiver},
                                               {"--address", &options.address}, {"--cca", &options.cca},
                                               {"--queue", &options.queue},     {"--label", &options.label}};
  std::map<std::string, std::uint64_t*> numbers = {
      {"--flows", &options.flows}, {"--warm-ms", &options.warm_ms}, {"--ms", &options.ms}, {"--bytes", &options.bytes}};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    errno = EINVAL;
    check(i + 1 < argc, name);
    if (name == "--then")
      options.then.emplace_back(argv[i + 1]);
    else if (texts.contains(name))
      *texts[name] = argv[i + 1];
    else if (numbers.contains(name))
      *numbers[name] = std::stoull(argv[i + 1]);
    else
      die(name);
  }
  errno = EINVAL;
  check(!options.sender.empty() && !options.receiver.empty() && options.ms > 0, "missing options");
  check(options.flows > 0 && options.flows <= kFlowsMax, "--flows");
  const std::uint64_t total_ms = options.warm_ms + options.ms * (options.then.size() + 1);
  check(total_ms * 1'000'000 / kTick_ns < kTicksMax, "longer than there is room for");
  return options;
}

std::uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// Time this machine's only CPU was idle.
std::uint64_t idle_ns() {
  std::ifstream timers("/proc/timer_list");
  for (std::string line; std::getline(timers, line);)
    if (line.find(".idle_sleeptime") != std::string::npos) return std::stoull(line.substr(line.find(':') + 1));
  errno = ENODATA;
  die("/proc/timer_list");
}

void sleep_until(std::uint64_t at_ns) {
  const timespec at{static_cast<time_t>(at_ns / 1'000'000'000), static_cast<long>(at_ns % 1'000'000'000)};
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
}

// This thread, but not what it starts, before everything else on the only CPU: a command costs it no more than on another CPU.
void run_ahead(int priority) {
  const sched_param param{.sched_priority = priority};
  check(::sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &param) == 0, "SCHED_FIFO");
}

void enter(const std::string& netns) {
  const int fd = ::open(netns.c_str(), O_RDONLY | O_CLOEXEC);
  check(fd >= 0 && ::setns(fd, CLONE_NEWNET) == 0, netns);
  ::close(fd);
}

int socket_with(const std::string& cca) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check(fd >= 0, "socket");
  if (!cca.empty())
    check(::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cca.data(), static_cast<socklen_t>(cca.size())) == 0, cca);
  return fd;
}

tcp_info info_of(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  check(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0, "TCP_INFO");
  return info;
}

struct End {
  char cca[16];
  bool ecn;
};
End end_of(int fd, const tcp_info& info) {
  End end{{}, (info.tcpi_options & TCPI_OPT_ECN) != 0};
  socklen_t size = sizeof end.cca;
  check(::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, end.cca, &size) == 0, "TCP_CONGESTION");
  end.cca[sizeof end.cca - 1] = '\0';
  return end;
}

sockaddr_in address_of(const std::string& text) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(kPort);
  check(::inet_pton(AF_INET, text.c_str(), &out.sin_addr) == 1, text);
  return out;
}

void watch(int epoll, int fd, std::uint32_t events, std::uint64_t data) {
  epoll_event event{.events = events, .data = {.u64 = data}};
  check(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

// ---- receiver: what it tells the sender ------------------------------------------------------------------------------------

// In memory that both processes map; written by the receiver, and complete for `count` ticks.
struct Received {
  std::atomic<std::uint64_t> begin_ns;  // of tick 0; 0: none yet
  std::atomic<std::size_t> count;
  std::uint64_t bytes[kTicksMax];  // at each tick: in order, since the beginning, of all connections
  End ends[kFlowsMax];             // as of the last one
};

void tick(const std::vector<int>& sockets, Received& out) {
  run_ahead(2);
  const std::uint64_t begin = now_ns();
  for (std::size_t i = 0; i < kTicksMax; ++i) {
    sleep_until(begin + i * kTick_ns);
    for (std::size_t flow = 0; flow < sockets.size(); ++flow) {
      const tcp_info info = info_of(sockets[flow]);
      out.bytes[i] += info.tcpi_bytes_received;
      out.ends[flow] = end_of(sockets[flow], info);
    }
    out.count.store(i + 1);
    if (i == 0) out.begin_ns.store(begin);
  }
}

// ---- receiver --------------------------------------------------------------------------------------------------------------

// Woken once for so many bytes, not for each packet.
void wake_at(int fd, std::uint64_t bytes) {
  const int low = static_cast<int>(std::min<std::uint64_t>(bytes, 65536));
  check(::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low) == 0, "SO_RCVLOWAT");
}

[[noreturn]] void receive(const Options& options, int ready, Received& received) {
  enter(options.receiver);
  const int listener = socket_with(options.cca);
  const sockaddr_in at = address_of(options.address);
  check(::bind(listener, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 && ::listen(listener, 4096) == 0, "listen");
  check(::write(ready, "r", 1) == 1, "write");
  const std::uint64_t request = options.bytes != 0 ? options.bytes : ~std::uint64_t{0};
  struct Connection {
    int fd;
    std::uint64_t left;
  };
  std::vector<Connection> connections;
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  for (std::uint64_t i = 0; i < options.flows; ++i) {
    connections.push_back({::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC), request});
    check(connections.back().fd >= 0, "accept");
    wake_at(connections.back().fd, request);
    watch(epoll, connections.back().fd, EPOLLIN, i);
  }
  if (!options.then.empty()) {
    std::vector<int> sockets;
    for (const Connection& connection : connections) sockets.push_back(connection.fd);
    std::thread(tick, std::move(sockets), std::ref(received)).detach();
    run_ahead(1);
  }
  for (;;) {
    epoll_event events[64];
    const int n = ::epoll_wait(epoll, events, 64, -1);
    for (int i = 0; i < n; ++i) {
      Connection& connection = connections[events[i].data.u64];
      const ssize_t got = ::recv(connection.fd, nullptr, std::min<std::uint64_t>(connection.left, kChunk), MSG_TRUNC);
      if (got == 0) std::_Exit(0);
      if (got < 0) continue;
      connection.left -= static_cast<std::uint64_t>(got);
      if (connection.left == 0) {
        check(::send(connection.fd, "a", 1, MSG_NOSIGNAL) == 1, "answer");
        connection.left = request;
      }
      wake_at(connection.fd, connection.left);
    }
  }
}

// ---- the queue -------------------------------------------------------------------------------------------------------------

class Queue {
 public:
  explicit Queue(const std::string& netns) {
    enter(netns);
    fd_ = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    check(fd_ >= 0, "netlink");
  }
  struct Sample {
    std::uint64_t backlog_bytes = 0, marked = 0;
  };
  Sample sample() const {
    struct {
      nlmsghdr header;
      tcmsg message;
    } request{};
    request.header.nlmsg_len = sizeof request;
    request.header.nlmsg_type = RTM_GETQDISC;
    request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    check(::send(fd_, &request, sizeof request, 0) == sizeof request, "RTM_GETQDISC");
    Sample out;
    for (;;) {
      alignas(nlmsghdr) char buffer[16384];
      const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
      check(n > 0, "netlink");
      auto left = static_cast<unsigned>(n);
      for (auto* header = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
        if (header->nlmsg_type == NLMSG_DONE) return out;
        add(header, out);
      }
    }
  }

 private:
  static void add(nlmsghdr* header, Sample& out) {
    bool red = false;
    tc_stats stats{};
    tc_red_xstats marks{};
    auto* message = static_cast<tcmsg*>(NLMSG_DATA(header));
    auto left = static_cast<unsigned>(header->nlmsg_len - NLMSG_LENGTH(sizeof *message));
    for (auto* part = TCA_RTA(message); RTA_OK(part, left); part = RTA_NEXT(part, left)) {
      const auto size = static_cast<std::size_t>(RTA_PAYLOAD(part));
      if (part->rta_type == TCA_KIND) red = std::string(static_cast<char*>(RTA_DATA(part))) == "red";
      if (part->rta_type == TCA_STATS) std::memcpy(&stats, RTA_DATA(part), std::min(size, sizeof stats));
      if (part->rta_type == TCA_XSTATS) std::memcpy(&marks, RTA_DATA(part), std::min(size, sizeof marks));
    }
    if (!red) return;
    out.backlog_bytes += stats.backlog;
    out.marked += marks.marked;
  }
  int fd_ = -1;
};

// ---- sender ----------------------------------------------------------------------------------------------------------------

struct Flow {
  int fd;
  std::uint64_t left;
  tcp_info before{};
};

class Sender {
 public:
  explicit Sender(const Options& options)
      : request_(options.bytes != 0 ? options.bytes : ~std::uint64_t{0}),
        payload_(::memfd_create("payload", MFD_CLOEXEC)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    enter(options.sender);
    check(::ftruncate(payload_, kChunk) == 0, "memfd");
    const sockaddr_in to = address_of(options.address);
    for (std::uint64_t i = 0; i < options.flows; ++i) {
      flows_.push_back({socket_with(options.cca), request_, {}});
      const int fd = flows_.back().fd;
      const int low = 131072;
      check(::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &low, sizeof low) == 0, "TCP_NOTSENT_LOWAT");
      check(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0, "connect");
      check(::fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
      watch(epoll_, fd, EPOLLIN | EPOLLOUT | EPOLLET, i);
    }
  }

  // Until a time; with `queue`, its backlog goes to `samples`.
  void run(std::uint64_t end, const Queue* queue, std::vector<std::uint64_t>& samples) {
    std::uint64_t next = now_ns();
    for (std::uint64_t now = next; now < end; now = now_ns()) {
      if (queue != nullptr && now >= next) {
        samples.push_back(queue->sample().backlog_bytes);
        next += kSample_ns;
      }
      const std::uint64_t until = queue != nullptr ? std::min(next, end) : end;
      const std::uint64_t wait = until > now ? until - now : 0;
      const timespec timeout{static_cast<time_t>(wait / 1'000'000'000), static_cast<long>(wait % 1'000'000'000)};
      epoll_event events[64];
      const int n = ::epoll_pwait2(epoll_, events, 64, &timeout, nullptr);
      for (int i = 0; i < n; ++i) serve(flows_[events[i].data.u64]);
    }
  }
  std::vector<Flow>& flows() { return flows_; }

 private:
  void serve(Flow& flow) {
    for (;;) {
      if (flow.left == 0) {
        char answer;
        if (::recv(flow.fd, &answer, 1, 0) != 1) return;
        flow.left = request_;
      }
      off_t offset = 0;
      const ssize_t sent = ::sendfile(flow.fd, payload_, &offset, std::min<std::uint64_t>(flow.left, kChunk));
      if (sent < 0) {
        check(errno == EAGAIN, "sendfile");
        return;
      }
      flow.left -= static_cast<std::uint64_t>(sent);
    }
  }

  std::uint64_t request_;
  int payload_, epoll_;
  std::vector<Flow> flows_;
};

// ---- measured times --------------------------------------------------------------------------------------------------------

// A shell command beside the flows; seconds until it ended.
double run_command(const std::string& line) {
  const std::uint64_t begin = now_ns();
  errno = EPROTO;
  check(std::system(("{ " + line + "; } >&2").c_str()) == 0, line);
  return static_cast<double>(now_ns() - begin) / 1e9;
}

std::size_t tick_at(const Received& received, std::uint64_t time_ns) {
  const std::uint64_t begin = received.begin_ns.load();
  return time_ns <= begin ? 0 : (time_ns - begin) / kTick_ns;
}

void add_ends(Sender& sender, const Received& received, std::uint64_t begin, std::uint64_t end, nlohmann::ordered_json& out) {
  const std::size_t first = tick_at(received, begin), last = tick_at(received, end);
  errno = ENODATA;
  check(received.count.load() > last, "the receiver's ticks");
  std::set<std::string> ccas;
  std::uint64_t ecn_ends = 0;
  const auto see = [&](const End& one) {
    ccas.insert(one.cca);
    ecn_ends += one.ecn;
  };
  for (std::size_t flow = 0; flow < sender.flows().size(); ++flow) {
    const int fd = sender.flows()[flow].fd;
    see(end_of(fd, info_of(fd)));
    see(received.ends[flow]);
  }
  std::vector<std::uint64_t> windows;
  for (std::size_t i = first; i < last; ++i) windows.push_back(received.bytes[i + 1] - received.bytes[i]);
  out["cca"] = ccas;
  out["ecn_ends"] = ecn_ends;
  out["received"] = windows;
}

// What happened in --ms, from now on, and from the start of `command` on.
nlohmann::ordered_json measure(const Options& options, Sender& sender, const Queue* queue, const Received& received,
                               const std::string& command) {
  for (Flow& flow : sender.flows()) flow.before = info_of(flow.fd);
  const Queue::Sample before = queue != nullptr ? queue->sample() : Queue::Sample{};
  std::vector<std::uint64_t> backlog;
  const std::uint64_t idle = idle_ns(), begin = now_ns();
  std::future<double> ended;
  if (!command.empty()) ended = std::async(std::launch::async, run_command, command);
  sender.run(begin + options.ms * 1'000'000, queue, backlog);
  const std::uint64_t end = now_ns(), busy = end - begin - (idle_ns() - idle);
  errno = ETIMEDOUT;
  check(!ended.valid() || ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready, command);

  double bytes = 0, squares = 0;
  std::uint64_t retransmits = 0, delivered = 0, delivered_ce = 0, echoed_flows = 0;
  for (const Flow& flow : sender.flows()) {
    const tcp_info after = info_of(flow.fd);
    const auto got = static_cast<double>(after.tcpi_bytes_acked - flow.before.tcpi_bytes_acked);
    bytes += got;
    squares += got * got;
    retransmits += after.tcpi_total_retrans - flow.before.tcpi_total_retrans;
    delivered += after.tcpi_delivered - flow.before.tcpi_delivered;
    delivered_ce += after.tcpi_delivered_ce - flow.before.tcpi_delivered_ce;
    echoed_flows += after.tcpi_delivered_ce != flow.before.tcpi_delivered_ce;
  }
  nlohmann::ordered_json out = {{"label", options.label},
                                {"bytes", bytes},
                                {"seconds", static_cast<double>(end - begin) / 1e9},
                                {"instructions", busy},
                                {"retransmits", retransmits},
                                {"delivered", delivered},
                                {"delivered_ce", delivered_ce},
                                {"jain", bytes * bytes / (static_cast<double>(options.flows) * squares)}};
  if (!options.then.empty()) {
    out["echoed_flows"] = echoed_flows;
    add_ends(sender, received, begin, end, out);
  }
  if (queue != nullptr) {
    std::uint64_t sum = 0;
    for (const std::uint64_t sample : backlog) sum += sample;
    std::ranges::sort(backlog);
    out["queue_bytes"] = static_cast<double>(sum) / static_cast<double>(backlog.size());
    out["queue_p99_bytes"] = backlog[backlog.size() * 99 / 100];
    out["marked"] = queue->sample().marked - before.marked;
  }
  if (ended.valid()) out["command_seconds"] = ended.get();
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  int ready[2];
  check(::pipe(ready) == 0, "pipe");
  void* shared = ::mmap(nullptr, sizeof(Received), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(shared != MAP_FAILED, "mmap");
  auto* received = new (shared) Received{};
  const pid_t child = ::fork();
  check(child >= 0, "fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    receive(options, ready[1], *received);
  }
  char go;
  check(::read(ready[0], &go, 1) == 1, "the receiver");
  Sender sender(options);
  Queue* queue = options.queue.empty() ? nullptr : new Queue(options.queue);  // enters its namespace: the connections are made

  if (!options.then.empty()) run_ahead(1);
  std::vector<std::uint64_t> unused;
  sender.run(now_ns() + options.warm_ms * 1'000'000, nullptr, unused);
  std::vector<std::string> commands = {""};
  commands.insert(commands.end(), options.then.begin(), options.then.end());
  for (const std::string& command : commands) fmt::print("{}\n", measure(options, sender, queue, *received, command).dump());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return 0;
}
