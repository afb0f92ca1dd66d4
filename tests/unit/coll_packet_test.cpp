// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The packet: where each field lies, what integrity detects, what op and dtype mean.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "coll/model/packet.h"

namespace sluice::coll {
namespace {

Header sample() {
  Header header;
  header.magic = SL_COLL_MAGIC_AGGREGATE;
  header.key = 0x01020304;
  header.seq = 0x11121314;
  header.frag_offset = 0x21222324;
  header.op = SL_COLL_SUM;
  header.dtype = SL_COLL_F32;
  header.flags = SL_COLL_LAST_FRAGMENT | SL_COLL_OVERFLOW;
  header.job = 0x3132;
  header.members = 0x4142;
  header.epoch = 0x51525354;
  header.exponent = -2;
  header.scale_low = SL_COLL_EXPONENT_NONE;
  header.token = 0x6162636465666768;
  return header;
}

Bytes random_packet(Random& random, std::size_t words) {
  Bytes payload(4 * words);
  for (auto& byte : payload) byte = static_cast<std::uint8_t>(random.next());
  return encode(sample(), payload);
}

TEST(CollPacket, FieldsLieWhereTheProtocolSays) {
  const Bytes payload = {1, 2, 3, 4};
  const Bytes bytes = encode(sample(), payload);
  Bytes expected = {'S', 'L', 'C',  'A', 1,    2,    3,    4,    0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24,
                    1,   3,   0x81, 1,   0x31, 0x32, 0x41, 0x42, 0x51, 0x52, 0x53, 0x54, 0xff, 0xfe, 0x80, 0x00,
                    0,   0,   0,    0,   0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 1,    2,    3,    4};
  std::copy(bytes.begin() + 32, bytes.begin() + 36, expected.begin() + 32);  // integrity: below
  EXPECT_EQ(bytes, expected);

  const auto parsed = parse(bytes);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(encode(*parsed, payload), bytes);
  EXPECT_EQ(parsed->exponent, -2);
  EXPECT_EQ(parsed->scale_low, SL_COLL_EXPONENT_NONE);
  EXPECT_EQ(parsed->token, sample().token);
}

TEST(CollPacket, IntegrityIsTheSumOfWordsWeightedFromTheEnd) {
  // By hand: 11 - 1 header words and 1 payload word; the word i from the end weighs 2 i + 17.
  const Bytes bytes = encode(sample(), Bytes{1, 2, 3, 4});
  unsigned __int128 sum = 0;
  std::uint64_t weight = 17;
  for (std::size_t word = bytes.size() / 4; word-- > 0;) {
    if (word == 8) continue;
    const std::uint8_t* at = bytes.data() + 4 * word;
    sum +=
        static_cast<unsigned __int128>(weight) * (at[0] | at[1] << 8 | at[2] << 16 | static_cast<std::uint32_t>(at[3]) << 24);
    weight += 2;
  }
  EXPECT_EQ(integrity(bytes), static_cast<std::uint32_t>(sum % 4294967311u));
  EXPECT_EQ(bytes[32], integrity(bytes) >> 24);
}

TEST(CollPacket, PositionAndIncarnationShareEpochAndSeq) {
  Header header;
  header.place(0xabcd, 0x123456789abc);
  EXPECT_EQ(header.epoch, 0xabcd1234u);
  EXPECT_EQ(header.seq, 0x56789abcu);
  EXPECT_EQ(header.position(), 0x123456789abcu);
  EXPECT_EQ(header.incarnation(), 0xabcd);
}

TEST(CollPacket, WhatIsNotOursIsNotParsed) {
  Bytes bytes = encode(sample(), {});
  EXPECT_FALSE(parse(ByteSpan(bytes).first(43)));
  EXPECT_FALSE(parse({}));
  bytes[3] = 'D';
  EXPECT_FALSE(parse(bytes));
}

TEST(CollPacket, EveryFlippedBitIsDetected) {
  SeededRandom random(1);
  for (std::size_t words : {0, 1, 16, 352, 832}) {
    Bytes bytes = random_packet(random, words);
    ASSERT_TRUE(intact(bytes));
    for (std::size_t bit = 0; bit < 8 * bytes.size(); bit++) {
      bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
      ASSERT_FALSE(intact(bytes)) << words << " words, bit " << bit;
      bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    }
  }
}

TEST(CollPacket, TwoFlippedBitsBurstsAndExchangedWordsAreDetected) {
  SeededRandom random(2);
  const auto flip = [](Bytes& bytes, std::size_t bit) { bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8); };
  for (int i = 0; i < 20000; i++) {
    const Bytes good = random_packet(random, i % 2 ? 16 : 352);
    const std::size_t bits = 8 * good.size();
    Bytes bytes = good;
    switch (i % 4) {
      case 0: {  // the same bit of two words: what a sum of words would miss half of the time
        const std::size_t bit = random.below(32), a = random.below(bits / 32), b = random.below(bits / 32);
        if (a == b) continue;
        flip(bytes, 32 * a + bit);
        flip(bytes, 32 * b + bit);
        break;
      }
      case 1: {
        const std::size_t a = random.below(bits), b = random.below(bits);
        if (a == b) continue;
        flip(bytes, a);
        flip(bytes, b);
        break;
      }
      case 2: {
        const std::size_t at = random.below(bits - 31);
        flip(bytes, at);
        for (std::size_t j = 1; j < 32; j++)
          if (random.chance(0.5)) flip(bytes, at + j);
        break;
      }
      default: {
        const std::size_t a = random.below(bits / 32), b = random.below(bits / 32);
        if (std::equal(good.begin() + 4 * static_cast<long>(a), good.begin() + 4 * static_cast<long>(a) + 4,
                       good.begin() + 4 * static_cast<long>(b)))
          continue;
        std::swap_ranges(bytes.begin() + 4 * static_cast<long>(a), bytes.begin() + 4 * static_cast<long>(a) + 4,
                         bytes.begin() + 4 * static_cast<long>(b));
      }
    }
    ASSERT_FALSE(intact(bytes)) << "kind " << i % 4 << ", round " << i;
  }
}

TEST(CollPacket, OpAndTypeDecideHowWordsAreCombined) {
  struct Row {
    std::uint8_t op, dtype;
    std::uint32_t frag_offset;
    std::size_t wire;
    sl_coll_rule rule;
    bool weighted;
  };
  constexpr std::uint8_t kFixed = SL_COLL_F16 | SL_COLL_FIXED_SCALE;
  for (const Row& row : {
           Row{SL_COLL_SUM, SL_COLL_I32, 0, 4, SL_COLL_ADD32, true},
           Row{SL_COLL_SUM, SL_COLL_I64, 0, 8, SL_COLL_ADD64, true},
           Row{SL_COLL_SUM, SL_COLL_BF16, 0, 4, SL_COLL_ADD32, true},
           Row{SL_COLL_SUM, kFixed, 0, 4, SL_COLL_ADD32, true},
           Row{SL_COLL_AVERAGE, SL_COLL_I32, 0, 8, SL_COLL_ADD64, true},
           Row{SL_COLL_AVERAGE, SL_COLL_F32, 0, 4, SL_COLL_ADD32, true},
           Row{SL_COLL_COUNT, SL_COLL_I64, 0, 4, SL_COLL_ADD32, false},
           Row{SL_COLL_MAX, SL_COLL_I64, 0, 8, SL_COLL_MAX64, false},
           Row{SL_COLL_MIN, SL_COLL_F16, 0, 4, SL_COLL_MIN32, false},
           Row{SL_COLL_BARRIER, SL_COLL_NONE, 0, 4, SL_COLL_ADD32, false},
           Row{SL_COLL_SUM, SL_COLL_F32, SL_COLL_FRAG_EXPONENTS, 4, SL_COLL_MAX32, false},
           Row{SL_COLL_SUM, SL_COLL_F32, SL_COLL_FRAG_SPECIAL | 16, 4, SL_COLL_ADD32, false},
       }) {
    Header header;
    header.op = row.op;
    header.dtype = row.dtype;
    header.frag_offset = row.frag_offset;
    EXPECT_EQ(wire_size(header), row.wire) << op_name(row.op) << " of " << dtype_name(row.dtype);
    EXPECT_EQ(rule_of(header), row.rule) << op_name(row.op) << " of " << dtype_name(row.dtype);
    EXPECT_EQ(is_weighted(header), row.weighted) << op_name(row.op) << " of " << dtype_name(row.dtype);
  }
}

TEST(CollPacket, WhatDoesNotGoTogetherIsRefused) {
  struct Row {
    std::uint8_t op, dtype;
    std::uint32_t frag_offset;
  };
  for (const Row& row : {
           Row{0, SL_COLL_I32, 0},
           Row{SL_COLL_OP_COUNT, SL_COLL_I32, 0},
           Row{SL_COLL_SUM, SL_COLL_NONE, 0},
           Row{SL_COLL_SUM, SL_COLL_DTYPE_COUNT, 0},
           Row{SL_COLL_BARRIER, SL_COLL_I32, 0},
           Row{SL_COLL_SUM, SL_COLL_I32 | SL_COLL_FIXED_SCALE, 0},
           Row{SL_COLL_MAX, SL_COLL_F32 | SL_COLL_FIXED_SCALE, 0},
           Row{SL_COLL_SUM, SL_COLL_I32, SL_COLL_FRAG_SPECIAL},
           Row{SL_COLL_SUM, SL_COLL_F32 | SL_COLL_FIXED_SCALE, SL_COLL_FRAG_EXPONENTS},
           Row{SL_COLL_MAX, SL_COLL_F32, SL_COLL_FRAG_EXPONENTS},
       }) {
    Header header;
    header.op = row.op;
    header.dtype = row.dtype;
    header.frag_offset = row.frag_offset;
    EXPECT_EQ(wire_size(header), 0u) << int{row.op} << " of " << int{row.dtype};
  }
}

TEST(CollPacket, AListOfKeysReadsLikeOne) {
  EXPECT_EQ(key_list(0b1), "0");
  EXPECT_EQ(key_list(0b10010), "1 and 4");
  EXPECT_EQ(key_list(0x8000000000000003), "0, 1 and 63");
}

}  // namespace
}  // namespace sluice::coll
