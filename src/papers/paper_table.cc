#include "papers/paper_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <tuple>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "contextile/plan_stats.h"
#include "contextile/registry.h"

namespace contextile {
namespace {

// Where lists show a table: its paper, then the kind of what it shows again ("fig", "table"), then
// its number. "fcp-fig9" comes before "fcp-fig10".
using Place = std::tuple<std::size_t, std::string_view, int>;

Place place_of(std::string_view name) {
  constexpr std::array<std::string_view, 3> kPapers = {"dcp", "fcp", "distca"};
  const std::string_view paper = name.substr(0, name.find('-'));
  const auto rank = static_cast<std::size_t>(std::ranges::find(kPapers, paper) - kPapers.begin());
  if (paper.size() == name.size()) return {kPapers.size() + 1, name, 0};  // of no paper
  const std::string_view what = name.substr(paper.size() + 1);
  const std::string_view kind = what.substr(0, what.find_first_of("0123456789"));
  int number = 0;
  std::from_chars(what.data() + kind.size(), what.data() + what.size(), number);
  return {rank, kind, number};
}

std::vector<PaperTable> all_tables() {
  std::vector<PaperTable> tables;
  for (const auto& some : {transfer_paper_tables(), dcp_paper_tables(), time_paper_tables(),
                           step_part_paper_tables(), fcp_paper_tables(), fcp_speed_tables(),
                           fcp_block_tables(), iteration_paper_tables(), distca_paper_tables(),
                           distca_overlap_paper_tables(), example_paper_tables(), sweep_tables()}) {
    tables.insert(tables.end(), some.begin(), some.end());
  }
  std::ranges::stable_sort(tables, {},
                           [](const PaperTable& table) { return place_of(table.name); });
  return tables;
}

}  // namespace

std::span<const PaperTable> paper_tables() {
  static const std::vector<PaperTable> kTables = all_tables();
  return kTables;
}

const PaperTable& find_paper_table(std::string_view name) {
  std::vector<std::string> names;
  for (const PaperTable& table : paper_tables()) {
    if (table.name == name) return table;
    names.emplace_back(table.name);
  }
  fail_argument("bench: expected one of {}, found {}{}", fmt::join(names, ", "), quote(name),
                did_you_mean(name, names));
}

std::vector<Workload> BenchSetting::batches(const std::string& dataset,
                                            const std::string& mask) const {
  const MaskUse use = parse_mask_use(mask);
  std::vector<Workload> workloads;
  for (const std::vector<std::int64_t>& lengths : batches_from_dataset(dataset, batch)) {
    workloads.push_back(make_workload(lengths, shape, {&use, 1}));
  }
  return workloads;
}

std::vector<std::pair<std::string, std::string>> BenchSetting::description() const {
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

void apply_overrides(const BenchOverrides& overrides, BenchSetting& setting) {
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
  if (overrides.wire) setting.input.options.wire = overrides.wire;
  if (overrides.block_size) setting.input.options.block_size = overrides.block_size;
}

Movement movement_of(const StrategyChoice& choice, const PlanInput& input,
                     std::span<const Workload> batches) {
  Movement mean;
  const double share = 1.0 / static_cast<double>(batches.size());
  for (const Workload& workload : batches) {
    const PlannedBatch planned = plan_and_check(workload, input.cluster, choice, input.options);
    const PlanStats& statistics = planned.statistics;
    for (const auto& direction : {statistics.forward, statistics.backward}) {
      if (!direction) continue;
      mean.inter_bytes += share * static_cast<double>(direction->inter_bytes);
      mean.device_bytes +=
          share * static_cast<double>(direction->total_bytes()) / input.cluster.num_devices();
      mean.max_device_bytes += share * static_cast<double>(direction->max_device_bytes);
    }
    mean.compute_overload += share * statistics.forward->compute_overload;
    mean.token_overload += share * statistics.token_overload;
    mean.arrange_s += share * planned.arrange_s;
    mean.build_s += share * planned.build_s;
    mean.tiles += share * static_cast<double>(statistics.forward->tiles);
  }
  return mean;
}

}  // namespace contextile
