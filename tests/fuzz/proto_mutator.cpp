// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// libFuzzer's mutations for inputs that are protobuf messages: a field is set, cleared, repeated, moved, or its bytes are
// mutated by libFuzzer itself, with its dictionary. Bytes of the text form are mutated too, now and then.
#include <google/protobuf/text_format.h>

#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fuzz/proto_input.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace sluice::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kDepthMax = 8;
constexpr std::size_t kTextGrowth = 64;

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t bound) { return random_() % bound; }

  void mutate(Message& message, int depth = 0) {
    const FieldDescriptor* field = pick(message);
    if (field == nullptr) return;
    if (field->is_repeated())
      repeated(message, *field, depth);
    else
      singular(message, *field, depth);
  }

 private:
  std::minstd_rand random_;

  // A field that is set, or any of the message's type.
  const FieldDescriptor* pick(const Message& message) {
    std::vector<const FieldDescriptor*> set;
    message.GetReflection()->ListFields(message, &set);
    if (!set.empty() && below(4) != 0) return set[below(set.size())];
    const auto* type = message.GetDescriptor();
    return type->field_count() == 0 ? nullptr
                                    : type->field(static_cast<int>(below(static_cast<std::size_t>(type->field_count()))));
  }

  template <class T>
  T number(T before) {
    static constexpr std::array<T, 7> kEdges = {
        T{0}, T{1}, T{2}, T{9}, std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest(), static_cast<T>(-1)};
    if (below(2) == 0) return kEdges[below(kEdges.size())];
    std::uint8_t bytes[sizeof(T)];
    std::memcpy(bytes, &before, sizeof(T));
    LLVMFuzzerMutate(bytes, sizeof(T), sizeof(T));
    std::memcpy(&before, bytes, sizeof(T));
    return before;
  }
  double real(double before) {
    static constexpr std::array<double, 5> kEdges = {0.0, -1.0, 1e300, std::numeric_limits<double>::infinity(),
                                                     std::numeric_limits<double>::quiet_NaN()};
    return below(2) == 0 ? kEdges[below(kEdges.size())] : number(before);
  }
  std::string text(std::string before) {
    const std::size_t size = before.size();
    before.resize(size + kTextGrowth);
    before.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(before.data()), size, before.size()));
    return before;
  }

  void singular(Message& message, const FieldDescriptor& field, int depth) {
    const Reflection& reflection = *message.GetReflection();
    if (below(16) == 0) return reflection.ClearField(&message, &field);
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection.SetInt32(&message, &field, number(reflection.GetInt32(message, &field)));
      case FieldDescriptor::CPPTYPE_INT64:
        return reflection.SetInt64(&message, &field, number(reflection.GetInt64(message, &field)));
      case FieldDescriptor::CPPTYPE_UINT32:
        return reflection.SetUInt32(&message, &field, number(reflection.GetUInt32(message, &field)));
      case FieldDescriptor::CPPTYPE_UINT64:
        return reflection.SetUInt64(&message, &field, number(reflection.GetUInt64(message, &field)));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return reflection.SetDouble(&message, &field, real(reflection.GetDouble(message, &field)));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return reflection.SetFloat(&message, &field, static_cast<float>(real(reflection.GetFloat(message, &field))));
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection.SetBool(&message, &field, !reflection.GetBool(message, &field));
      case FieldDescriptor::CPPTYPE_ENUM:
        return reflection.SetEnumValue(
            &message, &field,
            field.enum_type()
                ->value(static_cast<int>(below(static_cast<std::size_t>(field.enum_type()->value_count()))))
                ->number());
      case FieldDescriptor::CPPTYPE_STRING:
        return reflection.SetString(&message, &field, text(reflection.GetString(message, &field)));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth < kDepthMax) mutate(*reflection.MutableMessage(&message, &field), depth + 1);
        return;
    }
  }

  void repeated(Message& message, const FieldDescriptor& field, int depth) {
    const Reflection& reflection = *message.GetReflection();
    const auto size = static_cast<std::size_t>(reflection.FieldSize(message, &field));
    switch (below(size == 0 ? 1 : 8)) {
      case 0:
        return add(message, field, depth);
      case 1:
        reflection.SwapElements(&message, &field, static_cast<int>(below(size)), static_cast<int>(size) - 1);
        return reflection.RemoveLast(&message, &field);
      case 2:
        return reflection.SwapElements(&message, &field, static_cast<int>(below(size)), static_cast<int>(below(size)));
      default:
        break;
    }
    const auto at = static_cast<int>(below(size));
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (depth < kDepthMax) mutate(*reflection.MutableRepeatedMessage(&message, &field, at), depth + 1);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      reflection.SetRepeatedString(&message, &field, at, text(reflection.GetRepeatedString(message, &field, at)));
    }
  }

  // A copy of an element, or a new one.
  void add(Message& message, const FieldDescriptor& field, int depth) {
    const Reflection& reflection = *message.GetReflection();
    const int size = reflection.FieldSize(message, &field);
    const int model = size == 0 || below(2) == 0 ? -1 : static_cast<int>(below(static_cast<std::size_t>(size)));
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Message* fresh = reflection.AddMessage(&message, &field);
      if (model >= 0) fresh->CopyFrom(reflection.GetRepeatedMessage(message, &field, model));
      if (depth < kDepthMax) mutate(*fresh, depth + 1);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      const std::string before = model < 0 ? std::string() : reflection.GetRepeatedString(message, &field, model);
      reflection.AddString(&message, &field, text(before));
    }
  }
};

std::size_t write(const Message& message, std::uint8_t* data, std::size_t max_size) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  if (text.size() > max_size) return 0;
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace
}  // namespace sluice::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
  using namespace sluice::fuzz;
  Mutator mutator(seed);
  const std::unique_ptr<google::protobuf::Message> message(prototype().New());
  if (mutator.below(16) == 0) return LLVMFuzzerMutate(data, size, max_size);
  if (!read_input(data, size, *message)) message->Clear();
  for (std::size_t count = 1 + mutator.below(3); count > 0; --count) mutator.mutate(*message);
  const std::size_t written = write(*message, data, max_size);
  return written != 0 ? written : LLVMFuzzerMutate(data, size, max_size);
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* one, std::size_t one_size, const std::uint8_t* other,
                                                 std::size_t other_size, std::uint8_t* out, std::size_t max_size,
                                                 unsigned /*seed*/) {
  using namespace sluice::fuzz;
  const std::unique_ptr<google::protobuf::Message> message(prototype().New());
  const std::unique_ptr<google::protobuf::Message> second(prototype().New());
  if (!read_input(one, one_size, *message) || !read_input(other, other_size, *second)) return 0;
  message->MergeFrom(*second);
  return write(*message, out, max_size);
}
