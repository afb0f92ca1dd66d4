// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Limits of a job that its members and its aggregator check alike, and the shared retransmission timer.
#pragma once

#include <sluice/abi/coll.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/result.h"

namespace sluice::coll {

inline tl::unexpected<Error> fail_members(std::size_t members) {
  return fail(make_error(
      Code::kExhausted, fmt::format("member {} is one too many: an aggregator serves {} members", members, SL_COLL_MEMBERS_MAX),
      "put the members under several aggregators, as a tree"));
}

inline Status check_geometry(std::uint32_t members, std::uint32_t window, std::uint32_t words, std::uint64_t weight_sum) {
  if (members == 0 || members > SL_COLL_TOTAL_MAX)
    return fail(Code::kExhausted, "a job has 1 to {} members, not {}", SL_COLL_TOTAL_MAX, members);
  if (window > SL_COLL_WINDOW_MAX || !std::has_single_bit(window))
    return fail(Code::kInvalid, "a window is a power of two up to {}, not {}", SL_COLL_WINDOW_MAX, window);
  if (words < SL_COLL_WORDS_MIN || words > SL_COLL_WORDS_MAX || words % 2 != 0)
    return fail(Code::kInvalid, "a chunk has {} to {} words, an even number, not {}", SL_COLL_WORDS_MIN, SL_COLL_WORDS_MAX,
                words);
  if (weight_sum < members || weight_sum > INT32_MAX)
    return fail(Code::kInvalid, "the sum of weights is {} at least and {} at most, not {}", members, INT32_MAX, weight_sum);
  return {};
}

// RFC 6298, in nanoseconds. Samples of packets that were sent more than once are not to be given (Karn).
class RttEstimator {
 public:
  RttEstimator(std::uint64_t initial_rto, std::uint64_t min_rto, std::uint64_t max_rto)
      : rto_(initial_rto), min_(min_rto), max_(max_rto) {}

  void sample(std::uint64_t rtt) {
    if (srtt_ == 0) {
      srtt_ = rtt;
      rttvar_ = rtt / 2;
    } else {
      const std::uint64_t error = srtt_ > rtt ? srtt_ - rtt : rtt - srtt_;
      rttvar_ = (3 * rttvar_ + error) / 4;
      srtt_ = (7 * srtt_ + rtt) / 8;
    }
    rto_ = std::clamp(srtt_ + 4 * rttvar_, min_, max_);
  }
  std::uint64_t srtt() const { return srtt_; }  // 0 = no sample yet
  std::uint64_t rto() const { return rto_; }
  // After `tries` transmissions.
  std::uint64_t backed_off(unsigned tries) const { return std::min(max_, rto_ << std::min(tries > 0 ? tries - 1 : 0, 20u)); }

 private:
  std::uint64_t srtt_ = 0, rttvar_ = 0;
  std::uint64_t rto_, min_, max_;
};

}  // namespace sluice::coll
