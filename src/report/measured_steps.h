// Training steps among measured rows: what follows from their columns, and their predicted times.
#pragma once

#include <string>
#include <string_view>

#include "contextile/advanced/step_planner.h"
#include "contextile/advanced/validation.h"

namespace contextile {

// Checks a row of a training step against its cluster, and fills in CP and the shape of one rank's
// attention. Head numbers that the row does not give are 0. Throws InvalidArgument (`where`,
// expected, found).
void complete_step(MeasuredRow& row, std::string_view where);

// Text of a step's settings, without defaults: "gpt-8b, TP 4, CP 16, DP 1, PP 1, fsdp". Equal texts
// are equal settings.
[[nodiscard]] std::string step_text(const MeasuredStep& step);

// The setting that the row's step is predicted in; the row has a step and a strategy.
[[nodiscard]] StepSetting step_setting_of(const MeasuredRow& row);

// Time of the row's step, as StepPlanner predicts it, or the reason why there is none.
struct PredictedSteps {
  double ms = 0;  // mean over the row's steps
  std::string reason;
};
[[nodiscard]] PredictedSteps predict_steps(const MeasuredRow& row, const Cluster& cluster,
                                           const PlanOptions& plan);

}  // namespace contextile
