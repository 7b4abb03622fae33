// Training steps as tables and JSON.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "contextile/advanced/step_planner.h"
#include "report/table.h"

namespace contextile {

// Lines "model …", "experts …" (if there are), "masks …" (unless all are causal), "batch …",
// "cluster …", "training …". `notes` are lines about the model and its masks.
[[nodiscard]] std::string describe_job(const TrainingJob& job, const std::string& notes);
[[nodiscard]] Json job_json(const TrainingJob& job);

// Sorts: first the outcomes that fit by time, then those out of memory by memory, then the
// impossible ones.
void sort_outcomes(std::vector<StepOutcome>& outcomes);

// One row per outcome of a job: strategy and sizes (EP if its model has experts), time, tokens/s,
// MFU, bubbles, exposed communication, memory; the reason if it does not fit.
[[nodiscard]] Table outcome_table(const TrainingJob& job, std::span<const StepOutcome> outcomes);
// Tables of the first `top` outcomes that fit, of those out of memory, and of the impossible ones.
// If no plan could change the verdict, one row represents all strategies.
[[nodiscard]] std::string outcomes_text(const TrainingJob& job,
                                        std::span<const StepOutcome> outcomes, std::size_t top);
// A line that names the strategies whose micro-batches are their own schedule's; empty if none is.
[[nodiscard]] std::string scheduled_text(std::span<const StepOutcome> outcomes);
// The parts of the time of a stage's device, and its memory.
[[nodiscard]] std::string stages_text(const TrainingJob& job, const StepOutcome& outcome);
[[nodiscard]] Json outcome_json(const TrainingJob& job, const StepOutcome& outcome);

}  // namespace contextile
