#include <array>
#include <utility>
#include <variant>

#include "base/check.h"
#include "plan/file/device_section.h"
#include "plan_generated.h"

namespace contextile {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

constexpr std::size_t kMaxSectionBytes = FLATBUFFERS_MAX_BUFFER_SIZE / 2;

std::uint32_t count_of(std::size_t count) { return static_cast<std::uint32_t>(count); }

// Splits the programs of all rounds, masks and directions into one list for each kind of item.
class DeviceEncoder {
 public:
  DeviceEncoder(const Plan& plan, std::size_t rank) : plan_(plan), rank_(rank) {}

  std::vector<std::uint8_t> encode() {
    for (std::size_t r = 0; r < plan_.rounds.size(); ++r) add_round(r);
    check_size();
    constexpr std::size_t kFixedBytes = 1024;
    FlatBufferBuilder builder(section_bytes() + kFixedBytes);
    // Created one after another, since the order determines the bytes.
    const auto num_local_blocks = builder.CreateVector(num_local_blocks_);
    const auto local_blocks = builder.CreateVector(local_blocks_);
    const auto programs = builder.CreateVectorOfStructs(programs_);
    const auto staging = write_staging(builder);
    const auto retain = builder.CreateVectorOfStructs(retain_);
    const auto instructions = builder.CreateVectorOfStructs(instructions_);
    const auto tiles = write_tiles(builder);
    const auto sources = builder.CreateVector(sources_);
    const auto transfers = write_transfers(builder);
    builder.Finish(fbs::CreateDevice(builder, count_of(rank_), num_local_blocks, local_blocks,
                                     programs, staging, retain, instructions, tiles, sources,
                                     transfers));
    return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
  }

 private:
  void add_round(std::size_t r) {
    round_ = &plan_.rounds[r];
    const DeviceProgram& device = round_->devices[rank_];
    add_local_blocks(device.local_blocks);
    check_alike(device.programs);
    for (std::size_t m = 0; m < device.programs.size(); ++m) {
      for (const Direction direction : kDirections) {
        const std::optional<Program>& program = device.programs[m].of(direction);
        if (program) add_program(*program, r, m, direction);
      }
    }
  }

  void add_local_blocks(const std::vector<BlockId>& blocks) {
    const std::int64_t slots = static_cast<std::int64_t>(blocks.size()) * round_->head_groups;
    if (slots >= kEndOfInt32) {
      fail_plan("plan to write: expected fewer than 2^31 owned slots on rank {}, found {}", rank_,
                slots);
    }
    num_local_blocks_.push_back(count_of(blocks.size()));
    for (const BlockId block : blocks) local_blocks_.push_back(block.value);
  }

  void check_alike(const std::vector<ProgramPair>& programs) const {
    const std::vector<ProgramPair>& first = round_->devices.front().programs;
    bool alike = programs.size() == round_->masks.size() && programs.size() == first.size();
    for (std::size_t m = 0; alike && m < programs.size(); ++m) {
      for (const Direction direction : kDirections) {
        alike =
            alike && programs[m].of(direction).has_value() == first[m].of(direction).has_value();
      }
    }
    if (!alike) {
      fail_plan(
          "plan to write: expected rank {} to have programs of the masks and directions of "
          "rank 0, found others",
          rank_);
    }
  }

  void add_program(const Program& program, std::size_t round, std::size_t mask,
                   Direction direction) {
    direction_ = direction;
    std::array<std::uint32_t, kNumKinds> slots{};
    for (std::size_t kind = 0; kind < slots.size(); ++kind) {
      slots[kind] = count_of(program.staging[kind].size());
      if (slots[kind] > 0 && !occurs_in(static_cast<Kind>(kind), direction)) {
        fail_plan("plan to write: expected no {} staging in a {} program, found {} slots",
                  to_string(static_cast<Kind>(kind)), to_string(direction), slots[kind]);
      }
      num_staging_ += slots[kind];
      staging_.emplace_back(program.staging[kind]);
    }
    for (const Retain& retain : program.retain) {
      retain_.emplace_back(static_cast<std::uint8_t>(retain.kind), retain.slot.value,
                           retain.backward_slot.value);
    }
    programs_.emplace_back(count_of(round), count_of(mask), direction == Direction::kBackward,
                           slots[0], slots[1], slots[2], slots[3], slots[4], slots[5],
                           count_of(program.retain.size()), count_of(program.instructions.size()));
    for (const Instruction& instruction : program.instructions) {
      std::visit([&](const auto& op) { this->add(instruction.index(), op); }, instruction);
    }
  }

  void add(std::size_t code, const AttentionOp& op) {
    const bool backward = direction_ == Direction::kBackward;
    for (const TileOp& tile : op.tiles) {
      check_unit(tile.q_block, tile.group);
      check_unit(tile.kv_block, tile.group);
      for (const SlotId slot : {tile.q, tile.kv, tile.result}) check_slot(slot);
      if (!backward) continue;
      check_slot(tile.d_o);
      check_slot(tile.dkv);
    }
    num_tiles_ += op.tiles.size();
    tiles_.emplace_back(op.tiles);
    if (backward) {
      num_backward_tiles_ += op.tiles.size();
      backward_tiles_.emplace_back(op.tiles);
    }
    add_instruction({.code = code, .count = op.tiles.size()});
  }

  void add(std::size_t code, const ReduceOp& op) { add_unit_instruction(code, op, op.srcs); }
  void add(std::size_t code, const CopyOp& op) { add_unit_instruction(code, op, {&op.src, 1}); }

  template <typename Op>
  void add_unit_instruction(std::size_t code, const Op& op, std::span<const SlotId> sources) {
    check_unit(op.block, op.group);
    check_slot(op.dst);
    for (const SlotId source : sources) {
      check_slot(source);
      sources_.push_back(source.value);
    }
    instructions_.emplace_back(static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(op.kind),
                               op.block.value, op.group.value, op.dst.value, 0,
                               count_of(sources.size()), 0);
  }

  void add(std::size_t code, const LaunchOp& op) {
    for (const auto* ends : {&op.sends, &op.recvs}) {
      for (const TransferEnd& end : *ends) {
        check_unit(end.block, end.group);
        check_slot(end.slot);
      }
      num_transfers_ += ends->size();
      transfers_.emplace_back(*ends);
    }
    add_instruction(
        {.code = code, .id = op.id, .count = op.sends.size(), .recvs = op.recvs.size()});
  }
  void add(std::size_t code, const WaitOp& op) { add_instruction({.code = code, .id = op.id}); }

  struct Counts {
    std::size_t code = 0;
    std::int32_t id = 0;
    std::size_t count = 0;
    std::size_t recvs = 0;
  };
  void add_instruction(const Counts& op) {
    instructions_.emplace_back(static_cast<std::uint8_t>(op.code), std::uint8_t{0}, 0, 0, 0, op.id,
                               count_of(op.count), count_of(op.recvs));
  }

  void check_unit(BlockId block, GroupId group) const {
    if (!block.valid() || block.value >= round_->blocks.num_blocks() || !group.valid() ||
        group.value >= round_->groups_of(block)) {
      fail_plan("plan to write: expected units of {} blocks and {} head groups, found ({}, {})",
                round_->blocks.num_blocks(), round_->head_groups, block.value, group.value);
    }
  }
  static void check_slot(SlotId slot) {
    if (!slot.valid()) fail_plan("plan to write: expected slots >= 0, found {}", slot.value);
  }

  std::size_t section_bytes() const {
    constexpr std::size_t kTileBytes = 6 * sizeof(std::int32_t) + 1 + sizeof(std::int64_t);
    constexpr std::size_t kBackwardTileBytes = 2 * sizeof(std::int32_t);
    constexpr std::size_t kSlotBytes = 2 * sizeof(std::int64_t);
    constexpr std::size_t kTransferBytes = 4 * sizeof(std::int32_t) + 2;
    return num_tiles_ * kTileBytes + num_backward_tiles_ * kBackwardTileBytes +
           (local_blocks_.size() + num_local_blocks_.size() + sources_.size()) *
               sizeof(std::int32_t) +
           programs_.size() * sizeof(fbs::Program) + num_staging_ * kSlotBytes +
           retain_.size() * sizeof(fbs::Retain) + instructions_.size() * sizeof(fbs::Instruction) +
           num_transfers_ * kTransferBytes;
  }
  void check_size() const {
    if (section_bytes() > kMaxSectionBytes) {
      fail_plan("plan to write: expected at most {} bytes of programs on rank {}, found {}",
                kMaxSectionBytes, rank_, section_bytes());
    }
  }

  template <typename Row>
  using Lists = std::vector<std::span<const Row>>;

  // A column with one number of each of `size` rows.
  template <typename T, typename Row, typename Get>
  static Offset<flatbuffers::Vector<T>> column(FlatBufferBuilder& builder, const Lists<Row>& lists,
                                               std::size_t size, const Get& get) {
    T* out = nullptr;
    const Offset<flatbuffers::Vector<T>> offset(builder.CreateUninitializedVector(size, &out));
    for (const std::span<const Row> rows : lists) {
      for (const Row& row : rows) flatbuffers::WriteScalar(out++, static_cast<T>(get(row)));
    }
    return offset;
  }

  Offset<fbs::Tiles> write_tiles(FlatBufferBuilder& builder) const {
    const auto ids = [&](const Lists<TileOp>& lists, std::size_t size, auto member) {
      return column<std::int32_t>(builder, lists, size,
                                  [=](const TileOp& tile) { return (tile.*member).value; });
    };
    const auto q_block = ids(tiles_, num_tiles_, &TileOp::q_block);
    const auto kv_block = ids(tiles_, num_tiles_, &TileOp::kv_block);
    const auto group = ids(tiles_, num_tiles_, &TileOp::group);
    const auto q = ids(tiles_, num_tiles_, &TileOp::q);
    const auto kv = ids(tiles_, num_tiles_, &TileOp::kv);
    const auto result = ids(tiles_, num_tiles_, &TileOp::result);
    const auto init = column<std::uint8_t>(builder, tiles_, num_tiles_, [](const TileOp& tile) {
      return (tile.init_result ? 1 : 0) | (tile.init_dkv ? 2 : 0);
    });
    const auto pairs = column<std::int64_t>(builder, tiles_, num_tiles_,
                                            [](const TileOp& tile) { return tile.pairs; });
    const auto backward_do = ids(backward_tiles_, num_backward_tiles_, &TileOp::d_o);
    const auto backward_dkv = ids(backward_tiles_, num_backward_tiles_, &TileOp::dkv);
    return fbs::CreateTiles(builder, q_block, kv_block, group, q, kv, result, init, pairs,
                            backward_do, backward_dkv);
  }

  Offset<fbs::StagingSlots> write_staging(FlatBufferBuilder& builder) const {
    const auto offset =
        column<std::int64_t>(builder, staging_, num_staging_,
                             [](const StagingSlot& slot) { return slot.offset_tokens; });
    const auto capacity =
        column<std::int64_t>(builder, staging_, num_staging_,
                             [](const StagingSlot& slot) { return slot.capacity_tokens; });
    return fbs::CreateStagingSlots(builder, offset, capacity);
  }

  Offset<fbs::Transfers> write_transfers(FlatBufferBuilder& builder) const {
    const auto ids = [&](auto member) {
      return column<std::int32_t>(builder, transfers_, num_transfers_,
                                  [=](const TransferEnd& end) { return (end.*member).value; });
    };
    const auto codes = [&](auto member) {
      return column<std::uint8_t>(builder, transfers_, num_transfers_,
                                  [=](const TransferEnd& end) { return end.*member; });
    };
    const auto block = ids(&TransferEnd::block);
    const auto group = ids(&TransferEnd::group);
    const auto slot = ids(&TransferEnd::slot);
    const auto peer = ids(&TransferEnd::peer);
    const auto kind = codes(&TransferEnd::kind);
    const auto wire = codes(&TransferEnd::wire);
    return fbs::CreateTransfers(builder, block, group, slot, peer, kind, wire);
  }

  const Plan& plan_;
  std::size_t rank_;
  const PlanRound* round_ = nullptr;  // of the program that is being added
  Direction direction_ = Direction::kForward;

  std::vector<std::uint32_t> num_local_blocks_;
  std::vector<std::int32_t> local_blocks_;
  std::vector<fbs::Program> programs_;
  std::vector<fbs::Retain> retain_;
  std::vector<fbs::Instruction> instructions_;
  std::vector<std::int32_t> sources_;
  Lists<StagingSlot> staging_;
  Lists<TransferEnd> transfers_;
  Lists<TileOp> tiles_;
  Lists<TileOp> backward_tiles_;
  std::size_t num_staging_ = 0;
  std::size_t num_transfers_ = 0;
  std::size_t num_tiles_ = 0;
  std::size_t num_backward_tiles_ = 0;
};

}  // namespace

std::vector<std::uint8_t> encode_device(const Plan& plan, std::size_t rank) {
  return DeviceEncoder(plan, rank).encode();
}

}  // namespace contextile
