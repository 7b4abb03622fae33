// The tables and figures of papers that `contextile-labs table` prints again: the type of one, and
// the list of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/base.h"
#include "contextile/workload.h"
#include "report/table.h"

namespace contextile {

// The command line's changes of a paper's experiment. Unset values stay as the paper has them.
struct TableOverrides {
  std::string dataset;
  std::string cluster;
  std::optional<std::int64_t> tokens;
  std::optional<std::int64_t> block_size;
  std::optional<std::int32_t> q_heads;
  std::optional<std::int32_t> kv_heads;
  std::optional<std::int32_t> head_dim;
  std::optional<Dtype> wire;
  std::optional<std::int64_t> batches;
  std::optional<std::uint64_t> seed;
  std::string rows;  // folder of the measured rows, for the table that reads them
  // This one changes nothing: it receives the progress of a table.
  ProgressHook progress;
};

// A statement of a paper, the finding here, and whether the two agree.
struct Finding {
  std::string claim;
  std::string ours;
  bool agrees = false;
  std::string criterion = {};  // what decides `agrees`, if the claim does not say it
};

// The way in which a table is drawn (labs/plot-table): columns by key. There is a panel for each
// combination of the values of `panels`, in the order of rows, and in it a series for each
// combination of those of `series`. If there are several columns `y`, each is a series by itself;
// one whose key holds "paper" is drawn as published. Rows without a number in `y` are left out;
// those without `x` are level lines.
struct TablePlot {
  std::string x;
  std::vector<std::string> y;
  std::vector<std::string> series = {};
  std::vector<std::string> panels = {};
};

// The other side of findings: the claims of a paper, or aims that this project set itself.
enum class Against : std::uint8_t { kPaper, kAims };

struct PaperResult {
  std::vector<std::pair<std::string, std::string>> setting;  // what, value
  Table table;
  std::vector<Finding> findings = {};
  std::vector<std::string> differences = {};  // between the paper's experiment and this one
  std::vector<TablePlot> plots = {};
  Against against = Against::kPaper;
};

struct PaperTable {
  std::string_view name;
  std::string_view source;  // paper and figure
  std::string_view shows;   // one line
  // Throws InvalidArgument on overrides that the table cannot follow, and CheckFailed if a plan
  // does not verify.
  PaperResult (*make)(const TableOverrides& overrides);
  bool reads_rows = false;  // follows TableOverrides::rows
};

// All tables, in the order in which lists show them.
[[nodiscard]] std::span<const PaperTable> paper_tables();
// Throws InvalidArgument with the names and a "did you mean" if there is no such table.
[[nodiscard]] const PaperTable& find_paper_table(std::string_view name);

}  // namespace contextile
