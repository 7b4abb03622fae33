#include "runtime/executor/program_views.h"

#include "contextile/plan.h"
#include "kernel/tensor.h"

namespace contextile {
namespace {

// No tensor is larger, and the address space of a process has at least 2^47 bytes.
constexpr std::uintptr_t kStandInBytes = std::uintptr_t{1} << 41;

// Returns `rows` contiguous rows of a part.
TensorView array_view(std::byte* data, const PartShape& part, std::int64_t rows) {
  return contiguous(data, part.dtype, rows, part.heads, part.dim);
}

std::span<const LocalBand> bands_of(const LocalMask& mask, const BandSpan& span) {
  return std::span<const LocalBand>(mask.bands).subspan(span.first, span.count);
}

// Part g of n of the heads.
TensorView heads_of(const TensorView& view, std::int32_t g, std::int32_t n) {
  const std::int32_t heads = view.heads / n;
  return slice(view, 0, view.tokens, g * heads, heads);
}

}  // namespace

ProgramViews::ProgramViews(const AttentionShape& shape, const LocalRound& round,
                           const LocalProgram& program, Direction direction,
                           const OwnedInputs& inputs, std::byte* buffer)
    : shape_(shape), round_(round), program_(program), inputs_(inputs) {
  for (std::size_t k = 0; k < kNumKinds; ++k) {
    const auto kind = static_cast<Kind>(k);
    if (!occurs_in(kind, direction)) continue;
    const UnitShape staged = unit_shape(kind, shape, round.round->head_groups);
    const UnitShape owned = unit_shape(kind, shape, 1);
    for (std::size_t p = 0; p < staged.num_parts; ++p) {
      // An arena has rows of one head group of the round, an accumulator has rows of all heads: the
      // groups of an owned block lie next to each other in a row.
      arenas_[k][p] = array_view(buffer + program.staging_offset[k][p], staged.parts[p],
                                 program.program->arena_tokens(kind));
      if (!is_result(kind)) continue;
      accumulators_[k][p] = array_view(buffer + program.accumulator_offset[k][p], owned.parts[p],
                                       round.accumulator_rows[k]);
    }
  }
}

UnitView ProgramViews::unit(Kind kind, BlockId block, GroupId group, SlotId slot) const {
  const std::size_t k = index_of(kind);
  const std::int32_t groups = round_.round->head_groups;
  const UnitShape shape = unit_shape(kind, shape_, round_.round->groups_of(block));
  const std::int64_t tokens = round_.round->blocks.num_tokens(block);
  // Owned slots come first. A block with fewer head groups leaves some of its numbers unused.
  const std::size_t owned = round_.blocks.size() * static_cast<std::size_t>(groups);
  UnitView view{kind, shape.num_parts, {}};
  for (std::size_t p = 0; p < shape.num_parts; ++p) {
    const std::int32_t heads = shape.parts[p].heads;
    // A staged unit is contiguous from the first row of its slot. If its group is wider than those
    // of the round, a token takes several rows of the arena. So the unit takes its address from the
    // arena, but not its stride.
    if (slot.index() >= owned) {
      const StagingSlot& staged = program_.program->staging[k][slot.index() - owned];
      const TensorView place = slice(arenas_[k][p], staged.offset_tokens, 0, 0, 0);
      view.parts[p] = array_view(static_cast<std::byte*>(place.data), shape.parts[p], tokens);
      continue;
    }
    const auto position = static_cast<std::size_t>(slot.value / groups);
    // An owned unit is some heads of the block's rows. Accumulators count rows by themselves,
    // because blocks whose role lacks the kind have none there.
    const std::int64_t row =
        is_result(kind) ? round_.accumulator_row[k][position] : round_.row[position];
    const TensorView& base = is_result(kind) ? accumulators_[k][p] : inputs_[k][p];
    view.parts[p] = slice(base, row, tokens, group.value * heads, heads);
  }
  return view;
}

UnitView ProgramViews::owned_result(Kind kind, std::size_t position) const {
  const std::size_t k = index_of(kind);
  const UnitShape shape = unit_shape(kind, shape_, 1);
  const std::int64_t tokens = round_.round->blocks.num_tokens(round_.blocks[position]);
  UnitView view{kind, shape.num_parts, {}};
  for (std::size_t p = 0; p < shape.num_parts; ++p) {
    view.parts[p] = slice(accumulators_[k][p], round_.accumulator_row[k][position], tokens, 0,
                          shape.parts[p].heads);
  }
  return view;
}

// A kind that does not occur in the direction has views without heads.
std::vector<TensorView> ProgramViews::arrays() const {
  std::vector<TensorView> all;
  for (const ByKindAndPart<TensorView>* of : {&inputs_, &arenas_, &accumulators_}) {
    for (const auto& parts : *of) {
      for (const TensorView& part : parts) {
        if (part.heads > 0) all.push_back(part);
      }
    }
  }
  return all;
}

std::vector<ForwardTile> ProgramViews::forward_tiles(const AttentionOp& op, const LocalMask& mask,
                                                     std::size_t first_tile) const {
  std::vector<ForwardTile> tiles;
  tiles.reserve(op.tiles.size());
  for (const TileOp& tile : op.tiles) {
    const UnitView q = unit(Kind::kQ, tile.q_block, tile.group, tile.q);
    const UnitView kv = unit(Kind::kKv, tile.kv_block, tile.group, tile.kv);
    const UnitView o = unit(Kind::kO, tile.q_block, tile.group, tile.result);
    const BandSpan& bands = program_.tile_bands[first_tile++];
    const std::int32_t n = round_.round->parts_of(tile.q_block);
    // A call has the parameters of one head group of the round, so a tile of a wider group becomes
    // one kernel tile for each group that it spans. They all have the same bands.
    for (std::int32_t g = 0; g < n; ++g) {
      tiles.push_back({heads_of(q.parts[0], g, n), heads_of(kv.parts[0], g, n),
                       heads_of(kv.parts[1], g, n), heads_of(o.parts[0], g, n),
                       as_stats(heads_of(o.parts[1], g, n)), bands_of(mask, bands),
                       tile.init_result, bands.prepared});
    }
  }
  return tiles;
}

std::vector<BackwardTile> ProgramViews::backward_tiles(const AttentionOp& op, const LocalMask& mask,
                                                       std::size_t first_tile) const {
  // The parts of units are those that unit_view.h lists: K and V of kv; dO, LSE and delta of do.
  std::vector<BackwardTile> tiles;
  tiles.reserve(op.tiles.size());
  for (const TileOp& tile : op.tiles) {
    const UnitView q = unit(Kind::kQ, tile.q_block, tile.group, tile.q);
    const UnitView kv = unit(Kind::kKv, tile.kv_block, tile.group, tile.kv);
    const UnitView d_o = unit(Kind::kDo, tile.q_block, tile.group, tile.d_o);
    const UnitView dq = unit(Kind::kDq, tile.q_block, tile.group, tile.result);
    const UnitView dkv = unit(Kind::kDkv, tile.kv_block, tile.group, tile.dkv);
    const BandSpan& bands = program_.tile_bands[first_tile++];
    const std::int32_t n = round_.round->parts_of(tile.q_block);
    for (std::int32_t g = 0; g < n; ++g) {
      tiles.push_back({heads_of(q.parts[0], g, n), heads_of(kv.parts[0], g, n),
                       heads_of(kv.parts[1], g, n), heads_of(d_o.parts[0], g, n),
                       as_stats(heads_of(d_o.parts[1], g, n)),
                       as_stats(heads_of(d_o.parts[2], g, n)), heads_of(dq.parts[0], g, n),
                       heads_of(dkv.parts[0], g, n), heads_of(dkv.parts[1], g, n),
                       bands_of(mask, bands), tile.init_result, tile.init_dkv, bands.prepared});
    }
  }
  return tiles;
}

// The arrays begin 2^41 bytes apart, so an address inside one tells which array it is.
StandIns stand_ins(const AttentionShape& shape, const LocalRound& round, Direction direction) {
  StandIns all;
  std::uintptr_t at = kStandInBytes;
  const auto next = [&] {
    auto* const data = reinterpret_cast<std::byte*>(at);  // only compared and subtracted
    at += kStandInBytes;
    return data;
  };
  for (const Kind kind : {Kind::kQ, Kind::kKv, Kind::kDo}) {
    if (!occurs_in(kind, direction)) continue;
    const UnitShape unit = unit_shape(kind, shape, 1);
    for (std::size_t p = 0; p < unit.num_parts; ++p) {
      all.inputs[index_of(kind)][p] = array_view(next(), unit.parts[p], round.num_rows);
    }
  }
  all.buffer = next();
  return all;
}

}  // namespace contextile
