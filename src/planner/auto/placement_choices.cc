#include "planner/auto/placement_choices.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "contextile/plan.h"
#include "contextile/planner.h"
#include "planner/auto/search_budget.h"

namespace contextile {
namespace {

// No measurement of this file's limits, efforts and sizes is recorded. They balance finer blocks,
// which place better, against the time that their tiles take to place and simulate. Judge a change
// with `build/auto_bench --devices 32 --seed 11` and `build/budget_bench`
// (docs/results/auto.md).
constexpr double kMostPlacedTiles = 150'000;  // of all head groups; of one as many as there are
constexpr double kMostRowTiles = 150'000;     // likewise
constexpr double kTilesOfDevice = 750;        // of all head groups, placed quickly
// RowPartitioner numbers no more rows. Many more blocks of tiles take long, even with little effort
// for each.
constexpr std::int64_t kMostPlacedRows = 65'535;

std::vector<std::int64_t> grid_block_sizes(const Workload& workload, const Cluster& cluster,
                                           const StrategyRequest& request) {
  if (request.block_size) return {*request.block_size};
  // Larger blocks only if every device still has a few of them.
  constexpr std::int64_t kBlocksOfDevice = 2;
  constexpr std::int64_t kMostBlocks = 4096;
  std::vector<std::int64_t> sizes;
  for (const std::int64_t size : {1024, 2048, 512, 4096, 8192, 256, 128}) {
    const std::int64_t blocks = workload.num_tokens() / size;
    if (blocks >= kBlocksOfDevice * cluster.num_devices() && blocks <= kMostBlocks) {
      sizes.push_back(size);
    }
  }
  if (sizes.empty()) {
    sizes.push_back(std::max<std::int64_t>(1, workload.num_tokens() / (4 * cluster.num_devices())));
  }
  constexpr std::size_t kMostSizes = 3;
  if (sizes.size() > kMostSizes) sizes.resize(kMostSizes);
  return sizes;
}

// The likeliest first: with a group per KV head, heads that meet on a device share most keys and
// devices fill most evenly.
std::vector<std::int32_t> grid_head_groups(const Workload& workload) {
  constexpr std::int32_t kMost = 64;
  constexpr std::int32_t kFew = 8;
  const std::int32_t kv_heads = workload.shape.kv_heads;
  std::vector<std::int32_t> groups;
  if (kv_heads <= kMost) groups.push_back(kv_heads);
  if (kv_heads > kFew && kv_heads % kFew == 0) groups.push_back(kFew);
  if (kv_heads > 1) groups.push_back(1);
  if (kv_heads > 2 && kv_heads % 2 == 0) groups.push_back(2);
  return groups;
}

constexpr std::int64_t kSmallestRow = 128;

// Powers of two, of about four, eight and two blocks per device; the largest last.
std::vector<std::int64_t> row_block_sizes(const Workload& workload, const Cluster& cluster,
                                          const StrategyRequest& request) {
  if (request.block_size) return {*request.block_size};
  constexpr std::uint64_t kMost = 4096;
  const std::int64_t of_device = workload.num_tokens() / cluster.num_devices();
  const auto near = static_cast<std::int64_t>(std::clamp(
      std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, of_device / 4))),
      static_cast<std::uint64_t>(kSmallestRow), kMost));
  std::vector<std::int64_t> sizes = {near};
  if (near / 2 >= kSmallestRow) sizes.push_back(near / 2);
  if (2 * near <= of_device) sizes.push_back(2 * near);
  return sizes;
}

// Adds both kinds of rows at a block size, unless they have more tiles of all head groups.
void add_rows(const Workload& workload, const Cluster& cluster, PlacementChoice choice,
              double most_tiles, std::vector<PlacementChoice>& choices) {
  constexpr std::int64_t kMostRows = 16'384;
  if (workload.num_tokens() / choice.block_size > kMostRows) return;
  if (num_blocks(workload, choice.block_size) > kMostPlacedRows) return;
  const std::int32_t width = cluster.devices_per_node;
  const auto tiles = static_cast<double>(likely_tiles(workload, choice.block_size));
  choice.unit = PlacedUnit::kRows;
  if (tiles <= most_tiles) choices.push_back(choice);
  if (width == 1 || workload.shape.kv_heads % width != 0 || tiles * width > most_tiles) return;
  choice.unit = PlacedUnit::kSpreadRows;
  choice.head_groups = width;
  choices.push_back(choice);
}

// Placements of rows with uneven work (RowSpec). A start that fills devices to the mean is a poor
// one here, so the first steps are hot. Fills and heats were fitted on 2026-11-26 to the 64 batches
// of docs/results/optimum.md. The likely one alone, among seven sets, made the fastest plans within
// 300,000 and 600,000 steps (seed 23, p4de, 32 KV heads).
struct UnevenTrial {
  double fill;
  double heat;
};
constexpr UnevenTrial kLikelyUneven = {1.6, 20};

std::vector<PlacementChoice> uneven_rows(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request,
                                         const std::vector<UnevenTrial>& trials, double effort,
                                         std::uint64_t seed) {
  std::vector<PlacementChoice> choices;
  for (const UnevenTrial& trial : trials) {
    for (const std::int64_t size : row_block_sizes(workload, cluster, request)) {
      add_rows(workload, cluster,
               {.block_size = size,
                .fill = trial.fill,
                .heat = trial.heat,
                .effort = effort,
                .seed = request.seed + seed},
               kMostRowTiles, choices);
    }
  }
  return choices;
}

}  // namespace

std::int64_t num_blocks(const Workload& workload, std::int64_t block_size) {
  std::int64_t blocks = 0;
  auto home = workload.home.begin();
  for (const Range& sequence : workload.sequences) {
    blocks += (sequence.size() + block_size - 1) / block_size;
    for (; home != workload.home.end() && home->tokens.begin < sequence.end; ++home) {
      const std::int64_t before = home->tokens.begin - sequence.begin;
      if (before > 0 && before % block_size != 0) ++blocks;
    }
  }
  return blocks;
}

std::int64_t likely_tiles(const Workload& workload, std::int64_t block_size) {
  if (!workload.home.empty()) {
    // Homes may cut smaller blocks.
    const std::int64_t blocks = num_blocks(workload, block_size);
    block_size = std::min(block_size, (workload.num_tokens() + blocks - 1) / blocks);
  }
  return static_cast<std::int64_t>(estimated_tiles(workload, block_size));
}

std::int64_t steps_of_rows(const Workload& workload, const PlacementChoice& choice) {
  return steps_of_placing_rows(choice.effort, num_blocks(workload, choice.block_size),
                               likely_tiles(workload, choice.block_size));
}

std::int64_t steps_of_tiles(const Workload& workload, const Cluster& cluster,
                            const PlacementChoice& choice) {
  return steps_of_placing(
      choice.effort, cluster.num_devices(), std::ssize(workload.sequences), choice.head_groups,
      choice.head_groups * num_blocks(workload, choice.block_size), most_tiles(workload, choice));
}

std::int64_t most_tiles(const Workload& workload, const PlacementChoice& choice) {
  return choice.head_groups * likely_tiles(workload, choice.block_size);
}

std::vector<PlacementChoice> quick_row_choices(const Workload& workload, const Cluster& cluster,
                                               const StrategyRequest& request) {
  constexpr double kEffort = 0.05;
  std::vector<PlacementChoice> choices;
  const std::vector<std::int64_t> sizes = row_block_sizes(workload, cluster, request);
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    const PlacementChoice choice{
        .block_size = sizes[s], .effort = kEffort, .seed = request.seed + 1 + s};
    add_rows(workload, cluster, choice, kTilesOfDevice * cluster.num_devices(), choices);
  }
  if (choices.empty()) {
    add_rows(workload, cluster, {.block_size = sizes.back(), .effort = kEffort}, kMostRowTiles,
             choices);
  }
  return choices;
}

std::vector<PlacementChoice> quick_tile_choices(const Workload& workload, const Cluster& cluster,
                                                const StrategyRequest& request, int turns) {
  constexpr double kEffort = 0.1;
  constexpr double kTilesOfGroup = 100;      // of a device
  constexpr std::array kEps = {0.12, 0.25};  // alternating
  std::vector<std::int64_t> sizes = grid_block_sizes(workload, cluster, request);
  std::ranges::sort(sizes);
  const auto fitting = std::ranges::find_if(sizes, [&](std::int64_t size) {
    return static_cast<double>(likely_tiles(workload, size)) <=
           kTilesOfGroup * cluster.num_devices();
  });
  const std::int64_t size = fitting == sizes.end() ? sizes.back() : *fitting;
  if (num_blocks(workload, size) > kMostPlacedRows) return {};
  std::vector<std::int32_t> head_groups = grid_head_groups(workload);
  std::ranges::sort(head_groups, std::ranges::greater{});
  std::vector<PlacementChoice> choices;
  for (std::size_t turn = 0; turn < static_cast<std::size_t>(turns); ++turn) {
    for (const std::int32_t groups : head_groups) {
      const auto tiles = static_cast<double>(likely_tiles(workload, size) * groups);
      if (groups > 1 && tiles > kTilesOfDevice * cluster.num_devices()) continue;
      choices.push_back({.block_size = size,
                         .head_groups = groups,
                         .eps = kEps[turn % kEps.size()],
                         .effort = kEffort,
                         .seed = request.seed + 1 + turn});
    }
  }
  return choices;
}

std::vector<PlacementChoice> row_choices(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request, double effort) {
  constexpr double kEffort = 0.4;
  constexpr std::uint64_t kSeeds = 2;
  const std::vector<std::int64_t> sizes = row_block_sizes(workload, cluster, request);
  std::vector<PlacementChoice> choices;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    for (const std::int64_t size : sizes) {
      add_rows(workload, cluster,
               {.block_size = size, .effort = kEffort * effort, .seed = request.seed + 1 + seed},
               kMostRowTiles, choices);
    }
  }
  return choices;
}

std::vector<PlacementChoice> quick_uneven_row_choices(const Workload& workload,
                                                      const Cluster& cluster,
                                                      const StrategyRequest& request) {
  return uneven_rows(workload, cluster, request, {kLikelyUneven}, 0.05, 2);
}

std::vector<PlacementChoice> uneven_row_choices(const Workload& workload, const Cluster& cluster,
                                                const StrategyRequest& request, double effort) {
  constexpr double kEffort = 0.1;
  return uneven_rows(workload, cluster, request, {{1.25, 20}, kLikelyUneven, {1.6, 5}},
                     kEffort * effort, 2);
}

std::vector<PlacementChoice> tile_choices(const Workload& workload, const Cluster& cluster,
                                          const StrategyRequest& request, double eps) {
  std::vector<PlacementChoice> choices;
  for (const std::int64_t size : grid_block_sizes(workload, cluster, request)) {
    for (const std::int32_t groups : grid_head_groups(workload)) {
      const auto tiles = static_cast<double>(likely_tiles(workload, size));
      if (groups > 1 && tiles * groups > kMostPlacedTiles) continue;
      choices.push_back(
          {.block_size = size, .head_groups = groups, .eps = eps, .seed = request.seed + 1});
    }
  }
  return choices;
}

bool decide_retain(const Workload& workload, const Cluster& cluster, const StrategyRequest& request,
                   RetainInputs asked) {
  if (!request.backward) return false;
  if (asked != RetainInputs::kAuto) return asked == RetainInputs::kOn;
  if (cluster.memory_bytes == 0) return false;
  const std::int64_t memory_bytes =
      std::min(cluster.memory_bytes, request.limits.memory_bytes.value_or(cluster.memory_bytes));
  std::int64_t layers = 0;
  for (const NamedMask& mask : workload.masks) layers += mask.layers;
  const AttentionShape& shape = workload.shape;
  const std::int64_t token_bytes = unit_bytes(Kind::kQ, 1, shape, 1, shape.dtype) +
                                   unit_bytes(Kind::kKv, 1, shape, 1, shape.dtype);
  // In forward a device receives at most a few times as much as it owns.
  const std::int64_t owned = workload.num_tokens() / cluster.num_devices() + 1;
  constexpr std::int64_t kTimesOwned = 4;
  constexpr std::int64_t kShareOfMemory = 20;
  return kTimesOwned * owned * token_bytes * layers <= memory_bytes / kShareOfMemory;
}

}  // namespace contextile
