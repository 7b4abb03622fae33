#include "labs/papers/movement.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/plan.h"

namespace contextile {

MeanMovement movement_of(const StrategyChoice& choice, const PlanInput& input,
                         std::span<const Workload> batches) {
  MeanMovement mean;
  const double share = 1.0 / static_cast<double>(batches.size());
  for (const Workload& workload : batches) {
    const PlannedBatch planned = plan_and_check(workload, input.cluster, choice, input.options);
    const PlanStats& statistics = planned.statistics;
    std::vector<std::int64_t> traffic(static_cast<std::size_t>(input.cluster.num_devices()));
    for (const auto& direction : {statistics.forward, statistics.backward}) {
      if (!direction) continue;
      mean.inter_bytes += share * static_cast<double>(direction->inter_bytes);
      mean.device_bytes +=
          share * static_cast<double>(direction->total_bytes()) / input.cluster.num_devices();
      for (std::size_t d = 0; d < traffic.size(); ++d) {
        traffic[d] += direction->devices[d].sent_bytes + direction->devices[d].received_bytes;
      }
    }
    mean.busiest_bytes += share * static_cast<double>(std::ranges::max(traffic));
    mean.compute_overload += share * statistics.forward->compute_overload;
    mean.token_overload += share * statistics.token_overload;
    mean.tiles += share * static_cast<double>(statistics.forward->tiles);
  }
  return mean;
}

}  // namespace contextile
