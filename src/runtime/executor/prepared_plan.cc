#include "runtime/executor/prepared_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "contextile/plan.h"
#include "runtime/executor/check_program.h"
#include "runtime/executor/program_views.h"
#include "runtime/executor/reduce_batches.h"

namespace contextile {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;

// Places arrays one after another.
class Placement {
 public:
  explicit Placement(std::int64_t begin = 0) : end_(begin) {}

  std::int64_t add(std::int64_t bytes) {
    const std::int64_t offset = end_;
    end_ += (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    return offset;
  }
  [[nodiscard]] std::int64_t end() const { return end_; }

 private:
  std::int64_t end_;
};

LocalRound local_round(const PlanRound& round, Rank rank, std::int64_t first_row) {
  LocalRound local;
  local.round = &round;
  local.first_row = first_row;
  local.blocks = round.devices[rank.index()].local_blocks;
  for (const BlockId block : local.blocks) {
    local.row.push_back(local.num_rows);
    const std::int64_t tokens = round.blocks.num_tokens(block);
    local.num_rows += tokens;
    for (int k = 0; k < kNumKinds; ++k) {
      const auto kind = static_cast<Kind>(k);
      if (!is_result(kind)) continue;
      local.accumulator_row[index_of(kind)].push_back(local.accumulator_rows[index_of(kind)]);
      if (role_has(round.blocks.role(block), kind)) {
        local.accumulator_rows[index_of(kind)] += tokens;
      }
    }
  }
  return local;
}

// Bytes of one array of `rows` rows of a unit's part.
std::int64_t part_bytes(const PartShape& part, std::int64_t rows) {
  return rows * part.heads * part.dim * bytes_per_element(part.dtype);
}

void place_buffers(const Plan& plan, const LocalRound& round, Direction direction,
                   LocalProgram& local) {
  Placement placement;
  for (int k = 0; k < kNumKinds; ++k) {
    const auto kind = static_cast<Kind>(k);
    if (!occurs_in(kind, direction)) continue;
    if (is_result(kind)) {
      const UnitShape owned = unit_shape(kind, plan.shape, 1);
      for (std::size_t p = 0; p < owned.num_parts; ++p) {
        const std::int64_t bytes =
            part_bytes(owned.parts[p], round.accumulator_rows[index_of(kind)]);
        local.accumulator_offset[index_of(kind)][p] = placement.add(bytes);
        local.memory.accumulator_bytes += bytes;
      }
    }
    const UnitShape staged = unit_shape(kind, plan.shape, round.round->head_groups);
    for (std::size_t p = 0; p < staged.num_parts; ++p) {
      const std::int64_t bytes = part_bytes(staged.parts[p], local.program->arena_tokens(kind));
      local.staging_offset[index_of(kind)][p] = placement.add(bytes);
      local.memory.staging_bytes += bytes;
    }
  }
  local.conversion_offset = placement.add(local.conversion.size_bytes);
  local.memory.conversion_bytes = local.conversion.size_bytes;
  local.total_bytes = placement.end();
}

// Owned results that are the target of nothing.
std::vector<std::pair<Kind, SlotId>> unwritten_slots(const LocalRound& round, Direction direction,
                                                     const Program& program) {
  // Every slot that some instruction writes.
  std::set<std::pair<Kind, SlotId>> written;
  for (const Instruction& instruction : program.instructions) {
    if (const auto* attention = std::get_if<AttentionOp>(&instruction)) {
      for (const TileOp& tile : attention->tiles) {
        written.emplace(direction == Direction::kForward ? Kind::kO : Kind::kDq, tile.result);
        if (direction == Direction::kBackward) written.emplace(Kind::kDkv, tile.dkv);
      }
    } else if (const auto* reduce = std::get_if<ReduceOp>(&instruction)) {
      written.emplace(reduce->kind, reduce->dst);
    } else if (const auto* copy = std::get_if<CopyOp>(&instruction)) {
      written.emplace(copy->kind, copy->dst);
    } else if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
      for (const TransferEnd& recv : launch->recvs) written.emplace(recv.kind, recv.slot);
    }
  }
  const std::int32_t groups = round.round->head_groups;
  std::vector<std::pair<Kind, SlotId>> unwritten;
  for (const Kind kind : {Kind::kO, Kind::kDq, Kind::kDkv}) {
    if (!occurs_in(kind, direction)) continue;
    for (std::size_t position = 0; position < round.blocks.size(); ++position) {
      if (!role_has(round.round->blocks.role(round.blocks[position]), kind)) continue;
      for (std::int32_t g = 0; g < round.round->groups_of(round.blocks[position]); ++g) {
        const SlotId slot{static_cast<std::int32_t>(position) * groups + g};
        if (!written.contains({kind, slot})) unwritten.emplace_back(kind, slot);
      }
    }
  }
  return unwritten;
}

// Bands of tiles, shared by head groups and by both directions.
class BandTable {
 public:
  BandTable(const TileIndex& index, LocalMask& mask, const Blocking& blocks,
            const AttentionKernel& kernel, const KernelParams& params)
      : index_(index), mask_(mask), blocks_(blocks), kernel_(kernel), params_(params) {}

  BandSpan find(const TileOp& tile, std::string_view where) {
    const auto [at, is_new] = spans_.try_emplace({tile.q_block, tile.kv_block});
    auto& [span, pairs] = at->second;
    if (is_new) {
      span.first = mask_.bands.size();
      pairs = index_.append_bands(tile.q_block, tile.kv_block, mask_.bands);
      span.count = mask_.bands.size() - span.first;
      span.prepared = prepare(tile, span);
    }
    if (pairs != tile.pairs) {
      fail_plan("{}, tile (q block {}, kv block {}): expected {} pairs under the mask, found {}",
                where, tile.q_block.value, tile.kv_block.value, pairs, tile.pairs);
    }
    return span;
  }

 private:
  const PreparedBands* prepare(const TileOp& tile, const BandSpan& span) {
    auto prepared = kernel_.prepare_bands(
        params_, blocks_.num_tokens(tile.q_block), blocks_.num_tokens(tile.kv_block),
        std::span<const LocalBand>(mask_.bands).subspan(span.first, span.count));
    if (prepared == nullptr) return nullptr;
    mask_.prepared.push_back(std::move(prepared));
    return mask_.prepared.back().get();
  }

  const TileIndex& index_;
  LocalMask& mask_;
  const Blocking& blocks_;
  const AttentionKernel& kernel_;
  const KernelParams params_;
  std::map<std::pair<BlockId, BlockId>, std::pair<BandSpan, std::int64_t>> spans_;
};

// Gives the kernel all attention of a program at once. Bands that it has classified before are no
// longer needed if it makes lists of them.
void prepare_lists(const Plan& plan, const LocalRound& round, const LocalMask& mask,
                   Direction direction, const AttentionKernel& kernel, LocalProgram& local) {
  // Views of stand-in addresses describe the tiles; a call replaces the addresses with its own.
  const StandIns there = stand_ins(plan.shape, round, direction);
  const ProgramViews views(plan.shape, round, local, direction, there.inputs, there.buffer);
  const KernelParams params = kernel_params(plan.shape, round.round->head_groups);
  std::vector<std::vector<ForwardTile>> forward;
  std::vector<std::vector<BackwardTile>> backward;
  std::size_t first_tile = 0;
  for (const Instruction& instruction : local.program->instructions) {
    const auto* attention = std::get_if<AttentionOp>(&instruction);
    if (attention == nullptr) continue;
    if (direction == Direction::kForward) {
      forward.push_back(views.forward_tiles(*attention, mask, first_tile));
    } else {
      backward.push_back(views.backward_tiles(*attention, mask, first_tile));
    }
    first_tile += attention->tiles.size();
  }
  local.lists = direction == Direction::kForward
                    ? kernel.prepare_forward(params, views.arrays(), forward)
                    : kernel.prepare_backward(params, views.arrays(), backward);
  if (local.lists == nullptr) return;
  Placement placement(local.total_bytes);
  // The lists need memory in each call, after its other arrays.
  local.lists_offset = placement.add(local.lists->call_bytes());
  local.total_bytes = placement.end();
}

void forget_bands(LocalMask& mask) {
  mask.prepared.clear();
  mask.bands.clear();
  for (std::optional<LocalProgram>& program : mask.programs) {
    if (program) program->tile_bands.clear();
  }
}

LocalMask local_mask(const Plan& plan, const LocalRound& round, std::size_t round_index,
                     std::size_t mask, Rank rank, const AttentionKernel& kernel) {
  LocalMask local;
  const ProgramPair& pair = round.round->devices[rank.index()].programs[mask];
  const TileIndex index(round.round->masks[mask].mask, round.round->blocks);
  BandTable table(index, local, round.round->blocks, kernel,
                  kernel_params(plan.shape, round.round->head_groups));
  for (const Direction direction : kDirections) {
    const std::optional<Program>& program = pair.of(direction);
    if (!program) continue;
    const std::string where = fmt::format("round {} mask {} {} rank {}", round_index, mask,
                                          to_string(direction), rank.value);
    check_program(plan, *round.round, *program, direction, rank, where);
    LocalProgram& mine = local.programs[static_cast<std::size_t>(direction)].emplace();
    mine.program = &*program;
    mine.conversion = conversion_layout(plan, *round.round, *program);
    place_buffers(plan, round, direction, mine);
    mine.unwritten = unwritten_slots(round, direction, *program);
    mine.batch_end = reduce_batches(round, *program);
    if (direction == Direction::kForward) {
      mine.retained =
          retained_slots(plan, *round.round, *program, where, mine.memory.retained_bytes);
      check_retained(plan, *round.round, mine.retained, pair.backward, rank, where);
    }
    // Looks up the bands of every tile in program order and checks its pairs.
    for (const Instruction& instruction : program->instructions) {
      const auto* attention = std::get_if<AttentionOp>(&instruction);
      if (attention == nullptr) continue;
      for (const TileOp& tile : attention->tiles) {
        mine.tile_bands.push_back(table.find(tile, where));
      }
    }
  }
  bool has_lists = kernel.makes_lists();
  for (const Direction direction : kDirections) {
    std::optional<LocalProgram>& mine = local.programs[static_cast<std::size_t>(direction)];
    if (!mine || !has_lists) continue;
    prepare_lists(plan, round, local, direction, kernel, *mine);
  }
  if (has_lists) forget_bands(local);
  return local;
}

}  // namespace

std::vector<RetainedSlot> retained_slots(const Plan& plan, const PlanRound& round,
                                         const Program& program, std::string_view where,
                                         std::int64_t& saved_bytes) {
  const auto last = program.last_brought();
  std::vector<RetainedSlot> retained;
  for (const Retain& retain : program.retain) {
    const auto found = last.find({retain.kind, retain.slot});
    if (found == last.end()) {
      fail_plan("{}: expected a received unit in the retained slot {}[{}], found nothing", where,
                to_string(retain.kind), retain.slot.value);
    }
    const auto [block, group] = found->second;
    retained.push_back({retain.kind, block, group, retain.slot, retain.backward_slot, saved_bytes});
    saved_bytes += unit_bytes(retain.kind, round.blocks.num_tokens(block), plan.shape,
                              round.groups_of(block), plan.shape.dtype);
  }
  return retained;
}

PreparedPlan prepare_plan(std::shared_ptr<const Plan> plan, Rank rank,
                          const AttentionKernel& kernel) {
  check_structure(*plan);
  kernel.check_shape(plan->shape);
  PreparedPlan prepared;
  prepared.rank = rank;
  for (std::size_t r = 0; r < plan->rounds.size(); ++r) {
    LocalRound round = local_round(plan->rounds[r], rank, prepared.local_rows);
    for (std::size_t m = 0; m < plan->rounds[r].masks.size(); ++m) {
      round.masks.push_back(local_mask(*plan, round, r, m, rank, kernel));
      prepared.band_bytes +=
          static_cast<std::int64_t>(round.masks.back().bands.size() * sizeof(LocalBand));
      for (const auto& bands : round.masks.back().prepared) {
        prepared.band_bytes += bands->size_bytes();
      }
      for (const std::optional<LocalProgram>& program : round.masks.back().programs) {
        if (!program) continue;
        if (program->lists != nullptr) prepared.band_bytes += program->lists->size_bytes();
        prepared.buffer_bytes = std::max(prepared.buffer_bytes, program->total_bytes);
        if (program->memory.total_bytes() > prepared.largest.total_bytes()) {
          prepared.largest = program->memory;
        }
      }
    }
    prepared.local_rows += round.num_rows;
    prepared.rounds.push_back(std::move(round));
  }
  prepared.plan = std::move(plan);
  return prepared;
}

}  // namespace contextile
