// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "net/raw_wire.h"

#include <linux/filter.h>
#include <linux/icmp.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice::net {
namespace {

constexpr std::size_t kPacketMax = 65536;
constexpr int kBacklog = 1;

int icmp_of(int family) { return family == AF_INET ? static_cast<int>(IPPROTO_ICMP) : static_cast<int>(IPPROTO_ICMPV6); }

struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Endpoint endpoint(const IpAddress& address, std::uint16_t port) {
  Endpoint out;
  if (address.family == AF_INET) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    std::ranges::copy(address.view(), reinterpret_cast<std::uint8_t*>(&v4->sin_addr));
    out.length = sizeof *v4;
  } else {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    std::ranges::copy(address.view(), reinterpret_cast<std::uint8_t*>(&v6->sin6_addr));
    out.length = sizeof *v6;
  }
  return out;
}

std::pair<IpAddress, std::uint16_t> taken_apart(const sockaddr_storage& storage) {
  IpAddress address;
  address.family = storage.ss_family;
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
  const bool is_v4 = storage.ss_family == AF_INET;
  const auto* bytes =
      is_v4 ? reinterpret_cast<const std::uint8_t*>(&v4->sin_addr) : reinterpret_cast<const std::uint8_t*>(&v6->sin6_addr);
  std::copy_n(bytes, address.view().size(), address.bytes.begin());
  return {address, ntohs(is_v4 ? v4->sin_port : v6->sin6_port)};
}

// The address that connections to there have here.
Result<IpAddress> source_for(const IpAddress& destination, std::uint16_t port, const std::optional<IpAddress>& wanted) {
  const UniqueFd fd(::socket(destination.family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno(errno, "cannot open a socket");
  if (wanted) {
    if (wanted->family != destination.family)
      return fail(make_error(Code::kInvalid,
                             fmt::format("{} and {} are of different families", wanted->text(), destination.text()),
                             "give a source address of the destination's family"));
    const Endpoint own = endpoint(*wanted, 0);
    if (::bind(fd.get(), own.get(), own.length) != 0)
      return fail(make_error(Code::kInvalid,
                             fmt::format("{} is not an address of the agent's host ({})", wanted->text(), std::strerror(errno)),
                             "give one of those that `ip address` lists in the agent's network namespace"));
  }
  const Endpoint remote = endpoint(destination, port);
  if (::connect(fd.get(), remote.get(), remote.length) != 0)
    return fail(make_error(
        Code::kNotFound, fmt::format("there is no route to {} ({})", destination.text(), std::strerror(errno)),
        fmt::format("`ip route get {}` in the agent's network namespace shows what the kernel does", destination.text())));
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0)
    return fail_errno(errno, "cannot read a socket's address");
  return taken_apart(own).first;
}

Result<UniqueFd> raw_socket(const IpAddress& source, int protocol) {
  UniqueFd fd(::socket(source.family, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol));
  if (!fd && errno == EPERM)
    return fail(make_error(Code::kPermission, "the agent may not send raw packets: CAP_NET_RAW is missing",
                           "start sluiced with it: as root outside a user namespace, or CapabilityBoundingSet= of its unit"));
  if (!fd) return fail_errno(errno, "cannot open a raw socket");
  const Endpoint own = endpoint(source, 0);
  if (::bind(fd.get(), own.get(), own.length) != 0) return fail_errno(errno, "cannot bind a raw socket to {}", source.text());
  return fd;
}

template <class T>
Status set_option(int fd, int level, int name, const T& value, std::string_view what) {
  if (::setsockopt(fd, level, name, &value, sizeof value) == 0) return {};
  return fail_errno(errno, "cannot set {} of a socket", what);
}

Status attach_filter(int fd, std::vector<sock_filter> code) {
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  return set_option(fd, SOL_SOCKET, SO_ATTACH_FILTER, program, "the filter");
}

}  // namespace

Result<RawWire::Guard> RawWire::guard(const IpAddress& source) {
  Guard guard;
  guard.listener.reset(::socket(source.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!guard.listener) return fail_errno(errno, "cannot open a socket");
  const int fd = guard.listener.get();
  SLUICE_CHECK(attach_filter(fd, {BPF_STMT(BPF_RET | BPF_K, 0)}));
  const Endpoint own = endpoint(source, 0);
  if (::bind(fd, own.get(), own.length) != 0 || ::listen(fd, kBacklog) != 0)
    return fail_errno(errno, "cannot reserve a TCP port of {}", source.text());
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0)
    return fail_errno(errno, "cannot read a socket's address");
  guard.port = taken_apart(bound).second;
  return guard;
}

Result<std::unique_ptr<RawWire>> RawWire::open(const IpAddress& destination, std::uint16_t port,
                                               const std::optional<IpAddress>& source) {
  std::unique_ptr<RawWire> wire(new RawWire);
  SLUICE_TRY(own, source_for(destination, port, source));
  wire->source_ = own;
  wire->destination_ = destination;
  const bool v4 = destination.family == AF_INET;
  SLUICE_TRY(out, raw_socket(own, IPPROTO_RAW));  // the header is ours
  SLUICE_TRY(tcp, raw_socket(own, IPPROTO_TCP));
  SLUICE_TRY(icmp, raw_socket(own, icmp_of(destination.family)));
  for (Guard& guard : wire->guards_) {
    SLUICE_TRY(made, RawWire::guard(own));
    guard = std::move(made);
  }
  // A raw socket gets every TCP packet of the host: keep those for our ports. IPv4 comes with its header, IPv6 without.
  std::vector<sock_filter> code;
  if (v4) code.push_back(BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, 0));
  code.push_back(v4 ? sock_filter BPF_STMT(BPF_LD | BPF_H | BPF_IND, 2) : sock_filter BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 2));
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, wire->guards_[0].port, 1, 0));
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, wire->guards_[1].port, 0, 1));
  code.push_back(BPF_STMT(BPF_RET | BPF_K, kPacketMax));
  code.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  SLUICE_CHECK(attach_filter(tcp.get(), std::move(code)));
  if (v4) {
    const icmp_filter errors{~(1U << ICMP_DEST_UNREACH | 1U << ICMP_TIME_EXCEEDED)};
    SLUICE_CHECK(set_option(icmp.get(), SOL_RAW, ICMP_FILTER, errors, "the ICMP filter"));
  } else {
    icmp6_filter errors;
    ICMP6_FILTER_SETBLOCKALL(&errors);
    ICMP6_FILTER_SETPASS(ICMP6_DST_UNREACH, &errors);
    ICMP6_FILTER_SETPASS(ICMP6_TIME_EXCEEDED, &errors);
    SLUICE_CHECK(set_option(icmp.get(), IPPROTO_ICMPV6, ICMP6_FILTER, errors, "the ICMPv6 filter"));
    SLUICE_CHECK(set_option(tcp.get(), IPPROTO_IPV6, IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS"));
  }
  wire->out_ = std::move(out);
  wire->tcp_ = std::move(tcp);
  wire->icmp_ = std::move(icmp);
  wire->buffer_.resize(kPacketMax);
  return wire;
}

Status RawWire::send(Bytes packet) {
  const Endpoint to = endpoint(destination_, 0);
  if (::sendto(out_.get(), packet.data(), packet.size(), 0, to.get(), to.length) >= 0) return {};
  if (errno == ENOBUFS || errno == EAGAIN) return {};  // lost, as on the way
  return fail(
      fail_errno(errno, "a probe to {} cannot be sent", destination_.text())
          .value()
          .fix(errno == EPERM ? "a firewall rule of this host forbids it" : "see the route and the interface to there"));
}

Result<std::optional<Arrival>> RawWire::receive(std::uint64_t deadline_ns) {
  while (true) {
    for (const bool tcp : {true, false}) {
      SLUICE_TRY(arrival,
                 read(tcp ? tcp_.get() : icmp_.get(), static_cast<std::uint8_t>(tcp ? IPPROTO_TCP : icmp_of(source_.family))));
      if (arrival) return arrival;
    }
    const std::uint64_t now = now_ns();
    if (now >= deadline_ns) return std::nullopt;
    const timespec left{static_cast<time_t>((deadline_ns - now) / 1'000'000'000),
                        static_cast<long>((deadline_ns - now) % 1'000'000'000)};
    pollfd fds[2] = {{tcp_.get(), POLLIN, 0}, {icmp_.get(), POLLIN, 0}};
    if (::ppoll(fds, std::size(fds), &left, nullptr) < 0 && errno != EINTR) return fail_errno(errno, "cannot wait for packets");
  }
}

// One packet that is waiting, if there is one that can be read.
Result<std::optional<Arrival>> RawWire::read(int fd, std::uint8_t protocol) {
  sockaddr_storage from{};
  iovec data{buffer_.data(), buffer_.size()};
  alignas(cmsghdr) char control[64];
  msghdr message{};
  message.msg_name = &from;
  message.msg_namelen = sizeof from;
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(fd, &message, 0);
  if (got < 0) {
    // EHOSTUNREACH and the like: an error of an earlier packet, which ICMP tells better.
    if (errno == EBADF || errno == ENOTSOCK || errno == EINVAL || errno == EFAULT)
      return fail_errno(errno, "cannot receive packets");
    return std::nullopt;
  }
  const Bytes bytes(buffer_.data(), static_cast<std::size_t>(got));
  Arrival arrival;
  arrival.protocol = protocol;
  arrival.source = taken_apart(from).first;
  if (source_.family == AF_INET) {
    const auto packet = parse_ipv4(bytes);
    if (!packet) return std::nullopt;
    arrival.marks = packet->marks;
    arrival.payload.assign(packet->payload.begin(), packet->payload.end());
    return std::optional<Arrival>(std::move(arrival));
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    int traffic_class = 0;
    if (header->cmsg_level != IPPROTO_IPV6 || header->cmsg_type != IPV6_TCLASS) continue;
    std::memcpy(&traffic_class, CMSG_DATA(header), sizeof traffic_class);
    arrival.marks.ecn = static_cast<Ecn>(traffic_class & 3);
    arrival.marks.dscp = static_cast<std::uint8_t>(traffic_class >> 2);
  }
  arrival.payload.assign(bytes.begin(), bytes.end());
  return std::optional<Arrival>(std::move(arrival));
}

}  // namespace sluice::net
