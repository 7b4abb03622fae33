#include "strategy/magi/dispatch.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "contextile/mask.h"
#include "strategy/magi/exact_dispatch.h"

namespace contextile {
namespace {

constexpr std::int64_t kMinChunksPerRank = 8;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The keys that chunks brought to a rank, with their counts.
class KeyCounts {
 public:
  void add(std::span<const Range> ranges) {
    for (const Range& range : ranges) {
      edges_.emplace_back(range.begin, 1);
      edges_.emplace_back(range.end, -1);
    }
    std::sort(edges_.begin(), edges_.end());
  }

  // Returns the original's measure of what two lists of ranges share: for every key in both, the
  // number of times that they have it together, less one.
  [[nodiscard]] std::int64_t shared_with(const KeyCounts& other) const {
    std::int64_t shared = 0;
    std::int64_t here = 0;
    std::int64_t there = 0;
    std::int64_t at = 0;
    auto a = edges_.begin();
    auto b = other.edges_.begin();
    while (a != edges_.end() && b != other.edges_.end()) {
      const bool is_here = a->first < b->first;
      const auto [next, change] = is_here ? *a++ : *b++;
      if (here > 0 && there > 0) shared += (here + there - 1) * (next - at);
      (is_here ? here : there) += change;
      at = next;
    }
    return shared;
  }

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> edges_;  // (token, +1 or -1), ascending
};

using Load = std::pair<std::int64_t, std::int32_t>;  // (area, rank)
using LeastLoaded = std::priority_queue<Load, std::vector<Load>, std::greater<>>;

LeastLoaded idle_ranks(std::int32_t num_ranks) {
  LeastLoaded least;
  for (std::int32_t r = 0; r < num_ranks; ++r) least.emplace(0, r);
  return least;
}

enum class Ties : std::uint8_t { kLaterFirst, kEarlierFirst };

std::vector<std::size_t> by_area_descending(std::span<const ChunkWork> chunks, Ties ties) {
  std::vector<std::size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (ties == Ties::kLaterFirst) std::reverse(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return chunks[a].area > chunks[b].area; });
  return order;
}

std::vector<Rank> dispatch_min_heap(std::span<const ChunkWork> chunks, std::int32_t num_ranks) {
  const std::int64_t places = ceil_div(std::ssize(chunks), num_ranks);
  LeastLoaded least = idle_ranks(num_ranks);
  std::vector<std::int64_t> taken(static_cast<std::size_t>(num_ranks));
  std::vector<Rank> workers(chunks.size());
  for (const std::size_t c : by_area_descending(chunks, Ties::kLaterFirst)) {
    const auto [load, rank] = least.top();
    least.pop();
    workers[c] = Rank{rank};
    if (++taken[workers[c].index()] < places) least.emplace(load + chunks[c].area, rank);
  }
  return workers;
}

std::vector<Rank> dispatch_topp_heap(std::span<const ChunkWork> chunks, std::int32_t num_ranks,
                                     double top_p) {
  const std::int64_t places = ceil_div(std::ssize(chunks), num_ranks);
  const auto num_candidates =
      std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(num_ranks * top_p)));
  LeastLoaded least = idle_ranks(num_ranks);
  std::vector<std::int64_t> taken(static_cast<std::size_t>(num_ranks));
  std::vector<KeyCounts> keys_of_rank(static_cast<std::size_t>(num_ranks));
  std::vector<Rank> workers(chunks.size());
  // The chunk goes to that one of the least loaded ranks that shares most keys with it.
  for (const std::size_t c : by_area_descending(chunks, Ties::kEarlierFirst)) {
    KeyCounts keys;
    keys.add(chunks[c].keys);
    std::vector<Load> candidates;
    std::size_t closest = 0;
    std::int64_t most_shared = -1;
    while (!least.empty() && candidates.size() < num_candidates) {
      candidates.push_back(least.top());
      least.pop();
      const auto rank = static_cast<std::size_t>(candidates.back().second);
      const std::int64_t shared = keys.shared_with(keys_of_rank[rank]);
      if (shared <= most_shared) continue;
      most_shared = shared;
      closest = candidates.size() - 1;
    }
    workers[c] = Rank{candidates[closest].second};
    keys_of_rank[workers[c].index()].add(chunks[c].keys);
    candidates[closest].first += chunks[c].area;
    const bool is_full = ++taken[workers[c].index()] == places;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (i != closest || !is_full) least.push(candidates[i]);
    }
  }
  return workers;
}

std::vector<Rank> dispatch_in_order(std::int64_t num_chunks, std::int32_t num_ranks) {
  std::vector<Rank> workers;
  for (std::int32_t r = 0; r < num_ranks; ++r) {
    const std::int64_t mine = num_chunks / num_ranks + (r < num_chunks % num_ranks ? 1 : 0);
    workers.insert(workers.end(), static_cast<std::size_t>(mine), Rank{r});
  }
  return workers;
}

}  // namespace

std::int64_t magi_chunk_tokens(std::int64_t num_tokens, std::int32_t num_ranks,
                               std::int64_t requested) {
  const std::int64_t most = std::max<std::int64_t>(
      1, ceil_div(num_tokens, kMinChunksPerRank * static_cast<std::int64_t>(num_ranks)));
  return requested > 0 ? std::min(requested, most) : most;
}

std::vector<Range> magi_chunks(std::int64_t num_tokens, std::int64_t chunk_tokens) {
  std::vector<Range> chunks;
  for (std::int64_t begin = 0; begin < num_tokens; begin += chunk_tokens) {
    chunks.push_back({begin, std::min(begin + chunk_tokens, num_tokens)});
  }
  return chunks;
}

std::vector<ChunkWork> chunk_work(std::span<const NamedMask> masks, std::span<const Range> chunks) {
  std::vector<ChunkWork> work(chunks.size());
  constexpr Range kEverything{0, kMaxTokens};
  for (const NamedMask& mask : masks) {
    for (const Band& band : mask.mask.bands) {
      auto chunk = std::partition_point(chunks.begin(), chunks.end(),
                                        [&](const Range& c) { return c.end <= band.q.begin; });
      for (; chunk != chunks.end() && chunk->begin < band.q.end; ++chunk) {
        const Band met = clip(band, *chunk, kEverything);
        if (met.k.empty()) continue;
        ChunkWork& of_chunk = work[static_cast<std::size_t>(chunk - chunks.begin())];
        of_chunk.area += num_pairs(met) * mask.layers;
        of_chunk.keys.push_back(met.k);
      }
    }
  }
  return work;
}

std::vector<Rank> dispatch_chunks(std::span<const ChunkWork> chunks, std::int32_t num_ranks,
                                  MagiDispatch algorithm, double top_p) {
  switch (algorithm) {
    case MagiDispatch::kMinHeap:
      return dispatch_min_heap(chunks, num_ranks);
    case MagiDispatch::kToppHeap:
      return dispatch_topp_heap(chunks, num_ranks, top_p);
    case MagiDispatch::kBinarySearch:
      return exact_dispatch(chunks, num_ranks, std::ssize(chunks),
                            dispatch_min_heap(chunks, num_ranks));
    case MagiDispatch::kBacktracking:
      return exact_dispatch(chunks, num_ranks, ceil_div(std::ssize(chunks), num_ranks),
                            dispatch_min_heap(chunks, num_ranks));
    case MagiDispatch::kSequential:
      break;
  }
  return dispatch_in_order(std::ssize(chunks), num_ranks);
}

}  // namespace contextile
