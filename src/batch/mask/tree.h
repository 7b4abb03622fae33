// Trees of segments: the bands and positions of the rule `tree`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/mask.h"

namespace contextile {

// Returns the bands of a tree over the tokens of a sequence: disjoint, tight, and ordered by their
// first query. Stops once there are `most`. The spec must be checked. Throws InvalidArgument if its
// lengths do not sum to the sequence's.
[[nodiscard]] std::vector<Band> tree_bands(const MaskSpec& spec, Range tokens, std::size_t most);

// Appends the positions of a tree over the tokens of a sequence. The same applies.
void append_tree_positions(const MaskSpec& spec, Range tokens, std::int64_t sequence,
                           std::vector<PositionSegment>& out);

}  // namespace contextile
