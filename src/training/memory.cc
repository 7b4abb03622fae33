#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

#include "base/check.h"
#include "contextile/advanced/training.h"
#include "training/costs.h"

namespace contextile {
namespace {

constexpr double kLseBytes = 4;  // log-sum-exp of a row and head, fp32
// A logit takes bf16 and its softmax in fp32, which its gradient overwrites.
constexpr double kLogitBytes = 6;

// Bytes that forward keeps of one token and layer for backward, with FlashAttention and sequence
// parallelism (all of it is divided by TP). These are the layer's input, the first norm's output,
// Q, K, V, O with its log-sum-exp, the second norm's input and output, and the inputs and output of
// the FFN's activation.
//
// In layers with experts, of which `share` of the layers are, the FFN is that of a token's experts,
// and the inputs that the token sends to routed experts are kept, too. Experts have on average as
// many tokens as devices send. Latent attention keeps its latent vectors.
double layer_bytes_per_token(const ModelSpec& model, Recompute recompute, double share) {
  const double hidden = model.hidden;
  const TokenFfn ffn = token_ffn(model, share);
  const double heads = static_cast<double>(model.q_heads) + model.kv_heads;
  const double dims = static_cast<double>(model.head_dim) + model.value_elements();
  const double latent = static_cast<double>(model.latent.q_rank) + model.latent.kv_rank;
  if (recompute == Recompute::kFull) return kActivationBytes * hidden;
  double elements =
      2 * hidden + heads * dims + (model.ffn_matrices() - 1) * ffn.inner + ffn.dispatched;
  elements += latent + model.latent.rope_dim;
  if (recompute == Recompute::kNone) elements += 2 * hidden + ffn.inner;
  return kActivationBytes * elements + kLseBytes * model.q_heads;
}

class StageMemoryCount {
 public:
  StageMemoryCount(const TrainingStep& step, const StepCosts& costs, std::int32_t stage)
      : step_(step), costs_(costs), stage_(stage) {}

  StageMemory count() {
    add_weights();
    add_activations();
    add_working();
    memory_.reserve_bytes = step_.options.reserve_bytes;
    return memory_;
  }

 private:
  [[nodiscard]] bool full() const { return step_.options.recompute == Recompute::kFull; }
  // Bytes that one device keeps of one token in the layers of a chunk, on average.
  [[nodiscard]] double per_token(Recompute recompute, std::int32_t chunk) const {
    const std::int32_t v = virtual_stage(chunk);
    const double share = static_cast<double>(costs_.expert_layers_of(v)) / costs_.layers_of(v);
    return layer_bytes_per_token(step_.model, recompute, share) / step_.sizes.tp;
  }
  static std::int64_t rounded(double bytes) { return std::llround(std::ceil(bytes)); }

  void add_weights() {
    const DeviceWeights weights = costs_.weights_of_stage(stage_);
    const DeviceWeights layer = costs_.largest_layer(stage_);
    add_weights(weights.common, layer.common, costs_.gradient_ranks());
    add_weights(weights.experts, layer.experts, costs_.expert_gradient_ranks());
  }

  // Adds weights that `ranks` devices hold, and of which one layer has `of_layer`.
  void add_weights(std::int64_t of_stage, std::int64_t of_layer, double ranks) {
    const auto weights = static_cast<double>(of_stage);
    const OptimizerShards kind = step_.options.optimizer;
    const double shards = kind == OptimizerShards::kFsdp ? ranks : 1;  // of weights and gradients
    // The layer that computes and the next one are whole; so are the gradients of one.
    const double whole =
        kind == OptimizerShards::kFsdp && ranks > 1 ? static_cast<double>(of_layer) : 0;
    memory_.weights_bytes +=
        rounded(kWeightBytes * std::min(weights, weights / shards + 2 * whole));
    memory_.gradients_bytes +=
        rounded(kGradientBytes * std::min(weights, weights / shards + whole));
    memory_.optimizer_bytes +=
        rounded(kOptimizerBytes * weights / (kind == OptimizerShards::kNone ? 1 : ranks));
  }

  [[nodiscard]] std::int32_t virtual_stage(std::int32_t chunk) const {
    return chunk * step_.pipeline.stages + stage_;
  }

  // Bytes that attention of a micro-batch keeps for backward, one layer.
  [[nodiscard]] double retained_bytes(std::int32_t replica, std::int32_t micro_batch,
                                      std::int32_t chunk) const {
    const MicroBatchWork& batch = batch_of(replica, micro_batch);
    double bytes = 0;
    for (std::size_t i = 0; i < batch.parts.size(); ++i) {
      bytes += static_cast<double>(
          costs_.attention_of(Direction::kForward, replica, virtual_stage(chunk), micro_batch, i)
              .retained_bytes);
    }
    return bytes;
  }

  [[nodiscard]] const MicroBatchWork& batch_of(std::int32_t replica,
                                               std::int32_t micro_batch) const {
    return step_.replicas[static_cast<std::size_t>(replica)][static_cast<std::size_t>(micro_batch)];
  }

  void add_activations() {
    const std::vector<PipelineStep> order = pipeline_order(step_.pipeline, stage_);
    memory_.in_flight =
        static_cast<std::int32_t>(peak_in_flight(order, [](const PipelineStep&) { return 1.0; }));
    double most = 0;
    for (std::int32_t d = 0; d < step_.sizes.dp; ++d) {
      most = std::max(most, peak_in_flight(order, [&](const PipelineStep& step) {
                        const double tokens =
                            static_cast<double>(batch_of(d, step.micro_batch).held_tokens());
                        double bytes = tokens * per_token(step_.options.recompute, step.chunk);
                        if (!full()) bytes += retained_bytes(d, step.micro_batch, step.chunk);
                        return bytes * costs_.layers_of(virtual_stage(step.chunk));
                      }));
    }
    memory_.activations_bytes = rounded(most);
  }

  void add_working() {
    double logits = 0;
    double layer = 0;
    for (std::int32_t d = 0; d < step_.sizes.dp; ++d) {
      for (std::int32_t at = 0; at < step_.pipeline.micro_batches * step_.pipeline.chunks; ++at) {
        const std::int32_t i = at / step_.pipeline.chunks;
        const std::int32_t chunk = at % step_.pipeline.chunks;
        const MicroBatchWork& batch = batch_of(d, i);
        std::int64_t staging = 0;
        for (std::size_t part = 0; part < batch.parts.size(); ++part) {
          logits = std::max(logits, static_cast<double>(batch.parts[part].held_tokens()) *
                                        step_.model.vocabulary * kLogitBytes / step_.sizes.tp);
          for (const Direction direction : kDirections) {
            const std::int64_t bytes =
                costs_.attention_of(direction, d, virtual_stage(chunk), i, part).staging_bytes;
            staging = std::max(staging, bytes);
          }
        }
        // Both of two parts may be between their transfers and their attention.
        memory_.attention_bytes = std::max(memory_.attention_bytes,
                                           staging * static_cast<std::int64_t>(batch.parts.size()));
        layer = std::max(
            layer, static_cast<double>(batch.held_tokens()) * per_token(Recompute::kNone, chunk) +
                       retained_bytes(d, i, chunk));
      }
    }
    const bool last = stage_ + 1 == step_.pipeline.stages;
    memory_.working_bytes = rounded(std::max(last ? logits : 0, full() ? layer : 0));
  }

  const TrainingStep& step_;
  const StepCosts& costs_;
  const std::int32_t stage_;
  StageMemory memory_;
};

}  // namespace

std::vector<StageMemory> step_memory(const TrainingStep& step) {
  const StepCosts costs(step);
  std::vector<StageMemory> memory;
  memory.reserve(static_cast<std::size_t>(step.pipeline.stages));
  for (std::int32_t r = 0; r < step.pipeline.stages; ++r) {
    memory.push_back(StageMemoryCount(step, costs, r).count());
  }
  return memory;
}

LargestPart largest_part(const StageMemory& memory) {
  const LargestPart parts[] = {
      {"weights", memory.weights_bytes},        {"gradients", memory.gradients_bytes},
      {"optimizer", memory.optimizer_bytes},    {"activations", memory.activations_bytes},
      {"working memory", memory.working_bytes}, {"attention", memory.attention_bytes}};
  return *std::max_element(
      std::begin(parts), std::end(parts),
      [](const LargestPart& a, const LargestPart& b) { return a.bytes < b.bytes; });
}

std::size_t fullest_stage(const std::vector<StageMemory>& memory) {
  CONTEXTILE_CHECK(!memory.empty(), "memory: expected at least one stage, found none");
  const auto fullest = std::max_element(
      memory.begin(), memory.end(),
      [](const StageMemory& a, const StageMemory& b) { return a.total_bytes() < b.total_bytes(); });
  return static_cast<std::size_t>(fullest - memory.begin());
}

std::optional<std::string> out_of_memory(const Cluster& cluster,
                                         const std::vector<StageMemory>& memory) {
  if (cluster.memory_bytes == 0 || memory.empty()) return std::nullopt;
  const std::size_t stage = fullest_stage(memory);
  if (memory[stage].total_bytes() <= cluster.memory_bytes) return std::nullopt;
  const LargestPart largest = largest_part(memory[stage]);
  const auto gigabytes = [](std::int64_t bytes) { return 1e-9 * static_cast<double>(bytes); };
  return fmt::format(
      "out of memory on stage {}: expected at most {:.1f} GB, found {:.1f} GB, "
      "{:.1f} of them {}",
      stage, gigabytes(cluster.memory_bytes), gigabytes(memory[stage].total_bytes()),
      gigabytes(largest.bytes), largest.name);
}

MicroBatchWork even_micro_batch(std::int64_t tokens, std::int32_t cp) {
  BatchPart part;
  part.tokens = tokens;
  part.device_tokens = (tokens + cp - 1) / cp;
  return {{part}};
}

}  // namespace contextile
