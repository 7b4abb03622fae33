#include "papers/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "contextile/packing.h"
#include "contextile/registry.h"

namespace contextile {
namespace {

constexpr std::int64_t kUnstretchedLength = 131072;  // the datasets' own longest, about

}  // namespace

const std::string kStepsAreModelled =
    "Steps are modelled (docs/iteration.md): linear layers at half of the peak, TP collectives "
    "not overlapped, gradients overlapped with linear layers; attention simulated from verified "
    "plans. Nothing is measured on GPUs.";
const std::string kLengthsAreSampled =
    "Lengths: samples of our models of the datasets' lengths (contextile info), not the documents "
    "themselves.";

const std::string kTransformerEngineIs =
    "TE: the faster of a ring and of two head-parallel ranks in rings, which send every key "
    "around whatever the mask. The preset's nodes share one uplink of 50 GB/s.";

void refuse_overrides(const BenchOverrides& overrides, std::string_view table,
                      std::initializer_list<std::string_view> followed) {
  const std::pair<std::string_view, bool> given[] = {
      {"--dataset", !overrides.dataset.empty()},
      {"--tokens", overrides.tokens.has_value()},
      {"--batches", overrides.batches.has_value()},
      {"--seed", overrides.seed.has_value()},
      {"--heads", overrides.q_heads.has_value()},
      {"--kv-heads", overrides.kv_heads.has_value()},
      {"--head-dim", overrides.head_dim.has_value()},
      {"--cluster", !overrides.cluster.empty()},
      {"--block-size", overrides.block_size.has_value()},
      {"--wire", overrides.wire.has_value()}};
  for (const auto& [option, is_given] : given) {
    if (!is_given || std::find(followed.begin(), followed.end(), option) != followed.end()) {
      continue;
    }
    fail_argument("{}: expected {}, found {}", table,
                  followed.size() == 0
                      ? std::string("no option of the experiment")
                      : fmt::format("only {}", fmt::join(followed.begin(), followed.end(), ", ")),
                  option);
  }
}

StepOutcome predict_once(const TrainingJob& job, const StepSetting& setting) {
  return StepPlanner(job, [](const std::string&) {}).predict(setting);
}

std::string whole_percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

PaperResult paper_result(std::vector<std::pair<std::string, std::string>> setting, Table table,
                         std::vector<std::string> differences) {
  return {.setting = std::move(setting),
          .table = std::move(table),
          .findings = {},
          .differences = std::move(differences)};
}

TrainingStep one_group_step(const TrainingJob& job, std::int32_t tp) {
  return {.model = job.model,
          .cluster = job.cluster,
          .sizes = {.tp = tp, .cp = job.cluster.num_devices() / tp, .dp = 1, .pp = 1},
          .pipeline = {},
          .options = job.options,
          .replicas = {},
          .ticks = {}};
}

BatchPart planned_part(const StrategyChoice& choice, const TrainingJob& job,
                       const ParallelSizes& sizes, const BatchLengths& documents,
                       AttentionDetail detail) {
  PlanInput input;
  input.cluster = context_parallel_cluster(job.cluster, sizes);
  input.options = job.plan;
  const MaskUse causal;
  const Workload workload =
      make_workload(documents, attention_shape_of(job.model, sizes.tp), {&causal, 1});
  return batch_part_of(*plan_and_check(workload, input.cluster, choice, input.options).plan,
                       input.cluster, sizes.tp, detail);
}

StepPrediction predict_parts(TrainingStep step, std::vector<BatchPart> parts) {
  step.replicas = {{MicroBatchWork{std::move(parts)}}};
  return predict_step(step);
}

std::string dcp_masks_text(std::span<const PaperMask> masks) {
  std::vector<std::string> texts;
  for (const PaperMask& mask : masks) {
    texts.push_back(std::string_view(mask.name) == mask.spec
                        ? std::string(mask.name)
                        : fmt::format("{} ({})", mask.name, mask.spec));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

BenchSetting dcp_attention_setting() {
  BenchSetting setting;
  setting.batch.tokens = 131072;
  setting.shape.q_heads = 8;
  setting.shape.kv_heads = 2;
  setting.cluster_name = "p4de:4x8";
  setting.input.options.wire = Dtype::kBf16;
  return setting;
}

std::vector<StrategyChoice> transformer_engine_choices() {
  return parse_strategies("hybrid:A=2,zigzag");
}

std::int64_t distca_tokens_of_node(std::string_view model) {
  return model == kDistcaModels[0] ? 131072 : 65536;
}

std::string distca_tokens_text(const BenchOverrides& overrides) {
  if (overrides.tokens) return fmt::format("{} tokens", *overrides.tokens);
  return fmt::format("{} (8B) and {} (34B) tokens", distca_tokens_of_node(kDistcaModels[0]),
                     distca_tokens_of_node(kDistcaModels[1]));
}

std::string distca_dataset(const BenchOverrides& overrides) {
  return overrides.dataset.empty() ? "pretrain" : overrides.dataset;
}

std::string distca_cluster_text(const BenchOverrides& overrides) {
  return fmt::format("nodes of {}, TP {}",
                     load_cluster(overrides.cluster.empty() ? "dgx-h200" : overrides.cluster).name,
                     kDistcaTp);
}

TrainingJob distca_job(const DistcaPoint& point, const BenchOverrides& overrides) {
  TrainingJob job;
  job.model = load_model(point.model);
  job.cluster = load_cluster(overrides.cluster.empty() ? "dgx-h200" : overrides.cluster);
  if (job.cluster.devices_per_node % kDistcaTp != 0 ||
      point.devices % job.cluster.devices_per_node != 0) {
    fail_argument("--cluster: expected nodes of {} devices, found {}", kDistcaTp,
                  job.cluster.devices_per_node);
  }
  job.cluster.nodes = point.devices / job.cluster.devices_per_node;
  job.plan.wire = overrides.wire;
  job.plan.block_size = overrides.block_size;
  job.plan.seed = overrides.seed.value_or(0);
  return job;
}

TrainingJob unlimited_job(const DistcaPoint& point, const BenchOverrides& overrides) {
  TrainingJob job = distca_job(point, overrides);
  job.cluster.memory_bytes = 0;
  return job;
}

std::vector<BatchLengths> stretched_documents(const std::string& dataset, std::int64_t tokens,
                                              std::int64_t max_length, std::uint64_t seed,
                                              std::int64_t steps) {
  BatchOptions options;
  options.tokens = tokens;
  options.batches = steps;
  options.max_length = max_length;
  options.scale = static_cast<double>(max_length) / kUnstretchedLength;
  options.seed = seed;
  return batches_from_dataset(dataset, options);
}

std::vector<BatchLengths> packed_for_work(const BatchLengths& documents,
                                          std::int32_t micro_batches) {
  WlbPackingOptions options;
  options.micro_batches = micro_batches;
  std::vector<Document> items;
  std::int64_t tokens = 0;
  for (const std::int64_t length : documents) {
    items.push_back({static_cast<std::int64_t>(items.size()), length});
    tokens += length;
  }
  options.max_tokens = 2 * tokens / micro_batches;
  std::vector<BatchLengths> batches;
  for (const MicroBatch& packed : pack_wlb_without_defer(items, options)) {
    BatchLengths& lengths = batches.emplace_back();
    for (const Document& document : packed) lengths.push_back(document.length_tokens);
  }
  return batches;
}

std::vector<BatchLengths> packed_for_tokens(BatchLengths documents, std::int32_t micro_batches) {
  std::stable_sort(documents.begin(), documents.end(), std::greater<>());
  std::vector<BatchLengths> batches(static_cast<std::size_t>(micro_batches));
  std::vector<std::int64_t> tokens(batches.size());
  for (const std::int64_t length : documents) {
    const auto emptiest =
        static_cast<std::size_t>(std::min_element(tokens.begin(), tokens.end()) - tokens.begin());
    batches[emptiest].push_back(length);
    tokens[emptiest] += length;
  }
  return batches;
}

}  // namespace contextile
