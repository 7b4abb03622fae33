// Groups of consecutive ranks, used while Megatron's schedulers make a round.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "strategy/schedule/groups.h"

namespace contextile {

// Returns W(L, c) of both schedulers: the work of each of the `ranks` ranks that share a sample.
[[nodiscard]] inline double sample_work(std::int64_t length, std::int32_t ranks) {
  const auto tokens = static_cast<double>(length);
  return tokens * tokens / ranks;
}

// Returns the smallest power of two c with c·cap >= length.
[[nodiscard]] std::int32_t ranks_needed(std::int64_t length, std::int64_t cap_tokens);

// Throws InvalidArgument that names the first sample that does not fit on all ranks together.
void check_sample_lengths(std::span<const std::int64_t> lengths, std::int32_t num_ranks,
                          std::int64_t cap_tokens);

// Returns the indices of the samples, longest first, equal lengths in the given order.
[[nodiscard]] std::vector<std::int32_t> longest_first(std::span<const std::int64_t> lengths);

struct RankGroup {
  std::int32_t size = 1;
  std::vector<std::int32_t> samples;
  double load = 0;  // work of each rank of the group
};

// Adjacent groups from rank 0 on, in the order they were made. The ranks after them are free.
struct RankGroups {
  std::int32_t num_ranks = 1;
  std::int32_t used = 0;  // ranks in groups
  std::vector<RankGroup> groups{};

  [[nodiscard]] std::int32_t free_ranks() const { return num_ranks - used; }
  RankGroup& add(std::int32_t size);
  // Loads of the least and the most loaded rank; a free rank has none.
  [[nodiscard]] double least_load() const;
  [[nodiscard]] double most_load() const;
  // Returns the first of the smallest groups, which free ranks join next.
  [[nodiscard]] RankGroup& smallest();
  void grow(RankGroup& group, std::int32_t by);

  [[nodiscard]] RankSamples samples() const;
  [[nodiscard]] std::vector<double> loads() const;
};

}  // namespace contextile
