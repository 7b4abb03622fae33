#include "report/measured_steps.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "report/document_batches.h"

namespace contextile {
namespace {

// CP is the number of devices that TP, DP and PP leave.
void complete_sizes(MeasuredRow& row, std::string_view where) {
  MeasuredStep& step = *row.step;
  std::int32_t left = row.cluster->num_devices();
  for (const std::int32_t size : {step.sizes.tp, step.sizes.dp, step.sizes.pp}) {
    CONTEXTILE_CHECK(
        left % size == 0,
        "{}: expected a product of tp, dp and pp that divides {} devices, found {}, {} and {}",
        where, row.cluster->num_devices(), step.sizes.tp, step.sizes.dp, step.sizes.pp);
    left /= size;
  }
  step.sizes.cp = left;
  if (const auto problem = parallel_sizes_problem(step.model, *row.cluster, step.sizes)) {
    fail_argument("{}: {}", where, *problem);
  }
}

// Takes the shape from the model. Numbers that the row gives must be the same.
void complete_shape(MeasuredRow& row, std::string_view where) {
  const MeasuredStep& step = *row.step;
  const AttentionShape shape = attention_shape_of(step.model, step.sizes.tp);
  const auto check_number = [&](std::string_view column, std::int32_t expected,
                                std::int32_t found) {
    CONTEXTILE_CHECK(found == 0 || found == expected,
                     "{}, {}: expected none, or the {} that {} has with TP {}, found {}", where,
                     column, expected, step.model_text, step.sizes.tp, found);
  };
  check_number("q_heads", shape.q_heads, row.shape.q_heads);
  check_number("kv_heads", shape.kv_heads, row.shape.kv_heads);
  check_number("head_dim", shape.head_dim, row.shape.head_dim);
  CONTEXTILE_CHECK(row.shape.dtype == shape.dtype, "{}, dtype: expected {} of a step, found {}",
                   where, to_string(shape.dtype), to_string(row.shape.dtype));
  row.shape = shape;
}

// Number of micro-batches of all replicas in one step.
std::int64_t micro_batches_of(const MeasuredStep& step) {
  return std::int64_t{step.micro_batches} * step.sizes.dp;
}

}  // namespace

void complete_step(MeasuredRow& row, std::string_view where) {
  CONTEXTILE_CHECK(row.step && !row.step->model_text.empty(),
                   "{}: expected a model, which a row of direction step needs, found none", where);
  complete_sizes(row, where);
  complete_shape(row, where);
  CONTEXTILE_CHECK(static_cast<std::int64_t>(row.batches.size()) % micro_batches_of(*row.step) == 0,
                   "{}, lengths: expected a multiple of {} batches, the micro-batches of a step, "
                   "found {}",
                   where, micro_batches_of(*row.step), row.batches.size());
}

std::string step_text(const MeasuredStep& step) {
  const IterationOptions defaults;
  const IterationOptions& options = step.options;
  std::string text = fmt::format("{}, {}", step.model_text, sizes_text(step.sizes));
  if (step.micro_batches != 1) text += fmt::format(", {} micro-batches", step.micro_batches);
  if (options.optimizer != defaults.optimizer) {
    text += fmt::format(", {}", to_string(options.optimizer));
  }
  if (options.gradient_overlap != defaults.gradient_overlap) {
    text += fmt::format(", gradient overlap {}", to_string(options.gradient_overlap));
  }
  if (options.recompute != defaults.recompute) {
    text += fmt::format(", recompute {}", to_string(options.recompute));
  }
  if (options.linear_mfu != defaults.linear_mfu) {
    text += fmt::format(", linear MFU {}", options.linear_mfu);
  }
  return text;
}

StepSetting step_setting_of(const MeasuredRow& row) {
  StepSetting setting;
  setting.sizes = row.step->sizes;
  setting.strategy = *row.strategy;
  return setting;
}

PredictedSteps predict_steps(const MeasuredRow& row, const Cluster& cluster,
                             const PlanOptions& plan) {
  const StepSetting setting = step_setting_of(row);
  const auto of_step = static_cast<std::size_t>(micro_batches_of(*row.step));
  double sum_us = 0;
  for (std::size_t first = 0; first < row.batches.size(); first += of_step) {
    TrainingJob job{.model = row.step->model,
                    .cluster = cluster,
                    .masks = {row.mask},
                    .plan = plan,
                    .options = row.step->options,
                    .micro_batches = {}};
    for (std::size_t k = first; k < first + of_step; ++k) {
      job.micro_batches.push_back(lengths_of(row.batches[k]));
    }
    const StepOutcome outcome = StepPlanner(job, [](const std::string&) {}).predict(setting);
    if (outcome.verdict != Verdict::kFits) return {.reason = outcome.reason};
    sum_us += outcome.prediction->time_us;
  }
  const std::size_t steps = row.batches.size() / of_step;
  return {.ms = 1e-3 * sum_us / static_cast<double>(steps), .reason = {}};
}

}  // namespace contextile
