// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// SHA-256 (FIPS 180-4): the identity of bundles. Here, because a digest of a few files is not worth a library.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::bundle {

std::array<std::uint8_t, 32> sha256(std::string_view bytes);
std::string sha256_hex(std::string_view bytes);

}  // namespace sluice::bundle
