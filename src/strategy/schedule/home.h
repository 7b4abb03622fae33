// Home layouts: data that already sits somewhere, attention that runs elsewhere.
#pragma once

#include <vector>

#include "contextile/extend/arrangement.h"
#include "contextile/workload.h"
#include "strategy/schedule/rank_layout.h"

namespace contextile {

// The owner of every block: its home where the workload has a home layout, else its worker.
[[nodiscard]] std::vector<Rank> owners_of(const Workload& workload, const WorkBlocks& work);

// Gives a round, arranged as if every block belonged to its worker, its blocks and owners. Where
// home and worker of a block differ, reshuffling becomes ordinary remote execution: everything the
// round does happens one stage later; before it q and kv (backward: q, kv, do) travel home → worker
// if the worker uses them, and whatever any device has gathered of o (dq, dkv) in the end travels
// home. Inputs the home would receive and results that would leave it are dropped: it has them, it
// keeps them. O((tiles + transfers) · log).
void finish_round(const Workload& workload, WorkBlocks&& work, ArrangedRound& round);

}  // namespace contextile
