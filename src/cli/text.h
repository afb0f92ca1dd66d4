// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Text for people: colours, numbers, columns that line up whatever the script, and nothing that could drive the terminal.
// Pure: every function returns what to print.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

enum class Colour { kNone, kBold, kDim, kRed, kGreen, kYellow, kCyan };

struct Style {
  bool colour = false;
  unsigned columns = 0;  // width to fit into; 0 = unbounded (not a terminal)

  std::string paint(Colour colour, std::string_view text) const;
};

// What came from the kernel, a peer or a document can hold anything: control characters become '?', bytes that are not UTF-8
// become U+FFFD.
std::string printable(std::string_view text);

// Columns of a terminal that `text` takes: combining marks none, East Asian wide characters two.
unsigned display_width(std::string_view text);
// At most `columns` wide, the last one an ellipsis when something was cut.
std::string truncate(std::string_view text, unsigned columns);
// Lines of at most `columns`, broken at blanks; `indent` blanks before each.
std::string wrap(std::string_view text, unsigned columns, unsigned indent = 0);

std::string human_count(std::uint64_t value);  // 1,234,567
std::string human_bytes(std::uint64_t bytes);  // 1.5 MiB
std::string human_us(double microseconds);     // 340 us, 1.2 ms, 3.4 s, 2 min 5 s, 3 h 7 min, 4 d 2 h; ? of nonsense
std::string human_ms(double milliseconds);
std::string human_share(double part, double whole);                  // 12.5%, "-" of nothing
std::string utc_time(std::int64_t time_ns);                          // 2026-11-30 13:32:23Z
std::string plural(std::uint64_t count, std::string_view singular);  // "1 socket", "2 sockets"

// The candidate nearest to `word` by edits (a swap of neighbours counts one), if near enough to be a typing error.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

struct Column {
  std::string_view title;
  bool right = false;   // numbers
  bool shrink = false;  // may be cut on a narrow terminal
};

struct Cell {
  std::string text;
  Colour colour = Colour::kNone;
  Cell(std::string value = {}, Colour shade = Colour::kNone) : text(std::move(value)), colour(shade) {}
  Cell(const char* value) : text(value) {}
};

// Rows may come in batches: the header stands over the first, and columns only grow, so a stream needs no memory.
class Table {
 public:
  Table(Style style, std::vector<Column> columns) : style_(style), columns_(std::move(columns)) {}

  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  std::string flush();  // the rows added since the last call, and the header before the first

 private:
  std::vector<unsigned> fit() const;
  std::string line(const std::vector<Cell>& row, const std::vector<unsigned>& widths, bool header) const;

  Style style_;
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
  std::vector<unsigned> widths_;
  bool header_done_ = false;
};

}  // namespace sluice::cli
