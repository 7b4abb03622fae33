// The keys that every rank fetches from others, by stage: MagiAttention's overlap solver.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// Returns the parts of `needed` that are not in `held`, both as merged() returns them. O(n).
[[nodiscard]] std::vector<Range> keys_to_fetch(std::span<const Range> needed,
                                               std::span<const Range> held);

struct StageRule {
  std::int32_t stages = 1;            // number of stages in which keys arrive
  std::int64_t element_tokens = 512;  // keys of one element; stages are made of elements …
  std::int64_t max_elements = 64;     // … which get larger if there would be more than this many
};

// Keys of one stage, counted from 0.
struct StagedKeys {
  Range tokens;
  std::int32_t stage = 0;

  friend bool operator==(const StagedKeys&, const StagedKeys&) = default;
};

// Cuts ascending ranges into elements, in order, and these into `stages` runs of about equal
// counts, the first ones longer. The keys that the rank itself holds count as one element of the
// first run, which therefore has one element less. With fewer elements than stages, every stage has
// one and the last ones have none. A single stage takes all. O(ranges + elements).
[[nodiscard]] std::vector<StagedKeys> cut_into_stages(std::span<const Range> keys,
                                                      const StageRule& rule);

}  // namespace contextile
