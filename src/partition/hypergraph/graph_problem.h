// The constants of a hypergraph partitioning run at all levels: parts, capacities, weights of the
// objective.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/hypergraph.h"

namespace contextile {

[[nodiscard]] constexpr HyperWeight operator+(HyperWeight a, HyperWeight b) {
  return {a.compute + b.compute, a.data + b.data};
}
[[nodiscard]] constexpr HyperWeight operator-(HyperWeight a, HyperWeight b) {
  return {a.compute - b.compute, a.data - b.data};
}
[[nodiscard]] constexpr bool fits(HyperWeight weight, HyperWeight capacity) {
  return weight.compute <= capacity.compute && weight.data <= capacity.data;
}

// Throws InvalidArgument if the spec is wrong in itself or does not fit the hypergraph.
void check_spec(const Hypergraph& hypergraph, const HypergraphSpec& spec);

struct HyperProblem {
  std::int32_t num_parts = 1;
  IdVector<PartId, HyperWeight> capacity;
  double traffic_weight = 0;
  // Inverse of a part's fair share, which makes the two dimensions comparable.
  double per_compute = 0;
  double per_data = 0;

  [[nodiscard]] IdRange<PartId> parts() const { return IdRange<PartId>(num_parts); }
  [[nodiscard]] HyperWeight room_of(PartId part) const { return capacity[part]; }
  // Returns a weight in fair shares, the larger of the two dimensions.
  [[nodiscard]] double share(HyperWeight weight) const {
    return std::max(per_compute * static_cast<double>(weight.compute),
                    per_data * static_cast<double>(weight.data));
  }
  // Returns by how much a part that holds `weight` is above its capacity, in fair shares; exactly 0
  // if it fits.
  [[nodiscard]] double overload(PartId part, HyperWeight weight) const {
    const HyperWeight room = room_of(part);
    double excess = 0;
    if (weight.compute > room.compute) {
      excess += per_compute * static_cast<double>(weight.compute - room.compute);
    }
    if (weight.data > room.data) {
      excess += per_data * static_cast<double>(weight.data - room.data);
    }
    return excess;
  }
};

}  // namespace contextile
