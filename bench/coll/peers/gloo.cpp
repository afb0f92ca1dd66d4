// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The peer Gloo over TCP: allreduce in place.
//
//   bench_peer_gloo RANK SIZE DIR ADDRESS ring|bcube CALLS...
//
//   DIR      an empty folder that all ranks see: they find each other there
//   ADDRESS  of this rank
//   CALLS    as loop.h says them; rank 0 prints a line of JSON for each
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "../loop.h"

namespace sluice::bench {
namespace {

template <class T>
void all_reduce(const std::shared_ptr<gloo::Context>& context, gloo::AllreduceOptions::Algorithm algorithm,
                std::vector<std::uint8_t>& memory) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(algorithm);
  options.setOutput(reinterpret_cast<T*>(memory.data()), memory.size() / sizeof(T));
  options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<T>));
  gloo::allreduce(options);
}

int run(int argc, char** argv) {
  if (argc < 7) return 2;
  const int rank = std::stoi(argv[1]), size = std::stoi(argv[2]);
  gloo::transport::tcp::attr attributes;
  attributes.hostname = argv[4];
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(argv[3]);
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->setTimeout(std::chrono::seconds(120));
  context->connectFullMesh(store, device);
  const auto algorithm =
      std::string(argv[5]) == "ring" ? gloo::AllreduceOptions::Algorithm::RING : gloo::AllreduceOptions::Algorithm::BCUBE;
  for (int i = 6; i < argc; i++) {
    Calls calls;
    if (!calls_of(argv[i], calls)) return 2;
    std::vector<std::uint8_t> memory(calls.bytes);
    Timing timing;
    const auto reduce = [&] {
      calls.floats ? all_reduce<float>(context, algorithm, memory) : all_reduce<std::int32_t>(context, algorithm, memory);
      return true;
    };
    const auto barrier = [&] {
      gloo::BarrierOptions options(context);
      gloo::barrier(options);
    };
    time_calls(static_cast<unsigned>(rank), static_cast<unsigned>(size), calls, {memory}, reduce, barrier, rank == 0, timing);
    if (timing.wrong != 0) return 1;
    if (rank == 0) print(timing);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    return sluice::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_peer_gloo: %s\n", error.what());
    return 1;
  }
}
