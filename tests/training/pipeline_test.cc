// Pipeline schedules: orders, closed forms of equal micro-batches, invariants of unequal ones.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/training.h"
#include "contextile/base.h"
#include "strategy/distca/distca_pipeline.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::HasSubstr;

constexpr double kForwardUs = 10;
constexpr double kBackwardUs = 20;

PipelineShape shape_of(PipelineSchedule schedule, std::int32_t stages, std::int32_t micro_batches,
                       std::int32_t chunks = 1) {
  return {.schedule = schedule,
          .stages = stages,
          .micro_batches = micro_batches,
          .chunks = chunks,
          .group = 0};
}

PipelineTimes equal_times(const PipelineShape& shape, double forward_us, double backward_us) {
  const auto rows = static_cast<std::size_t>(shape.virtual_stages());
  const auto columns = static_cast<std::size_t>(shape.micro_batches);
  return {.forward_us = {rows, std::vector<double>(columns, forward_us)},
          .backward_us = {rows, std::vector<double>(columns, backward_us)},
          .transfer_us = {}};
}

std::uint64_t below(Rng& rng, std::uint64_t end) { return rng.next() % end; }

PipelineTimes random_times(const PipelineShape& shape, Rng& rng) {
  PipelineTimes times = equal_times(shape, 0, 0);
  times.transfer_us.assign(times.forward_us.size() - 1,
                           std::vector<double>(times.forward_us.front().size()));
  for (auto* grid : {&times.forward_us, &times.backward_us, &times.transfer_us}) {
    for (std::vector<double>& row : *grid) {
      for (double& us : row) us = static_cast<double>(below(rng, 1000)) / 7;
    }
  }
  return times;
}

// Schedules of a random shape.
std::vector<PipelineShape> random_shapes(Rng& rng) {
  const auto draw = [&](std::uint64_t end) { return static_cast<std::int32_t>(below(rng, end)); };
  const std::int32_t stages = 1 + draw(6);
  const std::int32_t micro_batches = 1 + draw(12);
  std::vector<PipelineShape> shapes = {
      shape_of(PipelineSchedule::k1F1B, stages, micro_batches),
      shape_of(PipelineSchedule::kSamePhase, stages, micro_batches)};
  if (stages > 1) {
    shapes.push_back(
        shape_of(PipelineSchedule::kSamePhase, stages, stages * (1 + draw(3)), 2 + draw(3)));
    PipelineShape& shape = shapes.emplace_back(
        shape_of(PipelineSchedule::kInterleaved, stages, stages * (1 + draw(3)), 2 + draw(3)));
    if (draw(2) == 1) {
      shape.group = stages + draw(3);
      shape.micro_batches = shape.group * (1 + draw(3)) + (draw(2) == 1 ? stages : 0);
    }
  }
  return shapes;
}

std::string name_of(const PipelineShape& shape) {
  return fmt::format("{}, p {}, m {}, v {}, group {}", to_string(shape.schedule), shape.stages,
                     shape.micro_batches, shape.chunks, shape.group);
}

TEST(Pipeline, OneStageRunsForwardAndBackwardInTurn) {
  const PipelineShape shape = shape_of(PipelineSchedule::k1F1B, 1, 3);
  const PipelineTimeline timeline = run_pipeline(shape, equal_times(shape, 10, 20));
  EXPECT_DOUBLE_EQ(timeline.time_us, 90);
  EXPECT_DOUBLE_EQ(timeline.bubble_share(), 0);
  for (std::size_t i = 0; i < 6; ++i) {
    const PipelineStep& step = timeline.stages[0][i].step;
    EXPECT_EQ(step.direction, i % 2 == 0 ? Direction::kForward : Direction::kBackward);
    EXPECT_EQ(step.micro_batch, static_cast<std::int32_t>(i / 2));
  }
}

TEST(Pipeline, EqualMicroBatchesOf1F1BTakeTheClosedForm) {
  for (std::int32_t p = 1; p <= 8; ++p) {
    for (std::int32_t m = 1; m <= 20; ++m) {
      const PipelineShape shape = shape_of(PipelineSchedule::k1F1B, p, m);
      const PipelineTimeline timeline =
          run_pipeline(shape, equal_times(shape, kForwardUs, kBackwardUs));
      SCOPED_TRACE(name_of(shape));
      EXPECT_NEAR(timeline.time_us, (m + p - 1) * (kForwardUs + kBackwardUs), 1e-9);
      EXPECT_NEAR(timeline.bubble_share(), static_cast<double>(p - 1) / (m + p - 1), 1e-12);
    }
  }
}

TEST(Pipeline, EqualMicroBatchesInterleavedShrinkTheBubbleByTheChunks) {
  for (std::int32_t p = 2; p <= 6; ++p) {
    for (std::int32_t v = 2; v <= 4; ++v) {
      for (std::int32_t m = p; m <= 4 * p; m += p) {
        const PipelineShape shape = shape_of(PipelineSchedule::kInterleaved, p, m, v);
        const PipelineTimeline timeline =
            run_pipeline(shape, equal_times(shape, kForwardUs / v, kBackwardUs / v));
        SCOPED_TRACE(name_of(shape));
        const double work_us = m * (kForwardUs + kBackwardUs);
        const double bubble_us = (p - 1) * (kForwardUs + kBackwardUs) / v;
        EXPECT_NEAR(timeline.time_us, work_us + bubble_us, 1e-9);
        EXPECT_NEAR(timeline.bubble_share(), bubble_us / (work_us + bubble_us), 1e-12);
      }
    }
  }
}

TEST(Pipeline, EqualMicroBatchesInTheSamePhaseTakeTwoTicksForEachAndTheFill) {
  for (std::int32_t p = 1; p <= 6; ++p) {
    for (std::int32_t m = 1; m <= 12; ++m) {
      const PipelineShape shape = shape_of(PipelineSchedule::kSamePhase, p, m);
      const PipelineTimeline timeline =
          run_pipeline(shape, equal_times(shape, kForwardUs, kBackwardUs));
      EXPECT_NEAR(timeline.time_us, (m + p - 1) * (kForwardUs + kBackwardUs), 1e-9)
          << name_of(shape);
    }
  }
}

TEST(Pipeline, SamePhaseRunsTheTicksOfTheDistcaStrategy) {
  for (std::int32_t p = 1; p <= 6; ++p) {
    for (std::int32_t m = 1; m <= 9; ++m) {
      const PipelineShape shape = shape_of(PipelineSchedule::kSamePhase, p, m);
      SCOPED_TRACE(name_of(shape));
      const std::vector<SamePhaseTick> ticks = same_phase_ticks(p, m);
      for (std::int32_t r = 0; r < p; ++r) {
        const std::vector<PipelineStep> order = pipeline_order(shape, r);
        std::size_t next = 0;
        for (std::size_t t = 0; t < ticks.size(); ++t) {
          const std::int32_t micro_batch = ticks[t].micro_batches[static_cast<std::size_t>(r)];
          if (micro_batch == kIdleStage) continue;
          ASSERT_LT(next, order.size());
          const PipelineStep expected{ticks[t].phase, micro_batch, 0, static_cast<std::int32_t>(t)};
          EXPECT_EQ(order[next], expected);
          ++next;
        }
        EXPECT_EQ(next, order.size());
      }
    }
  }
}

// Every stage runs every step once; a tick has one direction, and uses nothing of the same tick.
TEST(Pipeline, TicksRunEveryStepOnceAfterItsInputs) {
  for (std::int32_t p = 1; p <= 5; ++p) {
    for (std::int32_t v = 1; v <= (p > 1 ? 3 : 1); ++v) {
      for (std::int32_t m = v > 1 ? p : 1; m <= 3 * p; m += v > 1 ? p : 1) {
        const PipelineShape shape = shape_of(PipelineSchedule::kSamePhase, p, m, v);
        SCOPED_TRACE(name_of(shape));
        const std::vector<PipelineTick> ticks = pipeline_ticks(shape);
        EXPECT_EQ(std::ssize(ticks), 2 * (m * v + p - 1));
        std::map<std::tuple<Direction, std::int32_t, std::int32_t>, std::int32_t> tick_of;
        for (std::size_t t = 0; t < ticks.size(); ++t) {
          ASSERT_EQ(std::ssize(ticks[t].steps), p);
          for (std::int32_t r = 0; r < p; ++r) {
            const std::optional<PipelineStep>& step = ticks[t].steps[static_cast<std::size_t>(r)];
            if (!step) continue;
            EXPECT_EQ(step->direction, ticks[t].direction);
            EXPECT_EQ(step->tick, static_cast<std::int32_t>(t));
            const std::tuple key{step->direction, step->chunk * p + r, step->micro_batch};
            EXPECT_TRUE(tick_of.emplace(key, step->tick).second);
          }
        }
        EXPECT_EQ(std::ssize(tick_of), 2 * m * v * p);
        const std::int32_t last = p * v - 1;
        for (const auto& [step, tick] : tick_of) {
          const auto& [direction, stage, micro_batch] = step;
          if (direction == Direction::kForward && stage > 0) {
            EXPECT_LT(tick_of.at({direction, stage - 1, micro_batch}), tick);
          } else if (direction == Direction::kBackward) {
            const auto before = stage == last ? tick_of.at({Direction::kForward, last, micro_batch})
                                              : tick_of.at({direction, stage + 1, micro_batch});
            EXPECT_LT(before, tick);
          }
        }
      }
    }
  }
  EXPECT_THROW(static_cast<void>(pipeline_ticks(shape_of(PipelineSchedule::k1F1B, 2, 2))),
               InvalidArgument);
}

TEST(Pipeline, HoldsAsManyMicroBatchesAsItsClosedFormSays) {
  const auto one = [](const PipelineStep&) { return 1.0; };
  for (std::int32_t p = 1; p <= 6; ++p) {
    for (std::int32_t m = 1; m <= 14; ++m) {
      for (std::int32_t r = 0; r < p; ++r) {
        const auto peak = [&](const PipelineShape& shape) {
          return peak_in_flight(pipeline_order(shape, r), one);
        };
        EXPECT_EQ(peak(shape_of(PipelineSchedule::k1F1B, p, m)), std::min(m, p - r));
        EXPECT_EQ(peak(shape_of(PipelineSchedule::kSamePhase, p, m)),
                  std::min(m, 2 * (p - 1 - r) + 1));
        for (std::int32_t v = 2; v <= 4 && p > 1 && m % p == 0; ++v) {
          EXPECT_EQ(peak(shape_of(PipelineSchedule::kInterleaved, p, m, v)),
                    std::min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1));
          EXPECT_EQ(peak(shape_of(PipelineSchedule::kSamePhase, p, m, v)),
                    std::min(m * v, 2 * (p - 1 - r) + (v - 1) * p + 1));
        }
      }
    }
  }
}

TEST(Pipeline, PeakOfUnequalMicroBatchesIsTheLargestSumAlive) {
  // Stage 0 of 3 holds three at a time: 5+1+1, 1+1+7, 1+7+2, 7+2.
  const std::vector<double> bytes = {5, 1, 1, 7, 2};
  EXPECT_EQ(peak_in_flight(pipeline_order(shape_of(PipelineSchedule::k1F1B, 3, 5), 0),
                           [&](const PipelineStep& step) {
                             return bytes[static_cast<std::size_t>(step.micro_batch)];
                           }),
            10);
}

TEST(Pipeline, AnUnequalMicroBatchDelaysWhoWaitsForIt) {
  // Two stages, two micro-batches; the first one's forward on stage 0 is slow.
  const PipelineShape shape = shape_of(PipelineSchedule::k1F1B, 2, 2);
  const PipelineTimes times{
      .forward_us = {{5, 1}, {2, 3}}, .backward_us = {{4, 1}, {6, 2}}, .transfer_us = {{1, 2}}};
  const PipelineTimeline timeline = run_pipeline(shape, times);
  // Stage 1: F0 6-8, B0 8-14, F1 14-17 (there at 8), B1 17-19. Stage 0: F0 0-5, F1 5-6,
  // B0 15-19, B1 21-22.
  const std::vector<PipelineSpan>& first = timeline.stages[0];
  const std::vector<PipelineSpan>& second = timeline.stages[1];
  EXPECT_EQ(second[0].start_us, 6);
  EXPECT_EQ(second[1].end_us, 14);
  EXPECT_EQ(second[2].start_us, 14);
  EXPECT_EQ(second[3].end_us, 19);
  EXPECT_EQ(first[1].start_us, 5);
  EXPECT_EQ(first[2].start_us, 15);
  EXPECT_EQ(first[3].start_us, 21);
  EXPECT_EQ(timeline.time_us, 22);
  EXPECT_DOUBLE_EQ(timeline.bubble_share(), 1 - (11.0 + 13.0) / 44.0);
}

// The invariants every timeline keeps.
class TimelineCheck {
 public:
  TimelineCheck(const PipelineShape& shape, const PipelineTimes& times,
                const PipelineTimeline& timeline)
      : shape_(shape), times_(times), timeline_(timeline) {}

  void check() {
    for (std::int32_t r = 0; r < shape_.stages; ++r) check_stage(r);
    EXPECT_EQ(ends_.size(),
              static_cast<std::size_t>(2 * shape_.virtual_stages() * shape_.micro_batches));
    for (const auto& [key, span] : ends_) check_dependency(key, span);
    check_ticks();
  }

 private:
  using Key = std::tuple<Direction, std::int32_t, std::int32_t>;  // virtual stage, micro-batch

  void check_stage(std::int32_t stage) {
    const std::vector<PipelineStep> order = pipeline_order(shape_, stage);
    const std::vector<PipelineSpan>& spans = timeline_.stages[static_cast<std::size_t>(stage)];
    ASSERT_EQ(spans.size(), order.size());
    double free_us = 0;
    for (std::size_t k = 0; k < spans.size(); ++k) {
      const PipelineSpan& span = spans[k];
      EXPECT_EQ(span.step, order[k]);
      EXPECT_GE(span.start_us, free_us) << "two steps at once";
      const std::int32_t v = span.step.chunk * shape_.stages + stage;
      const auto& us =
          span.step.direction == Direction::kForward ? times_.forward_us : times_.backward_us;
      EXPECT_NEAR(span.end_us - span.start_us,
                  us[static_cast<std::size_t>(v)][static_cast<std::size_t>(span.step.micro_batch)],
                  1e-9);
      free_us = span.end_us;
      EXPECT_TRUE(ends_.emplace(Key{span.step.direction, v, span.step.micro_batch}, span).second)
          << "a step runs twice";
    }
  }

  void check_dependency(const Key& key, const PipelineSpan& span) const {
    const auto& [direction, v, i] = key;
    const bool forward = direction == Direction::kForward;
    const std::int32_t last = shape_.virtual_stages() - 1;
    if (forward && v == 0) return;
    const Key before = forward     ? Key{direction, v - 1, i}
                       : v == last ? Key{Direction::kForward, v, i}
                                   : Key{direction, v + 1, i};
    double ready_us = ends_.at(before).end_us;
    if (forward || v != last) {
      const auto boundary = static_cast<std::size_t>(forward ? v - 1 : v);
      ready_us += times_.transfer_us[boundary][static_cast<std::size_t>(i)];
    }
    EXPECT_GE(span.start_us, ready_us - 1e-9);
  }

  void check_ticks() const {
    if (shape_.schedule != PipelineSchedule::kSamePhase) return;
    for (const auto& [key, span] : ends_) {
      for (const auto& [other_key, other] : ends_) {
        if (other.step.tick < span.step.tick) {
          EXPECT_LE(other.end_us, span.start_us + 1e-9);
        }
        if (other.step.tick == span.step.tick) {
          EXPECT_EQ(other.step.direction, span.step.direction);
        }
      }
    }
  }

  const PipelineShape& shape_;
  const PipelineTimes& times_;
  const PipelineTimeline& timeline_;
  std::map<Key, PipelineSpan> ends_;
};

TEST(Pipeline, KeepsOrderAndDependenciesWithRandomTimes) {
  Rng rng(7);
  for (int round = 0; round < 60; ++round) {
    for (const PipelineShape& shape : random_shapes(rng)) {
      SCOPED_TRACE(fmt::format("round {}: {}", round, name_of(shape)));
      const PipelineTimes times = random_times(shape, rng);
      const PipelineTimeline timeline = run_pipeline(shape, times);
      TimelineCheck(shape, times, timeline).check();
      EXPECT_GE(timeline.bubble_share(), -1e-12);
    }
  }
}

TEST(Pipeline, IsNoFasterWhenAStepTakesLonger) {
  Rng rng(11);
  for (int round = 0; round < 60; ++round) {
    for (const PipelineShape& shape : random_shapes(rng)) {
      SCOPED_TRACE(fmt::format("round {}: {}", round, name_of(shape)));
      PipelineTimes times = random_times(shape, rng);
      const double before_us = run_pipeline(shape, times).time_us;
      auto& grid = below(rng, 2) == 0 ? times.forward_us : times.backward_us;
      std::vector<double>& row = grid[below(rng, grid.size())];
      row[below(rng, row.size())] += 50;
      const double after_us = run_pipeline(shape, times).time_us;
      EXPECT_GE(after_us, before_us - 1e-9);
      EXPECT_LE(after_us, before_us + 50 + 1e-9);
    }
  }
}

TEST(Pipeline, InterleavesEveryAllowedShapeWithoutWaitingForItself) {
  for (std::int32_t p = 2; p <= 5; ++p) {
    for (std::int32_t group = p; group <= p + 3; ++group) {
      for (std::int32_t m = 1; m <= 3 * group; ++m) {
        PipelineShape shape = shape_of(PipelineSchedule::kInterleaved, p, m, 3);
        shape.group = group;
        if (m % group != 0 && m % group < p) {
          EXPECT_THROW(check_pipeline(shape), InvalidArgument) << name_of(shape);
          continue;
        }
        EXPECT_NO_THROW(static_cast<void>(run_pipeline(shape, equal_times(shape, 1, 2))))
            << name_of(shape);
      }
    }
  }
}

TEST(Pipeline, RefusesShapesAndTimesThatMakeNoSense) {
  const auto broken = [](const PipelineShape& shape) {
    return message_of([&] { check_pipeline(shape); });
  };
  EXPECT_THAT(broken(shape_of(PipelineSchedule::k1F1B, 0, 1)), HasSubstr("at least 1 stage"));
  EXPECT_THAT(broken(shape_of(PipelineSchedule::k1F1B, 2, 2, 2)), HasSubstr("1 chunk a stage"));
  EXPECT_THAT(broken(shape_of(PipelineSchedule::kInterleaved, 2, 2, 1)),
              HasSubstr("at least 2 chunks"));
  EXPECT_THAT(broken(shape_of(PipelineSchedule::kInterleaved, 4, 6, 2)),
              HasSubstr("found 6 micro-batches"));
  const PipelineShape shape = shape_of(PipelineSchedule::k1F1B, 2, 2);
  EXPECT_THAT(message_of([&] { static_cast<void>(pipeline_order(shape, 2)); }),
              HasSubstr("a stage of 0 to 1, found 2"));
  PipelineTimes times = equal_times(shape, 1, 2);
  times.backward_us[1][0] = -1;
  EXPECT_THAT(message_of([&] { static_cast<void>(run_pipeline(shape, times)); }),
              HasSubstr("backward: expected times of 0 or more, found -1"));
  times.backward_us[1][0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(message_of([&] { static_cast<void>(run_pipeline(shape, times)); }),
              HasSubstr("found nan"));
  times.backward_us.pop_back();
  EXPECT_THAT(message_of([&] { static_cast<void>(run_pipeline(shape, times)); }),
              HasSubstr("expected 2 rows, found 1"));
}

TEST(Pipeline, NamesOfSchedulesAreParsedBack) {
  for (const PipelineSchedule schedule :
       {PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved, PipelineSchedule::kSamePhase}) {
    EXPECT_EQ(parse_pipeline_schedule(to_string(schedule)), schedule);
  }
  EXPECT_THAT(message_of([] { static_cast<void>(parse_pipeline_schedule("interleave")); }),
              HasSubstr("did you mean 'interleaved'"));
}

}  // namespace
}  // namespace contextile
