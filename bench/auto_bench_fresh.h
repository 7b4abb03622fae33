// `auto` against the best other plan on workloads of all kinds, drawn by a seed.
#pragma once

#include "auto_bench_plans.h"

namespace contextile::bench {

// Draws `options.fresh` workloads and prints what auto_bench.cc says. Returns the exit status.
int run_fresh(const AutoBenchOptions& options);

}  // namespace contextile::bench
