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
#include "contextile/extend/strategy.h"
#include "contextile/workload.h"

namespace contextile {

// The sequences of every rank in one round, as schedulers list them: [rank] → indices. Ranks that
// share a sequence are consecutive and have the same list.
using RankSamples = std::vector<std::vector<std::int32_t>>;

enum class SampleOrder : std::uint8_t {
  kOneByOne,  // every sequence of a group is an item
  kPacked,    // all sequences of a group are one item
};
[[nodiscard]] ScheduleRound group_items(const RankSamples& samples, SampleOrder order);

struct GroupsConfig {
  std::optional<std::int64_t> block_size;  // tokens; unset: one block for each rank of an item
  bool backward = true;
};

// Returns one arranged round per round of a schedule; together they hold every sequence once. The
// caller fills in name, options and wire.
//
// An item of c ranks is a zigzag ring of c steps over all its sequences, as TransformerEngine runs
// it: KV moves one hop per step under the previous step's compute; backward is reversed, with dKV
// along. An item of one rank moves nothing. An item starts when all its ranks have finished the
// items before. O(tiles + tokens' ranges + items · c).
[[nodiscard]] Arrangement arrange_groups(const Workload& workload,
                                         std::span<const ScheduleRound> rounds,
                                         const GroupsConfig& config);

// Returns why sequences cannot be attended in groups of their own (the mask and band that crosses
// from one sequence to another), or nothing if they can. O(bands · sequences they meet).
[[nodiscard]] std::optional<std::string> crosses_sequences(const Workload& workload);

}  // namespace contextile
