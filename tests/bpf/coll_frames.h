// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Collective packets in frames, as XDP programs see them, and damage to them. Formed and checked here with plain arithmetic.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "base/random.h"
#include "bpfio/program.h"
#include "coll/model/packet.h"

namespace sluice::test {

using coll::Address;
using coll::Bytes;
using coll::ByteSpan;

struct Form {
  bool v6 = false, vlan = false;
  std::size_t l3() const { return vlan ? 18 : 14; }
  std::size_t l4() const { return l3() + (v6 ? 40 : 20); }
  std::size_t payload() const { return l4() + 8; }
};

inline void put16(Bytes& bytes, std::size_t at, std::uint32_t value) {
  bytes[at] = static_cast<std::uint8_t>(value >> 8);
  bytes[at + 1] = static_cast<std::uint8_t>(value);
}
inline std::uint32_t get16(const Bytes& bytes, std::size_t at) { return std::uint32_t{bytes[at]} << 8 | bytes[at + 1]; }

// RFC 1071 over [from, to), on top of `sum`.
inline std::uint32_t checksum(const Bytes& bytes, std::size_t from, std::size_t to, std::uint32_t sum = 0) {
  std::uint64_t total = sum;
  for (std::size_t at = from; at < to; at += 2) total += get16(bytes, at) & (at + 1 < to ? 0xffff : 0xff00);
  while (total >> 16) total = (total & 0xffff) + (total >> 16);
  return static_cast<std::uint32_t>(total);
}

// Of a correct UDP datagram over IPv6: pseudo-header and all of it give 0xffff.
inline std::uint32_t checksum6(const Bytes& frame, const Form& form) {
  const std::uint32_t length = get16(frame, form.l4() + 4);
  return checksum(frame, form.l4(), form.l4() + length, checksum(frame, form.l4() - 32, form.l4(), length + 17));
}

inline constexpr std::uint16_t kPort = 18400;  // of whose program it is

inline const Address kOurs = [] {
  Address address;
  for (std::size_t i = 0; i < 16; i++) address.ip[i] = static_cast<std::uint8_t>(0xfd + i);
  address.port = kPort;
  return address;
}();

inline Address ours(bool v6) {
  Address address = kOurs;
  if (!v6) address.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  return address;
}

inline Bytes frame_of(const Form& form, const Address& from, const Address& to, ByteSpan packet) {
  Bytes frame(form.payload() + packet.size());
  for (std::size_t i = 0; i < 6; i++) {
    frame[i] = static_cast<std::uint8_t>(0x10 + i);
    frame[6 + i] = static_cast<std::uint8_t>(0x20 + i);
  }
  frame[11] = static_cast<std::uint8_t>(from.port);
  if (form.vlan) {
    put16(frame, 12, 0x8100);
    put16(frame, 14, 42);
  }
  put16(frame, form.l3() - 2, form.v6 ? 0x86dd : 0x0800);
  const std::size_t ip = form.l3();
  const auto udp_length = static_cast<std::uint32_t>(8 + packet.size());
  if (form.v6) {
    frame[ip] = 0x60;
    put16(frame, ip + 4, udp_length);
    frame[ip + 6] = 17;
    frame[ip + 7] = 3;
    std::copy(from.ip.begin(), from.ip.end(), frame.begin() + static_cast<std::ptrdiff_t>(ip + 8));
    std::copy(to.ip.begin(), to.ip.end(), frame.begin() + static_cast<std::ptrdiff_t>(ip + 24));
  } else {
    frame[ip] = 0x45;
    put16(frame, ip + 2, 20 + udp_length);
    frame[ip + 8] = 3;
    frame[ip + 9] = 17;
    std::copy(from.ip.begin() + 12, from.ip.end(), frame.begin() + static_cast<std::ptrdiff_t>(ip + 12));
    std::copy(to.ip.begin() + 12, to.ip.end(), frame.begin() + static_cast<std::ptrdiff_t>(ip + 16));
    put16(frame, ip + 10, ~checksum(frame, ip, ip + 20));
  }
  put16(frame, form.l4(), from.port);
  put16(frame, form.l4() + 2, to.port);
  put16(frame, form.l4() + 4, udp_length);
  std::copy(packet.begin(), packet.end(), frame.begin() + static_cast<std::ptrdiff_t>(form.payload()));
  return frame;
}

inline std::uint64_t environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 0) : otherwise;
}

inline Bytes bytes_of_run(const bpfio::TestRunResult& run) {
  Bytes bytes(run.data.size());
  std::memcpy(bytes.data(), run.data.data(), bytes.size());
  return bytes;
}

// The frame is the datagram, from us, with right lengths and checksums.
inline void expect_datagram(const Bytes& frame, const Form& form, const coll::Datagram& datagram) {
  ASSERT_EQ(frame.size(), form.payload() + datagram.bytes.size());
  const std::size_t ip = form.l3();
  Address from, to;
  if (form.v6) {
    std::copy_n(frame.begin() + static_cast<std::ptrdiff_t>(ip + 8), 16, from.ip.begin());
    std::copy_n(frame.begin() + static_cast<std::ptrdiff_t>(ip + 24), 16, to.ip.begin());
    EXPECT_EQ(get16(frame, ip + 4), 8 + datagram.bytes.size());
    EXPECT_EQ(checksum6(frame, form), 0xffffU);
  } else {
    from.ip = to.ip = ours(false).ip;
    std::copy_n(frame.begin() + static_cast<std::ptrdiff_t>(ip + 12), 4, from.ip.begin() + 12);
    std::copy_n(frame.begin() + static_cast<std::ptrdiff_t>(ip + 16), 4, to.ip.begin() + 12);
    EXPECT_EQ(get16(frame, ip + 2), 28 + datagram.bytes.size());
    EXPECT_EQ(checksum(frame, ip, ip + 20), 0xffffU);
    EXPECT_EQ(get16(frame, form.l4() + 6), 0U);
  }
  from.port = static_cast<std::uint16_t>(get16(frame, form.l4()));
  to.port = static_cast<std::uint16_t>(get16(frame, form.l4() + 2));
  EXPECT_EQ(from, ours(form.v6));
  EXPECT_EQ(to, datagram.to);
  EXPECT_EQ(get16(frame, form.l4() + 4), 8 + datagram.bytes.size());
  EXPECT_EQ(frame[11], 0x15) << "our own hardware address";
  EXPECT_EQ(frame[5], static_cast<std::uint8_t>(datagram.to.port)) << "the member's";
  EXPECT_EQ(Bytes(frame.begin() + static_cast<std::ptrdiff_t>(form.payload()), frame.end()), datagram.bytes);
}

// What `integrity` always detects: one or two flipped bits, or any change within one word.
inline Bytes damaged(Random& random, Bytes packet, std::size_t from) {
  const auto somewhere = [&] { return from * 8 + random.below((packet.size() - from) * 8); };
  if (random.chance(0.3)) {
    const std::size_t word = somewhere() / 32 * 4;
    for (std::size_t at = std::max(word, from); at < std::min(word + 4, packet.size()); at++)
      packet[at] = static_cast<std::uint8_t>(random.next());
    return packet;
  }
  for (auto flips = random.between(1, 2); flips > 0; flips--) {
    const std::size_t bit = somewhere();
    packet[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
  }
  return packet;
}

}  // namespace sluice::test
