#include "simulate/program_costs.h"

#include <algorithm>
#include <variant>

#include "base/check.h"

namespace contextile {
namespace {

constexpr double kUsPerSecond = 1e6;

void add_end(std::vector<MessageEnd>& ends, Rank peer, std::int64_t bytes) {
  const auto it = std::ranges::find(ends, peer, &MessageEnd::peer);
  if (it == ends.end()) {
    ends.push_back({peer, bytes});
  } else {
    it->bytes += bytes;
  }
}

}  // namespace

TileCosts::TileCosts(const AttentionShape& shape, const Cluster& cluster)
    : shape_(shape), cluster_(cluster) {}

double TileCosts::piece_us(Direction direction, std::int64_t rows, std::int64_t keys,
                           std::int64_t pairs, std::int32_t head_groups) const {
  const AttentionProfile& profile = cluster_.attention;
  const double area = static_cast<double>(rows) * static_cast<double>(keys);
  // An edge crosses about as many kernel tiles as its shorter side is long; half of each is wasted.
  const double wasted = 0.5 * static_cast<double>(profile.kernel_tile_rows) *
                        static_cast<double>(std::min(rows, keys));
  const double computed = static_cast<double>(pairs) == area
                              ? area
                              : std::min(area, static_cast<double>(pairs) + wasted);
  const double mean_keys = computed / static_cast<double>(rows);
  const bool forward = direction == Direction::kForward;
  const double share = forward ? profile.forward_share(static_cast<double>(rows), mean_keys)
                               : profile.backward_share(static_cast<double>(rows), mean_keys);
  const std::int32_t heads = shape_.q_heads / head_groups;
  const double flops = forward ? forward_flops(1, heads, shape_) : backward_flops(1, heads, shape_);
  return computed * flops / (1e12 * cluster_.attention_tflops * share) * kUsPerSecond;
}

ProgramCosts::ProgramCosts(const Plan& plan, const Cluster& cluster, std::size_t round,
                           std::size_t mask, Direction direction)
    : plan_(plan),
      cluster_(cluster),
      round_(plan.rounds[round]),
      mask_(mask),
      direction_(direction),
      costs_(plan.shape, cluster),
      index_(round_.masks[mask].mask, round_.blocks) {
  const std::int32_t heads = plan.shape.q_heads / round_.head_groups;
  flops_per_pair_ = direction == Direction::kForward ? forward_flops(1, heads, plan.shape)
                                                     : backward_flops(1, heads, plan.shape);
}

double ProgramCosts::partial_tile_us(BlockId q_block, BlockId kv_block) {
  bands_.clear();
  index_.append_bands(q_block, kv_block, bands_);
  double total_us = 0;
  for (const LocalBand& band : bands_) {
    total_us += costs_.piece_us(direction_, band.q.size(), band.k.size(), num_pairs(band),
                                round_.head_groups);
  }
  return total_us;
}

double ProgramCosts::tile_us(const TileOp& tile) {
  const std::int64_t rows = round_.blocks.num_tokens(tile.q_block);
  const std::int64_t keys = round_.blocks.num_tokens(tile.kv_block);
  if (tile.pairs == rows * keys) {
    if (rows != last_rows_ || keys != last_keys_) {
      last_rows_ = rows;
      last_keys_ = keys;
      last_us_ = costs_.piece_us(direction_, rows, keys, tile.pairs, round_.head_groups);
    }
    return last_us_;
  }
  const std::uint64_t key = (static_cast<std::uint64_t>(tile.q_block.value) << 32U) |
                            static_cast<std::uint32_t>(tile.kv_block.value);
  const auto [it, is_new] = partial_us_.try_emplace(key, 0);
  if (is_new) it->second = partial_tile_us(tile.q_block, tile.kv_block);
  return it->second;
}

double ProgramCosts::memory_us(double bytes) const {
  return bytes / (1e9 * cluster_.memory_gbytes_per_s) * kUsPerSecond;
}

double ProgramCosts::accumulator_bytes(Kind kind, BlockId block) const {
  return static_cast<double>(unit_bytes(kind, round_.blocks.num_tokens(block), plan_.shape,
                                        round_.head_groups, Dtype::kF32));
}

TimedStep ProgramCosts::merge_step(Kind kind, BlockId block, std::size_t sources) const {
  TimedStep step;
  step.activity = Activity::kMerge;
  step.duration_us = memory_us(accumulator_bytes(kind, block) * static_cast<double>(sources + 1));
  return step;
}

TimedStep ProgramCosts::launch_step(const LaunchOp& launch) const {
  TimedStep step;
  step.activity = Activity::kLaunch;
  step.launch_id = launch.id;
  double converted_bytes = 0;
  const auto collect = [&](const std::vector<TransferEnd>& transfers,
                           std::vector<MessageEnd>& ends) {
    for (const TransferEnd& end : transfers) {
      const std::int64_t bytes = unit_bytes(end.kind, round_.blocks.num_tokens(end.block),
                                            plan_.shape, round_.head_groups, end.wire);
      add_end(ends, end.peer,
              static_cast<std::int64_t>(static_cast<double>(bytes) * plan_.padded_bytes_factor));
      // Accumulators are fp32: another wire type is converted on both ends.
      if (is_result(end.kind) && end.wire != Dtype::kF32) {
        converted_bytes += accumulator_bytes(end.kind, end.block) + static_cast<double>(bytes);
      }
    }
  };
  collect(launch.sends, step.sends);
  collect(launch.recvs, step.receives);
  step.duration_us = cluster_.launch_us + memory_us(converted_bytes);
  return step;
}

TimedProgram ProgramCosts::of(Rank rank) {
  TimedProgram timed;
  const Program& program = *round_.devices[rank.index()].programs[mask_].of(direction_);
  timed.steps.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions) {
    if (const auto* attention = std::get_if<AttentionOp>(&instruction)) {
      TimedStep& step = timed.steps.emplace_back();
      double work_us = 0;
      for (const TileOp& tile : attention->tiles) {
        work_us += tile_us(tile);
        timed.flops += static_cast<double>(tile.pairs) * flops_per_pair_;
      }
      step.duration_us = cluster_.attention.call_us + work_us * plan_.padded_pairs_factor;
    } else if (const auto* reduce = std::get_if<ReduceOp>(&instruction)) {
      timed.steps.push_back(merge_step(reduce->kind, reduce->block, reduce->srcs.size()));
    } else if (const auto* copy = std::get_if<CopyOp>(&instruction)) {
      timed.steps.push_back(merge_step(copy->kind, copy->block, 1));
    } else if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
      timed.steps.push_back(launch_step(*launch));
    } else {
      TimedStep& step = timed.steps.emplace_back();
      step.activity = Activity::kExposed;
      step.launch_id = std::get<WaitOp>(instruction).id;
      step.is_wait = true;
    }
  }
  return timed;
}

}  // namespace contextile
