// Groups of consecutive ranks while a round of Megatron's schedulers is being made.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "strategy/schedule/groups.h"

namespace contextile {

// W(L, c) of both schedulers: work of each of the `ranks` ranks that share a sample.
[[nodiscard]] inline double sample_work(std::int64_t length, std::int32_t ranks) {
  const auto tokens = static_cast<double>(length);
  return tokens * tokens / ranks;
}

// Smallest power of two c with c·cap >= length.
[[nodiscard]] std::int32_t ranks_needed(std::int64_t length, std::int64_t cap_tokens);

// Throws InvalidArgument naming the first sample that does not fit on all ranks together.
void check_sample_lengths(std::span<const std::int64_t> lengths, std::int32_t num_ranks,
                          std::int64_t cap_tokens);

// Indices of the samples, longest first, equal lengths in the given order.
[[nodiscard]] std::vector<std::int32_t> longest_first(std::span<const std::int64_t> lengths);

struct RankGroup {
  std::int32_t size = 1;
  std::vector<std::int32_t> samples;
  double load = 0;  // work of each of its ranks
};

// Groups side by side from rank 0, in the order they were made; the ranks behind them are free.
struct RankGroups {
  std::int32_t num_ranks = 1;
  std::int32_t used = 0;  // ranks in groups
  std::vector<RankGroup> groups{};

  [[nodiscard]] std::int32_t free_ranks() const { return num_ranks - used; }
  RankGroup& add(std::int32_t size);
  // Least and most loaded rank; a free rank has no load.
  [[nodiscard]] double least_load() const;
  [[nodiscard]] double most_load() const;
  // The first of the smallest groups: the one that free ranks join next.
  [[nodiscard]] RankGroup& smallest();
  void grow(RankGroup& group, std::int32_t by);

  [[nodiscard]] RankSamples samples() const;
  [[nodiscard]] std::vector<double> loads() const;
};

}  // namespace contextile
