// Batches and clusters for tests, in a few words.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/strategy.h"
#include "contextile/workload.h"

namespace contextile {

// Two KV heads with four query heads each, so that head groups and GQA have something to split.
inline AttentionShape grouped_heads() {
  AttentionShape shape;
  shape.q_heads = 8;
  shape.kv_heads = 2;
  return shape;
}

// Few and small heads, for devices whose kernels run in loops.
inline AttentionShape small_heads() {
  AttentionShape shape;
  shape.q_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = shape.value_dim = 64;
  return shape;
}

// One sequence of every length under one mask rule ("causal", "lambda:16,200").
inline Workload batch_of(const std::vector<std::int64_t>& lengths,
                         const std::string& mask = "causal",
                         const AttentionShape& shape = grouped_heads()) {
  const MaskUse use = parse_mask_use(mask);
  return make_workload(lengths, shape, {&use, 1});
}

// batch_of in the default shape.
inline Workload default_batch_of(const std::vector<std::int64_t>& lengths,
                                 const std::string& mask = "causal") {
  return batch_of(lengths, mask, {});
}

// Nodes of the default machine, or of a preset with as many NICs as it has devices (at most its own
// number).
inline Cluster cluster_of(std::int32_t nodes, std::int32_t devices_per_node) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = devices_per_node;
  return cluster;
}
inline Cluster cluster_of(const std::string& preset, std::int32_t nodes,
                          std::int32_t devices_per_node) {
  return load_cluster(preset + ":" + std::to_string(nodes) + "x" +
                      std::to_string(devices_per_node));
}

inline StrategyRequest request_with(const std::map<std::string, std::string>& options) {
  StrategyRequest request;
  request.options = options;
  return request;
}

}  // namespace contextile
