// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The peer Open MPI, started by mpirun: MPI_Allreduce in place.
//
//   bench_peer_mpi CALLS...      as loop.h says them; rank 0 prints a line of JSON for each
#include <mpi.h>

#include "../loop.h"

int main(int argc, char** argv) {
  using namespace sluice::bench;
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 1; i < argc; i++) {
    Calls calls;
    if (!calls_of(argv[i], calls)) return 2;
    std::vector<std::uint8_t> memory(calls.bytes);
    Timing timing;
    const auto all_reduce = [&] {
      return MPI_Allreduce(MPI_IN_PLACE, memory.data(), static_cast<int>(calls.bytes / 4), calls.floats ? MPI_FLOAT : MPI_INT,
                           MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS;
    };
    if (!time_calls(
            static_cast<unsigned>(rank), static_cast<unsigned>(size), calls, {memory}, all_reduce,
            [] { MPI_Barrier(MPI_COMM_WORLD); }, rank == 0, timing))
      return 1;
    std::uint64_t own = timing.wrong;
    MPI_Reduce(&own, &timing.wrong, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) print(timing);
  }
  MPI_Finalize();
}
