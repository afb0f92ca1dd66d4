// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cli/text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "base/strings.h"

namespace sluice::cli {
namespace {

constexpr char32_t kReplacement = 0xfffd;
constexpr std::string_view kEllipsis = "\u2026";

// Decodes the character at `at` and moves behind it; malformed bytes, one at a time, are U+FFFD.
char32_t next_character(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at++);
  if (first < 0x80) return first;
  const unsigned more = first >= 0xf0 && first < 0xf5   ? 3
                        : first >= 0xe0 && first < 0xf0 ? 2
                        : first >= 0xc2 && first < 0xe0 ? 1
                                                        : 0;
  if (more == 0 || at + more > text.size()) return kReplacement;
  char32_t value = first & (0x3f >> more);
  for (unsigned i = 0; i < more; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return kReplacement;
    value = value << 6 | (byte(at + i) & 0x3f);
  }
  const char32_t least = more == 1 ? 0x80 : more == 2 ? 0x800 : 0x10000;
  if (value < least || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return kReplacement;
  at += more;
  return value;
}

struct Range {
  char32_t first, last;
};

// Zero-width: combining marks, joiners, variation selectors. Wide: Unicode's East Asian Width W and F, and emoji, by block.
constexpr std::array<Range, 12> kZeroWidth = {{{0x300, 0x36f},
                                               {0x483, 0x489},
                                               {0x591, 0x5bd},
                                               {0x610, 0x61a},
                                               {0x64b, 0x65f},
                                               {0x1ab0, 0x1aff},
                                               {0x1dc0, 0x1dff},
                                               {0x200b, 0x200f},
                                               {0x2060, 0x2064},
                                               {0x20d0, 0x20ff},
                                               {0xfe00, 0xfe0f},
                                               {0xfe20, 0xfe2f}}};
constexpr std::array<Range, 10> kWide = {{{0x1100, 0x115f},
                                          {0x2e80, 0x303e},
                                          {0x3041, 0xa4cf},
                                          {0xac00, 0xd7a3},
                                          {0xf900, 0xfaff},
                                          {0xfe30, 0xfe6f},
                                          {0xff00, 0xff60},
                                          {0xffe0, 0xffe6},
                                          {0x1f300, 0x1f64f},
                                          {0x20000, 0x3fffd}}};

template <std::size_t N>
bool within(const std::array<Range, N>& ranges, char32_t value) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& r) { return value >= r.first && value <= r.last; });
}

unsigned character_width(char32_t value) { return within(kZeroWidth, value) ? 0 : within(kWide, value) ? 2 : 1; }

// C0, DEL, C1, and the marks that turn the direction of text around.
bool is_control(char32_t value) {
  return value < 0x20 || (value >= 0x7f && value < 0xa0) || (value >= 0x202a && value <= 0x202e) ||
         (value >= 0x2066 && value <= 0x2069);
}

// Distance of Damerau and Levenshtein (optimal string alignment).
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

}  // namespace

std::string Style::paint(Colour shade, std::string_view text) const {
  if (!colour || text.empty()) return std::string(text);
  const char* code = "";
  switch (shade) {
    case Colour::kNone:
      return std::string(text);
    case Colour::kBold:
      code = "1";
      break;
    case Colour::kDim:
      code = "2";
      break;
    case Colour::kRed:
      code = "31";
      break;
    case Colour::kGreen:
      code = "32";
      break;
    case Colour::kYellow:
      code = "33";
      break;
    case Colour::kCyan:
      code = "36";
      break;
  }
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string printable(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t from = at;
    const char32_t value = next_character(text, at);
    if (value == kReplacement)
      clean += "\ufffd";
    else if (is_control(value))
      clean += '?';
    else
      clean += text.substr(from, at - from);
  }
  return clean;
}

unsigned display_width(std::string_view text) {
  unsigned width = 0;
  for (std::size_t at = 0; at < text.size();) width += character_width(next_character(text, at));
  return width;
}

std::string truncate(std::string_view text, unsigned columns) {
  if (display_width(text) <= columns) return std::string(text);
  if (columns == 0) return {};
  unsigned width = 0;
  std::size_t at = 0;
  while (true) {
    std::size_t next = at;
    width += character_width(next_character(text, next));
    if (width > columns - 1) break;  // one column is the ellipsis'
    at = next;
  }
  return std::string(text.substr(0, at)) + std::string(kEllipsis);
}

std::string wrap(std::string_view text, unsigned columns, unsigned indent) {
  std::string out;
  std::string row;
  const auto emit = [&] {
    if (!row.empty()) out += std::string(indent, ' ') + row + "\n";
    row.clear();
  };
  for (std::string_view word : words(text)) {
    if (!row.empty() && columns != 0 && indent + display_width(row) + 1 + display_width(word) > columns) emit();
    if (!row.empty()) row += ' ';
    row += word;
  }
  emit();
  return out;
}

std::string human_count(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  constexpr std::array<std::string_view, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (value /= 1024; value >= 1023.95 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string human_us(double us) {
  constexpr double kMost_us = 1e6 * 86'400 * 366 * 10'000;  // no duration of ours; beyond it the number of seconds has no type
  if (std::isnan(us) || us > kMost_us) return "?";
  if (us < 999.5) return fmt::format("{:.0f} us", us);
  if (us < 999'500) return fmt::format("{:.{}f} ms", us / 1e3, us < 99'950 ? 1 : 0);
  if (us < 59.95e6) return fmt::format("{:.1f} s", us / 1e6);
  const auto seconds = static_cast<std::uint64_t>(us / 1e6 + 0.5);
  const std::uint64_t minutes = seconds / 60, hours = minutes / 60, days = hours / 24;
  const auto two = [](std::uint64_t big, const char* big_unit, std::uint64_t small, const char* small_unit) {
    return small == 0 ? fmt::format("{} {}", big, big_unit) : fmt::format("{} {} {} {}", big, big_unit, small, small_unit);
  };
  if (hours == 0) return two(minutes, "min", seconds % 60, "s");
  if (days == 0) return two(hours, "h", minutes % 60, "min");
  return two(days, "d", hours % 24, "h");
}

std::string human_ms(double ms) { return human_us(ms * 1e3); }

std::string human_share(double part, double whole) {
  if (whole <= 0) return "-";
  const double percent = 100 * part / whole;
  const bool near_an_end = percent != 0 && percent != 100 && (percent < 10 || percent > 99);
  return fmt::format("{:.{}f}%", percent, near_an_end ? 1 : 0);
}

std::string utc_time(std::int64_t time_ns) {
  const std::time_t seconds = time_ns / 1'000'000'000;
  return fmt::format("{:%Y-%m-%d %H:%M:%S}Z", fmt::gmtime(seconds));
}

std::string plural(std::uint64_t count, std::string_view singular) {
  return fmt::format("{} {}{}", human_count(count), singular, count == 1 ? "" : "s");
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;  // the first that is too far
  for (std::string_view candidate : candidates) {
    const std::size_t distance = edits(word, candidate);
    if (distance < best_distance && distance < candidate.size()) best = candidate, best_distance = distance;
  }
  return best;
}

std::vector<unsigned> Table::fit() const {
  std::vector<unsigned> widths = widths_;
  if (style_.columns == 0) return widths;
  constexpr unsigned kGap = 2, kLeast = 6;
  unsigned total = kGap * static_cast<unsigned>(widths.size() - 1);
  for (unsigned width : widths) total += width;
  while (total > style_.columns) {  // one column off the widest that may shrink
    unsigned* widest = nullptr;
    for (std::size_t i = 0; i < widths.size(); ++i)
      if (columns_[i].shrink && widths[i] > kLeast && (widest == nullptr || widths[i] > *widest)) widest = &widths[i];
    if (widest == nullptr) break;
    --*widest, --total;
  }
  return widths;
}

std::string Table::line(const std::vector<Cell>& row, const std::vector<unsigned>& widths, bool header) const {
  std::string out;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const std::string text = style_.columns == 0 ? row[i].text : truncate(row[i].text, widths[i]);
    const unsigned width = display_width(text);
    const std::string pad(widths[i] > width ? widths[i] - width : 0, ' ');
    const std::string shown = style_.paint(header ? Colour::kBold : row[i].colour, text);
    if (i != 0) out += "  ";
    out += columns_[i].right ? pad + shown : shown + (i + 1 == columns_.size() ? "" : pad);
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out + "\n";
}

std::string Table::flush() {
  if (rows_.empty()) return {};
  widths_.resize(columns_.size());
  for (auto& row : rows_)
    for (Cell& cell : row) cell.text = printable(cell.text);
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    widths_[i] = std::max(widths_[i], display_width(columns_[i].title));
    for (const auto& row : rows_) widths_[i] = std::max(widths_[i], display_width(row[i].text));
  }
  const std::vector<unsigned> widths = fit();
  std::string out;
  if (!header_done_) {
    std::vector<Cell> titles;
    for (const Column& column : columns_) titles.emplace_back(std::string(column.title));
    out += line(titles, widths, true);
    header_done_ = true;
  }
  for (const auto& row : rows_) out += line(row, widths, false);
  rows_.clear();
  return out;
}

}  // namespace sluice::cli
