// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Replies for programs: JSON by protobuf's rules (field names as in agent.proto, defaults printed), and YAML made from that
// JSON.
#pragma once

#include <string>
#include <string_view>

namespace google::protobuf {
class Message;
}

namespace sluice::cli {

enum class Format { kTable, kJson, kYaml };

std::string to_json(const google::protobuf::Message& message,
                    bool pretty);  // pretty: with a final newline; else one line without
// The other way round; fields of another version are passed over. False: that is not JSON of this message.
bool from_json(const std::string& json, google::protobuf::Message& message);
std::string to_yaml(const google::protobuf::Message& message);
// Block style, members in their order, every string quoted that could be read as something else.
std::string yaml_from_json(std::string_view json);

}  // namespace sluice::cli
