// Modelled training steps, for several papers' figures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contextile/advanced/step_planner.h"
#include "contextile/planner.h"
#include "report/table.h"

namespace contextile {

// For PaperResult::differences.
extern const std::string kStepsAreModelled;

// One prediction, which keeps nothing for the next.
[[nodiscard]] StepOutcome predict_once(const TrainingJob& job, const StepSetting& setting);

// A step of one micro-batch whose attention runs on all devices as one group: TP `tp`, the others
// CP. Without micro-batches.
[[nodiscard]] TrainingStep one_group_step(const TrainingJob& job, std::int32_t tp);
// Causal attention of some documents as that step runs it: planned, verified, simulated.
[[nodiscard]] BatchPart planned_part(const StrategyChoice& choice, const TrainingJob& job,
                                     const ParallelSizes& sizes, const BatchLengths& documents,
                                     AttentionDetail detail);
// The step with these parts, two of which alternate.
[[nodiscard]] StepPrediction predict_parts(TrainingStep step, std::vector<BatchPart> parts);

// The time of a step as a cell, empty if it is infinite: no setting fits.
[[nodiscard]] Cell seconds_cell(double us);

}  // namespace contextile
