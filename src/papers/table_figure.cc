#include "papers/table_figure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "base/check.h"

namespace contextile {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::size_t index_of(const Table& table, const std::string& key) {
  const auto columns = table.columns();
  const auto found = std::ranges::find(columns, key, &Column::key);
  if (found == columns.end()) fail_argument("plot: expected a column '{}', found none", key);
  return static_cast<std::size_t>(found - columns.begin());
}
std::vector<std::size_t> indices_of(const Table& table, const std::vector<std::string>& keys) {
  std::vector<std::size_t> indices;
  for (const std::string& key : keys) indices.push_back(index_of(table, key));
  return indices;
}

// As text tables scale it.
std::optional<double> number_of(const Cell& cell, Format format) {
  double value = 0;
  if (const auto* whole = std::get_if<std::int64_t>(&cell)) {
    value = static_cast<double>(*whole);
  } else if (const auto* number = std::get_if<double>(&cell)) {
    value = *number;
  } else if (const auto* text = std::get_if<std::string>(&cell)) {  // of an option, such as "0.02"
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc{} || end != text->data() + text->size()) return std::nullopt;
  } else {
    return std::nullopt;
  }
  return scaled(value, format);
}

std::string name_of(const Column& column) {
  std::string name = column.header.empty() ? column.key : column.header;
  std::ranges::replace(name, '\n', ' ');
  return name;
}
// Empty: none, or the header says it.
std::string_view unit_of(Format format) {
  switch (format) {
    case Format::kMegabytes:
      return "MB";
    case Format::kGigabytes:
      return "GB";
    case Format::kPercent:
      return "%";
    case Format::kMilliseconds:
      return "ms";
    case Format::kScientific:
    case Format::kPlain:
    case Format::kVerdict:
      return "";
  }
  return "";
}
std::string label_of(const Column& column) {
  const std::string name = name_of(column);
  const std::string_view unit = unit_of(column.format);
  return name.find(unit) == std::string::npos ? fmt::format("{}, {}", name, unit) : name;
}

// The rows of one panel as they are gathered.
struct Panel {
  std::string title;
  std::vector<std::string> names;                           // x, in order
  std::vector<std::string> keys;                            // the same at full precision
  std::vector<double> x;                                    // the same as numbers
  std::vector<std::string> series;                          // in order
  std::map<std::pair<std::string, std::string>, double> y;  // by series and key
  std::map<std::string, double> level;                      // of series without x
};

template <typename T>
void add_once(std::vector<T>& list, const T& value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

class PlotBuilder {
 public:
  PlotBuilder(const Table& table, const TablePlot& plot)
      : table_(table),
        plot_(plot),
        x_(index_of(table, plot.x)),
        y_(indices_of(table, plot.y)),
        series_(indices_of(table, plot.series)),
        panels_(indices_of(table, plot.panels)) {
    for (std::size_t row = 0; row < table.num_rows(); ++row) take(row);
  }

  void add_to(Figure& figure) const {
    for (const Panel& panel : gathered_) figure.panels.push_back(drawn(panel));
  }

 private:
  [[nodiscard]] std::string joined(std::size_t row, const std::vector<std::size_t>& columns) const {
    std::vector<std::string> parts;
    for (const std::size_t c : columns) {
      const Column& column = table_.columns()[c];
      const Cell& cell = table_.cells(row)[c];
      const std::string value = format_cell(cell, column.format);
      const bool speaks = std::holds_alternative<std::string>(cell);  // a number needs its column
      parts.push_back(speaks ? value : fmt::format("{} {}", name_of(column), value));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
  }
  // Of one of several columns y: its header, or its key where another has the same header.
  [[nodiscard]] std::string column_name(std::size_t column) const {
    const std::string header = name_of(table_.columns()[column]);
    const auto same = std::ranges::count_if(
        y_, [&](std::size_t other) { return name_of(table_.columns()[other]) == header; });
    return same > 1 ? table_.columns()[column].key : header;
  }
  [[nodiscard]] std::string series_name(std::size_t row, std::size_t column) const {
    const std::string name = joined(row, series_);
    if (y_.size() == 1 && !name.empty()) return name;
    const std::string header = column_name(column);
    return name.empty() ? header : fmt::format("{}: {}", name, header);
  }

  void take(std::size_t row) {
    const auto cells = table_.cells(row);
    for (const std::size_t column : y_) {
      const auto y = number_of(cells[column], table_.columns()[column].format);
      if (!y) continue;
      Panel& panel = panel_of(row);
      const std::string series = series_name(row, column);
      add_once(panel.series, series);
      if (std::holds_alternative<std::monostate>(cells[x_])) {
        panel.level[series] = *y;
        continue;
      }
      const std::string name = format_cell(cells[x_], table_.columns()[x_].format);
      const auto number = number_of(cells[x_], table_.columns()[x_].format);
      const std::string key = number ? fmt::format("{}", *number) : name;
      if (std::ranges::find(panel.keys, key) == panel.keys.end()) {
        panel.keys.push_back(key);
        panel.names.push_back(name);
        panel.x.push_back(number.value_or(kNone));
      }
      panel.y[{series, key}] = *y;
    }
  }
  Panel& panel_of(std::size_t row) {
    const std::string title = joined(row, panels_);
    const auto found = std::ranges::find(gathered_, title, &Panel::title);
    if (found != gathered_.end()) return *found;
    gathered_.emplace_back().title = title;
    return gathered_.back();
  }

  // The one column's, else the unit that all have.
  [[nodiscard]] std::string y_label() const {
    const Column& first = table_.columns()[y_.front()];
    if (y_.size() == 1) return label_of(first);
    const bool alike = std::ranges::all_of(
        y_, [&](std::size_t c) { return table_.columns()[c].format == first.format; });
    return alike ? std::string(unit_of(first.format)) : "";
  }

  [[nodiscard]] FigurePanel drawn(const Panel& panel) const {
    FigurePanel out;
    out.scale = plot_.scale;
    out.title = panel.title;
    out.x_label = label_of(table_.columns()[x_]);
    out.y_label = y_label();
    std::vector<std::size_t> order(panel.names.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    const bool numbers = std::ranges::none_of(panel.x, [](double x) { return std::isnan(x); });
    if (numbers) std::ranges::sort(order, {}, [&](std::size_t i) { return panel.x[i]; });
    for (const std::size_t i : order) {
      if (numbers) {
        out.x.push_back(panel.x[i]);
      } else {
        out.names.push_back(panel.names[i]);
      }
    }
    for (const std::string& name : panel.series) {
      const bool published = y_.size() > 1 && name.find("paper") != std::string::npos;
      FigureSeries series{name, {}, published ? SeriesStyle::kPublished : SeriesStyle::kOurs};
      for (const std::size_t i : order) {
        const auto found = panel.y.find({name, panel.keys[i]});
        const auto level = panel.level.find(name);
        series.y.push_back(found != panel.y.end()       ? found->second
                           : level != panel.level.end() ? level->second
                                                        : kNone);
      }
      out.series.push_back(std::move(series));
    }
    return out;
  }

  const Table& table_;
  const TablePlot& plot_;
  std::size_t x_;
  std::vector<std::size_t> y_;
  std::vector<std::size_t> series_;
  std::vector<std::size_t> panels_;
  std::vector<Panel> gathered_;
};

}  // namespace

Figure figure_of(const std::string& title, const Table& table, std::span<const TablePlot> plots) {
  Figure figure{title, {}};
  for (const TablePlot& plot : plots) PlotBuilder(table, plot).add_to(figure);
  if (figure.panels.empty()) fail_argument("plot: expected rows with numbers, found none");
  return figure;
}

}  // namespace contextile
