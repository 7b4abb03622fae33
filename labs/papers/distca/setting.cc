#include "labs/papers/distca/setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "contextile/data.h"

namespace contextile {
namespace {

constexpr std::int64_t kUnstretchedLength = 131072;  // the datasets' own longest, about

std::string tokens_text(const TableOverrides& overrides, std::int64_t small, std::int64_t large) {
  if (overrides.tokens) return fmt::format("{} tokens", *overrides.tokens);
  return fmt::format("{} (8B) and {} (34B) tokens", small, large);
}

}  // namespace

std::string distca_size(std::string_view model) {
  return std::string(model.substr(model.rfind('-') + 1));
}

std::int64_t distca_tokens_of_node(std::string_view model) {
  return model == kDistcaModels[0] ? 131072 : 65536;
}

std::string distca_tokens_text(const TableOverrides& overrides) {
  return tokens_text(overrides, distca_tokens_of_node(kDistcaModels[0]),
                     distca_tokens_of_node(kDistcaModels[1]));
}

std::int64_t distca_ablation_tokens(std::string_view model, const TableOverrides& overrides) {
  return overrides.tokens.value_or(model == kDistcaModels[0] ? 1048576 : 524288);
}

std::string distca_ablation_text(const TableOverrides& overrides) {
  return tokens_text(overrides, distca_ablation_tokens(kDistcaModels[0], overrides),
                     distca_ablation_tokens(kDistcaModels[1], overrides));
}

std::string distca_dataset(const TableOverrides& overrides) {
  return overrides.dataset.empty() ? "pretrain" : overrides.dataset;
}

std::string distca_cluster_text(const TableOverrides& overrides) {
  return fmt::format("nodes of {}, TP {}",
                     load_cluster(overrides.cluster.empty() ? "dgx-h200" : overrides.cluster).name,
                     kDistcaTp);
}

TrainingJob distca_job(const DistcaPoint& point, const TableOverrides& overrides) {
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
  job.plan.max_roundings = kAnyRoundings;  // as the originals
  job.plan.block_size = overrides.block_size;
  job.plan.seed = overrides.seed.value_or(0);
  return job;
}

TrainingJob unlimited_job(const DistcaPoint& point, const TableOverrides& overrides) {
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
