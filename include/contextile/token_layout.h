// Which tokens a rank holds, in which order, and where they stand in their sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/base.h"
#include "contextile/plan.h"

namespace contextile {

// The token ranges of a rank's local rows, in local order, all rounds. Throws InvalidArgument when
// the plan has no such rank.
[[nodiscard]] std::vector<Range> local_ranges(const Plan& plan, Rank rank);
// How many rows that are.
[[nodiscard]] std::int64_t num_local_tokens(const Plan& plan, Rank rank);
// Global token index of every local row of a rank, in local order, all rounds.
[[nodiscard]] std::vector<std::int64_t> local_tokens(const Plan& plan, Rank rank);

struct TokenPosition {
  std::int64_t sequence = 0;
  std::int64_t position = 0;  // in the sequence, for RoPE
  std::int64_t token = 0;     // global index
};
// The position of every local row.
[[nodiscard]] std::vector<TokenPosition> positions(const Plan& plan, Rank rank);

// For every local row the global index of the token whose label it predicts (the next one of its
// sequence), or -1 on a sequence's last token.
[[nodiscard]] std::vector<std::int64_t> rolled_tokens(const Plan& plan, Rank rank);

}  // namespace contextile
