// Small plans of all kinds of strategies and masks, for tests of the executor on a device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "contextile/planner.h"
#include "support/batches.h"

namespace contextile {

struct DeviceCase {
  std::string strategy;
  std::string mask;
};

inline std::vector<DeviceCase> device_cases() {
  return {{"ring", "causal"},
          {"zigzag", "full"},
          {"double_ring", "causal"},
          {"hybrid", "lambda:16,100"},
          {"dcp:relays=on", "causal"},
          {"fcp:block=64", "shared_question"},
          {"magi:chunk=64", "causal_blockwise:32,2,1"},
          {"distca:granularity=16", "causal"},
          {"auto:steps=20000,candidates=own", "causal"}};
}

inline AttentionShape small_shape(Dtype dtype) {
  AttentionShape shape;
  shape.q_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = shape.value_dim = 64;
  shape.dtype = dtype;
  return shape;
}

// A plan for four devices.
inline std::shared_ptr<const Plan> plan_of_case(const DeviceCase& its,
                                                const AttentionShape& shape) {
  const Workload workload = batch_of({300, 37, 190}, its.mask, shape);
  return plan_and_check(workload, cluster_of(1, 4), parse_strategies(its.strategy).at(0), {}).plan;
}

// In bf16; under the mask lambda, query heads have sinks.
inline std::shared_ptr<const Plan> plan_of_case(const DeviceCase& its) {
  AttentionShape shape = small_shape(Dtype::kBf16);
  shape.sink = its.mask == "lambda:16,100";
  return plan_of_case(its, shape);
}

}  // namespace contextile
