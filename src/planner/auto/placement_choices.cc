#include "planner/auto/placement_choices.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "contextile/plan.h"
#include "contextile/planner.h"
#include "planner/auto/search_budget.h"
#include "planner/auto/tuning.h"

namespace contextile {
namespace {

std::vector<std::int64_t> grid_block_sizes(const Workload& workload, const Cluster& cluster,
                                           const StrategyRequest& request) {
  if (request.block_size) return {*request.block_size};
  // Larger blocks only if every device still has a few of them.
  std::vector<std::int64_t> sizes;
  for (const std::int64_t size : tuning::kGridBlockSizes) {
    const std::int64_t blocks = workload.num_tokens() / size;
    if (blocks >= tuning::kGridBlocksPerDevice * cluster.num_devices() &&
        blocks <= tuning::kMostGridBlocks) {
      sizes.push_back(size);
    }
  }
  if (sizes.empty()) {
    const std::int64_t blocks = tuning::kFallbackBlocksPerDevice * cluster.num_devices();
    sizes.push_back(std::max<std::int64_t>(1, workload.num_tokens() / blocks));
  }
  if (sizes.size() > tuning::kMostGridSizes) sizes.resize(tuning::kMostGridSizes);
  return sizes;
}

// The likeliest first: with a group per KV head, heads that meet on a device share most keys and
// devices fill most evenly.
std::vector<std::int32_t> grid_head_groups(const Workload& workload) {
  constexpr std::int32_t kFew = tuning::kFewHeadGroups;
  const std::int32_t kv_heads = workload.shape.kv_heads;
  std::vector<std::int32_t> groups;
  if (kv_heads <= tuning::kMostHeadGroups) groups.push_back(kv_heads);
  if (kv_heads > kFew && kv_heads % kFew == 0) groups.push_back(kFew);
  if (kv_heads > 1) groups.push_back(1);
  if (kv_heads > 2 && kv_heads % 2 == 0) groups.push_back(2);
  return groups;
}

// Powers of two, of about four, eight and two blocks per device; the largest last.
std::vector<std::int64_t> row_block_sizes(const Workload& workload, const Cluster& cluster,
                                          const StrategyRequest& request) {
  if (request.block_size) return {*request.block_size};
  const std::int64_t of_device = workload.num_tokens() / cluster.num_devices();
  const auto quarter = static_cast<std::uint64_t>(
      std::max<std::int64_t>(1, of_device / tuning::kRowBlocksPerDevice));
  const std::int64_t near = std::clamp(static_cast<std::int64_t>(std::bit_floor(quarter)),
                                       tuning::kSmallestRowBlock, tuning::kLargestRowBlock);
  std::vector<std::int64_t> sizes = {near};
  if (near / 2 >= tuning::kSmallestRowBlock) sizes.push_back(near / 2);
  if (2 * near <= of_device) sizes.push_back(2 * near);
  return sizes;
}

// Adds both kinds of rows at a block size, unless they have more tiles of all head groups.
void add_rows(const Workload& workload, const Cluster& cluster, PlacementChoice choice,
              double most_tiles, std::vector<PlacementChoice>& choices) {
  if (workload.num_tokens() / choice.block_size > tuning::kMostRowBlocks) return;
  if (num_blocks(workload, choice.block_size) > tuning::kMostPlacedBlocks) return;
  const std::int32_t width = cluster.devices_per_node;
  const auto tiles = static_cast<double>(likely_tiles(workload, choice.block_size));
  choice.unit = PlacedUnit::kRows;
  if (tiles <= most_tiles) choices.push_back(choice);
  if (width == 1 || workload.shape.kv_heads % width != 0 || tiles * width > most_tiles) return;
  choice.unit = PlacedUnit::kSpreadRows;
  choice.head_groups = width;
  choices.push_back(choice);
}

// One placement of rows of each kind, block size and start.
std::vector<PlacementChoice> uneven_rows(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request,
                                         std::span<const tuning::UnevenRows> starts, double effort,
                                         std::uint64_t seed) {
  std::vector<PlacementChoice> choices;
  for (const tuning::UnevenRows& start : starts) {
    for (const std::int64_t size : row_block_sizes(workload, cluster, request)) {
      add_rows(workload, cluster,
               {.block_size = size,
                .fill = start.fill,
                .heat = start.heat,
                .effort = effort,
                .seed = request.seed + seed},
               tuning::kMostRowTiles, choices);
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
  constexpr double kEffort = tuning::kQuickRowEffort;
  std::vector<PlacementChoice> choices;
  const std::vector<std::int64_t> sizes = row_block_sizes(workload, cluster, request);
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    const PlacementChoice choice{
        .block_size = sizes[s], .effort = kEffort, .seed = request.seed + 1 + s};
    add_rows(workload, cluster, choice, tuning::kQuickTilesPerDevice * cluster.num_devices(),
             choices);
  }
  if (choices.empty()) {
    add_rows(workload, cluster, {.block_size = sizes.back(), .effort = kEffort},
             tuning::kMostRowTiles, choices);
  }
  return choices;
}

std::vector<PlacementChoice> quick_tile_choices(const Workload& workload, const Cluster& cluster,
                                                const StrategyRequest& request, int turns) {
  std::vector<std::int64_t> sizes = grid_block_sizes(workload, cluster, request);
  std::ranges::sort(sizes);
  const auto fitting = std::ranges::find_if(sizes, [&](std::int64_t size) {
    return static_cast<double>(likely_tiles(workload, size)) <=
           tuning::kQuickGroupTilesPerDevice * cluster.num_devices();
  });
  const std::int64_t size = fitting == sizes.end() ? sizes.back() : *fitting;
  if (num_blocks(workload, size) > tuning::kMostPlacedBlocks) return {};
  std::vector<std::int32_t> head_groups = grid_head_groups(workload);
  std::ranges::sort(head_groups, std::ranges::greater{});
  std::vector<PlacementChoice> choices;
  for (std::size_t turn = 0; turn < static_cast<std::size_t>(turns); ++turn) {
    for (const std::int32_t groups : head_groups) {
      const auto tiles = static_cast<double>(likely_tiles(workload, size) * groups);
      if (groups > 1 && tiles > tuning::kQuickTilesPerDevice * cluster.num_devices()) continue;
      choices.push_back({.block_size = size,
                         .head_groups = groups,
                         .eps = tuning::kQuickTileEps[turn % tuning::kQuickTileEps.size()],
                         .effort = tuning::kQuickTileEffort,
                         .seed = request.seed + 1 + turn});
    }
  }
  return choices;
}

std::vector<PlacementChoice> row_choices(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request, double effort) {
  const std::vector<std::int64_t> sizes = row_block_sizes(workload, cluster, request);
  std::vector<PlacementChoice> choices;
  for (std::uint64_t seed = 1; seed <= tuning::kRowSeeds; ++seed) {
    for (const std::int64_t size : sizes) {
      add_rows(workload, cluster,
               {.block_size = size,
                .effort = tuning::kRowEffort * effort,
                .seed = request.seed + 1 + seed},
               tuning::kMostRowTiles, choices);
    }
  }
  return choices;
}

std::vector<PlacementChoice> quick_uneven_row_choices(const Workload& workload,
                                                      const Cluster& cluster,
                                                      const StrategyRequest& request) {
  return uneven_rows(workload, cluster, request, {&tuning::kLikelyUnevenRows, 1},
                     tuning::kQuickUnevenRowEffort, 2);
}

std::vector<PlacementChoice> uneven_row_choices(const Workload& workload, const Cluster& cluster,
                                                const StrategyRequest& request, double effort) {
  return uneven_rows(workload, cluster, request, tuning::kUnevenRows,
                     tuning::kUnevenRowEffort * effort, 2);
}

std::vector<PlacementChoice> tile_choices(const Workload& workload, const Cluster& cluster,
                                          const StrategyRequest& request, double eps) {
  std::vector<PlacementChoice> choices;
  for (const std::int64_t size : grid_block_sizes(workload, cluster, request)) {
    for (const std::int32_t groups : grid_head_groups(workload)) {
      const auto tiles = static_cast<double>(likely_tiles(workload, size));
      if (groups > 1 && tiles * groups > tuning::kMostGridTiles) continue;
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
  return tuning::kReceivedTimesOwned * owned * token_bytes * layers <=
         memory_bytes / tuning::kRetainedPartsOfMemory;
}

}  // namespace contextile
