// Megatron-LM's BalancedCPScheduler (hybrid context parallelism): samples → rounds of groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strategy/schedule/groups.h"

namespace contextile {

// A round, the estimates it was made with, and the samples it leaves.
struct ScheduledRound {
  RankSamples samples;                 // [rank] → indices of samples, in execution order
  std::vector<double> loads;           // estimated work of every rank, length² / ranks summed
  std::vector<std::int32_t> leftover;  // samples of later rounds, in the order they are considered
};

enum class UpstreamFaults : std::uint8_t {
  kRepaired,    // works with any number of ranks
  kReproduced,  // fails where the original fails, and counts as it counts
};

struct BalancedCpOptions {
  std::int32_t num_ranks = 1;   // R
  std::int64_t cap_tokens = 0;  // tokens of one rank and sample
  UpstreamFaults faults = UpstreamFaults::kRepaired;
};

// Schedules samples in rounds of groups. Source: Megatron-LM, hybrid_cp_schedule.py
// (BalancedCPScheduler). A sample of L tokens needs c(L) ranks, the smallest power of two with
// c·cap >= L; its work is W(L, c) = L² / c. Rounds are made until no sample is left:
// * Samples are divided into buckets of about equal work. From the first bucket on, the head whose
//   c(L) fits goes to the least loaded group of that size, or to new ranks if their load is less.
// * Once groups are smaller than the round's first, balance within 5% ends the placement.
// * The most loaded group then gives up its last sample while that narrows the gap.
// * Finally, ranks without samples are added to the smallest groups, whose samples they share.
//
// Repaired: c(L) is at most R, so any R works. A group grows by at most the ranks that are empty
// and may have any size. A grown group's work counts all of its samples, while the original counts
// the first. Reproduced: throws InvalidArgument where c(L) exceeds R, where too few ranks are empty
// to double a group, and where a group is not one of the original's process groups (aligned runs of
// 2, 4, …, 2^(floor(log2 R) - 1) ranks, all R, or one).
//
// `lengths` are positive tokens. Also throws InvalidArgument when L > R·cap.
// O(rounds · samples · groups).
[[nodiscard]] std::vector<ScheduledRound> schedule_balanced_cp(
    std::span<const std::int64_t> lengths, const BalancedCpOptions& options);

}  // namespace contextile
