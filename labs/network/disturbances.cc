#include "labs/network/disturbances.h"

#include <algorithm>
#include <cstddef>

#include "base/rng.h"

namespace contextile {

Cluster with_wrong_constants(const Cluster& cluster, double within, std::uint64_t seed) {
  Rng rng(seed);
  const auto change = [&](double& constant) { constant *= 1 + within * (2 * rng.uniform() - 1); };
  Cluster changed = cluster;
  for (double Cluster::*constant :
       {&Cluster::attention_tflops, &Cluster::intra_gbytes_per_s,
        &Cluster::inter_gbytes_per_s_per_node, &Cluster::memory_gbytes_per_s,
        &Cluster::intra_latency_us, &Cluster::inter_latency_us, &Cluster::launch_us}) {
    change(changed.*constant);
  }
  change(changed.attention.call_us);
  for (const EngineCost& cost : engine_costs()) change(changed.engine.*cost.member);
  // One factor for all: each is the same limit at another number of nodes.
  double flows = 1;
  change(flows);
  for (FlowRate& rate : changed.flow_gbytes_per_s) rate.gbytes_per_s *= flows;
  return changed;
}

void add_noise(std::vector<NetworkProgram>& programs, const Noise& noise, std::uint64_t device_seed,
               std::uint64_t jitter_seed) {
  constexpr double kLeastFactor = 0.1;
  Rng device_rng(device_seed);
  Rng rng(jitter_seed);
  const double slow = device_rng.uniform();
  for (NetworkProgram& program : programs) {
    const auto devices = static_cast<double>(program.devices.size());
    for (std::size_t d = 0; d < program.devices.size(); ++d) {
      const bool is_slow = d == static_cast<std::size_t>(slow * devices);
      for (NetworkStep& step : program.devices[d]) {
        step.duration_us *= std::max(kLeastFactor, 1 + noise.jitter * rng.normal());
        if (is_slow) step.duration_us *= 1 + noise.slow_by;
      }
    }
  }
}

}  // namespace contextile
