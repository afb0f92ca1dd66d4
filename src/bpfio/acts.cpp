// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bpfio/acts.h"

#include <linux/bpf.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstring>
#include <map>
#include <vector>

namespace sluice::bpfio {
namespace {

constexpr std::size_t kStepsMax = std::size_t{1} << 20;  // instructions looked at, revisits included
constexpr int kFrameBytes = 512;
constexpr std::size_t kCcaNameMax = 15;
// Of newer headers than Debian 12's.
constexpr std::uint8_t kJumpCondition = 0xe0;  // BPF_JCOND
constexpr std::int32_t kLoadAcquire = 0x100;   // BPF_LOAD_ACQ

enum class Kind : std::uint8_t {
  kNothing,  // not set, or not to be read after a call
  kUnknown,
  kNumber,
  kContext,
  kFrame,       // into the function's own frame; number = offset, below 0
  kOuterFrame,  // into the frame of a caller
  kReached,     // came through a caller's frame, or into a callback: perhaps the context
  kMap,
  kMapValue,  // number = offset
};

struct Value {
  Kind kind = Kind::kNothing;
  std::uint32_t map = 0;
  std::int64_t number = 0;
  bool operator==(const Value&) const = default;

  bool is_number() const { return kind == Kind::kNumber; }
  // Whether it can be this number, as an argument.
  bool can_be(std::int64_t wanted) const { return kind == Kind::kUnknown || (is_number() && number == wanted); }
};
constexpr Value kUnknown{Kind::kUnknown, 0, 0};
Value number_of(std::int64_t value) { return {Kind::kNumber, 0, value}; }

struct State {
  std::array<Value, 16> regs;             // as many as an instruction can name
  std::map<std::int64_t, Value> spilled;  // pointers in the frame, by offset
  std::array<std::uint8_t, kFrameBytes> bytes{};
  std::bitset<kFrameBytes> known;  // of bytes

  // What holds on both ways; true if that is less than before.
  bool join(const State& other) {
    bool changed = false;
    for (std::size_t i = 0; i < regs.size(); ++i) {
      Value& mine = regs[i];
      if (mine == other.regs[i] || mine.kind == Kind::kNothing) continue;
      const Value joined = other.regs[i].kind == Kind::kNothing ? Value{} : kUnknown;
      changed |= mine != joined;
      mine = joined;
    }
    changed |= std::erase_if(spilled, [&](const auto& item) {
                 const auto found = other.spilled.find(item.first);
                 return found == other.spilled.end() || found->second != item.second;
               }) != 0;
    const auto before = known;
    known &= other.known;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (known[i] && bytes[i] != other.bytes[i]) known.reset(i);
    return changed || known != before;
  }

  void forget_bytes() { known.reset(); }

  void store(std::int64_t offset, int size, const Value& value) {
    if (offset < -kFrameBytes || offset + size > 0) return;
    std::erase_if(spilled, [&](const auto& item) { return item.first < offset + size && item.first + 8 > offset; });
    for (int i = 0; i < size; ++i) {
      const auto at = static_cast<std::size_t>(offset + kFrameBytes + i);
      known[at] = value.is_number();
      bytes[at] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(value.number) >> (8 * i));
    }
    if (size == 8 && !value.is_number() && value.kind != Kind::kUnknown) spilled[offset] = value;
  }

  Value load(std::int64_t offset, int size) const {
    if (size == 8)
      if (const auto found = spilled.find(offset); found != spilled.end()) return found->second;
    if (offset < -kFrameBytes || offset + size > 0) return kUnknown;
    std::uint64_t value = 0;
    for (int i = 0; i < size; ++i) {
      const auto at = static_cast<std::size_t>(offset + kFrameBytes + i);
      if (!known[at]) return kUnknown;
      value |= std::uint64_t{bytes[at]} << (8 * i);
    }
    return number_of(static_cast<std::int64_t>(value));
  }

  // A CCA's name at a place of the frame, as setsockopt takes it; nullopt = not known.
  std::optional<std::string> name_at(std::int64_t offset, const Value& length) const {
    std::string name;
    const std::size_t most = length.is_number() ? std::min(kCcaNameMax, static_cast<std::size_t>(length.number)) : kCcaNameMax;
    while (name.size() < most) {
      const Value byte = load(offset + static_cast<std::int64_t>(name.size()), 1);
      if (!byte.is_number()) return std::nullopt;
      if (byte.number == 0) return name;
      name += static_cast<char>(byte.number);
    }
    return name;
  }
};

int size_of(std::uint8_t code) {
  switch (BPF_SIZE(code)) {
    case BPF_B:
      return 1;
    case BPF_H:
      return 2;
    case BPF_W:
      return 4;
    default:
      return 8;
  }
}

std::optional<std::uint64_t> calculate(std::uint8_t operation, std::uint64_t a, std::uint64_t b, unsigned bits) {
  const unsigned shift = static_cast<unsigned>(b) & (bits - 1);
  switch (operation) {
    case BPF_ADD:
      return a + b;
    case BPF_SUB:
      return a - b;
    case BPF_MUL:
      return a * b;
    case BPF_OR:
      return a | b;
    case BPF_AND:
      return a & b;
    case BPF_XOR:
      return a ^ b;
    case BPF_LSH:
      return a << shift;
    case BPF_RSH:
      return a >> shift;
    case BPF_ARSH:
      return bits == 32 ? static_cast<std::uint64_t>(static_cast<std::int32_t>(a) >> shift)
                        : static_cast<std::uint64_t>(static_cast<std::int64_t>(a) >> shift);
    case BPF_NEG:
      return 0 - a;
    default:
      return std::nullopt;
  }
}

template <class Unsigned, class Signed>
std::optional<bool> compare_as(std::uint8_t operation, Unsigned a, Unsigned b) {
  const auto sa = static_cast<Signed>(a), sb = static_cast<Signed>(b);
  switch (operation) {
    case BPF_JEQ:
      return a == b;
    case BPF_JNE:
      return a != b;
    case BPF_JGT:
      return a > b;
    case BPF_JGE:
      return a >= b;
    case BPF_JLT:
      return a < b;
    case BPF_JLE:
      return a <= b;
    case BPF_JSGT:
      return sa > sb;
    case BPF_JSGE:
      return sa >= sb;
    case BPF_JSLT:
      return sa < sb;
    case BPF_JSLE:
      return sa <= sb;
    case BPF_JSET:
      return (a & b) != 0;
    default:
      return std::nullopt;
  }
}

class Reader {
 public:
  Reader(std::vector<bpf_insn> code, const HookShape& shape, std::optional<std::uint32_t> op)
      : code_(std::move(code)), shape_(shape), op_(op), leader_(code_.size()) {}

  Acts run() {
    find_leaders();
    State entry;
    entry.regs[BPF_REG_1] = {Kind::kContext, 0, 0};
    entry.regs[BPF_REG_10] = {Kind::kFrame, 0, 0};
    flow(0, 0, entry);
    while (!queue_.empty() && acts_.unread.empty()) {
      const std::size_t at = *queue_.begin();
      queue_.erase(queue_.begin());
      run_block(at);
    }
    return std::move(acts_);
  }

 private:
  // A straight run of instructions, entered only at its first.
  struct Block {
    State state;
    std::size_t function;  // its first instruction
  };

  static bool is_wide(const bpf_insn& insn) { return insn.code == (BPF_LD | BPF_IMM | BPF_DW); }
  static bool is_jump(const bpf_insn& insn) { return BPF_CLASS(insn.code) == BPF_JMP || BPF_CLASS(insn.code) == BPF_JMP32; }
  static bool is_subprogram_call(const bpf_insn& insn) {
    return insn.code == (BPF_JMP | BPF_CALL) && insn.src_reg == BPF_PSEUDO_CALL;
  }
  std::size_t target(std::size_t at) const {
    const bpf_insn& insn = code_[at];
    const bool far = insn.code == (BPF_JMP32 | BPF_JA);
    return at + 1 + static_cast<std::size_t>(std::int64_t{far ? insn.imm : insn.off});
  }

  void find_leaders() {
    for (std::size_t i = 0; i < code_.size(); i += is_wide(code_[i]) ? 2 : 1) {
      const bpf_insn& insn = code_[i];
      if (!is_jump(insn) || BPF_OP(insn.code) == BPF_EXIT) continue;
      if (BPF_OP(insn.code) == BPF_CALL && !is_subprogram_call(insn)) continue;
      for (const std::size_t to : {target(i), i + 1})
        if (to < leader_.size()) leader_[to] = true;
    }
  }

  void flow(std::size_t to, std::size_t function, const State& state) {
    if (to >= code_.size()) return give_up("it jumps out of its instructions");
    const auto [found, fresh] = blocks_.try_emplace(to, Block{state, function});
    if (fresh || found->second.state.join(state)) queue_.insert(to);
  }

  // The first reason stands.
  void give_up(std::string why) {
    if (acts_.unread.empty()) acts_.unread = std::move(why);
  }

  void run_block(std::size_t at) {
    const std::size_t function = blocks_.at(at).function;
    State state = blocks_.at(at).state;
    while (acts_.unread.empty()) {
      if (++steps_ > kStepsMax) return give_up("it is too intricate to follow");
      const bpf_insn& insn = code_[at];
      std::size_t next = at + 1;
      if (is_wide(insn)) {
        load_wide(at, state);
        next = at + 2;
      } else if (is_jump(insn)) {
        if (!jump(at, function, state)) return;
      } else {
        step(insn, state);
      }
      if (next >= code_.size()) return give_up("its instructions have no end");
      if (leader_[next]) return flow(next, function, state);
      at = next;
    }
  }

  // False when control does not simply go on at the next instruction.
  bool jump(std::size_t at, std::size_t function, State& state) {
    const bpf_insn& insn = code_[at];
    switch (BPF_OP(insn.code)) {
      case BPF_EXIT:
        leave(function, state.regs[BPF_REG_0]);
        return false;
      case BPF_CALL:
        if (is_subprogram_call(insn)) {
          call_subprogram(at, function, state);
          return false;
        }
        call_helper(insn, state);
        return true;
      case BPF_JA:
        if (BPF_SRC(insn.code) == BPF_X) {
          give_up("it jumps through a table");
          return false;
        }
        flow(target(at), function, state);
        return false;
      default:
        break;
    }
    std::optional<bool> taken;
    if (BPF_OP(insn.code) != kJumpCondition) {
      const Value& a = state.regs[insn.dst_reg];
      const Value b = BPF_SRC(insn.code) == BPF_X ? state.regs[insn.src_reg] : number_of(insn.imm);
      if (a.is_number() && b.is_number())
        taken = BPF_CLASS(insn.code) == BPF_JMP
                    ? compare_as<std::uint64_t, std::int64_t>(BPF_OP(insn.code), static_cast<std::uint64_t>(a.number),
                                                              static_cast<std::uint64_t>(b.number))
                    : compare_as<std::uint32_t, std::int32_t>(BPF_OP(insn.code), static_cast<std::uint32_t>(a.number),
                                                              static_cast<std::uint32_t>(b.number));
    }
    if (taken.value_or(true)) flow(target(at), function, state);
    if (!taken.value_or(false)) flow(at + 1, function, state);
    return false;
  }

  void leave(std::size_t function, const Value& result) {
    if (function == 0) {
      if (!result.is_number() || static_cast<std::uint32_t>(result.number) == 0) acts_.returns_zero = true;
      return;
    }
    const auto [found, fresh] = results_.try_emplace(function, result);
    if (!fresh) {
      if (found->second == result || found->second == kUnknown) return;
      found->second = kUnknown;
    }
    for (const auto& [at, call] : calls_[function]) come_back(at, call, found->second);
  }

  void come_back(std::size_t at, const Block& call, const Value& result) {
    State state = call.state;
    state.regs[BPF_REG_0] = result;
    flow(at + 1, call.function, state);
  }

  void call_subprogram(std::size_t at, std::size_t function, State& state) {
    const std::size_t to = target(at);
    State entry;
    for (int i = BPF_REG_1; i <= BPF_REG_5; ++i) {
      entry.regs[i] = state.regs[i];
      if (state.regs[i].kind != Kind::kFrame) continue;
      entry.regs[i] = {Kind::kOuterFrame, 0, 0};
      state.forget_bytes();
    }
    entry.regs[BPF_REG_10] = {Kind::kFrame, 0, 0};
    flow(to, to, entry);
    clobber(state);
    const auto [found, fresh] = calls_[to].try_emplace(at, Block{state, function});
    if (!fresh) found->second.state.join(state);
    if (const auto result = results_.find(to); result != results_.end()) come_back(at, found->second, result->second);
  }

  static void clobber(State& state) {
    for (int i = BPF_REG_0; i <= BPF_REG_5; ++i) state.regs[i] = {};
  }

  void call_helper(const bpf_insn& insn, State& state) {
    const auto& regs = state.regs;
    bool reads_only = false;
    if (insn.src_reg == 0 && insn.imm == BPF_FUNC_tail_call) {
      if (regs[BPF_REG_2].kind == Kind::kMap)
        acts_.tail_calls.insert(regs[BPF_REG_2].map);
      else
        return give_up("it calls on through a program array that its instructions do not name");
    } else if (insn.src_reg == 0 && insn.imm == shape_.setsockopt) {
      // Where the kernel hides which helper this is, the arguments alone have to tell.
      reads_only = shape_.setsockopt != 0;
      const Kind subject = regs[BPF_REG_1].kind;
      if ((subject == Kind::kContext || subject == Kind::kReached || subject == Kind::kUnknown) &&
          regs[BPF_REG_2].can_be(IPPROTO_TCP)) {
        if (regs[BPF_REG_3].can_be(TCP_CONGESTION)) set_cca(state);
        if (regs[BPF_REG_3].can_be(TCP_BPF_IW)) acts_.sets_initial_window = true;
      }
    }
    for (int i = BPF_REG_1; i <= BPF_REG_5 && !reads_only; ++i)
      if (regs[i].kind == Kind::kFrame) state.forget_bytes();
    clobber(state);
    state.regs[BPF_REG_0] = kUnknown;
  }

  void set_cca(const State& state) {
    acts_.sets_cca = true;
    const Value& where = state.regs[BPF_REG_4];
    std::optional<std::string> name;
    if (where.kind == Kind::kFrame) name = state.name_at(where.number, state.regs[BPF_REG_5]);
    if (name)
      acts_.cca_names.insert(*name);
    else if (where.kind == Kind::kMapValue)
      acts_.names_in_maps.emplace(where.map, static_cast<std::uint32_t>(where.number));
    else
      acts_.other_cca = true;
  }

  void load_wide(std::size_t at, State& state) {
    const bpf_insn& low = code_[at];
    const std::uint32_t high = at + 1 < code_.size() ? static_cast<std::uint32_t>(code_[at + 1].imm) : 0;
    Value& into = state.regs[low.dst_reg];
    switch (low.src_reg) {
      case 0:
        into = number_of(static_cast<std::int64_t>(std::uint64_t{high} << 32 | static_cast<std::uint32_t>(low.imm)));
        return;
      case BPF_PSEUDO_MAP_FD:
        into = {Kind::kMap, static_cast<std::uint32_t>(low.imm), 0};
        return;
      case BPF_PSEUDO_MAP_VALUE:
        into = {Kind::kMapValue, static_cast<std::uint32_t>(low.imm), high};
        return;
      case BPF_PSEUDO_FUNC: {
        // A callback, for a helper to call: with what the program handed it, perhaps the context.
        State entry;
        for (int i = BPF_REG_1; i <= BPF_REG_5; ++i) entry.regs[i] = {Kind::kReached, 0, 0};
        entry.regs[BPF_REG_10] = {Kind::kFrame, 0, 0};
        const std::size_t to = at + 1 + static_cast<std::size_t>(std::int64_t{low.imm});
        if (to < leader_.size()) leader_[to] = true;
        flow(to, to, entry);
        break;
      }
      default:
        break;
    }
    into = kUnknown;
  }

  void step(const bpf_insn& insn, State& state) {
    switch (BPF_CLASS(insn.code)) {
      case BPF_ALU:
      case BPF_ALU64:
        return calculate_into(insn, state);
      case BPF_LDX:
        state.regs[insn.dst_reg] = load(insn, state);
        return;
      case BPF_ST:
      case BPF_STX:
        return store(insn, state);
      default:  // BPF_LD: packet access, which no hook of these has
        return give_up(fmt::format("it has an instruction that is not known (0x{:02x})", insn.code));
    }
  }

  void calculate_into(const bpf_insn& insn, State& state) {
    Value& into = state.regs[insn.dst_reg];
    const bool wide = BPF_CLASS(insn.code) == BPF_ALU64;
    const std::uint8_t operation = BPF_OP(insn.code);
    const Value by = BPF_SRC(insn.code) == BPF_X && operation != BPF_END && operation != BPF_NEG ? state.regs[insn.src_reg]
                                                                                                 : number_of(insn.imm);
    if (operation == BPF_MOV) {
      // With an offset it extends a sign; a pointer's half is none.
      if (insn.off != 0 || (!wide && !by.is_number()))
        into = kUnknown;
      else
        into = wide ? by : number_of(static_cast<std::uint32_t>(by.number));
      return;
    }
    if (into.is_number() && by.is_number() && insn.off == 0) {
      const auto a = static_cast<std::uint64_t>(into.number), b = static_cast<std::uint64_t>(by.number);
      const auto result = wide ? calculate(operation, a, b, 64)
                               : calculate(operation, static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b), 32);
      if (!result) {
        into = kUnknown;
        return;
      }
      into =
          number_of(wide ? static_cast<std::int64_t>(*result) : static_cast<std::int64_t>(static_cast<std::uint32_t>(*result)));
      return;
    }
    const bool moves = wide && (operation == BPF_ADD || operation == BPF_SUB);
    if (moves && (into.kind == Kind::kOuterFrame || into.kind == Kind::kReached)) return;
    const bool pointer = into.kind == Kind::kContext || into.kind == Kind::kFrame || into.kind == Kind::kMapValue;
    if (moves && pointer && by.is_number())
      into.number += operation == BPF_ADD ? by.number : -by.number;
    else
      into = kUnknown;
  }

  Value load(const bpf_insn& insn, const State& state) const {
    const Value& base = state.regs[insn.src_reg];
    const bool plain = BPF_MODE(insn.code) == BPF_MEM;
    switch (base.kind) {
      case Kind::kContext:
        if (op_ && shape_.op_offset && base.number + insn.off == *shape_.op_offset) return number_of(*op_);
        return kUnknown;
      case Kind::kFrame:
        return plain ? state.load(base.number + insn.off, size_of(insn.code)) : kUnknown;
      case Kind::kOuterFrame:
      case Kind::kReached:
        return size_of(insn.code) == 8 ? Value{Kind::kReached, 0, 0} : kUnknown;
      default:
        return kUnknown;
    }
  }

  void store(const bpf_insn& insn, State& state) {
    if (BPF_CLASS(insn.code) == BPF_ST && BPF_MODE(insn.code) != BPF_MEM) return;  // a barrier against speculation
    const Value base = state.regs[insn.dst_reg];
    Value value = BPF_CLASS(insn.code) == BPF_ST ? number_of(insn.imm) : state.regs[insn.src_reg];
    if (BPF_MODE(insn.code) == BPF_ATOMIC) {
      if (insn.imm == kLoadAcquire) {
        state.regs[insn.dst_reg] = kUnknown;
        return;
      }
      if (insn.imm == BPF_CMPXCHG)
        state.regs[BPF_REG_0] = kUnknown;
      else if ((insn.imm & BPF_FETCH) != 0)
        state.regs[insn.src_reg] = kUnknown;
      value = kUnknown;
    }
    if (base.kind == Kind::kFrame) return state.store(base.number + insn.off, size_of(insn.code), value);
    const bool reply = shape_.reply_offset && BPF_SIZE(insn.code) == BPF_W &&
                       ((base.kind == Kind::kContext && base.number + insn.off == *shape_.reply_offset) ||
                        (base.kind == Kind::kReached && insn.off == *shape_.reply_offset));
    if (!reply) return;
    if (value.is_number())
      acts_.replies.insert(static_cast<std::uint32_t>(value.number));
    else
      acts_.other_reply = true;
  }

  std::vector<bpf_insn> code_;
  const HookShape& shape_;
  std::optional<std::uint32_t> op_;
  Acts acts_;
  std::vector<bool> leader_;
  std::map<std::size_t, Block> blocks_;
  std::set<std::size_t> queue_;
  std::map<std::size_t, Value> results_;                       // of functions, by their first instruction
  std::map<std::size_t, std::map<std::size_t, Block>> calls_;  // function -> where it is called, and the state after
  std::size_t steps_ = 0;
};

}  // namespace

void Acts::merge(const Acts& other) {
  sets_cca |= other.sets_cca;
  cca_names.insert(other.cca_names.begin(), other.cca_names.end());
  other_cca |= other.other_cca;
  sets_initial_window |= other.sets_initial_window;
  replies.insert(other.replies.begin(), other.replies.end());
  other_reply |= other.other_reply;
  returns_zero |= other.returns_zero;
  if (unread.empty()) unread = other.unread;
  names_in_maps.insert(other.names_in_maps.begin(), other.names_in_maps.end());
  tail_calls.insert(other.tail_calls.begin(), other.tail_calls.end());
}

Acts read_acts(std::span<const std::byte> instructions, const HookShape& shape, std::optional<std::uint32_t> op) {
  Acts nothing;
  std::vector<bpf_insn> code(instructions.size() / sizeof(bpf_insn));
  if (code.empty())
    nothing.unread = "the kernel does not show its instructions";
  else if (code.size() > kReadableInstructions)
    nothing.unread =
        fmt::format("it has {} instructions, more than the {} that can be followed", code.size(), kReadableInstructions);
  if (!nothing.unread.empty()) return nothing;
  std::memcpy(code.data(), instructions.data(), code.size() * sizeof(bpf_insn));
  return Reader(std::move(code), shape, op).run();
}

}  // namespace sluice::bpfio
