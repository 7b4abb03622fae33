// Executed plans as tables and JSON, beside what was predicted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/simulate.h"
#include "report/table.h"

namespace contextile {

// Errors beside one device's and their bounds, time, bytes against the prediction, memory.
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

// One row a mask and direction: predicted and measured time, predicted over measured.
[[nodiscard]] Table run_prediction_table(const RunReport& report, const Simulation& simulation);

// Adds "predicted_forward_s" and "predicted_backward_s" to what run_json says of each mask.
void add_prediction(const Simulation& simulation, Json& masks);
// The masks of run_json as flat rows, one a mask and direction: times, bytes, and the largest error
// as a share of its bound where errors are known.
[[nodiscard]] Json run_rows_json(const Json& masks);

}  // namespace contextile
