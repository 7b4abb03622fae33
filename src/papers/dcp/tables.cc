// DCP (Jiang et al., SOSP 2025): the ablations of its §7.4 (Figs. 17-20).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/registry.h"
#include "papers/paper_table.h"
#include "papers/steps.h"

namespace contextile {
namespace {

constexpr std::int64_t kBlockTokens = 1024;  // where a figure does not vary it
constexpr std::array<std::int64_t, 4> kBlockSizes = {512, 1024, 2048, 4096};

const std::string kPointsDiffer =
    "The figure's points are not in the paper's text; what stands beside ours is what it says of "
    "them.";
const std::string kBytesDiffer =
    "Bytes are those of the plan's transfers, forward and backward of one layer, LSE and delta "
    "included; partial results travel as bf16 in every row.";

BenchSetting paper_setting(const BenchOverrides& overrides) {
  BenchSetting setting = dcp_attention_setting();
  setting.datasets = {"longalign", "longdatacollections"};
  setting.batch.max_length = 131072;
  setting.batch.batches = 4;
  apply_overrides(overrides, setting);
  return setting;
}

// Where text tables need the width.
std::string short_name(const std::string& dataset) {
  return dataset == "longdatacollections" ? "LDC" : dataset;
}

PaperResult result_with(const BenchSetting& setting, Table table) {
  PaperResult result =
      paper_result(setting.description(), std::move(table), {kLengthsAreSampled, kPointsDiffer});
  for (const std::string& dataset : setting.datasets) {
    if (short_name(dataset) != dataset) result.setting.emplace_back(short_name(dataset), dataset);
  }
  return result;
}

StrategyChoice dcp_with(std::map<std::string, std::string> options = {}) {
  return {"dcp", std::move(options)};
}

// Of tables that vary the block size.
void refuse_block_size(const BenchOverrides& overrides, std::string_view table) {
  refuse_overrides(overrides, table,
                   {"--dataset", "--tokens", "--batches", "--seed", "--heads", "--kv-heads",
                    "--head-dim", "--cluster", "--wire"});
}

// "+12%", what `now` is above `before`.
std::string growth_text(double now, double before) {
  return before > 0 ? fmt::format("{:+.0f}%", 100 * (now / before - 1)) : "nothing moves";
}

// Which lengths and mask a row is about; text tables show the short name.
std::vector<Column> case_columns(std::vector<Column> more) {
  std::vector<Column> columns = {{"dataset", ""}, {"lengths", "lengths"}, {"mask", "mask"}};
  columns.insert(columns.end(), more.begin(), more.end());
  return columns;
}
std::vector<Cell> case_cells(const std::string& dataset, const char* mask) {
  return {dataset, short_name(dataset), std::string(mask)};
}

// ----------------------------------------------------------------------------------- Fig. 17

// Text tables leave the busiest device out, for width.
std::vector<Column> movement_columns(std::vector<Column> first) {
  for (const Column& column :
       std::vector<Column>{{"inter_bytes", "between\nnodes MB", Format::kMegabytes},
                           {"device_bytes", "MB per\ndevice", Format::kMegabytes},
                           {"max_device_bytes", "", Format::kMegabytes},
                           {"compute_overload", "FLOPs\nover", Format::kPercent},
                           {"token_overload", "tokens\nover", Format::kPercent}}) {
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

// One dataset under one mask: dcp by block size, and the baseline that moves least.
struct BlockSizeCase {
  std::string name;
  std::array<Movement, kBlockSizes.size()> dcp;
  Movement baseline;
};

std::string case_text(const std::string& dataset, std::string_view mask) {
  return fmt::format("{} {}", short_name(dataset), mask);
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
    if (const auto reason = unsupported_reason(batches.front(), setting.input.cluster, baseline,
                                               setting.input.options)) {
      table.add_row(std::move(cells), fmt::format("{} skipped: {}", text, *reason));
      continue;
    }
    const Movement movement = movement_of(baseline, setting.input, batches);
    add_movement(table, std::move(cells), movement);
    if (!least || movement.device_bytes < least->device_bytes) least = movement;
  }
  return *least;  // a ring applies to everything
}

BlockSizeCase add_block_sizes(const BenchSetting& setting, const std::string& dataset,
                              const PaperMask& mask, Progress& progress, Table& table) {
  const std::vector<Workload> batches = setting.batches(dataset, mask.spec);
  const std::vector<Cell> labels = case_cells(dataset, mask.name);
  BlockSizeCase one{.name = case_text(dataset, mask.name), .dcp = {}, .baseline = {}};
  one.baseline = add_baselines(setting, batches, labels, progress, table);
  PlanInput input = setting.input;
  const auto plan = [&](const StrategyChoice& choice, std::int64_t block) {
    progress.step(choice.name);
    input.options.block_size = block;
    const Movement movement = movement_of(choice, input, batches);
    std::vector<Cell> cells = labels;
    cells.insert(cells.end(), {choice_text(choice), block});
    add_movement(table, std::move(cells), movement);
    return movement;
  };
  for (std::size_t i = 0; i < kBlockSizes.size(); ++i)
    one.dcp[i] = plan(dcp_with(), kBlockSizes[i]);
  (void)plan(dcp_with({{"relays", "off"}}), kBlockTokens);
  return one;
}

// Which bytes a finding is about.
struct Volume {
  std::string_view name;
  double Movement::*bytes;
};
constexpr std::array<Volume, 2> kVolumes = {
    {{"inter-node", &Movement::inter_bytes}, {"per-device", &Movement::device_bytes}}};

// Of cases in which something moves at all.
void add_growth_finding(std::span<const BlockSizeCase> cases, const Volume& volume,
                        std::vector<Finding>& findings) {
  constexpr double kLeast = -0.02;
  constexpr double kMost = 0.5;
  std::vector<std::string> texts;
  std::size_t slightly = 0;
  for (const BlockSizeCase& one : cases) {
    const double before = one.dcp.front().*volume.bytes;
    if (!(before > 0)) continue;
    const double growth = one.dcp.back().*volume.bytes / before - 1;
    if (growth >= kLeast && growth <= kMost) ++slightly;
    texts.push_back(fmt::format("{} {:+.0f}%", one.name, 100 * growth));
  }
  if (texts.empty()) return;
  findings.push_back(
      {fmt::format("{} volume grows slightly with the block size", volume.name),
       fmt::format("{} of {} from 512 to 4096: {}", slightly, texts.size(), fmt::join(texts, ", ")),
       slightly == texts.size(),
       fmt::format("every dataset and mask grows by {:.0f}% to {:.0f}%", 100 * kLeast,
                   100 * kMost)});
}

void add_distance_finding(std::span<const BlockSizeCase> cases, const Volume& volume,
                          std::vector<Finding>& findings) {
  constexpr double kFarBelow = 0.5;
  Extent shares;
  for (const BlockSizeCase& one : cases) {
    const double baseline = one.baseline.*volume.bytes;
    if (!(baseline > 0)) continue;
    for (const Movement& dcp : one.dcp) shares.take(dcp.*volume.bytes / baseline);
  }
  if (!shares.any()) return;
  findings.push_back(
      {fmt::format("{} volume is far below the baseline's", volume.name),
       fmt::format("{:.3f} to {:.2f} of it", shares.least, shares.most), shares.most < kFarBelow,
       fmt::format("below {} of it for every dataset, mask and block size", kFarBelow)});
}

// What else a larger block changes.
std::string overload_text(std::span<const BlockSizeCase> cases) {
  double small = 0;
  double large = 0;
  for (const BlockSizeCase& one : cases) {
    small += one.dcp.front().token_overload / static_cast<double>(cases.size());
    large += one.dcp.back().token_overload / static_cast<double>(cases.size());
  }
  return fmt::format(
      "A device may own one block more than the longest-first bound, so that the fullest device "
      "has {} more tokens than the mean at blocks of {} and {} more at {} (tokens over): part of "
      "what moves less at large blocks is bought with unequal memory, not found by planning.",
      whole_percent(small), kBlockSizes.front(), whole_percent(large), kBlockSizes.back());
}

PaperResult fig17(const BenchOverrides& overrides) {
  refuse_block_size(overrides, "dcp-fig17");
  const BenchSetting setting = paper_setting(overrides);
  Table table(
      movement_columns(case_columns({{"strategy", "strategy"}, {"block_tokens", "block"}})));
  std::vector<BlockSizeCase> cases;
  Progress progress(overrides,
                    static_cast<std::int64_t>(setting.datasets.size() * kDcpMasks.size() *
                                              (kBlockSizes.size() + 4)));
  for (const std::string& dataset : setting.datasets) {
    for (const PaperMask& mask : kDcpMasks) {
      cases.push_back(add_block_sizes(setting, dataset, mask, progress, table));
    }
  }
  PaperResult result = result_with(setting, std::move(table));
  result.setting.emplace_back("masks", dcp_masks_text(kDcpMasks));
  result.plots = {{.x = "block_tokens",
                   .y = {"inter_bytes"},
                   .series = {"strategy"},
                   .panels = {"dataset", "mask"}},
                  {.x = "block_tokens",
                   .y = {"device_bytes"},
                   .series = {"strategy"},
                   .panels = {"dataset", "mask"}}};
  for (const Volume& volume : kVolumes) {
    add_growth_finding(cases, volume, result.findings);
    add_distance_finding(cases, volume, result.findings);
  }
  result.differences.push_back(kBytesDiffer);
  result.differences.insert(
      result.differences.end(),
      {"The baseline is the one of ring, zigzag and hybrid that moves least per device.",
       "dcp here relays: a unit crosses a node boundary once. The rows relays=off send every "
       "device its own copy, as the original does.",
       overload_text(cases)});
  return result;
}

// ----------------------------------------------------------------------------------- Fig. 18

PaperResult fig18(const BenchOverrides& overrides) {
  refuse_block_size(overrides, "dcp-fig18");
  const BenchSetting setting = paper_setting(overrides);
  Table table(case_columns({{"block_tokens", "block"},
                            {"tiles", "tiles"},
                            {"arrange_s", "place and\nschedule ms", Format::kMilliseconds},
                            {"build_s", "build\nms", Format::kMilliseconds},
                            {"planning_s", "planning\nms", Format::kMilliseconds}}));
  Progress progress(overrides, static_cast<std::int64_t>(setting.datasets.size() *
                                                         kDcpMasks.size() * kBlockSizes.size()));
  std::array<double, kBlockSizes.size()> by_size_s{};
  double causal_s = 0;
  double all_s = 0;
  double slowest_s = 0;
  PlanInput input = setting.input;
  for (const std::string& dataset : setting.datasets) {
    for (const auto& [name, mask] : kDcpMasks) {
      const std::vector<Workload> batches = setting.batches(dataset, mask);
      for (std::size_t i = 0; i < kBlockSizes.size(); ++i) {
        progress.step(name);
        input.options.block_size = kBlockSizes[i];
        const Movement movement = movement_of(dcp_with(), input, batches);
        const double seconds = movement.arrange_s + movement.build_s;
        std::vector<Cell> cells = case_cells(dataset, name);
        cells.insert(cells.end(), {kBlockSizes[i], movement.tiles, movement.arrange_s,
                                   movement.build_s, seconds});
        table.add_row(std::move(cells));
        by_size_s[i] += seconds;
        all_s += seconds;
        if (std::string_view(name) == "causal") causal_s += seconds;
        slowest_s = std::max(slowest_s, seconds);
      }
    }
  }
  const double fall = by_size_s.front() / by_size_s.back();
  const double sparse = (all_s - causal_s) / (kDcpMasks.size() - 1) / causal_s;
  PaperResult result = result_with(setting, std::move(table));
  result.setting.emplace_back("masks", dcp_masks_text(kDcpMasks));
  result.plots = {
      {.x = "block_tokens", .y = {"planning_s"}, .series = {"mask"}, .panels = {"dataset"}}};
  result.findings.push_back({"planning time falls quickly with the block size",
                             fmt::format("512 takes {:.1f} times as long as 4096", fall),
                             fall > 2 && std::ranges::is_sorted(by_size_s, std::greater<>()),
                             "all datasets and masks together: every size takes less than the one "
                             "before, 512 more than twice 4096's"});
  result.findings.push_back({"less under sparse masks",
                             fmt::format("sparse masks take {:.2f} of causal's time", sparse),
                             sparse < 1,
                             "the mean of the sparse masks over datasets and block sizes is below "
                             "causal's"});
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
  constexpr double kNearlyLinear = 0.9;
  BenchSetting setting = paper_setting(overrides);
  if (!overrides.block_size) setting.input.options.block_size = kBlockTokens;
  Table table(movement_columns({{"dataset", ""},
                                {"mask", "mask"},
                                {"lengths", "lengths"},
                                {"sparsity", "FLOPs of\ncausal"}}));
  Progress progress(overrides,
                    static_cast<std::int64_t>(setting.datasets.size() * std::size(kSparsityMasks)));
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
      add_movement(table, {dataset, std::string(mask), short_name(dataset), sparsity}, movement);
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
       least >= kNearlyLinear,
       fmt::format("{} or more of the variance for every dataset", kNearlyLinear)});
  result.differences.push_back(kBytesDiffer);
  result.differences.emplace_back("Which masks the paper varied, and how, is not in its text.");
  return result;
}

// ----------------------------------------------------------------------------------- Fig. 20

constexpr std::array<const char*, 6> kEps = {"0.02", "0.05", "0.1", "0.2", "0.4", "0.8"};

// One dataset under one mask, by eps.
struct EpsCase {
  std::string name;
  std::array<Movement, kEps.size()> dcp;
};

void add_fall_finding(std::span<const EpsCase> cases, const Volume& volume,
                      std::vector<Finding>& findings) {
  constexpr double kSlack = 0.02;
  std::vector<std::string> texts;
  std::size_t falling = 0;
  for (const EpsCase& one : cases) {
    const double first = one.dcp.front().*volume.bytes;
    const double last = one.dcp.back().*volume.bytes;
    if (!(first > 0)) continue;
    bool falls = last < first;
    for (std::size_t i = 1; i < one.dcp.size(); ++i) {
      falls = falls && one.dcp[i].*volume.bytes <= one.dcp[i - 1].*volume.bytes + kSlack * first;
    }
    if (falls) ++falling;
    texts.push_back(fmt::format("{} {}{}", one.name, growth_text(last, first),
                                falls || last >= first ? "" : " (not at every step)"));
  }
  if (texts.empty()) return;
  findings.push_back(
      {fmt::format("{} volume falls as eps grows", volume.name),
       fmt::format("{} of {}, from eps {} to {}: {}", falling, texts.size(), kEps.front(),
                   kEps.back(), fmt::join(texts, ", ")),
       falling == texts.size(),
       fmt::format("under every mask less at the end, and no step up of more than {:.0f}% of the "
                   "first value",
                   100 * kSlack)});
}

PaperResult fig20(const BenchOverrides& overrides) {
  BenchSetting setting = paper_setting(overrides);
  if (!overrides.block_size) setting.input.options.block_size = kBlockTokens;
  if (overrides.dataset.empty()) setting.datasets = {"longdatacollections"};
  Table table(movement_columns(case_columns({{"eps_node", "eps"}})));
  Progress progress(overrides, static_cast<std::int64_t>(setting.datasets.size() *
                                                         kDcpMasks.size() * kEps.size()));
  std::vector<EpsCase> cases;
  for (const std::string& dataset : setting.datasets) {
    for (const auto& [name, mask] : kDcpMasks) {
      const std::vector<Workload> batches = setting.batches(dataset, mask);
      EpsCase& one = cases.emplace_back(EpsCase{.name = case_text(dataset, name), .dcp = {}});
      for (std::size_t i = 0; i < kEps.size(); ++i) {
        progress.step(name);
        one.dcp[i] = movement_of(dcp_with({{"eps_node", kEps[i]}}), setting.input, batches);
        std::vector<Cell> cells = case_cells(dataset, name);
        cells.emplace_back(std::string(kEps[i]));
        add_movement(table, std::move(cells), one.dcp[i]);
      }
    }
  }
  PaperResult result = result_with(setting, std::move(table));
  result.setting.emplace_back("masks", dcp_masks_text(kDcpMasks));
  result.plots = {
      {.x = "eps_node", .y = {"inter_bytes"}, .series = {"mask"}, .panels = {"dataset"}},
      {.x = "eps_node", .y = {"device_bytes"}, .series = {"mask"}, .panels = {"dataset"}}};
  for (const Volume& volume : kVolumes) add_fall_finding(cases, volume, result.findings);
  result.differences.push_back(kBytesDiffer);
  result.differences.emplace_back(
      "eps is what nodes may exceed the mean work by; devices inside a node may exceed theirs by "
      "0.1 throughout.");
  return result;
}

constexpr std::array<PaperTable, 4> kTables = {{
    {"dcp-fig17", "DCP (SOSP 2025), Fig. 17",
     "inter-node and per-device bytes against the block size, beside rings", fig17},
    {"dcp-fig18", "DCP (SOSP 2025), Fig. 18", "planning time against block size and mask", fig18},
    {"dcp-fig19", "DCP (SOSP 2025), Fig. 19", "bytes against the sparsity of the mask", fig19},
    {"dcp-fig20", "DCP (SOSP 2025), Fig. 20", "bytes against the imbalance allowed, eps", fig20},
}};

}  // namespace

std::span<const PaperTable> dcp_paper_tables() { return kTables; }

}  // namespace contextile
