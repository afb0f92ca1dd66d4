// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Reading what a program can do (bpfio/acts.h), on instructions written by hand. The kernel's own are in
// tests/bpf/audit_test.cpp.
#include <gmock/gmock.h>
#include <linux/bpf.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "bpfio/acts.h"
#include "bpfio/instructions.h"

namespace sluice::bpfio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using Code = std::vector<bpf_insn>;

constexpr std::int16_t kOp = 28, kReply = 8;
constexpr std::int32_t kSetSockOpt = 123'456;
const HookShape kShape{kOp, kReply, kSetSockOpt};

constexpr bpf_insn jump_if_not(unsigned reg, std::int32_t value, std::int16_t count) {
  return insn(BPF_JMP | BPF_JNE | BPF_K, reg, 0, count, value);
}
constexpr bpf_insn jump(std::int16_t count) { return insn(BPF_JMP | BPF_JA, 0, 0, count, 0); }
constexpr bpf_insn store_imm(unsigned size, unsigned base, std::int16_t offset, std::int32_t value) {
  return insn(static_cast<std::uint8_t>(BPF_ST | BPF_MEM | size), base, 0, offset, value);
}
constexpr bpf_insn store_u64(unsigned base, std::int16_t offset, unsigned src) {
  return insn(BPF_STX | BPF_MEM | BPF_DW, base, src, offset, 0);
}
constexpr bpf_insn helper(std::int32_t immediate) { return insn(BPF_JMP | BPF_CALL, 0, 0, 0, immediate); }
constexpr bpf_insn call_function(std::int16_t distance) { return insn(BPF_JMP | BPF_CALL, 0, BPF_PSEUDO_CALL, distance, 0); }
constexpr std::int32_t word(const char (&text)[5]) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(text[0]) | static_cast<std::uint32_t>(text[1]) << 8 |
                                   static_cast<std::uint32_t>(text[2]) << 16 | static_cast<std::uint32_t>(text[3]) << 24);
}

Acts read(const Code& code, std::optional<std::uint32_t> op = 5, const HookShape& shape = kShape) {
  return read_acts(std::as_bytes(std::span(code)), shape, op);
}
Code operator+(Code a, const Code& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// setsockopt(r1, SOL_TCP, `option`, "reno" on the stack, 5)
Code set_reno(std::int32_t option = TCP_CONGESTION) {
  return {store_imm(BPF_W, BPF_REG_10, -8, word("reno")),
          store_imm(BPF_B, BPF_REG_10, -4, 0),
          set_imm(BPF_REG_2, IPPROTO_TCP),
          set_imm(BPF_REG_3, option),
          set_reg(BPF_REG_4, BPF_REG_10),
          add_imm(BPF_REG_4, -8),
          set_imm(BPF_REG_5, 5),
          helper(kSetSockOpt)};
}
const Code kReturnOne = {set_imm(BPF_REG_0, 1), leave()};

void expect_nothing(const Acts& acts) {
  EXPECT_FALSE(acts.sets_cca || acts.sets_initial_window || acts.other_reply || acts.returns_zero);
  EXPECT_THAT(acts.replies, IsEmpty());
  EXPECT_EQ(acts.unread, "");
}

TEST(Acts, a_program_that_only_returns_1_can_do_nothing) { expect_nothing(read(kReturnOne)); }

TEST(Acts, a_cca_is_set_at_the_callback_it_is_set_at_and_by_its_name) {
  const Code set = set_reno();
  const Code code =
      Code{load_u32(BPF_REG_2, BPF_REG_1, kOp), jump_if_not(BPF_REG_2, 5, static_cast<std::int16_t>(set.size()))} + set +
      kReturnOne;
  const Acts acts = read(code, 5);
  EXPECT_TRUE(acts.sets_cca);
  EXPECT_THAT(acts.cca_names, ElementsAre("reno"));
  EXPECT_FALSE(acts.other_cca || acts.returns_zero);
  expect_nothing(read(code, 4));
}

TEST(Acts, a_callback_is_told_apart_through_arithmetic_and_bit_masks) {
  const Code set = set_reno();
  // (1 << op) & 0x30: op 4 or 5
  const Code code = Code{load_u32(BPF_REG_2, BPF_REG_1, kOp), set_imm(BPF_REG_3, 1),
                         insn(BPF_ALU64 | BPF_LSH | BPF_X, BPF_REG_3, BPF_REG_2, 0, 0),
                         insn(BPF_ALU64 | BPF_AND | BPF_K, BPF_REG_3, 0, 0, 0x30),
                         skip_if_zero(BPF_REG_3, static_cast<std::int16_t>(set.size()))} +
                    set + kReturnOne;
  EXPECT_TRUE(read(code, 4).sets_cca);
  EXPECT_TRUE(read(code, 5).sets_cca);
  EXPECT_FALSE(read(code, 6).sets_cca);
}

TEST(Acts, another_option_is_no_cca) {
  expect_nothing(read(set_reno(TCP_MAXSEG) + kReturnOne));
  const Acts window = read(set_reno(TCP_BPF_IW) + kReturnOne);
  EXPECT_TRUE(window.sets_initial_window);
  EXPECT_FALSE(window.sets_cca);
}

TEST(Acts, an_option_that_is_not_known_can_be_the_cca) {
  Code code = set_reno();
  code[3] = load_u32(BPF_REG_3, BPF_REG_1, 60);
  const Acts acts = read(code + kReturnOne);
  EXPECT_TRUE(acts.sets_cca && acts.sets_initial_window);
}

TEST(Acts, a_name_that_is_not_known_is_said_to_be_so) {
  Code code = set_reno();
  code[0] = load_u32(BPF_REG_0, BPF_REG_1, 60);
  code.insert(code.begin() + 1, store_u32(BPF_REG_10, -8, BPF_REG_0));
  const Acts acts = read(code + kReturnOne);
  EXPECT_TRUE(acts.sets_cca && acts.other_cca);
  EXPECT_THAT(acts.cca_names, IsEmpty());
}

TEST(Acts, two_ways_to_one_call_leave_the_name_open) {
  const Code set = set_reno();
  const Code tail(set.begin() + 1, set.end());
  const Code code = Code{load_u32(BPF_REG_6, BPF_REG_1, 60), store_imm(BPF_W, BPF_REG_10, -8, word("reno")),
                         skip_if_zero(BPF_REG_6, 1), store_imm(BPF_W, BPF_REG_10, -8, word("bbr\0"))} +
                    tail + kReturnOne;
  EXPECT_TRUE(read(code).other_cca);
}

TEST(Acts, a_name_in_a_map_is_left_to_the_caller) {
  Code code = set_reno();
  code[4] = insn(BPF_LD | BPF_IMM | BPF_DW, BPF_REG_4, BPF_PSEUDO_MAP_VALUE, 0, 77);
  code[5] = insn(0, 0, 0, 0, 12);
  EXPECT_THAT(read(code + kReturnOne).names_in_maps, ElementsAre(Pair(77, 12)));
}

TEST(Acts, where_the_kernel_hides_its_helpers_the_arguments_tell) {
  Code code = set_reno();
  code.back() = helper(0);
  const HookShape hidden{kOp, kReply, 0};
  EXPECT_TRUE(read(code + kReturnOne, 5, hidden).sets_cca);
  code[3] = set_imm(BPF_REG_3, TCP_MAXSEG);
  expect_nothing(read(code + kReturnOne, 5, hidden));
  // What a call before has left in the registers is no argument.
  const Code later = {set_reg(BPF_REG_6, BPF_REG_1),  set_imm(BPF_REG_2, IPPROTO_TCP),
                      set_imm(BPF_REG_3, TCP_MAXSEG), helper(0),
                      set_reg(BPF_REG_1, BPF_REG_6),  helper(0)};
  expect_nothing(read(later + kReturnOne, 5, hidden));
}

TEST(Acts, replies_are_read_with_their_values) {
  EXPECT_THAT(read(Code{store_imm(BPF_W, BPF_REG_1, kReply, 0)} + kReturnOne).replies, ElementsAre(0));
  EXPECT_THAT(read(Code{set_imm(BPF_REG_3, -1), store_u32(BPF_REG_1, kReply, BPF_REG_3)} + kReturnOne).replies,
              ElementsAre(0xffffffffu));
  EXPECT_TRUE(read(Code{load_u32(BPF_REG_3, BPF_REG_1, 40), store_u32(BPF_REG_1, kReply, BPF_REG_3)} + kReturnOne).other_reply);
  expect_nothing(read(Code{store_imm(BPF_W, BPF_REG_1, kReply + 4, 1)} + kReturnOne));
  expect_nothing(read(Code{store_imm(BPF_W, BPF_REG_10, -8, 1)} + kReturnOne));
}

TEST(Acts, the_context_is_followed_through_the_stack) {
  const Code code = {store_u64(BPF_REG_10, -16, BPF_REG_1), set_imm(BPF_REG_1, 0), load_u64(BPF_REG_7, BPF_REG_10, -16),
                     store_imm(BPF_W, BPF_REG_7, kReply, 1)};
  EXPECT_THAT(read(code + kReturnOne).replies, ElementsAre(1));
}

TEST(Acts, a_return_of_zero_is_seen_also_where_it_is_one_of_several) {
  EXPECT_TRUE(read({set_imm(BPF_REG_0, 0), leave()}).returns_zero);
  EXPECT_TRUE(read({load_u32(BPF_REG_0, BPF_REG_1, 40), leave()}).returns_zero);
  EXPECT_TRUE(read({set_imm(BPF_REG_0, 0), load_u32(BPF_REG_2, BPF_REG_1, 40), skip_if_zero(BPF_REG_2, 1),
                    set_imm(BPF_REG_0, 1), leave()})
                  .returns_zero);
  EXPECT_FALSE(read({set_imm(BPF_REG_0, 0), load_u32(BPF_REG_2, BPF_REG_1, kOp), skip_if_zero(BPF_REG_2, 1),
                     set_imm(BPF_REG_0, 1), leave()})
                   .returns_zero);
}

TEST(Acts, functions_are_followed_with_what_they_are_given_and_give_back) {
  // main: r0 = f(ctx); exit. f: ctx->reply = 3; return 1.
  const Code code = {call_function(1), leave(), store_imm(BPF_W, BPF_REG_1, kReply, 3), set_imm(BPF_REG_0, 1), leave()};
  const Acts acts = read(code);
  EXPECT_THAT(acts.replies, ElementsAre(3));
  EXPECT_FALSE(acts.returns_zero);
  Code zero = code;
  zero[3] = set_imm(BPF_REG_0, 0);
  EXPECT_TRUE(read(zero).returns_zero);
}

TEST(Acts, a_context_inside_a_callers_frame_is_followed) {
  // main: stack[-8] = ctx; f(&stack[-8]). f: r2 = *r1; r2->reply = 1
  const Code code = {store_u64(BPF_REG_10, -8, BPF_REG_1),
                     set_reg(BPF_REG_1, BPF_REG_10),
                     add_imm(BPF_REG_1, -8),
                     call_function(2),
                     set_imm(BPF_REG_0, 1),
                     leave(),
                     load_u64(BPF_REG_2, BPF_REG_1, 0),
                     store_imm(BPF_W, BPF_REG_2, kReply, 1),
                     set_imm(BPF_REG_0, 0),
                     leave()};
  const Acts acts = read(code);
  EXPECT_THAT(acts.replies, ElementsAre(1));
  EXPECT_FALSE(acts.returns_zero);
}

TEST(Acts, callbacks_of_helpers_are_looked_into) {
  // bpf_loop(2, f, ctx, 0); f: r2->reply = 7
  const Code code = {set_reg(BPF_REG_3, BPF_REG_1),
                     set_imm(BPF_REG_1, 2),
                     insn(BPF_LD | BPF_IMM | BPF_DW, BPF_REG_2, BPF_PSEUDO_FUNC, 0, 5),
                     insn(0, 0, 0, 0, 0),
                     set_imm(BPF_REG_4, 0),
                     helper(999),
                     set_imm(BPF_REG_0, 1),
                     leave(),
                     store_imm(BPF_W, BPF_REG_2, kReply, 7),
                     set_imm(BPF_REG_0, 0),
                     leave()};
  const Acts acts = read(code);
  EXPECT_THAT(acts.replies, ElementsAre(7));
  EXPECT_FALSE(acts.returns_zero);
}

TEST(Acts, loops_come_to_an_end) {
  const Code code = {set_imm(BPF_REG_2, 1'000'000), add_imm(BPF_REG_2, -1),
                     insn(BPF_JMP | BPF_JNE | BPF_K, BPF_REG_2, 0, -2, 0)};
  expect_nothing(read(code + kReturnOne));
}

TEST(Acts, tail_calls_name_their_array_or_cannot_be_followed) {
  const Code through_array = {insn(BPF_LD | BPF_IMM | BPF_DW, BPF_REG_2, BPF_PSEUDO_MAP_FD, 0, 42), insn(0, 0, 0, 0, 0),
                              set_imm(BPF_REG_3, 0), helper(BPF_FUNC_tail_call)};
  EXPECT_THAT(read(through_array + kReturnOne).tail_calls, ElementsAre(42));
  const Code through_unknown = {load_u64(BPF_REG_2, BPF_REG_1, 0), helper(BPF_FUNC_tail_call)};
  EXPECT_THAT(read(through_unknown + kReturnOne).unread, HasSubstr("program array"));
}

TEST(Acts, what_cannot_be_followed_says_why) {
  EXPECT_THAT(read({}).unread, HasSubstr("does not show"));
  EXPECT_THAT(read(Code(kReadableInstructions + 1, set_imm(BPF_REG_0, 1))).unread, HasSubstr("more than"));
  EXPECT_THAT(read({set_imm(BPF_REG_0, 1)}).unread, HasSubstr("no end"));
  EXPECT_THAT(read({jump(100)}).unread, HasSubstr("out of its instructions"));
  EXPECT_THAT(read({insn(BPF_JMP | BPF_JA | BPF_X, BPF_REG_1, 0, 0, 0)}).unread, HasSubstr("table"));
  EXPECT_THAT(read({insn(BPF_LD | BPF_ABS | BPF_W, 0, 0, 0, 0)}).unread, HasSubstr("not known"));
}

TEST(Acts, no_bytes_make_it_crash_or_run_on) {
  std::uint64_t seed = 20261130;
  if (const char* text = std::getenv("SLUICE_SEED")) seed = std::strtoull(text, nullptr, 10);
  std::printf("SLUICE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  SeededRandom random(seed);
  constexpr std::uint8_t kCodes[] = {0x07, 0x0f, 0x04, 0xb7, 0xbf, 0xb4, 0x18, 0x61, 0x79, 0x71, 0x62, 0x63, 0x7a, 0x7b, 0xdb,
                                     0x05, 0x06, 0x15, 0x16, 0x1d, 0x55, 0x2d, 0xa5, 0xe5, 0x85, 0x95, 0x67, 0x57, 0xdc, 0x8d};
  for (int round = 0; round < 20'000; ++round) {
    Code code(1 + random.below(60));
    for (auto& each : code) {
      const auto near = static_cast<std::int16_t>(static_cast<int>(random.below(40)) - 20);
      const bool sane = random.chance(0.9);
      each = insn(sane ? kCodes[random.below(std::size(kCodes))] : static_cast<std::uint8_t>(random.below(256)),
                  static_cast<unsigned>(random.below(sane ? 11 : 16)), static_cast<unsigned>(random.below(sane ? 11 : 16)),
                  sane ? near : static_cast<std::int16_t>(random.below(65536)), random.chance(0.5) ? near : kSetSockOpt);
    }
    (void)read(code, static_cast<std::uint32_t>(random.below(20)));
  }
}

}  // namespace
}  // namespace sluice::bpfio
