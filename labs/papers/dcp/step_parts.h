// The parts of the time of a step of GPT-8B, for DCP's Figs. 1 and 22.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/planner.h"
#include "labs/papers/findings.h"
#include "labs/papers/setting.h"
#include "report/table.h"

namespace contextile {

inline constexpr std::int32_t kStepTp = 4;

// One device's time, means over devices. Communication is that of context parallelism; its
// overlapped part runs during attention. All parts except `overlapped_s` add up to `step_s`.
struct StepParts {
  std::string skipped;        // why there is no such step
  double step_s = kInfinity;  // infinity: skipped
  double attention_s = 0;     // attention and merging
  double exposed_s = 0;       // waiting for transfers
  double idle_s = 0;          // done with attention, others not
  double other_s = 0;         // everything outside attention
  double overlapped_s = 0;    // messages move and the device computes

  [[nodiscard]] double communication_s() const { return exposed_s + overlapped_s; }
};

// The longalign setting on a cluster of that name. Throws InvalidArgument on overrides that `table`
// cannot follow.
[[nodiscard]] PaperSetting step_setting(const TableOverrides& overrides, std::string_view table,
                                        std::string cluster_name);

// Means over the setting's batches, with one batch per step.
[[nodiscard]] StepParts step_parts(const StrategyChoice& choice, const PaperSetting& setting,
                                   const std::string& mask);
[[nodiscard]] StepParts transformer_engine(const PaperSetting& setting, const std::string& mask);

// `first`, then the columns that add_parts fills behind its labels.
[[nodiscard]] std::vector<Column> part_columns(std::vector<Column> first);
// The last label names the strategy, for the note of a step that is skipped.
void add_parts(const StepParts& parts, std::vector<Cell> labels, Table& table);

// The result with two differences: steps are modelled, lengths are sampled.
[[nodiscard]] PaperResult steps_result(const PaperSetting& setting, Table table);
// For PaperResult::differences.
extern const std::string kOverlapMeans;

}  // namespace contextile
