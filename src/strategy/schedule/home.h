// Home layouts: data that is already on some devices, attention that runs on others.
#pragma once

#include <vector>

#include "contextile/extend/arrangement.h"
#include "contextile/workload.h"
#include "strategy/schedule/rank_layout.h"

namespace contextile {

// Returns the owner of every block: its home if the workload has a home layout, else its worker.
[[nodiscard]] std::vector<Rank> owners_of(const Workload& workload, const WorkBlocks& work);

// Lets the blocks of a round belong to round.owners, though it was arranged as if every block
// belonged to its worker. Reshuffling becomes ordinary remote execution. Everything in the round
// happens one stage later. Before it, q and kv (backward: q, kv, do) travel from home to the worker
// if the worker uses them. The o (dq, dkv) that any device has gathered in the end travels home.
// Inputs that the home would receive and results that would leave it are dropped, because the home
// already has the former and keeps the latter; so are results without a tile. Only transfers of
// `routed` blocks change, which are at least those away from home. O((tiles + transfers) · log).
void route_home(const std::vector<Rank>& workers, const std::vector<bool>& routed,
                ArrangedRound& round);

// Sets blocks and owners of a round that was arranged as if every block belonged to its worker, and
// routes those whose home is another device.
void finish_round(const Workload& workload, WorkBlocks&& work, ArrangedRound& round);

}  // namespace contextile
