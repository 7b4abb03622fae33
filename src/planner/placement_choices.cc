#include "planner/placement_choices.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "contextile/plan.h"
#include "contextile/plan_estimate.h"

namespace contextile {
namespace {

constexpr double kMostPlacedTiles = 150'000;  // of all head groups; of one as many as there are

std::vector<std::int64_t> grid_block_sizes(const Workload& workload, const Cluster& cluster,
                                           const StrategyRequest& request) {
  if (request.block_size) return {*request.block_size};
  // Larger blocks only where every device still has a few of them.
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

std::vector<std::int32_t> grid_head_groups(const Workload& workload) {
  std::vector<std::int32_t> groups{1};
  const std::int32_t kv_heads = workload.shape.kv_heads;
  if (kv_heads > 1) groups.push_back(kv_heads <= 16 ? kv_heads : 8 * (kv_heads % 8 == 0));
  if (kv_heads % 2 == 0 && kv_heads > 2) groups.push_back(2);
  std::erase(groups, 0);
  return groups;
}

// Powers of two, of about eight and four blocks a device.
std::vector<std::int64_t> row_block_sizes(const Workload& workload, const Cluster& cluster,
                                          const StrategyRequest& request) {
  if (request.block_size) return {*request.block_size};
  constexpr std::uint64_t kLeast = 128;
  constexpr std::uint64_t kMost = 4096;
  const auto of_device = static_cast<std::uint64_t>(workload.num_tokens() / cluster.num_devices());
  const auto near = static_cast<std::int64_t>(
      std::clamp(std::bit_floor(std::max<std::uint64_t>(1, of_device / 4)), kLeast, kMost));
  return {near, std::max<std::int64_t>(kLeast, near / 2)};
}

}  // namespace

std::vector<PlacementChoice> placement_choices(const Workload& workload, const Cluster& cluster,
                                               const StrategyRequest& request) {
  std::vector<PlacementChoice> choices;
  const auto add = [&](PlacementChoice choice) {
    choice.seed = request.seed + 1;
    const double tiles = estimated_tiles(workload, choice.block_size);
    if (choice.head_groups == 1 || tiles * choice.head_groups <= kMostPlacedTiles) {
      choices.push_back(choice);
    }
  };
  const std::int32_t width = cluster.devices_per_node;
  for (const std::int64_t size : row_block_sizes(workload, cluster, request)) {
    constexpr std::int64_t kMostRows = 16'384;
    if (workload.num_tokens() / size > kMostRows) continue;
    add({.unit = PlacedUnit::kRows, .block_size = size});
    if (width > 1 && workload.shape.kv_heads % width == 0) {
      add({.unit = PlacedUnit::kSpreadRows, .block_size = size, .head_groups = width});
    }
  }
  for (const double eps : {0.12, 0.05, 0.25}) {
    for (const std::int64_t size : grid_block_sizes(workload, cluster, request)) {
      for (const std::int32_t groups : grid_head_groups(workload)) {
        add({.block_size = size, .head_groups = groups, .eps = eps});
      }
    }
  }
  return choices;
}

bool decide_retain(const Workload& workload, const Cluster& cluster, const StrategyRequest& request,
                   RetainInputs asked) {
  if (!request.backward) return false;
  if (asked != RetainInputs::kAuto) return asked == RetainInputs::kOn;
  if (cluster.memory_bytes == 0) return false;
  std::int64_t layers = 0;
  for (const NamedMask& mask : workload.masks) layers += mask.layers;
  const AttentionShape& shape = workload.shape;
  const std::int64_t token_bytes = unit_bytes(Kind::kQ, 1, shape, 1, shape.dtype) +
                                   unit_bytes(Kind::kKv, 1, shape, 1, shape.dtype);
  // What one device receives in forward is at most a few times what it owns.
  const std::int64_t owned = workload.num_tokens() / cluster.num_devices() + 1;
  constexpr std::int64_t kTimesOwned = 4;
  constexpr std::int64_t kShareOfMemory = 20;
  return kTimesOwned * owned * token_bytes * layers <= cluster.memory_bytes / kShareOfMemory;
}

}  // namespace contextile
