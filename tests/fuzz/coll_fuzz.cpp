// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Fuzz target: packets of the collective protocol, to an aggregator, a member in a call, and both ends of a broadcast. Whatever
// comes: no packet makes more than one answer, but for those that go to all members once (a last contribution, a failure), and
// all that is sent is intact.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/result.h"
#include "coll/model/aggregator.h"
#include "coll/model/broadcast.h"
#include "coll/model/member.h"

namespace {

using namespace sluice::coll;

constexpr std::uint16_t kMembers = 3;
constexpr std::uint64_t kToken = 7;

Address host(unsigned number) {
  Address address;
  address.ip[15] = static_cast<std::uint8_t>(number);
  address.port = 1;
  return address;
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}
  bool empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_[0];
    rest_ = rest_.subspan(1);
    return value;
  }
  ByteSpan bytes(std::size_t size) {
    const ByteSpan some = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(some.size());
    return some;
  }

 private:
  ByteSpan rest_;
};

// A packet that gets past token and integrity: its fields and payload are the input's.
Bytes packet(Input& input) {
  static constexpr std::uint32_t kMagic[] = {SL_COLL_MAGIC_AGGREGATE, SL_COLL_MAGIC_BROADCAST, SL_COLL_MAGIC_CONTROL};
  static constexpr std::uint32_t kFragments[] = {
      0, 16, 32, 0x7fffffff, SL_COLL_FRAG_SPECIAL, SL_COLL_FRAG_SPECIAL | 16, SL_COLL_FRAG_EXPONENTS};
  Header header;
  const std::uint8_t kind = input.byte();
  header.magic = kMagic[kind % 3];
  header.key = input.byte();
  header.place(kind & 0x80 ? input.byte() : 1, input.byte() | (kind & 0x40 ? std::uint64_t{input.byte()} << 32 : 0));
  header.frag_offset = kFragments[input.byte() % std::size(kFragments)];
  header.op = input.byte();
  header.dtype = input.byte();
  header.flags = input.byte();
  header.version = kind & 0x20 ? input.byte() : SL_COLL_VERSION;
  header.job = 1;
  header.members = kind & 0x10 ? input.byte() : kMembers;
  header.exponent = static_cast<std::int8_t>(input.byte());
  header.scale_low = static_cast<std::int8_t>(input.byte());
  header.token = kToken;
  return encode(header, input.bytes(input.byte()));
}

void check_sent(const Outbox& out) {
  for (const Datagram& datagram : out) SLUICE_ASSERT(parse(datagram.bytes) && intact(datagram.bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  AggregatorConfig config;
  config.job.token = kToken;
  config.job.job = 1;
  config.job.members = config.job.contributors = kMembers;
  config.job.weight_sum = kMembers;
  config.job.incarnation = 1;
  config.job.window = 2;
  config.job.words = 16;
  for (unsigned key = 0; key < kMembers; key++) {
    sl_coll_member member{};
    member.addr[15] = static_cast<std::uint8_t>(key);
    reinterpret_cast<std::uint8_t*>(&member.port)[1] = 1;
    member.weight = 1;
    config.members.push_back(member);
  }
  Aggregator aggregator(config);

  Member member({.token = kToken,
                 .weight_sum = kMembers,
                 .instance = 1,
                 .job = 1,
                 .members = kMembers,
                 .window = 2,
                 .words = 16,
                 .key = 0,
                 .aggregator = host(99)});
  std::uint64_t now = 1'000'000'000;
  Outbox sent, answers;
  member.join(now, sent);
  aggregator.receive(host(0), sent[0].bytes, now, answers);
  member.receive(host(99), answers[0].bytes, now, sent);
  Call call;
  call.op = static_cast<sl_coll_op>(1 + input.byte() % (SL_COLL_OP_COUNT - 1));
  call.dtype = static_cast<sl_coll_dtype>(input.byte() % SL_COLL_DTYPE_COUNT);
  std::vector<std::uint8_t> memory(call.op == SL_COLL_BARRIER ? 0 : input.byte() * 8u, 0x41);
  call.input = memory;
  call.output = memory;
  std::ignore = member.begin(call, now, sent);

  BroadcastConfig stream;
  stream.token = kToken;
  stream.job = 1;
  stream.members = kMembers;
  stream.incarnation = 1;
  stream.words = 16;
  stream.group = 4;
  stream.window = 8;
  BroadcastReceiver receiver(stream, 1, host(0));
  BroadcastSender sender(stream, 0b110, {host(0), host(1), host(2)});
  sender.send(SL_COLL_I32, Bytes(4 * 16 * 20), now, sent);
  check_sent(sent);

  while (!input.empty()) {
    const std::uint8_t what = input.byte();
    const unsigned from = what >> 2 & 3;
    Outbox out;
    if (what & 2) {
      now += std::uint64_t{input.byte()} << (what >> 4 << 1);
      member.tick(now, out);
      aggregator.tick(now, out);
      receiver.tick(now, out);
      sender.tick(now, out);
      check_sent(out);
      continue;
    }
    Bytes bytes;
    if (what & 1) {
      const ByteSpan raw = input.bytes(input.byte());
      bytes.assign(raw.begin(), raw.end());
    } else {
      bytes = packet(input);
    }
    aggregator.receive(host(from), bytes, now, out);
    SLUICE_ASSERT(out.size() <= 1 || out.size() == kMembers);
    check_sent(out);
    out.clear();
    member.receive(host(99), bytes, now, out);
    receiver.receive(host(0), bytes, now, out);
    while (receiver.take()) continue;
    SLUICE_ASSERT(receiver.buffered() < stream.window);
    sender.receive(host(from), bytes, now, out);
    check_sent(out);
  }
  return 0;
}
