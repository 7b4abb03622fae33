// Steps whose sums are easy to follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/advanced/training.h"
#include "contextile/cluster.h"
#include "predict/layer/simple_model.h"

namespace contextile {

// Numbers that are easy to follow: 1000 TFLOP/s, 1000 GB/s inside nodes, 100 GB/s per device
// between them.
inline Cluster simple_cluster(std::int32_t nodes, std::int32_t devices) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = devices;
  cluster.intra_gbytes_per_s = 1000;
  cluster.inter_gbytes_per_s_per_node = 100.0 * devices;
  cluster.memory_bytes = 80'000'000'000;
  cluster.peak_tflops = 1000;
  cluster.memory_gbytes_per_s = 1000;
  cluster.intra_latency_us = 0;
  cluster.inter_latency_us = 0;
  return cluster;
}

inline BatchPart part_of(std::int64_t tokens, std::int32_t cp, double forward_us,
                         double backward_us) {
  BatchPart part = even_micro_batch(tokens, cp).parts.front();
  part.attention.forward = {forward_us, 0.8 * forward_us, 0, 0};
  part.attention.backward = {backward_us, 0.9 * backward_us, 0, 0};
  part.attention_flops = 1e9;
  return part;
}

inline TrainingStep step_of(const ParallelSizes& sizes, const Cluster& cluster,
                            std::int32_t micro_batches) {
  TrainingStep step;
  step.model = simple_model();
  step.cluster = cluster;
  step.sizes = sizes;
  step.pipeline.stages = sizes.pp;
  step.pipeline.micro_batches = micro_batches;
  const MicroBatchWork work{{part_of(1000 * sizes.cp, sizes.cp, 50, 100)}};
  step.replicas.assign(static_cast<std::size_t>(sizes.dp),
                       std::vector<MicroBatchWork>(static_cast<std::size_t>(micro_batches), work));
  step.options.reserve_bytes = 0;
  return step;
}

}  // namespace contextile
