// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "bundle/version.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

namespace sluice::bundle {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes a decimal number without leading zeros off the front of `text`.
std::optional<std::uint32_t> take_number(std::string_view& text) {
  std::uint32_t value = 0;
  auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  auto length = static_cast<std::size_t>(rest - text.data());
  if (error != std::errc{} || length == 0 || (length > 1 && text[0] == '0')) return std::nullopt;
  text.remove_prefix(length);
  return value;
}

bool take(std::string_view& text, char c) {
  if (text.empty() || text[0] != c) return false;
  text.remove_prefix(1);
  return true;
}

bool valid_pre(std::string_view pre) {
  bool start = true;
  for (char c : pre) {
    if (c == '.') {
      if (start) return false;
      start = true;
      continue;
    }
    if (!(is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-')) return false;
    start = false;
  }
  return !start;
}

// semver 2.0.0 §11: identifier by identifier, numbers below words, a prefix below what it starts.
std::strong_ordering compare_pre(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a.empty() <=> b.empty();  // a release stands above its pre-releases
  while (!a.empty() && !b.empty()) {
    std::string_view x = a.substr(0, a.find('.'));
    std::string_view y = b.substr(0, b.find('.'));
    bool xn = std::all_of(x.begin(), x.end(), is_digit);
    bool yn = std::all_of(y.begin(), y.end(), is_digit);
    if (xn != yn) return xn ? std::strong_ordering::less : std::strong_ordering::greater;
    if (xn && x.size() != y.size()) return x.size() <=> y.size();
    if (auto order = x.compare(y) <=> 0; order != 0) return order;
    a.remove_prefix(std::min(a.size(), x.size() + 1));
    b.remove_prefix(std::min(b.size(), y.size() + 1));
  }
  return a.size() <=> b.size();
}

}  // namespace

std::string Version::text() const {
  std::string out = fmt::format("{}.{}.{}", major, minor, patch);
  return pre.empty() ? out : out + "-" + pre;
}

std::strong_ordering Version::operator<=>(const Version& other) const {
  if (auto order = major <=> other.major; order != 0) return order;
  if (auto order = minor <=> other.minor; order != 0) return order;
  if (auto order = patch <=> other.patch; order != 0) return order;
  return compare_pre(pre, other.pre);
}

Result<Version> parse_version(std::string_view text) {
  auto refuse = [&] {
    Error error = fail(Code::kInvalid, "'{}' is not a version", text.substr(0, 60)).value();
    return fail(std::move(error).fix("write MAJOR.MINOR.PATCH, such as 1.0.0 or 1.2.0-rc.1"));
  };
  std::string_view rest = text;
  Version version;
  auto major = take_number(rest);
  if (!major || !take(rest, '.')) return refuse();
  auto minor = take_number(rest);
  if (!minor || !take(rest, '.')) return refuse();
  auto patch = take_number(rest);
  if (!patch) return refuse();
  version.major = *major;
  version.minor = *minor;
  version.patch = *patch;
  if (!rest.empty()) {
    if (!take(rest, '-') || rest.size() > 32 || !valid_pre(rest)) return refuse();
    version.pre = rest;
  }
  return version;
}

bool VersionRange::contains(const Version& version) const {
  return std::all_of(all.begin(), all.end(), [&](const Comparator& c) {
    switch (c.op) {
      case Op::kEq:
        return version == c.version;
      case Op::kLt:
        return version < c.version;
      case Op::kLe:
        return version <= c.version;
      case Op::kGt:
        return version > c.version;
      case Op::kGe:
        return version >= c.version;
    }
    return false;
  });
}

bool VersionRange::satisfiable() const {
  // If any version fits, one fits that stands at or just beside a bound, or the smallest or a huge one does. Pre-releases lie
  // between patches ("1.0.1-0" is the next above "1.0.0"), hence the two successors.
  std::vector<Version> candidates{{0, 0, 0, "0"}, {std::numeric_limits<std::uint32_t>::max(), 0, 0, ""}};
  for (const Comparator& c : all) {
    candidates.push_back(c.version);
    Version next = c.version;
    if (next.pre.empty())
      ++next.patch, next.pre = "0";
    else
      next.pre += ".0";
    candidates.push_back(next);
    if (c.version.pre.empty()) candidates.push_back({c.version.major, c.version.minor, c.version.patch, "0"});
  }
  return std::any_of(candidates.begin(), candidates.end(), [&](const Version& v) { return contains(v); });
}

std::string VersionRange::text() const {
  if (all.empty()) return "*";
  static constexpr std::string_view kOps[] = {"", "<", "<=", ">", ">="};
  std::string out;
  for (const Comparator& c : all) {
    if (!out.empty()) out += ' ';
    out += kOps[static_cast<int>(c.op)];
    out += c.version.text();
  }
  return out;
}

Result<VersionRange> parse_version_range(std::string_view text) {
  VersionRange range;
  while (true) {
    while (take(text, ' ')) {
    }
    if (text.empty()) return range;
    std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(word.size());
    if (word == "*") continue;
    VersionRange::Comparator comparator;
    if (take(word, '<'))
      comparator.op = take(word, '=') ? VersionRange::Op::kLe : VersionRange::Op::kLt;
    else if (take(word, '>'))
      comparator.op = take(word, '=') ? VersionRange::Op::kGe : VersionRange::Op::kGt;
    auto version = parse_version(word);
    if (!version) return tl::unexpected(std::move(version).error().within("in a version range"));
    comparator.version = *std::move(version);
    range.all.push_back(std::move(comparator));
  }
}

}  // namespace sluice::bundle
