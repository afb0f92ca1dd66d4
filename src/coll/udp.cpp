// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/udp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace sluice::coll {
namespace {

constexpr std::size_t kBatch = 64;
constexpr std::size_t kPacketMax = sizeof(sl_coll_header) + 4 * SL_COLL_WORDS_MAX;
constexpr std::size_t kMessageMax = 65'000;  // of datagrams that the kernel cuts
constexpr int kBuffer = 4 << 20;             // bytes; the kernel grants what its limits allow

sockaddr_in6 to_socket(const Address& address) {
  sockaddr_in6 out{};
  out.sin6_family = AF_INET6;
  out.sin6_port = htons(address.port);
  std::memcpy(&out.sin6_addr, address.ip.data(), address.ip.size());
  return out;
}

Address from_socket(const sockaddr_in6& address) {
  Address out;
  std::memcpy(out.ip.data(), &address.sin6_addr, out.ip.size());
  out.port = ntohs(address.sin6_port);
  return out;
}

// Nothing wrong with us or the socket: a full queue, or what ICMP told about an earlier packet.
bool passing(int error) {
  return error == EAGAIN || error == ENOBUFS || error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == EINTR;
}

}  // namespace

Result<UdpPort> UdpPort::open(const Address& local) {
  UdpPort port;
  port.fd_ = UniqueFd(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!port.fd_) return fail_errno(errno, "cannot open a UDP socket");
  const int off = 0;
  if (::setsockopt(port.fd_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0)
    return fail_errno(errno, "cannot use one socket for IPv4 and IPv6");
  for (int option : {SO_RCVBUF, SO_SNDBUF})
    std::ignore = ::setsockopt(port.fd_.get(), SOL_SOCKET, option, &kBuffer, sizeof kBuffer);
  sockaddr_in6 address = to_socket(local);
  socklen_t length = sizeof address;
  if (::bind(port.fd_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    return fail_errno(errno, "cannot bind UDP port {}", local.port);
  if (::getsockname(port.fd_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return fail_errno(errno, "cannot read the address of a UDP socket");
  port.local_ = from_socket(address);
  return port;
}

// How many of the first datagrams can be one message.
std::size_t UdpPort::run_of(std::span<const Datagram> datagrams) const {
  const std::size_t size = datagrams[0].bytes.size();
  std::size_t count = 1, total = size;
  while (segments_ && count < datagrams.size() && datagrams[count - 1].bytes.size() == size) {
    const Datagram& next = datagrams[count];
    if (next.to != datagrams[0].to || next.bytes.size() > size || total + next.bytes.size() > kMessageMax) break;
    total += next.bytes.size();
    count++;
  }
  return count;
}

Status UdpPort::send(std::span<const Datagram> datagrams) {
  struct alignas(cmsghdr) Control {
    char bytes[CMSG_SPACE(sizeof(std::uint16_t))];
  };
  std::array<mmsghdr, kBatch> messages;
  std::array<Control, kBatch> controls;
  std::array<std::size_t, kBatch> counts;
  std::array<iovec, kBatch> parts;
  std::array<sockaddr_in6, kBatch> addresses;
  while (!datagrams.empty()) {
    const auto batch = datagrams.first(std::min(kBatch, datagrams.size()));
    unsigned made = 0;
    for (std::size_t i = 0; i < batch.size(); i += counts[made++]) {
      const std::size_t count = counts[made] = run_of(batch.subspan(i));
      addresses[made] = to_socket(batch[i].to);
      for (std::size_t j = i; j < i + count; j++)
        parts[j] = {const_cast<std::uint8_t*>(batch[j].bytes.data()), batch[j].bytes.size()};
      msghdr& message = messages[made].msg_hdr = {};
      message.msg_name = &addresses[made];
      message.msg_namelen = sizeof addresses[made];
      message.msg_iov = &parts[i];
      message.msg_iovlen = count;
      if (count == 1) continue;
      message.msg_control = &controls[made];
      message.msg_controllen = sizeof controls[made];
      cmsghdr* control = CMSG_FIRSTHDR(&message);
      control->cmsg_level = SOL_UDP;
      control->cmsg_type = UDP_SEGMENT;
      control->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
      const auto size = static_cast<std::uint16_t>(batch[i].bytes.size());
      std::memcpy(CMSG_DATA(control), &size, sizeof size);
    }
    const int sent = ::sendmmsg(fd_.get(), messages.data(), made, 0);
    // Not where checksums are not left to the device, before Linux 6.10; not where a datagram is longer than the path's MTU.
    if (sent < 0 && counts[0] > 1 && (errno == EIO || errno == EINVAL || errno == EMSGSIZE)) {
      segments_ = false;
      continue;
    }
    if (sent < 0 && !passing(errno)) return fail_errno(errno, "cannot send to UDP port {}", datagrams[0].to.port);
    std::size_t gone = 0;
    for (int i = 0; i < sent; i++) gone += counts[static_cast<std::size_t>(i)];
    if (sent <= 0) dropped_ += gone = counts[0];
    datagrams = datagrams.subspan(gone);
  }
  return {};
}

Result<bool> wait_readable(std::span<const int> fds, int timeout_ms) {
  std::vector<pollfd> waiting;
  for (const int fd : fds) waiting.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  const int ready = ::poll(waiting.data(), waiting.size(), timeout_ms);
  if (ready < 0 && errno != EINTR) return fail_errno(errno, "cannot wait for packets");
  return ready > 0;
}

Status UdpPort::receive(std::vector<Arrival>& arrivals) {
  arrivals.clear();
  // One byte more than the largest packet: what is longer is not ours, and must not look like it.
  thread_local std::vector<std::array<std::uint8_t, kPacketMax + 1>> buffers(kBatch);
  std::array<mmsghdr, kBatch> messages;
  std::array<iovec, kBatch> parts;
  std::array<sockaddr_in6, kBatch> addresses;
  for (std::size_t i = 0; i < kBatch; i++) {
    parts[i] = {buffers[i].data(), buffers[i].size()};
    messages[i] = {};
    messages[i].msg_hdr.msg_name = &addresses[i];
    messages[i].msg_hdr.msg_namelen = sizeof addresses[i];
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int count = ::recvmmsg(fd_.get(), messages.data(), kBatch, MSG_DONTWAIT, nullptr);
  if (count < 0 && !passing(errno)) return fail_errno(errno, "cannot receive UDP packets");
  for (int i = 0; i < count; i++) {
    const auto& message = messages[static_cast<std::size_t>(i)];
    const auto& buffer = buffers[static_cast<std::size_t>(i)];
    if (message.msg_len > kPacketMax) continue;
    arrivals.push_back(
        {from_socket(addresses[static_cast<std::size_t>(i)]), Bytes(buffer.begin(), buffer.begin() + message.msg_len)});
  }
  return {};
}

}  // namespace sluice::coll
