// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/model/packet.h"

#include <fmt/format.h>

#include "base/result.h"
#include "coll/model/bulk.h"

namespace sluice::coll {
namespace {

constexpr std::size_t kIntegrityAt = offsetof(sl_coll_header, integrity);

void put(Bytes& bytes, std::size_t at, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; i++) bytes[at + i] = static_cast<std::uint8_t>(value >> 8 * (size - 1 - i));
}

std::uint64_t get(ByteSpan bytes, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; i++) value = value << 8 | bytes[at + i];
  return value;
}

std::uint32_t get32(ByteSpan bytes, std::size_t at) { return static_cast<std::uint32_t>(get(bytes, at, 4)); }
std::uint16_t get16(ByteSpan bytes, std::size_t at) { return static_cast<std::uint16_t>(get(bytes, at, 2)); }

}  // namespace

#define AT(field) offsetof(sl_coll_header, field)

Bytes encode(const Header& header, ByteSpan payload) {
  Bytes bytes(sizeof(sl_coll_header) + payload.size());
  put(bytes, AT(magic), header.magic, 4);
  put(bytes, AT(key), header.key, 4);
  put(bytes, AT(seq), header.seq, 4);
  put(bytes, AT(frag_offset), header.frag_offset, 4);
  bytes[AT(op)] = header.op;
  bytes[AT(dtype)] = header.dtype;
  bytes[AT(flags)] = header.flags;
  bytes[AT(version)] = header.version;
  put(bytes, AT(job), header.job, 2);
  put(bytes, AT(members), header.members, 2);
  put(bytes, AT(epoch), header.epoch, 4);
  put(bytes, AT(exponent), static_cast<std::uint16_t>(header.exponent), 2);
  put(bytes, AT(scale_low), static_cast<std::uint16_t>(header.scale_low), 2);
  put(bytes, AT(token), header.token, 8);
  if (!payload.empty()) std::memcpy(bytes.data() + sizeof(sl_coll_header), payload.data(), payload.size());
  put(bytes, kIntegrityAt, integrity(bytes), 4);
  return bytes;
}

std::optional<Header> parse(ByteSpan packet) {
  if (packet.size() < sizeof(sl_coll_header)) return std::nullopt;
  Header header;
  header.magic = get32(packet, AT(magic));
  if (header.magic != SL_COLL_MAGIC_AGGREGATE && header.magic != SL_COLL_MAGIC_BROADCAST &&
      header.magic != SL_COLL_MAGIC_CONTROL)
    return std::nullopt;
  header.key = get32(packet, AT(key));
  header.seq = get32(packet, AT(seq));
  header.frag_offset = get32(packet, AT(frag_offset));
  header.op = packet[AT(op)];
  header.dtype = packet[AT(dtype)];
  header.flags = packet[AT(flags)];
  header.version = packet[AT(version)];
  header.job = get16(packet, AT(job));
  header.members = get16(packet, AT(members));
  header.epoch = get32(packet, AT(epoch));
  header.exponent = static_cast<std::int16_t>(get16(packet, AT(exponent)));
  header.scale_low = static_cast<std::int16_t>(get16(packet, AT(scale_low)));
  header.token = get(packet, AT(token), 8);
  return header;
}

#undef AT

std::uint32_t integrity(ByteSpan packet) {
  Sums sums;
  const auto append = [&](ByteSpan bytes) {
    const Sums more = sums_of(bytes);
    sums.b += sums.a * (bytes.size() / 4) + more.b;
    sums.a += more.a;
  };
  append(packet.first(kIntegrityAt));
  append(packet.subspan(kIntegrityAt + 4));
  if (const std::size_t rest = packet.size() % 4; rest != 0) {
    std::uint32_t word = 0;
    std::memcpy(&word, packet.data() + packet.size() - rest, rest);
    sums.a += word;
    sums.b += sums.a;
  }
  return static_cast<std::uint32_t>((SL_COLL_INTEGRITY_B * sums.b + SL_COLL_INTEGRITY_A * sums.a) % SL_COLL_INTEGRITY_PRIME);
}

bool intact(ByteSpan packet) { return get32(packet, kIntegrityAt) == integrity(packet); }

bool is_float(std::uint8_t dtype) {
  dtype &= static_cast<std::uint8_t>(~SL_COLL_FIXED_SCALE);
  return dtype == SL_COLL_F32 || dtype == SL_COLL_F16 || dtype == SL_COLL_BF16;
}

std::size_t size_of(std::uint8_t dtype) {
  if ((dtype & SL_COLL_FIXED_SCALE) && !is_float(dtype)) return 0;
  switch (dtype & ~SL_COLL_FIXED_SCALE) {
    case SL_COLL_I32:
    case SL_COLL_F32:
      return 4;
    case SL_COLL_I64:
      return 8;
    case SL_COLL_F16:
    case SL_COLL_BF16:
      return 2;
    default:
      return 0;
  }
}

std::size_t wire_size(const Header& header) {
  const bool adds_floats = is_float(header.dtype) && (header.op == SL_COLL_SUM || header.op == SL_COLL_AVERAGE);
  const bool fixed = header.dtype & SL_COLL_FIXED_SCALE;
  if (header.op == SL_COLL_BARRIER) return header.dtype == SL_COLL_NONE && header.frag_offset == 0 ? 4 : 0;
  if (header.op == 0 || header.op >= SL_COLL_OP_COUNT || size_of(header.dtype) == 0) return 0;
  if (fixed && !adds_floats) return 0;
  if (header.frag_offset == SL_COLL_FRAG_EXPONENTS) return adds_floats && !fixed ? 4 : 0;
  if (header.frag_offset & SL_COLL_FRAG_SPECIAL) return adds_floats ? 4 : 0;
  if (header.op == SL_COLL_COUNT) return 4;
  return header.dtype == SL_COLL_I64 || (header.op == SL_COLL_AVERAGE && header.dtype == SL_COLL_I32) ? 8 : 4;
}

sl_coll_rule rule_of(const Header& header) {
  const bool wide = wire_size(header) == 8;
  if (header.frag_offset == SL_COLL_FRAG_EXPONENTS) return SL_COLL_MAX32;
  if (header.op == SL_COLL_MAX) return wide ? SL_COLL_MAX64 : SL_COLL_MAX32;
  if (header.op == SL_COLL_MIN) return wide ? SL_COLL_MIN64 : SL_COLL_MIN32;
  return wide ? SL_COLL_ADD64 : SL_COLL_ADD32;
}

bool is_weighted(const Header& header) {
  return (header.op == SL_COLL_SUM || header.op == SL_COLL_AVERAGE) && !(header.frag_offset & SL_COLL_FRAG_SPECIAL);
}

sl_coll_shape shape_of(const Header& header, std::size_t elements) {
  sl_coll_shape shape{};
  shape.frag_offset = header.frag_offset;
  shape.elements = static_cast<std::uint32_t>(elements);
  shape.members = header.members;
  shape.exponent = static_cast<std::uint16_t>(header.exponent);
  shape.scale_low = static_cast<std::uint16_t>(header.scale_low);
  shape.op = header.op;
  shape.dtype = header.dtype;
  shape.last = (header.flags & SL_COLL_LAST_FRAGMENT) != 0;
  return shape;
}

std::string op_name(std::uint8_t op) {
  static constexpr const char* kNames[] = {"nothing", "sum", "count", "max", "min", "average", "barrier"};
  return op < SL_COLL_OP_COUNT ? kNames[op] : fmt::format("operator {}", op);
}

std::string dtype_name(std::uint8_t dtype) {
  static constexpr const char* kNames[] = {"nothing", "i32", "i64", "f32", "f16", "bf16"};
  const std::uint8_t plain = dtype & static_cast<std::uint8_t>(~SL_COLL_FIXED_SCALE);
  return (plain < SL_COLL_DTYPE_COUNT ? kNames[plain] : fmt::format("type {}", plain)) +
         (dtype & SL_COLL_FIXED_SCALE ? " with a fixed scale" : "");
}

std::string key_list(std::uint64_t bitmap) {
  std::string text;
  for (; bitmap; bitmap &= bitmap - 1) {
    if (!text.empty()) text += (bitmap & (bitmap - 1)) ? ", " : " and ";
    text += std::to_string(std::countr_zero(bitmap));
  }
  return text;
}

namespace {

// exponent and scale_low together.
std::uint32_t both(const sl_coll_shape& shape) { return std::uint32_t{shape.exponent} << 16 | shape.scale_low; }

std::string scale(const sl_coll_shape& shape) {
  if (shape.frag_offset == SL_COLL_FRAG_EXPONENTS) return fmt::format("a vector of {} elements", both(shape));
  if (shape.dtype & SL_COLL_FIXED_SCALE) return fmt::format("the scale {}", std::bit_cast<float>(both(shape)));
  return fmt::format("the exponent {}", static_cast<std::int16_t>(shape.exponent));
}

std::string extent(const sl_coll_shape& shape) {
  if (shape.frag_offset == SL_COLL_FRAG_EXPONENTS) return fmt::format("the exponents of {} chunks", shape.elements);
  if (shape.frag_offset & SL_COLL_FRAG_SPECIAL) return "counts of NaN and infinities";
  return fmt::format("elements {} to {}{}", shape.frag_offset, std::uint64_t{shape.frag_offset} + shape.elements,
                     shape.last ? ", its last" : "");
}

}  // namespace

std::string difference(const sl_coll_shape& a, int key_a, const sl_coll_shape& b, int key_b) {
  const auto side = [](int key) { return key < 0 ? std::string("the job") : fmt::format("KEY {}", key); };
  const auto say = [&](const auto& text) {
    return fmt::format("{} has {}, {} has {}", side(key_a), text(a), side(key_b), text(b));
  };
  if (a.members != b.members) return say([](const sl_coll_shape& s) { return fmt::format("{} members", s.members); });
  if (a.op != b.op || a.dtype != b.dtype)
    return say([](const sl_coll_shape& s) {
      return s.op == SL_COLL_BARRIER ? op_name(s.op) : op_name(s.op) + " of " + dtype_name(s.dtype);
    });
  if (a.frag_offset == SL_COLL_FRAG_EXPONENTS && b.frag_offset == a.frag_offset && both(a) != both(b)) return say(scale);
  if (a.frag_offset != b.frag_offset || a.elements != b.elements || a.last != b.last) return say(extent);
  if (both(a) != both(b)) return say(scale);
  return {};
}

}  // namespace sluice::coll
