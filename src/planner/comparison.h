// Several strategies on the same batches: planned, verified, simulated, optionally executed. Shared
// by `compare` and `demo`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/table.h"
#include "planner/plan_batch.h"
#include "contextile/bounds.h"
#include "contextile/executor.h"
#include "contextile/simulate.h"
#include "contextile/strategy.h"

namespace contextile {

// How fast any plan could be that owns no more tokens per device and node than the defaults of
// BoundOptions, or than the plan it is put beside where that owns more: never above its time.
struct BatchBound {
  std::optional<TimeBound> forward;
  std::optional<TimeBound> backward;
};

// One strategy on all batches of a comparison.
struct Comparison {
  StrategyChoice choice;
  std::string skipped;                // why it does not apply; then nothing below is set
  std::string failed;                 // what it threw
  std::vector<PlannedBatch> batches;  // without the plans themselves: many large ones would not fit
  std::vector<Json> plans;            // what plan_json says of each
  std::vector<Simulation> simulations;  // one for each batch whose plan verifies
  std::vector<BatchBound> bounds;       // likewise
  std::vector<RunReport> runs;          // with execution: one a batch

  // Applied and nothing was wrong, or did not apply.
  [[nodiscard]] bool ok() const;
};

// Above this the oracle takes minutes: such batches are not executed for comparison.
inline constexpr double kMaxRunFlops = 1e12;

// How plans are executed, on in-process ranks.
struct Execution {
  std::uint64_t seed = 0;    // of the random inputs
  std::int32_t repeats = 1;  // timed repetitions, the fastest counts
  std::string kernel = "";   // empty: the preferred one
};

// Plans every batch with every choice and predicts its time on the input's cluster; with
// `execution` also executes each plan. Throws InvalidArgument on unknown strategies and bad
// options, and when a batch is too large to execute; what goes wrong inside one strategy is that
// row's failure.
[[nodiscard]] std::vector<Comparison> compare_strategies(std::span<const StrategyChoice> choices,
                                                         const Input& input,
                                                         const std::optional<Execution>& execution);

// Bytes, balance, memory, planning time and predicted times: means over batches, memory the
// largest. Text shows all but the times.
[[nodiscard]] Table planning_table(std::span<const Comparison> comparisons);
// Error against the oracle and bytes moved against the prediction.
[[nodiscard]] Table execution_table(std::span<const Comparison> comparisons);
[[nodiscard]] Json comparisons_json(std::span<const Comparison> comparisons);
// What was compared and its tables.
[[nodiscard]] std::string comparison_text(const Input& input,
                                          std::span<const Comparison> comparisons, bool colour);
// Every violation, error and wrong result, one a line on stderr; whether there was none.
[[nodiscard]] bool report_failures(std::span<const Comparison> comparisons);

}  // namespace contextile
