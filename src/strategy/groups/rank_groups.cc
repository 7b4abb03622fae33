#include "strategy/groups/rank_groups.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/check.h"

namespace contextile {

std::int32_t ranks_needed(std::int64_t length, std::int64_t cap_tokens) {
  std::int32_t ranks = 1;
  while (ranks * cap_tokens < length) ranks *= 2;
  return ranks;
}

void check_sample_lengths(std::span<const std::int64_t> lengths, std::int32_t num_ranks,
                          std::int64_t cap_tokens) {
  CONTEXTILE_CHECK(num_ranks > 0 && cap_tokens > 0,
                   "groups: expected ranks and tokens of a rank to be positive, found {} and {}",
                   num_ranks, cap_tokens);
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    CONTEXTILE_CHECK(lengths[s] > 0 && lengths[s] <= num_ranks * cap_tokens,
                     "expected every sequence to fit on {} ranks of {} tokens (option cap), found "
                     "sequence {} of {} tokens",
                     num_ranks, cap_tokens, s, lengths[s]);
  }
}

std::vector<std::int32_t> longest_first(std::span<const std::int64_t> lengths) {
  std::vector<std::int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return lengths[static_cast<std::size_t>(a)] > lengths[static_cast<std::size_t>(b)];
  });
  return order;
}

RankGroup& RankGroups::add(std::int32_t size) {
  used += size;
  return groups.emplace_back(RankGroup{size, {}, 0});
}

double RankGroups::least_load() const {
  if (free_ranks() > 0) return 0;
  const auto least =
      std::min_element(groups.begin(), groups.end(),
                       [](const RankGroup& a, const RankGroup& b) { return a.load < b.load; });
  return least->load;
}

double RankGroups::most_load() const {
  double most = 0;
  for (const RankGroup& group : groups) most = std::max(most, group.load);
  return most;
}

RankGroup& RankGroups::smallest() {
  return *std::min_element(groups.begin(), groups.end(),
                           [](const RankGroup& a, const RankGroup& b) { return a.size < b.size; });
}

void RankGroups::grow(RankGroup& group, std::int32_t by) {
  group.size += by;
  used += by;
}

RankSamples RankGroups::samples() const {
  RankSamples result;
  for (const RankGroup& group : groups) {
    result.insert(result.end(), static_cast<std::size_t>(group.size), group.samples);
  }
  result.resize(static_cast<std::size_t>(num_ranks));
  return result;
}

std::vector<double> RankGroups::loads() const {
  std::vector<double> result;
  for (const RankGroup& group : groups) {
    result.insert(result.end(), static_cast<std::size_t>(group.size), group.load);
  }
  result.resize(static_cast<std::size_t>(num_ranks));
  return result;
}

}  // namespace contextile
