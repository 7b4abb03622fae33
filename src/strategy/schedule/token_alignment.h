// Devices that own multiples of some number of tokens, or equally many.
#pragma once

#include <cstdint>
#include <optional>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/plan_options.h"
#include "contextile/workload.h"

namespace contextile {

// True if the options say how many tokens devices own.
[[nodiscard]] inline bool aligns_tokens(const PlanOptions& options) {
  return options.tokens_multiple != 1 || options.equal_tokens;
}

// Throws InvalidArgument, naming the option, if no plan of the workload keeps to
// PlanOptions::tokens_multiple and equal_tokens.
void check_alignment(const Workload& workload, const Cluster& cluster, const PlanOptions& options);

// Returns the tokens that every device should own instead of `owned`, as the options say and near
// those. Devices with the largest rests get the whole multiple. Tokens above `cap` or the limit go
// to the devices that own least. Requires check_alignment, and a cap of at least the mean.
// O(devices²).
[[nodiscard]] IdVector<Rank, std::int64_t> aligned_tokens(const IdVector<Rank, std::int64_t>& owned,
                                                          const PlanOptions& options,
                                                          std::optional<std::int64_t> cap = {});

// Cuts blocks of an arrangement and gives their last tokens other owners, until every device owns
// the tokens that the options ask for. Every tile stays on its device, which fetches the tokens
// first and sends their results back (schedule/home.h). Does nothing if the options leave that open
// or the arrangement keeps to them already. Throws as check_alignment.
// O((tiles + transfers) · log).
void align_tokens(const Workload& workload, const Cluster& cluster, const PlanOptions& options,
                  Arrangement& arrangement);

}  // namespace contextile
