#include "labs/papers/movement.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/plan.h"
#include "labs/papers/findings.h"

namespace contextile {
namespace {

double imbalance_of(std::span<const double> values) {
  const double most = std::ranges::max(values);
  return most > 0 ? 1 - mean_of(values) / most : 0;
}

}  // namespace

MeanMovement movement_of(const StrategyChoice& choice, const PlanInput& input,
                         std::span<const Workload> batches) {
  MeanMovement mean;
  std::vector<double> accumulated_flops(static_cast<std::size_t>(input.cluster.num_devices()));
  std::vector<double> accumulated_bytes(accumulated_flops.size());
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
    for (std::size_t d = 0; d < traffic.size(); ++d) {
      accumulated_flops[d] += statistics.forward->devices[d].flops;
      accumulated_bytes[d] += static_cast<double>(traffic[d]);
    }
    mean.busiest_bytes += share * static_cast<double>(std::ranges::max(traffic));
    mean.compute_overload += share * statistics.forward->compute_overload;
    mean.token_overload += share * statistics.token_overload;
    mean.tiles += share * static_cast<double>(statistics.forward->tiles);
  }
  mean.accumulated_compute_imbalance = imbalance_of(accumulated_flops);
  mean.accumulated_traffic_imbalance = imbalance_of(accumulated_bytes);
  return mean;
}

}  // namespace contextile
