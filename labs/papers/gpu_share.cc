#include "labs/papers/gpu_share.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "contextile/simulate.h"

namespace contextile {
namespace {

// Adds logarithms, from which exp_of makes geometric means.
void add_logs(const SimulatedDirection& direction, double alone_us, GpuShare& logs) {
  double busiest_us = 0;
  for (const DeviceTimes& device : direction.devices) {
    busiest_us = std::max(busiest_us, device.of(Activity::kAttention));
  }
  logs.time_s += std::log(1e-6 * direction.time_us);
  logs.share += std::log(alone_us / direction.time_us);
  logs.limit += std::log(alone_us / busiest_us);
}

GpuShare exp_of(const GpuShare& logs, double weight) {
  return {std::exp(weight * logs.time_s), std::exp(weight * logs.share),
          std::exp(weight * logs.limit)};
}

GpuShares skipped_shares(std::string reason) {
  GpuShares shares;
  shares.skipped = std::move(reason);
  return shares;
}

double single_gpu_us(const Workload& workload, const Cluster& cluster, Direction direction) {
  const TileCosts costs(workload.shape, cluster);
  double us = 0;
  for (const Range& document : workload.sequences) {
    const std::int64_t length = document.size();
    us += costs.piece_us(direction, length, length, length * (length + 1) / 2, 1);
  }
  return us / cluster.num_devices();
}

}  // namespace

std::vector<GpuShares> predict_shares(const StrategyChoice& choice, const PlanInput& input,
                                      std::span<const Workload> batches,
                                      std::span<const Cluster> machines) {
  std::vector<GpuShares> shares(machines.size());
  for (const Workload& workload : batches) {
    if (const auto reason = unsupported_reason(workload, input.cluster, choice, input.options)) {
      return std::vector(machines.size(), skipped_shares(*reason));
    }
    const PlannedBatch planned = plan_and_check(workload, input.cluster, choice, input.options);
    double bytes = 0;
    for (const auto& direction : {planned.statistics.forward, planned.statistics.backward}) {
      if (direction) bytes += static_cast<double>(direction->total_bytes());
    }
    for (std::size_t m = 0; m < machines.size(); ++m) {
      const Simulation simulation = simulate(*planned.plan, machines[m]);
      add_logs(*simulation.forward, single_gpu_us(workload, machines[m], Direction::kForward),
               shares[m].forward);
      if (simulation.backward) {
        add_logs(*simulation.backward, single_gpu_us(workload, machines[m], Direction::kBackward),
                 shares[m].backward);
      }
      shares[m].device_bytes += bytes / machines[m].num_devices();
    }
  }
  const double weight = 1.0 / static_cast<double>(batches.size());
  for (GpuShares& mean : shares) {
    mean.forward = exp_of(mean.forward, weight);
    if (input.options.backward) mean.backward = exp_of(mean.backward, weight);
    mean.device_bytes *= weight;
  }
  return shares;
}

}  // namespace contextile
