// Rounds of groups: sequences given to runs of consecutive ranks, each attended by a zigzag ring of
// its own. This turns the decisions of dynamic context parallelism (Megatron, ByteScale) into
// rounds of an arrangement.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/arrangement.h"
#include "contextile/workload.h"

namespace contextile {

// Sequences that the ranks first … first + size - 1 attend together, packed into one ring.
struct GroupItem {
  std::int32_t first = 0;
  std::int32_t size = 1;
  std::vector<std::int32_t> sequences;  // indices into Workload::sequences, in ranks' order

  friend bool operator==(const GroupItem&, const GroupItem&) = default;
};
// The work between two barriers. A rank takes part in its items one after another, in this order;
// items of different ranks run at the same time.
using GroupRound = std::vector<GroupItem>;

// The sequences of every rank in one round, as schedulers list them: [rank] → indices. Ranks that
// share a sequence are consecutive and have the same list.
using RankSamples = std::vector<std::vector<std::int32_t>>;

enum class SampleOrder : std::uint8_t {
  kOneByOne,  // every sequence of a group is an item
  kPacked,    // all sequences of a group are one item
};
[[nodiscard]] GroupRound group_items(const RankSamples& samples, SampleOrder order);

struct GroupsConfig {
  std::optional<std::int64_t> block_size;  // tokens; unset: one block for each rank of an item
  bool backward = true;
};

// Returns one arranged round per list of items; together they hold every sequence once. The caller
// fills in name, options and wire.
//
// An item of c ranks is a zigzag ring of c steps over all its sequences, as TransformerEngine runs
// it: KV moves one hop per step under the previous step's compute; backward is reversed, with dKV
// along. An item of one rank moves nothing. An item starts when all its ranks have finished the
// items before. O(tiles + tokens' ranges + items · c).
[[nodiscard]] Arrangement arrange_groups(const Workload& workload,
                                         std::span<const GroupRound> rounds,
                                         const GroupsConfig& config);

// Returns why sequences cannot be attended in groups of their own (the mask and band that crosses
// from one sequence to another), or nothing if they can. O(bands · sequences they meet).
[[nodiscard]] std::optional<std::string> crosses_sequences(const Workload& workload);

}  // namespace contextile
