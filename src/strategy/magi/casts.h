// Which keys every rank fetches from others and in which stage: MagiAttention's overlap solver.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// What of `needed` is not in `held`, both as merged() gives them. O(n).
[[nodiscard]] std::vector<Range> keys_to_fetch(std::span<const Range> needed,
                                               std::span<const Range> held);

struct StageRule {
  std::int32_t stages = 1;            // that keys arrive in
  std::int64_t element_tokens = 512;  // stages are made of elements of so many keys …
  std::int64_t max_elements = 64;     // … or more, where that gives more elements than these
};

// Keys of one stage, counted from 0.
struct StagedKeys {
  Range tokens;
  std::int32_t stage = 0;

  friend bool operator==(const StagedKeys&, const StagedKeys&) = default;
};

// Ascending ranges cut into elements, in order, and these into `stages` runs of about equal counts,
// the first ones longer. What the rank holds itself counts as one element of the first run, which
// so has one less; with fewer elements than stages every stage has one and the last ones none. One
// stage takes all. O(ranges + elements).
[[nodiscard]] std::vector<StagedKeys> cut_into_stages(std::span<const Range> keys,
                                                      const StageRule& rule);

}  // namespace contextile
