#include <variant>

#include "plan/file/program_codec.h"
#include "plan/file/program_predictor.h"

namespace contextile {
namespace {

constexpr std::array<Kind, kNumKinds> kKinds = {Kind::kQ,  Kind::kKv, Kind::kO,
                                                Kind::kDo, Kind::kDq, Kind::kDkv};

class ProgramEncoder {
 public:
  explicit ProgramEncoder(const ProgramContext& context) : context_(context), expect_(context) {}

  std::vector<std::uint8_t> encode(const Program& program) {
    for (const Instruction& instruction : program.instructions) {
      out_.byte(static_cast<std::uint8_t>(instruction.index()));
      std::visit([this](const auto& op) { this->write(op); }, instruction);
    }
    return out_.take();
  }

 private:
  void write(const AttentionOp& op) {
    out_.varint(op.tiles.size());
    for (const TileOp& tile : op.tiles) write_tile(tile);
  }

  void write_tile(const TileOp& tile) {
    const bool backward = context_.direction == Direction::kBackward;
    check_unit(tile.q_block, tile.group);
    check_unit(tile.kv_block, tile.group);
    for (const SlotId slot : {tile.q, tile.kv, tile.result}) check_slot(slot);
    if (backward) {
      check_slot(tile.d_o);
      check_slot(tile.dkv);
    }
    const TileOp& previous = expect_.previous_tile();
    const TileOp place = expect_.next_place();
    TileOp predicted = tile;
    expect_.predict_rest(predicted);

    std::uint32_t flags = 0;
    if (tile.kv_block != place.kv_block) flags |= kTileKvBlock;
    if (tile.q_block != place.q_block) flags |= kTileQBlock;
    if (tile.init_result) flags |= kTileInitResult;
    if (backward && tile.init_dkv) flags |= kTileInitDkv;
    if (tile.pairs != predicted.pairs) flags |= kTilePairs;
    if (tile.group != place.group) flags |= kTileGroup;
    if (tile.result != predicted.result) flags |= kTileResult;
    if (tile.kv != predicted.kv) flags |= kTileKv;
    if (tile.q != predicted.q) flags |= kTileQ;
    if (backward && tile.d_o != predicted.d_o) flags |= kTileDo;
    if (backward && tile.dkv != predicted.dkv) flags |= kTileDkv;

    out_.varint(flags);
    if (flags & kTileKvBlock) out_.delta(tile.kv_block.value, previous.kv_block.value);
    if (flags & kTileQBlock) out_.delta(tile.q_block.value, previous.q_block.value);
    if (flags & kTileGroup) out_.delta(tile.group.value, previous.group.value);
    if (flags & kTilePairs) out_.delta(tile.pairs, expect_.last_unpredicted_pairs());
    if (flags & kTileResult) out_.delta(tile.result.value, predicted.result.value);
    if (flags & kTileKv) out_.delta(tile.kv.value, predicted.kv.value);
    if (flags & kTileQ) out_.delta(tile.q.value, predicted.q.value);
    if (flags & kTileDo) out_.delta(tile.d_o.value, predicted.d_o.value);
    if (flags & kTileDkv) out_.delta(tile.dkv.value, predicted.dkv.value);
    expect_.remember(tile, predicted);
  }

  void write(const ReduceOp& op) {
    write_unit(op.kind, op.block, op.group);
    write_slot(op.kind, op.block, op.group, op.dst);
    out_.varint(op.srcs.size());
    SlotId previous = op.dst;
    for (const SlotId src : op.srcs) {
      check_slot(src);
      out_.delta(src.value, previous.value);
      previous = src;
    }
    expect_.remember_slot(op.kind, op.block, op.group, op.dst);
  }

  void write(const CopyOp& op) {
    write_unit(op.kind, op.block, op.group);
    write_slot(op.kind, op.block, op.group, op.src);
    check_slot(op.dst);
    out_.delta(op.dst.value, op.src.value);
    expect_.remember_slot(op.kind, op.block, op.group, op.dst);
  }

  void write(const LaunchOp& op) {
    out_.delta(op.id, expect_.last_launch);
    expect_.last_launch = op.id;
    write_ends(op.sends, expect_.first_send);
    write_ends(op.recvs, expect_.first_recv);
  }

  void write(const WaitOp& op) {
    out_.delta(op.id, expect_.last_wait);
    expect_.last_wait = op.id;
  }

  void write_ends(const std::vector<TransferEnd>& ends, TransferEnd& first) {
    out_.varint(ends.size());
    TransferEnd previous = first;
    for (const TransferEnd& end : ends) {
      write_end(end, previous);
      previous = end;
    }
    if (!ends.empty()) first = ends.front();
  }

  void write_end(const TransferEnd& end, const TransferEnd& previous) {
    check_unit(end.block, end.group);
    check_slot(end.slot);
    const TransferEnd next = expect_.next_end(previous);
    TransferEnd predicted = end;
    expect_.predict_rest(predicted);

    std::uint32_t flags = 0;
    if (end.block != next.block) flags |= kEndBlock;
    if (end.slot != predicted.slot) flags |= kEndSlot;
    if (end.peer != next.peer) flags |= kEndPeer;
    if (end.group != next.group) flags |= kEndGroup;
    if (end.kind != next.kind) flags |= kEndKind;
    if (end.wire != predicted.wire) flags |= kEndWire;

    out_.varint(flags);
    if (flags & kEndBlock) out_.delta(end.block.value, previous.block.value);
    if (flags & kEndPeer) out_.delta(end.peer.value, previous.peer.value);
    if (flags & kEndGroup) out_.delta(end.group.value, previous.group.value);
    if (flags & kEndKind) out_.byte(static_cast<std::uint8_t>(end.kind));
    if (flags & kEndSlot) out_.delta(end.slot.value, predicted.slot.value);
    if (flags & kEndWire) out_.byte(static_cast<std::uint8_t>(end.wire));
    expect_.remember(end);
  }

  void write_unit(Kind kind, BlockId block, GroupId group) {
    check_unit(block, group);
    out_.byte(static_cast<std::uint8_t>(kind));
    out_.delta(block.value, expect_.last_block.value);
    out_.delta(group.value, expect_.last_group.value);
    expect_.last_block = block;
    expect_.last_group = group;
  }

  void write_slot(Kind kind, BlockId block, GroupId group, SlotId slot) {
    check_slot(slot);
    out_.delta(slot.value, expect_.slot_of(kind, block, group).value);
  }

  void check_unit(BlockId block, GroupId group) const {
    const PlanRound& round = *context_.round;
    if (!block.valid() || block.value >= round.blocks.num_blocks() || !group.valid() ||
        group.value >= round.head_groups) {
      fail_plan("plan to write: expected units of {} blocks and {} head groups, found ({}, {})",
                round.blocks.num_blocks(), round.head_groups, block.value, group.value);
    }
  }
  static void check_slot(SlotId slot) {
    if (!slot.valid()) fail_plan("plan to write: expected slots >= 0, found {}", slot.value);
  }

  const ProgramContext& context_;
  ProgramPredictor expect_;
  ByteWriter out_;
};

std::vector<std::uint8_t> encode_staging(const Program& program, Direction direction) {
  ByteWriter out;
  for (const Kind kind : kKinds) {
    const std::vector<StagingSlot>& slots = program.staging[static_cast<std::size_t>(kind)];
    if (!occurs_in(kind, direction)) {
      if (!slots.empty()) {
        fail_plan("plan to write: expected no {} staging in a {} program, found {} slots",
                  to_string(kind), to_string(direction), slots.size());
      }
      continue;
    }
    out.varint(slots.size());
    StagingSlot previous;
    for (const StagingSlot& slot : slots) {
      // Slots that follow each other and have one size take two bytes.
      out.delta(slot.offset_tokens, previous.offset_tokens + previous.capacity_tokens);
      out.delta(slot.capacity_tokens, previous.capacity_tokens);
      previous = slot;
    }
  }
  return out.take();
}

std::vector<std::uint8_t> encode_retain(const Program& program) {
  ByteWriter out;
  out.varint(program.retain.size());
  Retain previous{Kind::kKv, SlotId{0}, SlotId{0}};
  for (const Retain& retain : program.retain) {
    out.byte(static_cast<std::uint8_t>(retain.kind));
    out.delta(retain.slot.value, previous.slot.value);
    out.delta(retain.backward_slot.value, previous.backward_slot.value);
    previous = retain;
  }
  return out.take();
}

}  // namespace

ProgramBytes encode_program(const Program& program, const ProgramContext& context) {
  ProgramBytes bytes;
  bytes.staging = encode_staging(program, context.direction);
  bytes.retain = encode_retain(program);
  bytes.code = ProgramEncoder(context).encode(program);
  return bytes;
}

}  // namespace contextile
