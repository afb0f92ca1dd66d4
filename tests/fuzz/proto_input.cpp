// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "fuzz/proto_input.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <algorithm>

#include "base/result.h"

namespace sluice::fuzz {

bool read_input(const std::uint8_t* data, std::size_t size, google::protobuf::Message& message) {
  // Protobuf writes every refusal to stderr.
  [[maybe_unused]] static const auto kBefore = google::protobuf::SetLogHandler(nullptr);
  constexpr int kDepthMax = 64;  // below that of the wire format
  google::protobuf::TextFormat::Parser parser;
  parser.AllowUnknownField(true);  // an input outlives a field
  parser.SetRecursionLimit(kDepthMax);
  google::protobuf::io::ArrayInputStream stream(data, static_cast<int>(size));
  if (!parser.Parse(&stream, &message)) return false;
  const std::string wire = message.SerializeAsString();
  return message.ParseFromString(wire);
}

void check_covers_api(const google::protobuf::Descriptor& input, Side side, std::initializer_list<std::string_view> but) {
  const auto* api = input.file()->pool()->FindServiceByName("sluice.v1.Agent");
  SLUICE_ASSERT(api != nullptr);
  for (int i = 0; i < api->method_count(); ++i) {
    const auto* message = side == Side::kRequest ? api->method(i)->input_type() : api->method(i)->output_type();
    bool found = std::find(but.begin(), but.end(), message->name()) != but.end();
    for (int k = 0; k < input.field_count(); ++k) found = found || input.field(k)->message_type() == message;
    SLUICE_ASSERT(found);
  }
}

}  // namespace sluice::fuzz
