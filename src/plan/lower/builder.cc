#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/available_memory.h"
#include "base/check.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "plan/lower/lowering.h"
#include "plan/lower/plan_size.h"
#include "plan/lower/wires.h"

namespace contextile {
namespace {

void check_round(const Workload& workload, const Cluster& cluster, const ArrangedRound& round,
                 const std::string& where) {
  const auto num_blocks = static_cast<std::size_t>(round.blocks.num_blocks());
  CONTEXTILE_CHECK(round.owners.size() == num_blocks,
                   "{}: expected an owner for each of {} blocks, found {}", where, num_blocks,
                   round.owners.size());
  for (std::size_t b = 0; b < num_blocks; ++b) {
    const Rank owner = round.owners[b];
    CONTEXTILE_CHECK(owner.valid() && owner.value < cluster.num_devices(),
                     "{} block {}: expected an owner below {}, found {}", where, b,
                     cluster.num_devices(), owner.value);
  }
  CONTEXTILE_CHECK(round.head_groups >= 1 && workload.shape.kv_heads % round.head_groups == 0,
                   "{}: expected head groups that divide {} KV heads, found {}", where,
                   workload.shape.kv_heads, round.head_groups);
  CONTEXTILE_CHECK(
      round.masks.size() == workload.masks.size() && round.programs.size() == workload.masks.size(),
      "{}: expected {} masks and programs, found {} and {}", where, workload.masks.size(),
      round.masks.size(), round.programs.size());
}

void check_block_head_groups(const ArrangedRound& round, const std::string& where) {
  const std::vector<std::int32_t>& groups = round.block_head_groups;
  CONTEXTILE_CHECK(groups.empty() || std::ssize(groups) == round.blocks.num_blocks(),
                   "{}: expected head groups of all or none of {} blocks, found {}", where,
                   round.blocks.num_blocks(), groups.size());
  for (std::size_t b = 0; b < groups.size(); ++b) {
    CONTEXTILE_CHECK(groups[b] >= 1 && round.head_groups % groups[b] == 0,
                     "{} block {}: expected head groups that divide the {} of the round, found {}",
                     where, b, round.head_groups, groups[b]);
  }
}

// Checks that the blocks of all rounds partition the tokens.
void check_partition(const Workload& workload, const Arrangement& arrangement) {
  std::vector<Range> ranges;
  for (const ArrangedRound& round : arrangement.rounds) {
    for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
      const auto of_block = round.blocks.ranges(BlockId{b});
      ranges.insert(ranges.end(), of_block.begin(), of_block.end());
    }
  }
  std::sort(ranges.begin(), ranges.end());
  std::int64_t next = 0;
  for (const Range& range : ranges) {
    CONTEXTILE_CHECK(range.begin == next,
                     "strategy {}: expected blocks that partition the batch, found token {} {}",
                     arrangement.strategy, std::min(next, range.begin),
                     range.begin < next ? "in two blocks" : "in no block");
    next = range.end;
  }
  CONTEXTILE_CHECK(next == workload.num_tokens(),
                   "strategy {}: expected blocks that cover {} tokens, found them to end at {}",
                   arrangement.strategy, workload.num_tokens(), next);
}

// Checks that indices are in range and stages in order, so that lowering can index without checks.
void check_direction(const RoundLayout& layout, const ArrangedDirection& arranged,
                     Direction direction, const std::string& where) {
  const ArrangedRound& round = *layout.round;
  const std::int32_t num_blocks = round.blocks.num_blocks();
  const auto block_ok = [&](BlockId b) { return b.valid() && b.value < num_blocks; };
  const auto group_ok = [&](BlockId b, GroupId g) {
    return g.valid() && g.value < round.groups_of(b);
  };
  const auto rank_ok = [&](Rank r) { return r.valid() && r.value < layout.num_devices(); };
  for (const PlacedTile& tile : arranged.tiles) {
    CONTEXTILE_CHECK(
        block_ok(tile.q_block) && block_ok(tile.kv_block) && group_ok(tile.q_block, tile.group) &&
            rank_ok(tile.device) && tile.stage >= 0 && tile.pairs > 0,
        "{}: expected a tile of known blocks, group and device with pairs, found ({}, {}, "
        "{}) on device {} at stage {} with {} pairs",
        where, tile.q_block.value, tile.kv_block.value, tile.group.value, tile.device.value,
        tile.stage, tile.pairs);
    CONTEXTILE_CHECK(
        round.groups_of(tile.q_block) == round.groups_of(tile.kv_block),
        "{}: tile ({}, {}): expected blocks of equally many head groups, found {} and {}", where,
        tile.q_block.value, tile.kv_block.value, round.groups_of(tile.q_block),
        round.groups_of(tile.kv_block));
    CONTEXTILE_CHECK(role_has(round.blocks.role(tile.q_block), Kind::kQ) &&
                         role_has(round.blocks.role(tile.kv_block), Kind::kKv),
                     "{}: tile ({}, {}): expected a block with queries and one with keys", where,
                     tile.q_block.value, tile.kv_block.value);
  }
  for (const Transfer& t : arranged.transfers) {
    CONTEXTILE_CHECK(
        block_ok(t.block) && group_ok(t.block, t.group) && rank_ok(t.src) && rank_ok(t.dst) &&
            t.src != t.dst && t.launch_stage >= 0 && t.need_stage > t.launch_stage &&
            occurs_in(t.kind, direction) && role_has(round.blocks.role(t.block), t.kind),
        "{}: expected a transfer of a known unit between two devices, needed after its "
        "launch, found {} of block {} group {} from {} to {}, launch {} need {}",
        where, to_string(t.kind), t.block.value, t.group.value, t.src.value, t.dst.value,
        t.launch_stage, t.need_stage);
  }
}

RoundLayout layout_of(const ArrangedRound& round, std::int32_t num_devices) {
  RoundLayout layout;
  layout.round = &round;
  layout.local_blocks.resize(static_cast<std::size_t>(num_devices));
  for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
    std::vector<BlockId>& local =
        layout.local_blocks[round.owners[static_cast<std::size_t>(b)].index()];
    layout.position.push_back(static_cast<std::int32_t>(local.size()));
    local.emplace_back(b);
    for (std::int32_t g = 0; g < round.head_groups; ++g) {
      layout.owner_of_unit.push_back(round.owners[static_cast<std::size_t>(b)]);
      layout.slot_of_unit.emplace_back(layout.position.back() * round.head_groups + g);
    }
  }
  return layout;
}

std::vector<Program> lower(const RoundLayout& layout, const ArrangedDirection& arranged,
                           Direction direction, const ArrangedMask& mask, const Workload& workload,
                           const Arrangement& arrangement, const std::string& where,
                           std::vector<SlotId>& retained_slots) {
  check_direction(layout, arranged, direction, where);
  const std::vector<Dtype> wires =
      transfer_wires(layout, arranged, direction, workload.shape.dtype, arrangement.partial_wire);
  LoweredDirection lowered = lower_direction({.layout = &layout,
                                              .arranged = &arranged,
                                              .direction = direction,
                                              .retain = mask.retain,
                                              .wires = wires,
                                              .where = where});
  retained_slots = std::move(lowered.retained_slots);
  return std::move(lowered.programs);
}

void check_retain(const RoundLayout& layout, const ArrangedMask& mask, const std::string& where) {
  if (mask.retain.empty()) return;
  CONTEXTILE_CHECK(mask.forward && mask.backward,
                   "{}: expected both directions when units are retained", where);
  for (const RetainedUnit& kept : mask.retain) {
    CONTEXTILE_CHECK(
        (kept.kind == Kind::kQ || kept.kind == Kind::kKv) && kept.block.valid() &&
            kept.block.value < layout.round->blocks.num_blocks() && kept.group.valid() &&
            kept.group.value < layout.round->groups_of(kept.block) && kept.device.valid() &&
            kept.device.value < layout.num_devices(),
        "{}: expected q or kv of a known unit to be retained, found {} of block {} on {}", where,
        to_string(kept.kind), kept.block.value, kept.device.value);
  }
}

// Appends both directions of one mask to every device's programs.
void add_programs(PlanRound& out, const RoundLayout& layout, const ArrangedMask& mask,
                  const Workload& workload, const Arrangement& arrangement,
                  const std::string& where) {
  check_retain(layout, mask, where);
  std::vector<ProgramPair> pairs(out.devices.size());
  std::vector<SlotId> forward_slots;
  std::vector<SlotId> backward_slots;
  if (mask.forward) {
    auto programs = lower(layout, *mask.forward, Direction::kForward, mask, workload, arrangement,
                          where + " forward", forward_slots);
    for (std::size_t r = 0; r < pairs.size(); ++r) pairs[r].forward = std::move(programs[r]);
  }
  if (mask.backward) {
    auto programs = lower(layout, *mask.backward, Direction::kBackward, mask, workload, arrangement,
                          where + " backward", backward_slots);
    for (std::size_t r = 0; r < pairs.size(); ++r) pairs[r].backward = std::move(programs[r]);
  }
  for (std::size_t i = 0; i < mask.retain.size(); ++i) {
    const RetainedUnit& kept = mask.retain[i];
    pairs[kept.device.index()].forward->retain.push_back(
        {kept.kind, forward_slots[i], backward_slots[i]});
  }
  for (std::size_t r = 0; r < pairs.size(); ++r) {
    out.devices[r].programs.push_back(std::move(pairs[r]));
  }
}

PlanRound build_round(const Workload& workload, const Cluster& cluster,
                      const Arrangement& arrangement, std::size_t index,
                      const BuildOptions& options) {
  const ArrangedRound& round = arrangement.rounds[index];
  const std::string where = fmt::format("strategy {} round {}", arrangement.strategy, index);
  check_round(workload, cluster, round, where);
  check_block_head_groups(round, where);
  const RoundLayout layout = layout_of(round, cluster.num_devices());
  PlanRound out;
  out.head_groups = round.head_groups;
  out.blocks = round.blocks;
  out.owners = round.owners;
  out.block_head_groups = round.block_head_groups;
  out.limits = options.limits;
  out.devices.resize(static_cast<std::size_t>(cluster.num_devices()));
  for (std::size_t r = 0; r < out.devices.size(); ++r) {
    out.devices[r].local_blocks = layout.local_blocks[r];
  }
  for (std::size_t m = 0; m < workload.masks.size(); ++m) {
    out.masks.push_back({workload.masks[m].name, workload.masks[m].layers, round.masks[m]});
    add_programs(out, layout, round.programs[m], workload, arrangement,
                 fmt::format("{} mask {} ({})", where, m, workload.masks[m].name));
  }
  return out;
}

}  // namespace

Plan build_plan(const Workload& workload, const Cluster& cluster, const Arrangement& arrangement,
                const BuildOptions& options) {
  check_cluster(cluster);
  CONTEXTILE_CHECK(!arrangement.rounds.empty(),
                   "strategy {}: expected at least one round, found none", arrangement.strategy);
  check_partition(workload, arrangement);
  check_memory_for_plan(arrangement, cluster.num_devices(), available_memory_bytes());
  Plan plan;
  plan.strategy = arrangement.strategy;
  plan.options = arrangement.options;
  plan.shape = workload.shape;
  plan.shape.scale = workload.shape.effective_scale();
  plan.partial_wire = arrangement.partial_wire;
  plan.cluster_name = cluster.name;
  plan.nodes = cluster.nodes;
  plan.devices_per_node = cluster.devices_per_node;
  plan.sequences = workload.sequences;
  plan.home = workload.home;
  plan.positions = workload.positions;
  plan.padded_bytes_factor = arrangement.padded_bytes_factor;
  plan.padded_pairs_factor = arrangement.padded_pairs_factor;
  for (std::size_t r = 0; r < arrangement.rounds.size(); ++r) {
    plan.rounds.push_back(build_round(workload, cluster, arrangement, r, options));
  }
  if (options.digest) plan.digest = compute_digest(plan);
  return plan;
}

}  // namespace contextile
