#include "labs/papers/measured_collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/parse_number.h"
#include "base/quote.h"
#include "contextile/cluster.h"
#include "report/csv_reader.h"

namespace contextile {
namespace {

constexpr std::array<std::string_view, 8> kColumns = {"source",  "split", "cluster", "op",
                                                      "devices", "nodes", "bytes",   "us"};

// The value among `values` that `text` names.
template <typename Values>
auto parse_named(std::string_view where, std::string_view text, const Values& values) {
  std::vector<std::string_view> names;
  std::ranges::transform(values, std::back_inserter(names),
                         [](const auto value) { return to_string(value); });
  const auto found = std::ranges::find(names, text);
  CONTEXTILE_CHECK(found != names.end(), "{}: expected one of {}, found {}", where,
                   fmt::join(names, ", "), quote(text));
  return std::data(values)[found - names.begin()];
}

HeldCollective held(const CsvRecord& record, std::string_view name) {
  CONTEXTILE_CHECK(record.fields.size() == kColumns.size(),
                   "{}: line {}: expected {} fields, found {}", name, record.line, kColumns.size(),
                   record.fields.size());
  const auto where = [&](std::size_t column) {
    return fmt::format("{}: line {}, {}", name, record.line, kColumns[column]);
  };
  const auto count = [&](std::size_t column) {
    return checked_cast<std::int32_t>(parse_size(where(column), record.fields[column], 1),
                                      where(column));
  };
  constexpr std::array kSplits = {RowSplit::kFitted, RowSplit::kJudged};
  const std::string& preset = record.fields[2];
  const Collective op = parse_named(where(3), record.fields[3], kCollectives);
  const std::int32_t nodes = count(5);
  const auto bytes = static_cast<double>(parse_size(where(6), record.fields[6], 1));
  const double us = parse_number(where(7), record.fields[7]);
  CONTEXTILE_CHECK(us > 0, "{}: expected a time above 0, found {}", where(7), us);
  HeldCollective result{
      .group = fmt::format("{}, {}{}", preset, to_string(op), nodes > 1 ? " between nodes" : ""),
      .split = parse_named(where(1), record.fields[1], kSplits),
      .ratio = {}};
  Cluster cluster;
  try {
    cluster.collectives = measured_collectives(preset);
  } catch (const InvalidArgument& error) {
    fail_argument("{}: {}", where(2), error.what());
  }
  if (const auto cost = cluster.collective_cost(op, count(4), nodes)) {
    result.ratio = cost->us(bytes) / us;
  }
  return result;
}

}  // namespace

std::vector<HeldCollective> held_collectives(const std::string& path) {
  const FileBytes file(path, expect_text("measured collectives as CSV"));
  CsvReader reader(file.text(), file.name());
  CsvRecord record;
  CONTEXTILE_CHECK(reader.next(record) && std::ranges::equal(record.fields, kColumns),
                   "{}: expected the columns {}, found {}", file.name(), fmt::join(kColumns, ", "),
                   fmt::join(record.fields, ", "));
  std::vector<HeldCollective> rows;
  while (reader.next(record)) rows.push_back(held(record, file.name()));
  return rows;
}

}  // namespace contextile
