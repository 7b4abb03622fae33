// FCP's distributor: it cuts documents into blocks, pairs blocks to about equal work, and places
// the pairs on devices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/workload.h"
#include "strategy/schedule/rank_layout.h"

namespace contextile {

// Tokens that the distributor moves as one: a piece of a long document, or several short documents.
struct Shard {
  std::vector<Range> ranges;   // ascending
  std::int64_t tokens = 0;     // of all ranges
  std::int64_t cost = 0;       // of its queries (cost_shards)
  std::int64_t document = -1;  // the long document it is cut from; -1: short documents
  std::int32_t home = -1;      // position that holds most of its tokens; -1: no home layout
  std::int64_t tokens_at_home = 0;
};

// Sets the costs of shards: pairs that their queries attend, all masks weighted by their layers.
// With a profile, f(B) of FCP (section 3.1) in the same unit: the pairs that a kernel computes for
// each document's queries in the shard, over the share of its best rate that it reaches on so many
// queries and keys, forward. O(tiles · log).
void cost_shards(const Workload& workload, const AttentionProfile* profile,
                 std::vector<Shard>& shards);

// Cuts documents into shards. Documents shorter than `block` tokens are packed, first fit by length
// descending (ties by index), into composite shards of at most `block` tokens; others are cut into
// ceil(length / block) shards. Long documents come first, in order, then composites. With a home
// layout, a shard of a long document ends early if a home ends in its second half, and a composite
// holds documents with one home, that of most of their tokens. A home is a position of `members`
// devices. Costs are those of `profile` (cost_shards). O((documents + tiles) · log).
[[nodiscard]] std::vector<Shard> shard_documents(const Workload& workload, std::int64_t block,
                                                 std::int32_t members = 1,
                                                 const AttentionProfile* profile = nullptr);

// Cuts documents finer whose pairs of shards (pair_shards) would cost more than a third of the mean
// load of `num_positions`: into equal shards of 1024 tokens or more whose pairs cost that at most.
// If a third of the positions get a pair of a document, all get equally many. Without this, a few
// rows of a very long document would decide the load and the traffic of all positions.
[[nodiscard]] std::vector<Shard> cut_heavy_documents(const Workload& workload,
                                                     std::vector<Shard> shards,
                                                     std::int32_t num_positions,
                                                     const AttentionProfile* profile);

// One or two shards that are placed together, by index.
struct ShardUnit {
  std::vector<std::size_t> shards;
  std::int64_t cost = 0;
};

// Pairs shard i of a document with n shards with shard n-1-i. The middle shard of an odd n stays
// alone, and so does a composite. A pair that costs more than the mean load of `num_positions` is
// left as two.
[[nodiscard]] std::vector<ShardUnit> pair_shards(std::span<const Shard> shards,
                                                 std::int32_t num_positions);

// Limit of a position: in tokens, or in shards, equally many each.
struct PlacementLimit {
  std::optional<std::int64_t> tokens;  // unset: ceil(shards / positions) shards

  [[nodiscard]] static std::int64_t slots(std::size_t shards, std::int32_t positions) {
    return (static_cast<std::int64_t>(shards) + positions - 1) / positions;
  }
};

struct PlacedShard {
  Shard shard;
  std::int32_t position = 0;
};

// Places shards, longest processing time first: units by cost descending (ties by first shard),
// each on the least loaded position (ties by number) with room for it. A pair that fits nowhere, or
// would load its position 2% above the mean, is split, and its shards are placed in order of their
// own costs. Under a token limit, a single shard that fits nowhere is cut, and as much as fits goes
// to the position with the most room; all limits together must hold all tokens. The result is
// ordered by first token.
[[nodiscard]] std::vector<PlacedShard> place_shards(std::span<const Shard> shards,
                                                    std::span<const ShardUnit> units,
                                                    std::int32_t num_positions,
                                                    const PlacementLimit& limit);

struct FcpDistribution {
  std::int64_t block = 4096;  // tokens
  std::int64_t token_cap =
      0;  // most tokens that a device works on; 0: the mean and one block, with
          // a home layout equally many shards each
  std::int32_t head_parallel = 1;             // A: devices of a position, which split heads
  std::int32_t num_devices = 1;               // a multiple of A
  bool cut_heavy = true;                      // cut_heavy_documents, without a home layout
  const AttentionProfile* profile = nullptr;  // of costs; none: attended pairs
};

// Runs all of the above: shards over positions of A consecutive devices, with traffic evened at the
// loads of longest processing time first (fcp_traffic.h); then, inside a position, over its devices
// so that tokens are even. The worker of a block is device position · A + member. With a home
// layout, shards stay at home as far as loads of up to 1% above those allow, if this makes traffic
// less or more even; slots then limit only shards from elsewhere.
[[nodiscard]] WorkBlocks distribute(const Workload& workload, const FcpDistribution& distribution);

}  // namespace contextile
