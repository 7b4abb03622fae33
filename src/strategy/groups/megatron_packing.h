// Megatron-LM's packing schedulers: samples → rounds of groups whose samples are packed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strategy/groups/megatron_balanced.h"
#include "strategy/schedule/groups.h"

namespace contextile {

struct DynamicCpOptions {
  std::int32_t num_ranks = 1;   // R
  std::int64_t cap_tokens = 0;  // tokens of one rank, all samples of its group together
  std::int32_t min_ranks = 1;   // a group has at least as many; a power of two, at most R
};

// Schedules samples in rounds of packed groups. Source: Megatron-LM dev, data_schedule_utils.py
// (next_hdp_group_packing_aware). It differs from schedule_balanced_cp as follows. A rank holds at
// most cap tokens of all its group's samples. Samples come longest first, and each goes where the
// most loaded rank stays lowest: to a group of c(L), 2·c(L), … ranks with room, or to new ranks. If
// the load would exceed 1.05 · Lmax · cap for the round's longest sample, it waits for a later
// round. Free ranks at the end join the smallest groups. If that does not use exactly all ranks,
// all ranks become one group that takes samples in order while they fit. c(L) is at least min_ranks
// and at most R. Throws InvalidArgument when L > R·cap or when min_ranks is not a power of two up
// to R. O(rounds · samples · groups).
[[nodiscard]] std::vector<ScheduledRound> schedule_dynamic_cp(std::span<const std::int64_t> lengths,
                                                              const DynamicCpOptions& options);

// Cuts rounds until their number is a multiple. Source: the same file (align_sample_id_groups), for
// pipeline stages in several chunks. From the last round to the first and again, a round is cut at
// the first group boundary at or behind R/2. Its second part stays and its first becomes the last
// round. In both the groups grow, smallest first, to all ranks. Throws InvalidArgument when every
// round is one group.
[[nodiscard]] std::vector<RankSamples> align_rounds(std::vector<RankSamples> rounds,
                                                    std::int32_t multiple);

struct DpBalancedOptions {
  std::int32_t context_parallel = 1;  // ranks of a group
  std::int32_t data_parallel = 1;     // groups
  std::int64_t cap_tokens = 0;        // tokens of one rank
  std::int32_t multiple = 1;          // the number of rounds is a multiple of it
  std::int32_t max_samples = 0;       // in a group and round; 0: no limit
};

// Source: Megatron-LM dev, data_schedule.py (DpBalancedScheduler). Samples fill bins of cap tokens
// times the ranks of a group in the order they come (next fit). While the number of bins is not a
// multiple of groups times `multiple`, the last sample of the last bin with several samples gets a
// bin of its own. In round i, group g gets bin i·groups + g, on all of its ranks in order. Throws
// InvalidArgument when a sample exceeds a bin, or when there are too few samples to fill the
// rounds.
[[nodiscard]] std::vector<RankSamples> schedule_dp_balanced(std::span<const std::int64_t> lengths,
                                                            const DpBalancedOptions& options);

}  // namespace contextile
