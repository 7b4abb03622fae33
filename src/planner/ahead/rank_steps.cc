#include "planner/ahead/rank_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace contextile {

RankSteps::RankSteps(std::int32_t num_ranks, std::int64_t first_step)
    : next_(static_cast<std::size_t>(num_ranks), first_step),
      first_step_(first_step),
      slowest_(first_step) {}

void RankSteps::refresh_all(Store& store, const LookaheadKeys& keys) {
  for (std::size_t r = 0; r < next_.size(); ++r) next_[r] = next_of(r, store, keys);
  slowest_ = *std::ranges::min_element(next_);
}

void RankSteps::refresh_slowest(Store& store, const LookaheadKeys& keys) {
  while (true) {
    const auto last = std::ranges::min_element(next_);
    const std::int64_t next = next_of(static_cast<std::size_t>(last - next_.begin()), store, keys);
    const bool has_moved = next > *last;
    *last = next;
    slowest_ = *std::ranges::min_element(next_);
    if (!has_moved) return;
  }
}

std::int64_t RankSteps::next_of(std::size_t rank, Store& store, const LookaheadKeys& keys) const {
  const std::string key = keys.next(Rank{static_cast<std::int32_t>(rank)});
  const std::optional<StoreValue> text = store.get(key);
  return text ? parse_step_text(*text, fmt::format("{} {}", store.name(), key)) : first_step_;
}

}  // namespace contextile
