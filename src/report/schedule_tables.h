// A schedule of micro-batches as tables and as JSON.
#pragma once

#include <span>
#include <string>

#include "contextile/schedule.h"
#include "report/table.h"

namespace contextile {

// One row per round.
[[nodiscard]] Table rounds_table(const PlannedSchedule& schedule,
                                 const SchedulePrediction& prediction);
// The rounds, what ranks hold and how long it takes. `tokens` are those of the batch.
[[nodiscard]] std::string schedule_text(const PlannedSchedule& schedule,
                                        const SchedulePrediction& prediction, std::int64_t tokens);
// The document that `plan --schedule` writes. `plan_files` are the names of the plans' files, by
// index of the plan.
[[nodiscard]] Json schedule_json(const PlannedSchedule& schedule,
                                 std::span<const std::string> plan_files);
[[nodiscard]] Json schedule_prediction_json(const SchedulePrediction& prediction);

}  // namespace contextile
