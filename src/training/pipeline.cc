#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>

#include "base/check.h"
#include "contextile/advanced/training.h"

namespace contextile {
namespace {

using Grid = std::vector<std::vector<double>>;  // [virtual stage][micro-batch]

void check_grid(const Grid& grid, std::int32_t rows, std::int32_t columns, std::string_view what) {
  CONTEXTILE_CHECK(grid.size() == static_cast<std::size_t>(rows),
                   "pipeline times: {}: expected {} rows, found {}", what, rows, grid.size());
  for (const std::vector<double>& row : grid) {
    CONTEXTILE_CHECK(row.size() == static_cast<std::size_t>(columns),
                     "pipeline times: {}: expected {} micro-batches in every row, found {}", what,
                     columns, row.size());
    for (const double us : row) {
      CONTEXTILE_CHECK(std::isfinite(us) && us >= 0,
                       "pipeline times: {}: expected times of 0 or more, found {}", what, us);
    }
  }
}

class PipelineRun {
 public:
  PipelineRun(const PipelineShape& shape, const PipelineTimes& times)
      : shape_(shape), times_(times), next_(static_cast<std::size_t>(shape.stages)) {
    const auto rows = static_cast<std::size_t>(shape.virtual_stages());
    const std::vector<double> unknown(static_cast<std::size_t>(shape.micro_batches), kUnknown);
    forward_end_.assign(rows, unknown);
    backward_end_.assign(rows, unknown);
    for (std::int32_t r = 0; r < shape.stages; ++r) orders_.push_back(pipeline_order(shape, r));
    timeline_.stages.resize(orders_.size());
  }

  PipelineTimeline run() {
    if (shape_.schedule == PipelineSchedule::kSamePhase) {
      run_ticks();
    } else {
      run_freely();
    }
    for (const std::vector<PipelineSpan>& spans : timeline_.stages) {
      if (!spans.empty()) timeline_.time_us = std::max(timeline_.time_us, spans.back().end_us);
    }
    return std::move(timeline_);
  }

 private:
  static constexpr double kUnknown = -1;

  [[nodiscard]] std::size_t virtual_stage(std::size_t stage, const PipelineStep& step) const {
    return static_cast<std::size_t>(step.chunk * shape_.stages) + stage;
  }
  [[nodiscard]] double transfer_us(std::size_t boundary, std::size_t micro_batch) const {
    return times_.transfer_us.empty() ? 0 : times_.transfer_us[boundary][micro_batch];
  }

  // The time at which the step's input is ready; kUnknown if the step that makes it has not run.
  [[nodiscard]] double ready_us(std::size_t stage, const PipelineStep& step) const {
    const std::size_t v = virtual_stage(stage, step);
    const auto i = static_cast<std::size_t>(step.micro_batch);
    if (step.direction == Direction::kForward) {
      if (v == 0) return 0;
      const double end = forward_end_[v - 1][i];
      return end == kUnknown ? kUnknown : end + transfer_us(v - 1, i);
    }
    if (v + 1 == forward_end_.size()) return forward_end_[v][i];
    const double end = backward_end_[v + 1][i];
    return end == kUnknown ? kUnknown : end + transfer_us(v, i);
  }

  // Runs the next step of a stage, not before `barrier_us`, if its input is known.
  bool advance(std::size_t stage, double barrier_us) {
    const PipelineStep& step = orders_[stage][next_[stage]];
    const double ready = ready_us(stage, step);
    if (ready == kUnknown) return false;
    std::vector<PipelineSpan>& spans = timeline_.stages[stage];
    const double free_us = spans.empty() ? 0 : spans.back().end_us;
    const std::size_t v = virtual_stage(stage, step);
    const auto i = static_cast<std::size_t>(step.micro_batch);
    const bool forward = step.direction == Direction::kForward;
    const double start = std::max({ready, free_us, barrier_us});
    const double end = start + (forward ? times_.forward_us : times_.backward_us)[v][i];
    (forward ? forward_end_ : backward_end_)[v][i] = end;
    spans.push_back({step, start, end});
    ++next_[stage];
    return true;
  }

  void run_freely() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (std::size_t r = 0; r < orders_.size(); ++r) {
        while (next_[r] < orders_[r].size() && advance(r, 0)) progress = true;
      }
    }
    for (std::size_t r = 0; r < orders_.size(); ++r) {
      CONTEXTILE_CHECK(next_[r] == orders_[r].size(),
                       "pipeline: expected an order that can run, found stage {} waiting forever "
                       "at step {}",
                       r, next_[r]);
    }
  }

  void run_ticks() {
    double barrier_us = 0;
    const std::int32_t num_ticks = 2 * (shape_.micro_batches * shape_.chunks + shape_.stages - 1);
    for (std::int32_t tick = 0; tick < num_ticks; ++tick) {
      double end_us = barrier_us;
      for (std::size_t r = 0; r < orders_.size(); ++r) {
        if (next_[r] == orders_[r].size() || orders_[r][next_[r]].tick != tick) continue;
        CONTEXTILE_CHECK(advance(r, barrier_us),
                         "pipeline: expected ticks that follow each other, found stage {} waiting "
                         "in tick {}",
                         r, tick);
        end_us = std::max(end_us, timeline_.stages[r].back().end_us);
      }
      barrier_us = end_us;
    }
  }

  const PipelineShape& shape_;
  const PipelineTimes& times_;
  std::vector<std::vector<PipelineStep>> orders_;
  std::vector<std::size_t> next_;  // of every stage
  Grid forward_end_;
  Grid backward_end_;
  PipelineTimeline timeline_;
};

}  // namespace

double PipelineTimeline::busy_us(std::int32_t stage) const {
  double us = 0;
  for (const PipelineSpan& span : stages.at(static_cast<std::size_t>(stage))) {
    us += span.end_us - span.start_us;
  }
  return us;
}

double PipelineTimeline::bubble_share() const {
  if (time_us <= 0) return 0;
  double busy = 0;
  for (std::size_t r = 0; r < stages.size(); ++r) busy += busy_us(static_cast<std::int32_t>(r));
  return 1 - busy / (time_us * static_cast<double>(stages.size()));
}

PipelineTimeline run_pipeline(const PipelineShape& shape, const PipelineTimes& times) {
  check_pipeline(shape);
  check_grid(times.forward_us, shape.virtual_stages(), shape.micro_batches, "forward");
  check_grid(times.backward_us, shape.virtual_stages(), shape.micro_batches, "backward");
  if (!times.transfer_us.empty()) {
    check_grid(times.transfer_us, shape.virtual_stages() - 1, shape.micro_batches, "transfers");
  }
  return PipelineRun(shape, times).run();
}

}  // namespace contextile
