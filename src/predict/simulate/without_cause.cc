#include "predict/simulate/without_cause.h"

#include <algorithm>

namespace contextile {

namespace {

// Used instead of an infinite rate, so that divisions stay finite.
constexpr double kBoundlessGbytes = 1e12;  // the most that a cluster may have

}  // namespace

bool has_host_times(const EngineCosts& engine) { return engine != engine.without_host(); }

Cluster without(Cause cause, Cluster cluster) {
  AttentionProfile& attention = cluster.attention;
  switch (cause) {
    case Cause::kTiles:
      for (auto* shares : {&attention.forward, &attention.backward}) {
        std::ranges::fill(*shares, *std::ranges::max_element(*shares));
      }
      attention.kernel_tile_rows = 0;
      break;
    case Cause::kCalls:
      attention.call_us = 0;
      break;
    case Cause::kMerging:
      cluster.memory_gbytes_per_s = kBoundlessGbytes;
      break;
    case Cause::kLaunches:
      cluster.launch_us = 0;
      break;
    case Cause::kLatency:
      cluster.intra_latency_us = cluster.inter_latency_us = 0;
      break;
    case Cause::kFlows:
      cluster.flow_gbytes_per_s.clear();
      break;
    case Cause::kHost:
      cluster.engine = cluster.engine.without_host();
      break;
    case Cause::kLaunchOrder:
      cluster.launches = LaunchOrder::kConcurrent;
      break;
    case Cause::kStolenCompute:
      cluster.transfer_sms = 0;
      cluster.sm_fraction = cluster.transfer_compute_us_per_mb = 0;
      break;
    case Cause::kSharedSlots:
      cluster.compute_slots_per_node = 0;
      break;
    case Cause::kImbalance:
    case Cause::kNodeLinks:
    case Cause::kDeviceLinks:
    case Cause::kBarriers:
      break;
  }
  return cluster;
}

}  // namespace contextile
