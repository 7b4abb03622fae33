// FCP's communication: rounds without congestion, coalesced into stages, pipelined at block level;
// and the reshuffling between where data lives and where it is worked on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategies.h"
#include "contextile/mask.h"

namespace contextile {

// Blocks, where they live and where they are worked on. Head group g of a block is worked on by
// member g of the block's position, device position · A + g: with one member the block's worker,
// with more the all-to-all of Ulysses.
struct FcpLayout {
  Blocking blocks;
  std::vector<Rank> owners;             // one for each block
  std::vector<std::int32_t> positions;  // one for each block
  std::int32_t head_parallel = 1;       // A, also the number of head groups
  std::int32_t num_devices = 1;
  AttentionShape shape;
  bool is_home = false;  // owners are the caller's: anybody who reads a block's keys may cast them

  [[nodiscard]] std::int32_t home(BlockId block) const {
    return owners[block.index()].value / head_parallel;
  }
  [[nodiscard]] std::int64_t bytes(Kind kind, BlockId block) const {  // of a head group's unit
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
  kBlockOrder,      // every receiver fetches in block order, whoever else asks the same sender
  kCongestionFree,  // a device sends at most once and receives at most once in a round
};
struct FcpPipelineOptions {
  Rounds rounds = Rounds::kCongestionFree;
  std::int32_t coalesce = 16;  // rounds in a stage: a device sends and receives at most as many
                               // bytes as keys of so many of the largest blocks have
  std::int32_t buffers = 3;    // stages whose data a device holds or receives; 1: nothing overlaps
  Reshuffle reshuffle = Reshuffle::kOverlapped;
};

// One mask's program. Tiles run with their queries. A block's keys go from their owner to its
// caster, and from there to every position that needs them. Stages, in order: reshuffling, if owner
// and worker or caster of a block differ, with KV rounds as soon as the keys are there; KV rounds;
// last, what was kept of the local tiles while results leave.
class FcpPipeline {
 public:
  // O(tiles + edges · log). `tiles` are all tiles of the layout's blocks under the mask.
  FcpPipeline(const FcpLayout& layout, std::span<const Tile> tiles,
              const FcpPipelineOptions& options);

  // Forward: q to the worker, kv to the caster; kv on to every position that needs it; o back when
  // complete. Backward: likewise with do; kv again, dkv against every edge of kv; dq, dkv back.
  [[nodiscard]] ArrangedDirection arrange(Direction direction) const;

  // With A > 1, what reached its worker in forward stays for backward.
  [[nodiscard]] std::vector<RetainedUnit> retained() const;

 private:
  struct Cast {  // a KV block that a position needs, one edge of the colouring
    BlockId block;
    std::int32_t position = 0;
    std::int32_t stage = 0;  // that needs it
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
  // Where the queries or keys of a block and head group have to be.
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
  // Index of the cast of a key block to a position that needs it.
  [[nodiscard]] std::size_t cast_of(BlockId block, std::int32_t position) const;

  const FcpLayout& layout_;
  std::span<const Tile> tiles_;
  FcpPipelineOptions options_;
  std::vector<bool> attends_;                       // for each block: its queries have a tile
  std::vector<std::vector<std::int32_t>> readers_;  // positions that read a block's keys
  std::vector<std::int32_t> casters_;               // for each block: position
  std::vector<Cast> casts_;                         // ordered by (block, position)
  std::vector<std::size_t> first_;                  // casts of block b: [first_[b], first_[b + 1])
  std::vector<Move> moves_;
  std::vector<std::int32_t> q_arrival_;   // for each unit: stage it reaches its worker; 0: is there
  std::vector<std::int32_t> kv_arrival_;  // likewise its caster
  std::int32_t move_stages_ = 0;
  std::int32_t last_stage_ = 0;  // the last of the KV rounds
};

}  // namespace contextile
