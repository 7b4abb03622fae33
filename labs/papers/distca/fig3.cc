// DistCA, Fig. 3: the losses of per-document context parallelism. The paper measured GPUs; here
// everything outside attention comes from the model's sizes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "labs/papers/distca/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/steps.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// The gather's shares, means over batches.
struct GatherShares {
  double latency = 0;  // of the step
  double memory = 0;

  void add(double share, const StepPrediction& step, double gathered_bytes, double other_bytes) {
    latency += share * step.stages.front().exposed_attention_us / step.time_us;
    memory += share * gathered_bytes / (gathered_bytes + other_bytes);
  }
};

// Backward needs the gathered keys, too.
struct GatherWays {
  GatherShares kept;   // of every layer, from forward to backward
  GatherShares again;  // gathered again, like in our plans
};

GatherWays gather_ways(const DistcaPoint& point, const TableOverrides& overrides,
                       std::span<const BatchLengths> batches) {
  TrainingJob job = unlimited_job(point, overrides);
  job.options.recompute = Recompute::kSelective;
  const TrainingStep step = one_group_step(job, kDistcaTp);
  const AttentionShape shape = attention_shape_of(job.model, kDistcaTp);
  const double share = 1.0 / static_cast<double>(batches.size());
  GatherWays mean;
  for (const BatchLengths& documents : batches) {
    const BatchPart again = planned_part({"all_gather", {{"layout", "per_document"}}}, job,
                                         step.sizes, documents, AttentionDetail::kTimes);
    BatchPart kept = again;
    const AttentionTimes& forward = again.attention.forward;
    AttentionTimes& backward = kept.attention.backward;
    const double gather_us = forward.time_us - forward.compute_us;  // nothing hides it
    backward.time_us = std::max(backward.compute_us, backward.time_us - gather_us);
    const StepPrediction prediction = predict_parts(step, {again});
    const StageMemory& memory = prediction.memory.front();
    const auto staged = static_cast<double>(memory.attention_bytes);
    const double others = static_cast<double>(memory.total_bytes()) - staged;
    const std::int64_t gathered_tokens = again.tokens - again.device_tokens;
    const auto layer =
        static_cast<double>(unit_bytes(Kind::kKv, gathered_tokens, shape, 1, shape.dtype));
    mean.again.add(share, prediction, staged, others);
    mean.kept.add(share, predict_parts(step, {kept}), job.model.layers * layer, others);
  }
  return mean;
}

// The quantities that the claims are about, of all models.
struct GatherSummary {
  Extent latency_at_2, latency_at_32, memory_at_2, memory_at_16;
  std::vector<std::string> latency, memory;

  void take(std::string_view model, const GatherWays& at_2, const GatherWays& at_16,
            const GatherWays& at_32) {
    latency_at_2.take(at_2.kept.latency);
    latency_at_32.take(at_32.kept.latency);
    memory_at_2.take(at_2.kept.memory);
    memory_at_16.take(at_16.kept.memory);
    latency.push_back(
        fmt::format("{}: {} to {} (again: {} to {})", model, whole_percent(at_2.kept.latency),
                    whole_percent(at_32.kept.latency), whole_percent(at_2.again.latency),
                    whole_percent(at_32.again.latency)));
    memory.push_back(fmt::format("{}: {} to {} (again: {} to {})", model,
                                 whole_percent(at_2.kept.memory), whole_percent(at_16.kept.memory),
                                 whole_percent(at_2.again.memory),
                                 whole_percent(at_16.again.memory)));
  }
  [[nodiscard]] std::vector<Finding> findings() const {
    return {{"the all-gather takes 3% of latency on 2 nodes, nearly 40% on 32",
             fmt::format("keys kept for backward, {}", fmt::join(latency, "; ")),
             latency_at_2.within(0.01, 0.05) && latency_at_32.within(0.35, 0.45),
             "keys kept, both models: 1% to 5% on 2 nodes, 35% to 45% on 32"},
            {"gathered keys take 3% of memory on 2 nodes, almost 30% on 16",
             fmt::format("keys kept for backward, {}", fmt::join(memory, "; ")),
             memory_at_2.within(0.01, 0.05) && memory_at_16.within(0.25, 0.35),
             "keys kept, both models: 1% to 5% on 2 nodes, 25% to 35% on 16"}};
  }
};

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "distca-fig3",
                   {"--dataset", "--tokens", "--batches", "--seed", "--cluster", "--wire"});
  refuse_nodes(overrides, "distca-fig3");
  constexpr std::array<std::int32_t, 5> kNodes = {2, 4, 8, 16, 32};
  constexpr std::int64_t kLongest = 131072;
  const std::int64_t batches = overrides.batches.value_or(20);
  Table table({{"model", "model"},
               {"nodes", "nodes"},
               {"kept_latency", "kept: of\nthe step", Format::kPercent},
               {"kept_memory", "kept: of\nmemory", Format::kPercent},
               {"again_latency", "again: of\nthe step", Format::kPercent},
               {"again_memory", "again: of\nmemory", Format::kPercent}});
  Progress progress(overrides, static_cast<std::int64_t>(kDistcaModels.size() * kNodes.size()));
  GatherSummary summary;
  for (const std::string_view model : kDistcaModels) {
    std::array<GatherWays, kNodes.size()> ways;
    for (std::size_t i = 0; i < kNodes.size(); ++i) {
      const std::int32_t nodes = kNodes[i];
      progress.step(fmt::format("{}, {} nodes", model, nodes));
      const std::int64_t tokens = overrides.tokens.value_or(distca_tokens_of_node(model));
      const std::int64_t longest = std::min(kLongest, tokens * kNodes.front());
      ways[i] = gather_ways({.model = model, .devices = nodes * kDistcaTp}, overrides,
                            stretched_documents(distca_dataset(overrides), tokens * nodes, longest,
                                                overrides.seed.value_or(0), batches));
      table.add_row({std::string(model), std::int64_t{nodes}, ways[i].kept.latency,
                     ways[i].kept.memory, ways[i].again.latency, ways[i].again.memory});
    }
    summary.take(model, ways[0], ways[3], ways[4]);
  }
  PaperResult result{
      .setting = {{"models",
                   "llama-3-8b and llama-34b, CP over all nodes, selective recomputation"},
                  {"lengths", fmt::format("{}, {} of {} a node", distca_dataset(overrides),
                                          count(batches, "batch"), distca_tokens_text(overrides))},
                  {"cluster", distca_cluster_text(overrides)}},
      .table = std::move(table),
      .differences = {kStepsAreModelled, kLengthsAreSampled}};
  result.findings = summary.findings();
  result.differences.insert(
      result.differences.end(),
      {"Latency: transfers that no compute hides, keys gathered and gradients scattered, as a "
       "share "
       "of the whole step.",
       "Our plans gather keys again in backward and hold one layer's. Kept: the gathered keys of "
       "all layers stay until backward, which then gathers none; only so memory is the paper's.",
       "Which model, lengths and tokens the paper had is not in its text: here tokens of a node "
       "stay the same, as many as in its Fig. 9."});
  result.plots = {{.x = "nodes", .y = {"kept_latency", "again_latency"}, .panels = {"model"}},
                  {.x = "nodes", .y = {"kept_memory", "again_memory"}, .panels = {"model"}}};
  return result;
}

}  // namespace

PaperTable distca_fig3() {
  return {"distca-fig3", "DistCA, Fig. 3",
          "per-document context parallelism: gathered keys in time and memory, 2 to 32 nodes",
          make};
}

}  // namespace contextile
