#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "contextile/plan.h"

namespace contextile {
namespace {

// Plans made without positions count from the start of every sequence.
std::vector<PositionSegment> position_segments(const Plan& plan) {
  if (!plan.positions.empty()) return plan.positions;
  std::vector<PositionSegment> segments;
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    segments.push_back({plan.sequences[s], static_cast<std::int64_t>(s), 0});
  }
  return segments;
}

// Returns the segment (of ascending ones, end to end) that holds a token.
std::size_t holder_of(std::span<const PositionSegment> segments, std::int64_t token) {
  const auto begin_of = [](const PositionSegment& segment) { return segment.tokens.begin; };
  const auto after = std::ranges::upper_bound(segments, token, {}, begin_of);
  CONTEXTILE_CHECK(after != segments.begin() && (after - 1)->tokens.contains(token),
                   "plan: expected token {} inside a sequence, found none", token);
  return static_cast<std::size_t>(after - segments.begin()) - 1;
}

// Calls `visit(segment, token)` for every local row, in local order.
template <typename Visit>
void for_each_local_token(const Plan& plan, Rank rank, const Visit& visit) {
  const std::vector<PositionSegment> segments = position_segments(plan);
  for (const Range& range : local_ranges(plan, rank)) {
    std::size_t at = holder_of(segments, range.begin);
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      if (t >= segments[at].tokens.end) at = holder_of(segments, t);
      visit(segments[at], t);
    }
  }
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

void check_knows_positions(const Plan& plan, std::string_view where) {
  for (const PositionSegment& segment : plan.positions) {
    CONTEXTILE_CHECK(segment.follows != kPositionsUnknown,
                     "{}: expected a plan with positions (positions=…), for a mask without a rule "
                     "does not tell those of tokens [{}, {}): some attend neither the token before "
                     "them nor as branches of a tree do; found none",
                     where, segment.tokens.begin, segment.tokens.end);
  }
}

void check_knows_order(const Plan& plan, std::string_view where) {
  check_knows_positions(plan, where);
  for (const PositionSegment& segment : plan.positions) {
    CONTEXTILE_CHECK(segment.follows != kOrderUnknown,
                     "{}: expected labels of every token as it is (shift_labels), for tokens [{}, "
                     "{}) have positions of their own, which do not tell what they predict; found "
                     "none",
                     where, segment.tokens.begin, segment.tokens.end);
  }
}

std::vector<TokenPosition> positions(const Plan& plan, Rank rank) {
  std::vector<TokenPosition> result;
  for_each_local_token(plan, rank, [&](const PositionSegment& segment, std::int64_t token) {
    result.push_back(
        {segment.sequence, segment.first_position + token - segment.tokens.begin, token});
  });
  return result;
}

std::vector<std::int64_t> rolled_tokens(const Plan& plan, Rank rank) {
  check_knows_order(plan, "rolled tokens");
  std::vector<std::int64_t> result;
  for_each_local_token(plan, rank, [&](const PositionSegment& segment, std::int64_t token) {
    result.push_back(token + 1 < segment.tokens.end ? token + 1 : -1);
  });
  return result;
}

std::vector<NextToken> next_tokens(const Plan& plan, Rank rank) {
  check_knows_order(plan, "next tokens");
  std::vector<NextToken> branches;  // row: the token in the batch that a branch follows
  for (const PositionSegment& segment : plan.positions) {
    if (segment.follows >= 0) branches.push_back({segment.follows, segment.tokens.begin});
  }
  std::ranges::sort(branches);
  std::vector<NextToken> result;
  std::int64_t row = 0;
  for_each_local_token(plan, rank, [&](const PositionSegment& segment, std::int64_t token) {
    if (token + 1 < segment.tokens.end) result.push_back({row, token + 1});
    auto branch = std::ranges::lower_bound(branches, token, {}, &NextToken::row);
    for (; branch != branches.end() && branch->row == token; ++branch) {
      result.push_back({row, branch->token});
    }
    ++row;
  });
  return result;
}

}  // namespace contextile
