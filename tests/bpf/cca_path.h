// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A path with a delay, for kernels without netem: two network namespaces, each with a TUN device, and a thread between them
// that delays every packet, serves a bottleneck of a given rate, and drops, marks or holds the data packets that the test
// names. Everything ends with the object.
//
//   Path path({.one_way_us = 10000});
//   path.on_data([](const Packet& p) { return Fate{.drop = p.number == 1000}; });
//   Flow flow(path, "cubic");      // a bulk transfer from "a" to "b"
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <mutex>
#include <queue>
#include <string>
#include <thread>
#include <vector>

#include "base/netns_thread.h"
#include "base/unique_fd.h"
#include "bpf/policy_fixture.h"
#include "bpf/scratch.h"

namespace sluice::test {

struct PathSpec {
  std::uint32_t one_way_us = 10000;
  std::uint64_t rate_bytes_per_s = 0;  // of the direction a -> b; 0 = not limited
  std::uint64_t queue_bytes = 0;       // before the bottleneck; more is dropped; 0 = no limit
  bool ecn = false;                    // negotiated at both ends
  int netns[2] = {-1, -1};             // namespaces of a and b, if they exist already; else it makes them
};

struct Packet {
  std::uint64_t number;  // data packets from a to b, from 1; retransmissions count
  std::uint32_t seq;
  std::uint32_t payload_bytes;
  bool ect;
};
struct Ack {  // what b sends to a
  std::uint32_t ack;
  bool ece;
  bool syn;
};
struct Fate {
  bool drop = false;
  bool mark = false;  // CE, if it carries ECT
  std::uint32_t hold_us = 0;
};

class Path {
 public:
  static constexpr std::uint16_t kPort = 7001;

  explicit Path(const PathSpec& spec) : spec_(spec), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (int side = 0; side < 2; ++side) {
      netns_[side] = spec_.netns[side] < 0 ? scratch_netns() : UniqueFd(::dup(spec_.netns[side]));
      must(on_thread_in_netns(netns_[side].get(), [&] { open_tun(side); }).has_value(), "enter namespace");
    }
    relay_ = std::thread([this] { relay(); });
  }
  ~Path() {
    stop_ = true;
    eventfd_write(wake_.get(), 1);
    relay_.join();
  }
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;

  int netns(int side) const { return netns_[side].get(); }
  std::uint32_t netns_inode() const {  // of a, the sender
    struct stat info{};
    must(::fstat(netns(0), &info) == 0, "fstat");
    return static_cast<std::uint32_t>(info.st_ino);
  }
  // Asked for every data packet, on the relay's thread.
  void on_data(std::function<Fate(const Packet&)> decide) {
    std::lock_guard lock(mutex_);
    decide_ = std::move(decide);
  }
  // Told of every packet from b to a, on the relay's thread.
  void on_ack(std::function<void(const Ack&)> see) {
    std::lock_guard lock(mutex_);
    see_ = std::move(see);
  }
  // From now on every packet that a side sends (0 = a, 1 = b) takes that much longer. Packets may overtake when it becomes
  // less.
  void delay(int side, std::uint32_t us) { delay_us_[side] = us; }
  std::uint64_t marked() const { return marked_; }
  std::uint64_t dropped() const { return dropped_; }

  // Runs `body` in the namespace of a side (0 = a, 1 = b).
  void in(int side, const std::function<void()>& body) const {
    must(on_thread_in_netns(netns(side), body).has_value(), "enter namespace");
  }
  static sockaddr_in address(int side, std::uint16_t port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(port);
    out.sin_addr.s_addr = htonl(0x0a5a0001u + static_cast<std::uint32_t>(side));  // 10.90.0.1, 10.90.0.2
    return out;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    Clock::time_point due;
    std::uint64_t order;
    int to;
    std::vector<char> bytes;
    bool operator>(const Waiting& other) const { return std::tie(due, order) > std::tie(other.due, other.order); }
  };

  void open_tun(int side) {
    tun_[side].reset(::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
    ifreq request{};
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    std::strncpy(request.ifr_name, "path", IFNAMSIZ - 1);
    must(tun_[side].valid() && ioctl(tun_[side].get(), TUNSETIFF, &request) == 0, "TUNSETIFF");
    run("ip addr add 10.90.0." + std::to_string(side + 1) + "/24 dev path");
    run("ip link set path up txqueuelen 10000 && ip link set lo up");
    auto sysctl = [](const char* key, const char* value) {
      std::ofstream file(std::string("/proc/sys/net/ipv4/") + key);
      file << value << std::flush;
      must(file.good(), key);
    };
    sysctl("tcp_ecn", spec_.ecn ? "1" : "0");
    sysctl("tcp_no_metrics_save", "1");
    sysctl("tcp_wmem", "4096 16777216 16777216");
    sysctl("tcp_rmem", "4096 16777216 16777216");
  }

  void relay() {
    std::vector<char> buffer(65536);
    while (!stop_) {
      std::array<pollfd, 3> fds{{{tun_[0].get(), POLLIN, 0}, {tun_[1].get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
      timespec timeout{1, 0};
      if (!waiting_.empty()) {
        auto left = std::chrono::nanoseconds(waiting_.top().due - Clock::now()).count();
        timeout = left > 0 ? timespec{left / 1000000000, left % 1000000000} : timespec{};
      }
      ::ppoll(fds.data(), fds.size(), &timeout, nullptr);
      for (int from = 0; from < 2; ++from)
        for (ssize_t n; (n = ::read(tun_[from].get(), buffer.data(), buffer.size())) > 0;)
          take(from, {buffer.begin(), buffer.begin() + n});
      while (!waiting_.empty() && waiting_.top().due <= Clock::now()) {
        const Waiting& next = waiting_.top();
        // A full receive queue would be a loss that nobody asked for; the transfer shows it.
        [[maybe_unused]] ssize_t n = ::write(tun_[next.to].get(), next.bytes.data(), next.bytes.size());
        waiting_.pop();
      }
    }
  }

  void take(int from, std::vector<char> bytes) {
    auto* ip = reinterpret_cast<unsigned char*>(bytes.data());
    if (bytes.size() < 40 || ip[0] >> 4 != 4 || ip[9] != IPPROTO_TCP) return;
    const std::size_t ip_bytes = (ip[0] & 15u) * 4u, tcp_bytes = (ip[ip_bytes + 12] >> 4) * 4u;
    const auto now = Clock::now();
    auto due = now + std::chrono::microseconds(spec_.one_way_us + delay_us_[from]);
    const auto payload = static_cast<std::uint32_t>(bytes.size() - ip_bytes - tcp_bytes);

    const auto word = [&](std::size_t at) {
      std::uint32_t value;
      std::memcpy(&value, ip + ip_bytes + at, 4);
      return ntohl(value);
    };
    const unsigned flags = ip[ip_bytes + 13];
    if (from == 1) {
      std::lock_guard lock(mutex_);
      if (see_) see_({word(8), (flags & 0x40) != 0, (flags & 0x02) != 0});
    }
    if (from == 0 && payload > 0) {
      const Packet packet{++number_, word(4), payload, (ip[1] & 3) != 0};
      Fate fate;
      {
        std::lock_guard lock(mutex_);
        if (decide_) fate = decide_(packet);
      }
      if (fate.drop) {
        ++dropped_;
        return;
      }
      if (fate.mark && packet.ect) {
        ++marked_;
        mark(ip);
      }
      if (spec_.rate_bytes_per_s != 0) {
        const auto serve = std::chrono::nanoseconds(bytes.size() * 1000000000 / spec_.rate_bytes_per_s);
        const auto backlog = free_at_ > now ? free_at_ - now : Clock::duration{};
        const auto limit = std::chrono::nanoseconds(spec_.queue_bytes * 1000000000 / spec_.rate_bytes_per_s);
        if (spec_.queue_bytes != 0 && backlog > limit) {
          ++dropped_;
          return;
        }
        free_at_ = std::max(free_at_, now) + serve;
        due += free_at_ - now;
      }
      due += std::chrono::microseconds(fate.hold_us);
    }
    waiting_.push({due, ++order_, 1 - from, std::move(bytes)});
  }

  // CE in the type of service, and the header checksum mended (RFC 1624).
  static void mark(unsigned char* ip) {
    auto word = [&](int at) { return static_cast<std::uint32_t>(ip[at] << 8 | ip[at + 1]); };
    const std::uint32_t before = word(0);
    ip[1] |= 3;
    std::uint32_t sum = (~word(10) & 0xffff) + (~before & 0xffff) + word(0);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = ~((sum & 0xffff) + (sum >> 16)) & 0xffff;
    ip[10] = static_cast<unsigned char>(sum >> 8);
    ip[11] = static_cast<unsigned char>(sum);
  }

  PathSpec spec_;
  UniqueFd netns_[2], tun_[2], wake_;
  std::mutex mutex_;
  std::function<Fate(const Packet&)> decide_;
  std::function<void(const Ack&)> see_;
  std::atomic<std::uint32_t> delay_us_[2] = {0, 0};
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> marked_ = 0, dropped_ = 0;
  // the relay's own
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting_;
  std::uint64_t number_ = 0, order_ = 0;
  Clock::time_point free_at_;
  std::thread relay_;
};

// A connection from a to b whose sender always has data, until it is told to end.
class Flow {
 public:
  // `cca` is set before connect(), as an application does; "" = the namespace's default. `server_cca` is the listener's.
  Flow(const Path& path, const std::string& cca, const std::string& server_cca = "") {
    path.in(1, [&] {
      listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      auto at = Path::address(1, Path::kPort);
      const int on = 1;
      must(setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0, "SO_REUSEADDR");
      if (!server_cca.empty()) set_cca(listener_.get(), server_cca);
      must(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0, "bind");
      must(::listen(listener_.get(), 8) == 0, "listen");
    });
    path.in(0, [&] {
      client_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (!cca.empty()) set_cca(cca);
      auto to = Path::address(1, Path::kPort);
      must(::connect(client_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0, "connect");
    });
    server_.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    must(server_.valid(), "accept");
  }
  ~Flow() {
    // Closing aborts: a socket that waits for the last acknowledgement would keep the CCA and the namespace for minutes.
    const linger abort{1, 0};
    for (int fd : {client_.get(), server_.get()}) {
      must(setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort)) == 0, "SO_LINGER");
      ::shutdown(fd, SHUT_RDWR);
    }
    if (sender_.joinable()) sender_.join();
    if (receiver_.joinable()) receiver_.join();
  }
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  void start() {
    sender_ = std::thread([this] {
      const std::vector<char> data(65536, 'x');
      while (::send(client_.get(), data.data(), data.size(), MSG_NOSIGNAL) > 0) {
      }
    });
    receiver_ = std::thread([this] {
      std::vector<char> data(1 << 18);
      for (ssize_t n; (n = ::recv(server_.get(), data.data(), data.size(), 0)) > 0;) received_ += static_cast<std::uint64_t>(n);
    });
  }
  std::uint64_t received() const { return received_; }
  int fd() const { return client_.get(); }
  void set_cca(const std::string& cca) const { set_cca(client_.get(), cca); }
  std::string cca() const { return cca_of(client_); }
  std::string server_cca() const { return cca_of(server_); }
  tcp_info info() const {
    tcp_info out{};
    socklen_t size = sizeof(out);
    must(getsockopt(client_.get(), IPPROTO_TCP, TCP_INFO, &out, &size) == 0, "TCP_INFO");
    return out;
  }
  bool ecn() const { return (info().tcpi_options & TCPI_OPT_ECN) != 0; }

 private:
  static void set_cca(int fd, const std::string& cca) {
    must(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cca.c_str(), static_cast<socklen_t>(cca.size())) == 0,
         "TCP_CONGESTION " + cca);
  }

  UniqueFd listener_, client_, server_;
  std::atomic<std::uint64_t> received_ = 0;
  std::thread sender_, receiver_;
};

}  // namespace sluice::test
