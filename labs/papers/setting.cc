#include "labs/papers/setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/names_file.h"

namespace contextile {

const std::string kLengthsAreSampled =
    "Lengths: samples of our models of the datasets' lengths (contextile info), not the documents "
    "themselves.";

std::vector<Workload> PaperSetting::batches(const std::string& dataset,
                                            const std::string& mask) const {
  const MaskUse use = parse_mask_use(mask);
  std::vector<Workload> workloads;
  for (const std::vector<std::int64_t>& lengths : batches_from_dataset(dataset, batch)) {
    workloads.push_back(make_workload(lengths, shape, {&use, 1}));
  }
  return workloads;
}

std::vector<std::pair<std::string, std::string>> PaperSetting::description() const {
  const Cluster& cluster = input.cluster;
  return {{"lengths", fmt::format("{}; {} of {} tokens, seed {}", fmt::join(datasets, ", "),
                                  count(batch.batches, "batch"), batch.tokens, batch.seed)},
          {"shape",
           fmt::format("{}/{} heads of {}, {}, partial results as {}", shape.q_heads,
                       shape.kv_heads, shape.head_dim, to_string(shape.dtype),
                       input.options.wire ? to_string(*input.options.wire) : "the method's own")},
          {"cluster", fmt::format("{}: {} x {} devices", cluster.name, cluster.nodes,
                                  cluster.devices_per_node)}};
}

void apply_overrides(const TableOverrides& overrides, PaperSetting& setting) {
  if (!overrides.dataset.empty()) setting.datasets = {overrides.dataset};
  if (!overrides.cluster.empty()) setting.cluster_name = overrides.cluster;
  setting.batch.tokens = overrides.tokens.value_or(setting.batch.tokens);
  setting.batch.batches = overrides.batches.value_or(setting.batch.batches);
  setting.batch.seed = overrides.seed.value_or(setting.batch.seed);
  setting.shape.q_heads = overrides.q_heads.value_or(setting.shape.q_heads);
  setting.shape.kv_heads = overrides.kv_heads.value_or(setting.shape.kv_heads);
  setting.shape.head_dim = overrides.head_dim.value_or(setting.shape.head_dim);
  setting.shape.value_dim = setting.shape.head_dim;
  check_shape(setting.shape);
  setting.input.cluster = load_cluster(setting.cluster_name);
  setting.input.options.seed = setting.batch.seed;
  setting.input.options.max_roundings = kAnyRoundings;  // as the originals
  if (overrides.wire) setting.input.options.wire = overrides.wire;
  if (overrides.block_size) setting.input.options.block_size = overrides.block_size;
}

void use_engine_of_method(const std::string& engine, Cluster& cluster) {
  if (cluster.engine == EngineCosts{}) cluster.engine = find_engine(engine);
}

void refuse_overrides(const TableOverrides& overrides, std::string_view table,
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

void refuse_nodes(const TableOverrides& overrides, std::string_view table) {
  const std::string_view text = overrides.cluster;
  if (names_file(text) || text.find(':') == std::string_view::npos) return;
  fail_argument(
      "{}: --cluster: expected a machine without a number of nodes, which the table sets, found "
      "'{}'",
      table, text);
}

}  // namespace contextile
