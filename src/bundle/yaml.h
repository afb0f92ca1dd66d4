// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Reading YAML that people write: a small tree whose nodes know their line and column, and a reader that collects every
// problem with place and remedy instead of stopping at the first.
//
// Stricter than YAML: anchors and aliases, duplicate keys, second documents and deep nesting are refused, so that what is read
// is bounded by what was written. yaml-cpp and its exceptions end in yaml.cpp.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::yaml {

struct Mark {
  int line = 0;  // 1-based; 0 = no place
  int column = 0;
  bool operator==(const Mark&) const = default;
};

struct Entry;
struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  Mark mark;
  std::string text;  // kScalar
  bool quoted = false;
  std::vector<Node> items;     // kList
  std::vector<Entry> entries;  // kMap, in document order, keys unique

  const Node* find(std::string_view key) const;  // nullptr when absent or not a map
};
struct Entry {
  std::string key;
  Mark mark;
  Node value;
};

struct Problem {
  std::string where;   // source:line:column
  std::string what;    // one sentence, no final stop
  std::string remedy;  // what to do
  std::string message() const;
};

// A list of problems, cut at kMax: after that many a reader mends what he has first.
class Problems {
 public:
  static constexpr std::size_t kMax = 20;
  void add(std::string where, std::string what, std::string remedy);
  bool empty() const { return list_.empty(); }
  bool full() const { return list_.size() >= kMax; }
  const std::vector<Problem>& list() const { return list_; }
  std::size_t omitted() const { return omitted_; }
  // The first problem as an Error (Code::kInvalid); the others are in `also`.
  Error to_error() const;

 private:
  std::vector<Problem> list_;
  std::size_t omitted_ = 0;
};

// The one document in `text`. `source` names it in errors.
Result<Node> parse(std::string_view text, std::string_view source);

// The candidate nearest to `word`, when near enough to be a slip of the pen; else empty.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);
// " (did you mean X?)" or "".
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates);

// Typed access. Every refusal is a problem at the node's place; `what` names the field in the message.
class Reader {
 public:
  Reader(std::string source, Problems& problems) : source_(std::move(source)), problems_(problems) {}

  std::string where(Mark mark) const;
  void problem(Mark mark, std::string what, std::string remedy);

  // True when node is a map; unknown keys are problems of their own.
  bool map(const Node& node, std::string_view what, std::span<const std::string_view> known);
  // As Node::find, but absence is a problem.
  const Node* required(const Node& map, std::string_view key, std::string_view what);
  // The items of a list; an empty span when it is not one.
  std::span<const Node> list(const Node& node, std::string_view what);
  // A list of scalars, or a single scalar.
  std::span<const Node> one_or_more(const Node& node, std::string_view what);

  std::optional<std::string> text(const Node& node, std::string_view what);
  std::optional<std::uint64_t> number(const Node& node, std::string_view what, std::uint64_t min, std::uint64_t max);
  std::optional<bool> boolean(const Node& node, std::string_view what);
  // Index into `values`.
  std::optional<std::size_t> choice(const Node& node, std::string_view what, std::span<const std::string_view> values);

 private:
  std::string source_;
  Problems& problems_;
};

}  // namespace sluice::yaml
