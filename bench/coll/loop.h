// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The loop that times an all-reduce, the same for everybody that `bench coll` compares: sums in place, of values whose sums are
// exact in either type, every value of every result looked at. Needs nothing but the standard library: the peers' programs
// include it.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace sluice::bench {

struct Calls {
  bool floats = false;  // f32, else i32
  std::size_t bytes = 0;
  unsigned warm = 2;
  unsigned measured = 10;
};

struct Timing {
  std::vector<double> seconds;  // of one member, by call
  double busy_seconds = 0;      // of all processors, in all measured calls
  std::uint64_t wrong = 0;      // values
};

// Seconds that all processors have worked since boot, softirqs included once, by the kernel's own sums.
inline double busy_seconds() {
  std::FILE* file = std::fopen("/proc/stat", "re");
  if (file == nullptr) return 0;
  unsigned long long user, nice, system, idle, iowait, irq, softirq;
  const int read =
      std::fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait, &irq, &softirq);
  std::fclose(file);
  return read == 7 ? static_cast<double>(user + nice + system + irq + softirq) / static_cast<double>(::sysconf(_SC_CLK_TCK))
                   : 0;
}

inline std::uint32_t word_of(bool floats, std::uint32_t value) {
  if (!floats) return value;
  const auto number = static_cast<float>(value);
  std::uint32_t word;
  std::memcpy(&word, &number, sizeof word);
  return word;
}
inline std::uint32_t value_of(unsigned member, std::size_t index) {
  return (static_cast<std::uint32_t>(index) * 2654435761U >> 20) + member;
}

using Parts = std::vector<std::span<std::uint8_t>>;  // a vector, in one or several places

inline void fill(const Calls& calls, const Parts& memory, const auto& value) {
  std::size_t index = 0;
  for (const auto part : memory)
    for (std::size_t at = 0; at < part.size(); at += 4) {
      const std::uint32_t word = word_of(calls.floats, value(index++));
      std::memcpy(&part[at], &word, sizeof word);
    }
}

// `all_reduce` returns false when it failed, and then so does this. `barrier` is not timed. `result` is of the member that
// `times`.
template <class AllReduce, class Barrier>
bool time_calls(unsigned member, unsigned members, const Calls& calls, const Parts& memory, AllReduce all_reduce,
                Barrier barrier, bool times, Timing& result) {
  std::vector<std::vector<std::uint8_t>> given, expected;
  fill(calls, memory, [&](std::size_t index) { return value_of(member, index); });
  for (const auto part : memory) given.emplace_back(part.begin(), part.end());
  fill(calls, memory, [&](std::size_t index) { return members * value_of(0, index) + members * (members - 1) / 2; });
  for (const auto part : memory) expected.emplace_back(part.begin(), part.end());
  for (unsigned call = 0; call < calls.warm + calls.measured; call++) {
    for (std::size_t i = 0; i < memory.size(); i++) std::memcpy(memory[i].data(), given[i].data(), given[i].size());
    barrier();
    const double busy = times ? busy_seconds() : 0;
    const auto begun = std::chrono::steady_clock::now();
    if (!all_reduce()) return false;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    barrier();
    if (times && call >= calls.warm) {
      result.seconds.push_back(took.count());
      result.busy_seconds += busy_seconds() - busy;
    }
    for (std::size_t i = 0; i < memory.size(); i++) {
      if (std::memcmp(memory[i].data(), expected[i].data(), expected[i].size()) == 0) continue;
      for (std::size_t at = 0; at < expected[i].size(); at += 4)
        result.wrong += std::memcmp(&memory[i][at], &expected[i][at], 4) != 0;
    }
  }
  return true;
}

// What a peer's program prints of each of its calls, and how they are said to it: "i32:BYTES:WARM:MEASURED".
inline void print(const Timing& timing) {
  std::printf("{\"wrong\": %llu, \"busy_seconds\": %.2f, \"seconds\": [", static_cast<unsigned long long>(timing.wrong),
              timing.busy_seconds);
  for (std::size_t i = 0; i < timing.seconds.size(); i++) std::printf("%s%.9f", i ? ", " : "", timing.seconds[i]);
  std::printf("]}\n");
  std::fflush(stdout);
}
inline std::string text_of(const Calls& calls) {
  return std::string(calls.floats ? "f32" : "i32") + ":" + std::to_string(calls.bytes) + ":" + std::to_string(calls.warm) +
         ":" + std::to_string(calls.measured);
}
inline bool calls_of(const char* text, Calls& calls) {
  char dtype[4];
  if (std::sscanf(text, "%3[a-z0-9]:%zu:%u:%u", dtype, &calls.bytes, &calls.warm, &calls.measured) != 4) return false;
  calls.floats = std::strcmp(dtype, "f32") == 0;
  return calls.bytes % 4 == 0;
}

}  // namespace sluice::bench
