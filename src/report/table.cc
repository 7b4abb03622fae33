#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/quote.h"
#include "report/json.h"

namespace contextile {
namespace {

constexpr std::string_view kGap = "  ";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
    if (end == std::string::npos) return lines;
    begin = end + 1;
  }
}

// Number of columns of a text: bytes that continue a character of UTF-8 take none.
std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string csv_field(const Cell& cell) {
  if (const auto* flag = std::get_if<bool>(&cell)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&cell)) return fmt::format("{}", *whole);
  if (const auto* number = std::get_if<double>(&cell)) return fmt::format("{}", *number);
  const auto* name = std::get_if<std::string>(&cell);
  if (name == nullptr) return "";
  const std::string text = without_orders(*name);
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string painted(std::string text, const Cell& cell, bool colour) {
  const auto* verdict = std::get_if<bool>(&cell);
  if (!colour || verdict == nullptr) return text;
  return fmt::format("\x1b[{}m{}\x1b[0m", *verdict ? 32 : 31, text);
}

void append_line(std::string& out, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  out += line + '\n';
}

// Empty for null, lists and objects.
Cell cell_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  return {};
}

}  // namespace

std::string format_number(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double magnitude = std::abs(value);
  if (magnitude == 0) return "0";
  if (magnitude >= 999.95) return fmt::format("{:.0f}", value);
  if (magnitude >= 99.995) return fmt::format("{:.1f}", value);
  if (magnitude >= 9.9995) return fmt::format("{:.2f}", value);
  if (magnitude >= 0.001) return fmt::format("{:.3f}", value);
  return fmt::format("{:.1e}", value);
}

double scaled(double value, Format format) {
  switch (format) {
    case Format::kMegabytes:
      return value / 1e6;
    case Format::kGigabytes:
      return value / 1e9;
    case Format::kPercent:
      return value * 100;
    case Format::kMilliseconds:
      return value * 1e3;
    case Format::kScientific:
    case Format::kPlain:
    case Format::kVerdict:
      break;
  }
  return value;
}

std::string format_cell(const Cell& cell, Format format) {
  if (std::holds_alternative<std::monostate>(cell)) return "-";
  if (const auto* text = std::get_if<std::string>(&cell)) return printable(*text);
  if (const auto* flag = std::get_if<bool>(&cell)) return *flag ? "yes" : "NO";
  const auto* whole = std::get_if<std::int64_t>(&cell);
  const double value = whole != nullptr ? static_cast<double>(*whole) : std::get<double>(cell);
  switch (format) {
    case Format::kMegabytes:
    case Format::kGigabytes:
    case Format::kMilliseconds:
      return format_number(scaled(value, format));
    case Format::kPercent:
      return fmt::format("{:.1f}%", scaled(value, format));
    case Format::kScientific:
      return fmt::format("{:.1e}", value);
    case Format::kPlain:
    case Format::kVerdict:
      break;
  }
  return whole != nullptr ? fmt::format("{}", *whole) : format_number(value);
}

std::string count(std::int64_t number, std::string_view noun) {
  const std::string_view plural = noun.ends_with("ch") ? "es" : "s";
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : plural);
}

std::string megabytes(std::int64_t bytes) {
  return format_cell(Cell{bytes}, Format::kMegabytes) + " MB";
}

std::string percent(double fraction) { return format_cell(Cell{fraction}, Format::kPercent); }

std::string milliseconds(double seconds) {
  return format_cell(Cell{seconds}, Format::kMilliseconds) + " ms";
}

std::string wrap(std::string_view text, std::size_t columns, Indent indent) {
  std::string out;
  std::size_t before = indent.first;  // columns before the current line's words
  std::size_t line = 0;               // columns of its words
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (line > 0 && before + line + 1 + columns_of(word) > columns) {
      out += '\n' + std::string(indent.others, ' ');
      before = indent.others;
      line = 0;
    } else if (line > 0) {
      out += ' ';
      ++line;
    }
    out += word;
    line += columns_of(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

Table::Table(std::vector<Column> columns, std::size_t widest_label)
    : columns_(std::move(columns)), widest_label_(widest_label) {}

void Table::add_row(std::vector<Cell> cells, std::string note) {
  cells.resize(columns_.size());
  rows_.push_back({std::move(cells), std::move(note)});
}

std::string Table::text(bool colour) const {
  const Layout layout = measure();
  std::string out;
  append_header(layout, out);
  for (const Row& row : rows_) append_row(layout, row, colour, out);
  return out;
}

Table::Layout Table::measure() const {
  Layout layout;
  layout.width.resize(columns_.size());
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].header.empty()) continue;
    layout.shown.push_back(c);
    const auto widen = [&](const std::vector<std::string>& lines) {
      for (const std::string& line : lines) {
        layout.width[c] = std::max(layout.width[c], line.size());
      }
    };
    widen(lines_of(columns_[c].header));
    const bool is_label = c == layout.shown.front();
    for (const Row& row : rows_) {
      const std::string cell = format_cell(row.cells[c], columns_[c].format);
      if (is_label) widen(label_lines(row));
      if (!is_label && row.note.empty()) widen({cell});
    }
  }
  return layout;
}

void Table::append_header(const Layout& layout, std::string& out) const {
  for (const std::size_t number : {std::size_t{0}, std::size_t{1}}) {
    std::string line;
    for (const std::size_t c : layout.shown) {
      std::vector<std::string> header = lines_of(columns_[c].header);
      if (header.size() == 1) header.insert(header.begin(), "");  // headers stand at the bottom
      line += c == layout.shown.front()
                  ? fmt::format("{:<{}}", header[number], layout.width[c])
                  : fmt::format("{}{:>{}}", kGap, header[number], layout.width[c]);
    }
    if (line.find_first_not_of(' ') != std::string::npos) append_line(out, line);
  }
}

void Table::append_row(const Layout& layout, const Row& row, bool colour, std::string& out) const {
  const std::size_t label = layout.shown.front();
  const std::size_t label_width = layout.width[label];
  std::vector<std::string> labels = label_lines(row);
  std::vector<std::string> rest;  // to the right of the label's lines
  if (!row.note.empty()) {
    rest = lines_of(wrap(row.note, kTextColumns - label_width - kGap.size()));
    for (std::string& line : rest) line.insert(0, kGap);
  } else {
    rest.emplace_back();
    for (const std::size_t c : layout.shown) {
      if (c == label) continue;
      const std::string cell = format_cell(row.cells[c], columns_[c].format);
      rest[0] += fmt::format("{}{:>{}}", kGap, "", layout.width[c] - cell.size());
      rest[0] += painted(cell, row.cells[c], colour);
    }
  }
  labels.resize(std::max(labels.size(), rest.size()));
  rest.resize(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    append_line(out, fmt::format("{:<{}}{}", labels[i], label_width, rest[i]));
  }
}

// A label that is too wide breaks after commas and colons, or else at the width itself.
std::vector<std::string> Table::label_lines(const Row& row) const {
  const auto shown =
      std::ranges::find_if(columns_, [](const Column& c) { return !c.header.empty(); });
  const auto first = static_cast<std::size_t>(shown - columns_.begin());
  const std::string text = format_cell(row.cells[first], columns_[first].format);
  std::string_view label = text;
  std::vector<std::string> lines;
  while (label.size() > widest_label_) {
    const std::size_t stop = label.substr(0, widest_label_).find_last_of(",:");
    const std::size_t size = stop == std::string_view::npos ? widest_label_ : stop + 1;
    lines.emplace_back(label.substr(0, size));
    label.remove_prefix(size);
  }
  lines.emplace_back(label);
  return lines;
}

std::string Table::csv() const {
  std::string out;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    out += fmt::format("{}{}", c == 0 ? "" : ",", csv_field(columns_[c].key));
  }
  const bool notes = std::ranges::any_of(rows_, [&](const Row& row) { return tells_note(row); });
  out += notes ? ",note\n" : "\n";
  for (const Row& row : rows_) {
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      out += fmt::format("{}{}", c == 0 ? "" : ",", csv_field(row.cells[c]));
    }
    if (notes) out += ',' + csv_field(tells_note(row) ? Cell{row.note} : Cell{});
    out += '\n';
  }
  return out;
}

bool Table::tells_note(const Row& row) const {
  if (row.note.empty()) return false;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].header.empty() && row.cells[c] != Cell{}) return false;
  }
  return true;
}

Json Table::json() const {
  Json rows = Json::array();
  for (const Row& row : rows_) {
    Json object = Json::object();
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const auto set = [&](const auto& value) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) {
          object[columns_[c].key] = value;
        }
      };
      std::visit(set, row.cells[c]);
    }
    if (tells_note(row)) object["note"] = row.note;
    rows.push_back(std::move(object));
  }
  return rows;
}

Table table_of(const Json& rows) {
  std::vector<Column> columns;
  for (const Json& row : rows) {
    for (const auto& [key, value] : row.items()) {
      if (value.is_structured() || std::ranges::find(columns, key, &Column::key) != columns.end())
        continue;
      columns.push_back({key, key});
    }
  }
  Table table(columns);
  for (const Json& row : rows) {
    std::vector<Cell> cells;
    for (const Column& column : columns) {
      const auto found = row.find(column.key);
      cells.push_back(found == row.end() ? Cell{} : cell_of(*found));
    }
    table.add_row(std::move(cells));
  }
  return table;
}

}  // namespace contextile
