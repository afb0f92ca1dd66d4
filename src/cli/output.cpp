// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cli/output.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/result.h"
#include "base/strings.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

// Plain where no YAML reader, 1.1 or 1.2, could take it for a number, a boolean, null, a date or structure.
bool plain_is_safe(const std::string& text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto inner = [&](char c) {
    return letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' || c == '/' || c == '@';
  };
  if (text.empty() || !letter(text.front()) || !std::all_of(text.begin(), text.end(), inner)) return false;
  constexpr std::array<std::string_view, 9> kWords = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"};
  std::string lower = text;
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return std::find(kWords.begin(), kWords.end(), lower) == kWords.end();
}

std::string scalar(const Json& value) {
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  return plain_is_safe(text) ? text : value.dump();  // a JSON string is a YAML double-quoted one
}

bool is_block(const Json& value) { return value.is_structured() && !value.empty(); }

std::string key_text(const std::string& key) { return plain_is_safe(key) ? key : Json(key).dump(); }

// `indent`: of the lines that this value begins; its first line's is written by the caller when `inline_first`.
void emit(const Json& value, unsigned indent, bool inline_first, std::string& out) {
  const std::string pad(indent, ' ');
  if (!is_block(value)) {
    out += (inline_first ? "" : pad) + (value.is_structured() ? value.dump() : scalar(value)) + "\n";
    return;
  }
  for (auto it = value.begin(); it != value.end(); ++it) {
    out += inline_first ? "" : pad;
    inline_first = false;
    if (value.is_array()) {
      out += "- ";
      emit(*it, indent + 2, true, out);
      continue;
    }
    out += key_text(it.key()) + ":";
    if (is_block(*it)) {
      out += "\n";
      emit(*it, indent + 2, false, out);
    } else {
      out += " ";
      emit(*it, 0, true, out);
    }
  }
}

}  // namespace

std::string to_json(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = pretty;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  SLUICE_ASSERT(status.ok());  // fails only for messages of unknown type, which ours are not
  return text;
}

bool from_json(const std::string& json, google::protobuf::Message& message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  return google::protobuf::util::JsonStringToMessage(json, &message, options).ok();
}

std::string to_yaml(const google::protobuf::Message& message) { return yaml_from_json(to_json(message, false)); }

std::string yaml_from_json(std::string_view json) {
  const Json value = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  SLUICE_ASSERT(!value.is_discarded());  // it was printed by protobuf or by us
  std::string out;
  emit(value, 0, false, out);
  return out;
}

}  // namespace sluice::cli
