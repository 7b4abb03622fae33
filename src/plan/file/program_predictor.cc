#include "plan/file/program_predictor.h"

#include <limits>

namespace contextile {
namespace {

std::size_t index_of(Kind kind) { return static_cast<std::size_t>(kind); }

}  // namespace

// --------------------------------------------------------------------------------- SmallMap

std::size_t SmallMap::place_of(std::int64_t key) const {
  const std::size_t mask = entries_.size() - 1;
  std::uint64_t hash = static_cast<std::uint64_t>(key) * 0x9e3779b97f4a7c15U;
  hash ^= hash >> 32;
  std::size_t place = static_cast<std::size_t>(hash) & mask;
  while (entries_[place].key != -1 && entries_[place].key != key) place = (place + 1) & mask;
  return place;
}

std::int32_t SmallMap::find(std::int64_t key) const {
  return entries_.empty() ? -1 : entries_[place_of(key)].value;
}

void SmallMap::set(std::int64_t key, std::int32_t value) {
  if (2 * (used_ + 1) > entries_.size()) grow();
  Entry& entry = entries_[place_of(key)];
  if (entry.key == -1) ++used_;
  entry = {key, value};
}

void SmallMap::grow() {
  std::vector<Entry> old(entries_.empty() ? 16 : 2 * entries_.size());
  old.swap(entries_);
  for (const Entry& entry : old) {
    if (entry.key != -1) entries_[place_of(entry.key)] = entry;
  }
}

// --------------------------------------------------------------------------------- predictor

ProgramPredictor::ProgramPredictor(const ProgramContext& context)
    : context_(context),
      result_kind_(context.direction == Direction::kForward ? Kind::kO : Kind::kDq),
      owned_slots_(static_cast<std::int32_t>(context.local_blocks.size()) *
                   context.round->head_groups) {
  first_send.block = first_recv.block = BlockId{0};
  first_send.group = first_recv.group = GroupId{0};
  first_send.peer = first_recv.peer = Rank{0};
  for (std::size_t i = 0; i < context.local_blocks.size(); ++i) {
    local_position_.set(context.local_blocks[i].value, static_cast<std::int32_t>(i));
  }
  for (std::size_t kind = 0; kind < last_wire_.size(); ++kind) {
    last_staging_slot_[kind] = SlotId{owned_slots_ - 1};
    last_wire_[kind] = is_result(static_cast<Kind>(kind)) ? context.partial_wire : context.dtype;
  }
  previous_tile_.q_block = previous_tile_.kv_block = BlockId{0};
  previous_tile_.group = GroupId{0};
}

SlotId ProgramPredictor::slot_of(Kind kind, BlockId block, GroupId group) const {
  const std::int32_t seen = slots_[index_of(kind)].find(unit_key(block, group));
  if (seen >= 0) return SlotId{seen};
  const std::int32_t position = local_position_.find(block.value);
  if (position >= 0) return SlotId{position * context_.round->head_groups + group.value};
  const SlotId last = last_staging_slot_[index_of(kind)];
  return last.value == std::numeric_limits<std::int32_t>::max() ? last : SlotId{last.value + 1};
}

void ProgramPredictor::remember_slot(Kind kind, BlockId block, GroupId group, SlotId slot) {
  slots_[index_of(kind)].set(unit_key(block, group), slot.value);
  if (slot.value >= owned_slots_) last_staging_slot_[index_of(kind)] = slot;
}

// ------------------------------------------------------------------------------------- tiles

TileOp ProgramPredictor::next_place() const {
  TileOp next;
  next.q_block = previous_tile_.q_block;
  next.kv_block = BlockId{previous_tile_.kv_block.value + 1};
  next.group = previous_tile_.group;
  return next;
}

void ProgramPredictor::predict_rest(TileOp& tile) const {
  tile.q = slot_of(Kind::kQ, tile.q_block, tile.group);
  tile.kv = slot_of(Kind::kKv, tile.kv_block, tile.group);
  tile.result = slot_of(result_kind_, tile.q_block, tile.group);
  if (context_.direction == Direction::kBackward) {
    tile.d_o = slot_of(Kind::kDo, tile.q_block, tile.group);
    tile.dkv = slot_of(Kind::kDkv, tile.kv_block, tile.group);
  }
  if (tile.q_block == previous_tile_.q_block && tile.kv_block == previous_tile_.kv_block) {
    tile.pairs = previous_tile_.pairs;  // another head group
    return;
  }
  // Unsigned: blocks of a file may be too large for the product, which is then only a bad guess.
  const auto q = static_cast<std::uint64_t>(context_.round->blocks.num_tokens(tile.q_block));
  const auto k = static_cast<std::uint64_t>(context_.round->blocks.num_tokens(tile.kv_block));
  tile.pairs = static_cast<std::int64_t>(tile.q_block == tile.kv_block ? q * (q + 1) / 2 : q * k);
}

void ProgramPredictor::remember(const TileOp& tile, const TileOp& predicted) {
  remember_slot(Kind::kQ, tile.q_block, tile.group, tile.q);
  remember_slot(Kind::kKv, tile.kv_block, tile.group, tile.kv);
  remember_slot(result_kind_, tile.q_block, tile.group, tile.result);
  if (context_.direction == Direction::kBackward) {
    remember_slot(Kind::kDo, tile.q_block, tile.group, tile.d_o);
    remember_slot(Kind::kDkv, tile.kv_block, tile.group, tile.dkv);
  }
  if (tile.pairs != predicted.pairs) last_unpredicted_pairs_ = tile.pairs;
  previous_tile_ = tile;
}

// --------------------------------------------------------------------------------- transfers

TransferEnd ProgramPredictor::next_end(const TransferEnd& previous) const {
  TransferEnd next = previous;
  next.block = BlockId{previous.block.value + 1};
  return next;
}

void ProgramPredictor::predict_rest(TransferEnd& end) const {
  end.slot = slot_of(end.kind, end.block, end.group);
  end.wire = last_wire_[index_of(end.kind)];
}

void ProgramPredictor::remember(const TransferEnd& end) {
  remember_slot(end.kind, end.block, end.group, end.slot);
  last_wire_[index_of(end.kind)] = end.wire;
}

}  // namespace contextile
