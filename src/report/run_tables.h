// Executed plans as tables and JSON, next to their predictions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/simulate.h"
#include "report/table.h"

namespace contextile {

// Errors next to those of one device and their bounds, time, bytes next to the prediction, memory.
[[nodiscard]] std::string run_text(const RunReport& report, bool colour);
[[nodiscard]] Json run_json(const RunReport& report);

// One line for each thing wrong in a run that is not ok(): what, expected, found.
[[nodiscard]] std::vector<std::string> run_failures(const RunReport& report);

// One mask of a plan, all rounds, one layer.
struct MaskPrediction {
  double forward_s = 0;
  double backward_s = 0;
};
[[nodiscard]] MaskPrediction predicted_of_mask(const Simulation& simulation, std::int32_t mask);

// One row per mask and direction: predicted and measured time, predicted over measured.
[[nodiscard]] Table run_prediction_table(const RunReport& report, const Simulation& simulation);

// Adds "predicted_forward_s" and "predicted_backward_s" to run_json's entry of each mask.
void add_prediction(const Simulation& simulation, Json& masks);
// The masks of run_json as flat rows, one per mask and direction: times, bytes, and the largest
// error as a share of its bound if errors are known.
[[nodiscard]] Json run_rows_json(const Json& masks);

}  // namespace contextile
