// DCP (Jiang et al., SOSP 2025): redundant transfers of a ring (Fig. 7) and the ablations of its
// §7.4 (Figs. 17-20).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cli/paper_table.h"

namespace contextile {
namespace {

constexpr std::int64_t kBlockTokens = 1024;  // where a figure does not vary it
constexpr std::array<std::int64_t, 4> kBlockSizes = {512, 1024, 2048, 4096};
// The paper's four, with its parameters.
constexpr std::array<std::pair<const char*, const char*>, 4> kMasks = {
    {{"causal", "causal"},
     {"lambda", "lambda:64,4096"},
     {"causal_blockwise", "causal_blockwise:256,2,1"},
     {"shared_question", "shared_question:0.2,4"}}};

const std::string kLengthsDiffer =
    "Lengths: samples of our models of LongAlign's and LongDataCollections' lengths "
    "(contextile info), not the documents themselves.";
const std::string kPointsDiffer =
    "The figure's points are not in the paper's text; what stands beside ours is what it says of "
    "them.";
const std::string kBytesDiffer =
    "Bytes are those of the plan's transfers, forward and backward of one layer, LSE and delta "
    "included; partial results travel as bf16 in every row.";

// §7.1's machine and heads.
BenchSetting paper_setting(const BenchOverrides& overrides) {
  BenchSetting setting;
  setting.datasets = {"longalign", "longdatacollections"};
  setting.batch.tokens = 131072;
  setting.batch.max_length = 131072;
  setting.batch.batches = 4;
  setting.shape.q_heads = 8;
  setting.shape.kv_heads = 2;
  setting.cluster_name = "p4de:4x8";
  setting.input.request.wire = Dtype::kBf16;
  apply_overrides(overrides, setting);
  return setting;
}

PaperResult result_with(const BenchSetting& setting, Table table) {
  return {.setting = setting.description(),
          .table = std::move(table),
          .findings = {},
          .differences = {kLengthsDiffer, kPointsDiffer}};
}

StrategyChoice dcp_with(std::map<std::string, std::string> options = {}) {
  return {"dcp", std::move(options)};
}

void refuse_block_size(const BenchOverrides& overrides, std::string_view table) {
  if (!overrides.block_size) return;
  fail_argument("--block-size: expected none, {} varies it, found {}", table,
                *overrides.block_size);
}

// "+12%", what `now` is above `before`.
std::string growth_text(double now, double before) {
  return before > 0 ? fmt::format("{:+.0f}%", 100 * (now / before - 1)) : "nothing moves";
}

constexpr std::size_t kWidestDataset = 20;

// ------------------------------------------------------------------------------------ Fig. 7

PaperResult fig7(const BenchOverrides& overrides) {
  if (!overrides.dataset.empty() || overrides.batches || overrides.block_size ||
      !overrides.cluster.empty()) {
    fail_argument(
        "dcp-fig7: expected no --dataset, --batches, --block-size or --cluster: it is one batch of "
        "16 blocks on 4 devices");
  }
  constexpr std::int64_t kBlocks = 16;
  BenchSetting setting;
  setting.cluster_name = "p4de:1x4";
  setting.batch.tokens = kBlocks * 256;
  apply_overrides(overrides, setting);
  if (setting.batch.tokens % kBlocks != 0) {
    fail_argument("--tokens: expected a multiple of {} blocks, found {}", kBlocks,
                  setting.batch.tokens);
  }
  const std::int64_t block = setting.batch.tokens / kBlocks;
  MaskUse mask;
  mask.spec.rule = MaskSpec::Rule::kSharedQuestion;
  mask.spec.lengths = {3 * block, 5 * block, 4 * block, 4 * block};
  const Workload workload =
      make_workload(std::vector<std::int64_t>{setting.batch.tokens}, setting.shape, {&mask, 1});
  setting.input.request.block_size = block;
  Table table({{"strategy", "strategy"},
               {"transfers", "forward\ntransfers"},
               {"redundant_transfers", "redundant"},
               {"transfer_bytes", "MB\nmoved", Format::kMegabytes},
               {"redundant_bytes", "MB\nredundant", Format::kMegabytes}});
  DataMovement ring;
  for (const StrategyChoice& choice :
       {StrategyChoice{"ring", {}}, StrategyChoice{"zigzag", {}}, StrategyChoice{"magi", {}},
        dcp_with({{"head_groups", "1"}})}) {
    const PlannedBatch planned = plan_and_check(choice, setting.input, workload);
    const DataMovement& movement = planned.verified.movement[0];
    if (choice.name == "ring") ring = movement;
    table.add_row({choice_text(choice), movement.transfers, movement.redundant_transfers,
                   planned.statistics.forward->total_bytes(), movement.redundant_bytes});
  }
  PaperResult result = result_with(setting, std::move(table));
  result.setting[0] = {"batch", fmt::format("one sequence of {} blocks of {} tokens: a question of "
                                            "3 blocks, answers of 5, 4 and 4",
                                            kBlocks, block)};
  result.findings.push_back({"38 of the ring's 48 KV block transfers are redundant",
                             fmt::format("{} of {}", ring.redundant_transfers, ring.transfers),
                             ring.transfers == 48 && ring.redundant_transfers == 38});
  result.plots = {{.x = "strategy", .y = {"transfers", "redundant_transfers"}}};
  result.differences = {
      "The lengths of question and answers are our reading of the drawing; its count of "
      "transfers is the paper's.",
      "A transfer moves one block's unit of any kind: keys for the rings and magi, also queries "
      "and outputs for dcp."};
  return result;
}

// ----------------------------------------------------------------------------------- Fig. 17

std::vector<Column> movement_columns(std::vector<Column> first) {
  for (const Column& column :
       std::vector<Column>{{"inter_bytes", "inter\nMB", Format::kMegabytes},
                           {"device_bytes", "MB per\ndevice", Format::kMegabytes},
                           {"max_device_bytes", "busiest\ndevice", Format::kMegabytes},
                           {"compute_overload", "FLOPs\noverload", Format::kPercent},
                           {"token_overload", "tokens\noverload", Format::kPercent}}) {
    first.push_back(column);
  }
  return first;
}

void add_movement(Table& table, std::vector<Cell> cells, const Movement& movement) {
  for (const double value : {movement.inter_bytes, movement.device_bytes, movement.max_device_bytes,
                             movement.compute_overload, movement.token_overload}) {
    cells.emplace_back(value);
  }
  table.add_row(std::move(cells));
}

// Bytes of all datasets and masks together, by block size, and of the baseline that moves least.
struct BlockSizeTotals {
  std::array<Movement, kBlockSizes.size()> dcp;
  Movement baseline;
};

void add_to(Movement& total, const Movement& movement) {
  total.inter_bytes += movement.inter_bytes;
  total.device_bytes += movement.device_bytes;
}

// Of the rings, the one that moves the fewest bytes per device.
Movement add_baselines(const BenchSetting& setting, std::span<const Workload> batches,
                       const std::vector<Cell>& labels, Progress& progress, Table& table) {
  std::optional<Movement> least;
  for (const char* text : {"ring", "zigzag", "hybrid:A=2"}) {
    const StrategyChoice baseline = parse_strategies(text).front();
    progress.step(text);
    std::vector<Cell> cells = labels;
    cells.insert(cells.end(), {std::string(text), Cell{}});
    if (const auto reason = unsupported_reason(baseline, setting.input, batches.front())) {
      table.add_row(std::move(cells), fmt::format("{} skipped: {}", text, *reason));
      continue;
    }
    const Movement movement = movement_of(baseline, setting.input, batches);
    add_movement(table, std::move(cells), movement);
    if (!least || movement.device_bytes < least->device_bytes) least = movement;
  }
  return *least;  // a ring applies to everything
}

void add_block_sizes(const BenchSetting& setting, const std::string& dataset,
                     const std::pair<const char*, const char*>& mask, Progress& progress,
                     Table& table, BlockSizeTotals& totals) {
  const std::vector<Workload> batches = setting.batches(dataset, mask.second);
  const std::vector<Cell> labels = {dataset, std::string(mask.first)};
  add_to(totals.baseline, add_baselines(setting, batches, labels, progress, table));
  Input input = setting.input;
  const auto plan = [&](const StrategyChoice& choice, std::int64_t block) {
    progress.step(choice.name);
    input.request.block_size = block;
    const Movement movement = movement_of(choice, input, batches);
    std::vector<Cell> cells = labels;
    cells.insert(cells.end(), {choice_text(choice), block});
    add_movement(table, std::move(cells), movement);
    return movement;
  };
  for (std::size_t i = 0; i < kBlockSizes.size(); ++i) {
    add_to(totals.dcp[i], plan(dcp_with(), kBlockSizes[i]));
  }
  (void)plan(dcp_with({{"relays", "off"}}), kBlockTokens);
}

std::vector<Finding> block_size_findings(const BlockSizeTotals& totals) {
  // "Slightly": by less than a half for blocks eight times as large. "Far below": less than half.
  const auto slightly = [](double now, double before) {
    return now > 0.98 * before && now < 1.5 * before;
  };
  const Movement& small = totals.dcp.front();
  const Movement& large = totals.dcp.back();
  const Movement& baseline = totals.baseline;
  std::vector<Finding> findings;
  double inter = 0;
  double device = 0;
  for (const Movement& dcp : totals.dcp) {
    inter = std::max(inter, dcp.inter_bytes);
    device = std::max(device, dcp.device_bytes);
  }
  if (baseline.inter_bytes > 0) {
    findings.push_back({"inter-node volume grows slightly with the block size",
                        growth_text(large.inter_bytes, small.inter_bytes) +
                            " from 512 to 4096, all datasets and masks together",
                        slightly(large.inter_bytes, small.inter_bytes)});
    findings.push_back({"inter-node volume is far below the baseline's",
                        fmt::format("at most {:.2f} of it", inter / baseline.inter_bytes),
                        inter < 0.5 * baseline.inter_bytes});
  }
  findings.push_back({"per-device volume grows slightly with the block size",
                      growth_text(large.device_bytes, small.device_bytes) + " from 512 to 4096",
                      slightly(large.device_bytes, small.device_bytes)});
  findings.push_back({"per-device volume is far below the baseline's",
                      fmt::format("at most {:.2f} of it", device / baseline.device_bytes),
                      device < 0.5 * baseline.device_bytes});
  return findings;
}

PaperResult fig17(const BenchOverrides& overrides) {
  refuse_block_size(overrides, "dcp-fig17");
  const BenchSetting setting = paper_setting(overrides);
  Table table(movement_columns({{"dataset", "dataset"},
                                {"mask", "mask"},
                                {"strategy", "strategy"},
                                {"block_tokens", "block"}}),
              kWidestDataset);
  BlockSizeTotals totals;
  Progress progress(static_cast<std::int64_t>(setting.datasets.size() * kMasks.size() *
                                              (kBlockSizes.size() + 4)));
  for (const std::string& dataset : setting.datasets) {
    for (const auto& mask : kMasks) {
      add_block_sizes(setting, dataset, mask, progress, table, totals);
    }
  }
  PaperResult result = result_with(setting, std::move(table));
  result.plots = {{.x = "block_tokens",
                   .y = {"inter_bytes"},
                   .series = {"strategy"},
                   .panels = {"dataset", "mask"}},
                  {.x = "block_tokens",
                   .y = {"device_bytes"},
                   .series = {"strategy"},
                   .panels = {"dataset", "mask"}}};
  result.findings = block_size_findings(totals);
  result.differences.push_back(kBytesDiffer);
  result.differences.insert(
      result.differences.end(),
      {"The baseline is the one of ring, zigzag and hybrid that moves least per device.",
       "dcp here relays: a unit crosses a node boundary once. The rows relays=off send every "
       "device its own copy, as the original does.",
       "A device may own one block more than the longest-first bound: large blocks buy bytes with "
       "unequal tokens (tokens overload)."});
  return result;
}

// ----------------------------------------------------------------------------------- Fig. 18

PaperResult fig18(const BenchOverrides& overrides) {
  refuse_block_size(overrides, "dcp-fig18");
  const BenchSetting setting = paper_setting(overrides);
  Table table({{"dataset", "dataset"},
               {"mask", "mask"},
               {"block_tokens", "block"},
               {"tiles", "tiles"},
               {"arrange_s", "place and\nschedule ms", Format::kMilliseconds},
               {"build_s", "build\nms", Format::kMilliseconds},
               {"planning_s", "plan\nms", Format::kMilliseconds}},
              kWidestDataset);
  Progress progress(
      static_cast<std::int64_t>(setting.datasets.size() * kMasks.size() * kBlockSizes.size()));
  std::array<double, kBlockSizes.size()> by_size_s{};
  double causal_s = 0;
  double all_s = 0;
  double slowest_s = 0;
  Input input = setting.input;
  for (const std::string& dataset : setting.datasets) {
    for (const auto& [name, mask] : kMasks) {
      const std::vector<Workload> batches = setting.batches(dataset, mask);
      for (std::size_t i = 0; i < kBlockSizes.size(); ++i) {
        progress.step(name);
        input.request.block_size = kBlockSizes[i];
        const Movement movement = movement_of(dcp_with(), input, batches);
        const double seconds = movement.arrange_s + movement.build_s;
        table.add_row({dataset, std::string(name), kBlockSizes[i], movement.tiles,
                       movement.arrange_s, movement.build_s, seconds});
        by_size_s[i] += seconds;
        all_s += seconds;
        if (std::string_view(name) == "causal") causal_s += seconds;
        slowest_s = std::max(slowest_s, seconds);
      }
    }
  }
  const double fall = by_size_s.front() / by_size_s.back();
  const double sparse = (all_s - causal_s) / (kMasks.size() - 1) / causal_s;
  PaperResult result = result_with(setting, std::move(table));
  result.plots = {
      {.x = "block_tokens", .y = {"planning_s"}, .series = {"mask"}, .panels = {"dataset"}}};
  result.findings.push_back({"planning time falls quickly with the block size",
                             fmt::format("512 takes {:.1f} times as long as 4096", fall),
                             fall > 2});
  result.findings.push_back({"less under sparse masks",
                             fmt::format("sparse masks take {:.2f} of causal's time", sparse),
                             sparse < 1});
  result.findings.push_back({"under 10 s a batch at reasonable block sizes",
                             fmt::format("at most {} ms", format_number(1e3 * slowest_s)),
                             slowest_s < 10});
  result.differences.emplace_back(
      "Planning is placing, scheduling and building the plan of one batch on this machine; the "
      "partitioner is our own, the paper's is KaHyPar.");
  return result;
}

// ----------------------------------------------------------------------------------- Fig. 19

// Masks from nearly nothing to nearly causal.
constexpr const char* kSparsityMasks[] = {"lambda:64,1024",
                                          "lambda:64,4096",
                                          "lambda:64,16384",
                                          "lambda:64,65536",
                                          "causal_blockwise:256,2,1",
                                          "causal_blockwise:256,8,1",
                                          "causal_blockwise:256,32,1",
                                          "causal_blockwise:256,128,1",
                                          "shared_question:0.05,16",
                                          "shared_question:0.2,4",
                                          "shared_question:0.5,4",
                                          "shared_question:0.8,2",
                                          "causal"};

std::int64_t pairs_of(std::span<const Workload> batches) {
  std::int64_t pairs = 0;
  for (const Workload& workload : batches) pairs += workload.masks.front().mask.num_pairs();
  return pairs;
}

// Share of the variance of y that a straight line in x explains.
double linearity(const std::vector<std::pair<double, double>>& points) {
  const auto n = static_cast<double>(points.size());
  double x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  for (const auto& [a, b] : points) {
    x += a / n;
    y += b / n;
    xx += a * a / n;
    yy += b * b / n;
    xy += a * b / n;
  }
  const double spread = (xx - x * x) * (yy - y * y);
  return spread > 0 ? (xy - x * y) * (xy - x * y) / spread : 0;
}

PaperResult fig19(const BenchOverrides& overrides) {
  BenchSetting setting = paper_setting(overrides);
  if (!overrides.block_size) setting.input.request.block_size = kBlockTokens;
  Table table(movement_columns(
                  {{"dataset", "dataset"}, {"mask", "mask"}, {"sparsity", "FLOPs of\ncausal"}}),
              kWidestDataset);
  Progress progress(static_cast<std::int64_t>(setting.datasets.size() * std::size(kSparsityMasks)));
  std::vector<std::string> fits;
  double least = 1;
  for (const std::string& dataset : setting.datasets) {
    const auto causal = static_cast<double>(pairs_of(setting.batches(dataset, "causal")));
    std::vector<std::pair<double, double>> points;
    for (const char* mask : kSparsityMasks) {
      progress.step(mask);
      const std::vector<Workload> batches = setting.batches(dataset, mask);
      const double sparsity = static_cast<double>(pairs_of(batches)) / causal;
      const Movement movement = movement_of(dcp_with(), setting.input, batches);
      points.emplace_back(sparsity, movement.device_bytes);
      add_movement(table, {dataset, std::string(mask), sparsity}, movement);
    }
    least = std::min(least, linearity(points));
    fits.push_back(fmt::format("{:.2f} ({})", linearity(points), dataset));
  }
  PaperResult result = result_with(setting, std::move(table));
  result.plots = {{.x = "sparsity", .y = {"inter_bytes"}, .series = {"dataset"}},
                  {.x = "sparsity", .y = {"device_bytes"}, .series = {"dataset"}}};
  result.findings.push_back(
      {"volume grows nearly linearly with FLOPs over causal FLOPs",
       fmt::format("a straight line explains this share of the variance of bytes per device: {}",
                   fmt::join(fits, ", ")),
       least >= 0.9});
  result.differences.push_back(kBytesDiffer);
  result.differences.emplace_back("Which masks the paper varied, and how, is not in its text.");
  return result;
}

// ----------------------------------------------------------------------------------- Fig. 20

PaperResult fig20(const BenchOverrides& overrides) {
  BenchSetting setting = paper_setting(overrides);
  if (!overrides.block_size) setting.input.request.block_size = kBlockTokens;
  if (overrides.dataset.empty()) setting.datasets = {"longdatacollections"};
  constexpr const char* kEps[] = {"0.02", "0.05", "0.1", "0.2", "0.4", "0.8"};
  Table table(movement_columns({{"dataset", "dataset"}, {"mask", "mask"}, {"eps_node", "eps"}}),
              kWidestDataset);
  Progress progress(
      static_cast<std::int64_t>(setting.datasets.size() * kMasks.size() * std::size(kEps)));
  Movement tight;
  Movement loose;
  for (const std::string& dataset : setting.datasets) {
    for (const auto& [name, mask] : kMasks) {
      const std::vector<Workload> batches = setting.batches(dataset, mask);
      for (std::size_t i = 0; i < std::size(kEps); ++i) {
        progress.step(name);
        const Movement movement =
            movement_of(dcp_with({{"eps_node", kEps[i]}}), setting.input, batches);
        add_movement(table, {dataset, std::string(name), std::string(kEps[i])}, movement);
        if (i == 0) add_to(tight, movement);
        if (i + 1 == std::size(kEps)) add_to(loose, movement);
      }
    }
  }
  PaperResult result = result_with(setting, std::move(table));
  result.plots = {
      {.x = "eps_node", .y = {"inter_bytes"}, .series = {"mask"}, .panels = {"dataset"}},
      {.x = "eps_node", .y = {"device_bytes"}, .series = {"mask"}, .panels = {"dataset"}}};
  result.findings.push_back(
      {"volume falls as eps grows",
       fmt::format("inter-node {}, per device {} from eps {} to {}, all masks together",
                   growth_text(loose.inter_bytes, tight.inter_bytes),
                   growth_text(loose.device_bytes, tight.device_bytes), kEps[0],
                   kEps[std::size(kEps) - 1]),
       loose.inter_bytes <= tight.inter_bytes && loose.device_bytes < tight.device_bytes});
  result.differences.push_back(kBytesDiffer);
  result.differences.emplace_back(
      "eps is what nodes may exceed the mean work by; devices inside a node may exceed theirs by "
      "0.1 throughout.");
  return result;
}

constexpr std::array<PaperTable, 5> kTables = {{
    {"dcp-fig7", "DCP (SOSP 2025), Fig. 7",
     "block transfers of a ring that nobody needs, under a shared-question mask", fig7},
    {"dcp-fig17", "DCP (SOSP 2025), Fig. 17",
     "inter-node and per-device bytes against the block size, beside rings", fig17},
    {"dcp-fig18", "DCP (SOSP 2025), Fig. 18", "planning time against block size and mask", fig18},
    {"dcp-fig19", "DCP (SOSP 2025), Fig. 19", "bytes against the sparsity of the mask", fig19},
    {"dcp-fig20", "DCP (SOSP 2025), Fig. 20", "bytes against the imbalance allowed, eps", fig20},
}};

}  // namespace

std::span<const PaperTable> dcp_paper_tables() { return kTables; }

}  // namespace contextile
