#include "report/validation_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "report/held_rows.h"
#include "report/json.h"

namespace contextile {
namespace {

constexpr std::size_t kWidestSetting = 52;
constexpr std::size_t kWidestSummary = 46;

std::string split_text(RowSplit split) { return std::string(to_string(split)); }

std::int64_t whole_number(std::size_t number) { return static_cast<std::int64_t>(number); }

Table empty_rows_table() {
  return Table({{"line", ""},
                {"source", ""},
                {"split", ""},
                {"method", ""},
                {"strategy", ""},
                {"cluster", ""},
                {"kernel", ""},
                {"engine", ""},
                {"lengths", ""},
                {"mask", ""},
                {"q_heads", ""},
                {"kv_heads", ""},
                {"head_dim", ""},
                {"dtype", ""},
                {"direction", ""},
                {"wire", ""},
                {"model", ""},
                {"tp", ""},
                {"cp", ""},
                {"dp", ""},
                {"pp", ""},
                {"micro_batches", ""},
                {"optimizer", ""},
                {"gradient_overlap", ""},
                {"recompute", ""},
                {"linear_mfu", ""},
                {"experiment", ""},
                {"reason", ""},
                {"setting", "method and setting"},
                {"measured_s", "measured\nms", Format::kMilliseconds},
                {"predicted_s", "predicted\nms", Format::kMilliseconds},
                {"ratio", "ratio"}},
               kWidestSetting);
}

Cell cell_of(const std::string& text) { return text.empty() ? Cell() : Cell(text); }

// The columns of a step; empty ones for other rows.
std::vector<Cell> step_cells(const MeasuredRow& row) {
  constexpr std::size_t kStepColumns = 10;
  if (!row.step) return std::vector<Cell>(kStepColumns);
  const MeasuredStep& step = *row.step;
  return {step.model_text,
          std::int64_t{step.sizes.tp},
          std::int64_t{step.sizes.cp},
          std::int64_t{step.sizes.dp},
          std::int64_t{step.sizes.pp},
          std::int64_t{step.micro_batches},
          std::string(to_string(step.options.optimizer)),
          std::string(to_string(step.options.gradient_overlap)),
          std::string(to_string(step.options.recompute)),
          step.options.linear_mfu};
}

void add_row(const HeldRow& held, Table& table) {
  const MeasuredRow& row = held.row;
  std::vector<Cell> cells = {whole_number(row.line),
                             row.source,
                             split_text(row.split),
                             row.method,
                             row.strategy_text,
                             row.cluster_text,
                             cell_of(row.kernel_text),
                             cell_of(row.engine_text),
                             row.lengths_text,
                             row.mask_text,
                             std::int64_t{row.shape.q_heads},
                             std::int64_t{row.shape.kv_heads},
                             std::int64_t{row.shape.head_dim},
                             std::string(to_string(row.shape.dtype)),
                             std::string(to_string(row.direction)),
                             row.wire ? Cell(std::string(to_string(*row.wire))) : Cell()};
  for (Cell& cell : step_cells(row)) cells.push_back(std::move(cell));
  for (Cell& cell :
       std::vector<Cell>{cell_of(row.experiment), cell_of(held.reason),
                         fmt::format("{}: {}", row.method, batch_text(row)), 1e-3 * row.ms,
                         held.predicted_ms ? Cell(1e-3 * *held.predicted_ms) : Cell(),
                         held.predicted_ms ? Cell(held.ratio()) : Cell()}) {
    cells.push_back(std::move(cell));
  }
  table.add_row(std::move(cells));
}

// "magi_dist, judged: 64/8 heads of 128, bf16".
std::string heading_of(const HeldRow& held) {
  return fmt::format("{}, {}: {}", held.row.source, to_string(held.row.split),
                     shape_text(held.row));
}

// Tables under headings, in the order in which these come.
class Sections {
 public:
  explicit Sections(Table (*empty_table)()) : empty_table_(empty_table) {}

  Table& under(const std::string& heading) {
    const auto found = std::ranges::find(sections_, heading, &std::pair<std::string, Table>::first);
    return found != sections_.end() ? found->second
                                    : sections_.emplace_back(heading, empty_table_()).second;
  }
  [[nodiscard]] std::string text(bool colour) const {
    std::string text;
    for (const auto& [heading, table] : sections_) {
      text += wrap(printable(heading), kTextColumns, {.first = 0, .others = 2}) + '\n' +
              table.text(colour) + '\n';
    }
    return text;
  }

 private:
  Table (*empty_table_)();
  std::vector<std::pair<std::string, Table>> sections_;
};

std::string rows_text(const Validation& validation, bool colour) {
  Sections sections(empty_rows_table);
  for (const HeldRow& held : validation.rows) {
    if (held.predicted_ms) add_row(held, sections.under(heading_of(held)));
  }
  return sections.text(colour);
}

Table empty_experiments_table() {
  return Table({{"source", ""},
                {"setting", ""},
                {"split", ""},
                {"label", "experiment"},
                {"methods", "methods"},
                {"pairs", "pairs"},
                {"pairs_in_order", "in\norder"},
                {"tau", "tau"}},
               kWidestSetting);
}

void add_experiment(const HeldExperiment& experiment, Table& table) {
  const std::optional<double> tau = experiment.order.tau();
  table.add_row({experiment.source, fmt::format("{}, {}", experiment.batch, experiment.shape),
                 split_text(experiment.split), experiment.batch, whole_number(experiment.methods),
                 experiment.order.pairs, experiment.order.in_order, tau ? Cell(*tau) : Cell()});
}

std::string experiments_text(const Validation& validation, bool colour) {
  Sections sections(empty_experiments_table);
  for (const HeldExperiment& experiment : validation.experiments) {
    add_experiment(experiment,
                   sections.under(fmt::format("{}, {}: {}", experiment.source,
                                              to_string(experiment.split), experiment.shape)));
  }
  return sections.text(colour);
}

std::string unpredicted_text(const Validation& validation) {
  std::string text;
  std::size_t rows = 0;
  for (const HeldRow& held : validation.rows) {
    if (held.predicted_ms) continue;
    ++rows;
    text += wrap(fmt::format("line {}: {}, {}: {}: {}", held.row.line,
                             without_orders(held.row.source), without_orders(held.row.method),
                             without_orders(setting_text(held.row)), without_orders(held.reason)),
                 kTextColumns, {.first = 0, .others = 2}) +
            '\n';
  }
  if (rows == 0) return "";
  return fmt::format("{}{} not predicted\n", validation.experiments.empty() ? "\n" : "",
                     count(whole_number(rows), "row")) +
         text;
}

}  // namespace

Table held_rows_table(const Validation& validation) {
  Table table = empty_rows_table();
  for (const HeldRow& held : validation.rows) add_row(held, table);
  return table;
}

Table held_methods_table(const Validation& validation) {
  Table table({{"label", "source, method"},
               {"source", ""},
               {"method", ""},
               {"kind", ""},
               {"split", "split"},
               {"rows", "rows"},
               {"unpredicted", "not\npredicted"},
               {"median_ratio", "median\nratio"},
               {"furthest_ratio", "furthest\nratio"}},
              kWidestSummary);
  for (const HeldMethod& method : validation.methods) {
    const bool any = method.ratios.rows > 0;
    table.add_row({fmt::format("{}, {}{}", method.source, method.method,
                               method.kind == RowKind::kStep ? ", steps" : ""),
                   method.source, method.method, std::string(to_string(method.kind)),
                   split_text(method.split), whole_number(method.ratios.rows),
                   whole_number(method.unpredicted), any ? Cell(method.ratios.median) : Cell(),
                   any ? Cell(method.ratios.furthest) : Cell()});
  }
  return table;
}

Table held_experiments_table(const Validation& validation) {
  Table table = empty_experiments_table();
  for (const HeldExperiment& experiment : validation.experiments) add_experiment(experiment, table);
  return table;
}

std::string validation_text(const Validation& validation, bool colour) {
  std::string text = rows_text(validation, colour);
  text += "ratios of predicted over measured time\n" + held_methods_table(validation).text(colour);
  if (!validation.experiments.empty()) {
    text += fmt::format(
        "\norder of the methods (Kendall's tau; measured times within {} are tied)\n\n{}",
        percent(kMeasuredTie), experiments_text(validation, colour));
  }
  return text + unpredicted_text(validation);
}

std::string validation_text(const Validation& validation) {
  return validation_text(validation, false);
}

Json validation_json(const Validation& validation) {
  Json unpredicted = Json::array();
  for (const HeldRow& held : validation.rows) {
    if (held.predicted_ms) continue;
    unpredicted.push_back({{"line", held.row.line},
                           {"source", held.row.source},
                           {"method", held.row.method},
                           {"reason", held.reason}});
  }
  return {{"rows", held_rows_table(validation).json()},
          {"methods", held_methods_table(validation).json()},
          {"experiments", held_experiments_table(validation).json()},
          {"unpredicted", unpredicted}};
}

}  // namespace contextile
