#include <algorithm>

#include "base/check.h"
#include "contextile/mask.h"
#include "contextile/planner.h"

namespace contextile {

double estimated_tiles(const Workload& workload, std::int64_t block_size) {
  const auto block = static_cast<double>(std::max<std::int64_t>(block_size, 1));
  double tiles = 0;
  for (const NamedMask& named : workload.masks) {
    for (const Band& band : named.mask.bands) {
      const double rows = static_cast<double>(band.q.size()) / block + 1;
      const double columns = static_cast<double>(band.k.size()) / block + 1;
      const double inside = static_cast<double>(num_pairs(band)) / (block * block);
      // At most all block pairs, at least those along one edge.
      tiles += std::min(rows * columns, inside + rows);
    }
  }
  return tiles;
}

void check_plan_size(const Workload& workload, const Cluster& cluster, std::int64_t block_size) {
  const auto devices = static_cast<double>(cluster.num_devices());
  if (devices * devices > kMostDevicePairs) {
    fail_argument("cluster: expected at most {:.1g} pairs of devices, found {:.2g} ({} devices)",
                  kMostDevicePairs, devices * devices, cluster.num_devices());
  }
  if (workload.shape.kv_heads > kMostKvHeads) {
    fail_argument("heads: expected at most {} KV heads, found {}", kMostKvHeads,
                  workload.shape.kv_heads);
  }
  const std::int64_t block = block_size > 0 ? block_size : kSmallestDefaultBlock;
  const double tiles = estimated_tiles(workload, block);
  if (tiles <= kMostTiles) return;
  std::int64_t fitting = block;
  while (fitting < workload.num_tokens() && estimated_tiles(workload, fitting) > kMostTiles) {
    fitting *= 2;
  }
  fail_argument(
      "block size: expected at most {:.1g} tiles, found about {:.2g} ({} tokens in blocks of {}); "
      "blocks of {} would make {:.2g}",
      kMostTiles, tiles, workload.num_tokens(), block, fitting, estimated_tiles(workload, fitting));
}

}  // namespace contextile
