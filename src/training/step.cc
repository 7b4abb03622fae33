#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/parse_name.h"
#include "contextile/advanced/training.h"
#include "training/costs.h"

namespace contextile {
namespace {

constexpr Recompute kRecomputes[] = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
constexpr OptimizerShards kOptimizerShards[] = {OptimizerShards::kNone, OptimizerShards::kZero1,
                                                OptimizerShards::kFsdp};
constexpr GradientOverlap kGradientOverlaps[] = {GradientOverlap::kOff, GradientOverlap::kOn};
constexpr double kRounding = 1e-12;     // of sums that should be equal
constexpr double kForwardsOfAStep = 3;  // backward takes twice forward's FLOPs

class Prediction {
 public:
  explicit Prediction(const TrainingStep& step) : step_(step), costs_(step) {}

  StepPrediction run() {
    result_.stages.resize(static_cast<std::size_t>(step_.pipeline.stages));
    for (std::int32_t d = 0; d < step_.sizes.dp; ++d) run_replica(d);
    for (std::int32_t r = 0; r < step_.pipeline.stages; ++r) synchronise(r);
    for (StageTimes& stage : result_.stages) {
      const double busy_us = stage.total_us();
      const double bubble_us = result_.time_us - busy_us;
      if (bubble_us > kRounding * result_.time_us) stage.bubble_us = bubble_us;
      const auto share = 1.0 / (static_cast<double>(result_.stages.size()) * result_.time_us);
      result_.bubble_share += share * stage.bubble_us;
      result_.exposed_share += share * stage.exposed_us();
    }
    count_work();
    result_.memory = step_memory(step_);
    return std::move(result_);
  }

 private:
  void run_replica(std::int32_t replica) {
    const PipelineShape& shape = step_.pipeline;
    const auto rows = static_cast<std::size_t>(shape.virtual_stages());
    const std::vector<double> row(static_cast<std::size_t>(shape.micro_batches));
    PipelineTimes times;
    times.forward_us.assign(rows, row);
    times.backward_us.assign(rows, row);
    times.transfer_us.assign(rows - 1, row);
    for (std::int32_t v = 0; v < shape.virtual_stages(); ++v) {
      StageTimes& stage = result_.stages[static_cast<std::size_t>(v % shape.stages)];
      for (std::int32_t i = 0; i < shape.micro_batches; ++i) {
        const auto row_of = static_cast<std::size_t>(v);
        const auto column = static_cast<std::size_t>(i);
        times.forward_us[row_of][column] = add_phase(Direction::kForward, replica, v, i, stage);
        times.backward_us[row_of][column] = add_phase(Direction::kBackward, replica, v, i, stage);
        if (v + 1 == shape.virtual_stages()) continue;
        times.transfer_us[row_of][column] =
            costs_.transfer_us(v, step_.replicas[static_cast<std::size_t>(replica)][column]);
      }
    }
    result_.timelines.push_back(run_pipeline(shape, times));
  }

  // Adds the replica's share to the stage's mean; returns the time.
  double add_phase(Direction direction, std::int32_t replica, std::int32_t virtual_stage,
                   std::int32_t micro_batch, StageTimes& stage) const {
    const PhaseCost cost = costs_.phase(direction, replica, virtual_stage, micro_batch);
    const double share = 1.0 / step_.sizes.dp;
    stage.linear_us += share * cost.linear_us;
    stage.attention_us += share * cost.attention_us;
    stage.exposed_attention_us += share * cost.exposed_us;
    stage.tensor_parallel_us += share * cost.tensor_parallel_us;
    stage.expert_parallel_us += share * cost.expert_parallel_us;
    stage.recompute_us += share * cost.recompute_us;
    stage.gradients_us += share * cost.weights_us;
    return cost.total_us();
  }

  // The end of a stage's last step in a replica.
  [[nodiscard]] double end_us(std::int32_t stage, std::size_t replica) const {
    return result_.timelines[replica].stages[static_cast<std::size_t>(stage)].back().end_us;
  }

  // The replica that ends a stage last. Its layers hide the collectives for which all wait.
  [[nodiscard]] std::size_t last_replica(std::int32_t stage) const {
    std::size_t last = 0;
    for (std::size_t d = 1; d < result_.timelines.size(); ++d) {
      if (end_us(stage, d) > end_us(stage, last)) last = d;
    }
    return last;
  }

  // Exposed time of a collective of each of a stage's layers during one phase. One is alone: the
  // gradients of the last layer come when all others are computed, and the first layer needs its
  // weights before anything else can be.
  [[nodiscard]] double seen_us(Collective op, double bytes, std::int32_t stage, std::size_t replica,
                               Direction direction, std::int32_t micro_batch) const {
    if (step_.options.gradient_overlap == GradientOverlap::kOff) {
      return costs_.stage_weights_us(op, bytes, stage);
    }
    const double layer_us = costs_.layer_weights_us(op, bytes, stage);
    double delays_us = 0;
    for (std::int32_t c = 0; c < step_.pipeline.chunks; ++c) {
      const std::int32_t v = c * step_.pipeline.stages + stage;
      delays_us +=
          costs_.layers_of(v) * costs_.layer_delay_us(direction, static_cast<std::int32_t>(replica),
                                                      v, micro_batch, layer_us);
    }
    const double layers = costs_.layers_of_stage(stage);
    return (layers - 1) / layers * delays_us + layer_us;
  }

  // Collectives of a stage that are not hidden, from the end of its steps on.
  [[nodiscard]] double synchronising_us(std::int32_t stage, std::size_t replica) const {
    const std::int32_t last = step_.pipeline.micro_batches - 1;
    switch (step_.options.optimizer) {
      case OptimizerShards::kNone:
        return seen_us(Collective::kAllReduce, kGradientBytes, stage, replica, Direction::kBackward,
                       last);
      case OptimizerShards::kZero1:
        return seen_us(Collective::kReduceScatter, kGradientBytes, stage, replica,
                       Direction::kBackward, last) +
               seen_us(Collective::kAllGather, kWeightBytes, stage, replica, Direction::kForward,
                       0);
      case OptimizerShards::kFsdp:
        break;  // all of them are in its steps
    }
    return 0;
  }

  void synchronise(std::int32_t stage) {
    StageTimes& times = result_.stages[static_cast<std::size_t>(stage)];
    const std::size_t replica = last_replica(stage);
    const double exposed_us = synchronising_us(stage, replica);
    times.gradients_us += exposed_us;
    times.optimizer_us = costs_.optimizer_us(stage);
    result_.time_us =
        std::max(result_.time_us, end_us(stage, replica) + exposed_us + times.optimizer_us);
  }

  void count_work() {
    const LinearFlops linear = linear_flops_of(step_.model);
    for (const std::vector<MicroBatchWork>& replica : step_.replicas) {
      for (const MicroBatchWork& micro_batch : replica) {
        for (const BatchPart& part : micro_batch.parts) {
          const auto tokens = static_cast<double>(part.tokens);
          result_.tokens += part.tokens;
          result_.model_flops +=
              kForwardsOfAStep * (tokens * (step_.model.layers * linear.layer() + linear.head) +
                                  step_.model.layers * part.attention_flops);
        }
      }
    }
    const double peak = 1e6 * peak_tflops_of(step_.cluster) * step_.cluster.num_devices();
    result_.mfu = result_.model_flops / (peak * result_.time_us);
    double longest = 0;
    double sum = 0;
    for (const PipelineTimeline& timeline : result_.timelines) {
      longest = std::max(longest, timeline.time_us);
      sum += timeline.time_us;
    }
    result_.replica_imbalance =
        (longest - sum / static_cast<double>(result_.timelines.size())) / longest;
  }

  const TrainingStep& step_;
  const StepCosts costs_;
  StepPrediction result_;
};

}  // namespace

std::string_view to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  fail_argument("recompute: expected none, selective or full, found {}",
                static_cast<int>(recompute));
}

Recompute parse_recompute(std::string_view text) {
  return parse_name<Recompute>("recompute", kRecomputes, text);
}

std::string_view to_string(OptimizerShards shards) {
  switch (shards) {
    case OptimizerShards::kNone:
      return "replicated";
    case OptimizerShards::kZero1:
      return "zero1";
    case OptimizerShards::kFsdp:
      return "fsdp";
  }
  fail_argument("optimizer: expected replicated, zero1 or fsdp, found {}",
                static_cast<int>(shards));
}

OptimizerShards parse_optimizer_shards(std::string_view text) {
  return parse_name<OptimizerShards>("optimizer", kOptimizerShards, text);
}

std::string_view to_string(GradientOverlap overlap) {
  return overlap == GradientOverlap::kOn ? "on" : "off";
}

GradientOverlap parse_gradient_overlap(std::string_view text) {
  return parse_name<GradientOverlap>("gradient overlap", kGradientOverlaps, text);
}

void check_iteration_options(const IterationOptions& options) {
  const auto check_share = [](double value, const char* name) {
    CONTEXTILE_CHECK(std::isfinite(value) && value > 0 && value <= 1,
                     "{}: expected a share above 0 and up to 1, found {}", name, value);
  };
  check_share(options.linear_mfu, "linear MFU");
  check_share(options.collective_share, "collective share");
  CONTEXTILE_CHECK(options.tensor_parallel_overlap >= 0 && options.tensor_parallel_overlap <= 1,
                   "tensor-parallel overlap: expected a share of 0 to 1, found {}",
                   options.tensor_parallel_overlap);
  CONTEXTILE_CHECK(options.reserve_bytes >= 0, "reserve: expected 0 bytes or more, found {}",
                   options.reserve_bytes);
}

std::int64_t MicroBatchWork::tokens() const {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0},
                         [](std::int64_t sum, const BatchPart& part) { return sum + part.tokens; });
}

std::int64_t MicroBatchWork::device_tokens() const {
  return std::accumulate(
      parts.begin(), parts.end(), std::int64_t{0},
      [](std::int64_t sum, const BatchPart& part) { return sum + part.device_tokens; });
}

std::int64_t MicroBatchWork::held_tokens() const {
  return std::accumulate(
      parts.begin(), parts.end(), std::int64_t{0},
      [](std::int64_t sum, const BatchPart& part) { return sum + part.held_tokens(); });
}

StepPrediction predict_step(const TrainingStep& step) { return Prediction(step).run(); }

}  // namespace contextile
