// Which placements a sweep tries.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "contextile/training.h"

namespace contextile {

// Sizes given on the command line; a sweep varies the others.
struct GivenSizes {
  std::optional<std::int32_t> tp;
  std::optional<std::int32_t> cp;
  std::optional<std::int32_t> dp;
  std::optional<std::int32_t> pp;
};

// One placement on `num_devices`: TP and PP are 1 unless given; of CP and DP, what is not given is
// what is left (neither: DP is 1). Throws InvalidArgument when the product is another number.
[[nodiscard]] ParallelSizes complete_sizes(const GivenSizes& given, std::int64_t num_devices);

// All placements of the model on the cluster that keep to what is given: TP inside a node and
// dividing the heads, the CP and DP groups whole nodes or equal parts of one, DP dividing the
// micro-batches, at most as many stages as layers. In order of TP, PP, CP.
[[nodiscard]] std::vector<ParallelSizes> all_sizes(const GivenSizes& given, const ModelSpec& model,
                                                   const Cluster& cluster,
                                                   std::int64_t micro_batches, std::int32_t chunks);

}  // namespace contextile
