// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// gRPC's deadlines are times of day by default: a step of the wall clock would move them.
#pragma once

#include <grpc/support/time.h>

#include <chrono>

namespace sluice::wire {

// A deadline for gRPC: so long from the moment it is handed over, by the monotonic clock.
inline gpr_timespec within(std::chrono::nanoseconds time) { return gpr_time_from_nanos(time.count(), GPR_TIMESPAN); }

}  // namespace sluice::wire
