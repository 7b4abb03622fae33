#include <array>
#include <limits>
#include <utility>

#include "plan/file/program_codec.h"
#include "plan/file/program_predictor.h"

namespace contextile {
namespace {

constexpr std::array<Kind, kNumKinds> kKinds = {Kind::kQ,  Kind::kKv, Kind::kO,
                                                Kind::kDo, Kind::kDq, Kind::kDkv};
constexpr std::int64_t kEndOfInt32 = std::int64_t{1} << 31;

SlotId read_slot(ByteReader& in, SlotId base) {
  return SlotId{in.delta32(base.value, 0, kEndOfInt32, "a slot")};
}
Kind read_kind(ByteReader& in) {
  return static_cast<Kind>(in.in_range(in.byte(), 0, kNumKinds, "a kind"));
}

class ProgramDecoder {
 public:
  ProgramDecoder(ByteReader in, const ProgramContext& context)
      : context_(context), in_(in), expect_(context) {}

  std::vector<Instruction> decode() {
    std::vector<Instruction> instructions;
    while (!in_.done()) {
      in_.at_element(static_cast<std::int64_t>(instructions.size()));
      instructions.push_back(read_instruction());
    }
    return instructions;
  }

 private:
  Instruction read_instruction() {
    switch (in_.in_range(in_.byte(), 0, std::variant_size_v<Instruction>, "an operation")) {
      case 0:
        return read_attention();
      case 1:
        return read_reduce();
      case 2:
        return read_copy();
      case 3:
        return read_launch();
      default:
        return read_wait();
    }
  }

  AttentionOp read_attention() {
    AttentionOp op;
    const std::int64_t tiles = in_.count("tiles");
    op.tiles.reserve(static_cast<std::size_t>(tiles));
    for (std::int64_t i = 0; i < tiles; ++i) op.tiles.push_back(read_tile());
    return op;
  }

  TileOp read_tile() {
    const bool backward = context_.direction == Direction::kBackward;
    const std::uint64_t flags = in_.varint();
    constexpr std::uint64_t kBackwardOnly = kTileInitDkv | kTileDo | kTileDkv;
    if (flags >= kTileFlagsEnd || (!backward && (flags & kBackwardOnly) != 0)) {
      in_.fail("expected the flags of a {} tile, found {:#x}", to_string(context_.direction),
               flags);
    }
    const TileOp previous = expect_.previous_tile();
    TileOp tile = expect_.next_place();
    if (flags & kTileKvBlock) tile.kv_block = read_block(previous.kv_block);
    if (flags & kTileQBlock) tile.q_block = read_block(previous.q_block);
    if (flags & kTileGroup) tile.group = read_group(previous.group);
    check_block(tile.kv_block);  // also of a predicted one
    check_block(tile.q_block);

    expect_.predict_rest(tile);
    const TileOp predicted = tile;
    if (flags & kTilePairs) tile.pairs = in_.delta(expect_.last_unpredicted_pairs());
    in_.in_range(tile.pairs, 0, kMaxTilePairs, "pairs of a tile");
    if (flags & kTileResult) tile.result = read_slot(in_, predicted.result);
    if (flags & kTileKv) tile.kv = read_slot(in_, predicted.kv);
    if (flags & kTileQ) tile.q = read_slot(in_, predicted.q);
    if (flags & kTileDo) tile.d_o = read_slot(in_, predicted.d_o);
    if (flags & kTileDkv) tile.dkv = read_slot(in_, predicted.dkv);
    tile.init_result = (flags & kTileInitResult) != 0;
    tile.init_dkv = (flags & kTileInitDkv) != 0;
    expect_.remember(tile, predicted);
    return tile;
  }

  ReduceOp read_reduce() {
    ReduceOp op;
    read_unit(op.kind, op.block, op.group);
    op.dst = read_slot(in_, expect_.slot_of(op.kind, op.block, op.group));
    const std::int64_t srcs = in_.count("sources");
    op.srcs.reserve(static_cast<std::size_t>(srcs));
    SlotId previous = op.dst;
    for (std::int64_t i = 0; i < srcs; ++i) {
      previous = read_slot(in_, previous);
      op.srcs.push_back(previous);
    }
    expect_.remember_slot(op.kind, op.block, op.group, op.dst);
    return op;
  }

  CopyOp read_copy() {
    CopyOp op;
    read_unit(op.kind, op.block, op.group);
    op.src = read_slot(in_, expect_.slot_of(op.kind, op.block, op.group));
    op.dst = read_slot(in_, op.src);
    expect_.remember_slot(op.kind, op.block, op.group, op.dst);
    return op;
  }

  LaunchOp read_launch() {
    LaunchOp op;
    op.id = in_.delta32(expect_.last_launch, 0, kEndOfInt32, "a launch id");
    expect_.last_launch = op.id;
    op.sends = read_ends(expect_.first_send);
    op.recvs = read_ends(expect_.first_recv);
    return op;
  }

  WaitOp read_wait() {
    const std::int32_t id = in_.delta32(expect_.last_wait, 0, kEndOfInt32, "a launch id");
    expect_.last_wait = id;
    return WaitOp{id};
  }

  std::vector<TransferEnd> read_ends(TransferEnd& first) {
    const std::int64_t count = in_.count("transfers");
    std::vector<TransferEnd> ends;
    ends.reserve(static_cast<std::size_t>(count));
    TransferEnd previous = first;
    for (std::int64_t i = 0; i < count; ++i) {
      previous = read_end(previous);
      ends.push_back(previous);
    }
    if (!ends.empty()) first = ends.front();
    return ends;
  }

  TransferEnd read_end(const TransferEnd& previous) {
    const std::uint64_t flags = in_.varint();
    if (flags >= kEndFlagsEnd) in_.fail("expected the flags of a transfer, found {:#x}", flags);
    TransferEnd end = expect_.next_end(previous);
    if (flags & kEndBlock) end.block = read_block(previous.block);
    if (flags & kEndPeer) {
      end.peer = Rank{in_.delta32(previous.peer.value, 0, context_.num_devices, "a peer")};
    }
    if (flags & kEndGroup) end.group = read_group(previous.group);
    if (flags & kEndKind) end.kind = read_kind(in_);
    check_block(end.block);  // also of a predicted one

    expect_.predict_rest(end);
    if (flags & kEndSlot) end.slot = read_slot(in_, end.slot);
    if (flags & kEndWire) {
      end.wire = static_cast<Dtype>(in_.in_range(in_.byte(), 0, kNumDtypes, "a wire dtype"));
    }
    expect_.remember(end);
    return end;
  }

  void read_unit(Kind& kind, BlockId& block, GroupId& group) {
    kind = read_kind(in_);
    block = read_block(expect_.last_block);
    group = read_group(expect_.last_group);
    expect_.last_block = block;
    expect_.last_group = group;
  }

  BlockId read_block(BlockId base) {
    return BlockId{in_.delta32(base.value, 0, context_.round->blocks.num_blocks(), "a block")};
  }
  GroupId read_group(GroupId base) {
    return GroupId{in_.delta32(base.value, 0, context_.round->head_groups, "a head group")};
  }
  void check_block(BlockId block) const {
    in_.in_range(block.value, 0, context_.round->blocks.num_blocks(), "a block");
  }

  const ProgramContext& context_;
  ByteReader in_;
  ProgramPredictor expect_;
};

void decode_staging(ByteReader in, Direction direction, Program& program) {
  for (const Kind kind : kKinds) {
    if (!occurs_in(kind, direction)) continue;
    std::vector<StagingSlot>& slots = program.staging[static_cast<std::size_t>(kind)];
    const std::int64_t count = in.count("staging slots");
    slots.reserve(static_cast<std::size_t>(count));
    StagingSlot previous;
    for (std::int64_t i = 0; i < count; ++i) {
      in.at_element(i);
      StagingSlot slot;
      slot.offset_tokens = in.in_range(in.delta(previous.offset_tokens + previous.capacity_tokens),
                                       0, kMaxArenaTokens, "an offset");
      slot.capacity_tokens =
          in.in_range(in.delta(previous.capacity_tokens), 0, kMaxArenaTokens, "a capacity");
      slots.push_back(slot);
      previous = slot;
    }
  }
  in.expect_end();
}

void decode_retain(ByteReader in, Direction direction, Program& program) {
  const std::int64_t count = in.count("retained slots");
  if (count > 0 && direction == Direction::kBackward) {
    in.fail("expected no retained slots in a backward program, found {}", count);
  }
  program.retain.reserve(static_cast<std::size_t>(count));
  Retain previous{Kind::kKv, SlotId{0}, SlotId{0}};
  for (std::int64_t i = 0; i < count; ++i) {
    in.at_element(i);
    previous.kind = read_kind(in);
    previous.slot = read_slot(in, previous.slot);
    previous.backward_slot = read_slot(in, previous.backward_slot);
    program.retain.push_back(previous);
  }
  in.expect_end();
}

FilePlace in_stream(FilePlace place, std::string_view stream) {
  place.stream = stream;
  return place;
}

}  // namespace

Program decode_program(const ProgramByteViews& bytes, const ProgramContext& context,
                       const FilePlace& place) {
  Program program;
  decode_staging(ByteReader(bytes.staging, in_stream(place, "staging slot")), context.direction,
                 program);
  decode_retain(ByteReader(bytes.retain, in_stream(place, "retained slot")), context.direction,
                program);
  ProgramDecoder decoder(ByteReader(bytes.code, in_stream(place, "instruction")), context);
  program.instructions = decoder.decode();
  return program;
}

}  // namespace contextile
