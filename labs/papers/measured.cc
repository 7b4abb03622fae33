// Published measurements that can be predicted, next to their predictions: the scoreboard of the
// cost model, of the clusters' constants and of predicted training steps.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/advanced/validation.h"
#include "labs/papers/findings.h"
#include "labs/papers/measured_collectives.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"
#include "report/held_rows.h"
#include "report/table.h"

namespace contextile {
namespace {

// The aims, on judged rows: factors by which predicted times may be off, and Kendall's tau.
constexpr double kMedianAim = 1.15;
constexpr double kFurthestAim = 1.4;
constexpr double kTauAim = 0.85;
constexpr double kKernelAim = 1.1;
constexpr double kStepAim = 1.1;

constexpr std::size_t kWidestName = 34;

// Rows are grouped by their longest document, because short ones leave a kernel idle.
std::string length_class(const MeasuredRow& row) {
  std::int64_t longest = 0;
  for (const DocumentBatch& batch : row.batches) {
    for (const DocumentRun& run : batch) longest = std::max(longest, run.tokens);
  }
  return longest < 1024 ? "below 1K" : longest <= 4096 ? "1K to 4K" : "above 4K";
}

// Ratios of rows with one name and split.
struct RatioGroup {
  std::string name;
  RowSplit split = RowSplit::kJudged;
  std::vector<double> ratios;
};

// Groups in the order in which they were first met, fitted ones before judged ones.
class RatioGroups {
 public:
  void add(const std::string& name, RowSplit split, double ratio) {
    const auto [place, is_new] = index_.try_emplace({name, split}, groups_.size());
    if (is_new) groups_.push_back({.name = name, .split = split, .ratios = {}});
    groups_[place->second].ratios.push_back(ratio);
  }
  [[nodiscard]] std::vector<RatioGroup> all() const {
    std::vector<RatioGroup> groups = groups_;
    std::stable_partition(groups.begin(), groups.end(),
                          [](const RatioGroup& group) { return group.split == RowSplit::kFitted; });
    return groups;
  }

 private:
  std::vector<RatioGroup> groups_;
  std::map<std::tuple<std::string, RowSplit>, std::size_t> index_;
};

// Kernels of one machine, name, direction and class of lengths.
RatioGroups kernel_groups(const Validation& kernels) {
  RatioGroups groups;
  for (const HeldRow& held : kernels.rows) {
    if (!held.predicted_ms) continue;
    const MeasuredRow& row = held.row;
    groups.add(fmt::format("{}, {}, {}, {}", row.cluster->name, row.method,
                           to_string(row.direction), length_class(row)),
               row.split, held.ratio());
  }
  return groups;
}

// Training steps of one method under one mask.
RatioGroups step_groups(const Validation& steps) {
  RatioGroups groups;
  for (const HeldRow& held : steps.rows) {
    if (!held.predicted_ms) continue;
    const MeasuredRow& row = held.row;
    groups.add(fmt::format("{}, {}, {}", row.source, row.method, row.mask_text), row.split,
               held.ratio());
  }
  return groups;
}

Table empty_table() {
  return Table({{"part", ""},
                {"name", "plans, orders, kernels,\ncollectives, steps"},
                {"split", "split"},
                {"rows", "rows"},
                {"median_ratio", "median\nratio"},
                {"furthest_ratio", "furthest\nratio"},
                {"tau", "tau"},
                {"met", "met", Format::kVerdict}},
               kWidestName);
}

// Counts judged groups that meet an aim, and remembers the one that is furthest from it.
class AimCount {
 public:
  // `distance` grows the further the group is off; `text` describes it.
  void add(bool is_met, double distance, const std::string& text) {
    ++all_;
    met_ += is_met ? 1 : 0;
    if (all_ > 1 && distance <= furthest_) return;
    furthest_ = distance;
    text_ = text;
  }
  [[nodiscard]] Finding finding(std::string claim, std::string_view of) const {
    return {.claim = std::move(claim),
            .ours = all_ == 0 ? fmt::format("no {} to judge by", of)
                              : fmt::format("{} of {} {}; furthest: {}", met_, all_, of, text_),
            .agrees = met_ == all_};
  }

 private:
  std::int64_t met_ = 0;
  std::int64_t all_ = 0;
  double furthest_ = 0;
  std::string text_;
};

void add_plans(const Validation& plans, Table& table, std::vector<Finding>& findings) {
  AimCount medians;
  for (const HeldMethod& method : plans.methods) {
    const RatioSummary& ratios = method.ratios;
    if (ratios.rows == 0) continue;
    const bool is_met =
        factor_of(ratios.median) <= kMedianAim && factor_of(ratios.furthest) <= kFurthestAim;
    const std::string name = fmt::format("{}, {}", method.source, method.method);
    const bool is_judged = method.split == RowSplit::kJudged;
    table.add_row({"plans", name, std::string(to_string(method.split)),
                   static_cast<std::int64_t>(ratios.rows), ratios.median, ratios.furthest, Cell(),
                   is_judged ? Cell(is_met) : Cell()});
    if (!is_judged) continue;
    medians.add(factor_of(ratios.median) <= kMedianAim, factor_of(ratios.median),
                fmt::format("{}, {:.2f}", name, ratios.median));
  }
  AimCount rows;
  for (const HeldRow& held : plans.rows) {
    if (!held.predicted_ms || held.row.split != RowSplit::kJudged) continue;
    const double factor = factor_of(held.ratio());
    rows.add(factor <= kFurthestAim, factor,
             fmt::format("{}, {}: {:.2f}", held.row.method, batch_text(held.row), held.ratio()));
  }
  findings.push_back(medians.finding(
      fmt::format("plans: median ratio of each method within a factor of {}", kMedianAim),
      "methods"));
  findings.push_back(
      rows.finding(fmt::format("plans: every ratio within a factor of {}", kFurthestAim), "rows"));
}

void add_orders(const Validation& plans, Table& table, std::vector<Finding>& findings) {
  AimCount orders;
  for (const HeldExperiment& experiment : plans.experiments) {
    const std::optional<double> tau = experiment.order.tau();
    if (!tau) continue;
    const bool is_judged = experiment.split == RowSplit::kJudged;
    table.add_row({"order", experiment.batch, std::string(to_string(experiment.split)),
                   static_cast<std::int64_t>(experiment.methods), Cell(), Cell(), *tau,
                   is_judged ? Cell(*tau >= kTauAim) : Cell()});
    if (!is_judged) continue;
    orders.add(*tau >= kTauAim, 1 - *tau, fmt::format("{}: {:.2f}", experiment.batch, *tau));
  }
  findings.push_back(orders.finding(
      fmt::format("order: tau of the methods at least {} in each experiment", kTauAim),
      "experiments"));
}

// `part` is what the groups are of, and `aim` the factor for their medians.
void add_groups(std::string_view part, const RatioGroups& groups, double aim, Table& table,
                std::vector<Finding>& findings) {
  AimCount medians;
  for (const RatioGroup& group : groups.all()) {
    const RatioSummary ratios = summary_of(group.ratios);
    const double factor = factor_of(ratios.median);
    const bool is_judged = group.split == RowSplit::kJudged;
    table.add_row({std::string(part), group.name, std::string(to_string(group.split)),
                   static_cast<std::int64_t>(ratios.rows), ratios.median, ratios.furthest, Cell(),
                   is_judged ? Cell(factor <= aim) : Cell()});
    if (!is_judged) continue;
    medians.add(factor <= aim, factor, fmt::format("{}, {:.2f}", group.name, ratios.median));
  }
  findings.push_back(medians.finding(
      fmt::format("{}: median ratio of each group within a factor of {}", part, aim), "groups"));
}

void add_collectives(const std::vector<HeldCollective>& rows, PaperResult& result,
                     std::vector<std::string>& remarks) {
  RatioGroups groups;
  std::int64_t unpredicted = 0;
  for (const HeldCollective& row : rows) {
    if (row.ratio) {
      groups.add(row.group, row.split, *row.ratio);
    } else {
      ++unpredicted;
    }
  }
  add_groups("collectives", groups, kMedianAim, result.table, result.findings);
  if (unpredicted > 0) {
    remarks.push_back(
        fmt::format("{} of collectives not predicted: the preset has no cost of such a group",
                    count(unpredicted, "row")));
  }
}

// One remark for each reason, with the number of its rows.
void remark_unpredicted(const Validation& validation, std::vector<std::string>& remarks) {
  std::vector<std::pair<std::string, std::int64_t>> reasons;
  for (const HeldRow& held : validation.rows) {
    if (held.predicted_ms) continue;
    const std::string reason =
        fmt::format("{}, {}: {}", held.row.source, held.row.method, held.reason);
    const auto found =
        std::ranges::find(reasons, reason, &std::pair<std::string, std::int64_t>::first);
    if (found == reasons.end()) {
      reasons.emplace_back(reason, 1);
    } else {
      ++found->second;
    }
  }
  for (const auto& [reason, rows] : reasons) {
    remarks.push_back(fmt::format("{} not predicted: {}", count(rows, "row"), reason));
  }
}

// One remark for each method with judged rows outside the aim.
void remark_far_rows(const Validation& plans, std::vector<std::string>& remarks) {
  std::map<std::string, std::vector<double>> far;
  for (const HeldRow& held : plans.rows) {
    if (!held.predicted_ms || held.row.split != RowSplit::kJudged) continue;
    if (factor_of(held.ratio()) <= kFurthestAim) continue;
    far[fmt::format("{}, {}", held.row.source, held.row.method)].push_back(held.ratio());
  }
  for (const auto& [method, ratios] : far) {
    remarks.push_back(fmt::format("{} of {} further off than {}, at most {:.2f}",
                                  count(static_cast<std::int64_t>(ratios.size()), "judged row"),
                                  method, kFurthestAim, summary_of(ratios).furthest));
  }
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "measured", {});
  const std::filesystem::path folder =
      overrides.rows.empty() ? CONTEXTILE_MEASURED_ROWS : overrides.rows;
  const std::filesystem::path plans_path = folder / "plans.csv";
  const std::filesystem::path kernels_path = folder / "kernels.csv";
  const std::filesystem::path collectives_path = folder / "collectives.csv";
  const std::filesystem::path steps_path = folder / "steps.csv";
  if (!exists(plans_path) && !exists(kernels_path) && !exists(collectives_path) &&
      !exists(steps_path)) {
    fail_io(
        "--rows: expected plans.csv, kernels.csv, collectives.csv or steps.csv in {}, found none",
        folder.string());
  }
  PaperResult result{.setting = {}, .table = empty_table(), .against = Against::kAims};
  const ValidationOptions options{.cluster = std::nullopt, .progress = overrides.progress};
  const auto setting = [&](const std::filesystem::path& path, std::int64_t rows) {
    result.setting.emplace_back(
        "rows", fmt::format("{} of {}", count(rows, "row"), path.filename().string()));
  };
  std::vector<std::string> remarks = {
      "A ratio is predicted over measured time: above 1, the prediction is too slow.",
      "Constants may be fitted to fitted rows only; verdicts are on judged rows "
      "(labs/measured/README.md)."};
  if (exists(plans_path)) {
    const Validation plans = validate_rows(read_measured_rows(plans_path.string()), options);
    setting(plans_path, std::ssize(plans.rows));
    add_plans(plans, result.table, result.findings);
    add_orders(plans, result.table, result.findings);
    remark_unpredicted(plans, remarks);
    remark_far_rows(plans, remarks);
  }
  if (exists(kernels_path)) {
    const Validation kernels = validate_rows(read_measured_rows(kernels_path.string()), options);
    setting(kernels_path, std::ssize(kernels.rows));
    add_groups("kernels", kernel_groups(kernels), kKernelAim, result.table, result.findings);
    remark_unpredicted(kernels, remarks);
  }
  if (exists(collectives_path)) {
    const std::vector<HeldCollective> rows = held_collectives(collectives_path.string());
    setting(collectives_path, std::ssize(rows));
    add_collectives(rows, result, remarks);
  }
  if (exists(steps_path)) {
    const Validation steps = validate_rows(read_measured_rows(steps_path.string()), options);
    setting(steps_path, std::ssize(steps.rows));
    add_groups("steps", step_groups(steps), kStepAim, result.table, result.findings);
    remark_unpredicted(steps, remarks);
  }
  result.differences = std::move(remarks);
  result.plots = {{.x = "name", .y = {"median_ratio"}, .series = {"split"}, .panels = {"part"}}};
  return result;
}

}  // namespace

PaperTable measured() {
  return {"measured", "measurements of others",
          "predicted over measured time of plans, kernels, collectives and steps, and the order of "
          "methods",
          make, true};
}

}  // namespace contextile
