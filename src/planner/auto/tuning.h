// The constants that decide what `auto` tries and how long. Correctness does not depend on them:
// other values find other plans, faster or slower ones, in more or less time.
//
// Each group names the measurement behind it, with date and command, or says that none is recorded.
// To judge a change, compare plans and times before and after it (targets contextile_benchmarks and
// contextile_labs):
//
//   build/auto_bench --devices 32 --seed 11 --clusters p4de --kv-heads 32 --steps 300000,600000
//   build/auto_bench --devices 32 --seed 11 --clusters dgx-h200 --kv-heads 8 --steps 300000,600000
//   build/budget_bench
//   python labs/optimum                                  (small batches: polish, uneven rows)
//   build/contextile-labs search … --disable PHASE       (one batch without a phase)
//
// Three kinds of numbers stay where they are used: the shares of the phases (search_phases.cc), the
// costs of candidates in steps (search_budget.h), and the lists of schedules and of polish moves
// with their chances (schedule_rules.cc, tile_search.cc, polish.cc).
//
// A comment that names seed, cluster and KV heads without a command means the batches of
// `build/auto_bench --devices 32` (docs/results/auto.md). *Measured for the layer* means by its
// time on 28 workloads of seed 901, 4 x 8 devices of p4de and dgx-h100, 600,000 steps (2026-11-30).
// Luck makes a difference of 0.1%.
//
// Words: a *step* is about a microsecond of one core. *Effort* is a multiple of a partitioner's
// usual steps. *Eps* is the compute above the mean that a device may have, as a part of the mean; a
// larger one leaves more freedom to save traffic. *Near* is a multiple of the best cost so far,
// beyond which a placement is not worked on further.
// Unless a comment says otherwise, a larger effort, or a larger number of placements, schedules,
// rounds, seeds, blocks or tiles, finds better plans and takes longer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace contextile::tuning {

// ------------------------------------------------------------------------------------------ budget
// No measurement of these values is recorded.

// Steps of a search that has no limit: about two minutes of one core. Only the largest batches,
// whose candidates take seconds each, need more. Larger: those batches get better plans, later.
inline constexpr std::int64_t kUnlimitedSteps = 120'000'000;
// Tokens above the mean that a device may own with `tokens=even`, a documented promise. Larger:
// attention gets faster and linear layers slower (docs/results/auto.md, Training steps).
inline constexpr std::int64_t kEvenTokensAboveMean = 1024;
// Share of tokens above the mean that a placement for the layer may give a device before it is
// leveled. The layer is fastest with this one of 0, 0.5, 1, 2, 3 and 8% (measured for the layer).
// Smaller: placements have less freedom; larger: more tokens change their owner when they are
// leveled.
inline constexpr double kTokenSlack = 0.01;
// Factor of the time of a plan above the token cap. Large enough that such a plan is a last resort.
inline constexpr double kOverTokenCapFactor = 1e3;
// Cost of finding the bottleneck at the end, in simulations: the plan is built and simulated with
// one resource free. Larger: a search with `budget_ms` leaves `binding` out more often.
inline constexpr std::int64_t kSimulationsOfBinding = 2;
// Forward keeps its inputs for backward if this many times the tokens that a device owns take at
// most one part in kRetainedPartsOfMemory of its memory, the documented 5%. Larger: plans keep
// inputs less often, and backward receives them again.
inline constexpr std::int64_t kReceivedTimesOwned = 4;
inline constexpr std::int64_t kRetainedPartsOfMemory = 20;

// --------------------------------------------------------------------------------------- estimates
// The estimate of a placement decides whether it is simulated.

// Most that a byte between nodes counts for, in bytes inside a node. No measurement is recorded.
// Larger: links between nodes that are slower still count in full.
inline constexpr std::int64_t kMostInterWeight = 64;
// Eps of a node as a part of that of a device. No measurement is recorded. Smaller: nodes are more
// even, and fewer placements keep to it.
inline constexpr double kNodePartOfEps = 0.7;
// Share of the two of compute, ports and NICs that do not bind, which adds to the one that binds:
// compute hides most of the traffic, but not all. Used since 2026-11-24, no fit is recorded. On
// that day the time over the estimate spread by 13 to 18% (standard deviation of its logarithm, 112
// workloads); a better share lowers that spread. Larger: placements with little of everything win.
inline constexpr double kShareOfNotBinding = 0.35;

// -------------------------------------------------------------------------------------------- rows
// Except where a comment names one, no measurement of these values is recorded. More blocks,
// seeds, rounds and schedules take longer, and each gains less than the one before it.

// Blocks of whole rows:
inline constexpr std::int64_t kSmallestRowBlock = 128;  // tokens; smaller: more rows, slower
inline constexpr std::int64_t kLargestRowBlock = 4096;  // tokens; larger: faster, less even
inline constexpr std::int64_t kRowBlocksPerDevice = 4;  // about; half and twice as many, too
inline constexpr std::int64_t kMostRowBlocks = 16'384;  // tokens over block size
inline constexpr double kMostRowTiles = 150'000;        // of all head groups
// Blocks of all documents, of rows and of quick tiles. A hard limit for rows, because the
// partitioner numbers no more. So many blocks of tiles take long even with little effort for each.
inline constexpr std::int64_t kMostPlacedBlocks = 65'535;

// How they are annealed (src/partition/grid/rows.h):
// Weight of a byte's time. Ports and NICs are never all busy, so a byte counts for more than its
// share of all. Larger: less traffic, less even work.
inline constexpr double kRowByteWeight = 4;
// Weight, next to that, of the tokens above a device's cap. Larger: fewer placements above it.
inline constexpr double kOverfullRowWeight = 2;
// The same in prices of a token, if tokens have one. A device above its cap makes all others wait,
// so one price is too little: with 2 instead, the layer takes 0.4% longer (measured for it).
inline constexpr double kOverfullRowPrices = 20;
inline constexpr std::int64_t kRowAnnealingSteps = 200'000;  // at effort 1
inline constexpr double kRowEffort = 0.4;                    // of "more rows"
inline constexpr std::uint64_t kRowSeeds = 2;                // likewise
// A placement that starts from an earlier one. More heat forgets more of the earlier one. Measured
// for the layer: half the effort takes 0.3% longer, twice as much 0.0%.
inline constexpr double kWarmRowEffort = 0.2;
inline constexpr double kWarmRowHeat = 0.3;

// How the best are rebalanced ("refine rows", "improve rows", "finish rows"):
//
// Rows this near are rebalanced, get more schedules, and are placed again. Larger: more time goes
// to rows that do not win.
inline constexpr double kNearRows = 1.3;
// Part of a device's lateness that its handicap takes over in a round. Larger: may overshoot;
// smaller: needs more rounds.
inline constexpr double kHandicapGain = 0.7;
inline constexpr double kRebalancingSteps = 300'000;  // at effort 1, of several; one may take more
// Measured for the layer: half of kRebalancedRows and twice as many change it by 0.0%. Two of
// kRebalancingRounds take 0.4% longer, ten 0.0%. Half of kRefiningRounds and twice as many take
// 0.2% longer.
inline constexpr std::size_t kRebalancedRows = 4;     // placements, by "improve" and "finish"
inline constexpr int kRebalancingRounds = 5;          // likewise
inline constexpr int kRefiningRounds = 2;             // of the best one, before and after schedules
inline constexpr std::size_t kRefiningSchedules = 3;  // the likeliest; the first has been tried
inline constexpr std::size_t kRowSchedules = 5;       // all there are (schedule_rules.cc)

// Rows with uneven work: as in RowSpec, the work that a device may have without a penalty, in
// means, and the heat of the first steps. A start that fills devices to the mean is a poor one
// here, so they are hot. Fitted on 2026-11-26 to the 64 batches of docs/results/optimum.md (`python
// labs/optimum`). The likely one alone, among seven sets, made the fastest plans within 300,000 and
// 600,000 steps (2026-11-26, seed 23, p4de, 32 KV heads).
struct UnevenRows {
  double fill;
  double heat;
};
inline constexpr UnevenRows kLikelyUnevenRows = {1.6, 20};
inline constexpr std::array kUnevenRows = {UnevenRows{1.25, 20}, kLikelyUnevenRows,
                                           UnevenRows{1.6, 5}};
inline constexpr double kUnevenRowEffort = 0.1;
inline constexpr std::size_t kUnevenRowsScheduled = 3;  // placements that get more schedules

// ------------------------------------------------------------------------------------------- tiles
// Except where a comment names one, no measurement of these values is recorded. Finer blocks and
// more head groups place better, and their tiles take longer to place and simulate.

// Block sizes in tokens, likeliest first: at most kMostGridSizes of those that give every device
// kGridBlocksPerDevice blocks and make no more than kMostGridBlocks in all. If none does, blocks
// are as large as kFallbackBlocksPerDevice for every device allow.
inline constexpr std::array<std::int64_t, 7> kGridBlockSizes = {1024, 2048, 512, 4096,
                                                                8192, 256,  128};
inline constexpr std::size_t kMostGridSizes = 3;
inline constexpr std::int64_t kGridBlocksPerDevice = 2;
inline constexpr std::int64_t kMostGridBlocks = 4096;
inline constexpr std::int64_t kFallbackBlocksPerDevice = 4;
// Head groups: as many as KV heads up to the most, a few, two and one. Up to 64 of them make the
// difference for 32 KV heads over slow links: a batch of `--dataset prolong --seed 7` on p4de takes
// 5.2 ms instead of 7.7 (2026-11-26, docs/results/auto.md, Searches with a limit).
inline constexpr std::int32_t kMostHeadGroups = 64;
inline constexpr std::int32_t kFewHeadGroups = 8;
// Most tiles of all head groups. Placements of one head group may have more.
inline constexpr double kMostGridTiles = 150'000;

inline constexpr double kNearTiles = 1.15;         // larger: more time goes to tiles
inline constexpr double kTileEps = 0.12;           // to begin with
inline constexpr std::size_t kTilesSimulated = 6;  // placements of several block sizes
// How the best are improved: first other eps for all choices, then the best placements again.
inline constexpr std::array kOtherTileEps = {0.05, 0.25};
inline constexpr std::size_t kOtherEpsSimulated = 2;          // placements of each eps
inline constexpr std::size_t kTilesImproved = 3;              // placements
inline constexpr std::array kImprovingEpsParts = {1.0, 0.4};  // of the eps they had, one seed each
inline constexpr double kImprovingEffort = 3;                 // at effort 1

// ------------------------------------------------------------------------------------ quick search
// Except where a comment names one, no measurement of these values is recorded. They balance a
// first plan within 50 ms against the quality of later ones. `build/auto_bench` also prints the
// search that has 50 ms and one thread.

// Geometric means of simulated time over estimate. Fitted on 2026-11-24 to quick placements of seed
// 5; on the 112 workloads of seed 33 they are 1.08, 1.09, 1.23 and 1.13. To fit them again, plan
// with `auto:candidates=own`, simulate every quick placement and average log(time / estimate) for
// each kind. Larger: placements of that kind are simulated later, or not at all.
inline constexpr double kRowsOverEstimate = 1.08;
inline constexpr double kSpreadRowsOverEstimate = 1.11;
inline constexpr double kTilesOverEstimate = 1.2;          // of one head group
inline constexpr double kGroupedTilesOverEstimate = 1.13;  // of several

// Measured for the layer: with one of kQuickSimulated it takes 0.1% longer.
inline constexpr std::size_t kQuickSimulated = 3;      // placements, at most
inline constexpr double kNearQuick = 1.15;             // expected times of all but the first
inline constexpr std::size_t kQuickRowSchedules = 1;   // pairs of schedules of a placement
inline constexpr std::size_t kQuickTileSchedules = 2;  // likewise
// A batch is lopsided if the rows of one block take this part of the mean device's work, and this
// many times as much as their tokens would on average. Larger: more batches place rows first.
inline constexpr double kLopsidedPartOfDevice = 0.7;
inline constexpr double kLopsidedTimesTokens = 10;
// Rows look good if their placement is estimated to take less than this multiple of the mean work.
// Larger: fewer batches place tiles early.
inline constexpr double kGoodTimesMean = 2;
// The best plan waits much if it takes longer than this multiple of the mean work. Larger: fewer
// batches place uneven rows.
inline constexpr double kWaitingTimesMean = 1.5;

// Measured for the layer: with half of it, the layer takes 0.1% less time; with twice as much, 0.3%
// more.
inline constexpr double kQuickRowEffort = 0.05;
inline constexpr double kQuickUnevenRowEffort = 0.05;
inline constexpr double kQuickTileEffort = 0.1;
inline constexpr double kQuickTilesPerDevice = 750;        // of all head groups
inline constexpr double kQuickGroupTilesPerDevice = 100;   // of one head group
inline constexpr std::array kQuickTileEps = {0.12, 0.25};  // of turns, alternating
inline constexpr int kQuickTileTurns = 3;                  // if there are no placements of rows

// ------------------------------------------------------------------------------------------ others

// Part of an arrangement's lower bound that counts. With many devices the simulator computes shares
// of rates only now and then, so a plan may come out slightly below its bound. No measurement of
// the 1% is recorded; `build/bounds_bench` compares bounds with plans. Larger: plans may be missed.
inline constexpr double kBoundMargin = 0.99;
// Variants that decide by rule and are simulated first: those with the least bounds. Two of them
// held the fastest within 0.05% on average over 112 workloads; the first alone takes 0.1 to 2.3%
// longer (2026-11-24, the command is not recorded).
inline constexpr std::size_t kLikelyOthers = 2;
// Strategies of a round. A simulation in one round spares later rounds some. Larger: more threads
// are busy, and fewer are spared. No measurement is recorded.
inline constexpr std::ptrdiff_t kOthersOfRound = 8;
// "any plan" arranges the cheapest, and more within the most of these: so many steps, or a
// multiple of the cheapest up to a limit. The cheapest alone is often the slowest plan: ring
// attention takes 56 times as long as the best plan of one long document under a sparse mask. Only
// the whole rule was measured, against taking the cheapest: with searches of 5000 steps, plans take
// 0.74 (p4de, 32 KV heads) and 0.94 (dgx-h200, 8) of the time, and as long from 10,000 steps on
// (2026-11-26, seed 11). Larger: better plans, further beyond the limits.
inline constexpr std::int64_t kLastResortSteps = 5000;
inline constexpr std::int64_t kLastResortTimesCheapest = 8;
inline constexpr std::int64_t kLastResortMostSteps = 2'000'000;

// ------------------------------------------------------------------------------------------ polish
// The first five were chosen on 2026-11-26 by the 64 batches of docs/results/optimum.md (`python
// labs/optimum`). No measurement of the others is recorded.

inline constexpr double kPolishSteps = 600'000;          // at effort 1; more find more, take longer
inline constexpr std::int64_t kFewestPolishPlans = 120;  // of a chain: fewer find little
inline constexpr std::size_t kPolishChains = 4;          // of the first half
inline constexpr double kNearPolishStarts = 1.5;         // larger: chains that do not catch up
inline constexpr double kFirstPolishHeat = 0.02;         // of the best time; larger: walks further
inline constexpr std::size_t kPolishStartsOfKind = 2;    // placements of rows, and of tiles
inline constexpr std::array kPolishChanges = {1, 1, 1, 2, 3};  // of a move, each as likely
inline constexpr int kLateTileTries = 16;        // to draw a tile of the device that ends last
inline constexpr double kPolishWithRows = 0.75;  // moves of a block that take its rows along

}  // namespace contextile::tuning
