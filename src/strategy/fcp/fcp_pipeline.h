// FCP's communication: rounds without congestion, coalesced into stages and pipelined at block
// level. It includes the reshuffling between where data lives and where it is worked on.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategies.h"
#include "contextile/mask.h"

namespace contextile {

// Blocks, where they live and where they are worked on. Member g of a block's position works on
// head group g of the block; that is device position · A + g. With one member this is the block's
// worker, with more it is the all-to-all of Ulysses.
struct FcpLayout {
  Blocking blocks;
  std::vector<Rank> owners;             // one for each block
  std::vector<std::int32_t> positions;  // one for each block
  std::int32_t head_parallel = 1;       // A, also the number of head groups
  std::int32_t num_devices = 1;
  AttentionShape shape;
  bool is_home = false;  // owners are the caller's: any reader of a block's keys may cast them

  [[nodiscard]] std::int32_t home(BlockId block) const {
    return owners[block.index()].value / head_parallel;
  }
  [[nodiscard]] std::int64_t bytes(Kind kind, BlockId block) const {  // of one head group's unit
    return unit_bytes(kind, blocks.num_tokens(block), shape, head_parallel, shape.dtype);
  }
  [[nodiscard]] Rank device(std::int32_t position, std::int32_t group) const {
    return Rank{position * head_parallel + group};
  }
  [[nodiscard]] Rank worker(BlockId block, std::int32_t group) const {
    return device(positions[block.index()], group);
  }
};

enum class Rounds : std::uint8_t {
  kBlockOrder,  // every receiver fetches in block order, even if others fetch from the same sender
  kCongestionFree,  // a device sends at most once and receives at most once in a round
};
struct FcpPipelineOptions {
  Rounds rounds = Rounds::kCongestionFree;
  std::int32_t coalesce = 16;  // rounds per stage: a device sends and receives at most as many
                               // bytes as the keys of so many of the largest blocks
  std::int32_t buffers = 3;    // stages whose data a device holds or receives; 1: nothing overlaps
  Reshuffle reshuffle = Reshuffle::kOverlapped;
};

// The program of one mask. Tiles run with their queries. A block's keys go from their owner to its
// caster, and from there to every position that needs them. The first stages reshuffle, if owner
// and worker or caster of a block differ; KV rounds begin as soon as the keys are there. The last
// stage runs local tiles that were kept back while results leave.
class FcpPipeline {
 public:
  // Plans the communication of one mask. `tiles` are all tiles of the layout's blocks under it.
  // O(tiles + edges · log).
  FcpPipeline(const FcpLayout& layout, std::span<const Tile> tiles,
              const FcpPipelineOptions& options);

  // Returns the program of a direction. Forward: q goes to the worker, kv to the caster and on to
  // every position that needs it; o goes back when complete. Backward: the same with do; kv again,
  // dkv against every edge of kv; dq and dkv go back.
  [[nodiscard]] ArrangedDirection arrange(Direction direction) const;

  // Returns the units kept for backward: with A > 1, those that reached their worker in forward.
  [[nodiscard]] std::vector<RetainedUnit> retained() const;

 private:
  struct Cast {  // a KV block that a position needs; one edge of the colouring
    BlockId block;
    std::int32_t position = 0;
    std::int32_t stage = 0;  // that needs the block
  };
  struct Move {  // a unit's queries or keys whose worker or caster is not the owner
    Kind kind = Kind::kQ;
    BlockId block;
    std::int32_t group = 0;
    std::int32_t stage = 0;
  };
  class Arranging;

  [[nodiscard]] std::size_t unit(BlockId block, std::int32_t group) const {
    return block.index() * static_cast<std::size_t>(layout_.head_parallel) +
           static_cast<std::size_t>(group);
  }
  // Returns the device where the queries or keys of a block and head group have to be.
  [[nodiscard]] Rank place(Kind kind, BlockId block, std::int32_t group) const {
    return is_of_kv(kind) ? layout_.device(casters_[block.index()], group)
                          : layout_.worker(block, group);
  }
  [[nodiscard]] bool is_retained() const { return layout_.head_parallel > 1; }
  void find_readers();
  void choose_casters();
  void find_casts();
  void find_moves();
  void assign_stages_by_rounds();
  void assign_stages_by_bytes();
  void note_arrivals();
  [[nodiscard]] std::vector<std::int32_t> cast_rounds() const;
  [[nodiscard]] std::vector<std::int32_t> first_uses() const;
  void find_casts_of_tiles();

  const FcpLayout& layout_;
  std::span<const Tile> tiles_;
  FcpPipelineOptions options_;
  std::vector<bool> attends_;                       // for each block: its queries have a tile
  std::vector<std::vector<std::int32_t>> readers_;  // positions that read a block's keys
  std::vector<std::int32_t> casters_;               // for each block: position
  std::vector<Cast> casts_;                         // ordered by (block, position)
  static constexpr std::uint32_t kNoCast = std::numeric_limits<std::uint32_t>::max();
  // For each of tiles_: the cast that brings its keys, or kNoCast if its position casts them.
  std::vector<std::uint32_t> cast_of_tile_;
  std::vector<Move> moves_;
  std::vector<std::int32_t> q_arrival_;   // for each unit: stage of arrival at its worker; 0: there
  std::vector<std::int32_t> kv_arrival_;  // likewise at its caster
  std::int32_t move_stages_ = 0;
  std::int32_t last_stage_ = 0;  // the last of the KV rounds
};

}  // namespace contextile
