// How far a program may run before its handle is finished.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "contextile/extend/transport.h"
#include "contextile/plan.h"

namespace contextile {

// The number of instructions of `rank` that begin_forward and begin_backward issue: at most those
// before the first wait. Messages of a pair of ranks meet in order, so when two handles are in
// flight both ends must have begun the same messages; a launch whose other end comes after its
// rank's first wait is left to finish. All ranks compute the same cut. O(instructions of all ranks
// · rounds of cutting).
[[nodiscard]] std::size_t begin_cut(const PlanRound& round, std::size_t mask, Direction direction,
                                    Rank rank);

// Exchanges the same for every mask and direction, if ranks may hold slices and know only their own
// programs: each sends the others its launches before its first wait. Collective; returns the
// result of begin_cut for this transport's rank. Throws TransportError when a peer sends nonsense.
using BeginCuts = std::vector<std::array<std::size_t, 2>>;  // by mask and Direction
[[nodiscard]] BeginCuts exchange_begin_cuts(const PlanRound& round, Transport& transport);

}  // namespace contextile
