// Pictures of tables.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "report/table.h"
#include "papers/figure.h"

namespace contextile {

// Which columns of a table a picture shows. One panel for each combination of the values of
// `panels`, in the order of rows; in it a series for each combination of the values of `series`.
// With several columns `y`, each is a series by itself, named by its header; one whose key holds
// "paper" is drawn as published.
struct TablePlot {
  std::string x;
  std::vector<std::string> y;
  std::vector<std::string> series = {};
  std::vector<std::string> panels = {};
  FigureScale scale = FigureScale::kBySpan;
};

// Rows without a number in y are left out; those without x are level lines over all x of numbers.
// Throws InvalidArgument on a column that the table lacks, or when nothing is left.
[[nodiscard]] Figure figure_of(const std::string& title, const Table& table,
                               std::span<const TablePlot> plots);

}  // namespace contextile
