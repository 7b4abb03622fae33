// Programs of all devices of a cluster, written step by step.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "predict/simulate/event_machine.h"

namespace contextile {

// 1 GB/s inside and between nodes: 1000 bytes per µs. There are no overheads unless a test sets
// them.
inline Cluster plain(std::int32_t nodes, std::int32_t devices_per_node) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = devices_per_node;
  cluster.intra_gbytes_per_s = 1;
  cluster.inter_gbytes_per_s_per_node = 1;
  cluster.intra_latency_us = cluster.inter_latency_us = cluster.launch_us = 0;
  return cluster;
}

// Builds the programs of all devices of a cluster.
class Programs {
 public:
  explicit Programs(const Cluster& cluster)
      : cluster_(cluster), programs_(static_cast<std::size_t>(cluster.num_devices())) {}

  Programs& attention(std::int32_t d, double us) {
    steps(d).push_back({.activity = Activity::kAttention, .duration_us = us});
    return *this;
  }
  Programs& launch(std::int32_t d, std::int32_t id, std::vector<MessageEnd> sends,
                   std::vector<MessageEnd> receives) {
    steps(d).push_back({.activity = Activity::kLaunch,
                        .duration_us = cluster_.launch_us,
                        .launch_id = id,
                        .sends = std::move(sends),
                        .receives = std::move(receives)});
    return *this;
  }
  // Time of merging the results of the device's last step, which is attention.
  Programs& merge(std::int32_t d, double us) {
    steps(d).back().merge_us = us;
    return *this;
  }
  // Host time of the device's last step.
  Programs& host(std::int32_t d, double us) {
    steps(d).back().host_us = us;
    return *this;
  }
  Programs& wait(std::int32_t d, std::int32_t id) {
    steps(d).push_back({.activity = Activity::kExposed, .launch_id = id, .is_wait = true});
    return *this;
  }
  // One message of its own launch, waited for at once at the receiver.
  Programs& message(std::int32_t src, std::int32_t dst, std::int64_t bytes, std::int32_t id) {
    launch(src, id, {{Rank{dst}, bytes}}, {}).launch(dst, id, {}, {{Rank{src}, bytes}});
    return *this;
  }

  Machine run(const SimulateOptions& options = {}, const CollectiveLoad& collective = {}) const {
    Machine machine(cluster_, programs_, "test", options, {}, collective);
    machine.run();
    return machine;
  }
  double time_us() const { return run().time_us(); }

 private:
  std::vector<TimedStep>& steps(std::int32_t d) {
    return programs_[static_cast<std::size_t>(d)].steps;
  }
  Cluster cluster_;
  std::vector<TimedProgram> programs_;
};

}  // namespace contextile
