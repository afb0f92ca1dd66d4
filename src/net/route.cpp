// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "net/route.h"

#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/netns_thread.h"
#include "base/unique_fd.h"

namespace sluice::net {
namespace {

using Bytes = std::span<const std::byte>;

template <class T>
std::optional<T> value_at(Bytes bytes, std::size_t offset = 0) {
  if (bytes.size() < sizeof(T) || bytes.size() - sizeof(T) < offset) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// Calls visit(type, payload) for each attribute; false if they do not fit.
template <class Visit>
bool for_each_attribute(Bytes bytes, Visit visit) {
  while (bytes.size() >= sizeof(rtattr)) {
    const auto header = *value_at<rtattr>(bytes);
    if (header.rta_len < sizeof(rtattr) || header.rta_len > bytes.size()) return false;
    visit(header.rta_type & NLA_TYPE_MASK, bytes.subspan(sizeof(rtattr), header.rta_len - sizeof(rtattr)));
    bytes = bytes.subspan(std::min<std::size_t>(RTA_ALIGN(header.rta_len), bytes.size()));
  }
  return bytes.empty();
}

// False if the message is malformed.
bool parse_route(Bytes message, std::vector<CongctlRoute>& routes) {
  const auto header = value_at<rtmsg>(message);
  if (!header) return false;
  CongctlRoute route;
  route.family = header->rtm_family;
  route.table = header->rtm_table;
  std::string address;
  std::uint32_t locks = 0;
  bool whole = for_each_attribute(message.subspan(NLMSG_ALIGN(sizeof(rtmsg))), [&](int type, Bytes payload) {
    if (type == RTA_TABLE) route.table = value_at<std::uint32_t>(payload).value_or(route.table);
    if (type == RTA_OIF) route.oif = value_at<std::uint32_t>(payload).value_or(0);
    if (type == RTA_DST && payload.size() == (route.family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr))) {
      char text[INET6_ADDRSTRLEN];
      if (::inet_ntop(route.family, payload.data(), text, sizeof(text)) != nullptr) address = text;
    }
    if (type == RTA_METRICS) {
      for_each_attribute(payload, [&](int metric, Bytes value) {
        if (metric == RTAX_LOCK) locks = value_at<std::uint32_t>(value).value_or(0);
        if (metric == RTAX_CC_ALGO) {
          std::string_view name(reinterpret_cast<const char*>(value.data()), value.size());
          route.cca = name.substr(0, name.find('\0'));
        }
      });
    }
  });
  if (!whole) return false;
  // Cloned routes are the cache's copies of routes that are listed themselves.
  if (route.cca.empty() || (header->rtm_flags & RTM_F_CLONED) != 0) return true;
  route.destination =
      address.empty() && header->rtm_dst_len == 0 ? "default" : fmt::format("{}/{}", address, header->rtm_dst_len);
  route.locked = (locks & (1U << RTAX_CC_ALGO)) != 0;
  routes.push_back(std::move(route));
  return true;
}

Result<UniqueFd> open_rtnetlink() {
  UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd) return fail_errno(errno, "cannot open a netlink socket");
  return fd;
}

Status dump(int netlink_fd, std::uint8_t family, std::vector<CongctlRoute>& routes) {
  struct {
    nlmsghdr header;
    rtmsg route;
  } request{};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = RTM_GETROUTE;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.route.rtm_family = family;
  if (::send(netlink_fd, &request, sizeof(request), 0) < 0) return fail_errno(errno, "cannot ask for routes");
  std::vector<std::byte> buffer(std::size_t{64} << 10);
  for (;;) {
    ssize_t n = ::recv(netlink_fd, buffer.data(), buffer.size(), MSG_TRUNC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(errno, "cannot read routes");
    if (static_cast<std::size_t>(n) > buffer.size()) return fail(Code::kInternal, "a netlink message of {} bytes was cut", n);
    SLUICE_TRY(done, parse_routes(Bytes(buffer.data(), static_cast<std::size_t>(n)), routes));
    if (done) return {};
  }
}

}  // namespace

Result<bool> parse_routes(Bytes datagram, std::vector<CongctlRoute>& routes) {
  while (datagram.size() >= sizeof(nlmsghdr)) {
    const auto header = *value_at<nlmsghdr>(datagram);
    if (header.nlmsg_len < sizeof(nlmsghdr) || header.nlmsg_len > datagram.size()) break;
    Bytes payload = datagram.subspan(sizeof(nlmsghdr), header.nlmsg_len - sizeof(nlmsghdr));
    if ((header.nlmsg_flags & NLM_F_DUMP_INTR) != 0)
      return fail(fail(Code::kUnavailable, "routes changed while they were listed").value().fix("ask again"));
    if (header.nlmsg_type == NLMSG_DONE || header.nlmsg_type == NLMSG_ERROR) {
      const int error = value_at<int>(payload).value_or(0);
      if (error > 0) break;  // errors are negative
      if (error < 0) return fail_errno(-error, "the kernel refused to list routes");
      return true;
    }
    if (header.nlmsg_type == RTM_NEWROUTE && !parse_route(payload, routes)) break;
    datagram = datagram.subspan(std::min<std::size_t>(NLMSG_ALIGN(header.nlmsg_len), datagram.size()));
  }
  if (!datagram.empty()) return fail(Code::kCorrupt, "malformed netlink message");
  return false;
}

Result<std::vector<CongctlRoute>> congctl_routes(int netns_fd) {
  // The socket belongs to the namespace that it was opened in.
  SLUICE_TRY(netlink, run_in_netns(netns_fd, open_rtnetlink));
  constexpr int kAttempts = 5;
  for (int attempt = 1;; attempt++) {
    std::vector<CongctlRoute> routes;
    Status status = dump(netlink.get(), AF_INET, routes);
    if (status) status = dump(netlink.get(), AF_INET6, routes);
    if (status) return routes;
    if (status.error().code != Code::kUnavailable || attempt == kAttempts) return fail(std::move(status).error());
    // What is left of the interrupted dump must not be taken for the next one's answer.
    SLUICE_TRY(fresh, run_in_netns(netns_fd, open_rtnetlink));
    netlink = std::move(fresh);
  }
}

}  // namespace sluice::net
