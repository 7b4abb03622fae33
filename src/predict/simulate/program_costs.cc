#include "predict/simulate/program_costs.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <variant>

#include "base/check.h"

namespace contextile {
namespace {

constexpr double kUsPerSecond = 1e6;
constexpr unsigned kKnownRunBits = 12;

constexpr std::size_t index_of(Direction direction) { return static_cast<std::size_t>(direction); }

// Attention calls of the direction that has more of them.
std::size_t num_calls(std::span<const DeviceProgram> devices, std::size_t mask) {
  std::size_t most = 0;
  for (const Direction direction : kDirections) {
    std::size_t calls = 0;
    for (const DeviceProgram& device : devices) {
      const std::optional<Program>& program = device.programs[mask].of(direction);
      if (!program) continue;
      calls += static_cast<std::size_t>(
          std::ranges::count_if(program->instructions, [](const Instruction& instruction) {
            return std::holds_alternative<AttentionOp>(instruction);
          }));
    }
    most = std::max(most, calls);
  }
  return most;
}

}  // namespace

TileCosts::TileCosts(const AttentionShape& shape, const Cluster& cluster)
    : shape_(shape),
      profile_(cluster.attention),
      shares_(cluster.attention),
      attention_tflops_(cluster.usable_attention_tflops()) {}

double TileCosts::piece_us(Direction direction, std::int64_t rows, std::int64_t keys,
                           std::int64_t pairs, std::int32_t head_groups) const {
  return run_us(direction, rows, profile_.computed_pairs(rows, keys, pairs), head_groups);
}

double TileCosts::run_us(Direction direction, std::int64_t rows, double computed_pairs,
                         std::int32_t head_groups) const {
  const double mean_keys = computed_pairs / static_cast<double>(rows);
  const bool forward = direction == Direction::kForward;
  const double share = forward ? shares_.forward(static_cast<double>(rows), mean_keys)
                               : shares_.backward(static_cast<double>(rows), mean_keys);
  const std::int32_t heads = shape_.q_heads / head_groups;
  const double flops = forward ? forward_flops(1, heads, shape_) : backward_flops(1, heads, shape_);
  return computed_pairs * flops / (1e12 * attention_tflops_ * share) * kUsPerSecond;
}

ProgramCosts::ProgramCosts(const Plan& plan, const Cluster& cluster, std::size_t round,
                           std::size_t mask, const TileIndex& index, Rank first,
                           std::int32_t num_devices)
    : plan_(plan),
      cluster_(cluster),
      round_(plan.rounds[round]),
      mask_(mask),
      costs_(plan.shape, cluster),
      index_(index),
      known_calls_(num_calls(
          std::span(round_.devices).subspan(first.index(), static_cast<std::size_t>(num_devices)),
          mask)),
      known_runs_(std::size_t{1} << kKnownRunBits),
      end_of_peer_(static_cast<std::size_t>(plan.num_devices()), -1) {
  const std::int32_t heads = plan.shape.q_heads / round_.head_groups;
  flops_per_pair_ = {forward_flops(1, heads, plan.shape), backward_flops(1, heads, plan.shape)};
  computed_of_run_.assign(static_cast<std::size_t>(round_.blocks.num_blocks()) *
                              static_cast<std::size_t>(round_.head_groups),
                          0);
}

bool ProgramCosts::has_cut_tile(const std::vector<TileOp>& tiles) const {
  return std::ranges::any_of(tiles, [&](const TileOp& tile) {
    return tile.pairs !=
           round_.blocks.num_tokens(tile.q_block) * round_.blocks.num_tokens(tile.kv_block);
  });
}

// Most of the time of simulating plans with composite blocks is spent on their pieces.
double ProgramCosts::attention_us(const std::vector<TileOp>& tiles, Direction direction) {
  const bool cut = has_cut_tile(tiles);
  if (cut) {
    if (const CallTimes* known = known_calls_.find(tiles)) return (*known)[index_of(direction)];
  }
  add_runs(tiles);
  const CallTimes times = runs_us();
  clear_runs();
  if (cut) known_calls_.keep(tiles, times);
  return times[index_of(direction)];
}

// Finds runs of whole blocks by block and group, and those of parts of blocks by their queries.
void ProgramCosts::add_runs(const std::vector<TileOp>& tiles) {
  for (const TileOp& tile : tiles) {
    const std::int64_t rows = round_.blocks.num_tokens(tile.q_block);
    const std::int64_t keys = round_.blocks.num_tokens(tile.kv_block);
    const std::size_t run =
        tile.q_block.index() * static_cast<std::size_t>(round_.head_groups) + tile.group.index();
    // A full tile is one piece; others are cut along the mask.
    if (tile.pairs == rows * keys) {
      add_to_run(run, rows, static_cast<double>(tile.pairs));
      continue;
    }
    pieces_.clear();
    index_.append_pieces(tile.q_block, tile.kv_block, pieces_);
    for (const TilePiece& piece : pieces_) {
      // Most pieces are rectangles, which waste nothing.
      const double computed =
          piece.pairs == piece.q.size() * piece.keys
              ? static_cast<double>(piece.pairs)
              : cluster_.attention.computed_pairs(piece.q.size(), piece.keys, piece.pairs);
      if (piece.q.size() == rows) {
        add_to_run(run, rows, computed);
      } else {
        part_runs_.add(run, piece.q, computed);
      }
    }
  }
}

ProgramCosts::KnownRun ProgramCosts::new_run(std::int64_t rows, double computed_pairs,
                                             std::int32_t head_groups) const {
  KnownRun run{rows, head_groups, computed_pairs, {}};
  for (const Direction direction : kDirections) {
    run.us[index_of(direction)] = costs_.run_us(direction, rows, computed_pairs, head_groups);
  }
  return run;
}

// Caches times, because documents that are cut alike make the same runs in tile after tile.
inline const CallTimes& ProgramCosts::part_run_us(std::int64_t rows, double computed_pairs,
                                                  std::int32_t head_groups) {
  std::uint64_t hash = std::bit_cast<std::uint64_t>(computed_pairs) ^
                       (static_cast<std::uint64_t>(rows) << 1U) ^
                       (static_cast<std::uint64_t>(head_groups) << 32U);
  hash *= 0x9E3779B97F4A7C15U;
  KnownRun& known = known_runs_[hash >> (64U - kKnownRunBits)];
  if (known.rows != rows || known.computed_pairs != computed_pairs ||
      known.head_groups != head_groups) {
    known = new_run(rows, computed_pairs, head_groups);
  }
  return known.us;
}

CallTimes ProgramCosts::runs_us() {
  CallTimes us{};
  for (const auto& [run, rows] : runs_) {
    for (const Direction direction : kDirections) {
      us[index_of(direction)] +=
          costs_.run_us(direction, rows, computed_of_run_[run], groups_of_run(run));
    }
  }
  std::size_t run = computed_of_run_.size();  // none
  std::int32_t head_groups = 0;
  for (const PartRun& part : part_runs_.sorted()) {
    if (part.run != run) {
      run = part.run;
      head_groups = groups_of_run(run);
    }
    const CallTimes& part_us = part_run_us(part.q.size(), part.computed_pairs, head_groups);
    for (std::size_t d = 0; d < us.size(); ++d) us[d] += part_us[d];
  }
  return us;
}

void ProgramCosts::clear_runs() {
  for (const auto& [run, rows] : runs_) computed_of_run_[run] = 0;
  runs_.clear();
  part_runs_.clear();
}

std::int32_t ProgramCosts::groups_of_run(std::size_t run) const {
  const auto groups = static_cast<std::size_t>(round_.head_groups);
  return round_.groups_of(BlockId{static_cast<std::int32_t>(run / groups)});
}

void ProgramCosts::add_to_run(std::size_t run, std::int64_t rows, double computed_pairs) {
  if (computed_of_run_[run] == 0) runs_.emplace_back(run, rows);
  computed_of_run_[run] += computed_pairs;
}

double ProgramCosts::memory_us(double bytes) const {
  return bytes / (1e9 * cluster_.memory_gbytes_per_s) * kUsPerSecond;
}

double ProgramCosts::accumulator_bytes(Kind kind, BlockId block) const {
  return static_cast<double>(unit_bytes(kind, round_.blocks.num_tokens(block), plan_.shape,
                                        round_.groups_of(block), Dtype::kF32));
}

TimedStep ProgramCosts::merge_step(Kind kind, BlockId block, std::size_t sources) const {
  TimedStep step;
  step.activity = Activity::kMerge;
  step.duration_us = memory_us(accumulator_bytes(kind, block) * static_cast<double>(sources + 1));
  step.host_us = cluster_.engine.host_merge_us;
  return step;
}

// Bytes of a launch's transfers by peer, in the order in which peers are first named.
std::vector<MessageEnd> ProgramCosts::message_ends(const std::vector<TransferEnd>& transfers) {
  std::vector<MessageEnd> ends;
  for (const TransferEnd& transfer : transfers) {
    std::int32_t& end = end_of_peer_[transfer.peer.index()];
    if (end < 0) {
      end = static_cast<std::int32_t>(ends.size());
      ends.push_back({transfer.peer, 0});
    }
    ends[static_cast<std::size_t>(end)].bytes += static_cast<std::int64_t>(
        static_cast<double>(transfer_bytes(transfer)) * plan_.padded_bytes_factor);
  }
  for (const MessageEnd& end : ends) end_of_peer_[end.peer.index()] = -1;
  return ends;
}

std::int64_t ProgramCosts::transfer_bytes(const TransferEnd& transfer) const {
  return unit_bytes(transfer.kind, round_.blocks.num_tokens(transfer.block), plan_.shape,
                    round_.groups_of(transfer.block), transfer.wire);
}

double ProgramCosts::merged_bytes(const AttentionOp& attention, Direction direction) {
  const double per_element = cluster_.engine.merge_bytes_per_element;
  if (per_element == 0 || direction == Direction::kBackward) return 0;
  // A slot is merged once per call, unless the call begins it.
  ++merging_call_;
  double elements = 0;
  for (const TileOp& tile : attention.tiles) {
    if (call_of_slot_.size() <= tile.result.index()) call_of_slot_.resize(tile.result.index() + 1);
    if (call_of_slot_[tile.result.index()] == merging_call_) continue;
    call_of_slot_[tile.result.index()] = merging_call_;
    if (tile.init_result) continue;
    const std::int32_t heads = plan_.shape.q_heads / round_.groups_of(tile.q_block);
    elements +=
        static_cast<double>(round_.blocks.num_tokens(tile.q_block)) * heads * plan_.shape.value_dim;
  }
  return per_element * elements;
}

TimedStep ProgramCosts::launch_step(const LaunchOp& launch) {
  TimedStep step;
  step.activity = Activity::kLaunch;
  step.launch_id = launch.id;
  step.sends = message_ends(launch.sends);
  step.receives = message_ends(launch.recvs);
  // Accumulators are fp32: a result with another wire dtype is converted on both ends.
  double converted_bytes = 0;
  for (const auto* transfers : {&launch.sends, &launch.recvs}) {
    for (const TransferEnd& transfer : *transfers) {
      if (!is_result(transfer.kind) || transfer.wire == Dtype::kF32) continue;
      converted_bytes += accumulator_bytes(transfer.kind, transfer.block) +
                         static_cast<double>(transfer_bytes(transfer));
    }
  }
  step.duration_us = cluster_.launch_us + memory_us(converted_bytes);
  step.host_us = cluster_.engine.host_launch_us +
                 cluster_.engine.host_message_us *
                     static_cast<double>(step.sends.size() + step.receives.size());
  return step;
}

TimedProgram ProgramCosts::of(Rank rank, Direction direction) {
  TimedProgram timed;
  const Program& program = *round_.devices[rank.index()].programs[mask_].of(direction);
  timed.steps.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions) {
    if (const auto* attention = std::get_if<AttentionOp>(&instruction)) {
      TimedStep& step = timed.steps.emplace_back();
      const double work_us = attention_us(attention->tiles, direction);
      for (const TileOp& tile : attention->tiles) {
        timed.flops += static_cast<double>(tile.pairs) * flops_per_pair_[index_of(direction)] *
                       round_.parts_of(tile.q_block);
      }
      step.duration_us = cluster_.attention.call_us + work_us * plan_.padded_pairs_factor;
      step.merge_us = memory_us(merged_bytes(*attention, direction));
      step.host_us = cluster_.engine.host_stage_us;
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
