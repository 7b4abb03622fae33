// Pipeline parallelism: the order in which every stage runs its micro-batches, and what that order
// takes when micro-batches differ. Orders are data; times follow from dependencies, not from
// formulas.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/arrangement.h"

namespace contextile {

enum class PipelineSchedule : std::uint8_t {
  // Warm-up forwards, then one forward and one backward in turn (PipeDream-Flush, Megatron-LM).
  k1F1B,
  // The same over several model chunks a stage (Narayanan et al., SC 2021, section 2.2.2).
  kInterleaved,
  // Ticks in which all stages run forwards, or all run backwards, so that the attention of a tick
  // can be balanced over the devices of all stages (DistCA, section 4.4).
  kSamePhase,
};
[[nodiscard]] std::string_view to_string(PipelineSchedule schedule);  // "1f1b", "interleaved", …
[[nodiscard]] PipelineSchedule parse_pipeline_schedule(std::string_view text);

struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::int32_t stages = 1;
  std::int32_t micro_batches = 1;
  std::int32_t chunks = 1;  // of the model on every stage; above 1 only when interleaved
  std::int32_t group = 0;   // interleaved: micro-batches that a chunk runs in a row; 0: `stages`

  // Chunk c of stage r is virtual stage c · stages + r: what its layers follow each other by.
  [[nodiscard]] std::int32_t virtual_stages() const { return stages * chunks; }
  friend bool operator==(const PipelineShape&, const PipelineShape&) = default;
};
// Throws InvalidArgument: counts below 1, chunks without interleaving, interleaving of fewer than 2
// chunks or stages, groups (or a last group) of fewer than `stages` micro-batches: most of those
// would wait for themselves.
void check_pipeline(const PipelineShape& shape);

inline constexpr std::int32_t kNoTick = -1;

// The forward or backward of one micro-batch through one chunk of a stage.
struct PipelineStep {
  Direction direction = Direction::kForward;
  std::int32_t micro_batch = 0;
  std::int32_t chunk = 0;
  std::int32_t tick = kNoTick;  // same phase: begins when all stages are done with earlier ticks

  friend bool operator==(const PipelineStep&, const PipelineStep&) = default;
};

// What a stage runs, in order.
//  * 1F1B: min(stages - 1 - stage, m) forwards first.
//  * Interleaved: for each group of micro-batches, for each chunk, for each micro-batch of the
//    group; min(2(stages - stage - 1) + (chunks - 1) · group, m · chunks) forwards first; backward
//    visits the chunks from the last to the first.
//  * Same phase: forward ticks t = 0 … p-2, then forward tick p-1+i and backward tick i for i < m,
//    then backward ticks m … m+p-2. Forward tick t runs micro-batch t - stage, backward tick t runs
//    t - (p - 1 - stage); outside [0, m) the stage is idle.
[[nodiscard]] std::vector<PipelineStep> pipeline_order(const PipelineShape& shape,
                                                       std::int32_t stage);

// The largest sum of `weight` over steps whose forward has run and whose backward has not: with
// weight 1 the chunks in flight, with bytes the memory they hold. 1F1B: min(m, p - r); interleaved:
// min(m·v, 2(p-r-1) + (v-1)·group + 1); same phase: min(m, 2(p-1-r) + 1).
[[nodiscard]] double peak_in_flight(std::span<const PipelineStep> order,
                                    const std::function<double(const PipelineStep&)>& weight);

// What steps take, µs. Indices: [virtual stage][micro-batch].
struct PipelineTimes {
  std::vector<std::vector<double>> forward_us;
  std::vector<std::vector<double>> backward_us;
  // From virtual stage s to s + 1 and, of gradients, back; one fewer than stages. Transfers occupy
  // no stage. Empty: they take no time.
  std::vector<std::vector<double>> transfer_us;
};

struct PipelineSpan {
  PipelineStep step;
  double start_us = 0;
  double end_us = 0;
};

struct PipelineTimeline {
  double time_us = 0;                             // the last end
  std::vector<std::vector<PipelineSpan>> stages;  // in order

  [[nodiscard]] double busy_us(std::int32_t stage) const;
  // The share of the time of all stages in which they run nothing.
  [[nodiscard]] double bubble_share() const;
};

// Runs every stage's order as early as dependencies allow: a forward after the same micro-batch's
// on the virtual stage before and its transfer, a backward after the one on the virtual stage after
// (on the last: after its own forward). Exact. Throws InvalidArgument when the times do not fit the
// shape, or are negative or not finite. O(steps).
[[nodiscard]] PipelineTimeline run_pipeline(const PipelineShape& shape, const PipelineTimes& times);

}  // namespace contextile
