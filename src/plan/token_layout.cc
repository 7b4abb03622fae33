#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "contextile/plan.h"

namespace contextile {
namespace {

// The element of `items` (ascending, end to end) whose tokens hold `token`.
template <typename Item, typename TokensOf>
std::size_t find_holder(std::span<const Item> items, std::int64_t token,
                        const TokensOf& tokens_of) {
  const auto after =
      std::upper_bound(items.begin(), items.end(), token,
                       [&](std::int64_t t, const Item& item) { return t < tokens_of(item).begin; });
  CONTEXTILE_CHECK(after != items.begin() && tokens_of(*(after - 1)).contains(token),
                   "plan: expected token {} inside a sequence, found none", token);
  return static_cast<std::size_t>(after - items.begin()) - 1;
}

// Plans made without positions count from the start of every sequence.
std::vector<PositionSegment> position_segments(const Plan& plan) {
  if (!plan.positions.empty()) return plan.positions;
  std::vector<PositionSegment> segments;
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    segments.push_back({plan.sequences[s], static_cast<std::int64_t>(s), 0});
  }
  return segments;
}

}  // namespace

std::vector<Range> local_ranges(const Plan& plan, Rank rank) {
  CONTEXTILE_CHECK(rank.valid() && rank.value < plan.num_devices(),
                   "local tokens: expected a rank among 0 … {}, found {}", plan.num_devices() - 1,
                   rank.value);
  check_has_rank(plan, rank, "local tokens");
  std::vector<Range> ranges;
  for (const PlanRound& round : plan.rounds) {
    for (const BlockId block : round.devices[rank.index()].local_blocks) {
      for (const Range& range : round.blocks.ranges(block)) ranges.push_back(range);
    }
  }
  return ranges;
}

std::int64_t num_local_tokens(const Plan& plan, Rank rank) {
  std::int64_t tokens = 0;
  for (const Range& range : local_ranges(plan, rank)) tokens += range.size();
  return tokens;
}

std::vector<std::int64_t> local_tokens(const Plan& plan, Rank rank) {
  std::vector<std::int64_t> tokens;
  for (const Range& range : local_ranges(plan, rank)) {
    for (std::int64_t t = range.begin; t < range.end; ++t) tokens.push_back(t);
  }
  return tokens;
}

std::vector<TokenPosition> positions(const Plan& plan, Rank rank) {
  const std::vector<PositionSegment> segments = position_segments(plan);
  const auto tokens_of = [](const PositionSegment& segment) { return segment.tokens; };
  std::vector<TokenPosition> result;
  for (const Range& range : local_ranges(plan, rank)) {
    std::size_t at =
        find_holder(std::span<const PositionSegment>(segments), range.begin, tokens_of);
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      if (t >= segments[at].tokens.end) {
        at = find_holder(std::span<const PositionSegment>(segments), t, tokens_of);
      }
      const PositionSegment& segment = segments[at];
      result.push_back({segment.sequence, segment.first_position + t - segment.tokens.begin, t});
    }
  }
  return result;
}

std::vector<std::int64_t> rolled_tokens(const Plan& plan, Rank rank) {
  const std::vector<PositionSegment> segments = position_segments(plan);
  const auto tokens_of = [](const PositionSegment& segment) { return segment.tokens; };
  std::vector<std::int64_t> result;
  for (const Range& range : local_ranges(plan, rank)) {
    std::size_t at =
        find_holder(std::span<const PositionSegment>(segments), range.begin, tokens_of);
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      if (t >= segments[at].tokens.end) {
        at = find_holder(std::span<const PositionSegment>(segments), t, tokens_of);
      }
      result.push_back(t + 1 < segments[at].tokens.end ? t + 1 : -1);
    }
  }
  return result;
}

}  // namespace contextile
