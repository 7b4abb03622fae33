// Movements along rings of ranks: inputs relayed hop by hop, results gathered on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "contextile/extend/arrangement.h"

namespace contextile {

// Returns position p in a ring of `size`, moved by `steps` of either sign.
[[nodiscard]] constexpr std::int32_t ring_shift(std::int32_t position, std::int32_t steps,
                                                std::int32_t size) {
  return ((position + steps) % size + size) % size;
}

// One unit on a ring. `rank_at` maps a ring position to a device.
struct RingUnit {
  Kind kind = Kind::kKv;
  BlockId block;
  GroupId group;
  std::int32_t start = 0;  // position it leaves from
  std::int32_t size = 1;   // of the ring
  std::int32_t step = 1;   // +1 or -1
  std::function<Rank(std::int32_t)> rank_at;
};

// Appends `hops` hops of an input: hop h is launched at first_stage + h and needed one stage later.
void relay_input(const RingUnit& unit, std::int32_t hops, std::int32_t first_stage,
                 std::vector<Transfer>& out);

// Appends the hops of a result that gathers every rank's share on its way: `hops` hops from
// `start`, hop h launched at first_stage + h. holds(position) returns true if the device there has
// computed a share. Hops before the first share are left out, because there is nothing to send.
void gather_result(const RingUnit& unit, std::int32_t hops, std::int32_t first_stage,
                   const std::function<bool(std::int32_t)>& holds, std::vector<Transfer>& out);

}  // namespace contextile
