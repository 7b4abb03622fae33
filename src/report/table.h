// Tables and numbers: a Table is filled once with plain values and rendered as text, CSV or JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace contextile {

using Json = nlohmann::ordered_json;

inline constexpr std::size_t kTextColumns = 80;

// The form of a number in a text table. CSV and JSON always carry it as it is.
enum class Format : std::uint8_t {
  kPlain,         // text, whole numbers, four significant digits of others
  kMegabytes,     // bytes, printed in 1e6 bytes
  kGigabytes,     // bytes, printed in 1e9 bytes
  kPercent,       // a fraction
  kMilliseconds,  // seconds
  kScientific,    // 1.2e-03
  kVerdict,       // yes or NO
};

struct Column {
  std::string key;  // in CSV and JSON; ends in its unit
  std::string
      header;  // in text, '\n' starts its second line; empty: text tables leave the column out
  Format format = Format::kPlain;
};

using Cell = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

class Table {
 public:
  // Labels, the cells of the first column, wrap beyond `widest_label` characters.
  explicit Table(std::vector<Column> columns, std::size_t widest_label = 18);

  // One cell for each column. With a note, text shows the first cell and the note in place of the
  // others. CSV and JSON show the cells, and the note under "note" unless a column that text leaves
  // out says it.
  void add_row(std::vector<Cell> cells, std::string note = "");

  // Notes wrap at 80 columns. Colours mark verdicts.
  [[nodiscard]] std::string text(bool colour = false) const;
  [[nodiscard]] std::string csv() const;
  // An array of one object per row; empty cells are left out.
  [[nodiscard]] Json json() const;

  [[nodiscard]] std::span<const Column> columns() const { return columns_; }
  [[nodiscard]] std::size_t num_rows() const { return rows_.size(); }
  [[nodiscard]] std::span<const Cell> cells(std::size_t row) const { return rows_[row].cells; }

 private:
  struct Row {
    std::vector<Cell> cells;
    std::string note;
  };
  [[nodiscard]] bool tells_note(const Row& row) const;
  struct Layout {
    std::vector<std::size_t> shown;  // columns of a text table; the first holds the labels
    std::vector<std::size_t> width;  // of every column
  };
  [[nodiscard]] Layout measure() const;
  void append_header(const Layout& layout, std::string& out) const;
  void append_row(const Layout& layout, const Row& row, bool colour, std::string& out) const;

  [[nodiscard]] std::vector<std::string> label_lines(const Row& row) const;

  std::vector<Column> columns_;
  std::size_t widest_label_;
  std::vector<Row> rows_;
};

// Whole numbers from 1000 on, four significant digits below.
[[nodiscard]] std::string format_number(double value);
// The value in the unit that text shows.
[[nodiscard]] double scaled(double value, Format format);
[[nodiscard]] std::string format_cell(const Cell& cell, Format format);
// "12.3 MB", "4.5%", "0.123 ms".
[[nodiscard]] std::string megabytes(std::int64_t bytes);
[[nodiscard]] std::string percent(double fraction);
[[nodiscard]] std::string milliseconds(double seconds);
// Text broken at spaces into lines of at most `columns`. The first line goes on behind `first`
// columns that exist already; the others begin with `others` spaces.
struct Indent {
  std::size_t first = 0;
  std::size_t others = 0;
};
[[nodiscard]] std::string wrap(std::string_view text, std::size_t columns, Indent indent = {});
// "1 mask", "2 masks", "2 batches".
[[nodiscard]] std::string count(std::int64_t number, std::string_view noun);

// Objects of JSON as the rows of a table: their keys that hold a string, number or bool, in the
// order of first occurrence; lists and objects in them are left out.
[[nodiscard]] Table table_of(const Json& rows);

}  // namespace contextile
