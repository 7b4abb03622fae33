#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/parse_name.h"
#include "contextile/advanced/training.h"

namespace contextile {
namespace {

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved,
                                           PipelineSchedule::kSamePhase};

std::int32_t group_of(const PipelineShape& shape) {
  return shape.group == 0 ? shape.stages : shape.group;
}

// (micro-batch, chunk) in the order of forwards: group by group, each through all chunks.
std::vector<std::pair<std::int32_t, std::int32_t>> chunk_table(const PipelineShape& shape) {
  std::vector<std::pair<std::int32_t, std::int32_t>> table;
  const std::int32_t group = group_of(shape);
  for (std::int32_t first = 0; first < shape.micro_batches; first += group) {
    const std::int32_t end = std::min(first + group, shape.micro_batches);
    for (std::int32_t chunk = 0; chunk < shape.chunks; ++chunk) {
      for (std::int32_t i = first; i < end; ++i) table.emplace_back(i, chunk);
    }
  }
  return table;
}

// `warm_up` forwards, then one forward and one backward alternating, then the remaining backwards.
// With one chunk and stages - 1 - stage forwards this is 1F1B.
std::vector<PipelineStep> alternating_order(const PipelineShape& shape, std::size_t warm_up) {
  const std::vector<std::pair<std::int32_t, std::int32_t>> table = chunk_table(shape);
  warm_up = std::min(warm_up, table.size());
  std::vector<PipelineStep> order;
  const auto forward = [&](std::size_t i) {
    order.push_back({Direction::kForward, table[i].first, table[i].second});
  };
  const auto backward = [&](std::size_t i) {
    order.push_back({Direction::kBackward, table[i].first, shape.chunks - 1 - table[i].second});
  };
  for (std::size_t i = 0; i < warm_up; ++i) forward(i);
  for (std::size_t i = warm_up; i < table.size(); ++i) {
    forward(i);
    backward(i - warm_up);
  }
  for (std::size_t i = table.size() - warm_up; i < table.size(); ++i) backward(i);
  return order;
}

void check_groups(const PipelineShape& shape) {
  CONTEXTILE_CHECK(shape.group == 0 || shape.group >= shape.stages,
                   "pipeline {}: expected groups of at least {} micro-batches (the stages), found "
                   "{}",
                   to_string(shape.schedule), shape.stages, shape.group);
  const std::int32_t rest = shape.micro_batches % group_of(shape);
  CONTEXTILE_CHECK(rest == 0 || rest >= shape.stages,
                   "pipeline {}: expected micro-batches in groups of {}, the last of at least {} "
                   "(the stages), found {} micro-batches",
                   to_string(shape.schedule), group_of(shape), shape.stages, shape.micro_batches);
}

}  // namespace

std::string_view to_string(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::k1F1B:
      return "1f1b";
    case PipelineSchedule::kInterleaved:
      return "interleaved";
    case PipelineSchedule::kSamePhase:
      return "same_phase";
  }
  fail_argument("pipeline schedule: expected 1f1b, interleaved or same_phase, found {}",
                static_cast<int>(schedule));
}

PipelineSchedule parse_pipeline_schedule(std::string_view text) {
  return parse_name<PipelineSchedule>("pipeline schedule", kSchedules, text);
}

void check_pipeline(const PipelineShape& shape) {
  CONTEXTILE_CHECK(shape.stages >= 1 && shape.micro_batches >= 1 && shape.chunks >= 1,
                   "pipeline: expected at least 1 stage, 1 micro-batch and 1 chunk, found {}, {} "
                   "and {}",
                   shape.stages, shape.micro_batches, shape.chunks);
  if (shape.schedule == PipelineSchedule::k1F1B || shape.chunks == 1) {
    CONTEXTILE_CHECK(shape.schedule != PipelineSchedule::kInterleaved,
                     "pipeline interleaved: expected at least 2 chunks a stage and 2 stages, found "
                     "{} and {}",
                     shape.chunks, shape.stages);
    CONTEXTILE_CHECK(shape.chunks == 1 && shape.group == 0,
                     "pipeline {}: expected 1 chunk a stage and no groups, found {} chunks, "
                     "groups of {}",
                     to_string(shape.schedule), shape.chunks, shape.group);
    return;
  }
  CONTEXTILE_CHECK(shape.stages >= 2,
                   "pipeline {}: expected at least 2 chunks a stage and 2 stages, found {} and {}",
                   to_string(shape.schedule), shape.chunks, shape.stages);
  check_groups(shape);
}

std::vector<PipelineTick> pipeline_ticks(const PipelineShape& shape) {
  check_pipeline(shape);
  CONTEXTILE_CHECK(shape.schedule == PipelineSchedule::kSamePhase,
                   "pipeline: expected the schedule same_phase of ticks, found {}",
                   to_string(shape.schedule));
  const std::vector<std::pair<std::int32_t, std::int32_t>> table = chunk_table(shape);
  const std::int32_t p = shape.stages;
  const auto num_forwards = static_cast<std::int32_t>(table.size());
  const std::int32_t num_ticks = num_forwards + p - 1;  // of a direction
  std::vector<PipelineTick> ticks;
  const auto add = [&](Direction direction, std::int32_t number) {
    PipelineTick tick{direction, number, {}};
    for (std::int32_t stage = 0; stage < p; ++stage) {
      const std::int32_t i = number - (direction == Direction::kForward ? stage : p - 1 - stage);
      std::optional<PipelineStep>& step = tick.steps.emplace_back();
      if (i < 0 || i >= num_forwards) continue;
      const auto [micro_batch, chunk] = table[static_cast<std::size_t>(i)];
      step = {direction, micro_batch,
              direction == Direction::kForward ? chunk : shape.chunks - 1 - chunk,
              static_cast<std::int32_t>(ticks.size())};
    }
    ticks.push_back(std::move(tick));
  };
  // The last stage has run all chunks of the first micro-batch after these.
  const std::int32_t warm_up =
      p - 1 + (shape.chunks - 1) * std::min(group_of(shape), shape.micro_batches);
  for (std::int32_t t = 0; t < warm_up; ++t) add(Direction::kForward, t);
  for (std::int32_t t = warm_up; t < num_ticks; ++t) {
    add(Direction::kForward, t);
    add(Direction::kBackward, t - warm_up);
  }
  for (std::int32_t t = num_ticks - warm_up; t < num_ticks; ++t) add(Direction::kBackward, t);
  return ticks;
}

std::vector<PipelineStep> pipeline_order(const PipelineShape& shape, std::int32_t stage) {
  check_pipeline(shape);
  CONTEXTILE_CHECK(stage >= 0 && stage < shape.stages,
                   "pipeline: expected a stage of 0 to {}, found {}", shape.stages - 1, stage);
  const std::int32_t behind = shape.stages - 1 - stage;
  switch (shape.schedule) {
    case PipelineSchedule::k1F1B:
      return alternating_order(shape, static_cast<std::size_t>(behind));
    case PipelineSchedule::kInterleaved:
      return alternating_order(
          shape, static_cast<std::size_t>(2 * behind + (shape.chunks - 1) * group_of(shape)));
    case PipelineSchedule::kSamePhase:
      break;
  }
  std::vector<PipelineStep> order;
  for (const PipelineTick& tick : pipeline_ticks(shape)) {
    const std::optional<PipelineStep>& step = tick.steps[static_cast<std::size_t>(stage)];
    if (step) order.push_back(*step);
  }
  return order;
}

double peak_in_flight(std::span<const PipelineStep> order,
                      const std::function<double(const PipelineStep&)>& weight) {
  double alive = 0;
  double peak = 0;
  for (const PipelineStep& step : order) {
    alive += step.direction == Direction::kForward ? weight(step) : -weight(step);
    peak = std::max(peak, alive);
  }
  return peak;
}

}  // namespace contextile
