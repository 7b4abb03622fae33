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

// Source: Megatron-LM dev, data_schedule_utils.py (next_hdp_group_packing_aware). As
// schedule_balanced_cp, but a rank holds at most cap tokens of all its group's samples, and samples
// come longest first: each goes where the most loaded rank stays lowest – a group of c(L), 2·c(L),
// … ranks with room, or new ranks – while that is at most 1.05 · Lmax · cap for the round's longest
// sample; else it waits. Free ranks at the end join the smallest groups; if that does not come out
// even, all ranks become one group that takes samples in order while they fit. c(L) is at least
// min_ranks and at most R. Throws InvalidArgument when L > R·cap or min_ranks is none of the above.
// O(rounds · samples · groups).
[[nodiscard]] std::vector<ScheduledRound> schedule_dynamic_cp(std::span<const std::int64_t> lengths,
                                                              const DynamicCpOptions& options);

// Source: the same file (align_sample_id_groups), for pipeline stages in several chunks. Until the
// number of rounds is a multiple: a round, from the last to the first and again, is cut at the
// first group boundary at or behind R/2; its second part stays, its first becomes the last round;
// in both the groups grow, smallest first, to all ranks. Throws InvalidArgument when every round is
// one group.
[[nodiscard]] std::vector<RankSamples> align_rounds(std::vector<RankSamples> rounds,
                                                    std::int32_t multiple);

struct DpBalancedOptions {
  std::int32_t context_parallel = 1;  // ranks of a group
  std::int32_t data_parallel = 1;     // groups
  std::int64_t cap_tokens = 0;        // tokens of one rank
  std::int32_t multiple = 1;          // the number of rounds is one of it
  std::int32_t max_samples = 0;       // in a group and round; 0: no limit
};

// Source: Megatron-LM dev, data_schedule.py (DpBalancedScheduler). Samples fill bins of cap tokens
// times the ranks of a group in the order they come (next fit). While the number of bins is no
// multiple of groups times `multiple`, the last sample of the last bin with several gets a bin of
// its own. Round i gives bin i·groups + g to group g, all ranks in order. Throws InvalidArgument
// when a sample exceeds a bin, or when the samples are too few to fill the rounds.
[[nodiscard]] std::vector<RankSamples> schedule_dp_balanced(std::span<const std::int64_t> lengths,
                                                            const DpBalancedOptions& options);

}  // namespace contextile
