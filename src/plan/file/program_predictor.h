// What encoder and decoder of a program expect next. Both feed it the same records in the same
// order.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "contextile/plan.h"
#include "plan/file/program_codec.h"

namespace contextile {

// Open-addressing map from keys >= 0 to 32-bit values. Memory is proportional to the entries.
class SmallMap {
 public:
  // The value of `key`, or -1.
  [[nodiscard]] std::int32_t find(std::int64_t key) const;
  void set(std::int64_t key, std::int32_t value);

 private:
  struct Entry {
    std::int64_t key = -1;
    std::int32_t value = -1;
  };
  [[nodiscard]] std::size_t place_of(std::int64_t key) const;  // of the key or of a free entry
  void grow();

  std::vector<Entry> entries_;
  std::size_t used_ = 0;
};

class ProgramPredictor {
 public:
  // local_blocks · head groups is below 2^31.
  explicit ProgramPredictor(const ProgramContext& context);

  // Blocks and group of the next tile; the rest is unset.
  [[nodiscard]] TileOp next_place() const;
  // Fills in slots and pairs of a tile whose blocks and group are known.
  void predict_rest(TileOp& tile) const;
  void remember(const TileOp& tile, const TileOp& predicted);
  [[nodiscard]] const TileOp& previous_tile() const { return previous_tile_; }
  [[nodiscard]] std::int64_t last_unpredicted_pairs() const { return last_unpredicted_pairs_; }

  // The end that follows `previous` in its list: kind, block, group and peer.
  [[nodiscard]] TransferEnd next_end(const TransferEnd& previous) const;
  // Fills in slot and wire of an end whose unit is known.
  void predict_rest(TransferEnd& end) const;
  void remember(const TransferEnd& end);

  // The slot a unit was last seen in, else its owned slot, else the staging slot after the one of
  // its kind that was named last.
  [[nodiscard]] SlotId slot_of(Kind kind, BlockId block, GroupId group) const;
  void remember_slot(Kind kind, BlockId block, GroupId group, SlotId slot);

  // First ends of the latest launch: where the next launch's lists start from.
  TransferEnd first_send;
  TransferEnd first_recv;
  std::int32_t last_launch = -1;
  std::int32_t last_wait = -1;
  // Unit of the last reduce or copy.
  BlockId last_block{0};
  GroupId last_group{0};

 private:
  [[nodiscard]] std::int64_t unit_key(BlockId block, GroupId group) const {
    return std::int64_t{block.value} * context_.round->head_groups + group.value;
  }

  ProgramContext context_;
  Kind result_kind_;
  std::int32_t owned_slots_;
  SmallMap local_position_;                // of an owned block
  std::array<SmallMap, kNumKinds> slots_;  // where each unit was last seen
  std::array<SlotId, kNumKinds> last_staging_slot_;
  std::array<Dtype, kNumKinds> last_wire_{};
  TileOp previous_tile_;
  std::int64_t last_unpredicted_pairs_ = 0;
};

// Fields a record may spell out; in a tile's or transfer's flags, a set bit means the field
// follows. The likely ones come first so that flags usually fit one byte.
enum TileFlag : std::uint32_t {
  kTileKvBlock = 1U << 0,
  kTileQBlock = 1U << 1,
  kTileInitResult = 1U << 2,  // the value itself
  kTileInitDkv = 1U << 3,     // the value itself
  kTilePairs = 1U << 4,
  kTileGroup = 1U << 5,
  kTileResult = 1U << 6,
  kTileKv = 1U << 7,
  kTileQ = 1U << 8,
  kTileDo = 1U << 9,
  kTileDkv = 1U << 10,
  kTileFlagsEnd = 1U << 11,
};
enum EndFlag : std::uint32_t {
  kEndBlock = 1U << 0,
  kEndSlot = 1U << 1,
  kEndPeer = 1U << 2,
  kEndGroup = 1U << 3,
  kEndKind = 1U << 4,
  kEndWire = 1U << 5,
  kEndFlagsEnd = 1U << 6,
};

}  // namespace contextile
