#include "labs/papers/gpu_share.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "contextile/advanced/training.h"
#include "contextile/simulate.h"
#include "labs/papers/findings.h"

namespace contextile {
namespace {

// The batches' values of one direction.
struct Samples {
  std::vector<double> time_s;
  std::vector<double> mfu;
  std::vector<double> share;
  std::vector<double> limit;
};

double peak_flops(const Cluster& cluster) {
  return 1e12 * peak_tflops_of(cluster) * cluster.num_devices();
}

void add(const SimulatedDirection& direction, double alone_us, const Cluster& cluster,
         Samples& samples) {
  double busiest_us = 0;
  for (const DeviceTimes& device : direction.devices) {
    busiest_us = std::max(busiest_us, device.of(Activity::kAttention));
  }
  const double time_s = 1e-6 * direction.time_us;
  samples.time_s.push_back(time_s);
  samples.mfu.push_back(direction.flops / (time_s * peak_flops(cluster)));
  samples.share.push_back(alone_us / direction.time_us);
  samples.limit.push_back(alone_us / busiest_us);
}

double geometric_mean(std::span<const double> values) {
  double logs = 0;
  for (const double value : values) logs += std::log(value);
  return std::exp(logs / static_cast<double>(values.size()));
}

GpuShare mean_share(const Samples& samples) {
  return {.time_s = geometric_mean(samples.time_s),
          .mfu = geometric_mean(samples.mfu),
          .mfu_spread = deviation_of(samples.mfu),
          .share = geometric_mean(samples.share),
          .limit = geometric_mean(samples.limit)};
}

double single_gpu_us(const Workload& workload, Cluster cluster, Direction direction) {
  cluster.transfer_sms = 0;
  const TileCosts costs(workload.shape, cluster);
  double us = 0;
  for (const Range& document : workload.sequences) {
    const std::int64_t length = document.size();
    us += costs.piece_us(direction, length, length, length * (length + 1) / 2, 1);
  }
  return us / cluster.num_devices();
}

}  // namespace

GpuShares predict_shares(const StrategyChoice& choice, const PlanInput& input,
                         std::span<const Workload> batches) {
  const Cluster& cluster = input.cluster;
  GpuShares shares;
  Samples forward;
  Samples backward;
  for (const Workload& workload : batches) {
    if (const auto reason = unsupported_reason(workload, cluster, choice, input.options)) {
      shares.skipped = *reason;
      return shares;
    }
    const PlannedBatch planned = plan_and_check(workload, cluster, choice, input.options);
    for (const auto& direction : {planned.statistics.forward, planned.statistics.backward}) {
      if (!direction) continue;
      shares.device_bytes += static_cast<double>(direction->total_bytes()) /
                             (cluster.num_devices() * static_cast<double>(batches.size()));
      shares.memory_bytes = std::max(shares.memory_bytes, direction->peak_memory_bytes);
    }
    const Simulation simulation = simulate(*planned.plan, cluster);
    shares.total_s.push_back(1e-6 * simulation.time_us());
    add(*simulation.forward, single_gpu_us(workload, cluster, Direction::kForward), cluster,
        forward);
    if (!simulation.backward) continue;
    add(*simulation.backward, single_gpu_us(workload, cluster, Direction::kBackward), cluster,
        backward);
  }
  shares.forward = mean_share(forward);
  if (input.options.backward) shares.backward = mean_share(backward);
  return shares;
}

}  // namespace contextile
