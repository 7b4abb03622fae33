#include <cstdio>

#include "contextile/planner.h"

using namespace contextile;

int main() {
  const std::vector<std::int64_t> lengths = {500, 90'000, 40'572};  // tokens of each document
  const Workload batch = make_workload(lengths, AttentionShape{}, parse_mask_use("causal"));
  const Cluster cluster = load_cluster("dgx-h200:4x8");
  const PlannedBatch planned = plan_batch(batch, cluster, {"auto"});
  if (!planned.verified.ok()) return 1;  // planned.verified.violations says why
  save_plan(*planned.plan, "batch.plan");
  std::printf("%lld bytes between nodes, %.3f ms forward and backward\n",
              static_cast<long long>(planned.statistics.forward->inter_bytes),
              1e-3 * simulate(*planned.plan, cluster).time_us());
}
