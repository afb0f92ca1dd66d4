// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Packets of the collective protocol (docs/protocol.md): bytes to fields and back, integrity, and what follows from op and
// dtype.
#pragma once

#include <sluice/abi/coll.h>

#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace sluice::coll {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian and are not swapped");

using Bytes = std::vector<std::uint8_t>;
using ByteSpan = std::span<const std::uint8_t>;

inline constexpr std::uint64_t kNever = UINT64_MAX;

struct Address {
  std::array<std::uint8_t, 16> ip{};  // IPv4 as ::ffff:a.b.c.d
  std::uint16_t port = 0;
  auto operator<=>(const Address&) const = default;
};

struct Datagram {
  Address to;
  Bytes bytes;
};
using Outbox = std::vector<Datagram>;

// sl_coll_header in host order. Position and epoch are split and joined by the functions below it.
struct Header {
  std::uint32_t magic = 0;
  std::uint32_t key = 0;
  std::uint32_t seq = 0;
  std::uint32_t frag_offset = 0;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t flags = 0;
  std::uint8_t version = SL_COLL_VERSION;
  std::uint16_t job = 0;
  std::uint16_t members = 0;
  std::uint32_t epoch = 0;
  std::int16_t exponent = 0;
  std::int16_t scale_low = 0;
  std::uint64_t token = 0;

  std::uint64_t position() const { return std::uint64_t{epoch & 0xffff} << 32 | seq; }
  std::uint16_t incarnation() const { return static_cast<std::uint16_t>(epoch >> 16); }
  void place(std::uint16_t incarnation, std::uint64_t position) {
    epoch = std::uint32_t{incarnation} << 16 | static_cast<std::uint32_t>(position >> 32 & 0xffff);
    seq = static_cast<std::uint32_t>(position);
  }
};

Bytes encode(const Header& header, ByteSpan payload = {});
// Nothing when it is too short for a header or has none of the three magics. Integrity is not looked at.
std::optional<Header> parse(ByteSpan packet);
inline ByteSpan payload_of(ByteSpan packet) { return packet.subspan(sizeof(sl_coll_header)); }
std::uint32_t integrity(ByteSpan packet);
bool intact(ByteSpan packet);

// A payload that is a structure of the ABI.
template <class T>
ByteSpan as_bytes(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const std::uint8_t*>(&value), sizeof value};
}
template <class T>
std::optional<T> from_bytes(ByteSpan payload) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (payload.size() != sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, payload.data(), sizeof value);
  return value;
}

bool is_float(std::uint8_t dtype);            // with or without SL_COLL_FIXED_SCALE
std::size_t size_of(std::uint8_t dtype);      // of one element in the caller's memory; 0 = no such type
std::size_t wire_size(const Header& header);  // of one element in a payload; 0 = op, dtype and frag_offset do not go together
sl_coll_rule rule_of(const Header& header);   // when wire_size() is not 0
bool is_weighted(const Header& header);       // the aggregator multiplies by the member's weight
sl_coll_shape shape_of(const Header& header, std::size_t elements);
// The first difference, as "KEY 0 has sum of f32, KEY 2 has sum of i32"; empty when there is none. A negative key: the job.
std::string difference(const sl_coll_shape& a, int key_a, const sl_coll_shape& b, int key_b);
std::string op_name(std::uint8_t op);
std::string dtype_name(std::uint8_t dtype);
std::string key_list(std::uint64_t bitmap);  // "1, 4 and 7"

}  // namespace sluice::coll
