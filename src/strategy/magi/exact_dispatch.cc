#include "strategy/magi/exact_dispatch.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

namespace contextile {
namespace {

// A depth-first search for a partition under a limit of load. Chunks come in descending order of
// area, and each tries the fullest rank first that it fits, as best-fit bin packing does.
class LimitedSearch {
 public:
  LimitedSearch(std::span<const std::int64_t> areas, std::int32_t num_ranks, std::int64_t places)
      : areas_(areas), places_(places), ranks_(static_cast<std::size_t>(num_ranks)) {}

  // Returns the rank of each area, or nothing if none was found.
  [[nodiscard]] std::optional<std::vector<std::size_t>> fit(std::int64_t limit) {
    limit_ = limit;
    steps_ = 0;
    entering_ = true;
    std::ranges::fill(ranks_, Load{});
    rank_of_.assign(areas_.size(), 0);
    candidates_.assign(areas_.size(), {});
    for (std::size_t chunk = 0; chunk < areas_.size();) {
      std::vector<std::size_t>& candidates = candidates_[chunk];
      if (entering_) candidates = candidates_of(chunk);
      if (steps_ > kDispatchSteps) return std::nullopt;
      if (candidates.empty()) {
        if (chunk == 0) return std::nullopt;
        --chunk;
        give_back(chunk);
        entering_ = false;
        continue;
      }
      take(chunk, candidates.back());
      candidates.pop_back();
      ++chunk;
      entering_ = true;
    }
    return rank_of_;
  }

 private:
  struct Load {
    std::int64_t area = 0;
    std::int64_t chunks = 0;

    friend bool operator==(const Load&, const Load&) = default;
    friend auto operator<=>(const Load&, const Load&) = default;
  };

  // Returns the ranks that the chunk fits on, the emptiest first, without those as full as another
  // one: what is possible with one is possible with the other.
  [[nodiscard]] std::vector<std::size_t> candidates_of(std::size_t chunk) {
    std::vector<std::size_t> candidates;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].chunks < places_ && ranks_[r].area + areas_[chunk] <= limit_) {
        candidates.push_back(r);
      }
    }
    steps_ += std::ssize(ranks_);
    std::ranges::stable_sort(candidates,
                             [&](std::size_t a, std::size_t b) { return ranks_[a] < ranks_[b]; });
    const auto last =
        std::unique(candidates.begin(), candidates.end(),
                    [&](std::size_t a, std::size_t b) { return ranks_[a] == ranks_[b]; });
    candidates.erase(last, candidates.end());
    return candidates;
  }

  void take(std::size_t chunk, std::size_t rank) {
    rank_of_[chunk] = rank;
    ranks_[rank].area += areas_[chunk];
    ++ranks_[rank].chunks;
  }
  void give_back(std::size_t chunk) {
    Load& load = ranks_[rank_of_[chunk]];
    load.area -= areas_[chunk];
    --load.chunks;
  }

  std::span<const std::int64_t> areas_;  // descending
  std::int64_t places_;
  std::int64_t limit_ = 0;
  std::int64_t steps_ = 0;
  bool entering_ = true;  // the chunk comes from the one before it, not back from the one after
  std::vector<Load> ranks_;
  std::vector<std::size_t> rank_of_;
  std::vector<std::vector<std::size_t>> candidates_;  // of every chunk: ranks left to try
};

std::int64_t largest_load(std::span<const ChunkWork> chunks, std::int32_t num_ranks,
                          std::span<const Rank> workers) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(num_ranks));
  for (std::size_t c = 0; c < chunks.size(); ++c) loads[workers[c].index()] += chunks[c].area;
  return *std::ranges::max_element(loads);
}

}  // namespace

std::vector<Rank> exact_dispatch(std::span<const ChunkWork> chunks, std::int32_t num_ranks,
                                 std::int64_t places, std::vector<Rank> start) {
  if (chunks.empty()) return start;
  std::vector<std::size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return chunks[a].area > chunks[b].area; });
  std::vector<std::int64_t> areas;
  for (const std::size_t c : order) areas.push_back(chunks[c].area);
  const std::int64_t total = std::accumulate(areas.begin(), areas.end(), std::int64_t{0});
  std::vector<Rank> best = std::move(start);
  // The least load lies in [low, high], and `best` has `high`.
  std::int64_t low = std::max(areas.front(), (total + num_ranks - 1) / num_ranks);
  std::int64_t high = largest_load(chunks, num_ranks, best);
  LimitedSearch search(areas, num_ranks, places);
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const auto found = search.fit(middle);
    if (!found) {
      low = middle + 1;
      continue;
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      best[order[i]] = Rank{static_cast<std::int32_t>((*found)[i])};
    }
    high = largest_load(chunks, num_ranks, best);
  }
  return best;
}

}  // namespace contextile
