// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Inputs that are protobuf messages in text form: readable in the corpus, and mutated field by field (proto_mutator.cpp).
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <cstdint>

namespace sluice::fuzz {

// The message that the target reads; each target defines it.
const google::protobuf::Message& prototype();

// False when no peer could have sent it: not the text of such a message, or strings that are not UTF-8, which gRPC refuses.
bool read_input(const std::uint8_t* data, std::size_t size, google::protobuf::Message& message);

}  // namespace sluice::fuzz
