// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/udp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace sluice::coll {
namespace {

constexpr std::size_t kBatch = 64;
constexpr std::size_t kPacketMax = sizeof(sl_coll_header) + 4 * SL_COLL_WORDS_MAX;
constexpr int kBuffer = 4 << 20;  // bytes; the kernel grants what its limits allow

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

Status UdpPort::send(std::span<const Datagram> datagrams) {
  std::array<mmsghdr, kBatch> messages;
  std::array<iovec, kBatch> parts;
  std::array<sockaddr_in6, kBatch> addresses;
  while (!datagrams.empty()) {
    const std::size_t count = std::min(kBatch, datagrams.size());
    for (std::size_t i = 0; i < count; i++) {
      addresses[i] = to_socket(datagrams[i].to);
      parts[i] = {const_cast<std::uint8_t*>(datagrams[i].bytes.data()), datagrams[i].bytes.size()};
      messages[i] = {};
      messages[i].msg_hdr.msg_name = &addresses[i];
      messages[i].msg_hdr.msg_namelen = sizeof addresses[i];
      messages[i].msg_hdr.msg_iov = &parts[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    const int sent = ::sendmmsg(fd_.get(), messages.data(), static_cast<unsigned>(count), 0);
    if (sent < 0 && !passing(errno)) return fail_errno(errno, "cannot send to UDP port {}", datagrams[0].to.port);
    if (sent <= 0) dropped_++;
    datagrams = datagrams.subspan(sent > 0 ? static_cast<std::size_t>(sent) : 1);
  }
  return {};
}

Status UdpPort::receive(int timeout_ms, std::vector<Arrival>& arrivals, int wake_fd) {
  arrivals.clear();
  pollfd waiting[] = {{.fd = fd_.get(), .events = POLLIN, .revents = 0}, {.fd = wake_fd, .events = POLLIN, .revents = 0}};
  const int ready = ::poll(waiting, std::size(waiting), timeout_ms);
  if (ready < 0 && errno != EINTR) return fail_errno(errno, "cannot wait for UDP packets");
  if (ready <= 0 || waiting[0].revents == 0) return {};
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
