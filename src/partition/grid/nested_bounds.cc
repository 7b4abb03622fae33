// DCP's constraints (Jiang et al., SOSP 2025, §4.2) as numbers, and a partition made to keep them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/interrupt.h"
#include "contextile/extend/partition.h"
#include "partition/grid/rebalance.h"

namespace contextile {
namespace {

std::vector<std::int64_t> tokens_of(const AttentionGrid& grid) {
  std::vector<std::int64_t> tokens;
  tokens.reserve(grid.blocks.size());
  for (const GridBlock& block : grid.blocks) tokens.push_back(block.tokens);
  return tokens;
}

// Returns (1 + eps) · mean, rounded down.
std::int64_t share_with(double eps, std::int64_t total, std::int32_t parts) {
  const double allowed = (1 + eps) * static_cast<double>(total) / parts;
  return static_cast<std::int64_t>(std::min(allowed, static_cast<double>(total)));
}

std::int64_t sum_of(const std::vector<std::int64_t>& weights) {
  std::int64_t sum = 0;
  for (const std::int64_t weight : weights) sum += weight;
  return sum;
}

class Holder {
 public:
  Holder(const AttentionGrid& grid, const GridSpec& spec, const NestedBounds& bounds,
         GridPartition& partition)
      : spec_(spec), bounds_(bounds), pinned_(grid, spec, partition) {}

  void run() {
    hold_tokens();
    hold_work();
  }

 private:
  [[nodiscard]] DeviceParts all_nodes() const {
    return {Rank{0}, spec_.nodes, spec_.devices_per_node};
  }
  [[nodiscard]] DeviceParts devices_of(std::int32_t node) const {
    return {Rank{node * spec_.devices_per_node}, spec_.devices_per_node, 1};
  }
  enum class Vertices : std::uint8_t { kBlocks, kTiles };
  // Blocks, or tiles, of every node, ascending.
  using OnNodes = std::vector<std::vector<GridVertexId>>;

  [[nodiscard]] std::pair<std::int32_t, std::int32_t> range_of(Vertices which) const {
    return which == Vertices::kBlocks ? std::pair(0, pinned_.num_blocks())
                                      : std::pair(pinned_.num_blocks(), pinned_.num_vertices());
  }
  [[nodiscard]] std::vector<GridVertexId> all(Vertices which) const {
    const auto [first, last] = range_of(which);
    std::vector<GridVertexId> vertices;
    for (std::int32_t v = first; v < last; ++v) vertices.emplace_back(v);
    return vertices;
  }
  [[nodiscard]] OnNodes by_node(Vertices which) const {
    OnNodes on(static_cast<std::size_t>(spec_.nodes));
    for (const GridVertexId v : all(which)) {
      const std::int32_t node = pinned_.device(v).value / spec_.devices_per_node;
      on[static_cast<std::size_t>(node)].push_back(v);
    }
    return on;
  }

  void hold_tokens() {
    Rebalance nodes(pinned_, all(Vertices::kBlocks), all_nodes());
    keep_below(bounds_.node_tokens, nodes);
    // Devices exchange only within their node here, so the node's tokens do not change.
    OnNodes blocks = by_node(Vertices::kBlocks);
    for (std::int32_t n = 0; n < spec_.nodes; ++n) {
      std::vector<GridVertexId>& own = blocks[static_cast<std::size_t>(n)];
      const std::int64_t limit = std::max(
          bounds_.device_tokens, longest_first_max(weights_of(own), spec_.devices_per_node));
      Rebalance devices(pinned_, std::move(own), devices_of(n));
      keep_below(limit, devices);
    }
  }

  // A distribution like that of packing meets the bounds whatever the placement was.
  void keep_below(std::int64_t limit, Rebalance& blocks) {
    if (!blocks.bring_below(limit)) blocks.match_packing();
    owners_changed_ = owners_changed_ || blocks.changed();
  }

  [[nodiscard]] std::vector<std::int64_t> weights_of(
      const std::vector<GridVertexId>& vertices) const {
    std::vector<std::int64_t> weights;
    weights.reserve(vertices.size());
    for (const GridVertexId v : vertices) weights.push_back(pinned_.weight(v));
    return weights;
  }

  void hold_work() {
    hold_work_of(all(Vertices::kTiles), all_nodes(), spec_.eps_node);
    OnNodes tiles = by_node(Vertices::kTiles);
    for (std::int32_t n = 0; n < spec_.nodes; ++n) {
      hold_work_of(std::move(tiles[static_cast<std::size_t>(n)]), devices_of(n), spec_.eps_compute);
    }
  }

  void hold_work_of(std::vector<GridVertexId> tiles, const DeviceParts& parts, double eps) {
    std::vector<std::int64_t> work = weights_of(tiles);
    Rebalance rebalance(pinned_, std::move(tiles), parts);
    // The first bound may be infeasible with large tiles. The second is feasible: packing meets it.
    const bool held = rebalance.bring_below(share_with(eps, sum_of(work), parts.count)) ||
                      rebalance.bring_below(longest_first_max(std::move(work), parts.count));
    if (!held) rebalance.pack_longest_first();
    if ((rebalance.changed() || owners_changed_) && parts.devices == 1) rebalance.lower_cost();
  }

  const GridSpec& spec_;
  const NestedBounds& bounds_;
  PinnedGrid pinned_;
  bool owners_changed_ = false;
};

}  // namespace

std::int64_t longest_first_max(std::vector<std::int64_t> sizes, std::int32_t parts) {
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  constexpr std::size_t kPlacedBetweenLooks = 4096;
  std::vector<std::int64_t> heap(static_cast<std::size_t>(parts));  // smallest load on top
  std::size_t num_placed = 0;
  for (const std::int64_t size : sizes) {
    if (++num_placed % kPlacedBetweenLooks == 0) check_interrupt();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.back() += size;
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  return heap.empty() ? 0 : std::ranges::max(heap);
}

std::int64_t work_bound(std::vector<std::int64_t> weights, std::int32_t parts, double eps) {
  const std::int64_t sum = sum_of(weights);
  const std::int64_t share = share_with(eps, sum, parts);
  if (weights.empty()) return share;
  // A weight joins the part with the least load, at most the mean, so packing stays below this sum.
  if (sum / parts + std::ranges::max(weights) <= share) return share;
  return std::max(share, longest_first_max(std::move(weights), parts));
}

NestedBounds nested_bounds(const AttentionGrid& grid, const GridSpec& spec) {
  std::vector<std::int64_t> work;
  work.reserve(grid.tiles.size());
  for (const GridTile& tile : grid.tiles) work.push_back(tile.work);
  const std::vector<std::int64_t> sizes = tokens_of(grid);
  const std::int64_t largest = sizes.empty() ? 0 : std::ranges::max(sizes);
  const auto tolerated = static_cast<std::int64_t>(std::min(
      spec.data_tolerance * static_cast<double>(largest), static_cast<double>(sum_of(sizes))));
  const std::int32_t devices = spec.nodes * spec.devices_per_node;
  return {.node_work = work_bound(std::move(work), spec.nodes, spec.eps_node),
          .node_tokens = longest_first_max(sizes, spec.nodes) + tolerated,
          .device_tokens = longest_first_max(sizes, devices) + tolerated};
}

void hold_nested_bounds(const AttentionGrid& grid, const GridSpec& spec, const NestedBounds& bounds,
                        GridPartition& partition) {
  Holder(grid, spec, bounds, partition).run();
}

}  // namespace contextile
