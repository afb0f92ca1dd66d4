// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// YAML events to a tree of bounded size and depth, and typed access with collected problems.
#include "bundle/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <istream>
#include <streambuf>
#include <unordered_set>

namespace sluice::yaml {
namespace {

constexpr std::size_t kMaxDepth = 16;  // our deepest document needs 7
constexpr std::size_t kMaxNodes = 2'000'000;
constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxQuoted = 60;  // characters of the input repeated in a message

Mark to_mark(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

std::string place(std::string_view source, Mark mark) {
  if (mark.line <= 0) return std::string(source);
  return fmt::format("{}:{}:{}", source, mark.line, mark.column);
}

// Offset of the first byte that is not part of well-formed UTF-8 (RFC 3629), or npos.
std::size_t first_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    auto at = [&](std::size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
    unsigned lead = at(i);
    std::size_t length = lead < 0x80                   ? 1
                         : lead >= 0xc2 && lead < 0xe0 ? 2
                         : lead >= 0xe0 && lead < 0xf0 ? 3
                         : lead >= 0xf0 && lead < 0xf5 ? 4
                                                       : 0;
    if (length == 0) return i;
    for (std::size_t k = 1; k < length; ++k)
      if ((at(i + k) & 0xc0) != 0x80) return i;
    unsigned second = at(i + 1);
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
        (lead == 0xf4 && second > 0x8f))
      return i;
    i += length;
  }
  return std::string_view::npos;
}

// Fit for terminals, JSON and protobuf, whatever the input holds and wherever it was cut.
std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  for (std::size_t bad = first_invalid_utf8(out); bad != std::string::npos; bad = first_invalid_utf8(out)) out[bad] = '?';
  return out;
}

std::string excerpt(std::string_view text) {
  return printable(text.substr(0, kMaxQuoted)) + (text.size() > kMaxQuoted ? "..." : "");
}

std::string_view kind_name(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "nothing";
    case Node::Kind::kScalar:
      return "a single value";
    case Node::Kind::kList:
      return "a list";
    case Node::Kind::kMap:
      return "a map";
  }
  return "?";
}

// What we refuse although YAML allows it.
struct Refused {
  Mark mark;
  std::string what;
  std::string remedy;
};

class Builder : public YAML::EventHandler {
 public:
  Node root;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Node node;
    place_node(std::move(node), mark, anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused{to_mark(mark), "an alias (*) is not allowed here", "write the value out"};
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& value) override {
    if (value.find('\0') != std::string::npos) throw Refused{to_mark(mark), "the text holds a NUL character", "remove it"};
    Node node;
    node.quoted = tag == "!";
    bool null = !node.quoted && (value.empty() || value == "~" || value == "null");
    if (!null) {
      node.kind = Node::Kind::kScalar;
      node.text = value;
    }
    place_node(std::move(node), mark, anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(Node::Kind::kList, mark, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(Node::Kind::kMap, mark, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    Node node;
    bool have_key = false;
    std::unordered_set<std::string> keys;
  };
  std::vector<Level> stack_;
  std::size_t nodes_ = 0;

  void count(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) throw Refused{to_mark(mark), "an anchor (&) is not allowed here", "write the value out where it is used"};
    if (++nodes_ > kMaxNodes) throw Refused{to_mark(mark), "the document has too many values", "split it"};
  }
  void open(Node::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    count(mark, anchor);
    if (!stack_.empty() && stack_.back().node.kind == Node::Kind::kMap && !stack_.back().have_key)
      throw Refused{to_mark(mark), "a key must be a single word", "put quotes around it if it is meant as text"};
    if (stack_.size() >= kMaxDepth) throw Refused{to_mark(mark), "the document is nested too deeply", "check the indentation"};
    Level level;
    level.node.kind = kind;
    level.node.mark = to_mark(mark);
    stack_.push_back(std::move(level));
  }
  void close() {
    Node node = std::move(stack_.back().node);
    stack_.pop_back();
    put(std::move(node));
  }
  void place_node(Node node, const YAML::Mark& mark, YAML::anchor_t anchor) {
    count(mark, anchor);
    node.mark = to_mark(mark);
    if (!stack_.empty() && stack_.back().node.kind == Node::Kind::kMap && !stack_.back().have_key) {
      Level& level = stack_.back();
      if (node.kind != Node::Kind::kScalar) throw Refused{node.mark, "a key is missing before ':'", "name the key"};
      if (!level.keys.insert(node.text).second)
        throw Refused{node.mark, fmt::format("key '{}' is given twice", excerpt(node.text)), "keep one of them"};
      level.node.entries.push_back({std::move(node.text), node.mark, {}});
      level.have_key = true;
      return;
    }
    put(std::move(node));
  }
  void put(Node node) {
    if (stack_.empty()) {
      root = std::move(node);
      return;
    }
    Level& level = stack_.back();
    if (level.node.kind == Node::Kind::kMap) {
      level.node.entries.back().value = std::move(node);
      level.have_key = false;
    } else {
      level.node.items.push_back(std::move(node));
    }
  }
};

class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());  // streambuf's interface; nothing writes to a get area
    setg(begin, begin, begin + text.size());
  }
};

// Optimal string alignment distance: insert, delete, replace, swap neighbours.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

}  // namespace

const Node* Node::find(std::string_view key) const {
  for (const Entry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

std::string Problem::message() const {
  std::string text = where.empty() ? what : where + ": " + what;
  if (!remedy.empty()) text += "; " + remedy;
  return text;
}

void Problems::add(std::string where, std::string what, std::string remedy) {
  if (full()) {
    ++omitted_;
    return;
  }
  list_.push_back({std::move(where), printable(what), printable(remedy)});
}

Error Problems::to_error() const {
  SLUICE_ASSERT(!list_.empty());
  const auto one = [](const Problem& problem) {
    return make_error(Code::kInvalid, problem.what, problem.remedy).at(problem.where);
  };
  Error error = one(list_.front());
  for (std::size_t i = 1; i < list_.size(); ++i) error.also.push_back(one(list_[i]));
  if (omitted_ > 0)
    error.also.push_back(make_error(Code::kInvalid, fmt::format("and {} more problems", omitted_), "mend these first"));
  return error;
}

Result<Node> parse(std::string_view text, std::string_view source) {
  auto refuse = [&](Mark mark, std::string_view what, std::string_view remedy) {
    return tl::unexpected<Error>(
        std::move(fail(Code::kInvalid, "{}", what).value()).at(place(source, mark)).fix(std::string(remedy)));
  };
  if (text.size() > kMaxBytes) return refuse({}, "the document is larger than 64 MiB", "split it");
  // yaml-cpp recodes UTF-16 and stops at NUL: neither is meant in what people write for us.
  if (auto bad = std::min(text.find('\0'), first_invalid_utf8(text)); bad != std::string_view::npos) {
    auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n') + 1;
    return refuse({static_cast<int>(line), 1}, "the line holds bytes that are not UTF-8 text", "save the file as UTF-8");
  }
  ViewBuffer buffer(text);
  std::istream stream(&buffer);
  Builder builder;
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return refuse({1, 1}, "the document is empty", "write at least the required keys");
    Builder second;
    if (parser.HandleNextDocument(second))
      return refuse(second.root.mark, "a second document follows in the same file", "keep one document a file");
  } catch (const YAML::Exception& error) {
    return refuse(to_mark(error.mark), fmt::format("not valid YAML: {}", excerpt(error.msg)),
                  "check indentation, quotes and brackets there");
  } catch (const Refused& refused) {
    return refuse(refused.mark, refused.what, refused.remedy);
  }
  return std::move(builder.root);
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  if (word.size() > 64) return best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (std::string_view candidate : candidates) {
    std::size_t d = distance(word, candidate);
    if (d < best_distance && d < candidate.size()) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best = nearest(word, candidates);
  return best.empty() ? "" : fmt::format(" (did you mean '{}'?)", best);
}

std::string Reader::where(Mark mark) const { return place(source_, mark); }

void Reader::problem(Mark mark, std::string what, std::string remedy) {
  problems_.add(where(mark), std::move(what), std::move(remedy));
}

bool Reader::map(const Node& node, std::string_view what, std::span<const std::string_view> known) {
  if (node.kind != Node::Kind::kMap) {
    problem(node.mark, fmt::format("{} must be a map, not {}", what, kind_name(node)),
            fmt::format("write keys below it; known are: {}", fmt::join(known, ", ")));
    return false;
  }
  for (const Entry& entry : node.entries) {
    if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
    problem(entry.mark, fmt::format("unknown key '{}' in {}{}", excerpt(entry.key), what, did_you_mean(entry.key, known)),
            fmt::format("known keys are: {}", fmt::join(known, ", ")));
  }
  return true;
}

const Node* Reader::required(const Node& map, std::string_view key, std::string_view what) {
  const Node* node = map.find(key);
  if (node != nullptr && node->kind != Node::Kind::kNull) return node;
  problem(node != nullptr ? node->mark : map.mark, fmt::format("{} has no '{}'", what, key), fmt::format("add '{}: ...'", key));
  return nullptr;
}

std::span<const Node> Reader::list(const Node& node, std::string_view what) {
  if (node.kind == Node::Kind::kList) return node.items;
  if (node.kind != Node::Kind::kNull)
    problem(node.mark, fmt::format("{} must be a list, not {}", what, kind_name(node)),
            "start each item with '- ' or use [a, b]");
  return {};
}

std::span<const Node> Reader::one_or_more(const Node& node, std::string_view what) {
  if (node.kind == Node::Kind::kScalar) return {&node, 1};
  if (node.kind == Node::Kind::kList && !node.items.empty()) return node.items;
  problem(node.mark, fmt::format("{} must be a value or a list of values", what), "give at least one, or leave the key out");
  return {};
}

std::optional<std::string> Reader::text(const Node& node, std::string_view what) {
  if (node.kind == Node::Kind::kScalar && !node.text.empty()) return node.text;
  problem(node.mark, fmt::format("{} must be text, not {}", what, node.kind == Node::Kind::kScalar ? "empty" : kind_name(node)),
          "write one word, or quote it");
  return std::nullopt;
}

std::optional<std::uint64_t> Reader::number(const Node& node, std::string_view what, std::uint64_t min, std::uint64_t max) {
  std::string remedy = fmt::format("give a number from {} to {}", min, max);
  if (node.kind != Node::Kind::kScalar || node.quoted) {
    problem(node.mark, fmt::format("{} must be a number, not {}", what, node.quoted ? "quoted text" : kind_name(node)), remedy);
    return std::nullopt;
  }
  std::uint64_t value = 0;
  const char* begin = node.text.data();
  const char* end = begin + node.text.size();
  auto [rest, error] = std::from_chars(begin, end, value);
  if (rest != end || error == std::errc::invalid_argument) {
    problem(node.mark, fmt::format("{} must be a number, not '{}'", what, excerpt(node.text)), remedy);
    return std::nullopt;
  }
  if (error == std::errc::result_out_of_range || value < min || value > max) {
    problem(node.mark, fmt::format("{} is {}, out of the range {}..{}", what, excerpt(node.text), min, max), remedy);
    return std::nullopt;
  }
  return value;
}

std::optional<bool> Reader::boolean(const Node& node, std::string_view what) {
  if (node.kind == Node::Kind::kScalar && !node.quoted) {
    if (node.text == "true") return true;
    if (node.text == "false") return false;
  }
  problem(node.mark,
          fmt::format("{} must be true or false, not {}", what,
                      node.kind == Node::Kind::kScalar ? "'" + excerpt(node.text) + "'" : std::string(kind_name(node))),
          "write true or false");
  return std::nullopt;
}

std::optional<std::size_t> Reader::choice(const Node& node, std::string_view what, std::span<const std::string_view> values) {
  if (node.kind == Node::Kind::kScalar) {
    auto it = std::find(values.begin(), values.end(), node.text);
    if (it != values.end()) return static_cast<std::size_t>(it - values.begin());
    problem(node.mark, fmt::format("{} is '{}'{}", what, excerpt(node.text), did_you_mean(node.text, values)),
            fmt::format("it must be one of: {}", fmt::join(values, ", ")));
    return std::nullopt;
  }
  problem(node.mark, fmt::format("{} must be a word, not {}", what, kind_name(node)),
          fmt::format("it must be one of: {}", fmt::join(values, ", ")));
  return std::nullopt;
}

}  // namespace sluice::yaml
