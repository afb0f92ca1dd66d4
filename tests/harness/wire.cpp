// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "harness/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

namespace sluice::test {
namespace {

constexpr char kInterface[] = "wire0";
constexpr std::size_t kPacketMax = 65536;
constexpr std::uint8_t kCe = 3;
constexpr int kTunMajor = 10, kTunMinor = 200;  // Documentation/admin-guide/devices.txt
constexpr Millis kIpTimeout{20000};

using Bytes = std::vector<std::uint8_t>;

// The node may be missing (a guest without udev); opening one loads the driver.
Result<Fd> open_tun() {
  Fd fd(::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (fd) return fd;
  char folder[] = "/tmp/sluice-wire-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return fail_errno(errno, "cannot make a folder for a device node");
  const std::string node = std::string(folder) + "/tun";
  if (::mknod(node.c_str(), S_IFCHR | 0600, makedev(kTunMajor, kTunMinor)) == 0)
    fd = Fd(::open(node.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  const int error = errno;
  ::unlink(node.c_str());
  ::rmdir(folder);
  if (!fd) return fail_errno(error, "cannot open a TUN device");
  return fd;
}

std::uint16_t ip_checksum(std::span<const std::uint8_t> header) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i + 1 < header.size(); i += 2) sum += static_cast<std::uint32_t>(header[i] << 8 | header[i + 1]);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

void set_ce(Bytes& bytes) {
  if (bytes[0] >> 4 == 6) {
    bytes[1] |= kCe << 4;
    return;
  }
  bytes[1] |= kCe;
  bytes[10] = bytes[11] = 0;
  const std::uint16_t sum = ip_checksum({bytes.data(), static_cast<std::size_t>(bytes[0] & 15) * 4});
  bytes[10] = static_cast<std::uint8_t>(sum >> 8);
  bytes[11] = static_cast<std::uint8_t>(sum);
}

std::string endpoint(int family, const std::uint8_t* address, const std::uint8_t* port) {
  char text[INET6_ADDRSTRLEN];
  ::inet_ntop(family, address, text, sizeof text);
  const int number = port[0] << 8 | port[1];
  return family == AF_INET ? fmt::format("{}:{}", text, number) : fmt::format("[{}]:{}", text, number);
}

// A packet and the address it goes to; nothing for what is not TCP.
std::optional<std::pair<WirePacket, std::string>> decode(const Bytes& bytes) {
  WirePacket packet;
  std::size_t head = 0, total = 0;
  int family = AF_INET;
  std::size_t source = 12, destination = 16;
  if (bytes.size() >= sizeof(iphdr) && bytes[0] >> 4 == 4) {
    if (bytes[9] != IPPROTO_TCP) return std::nullopt;
    head = static_cast<std::size_t>(bytes[0] & 15) * 4;
    total = static_cast<std::size_t>(bytes[2] << 8 | bytes[3]);
    packet.ecn = bytes[1] & 3;
  } else if (bytes.size() >= sizeof(ip6_hdr) && bytes[0] >> 4 == 6) {
    if (bytes[6] != IPPROTO_TCP) return std::nullopt;
    family = AF_INET6;
    source = 8;
    destination = 24;
    head = sizeof(ip6_hdr);
    total = head + static_cast<std::size_t>(bytes[4] << 8 | bytes[5]);
    packet.ecn = bytes[1] >> 4 & 3;
  }
  if (head == 0 || total > bytes.size() || total < head + sizeof(tcphdr)) return std::nullopt;
  const std::uint8_t* tcp = bytes.data() + head;
  const std::uint8_t flags = tcp[13];
  packet.payload_bytes = total - head - static_cast<std::size_t>(tcp[12] >> 4) * 4;
  packet.fin = (flags & 0x01) != 0;
  packet.syn = (flags & 0x02) != 0;
  packet.rst = (flags & 0x04) != 0;
  packet.ack = (flags & 0x10) != 0;
  packet.ece = (flags & 0x40) != 0;
  packet.cwr = (flags & 0x80) != 0;
  packet.from = endpoint(family, bytes.data() + source, tcp);
  packet.to = endpoint(family, bytes.data() + destination, tcp + 2);
  char text[INET6_ADDRSTRLEN];
  ::inet_ntop(family, bytes.data() + destination, text, sizeof text);
  return std::pair{std::move(packet), std::string(text)};
}

}  // namespace

struct Wire::State {
  struct Held {
    WirePacket packet;
    Bytes bytes;
    std::size_t port;
  };

  std::vector<Fd> ports;
  std::map<std::string, std::size_t> port_of;  // address -> ports
  Fd stop;
  std::thread carrier;

  mutable std::mutex mutex;
  std::condition_variable held_changed;
  std::vector<WirePacket> seen;
  std::vector<Held> held;
  Match hold, lose;
  bool marking = false;

  ~State() {
    if (!carrier.joinable()) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(stop.get(), &one, sizeof one);
    carrier.join();
  }

  void send(Bytes& bytes, std::size_t port, const WirePacket& packet) {
    if (marking && packet.ecn != 0 && !packet.syn) set_ce(bytes);
    // A full queue loses it, as a wire does.
    [[maybe_unused]] const auto written = ::write(ports[port].get(), bytes.data(), bytes.size());
  }

  void carry(Bytes& bytes) {
    auto decoded = decode(bytes);
    if (!decoded) return;
    const auto port = port_of.find(decoded->second);
    if (port == port_of.end()) return;
    const WirePacket& packet = decoded->first;
    const std::lock_guard lock(mutex);
    seen.push_back(packet);
    if (lose && lose(packet)) {
      lose = nullptr;
    } else if (hold && hold(packet)) {
      held.push_back({packet, bytes, port->second});
      held_changed.notify_all();
    } else {
      send(bytes, port->second, packet);
    }
  }

  void run() {
    std::vector<pollfd> fds;
    for (const Fd& port : ports) fds.push_back({port.get(), POLLIN, 0});
    fds.push_back({stop.get(), POLLIN, 0});
    Bytes bytes;
    while (::poll(fds.data(), fds.size(), -1) >= 0 || errno == EINTR) {
      if (fds.back().revents != 0) return;
      for (std::size_t i = 0; i < ports.size(); ++i) {
        if (fds[i].revents == 0) continue;
        bytes.resize(kPacketMax);
        const ssize_t length = ::read(ports[i].get(), bytes.data(), bytes.size());
        if (length <= 0) continue;
        bytes.resize(static_cast<std::size_t>(length));
        carry(bytes);
      }
    }
  }
};

Wire::Wire(std::unique_ptr<State> state) : state_(std::move(state)) {}
Wire::Wire(Wire&&) noexcept = default;
Wire& Wire::operator=(Wire&&) noexcept = default;
Wire::~Wire() = default;

Result<Wire> Wire::create(const std::vector<Port>& ports) {
  auto state = std::make_unique<State>();
  state->stop = Fd(::eventfd(0, EFD_CLOEXEC));
  if (!state->stop) return fail_errno(errno, "cannot make an eventfd");
  for (const Port& port : ports) {
    std::string commands = fmt::format("ip link set {} txqueuelen 10000 up", kInterface);
    for (const std::string& address : port.addresses) {
      commands += fmt::format(" && ip addr add {} dev {}{}", address, kInterface,
                              address.find(':') == std::string::npos ? "" : " nodad");
      state->port_of[address.substr(0, address.find('/'))] = state->ports.size();
    }
    Fd device;
    SLUICE_CHECK(port.host->call([&]() -> Status {
      SLUICE_TRY(opened, open_tun());
      ifreq request{};
      std::memcpy(request.ifr_name, kInterface, sizeof kInterface);
      request.ifr_flags = IFF_TUN | IFF_NO_PI;
      if (::ioctl(opened.get(), TUNSETIFF, &request) != 0)
        return fail_errno(errno, "cannot make {} on host {}", kInterface, port.host->name());
      device = std::move(opened);
      return {};
    }));
    state->ports.push_back(std::move(device));
    SLUICE_TRY(set_up, port.host->run({"sh", "-c", commands}, kIpTimeout));
    if (set_up.status != 0) return fail(Code::kInternal, "{} of host {}: {}", kInterface, port.host->name(), set_up.text);
  }
  State& shared = *state;
  shared.carrier = std::thread([&shared] { shared.run(); });
  return Wire(std::move(state));
}

void Wire::mark(bool on) {
  const std::lock_guard lock(state_->mutex);
  state_->marking = on;
}

void Wire::hold(Match match) {
  const std::lock_guard lock(state_->mutex);
  state_->hold = std::move(match);
}

Status Wire::await_held(std::size_t packets, Millis timeout) {
  std::unique_lock lock(state_->mutex);
  if (state_->held_changed.wait_for(lock, timeout, [&] { return state_->held.size() >= packets; })) return {};
  return fail(Code::kTimeout, "{} packets are held, not {}", state_->held.size(), packets);
}

std::vector<WirePacket> Wire::held() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<WirePacket> list;
  for (const auto& item : state_->held) list.push_back(item.packet);
  return list;
}

void Wire::release() {
  const std::lock_guard lock(state_->mutex);
  state_->hold = nullptr;
  for (auto& item : state_->held) state_->send(item.bytes, item.port, item.packet);
  state_->held.clear();
}

void Wire::lose_one(Match match) {
  const std::lock_guard lock(state_->mutex);
  state_->lose = std::move(match);
}

std::vector<WirePacket> Wire::packets() const {
  const std::lock_guard lock(state_->mutex);
  return state_->seen;
}

}  // namespace sluice::test
