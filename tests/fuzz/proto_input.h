// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Inputs that are protobuf messages in text form: readable in the corpus, and mutated field by field (proto_mutator.cpp).
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace sluice::fuzz {

// The message that the target reads; each target defines it.
const google::protobuf::Message& prototype();

// False when no peer could have sent it: not the text of such a message, or strings that are not UTF-8, which gRPC refuses.
bool read_input(const std::uint8_t* data, std::size_t size, google::protobuf::Message& message);

// Every call of the agent's API has its message of this kind among the fields of `input`, but for those of the types named: a
// new call must not be forgotten here.
enum class Side { kRequest, kReply };
void check_covers_api(const google::protobuf::Descriptor& input, Side side, std::initializer_list<std::string_view> but);

}  // namespace sluice::fuzz
