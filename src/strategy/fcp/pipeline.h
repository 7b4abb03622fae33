// FCP's communication: rounds without congestion, coalesced into stages, pipelined at block level;
// and the reshuffling between where data lives and where it is worked on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/arrangement.h"
#include "contextile/base.h"
#include "contextile/mask.h"
#include "contextile/strategies.h"

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
  std::int32_t coalesce = 16;  // rounds in a stage: a device sends and receives at most so much
  std::int32_t buffers = 3;    // stages whose data a device holds or receives; 1: nothing overlaps
  Reshuffle reshuffle = Reshuffle::kOverlapped;
};

// One mask's program. Tiles run with their queries. Stages, in order: reshuffling, if owner and
// worker of a block differ; KV rounds; last, what was kept of the local tiles while results leave.
class FcpPipeline {
 public:
  // O(tiles + edges · log). `tiles` are all tiles of the layout's blocks under the mask.
  FcpPipeline(const FcpLayout& layout, std::span<const Tile> tiles,
              const FcpPipelineOptions& options);

  // Forward: q, kv to the worker; kv on to every position that needs it; o back when complete.
  // Backward: likewise with do; kv again, dkv against every edge of kv; dq, dkv back.
  [[nodiscard]] ArrangedDirection arrange(Direction direction) const;

  // With A > 1, what reached its worker in forward stays for backward.
  [[nodiscard]] std::vector<RetainedUnit> retained() const;

 private:
  struct Cast {  // a KV block that a position needs, one edge of the colouring
    BlockId block;
    std::int32_t position = 0;
    std::int32_t stage = 0;  // that needs it
  };
  struct Move {  // a unit's block and head group whose worker is not the owner
    BlockId block;
    std::int32_t group = 0;
    std::int32_t stage = 0;
  };
  class Arranging;

  [[nodiscard]] std::size_t unit(BlockId block, std::int32_t group) const {
    return block.index() * static_cast<std::size_t>(layout_.head_parallel) +
           static_cast<std::size_t>(group);
  }
  [[nodiscard]] bool is_retained() const { return layout_.head_parallel > 1; }
  void find_casts();
  void find_moves();
  void assign_move_stages();
  void assign_cast_stages();

  const FcpLayout& layout_;
  std::span<const Tile> tiles_;
  FcpPipelineOptions options_;
  std::vector<Cast> casts_;         // ordered by (block, position)
  std::vector<std::size_t> first_;  // casts of block b: [first_[b], first_[b + 1])
  std::vector<bool> attends_;       // for each block: its queries have a tile
  std::vector<bool> read_at_home_;  // for each block: its keys have a tile at its position
  std::vector<Move> moves_;
  std::vector<std::int32_t> arrival_;  // for each unit: stage it reaches its worker; 0: lives there
  std::vector<bool> moves_kv_;         // for each unit: the worker needs keys that live elsewhere
  std::int32_t move_stages_ = 0;
  std::int32_t last_stage_ = 0;  // the last of the KV rounds
};

}  // namespace contextile
