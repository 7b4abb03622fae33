#include "planner/auto/placement.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "base/check.h"
#include "contextile/extend/partition.h"
#include "planner/auto/link_rates.h"
#include "planner/auto/row_placement.h"
#include "planner/auto/token_leveling.h"
#include "planner/auto/tuning.h"
#include "strategy/schedule/home.h"
#include "strategy/schedule/overlap.h"
#include "strategy/schedule/token_alignment.h"

namespace contextile {
namespace {

std::int64_t largest_block(const Blocking& blocks) {
  std::int64_t largest = 0;
  for (const BlockId b : IdRange<BlockId>(blocks.num_blocks())) {
    largest = std::max(largest, blocks.num_tokens(b));
  }
  return largest;
}

double intra_us_per_byte(const Cluster& cluster) {
  return kUsPerByteOfGbytes / cluster.intra_gbytes_per_s;
}
// Time of a byte through a device's share of its node's NICs.
double inter_us_per_byte(const Cluster& cluster) {
  return kUsPerByteOfGbytes * cluster.devices_per_node / cluster.inter_gbytes_per_s_per_node;
}

// Time of a byte between nodes in multiples of one inside a node, while all devices send.
std::int64_t inter_weight(const Cluster& cluster) {
  return std::clamp<std::int64_t>(
      std::llround(inter_us_per_byte(cluster) / intra_us_per_byte(cluster)), 1,
      tuning::kMostInterWeight);
}

// Times of the tiles of one mask. A call computes the pieces of the same rows as one run, whose
// length depends on the placement. A tile counts as its share of a run. If rows are placed whole,
// the run has all the row's keys; else it has no more keys than the edge of a square that holds a
// device's share of the work.
class TilePricer {
 public:
  TilePricer(const NamedMask& named, const Blocking& blocks, const std::vector<Tile>& tiles,
             const Cluster& cluster, const TileCosts& costs, bool whole_rows)
      : blocks_(blocks),
        profile_(cluster.attention),
        costs_(costs),
        index_(named.mask, blocks),
        row_pairs_(static_cast<std::size_t>(blocks.num_blocks()), 0),
        square_keys_(whole_rows ? std::numeric_limits<double>::infinity()
                                : std::sqrt(static_cast<double>(named.mask.num_pairs()) /
                                            cluster.num_devices())) {
    for (const Tile& tile : tiles) {
      row_pairs_[tile.q_block.index()] += static_cast<double>(tile.pairs);
    }
  }

  std::pair<double, double> price(const Tile& tile, bool backward) {
    const std::int64_t rows = blocks_.num_tokens(tile.q_block);
    const std::int64_t keys = blocks_.num_tokens(tile.kv_block);
    if (tile.pairs == rows * keys) {
      return piece(tile.q_block, rows, static_cast<double>(tile.pairs), backward);
    }
    bands_.clear();
    index_.append_bands(tile.q_block, tile.kv_block, bands_);
    std::pair<double, double> total;
    for (const LocalBand& band : bands_) {
      const double computed =
          profile_.computed_pairs(band.q.size(), band.k.size(), num_pairs(band));
      const auto [forward, back] = piece(tile.q_block, band.q.size(), computed, backward);
      total.first += forward;
      total.second += back;
    }
    return total;
  }

 private:
  [[nodiscard]] std::pair<double, double> piece(BlockId q_block, std::int64_t rows,
                                                double computed_pairs, bool backward) const {
    const double row_keys =
        row_pairs_[q_block.index()] / static_cast<double>(blocks_.num_tokens(q_block));
    const double run_pairs =
        std::max(computed_pairs, static_cast<double>(rows) * std::min(row_keys, square_keys_));
    const double share = computed_pairs / run_pairs;
    return {share * costs_.run_us(Direction::kForward, rows, run_pairs, 1),
            backward ? share * costs_.run_us(Direction::kBackward, rows, run_pairs, 1) : 0};
  }

  const Blocking& blocks_;
  const AttentionProfile& profile_;
  const TileCosts& costs_;
  TileIndex index_;
  std::vector<double> row_pairs_;  // one for each block
  double square_keys_;             // edge of a square of a device's share of the pairs
  std::vector<LocalBand> bands_;
};

// Bytes per token and head group that a row or column moves to another device and back, both
// directions.
GridBytes bytes_of(const AttentionShape& shape, std::int32_t head_groups, Dtype partial_wire,
                   bool backward, bool retain) {
  const auto bytes = [&](Kind kind) {
    return unit_bytes(kind, 1, shape, head_groups, is_result(kind) ? partial_wire : shape.dtype);
  };
  GridBytes grid{bytes(Kind::kQ) + bytes(Kind::kO), bytes(Kind::kKv)};
  if (!backward) return grid;
  grid.row += bytes(Kind::kDo) + bytes(Kind::kDq) + (retain ? 0 : bytes(Kind::kQ));
  grid.column += bytes(Kind::kDkv) + (retain ? 0 : bytes(Kind::kKv));
  return grid;
}

// `us`: the times of tiles of all heads; each group has its part of them.
ArrangedDirection schedule_tiles(ScheduleProblem problem, const std::vector<double>& us,
                                 const Cluster& cluster, const Schedule& schedule) {
  std::vector<double> tile_us;
  tile_us.reserve(problem.tiles.size());
  for (const double of_all_heads : us) {
    const std::int32_t groups = problem.groups_of(problem.tiles[tile_us.size()].q_block);
    tile_us.insert(tile_us.end(), static_cast<std::size_t>(groups), of_all_heads / groups);
  }
  relay_across_nodes(problem, inter_weight(cluster));
  if (const auto* slots = std::get_if<TimelineOptions>(&schedule)) {
    return schedule_timeline(problem, tile_us, cluster, *slots);
  }
  if (const auto* in_order = std::get_if<InOrderOptions>(&schedule)) {
    return schedule_in_order(problem, tile_us, *in_order);
  }
  return schedule_overlapped(problem,
                             {.tile_us = tile_us,
                              .intra_us_per_byte = intra_us_per_byte(cluster),
                              .inter_us_per_byte = inter_us_per_byte(cluster)},
                             std::get<OverlapOptions>(schedule));
}

}  // namespace

PricedTiles price_tiles(const Workload& workload, const Cluster& cluster, TileGrid tiles,
                        std::int64_t block_size, bool backward, bool whole_rows) {
  PricedTiles priced;
  priced.whole_rows = whole_rows;
  priced.block_size = block_size;
  priced.tiles = std::move(tiles);
  const TileCosts costs(workload.shape, cluster);
  std::vector<double> total_ns(priced.tiles.all_tiles.size());
  for (std::size_t m = 0; m < workload.masks.size(); ++m) {
    const NamedMask& named = workload.masks[m];
    TilePricer pricer(named, priced.tiles.work.blocks, priced.tiles.tiles_of_mask[m], cluster,
                      costs, whole_rows);
    std::vector<double>& forward = priced.forward_us.emplace_back();
    std::vector<double>& back = priced.backward_us.emplace_back();
    std::size_t in_union = 0;
    for (const Tile& tile : priced.tiles.tiles_of_mask[m]) {
      const auto [forward_us, backward_us] = pricer.price(tile, backward);
      forward.push_back(forward_us);
      back.push_back(backward_us);
      const std::vector<Tile>& all = priced.tiles.all_tiles;
      while (all[in_union].q_block != tile.q_block || all[in_union].kv_block != tile.kv_block) {
        ++in_union;
      }
      total_ns[in_union] += 1e3 * (forward_us + backward_us) * named.layers;
    }
  }
  for (const double ns : total_ns) {
    priced.work_ns.push_back(std::max<std::int64_t>(1, std::llround(ns)));
  }
  return priced;
}

double mean_work_us(const PricedTiles& priced, std::int64_t devices) {
  double total_us = 0;
  for (const std::int64_t work_ns : priced.work_ns) {
    total_us += 1e-3 * static_cast<double>(work_ns);
  }
  return total_us / static_cast<double>(devices);
}

Placement place(const Workload& workload, const Cluster& cluster,
                std::shared_ptr<const PricedTiles> priced, const PlacementChoice& choice,
                const PlacingRules& rules, const RowStart* warm) {
  Placement placement;
  placement.choice = choice;
  std::vector<std::int64_t> work = priced->work_ns;
  for (std::int64_t& w : work) w = std::max<std::int64_t>(1, w / choice.head_groups);
  const GridBytes bytes =
      bytes_of(workload.shape, choice.head_groups, rules.wire, rules.backward, rules.retain);
  const AttentionGrid grid =
      attention_grid(workload, priced->tiles, choice.head_groups, bytes, work);
  GridSpec spec;
  spec.nodes = cluster.nodes;
  spec.devices_per_node = cluster.devices_per_node;
  spec.nics_per_node = cluster.nics_per_node;
  spec.eps_compute = choice.eps;
  spec.eps_node = tuning::kNodePartOfEps * choice.eps;
  // A block that is larger than the cap stays whole. Such a plan is a last resort
  // (SearchState::cost_us).
  spec.token_cap =
      rules.token_cap > 0 ? std::max(rules.token_cap, largest_block(priced->tiles.work.blocks)) : 0;
  spec.node_weight = spec.inter_weight = inter_weight(cluster);
  spec.effort = choice.effort;
  spec.seed = choice.seed;
  if (choice.unit == PlacedUnit::kTiles) {
    placement.partition = partition_grid(grid, spec);
  } else {
    PlacedRows placed = place_whole_rows(workload, cluster, *priced, choice, bytes, rules, warm);
    placement.partition = std::move(placed.partition);
    placement.places = std::move(placed.places);
    placement.block_head_groups = std::move(placed.block_head_groups);
  }
  const GridQuality quality = evaluate(grid, spec, placement.partition);
  const double compute_us =
      mean_work_us(*priced, cluster.num_devices()) * (1 + quality.compute_overload);
  const double port_us = static_cast<double>(quality.max_port_bytes) * intra_us_per_byte(cluster);
  const double nic_us = static_cast<double>(quality.max_nic_bytes) * kUsPerByteOfGbytes *
                        cluster.nics_per_node / cluster.inter_gbytes_per_s_per_node;
  const double binding = std::max({compute_us, port_us, nic_us});
  placement.estimate_us =
      binding + tuning::kShareOfNotBinding * (compute_us + port_us + nic_us - binding);
  placement.priced = std::move(priced);
  if (rules.level.applies()) {
    auto leveled = level_tokens(workload, cluster, placement, rules.level, rules.backward);
    if (leveled) placement.leveled = std::make_shared<const Placement>(*std::move(leveled));
  }
  return placement;
}

Arrangement arrange_placement(const Workload& workload, const Cluster& cluster,
                              const Placement& placed, const StrategyRequest& request,
                              const SchedulePair& schedules, bool retain) {
  const Placement& placement = placed.arranged();
  const PricedTiles& priced = *placement.priced;
  const std::int32_t groups = placement.choice.head_groups;
  WorkBlocks work = priced.tiles.work;
  work.workers.assign(placement.partition.owner.begin(), placement.partition.owner.end());
  const std::vector<Rank> owners = owners_of(workload, work);
  Arrangement arrangement;
  arrangement.partial_wire = request.wire.value_or(Dtype::kF32);
  ArrangedRound& round = arrangement.rounds.emplace_back();
  round.head_groups = groups;
  round.block_head_groups = placement.block_head_groups;
  for (std::size_t m = 0; m < workload.masks.size(); ++m) {
    round.masks.push_back(workload.masks[m].mask);
    const std::vector<PlacedTile> tiles =
        placed_tiles(priced.tiles, m, groups, placement.partition, placement.block_head_groups);
    ArrangedMask& programs = round.programs.emplace_back();
    for (const Direction direction : kDirections) {
      if (direction == Direction::kBackward && !request.backward) break;
      const bool forward = direction == Direction::kForward;
      const std::vector<double>& us = forward ? priced.forward_us[m] : priced.backward_us[m];
      ArrangedDirection arranged = schedule_tiles(
          schedule_problem(
              workload, cluster,
              {.blocks = work.blocks,
               .owners = owners,
               .tiles = tiles,
               .head_groups = groups,
               .forward_inputs = retain ? ForwardInputs::kRetained : ForwardInputs::kDropped,
               .block_head_groups = placement.block_head_groups},
              direction),
          us, cluster, forward ? schedules.forward : schedules.backward);
      if (forward && retain && request.backward) {
        for (const Transfer& transfer : arranged.transfers) {
          if (is_result(transfer.kind)) continue;
          programs.retain.push_back({transfer.dst, transfer.kind, transfer.block, transfer.group});
        }
      }
      (forward ? programs.forward : programs.backward) = std::move(arranged);
    }
  }
  round.blocks = std::move(work.blocks);
  round.owners = owners;
  align_tokens(workload, cluster, request, arrangement);  // polished owners may differ
  return arrangement;
}

}  // namespace contextile
