// Validity of a hypergraph, a spec and a partition, and the cost of a partition. The cost is
// recomputed plainly, and everything incremental is tested against it.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "contextile/extend/hypergraph.h"
#include "partition/hypergraph/graph_problem.h"

namespace contextile {
namespace {

// A running sum that must stay below kMaxTotalWeight.
class BoundedSum {
 public:
  BoundedSum(std::string_view where, std::string_view what) : where_(where), what_(what) {}
  void add(std::int64_t weight, std::int64_t times = 1) {
    const std::int64_t room = kMaxTotalWeight - sum_;
    CONTEXTILE_CHECK(weight == 0 || times <= room / weight,
                     "{}: expected {} of at most {} in total, found more", where_, what_,
                     kMaxTotalWeight);
    sum_ += weight * times;
  }

 private:
  std::string_view where_;
  std::string_view what_;
  std::int64_t sum_ = 0;
};

void check_shape(const Hypergraph& hypergraph, std::string_view where) {
  constexpr auto kMax = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  const std::size_t vertices = hypergraph.vertex_weights.size();
  const std::size_t nets = hypergraph.net_weights.size();
  CONTEXTILE_CHECK(vertices < kMax, "{}: expected fewer than {} vertices, found {}", where, kMax,
                   vertices);
  CONTEXTILE_CHECK(nets < kMax, "{}: expected fewer than {} nets, found {}", where, kMax, nets);
  CONTEXTILE_CHECK(hypergraph.net_offsets.size() == nets + 1,
                   "{}: expected {} net offsets for {} nets, found {}", where, nets + 1, nets,
                   hypergraph.net_offsets.size());
  CONTEXTILE_CHECK(hypergraph.net_offsets.front() == 0, "{}: expected net offset 0 first, found {}",
                   where, hypergraph.net_offsets.front());
  for (std::size_t e = 0; e < nets; ++e) {
    CONTEXTILE_CHECK(hypergraph.net_offsets[e] < hypergraph.net_offsets[e + 1],
                     "{}: net {}: expected at least one pin, found offsets {} to {}", where, e,
                     hypergraph.net_offsets[e], hypergraph.net_offsets[e + 1]);
  }
  CONTEXTILE_CHECK(
      hypergraph.net_offsets.back() == static_cast<std::int64_t>(hypergraph.pins.size()),
      "{}: expected the last net offset to be the number of pins, {}, found {}", where,
      hypergraph.pins.size(), hypergraph.net_offsets.back());
}

void check_parts(const IdVector<VertexId, PartId>& parts, IdRange<VertexId> vertices,
                 std::int32_t num_parts, std::int32_t lowest, std::string_view what) {
  CONTEXTILE_CHECK(parts.size() == vertices.size(),
                   "{}: expected one part for each of {} vertices, found {}", what, vertices.size(),
                   parts.size());
  for (const VertexId v : vertices) {
    CONTEXTILE_CHECK(lowest <= parts[v].value && parts[v].value < num_parts,
                     "{}: vertex {}: expected a part from {} to {}, found {}", what, v.value,
                     lowest, num_parts - 1, parts[v].value);
  }
}

void check_num_parts(std::int32_t num_parts) {
  CONTEXTILE_CHECK(1 <= num_parts && num_parts <= kMaxParts,
                   "num_parts: expected 1 to {}, found {}", kMaxParts, num_parts);
}

void check_partition(const Hypergraph& hypergraph, std::int32_t num_parts,
                     const HypergraphPartition& partition) {
  check_num_parts(num_parts);
  check_parts(partition.part, hypergraph.vertices(), num_parts, 0, "partition");
}

// Returns (1 + eps) · ceil(total / parts), never below the heaviest vertex, never above the total.
std::int64_t derived_capacity(std::int64_t total, std::int64_t heaviest, std::int32_t parts,
                              double eps) {
  const std::int64_t mean = (total + parts - 1) / parts;
  const double slack = std::floor(eps * static_cast<double>(mean));
  if (slack >= static_cast<double>(total - mean)) return total;
  return std::max(mean + static_cast<std::int64_t>(slack), heaviest);
}

double overload(const IdVector<PartId, HyperWeight>& weights,
                std::int64_t HyperWeight::*dimension) {
  double total = 0;
  std::int64_t most = 0;
  for (const HyperWeight& weight : weights) {
    total += static_cast<double>(weight.*dimension);
    most = std::max(most, weight.*dimension);
  }
  if (most == 0) return 0;
  return static_cast<double>(most) * static_cast<double>(weights.size()) / total - 1;
}

// Calls visit(net, parts) for every net with the parts that hold a pin of it, each once.
template <typename Visit>
void for_each_net_span(const Hypergraph& hypergraph, std::int32_t num_parts,
                       const HypergraphPartition& partition, Visit visit) {
  IdVector<PartId, NetId> last_net{IdRange<PartId>(num_parts)};
  std::vector<PartId> touched;
  for (const NetId e : hypergraph.nets()) {
    touched.clear();
    for (const VertexId v : hypergraph.pins_of(e)) {
      const PartId p = partition.part[v];
      if (last_net[p] == e) continue;
      last_net[p] = e;
      touched.push_back(p);
    }
    visit(e, touched);
  }
}

}  // namespace

NetId Hypergraph::add_net(std::span<const VertexId> pins_of_net, std::int64_t weight) {
  pins.insert(pins.end(), pins_of_net.begin(), pins_of_net.end());
  net_offsets.push_back(static_cast<std::int64_t>(pins.size()));
  return net_weights.push_back(weight);
}

void check_hypergraph(const Hypergraph& hypergraph, std::string_view where) {
  check_shape(hypergraph, where);
  BoundedSum compute(where, "compute weights of vertices");
  BoundedSum data(where, "data weights of vertices");
  for (const VertexId v : hypergraph.vertices()) {
    const HyperWeight& weight = hypergraph.vertex_weights[v];
    CONTEXTILE_CHECK(weight.compute >= 0 && weight.data >= 0,
                     "{}: vertex {}: expected weights of at least 0, found {} and {}", where,
                     v.value, weight.compute, weight.data);
    compute.add(weight.compute);
    data.add(weight.data);
  }
  BoundedSum nets(where, "net weights times pins");
  IdVector<VertexId, NetId> last_net(hypergraph.vertices());
  for (const NetId e : hypergraph.nets()) {
    const std::int64_t weight = hypergraph.net_weights[e];
    CONTEXTILE_CHECK(weight >= 0, "{}: net {}: expected a weight of at least 0, found {}", where,
                     e.value, weight);
    nets.add(weight, std::ssize(hypergraph.pins_of(e)));
    for (const VertexId v : hypergraph.pins_of(e)) {
      CONTEXTILE_CHECK(v.valid() && v.value < hypergraph.num_vertices(),
                       "{}: net {}: expected vertices from 0 to {}, found {}", where, e.value,
                       hypergraph.num_vertices() - 1, v.value);
      NetId& last = last_net[v];
      CONTEXTILE_CHECK(last != e, "{}: net {}: expected every vertex once, found {} twice", where,
                       e.value, v.value);
      last = e;
    }
  }
}

void check_spec(const Hypergraph& hypergraph, const HypergraphSpec& spec) {
  check_num_parts(spec.num_parts);
  for (const double value : {spec.eps_compute, spec.eps_data, spec.traffic_weight}) {
    CONTEXTILE_CHECK(std::isfinite(value) && value >= 0,
                     "eps_compute, eps_data, traffic_weight: expected numbers of at least 0, "
                     "found {}",
                     value);
  }
  CONTEXTILE_CHECK(std::isfinite(spec.effort) && spec.effort > 0,
                   "effort: expected a number above 0, found {}", spec.effort);
  CONTEXTILE_CHECK(spec.num_starts >= 1, "num_starts: expected at least 1, found {}",
                   spec.num_starts);
  CONTEXTILE_CHECK(spec.max_threads >= 0, "max_threads: expected at least 0, found {}",
                   spec.max_threads);
  if (!spec.capacities.empty()) {
    CONTEXTILE_CHECK(spec.capacities.size() == static_cast<std::size_t>(spec.num_parts),
                     "capacities: expected one for each of {} parts, found {}", spec.num_parts,
                     spec.capacities.size());
  }
  for (const HyperWeight& capacity : spec.capacities) {
    CONTEXTILE_CHECK(capacity.compute >= 0 && capacity.data >= 0,
                     "capacities: expected at least 0, found {} and {}", capacity.compute,
                     capacity.data);
  }
  if (!spec.fixed.empty()) {
    check_parts(spec.fixed, hypergraph.vertices(), spec.num_parts, -1, "fixed");
  }
  if (spec.start.empty()) return;
  check_parts(spec.start, hypergraph.vertices(), spec.num_parts, 0, "start");
  for (const VertexId v : spec.fixed.ids()) {
    CONTEXTILE_CHECK(!spec.fixed[v].valid() || spec.fixed[v] == spec.start[v],
                     "start: vertex {}: expected its fixed part {}, found {}", v.value,
                     spec.fixed[v].value, spec.start[v].value);
  }
}

std::int64_t connectivity(const Hypergraph& hypergraph, std::int32_t num_parts,
                          const HypergraphPartition& partition) {
  check_partition(hypergraph, num_parts, partition);
  std::int64_t sum = 0;
  for_each_net_span(hypergraph, num_parts, partition,
                    [&](NetId e, const std::vector<PartId>& touched) {
                      sum += hypergraph.net_weights[e] * (std::ssize(touched) - 1);
                    });
  return sum;
}

IdVector<PartId, HyperWeight> part_weights(const Hypergraph& hypergraph, std::int32_t num_parts,
                                           const HypergraphPartition& partition) {
  check_partition(hypergraph, num_parts, partition);
  IdVector<PartId, HyperWeight> weights{IdRange<PartId>(num_parts)};
  for (const VertexId v : hypergraph.vertices()) {
    HyperWeight& weight = weights[partition.part[v]];
    weight.compute += hypergraph.vertex_weights[v].compute;
    weight.data += hypergraph.vertex_weights[v].data;
  }
  return weights;
}

HypergraphQuality evaluate_hypergraph(const Hypergraph& hypergraph, const HypergraphSpec& spec,
                                      const HypergraphPartition& partition) {
  check_spec(hypergraph, spec);
  check_partition(hypergraph, spec.num_parts, partition);
  HypergraphQuality quality;
  IdVector<PartId, std::int64_t> traffic(IdRange<PartId>(spec.num_parts), 0);
  for_each_net_span(hypergraph, spec.num_parts, partition,
                    [&](NetId e, const std::vector<PartId>& touched) {
                      if (touched.size() < 2) return;
                      const std::int64_t weight = hypergraph.net_weights[e];
                      quality.connectivity += weight * (std::ssize(touched) - 1);
                      ++quality.cut_nets;
                      for (const PartId p : touched) {
                        traffic[p] += weight;
                      }
                    });
  quality.max_part_traffic = *std::max_element(traffic.begin(), traffic.end());
  quality.objective =
      static_cast<double>(quality.connectivity) +
      spec.traffic_weight * spec.num_parts * static_cast<double>(quality.max_part_traffic);
  const IdVector<PartId, HyperWeight> weights = part_weights(hypergraph, spec.num_parts, partition);
  const IdVector<PartId, HyperWeight> capacities = part_capacities(hypergraph, spec);
  quality.compute_overload = overload(weights, &HyperWeight::compute);
  quality.data_overload = overload(weights, &HyperWeight::data);
  quality.feasible = true;
  for (const PartId p : weights.ids()) {
    quality.feasible = quality.feasible && fits(weights[p], capacities[p]);
  }
  return quality;
}

IdVector<PartId, HyperWeight> part_capacities(const Hypergraph& hypergraph,
                                              const HypergraphSpec& spec) {
  check_spec(hypergraph, spec);
  if (!spec.capacities.empty()) return spec.capacities;
  HyperWeight total;
  HyperWeight heaviest;
  for (const HyperWeight& weight : hypergraph.vertex_weights) {
    total = total + weight;
    heaviest.compute = std::max(heaviest.compute, weight.compute);
    heaviest.data = std::max(heaviest.data, weight.data);
  }
  const HyperWeight capacity = {
      derived_capacity(total.compute, heaviest.compute, spec.num_parts, spec.eps_compute),
      derived_capacity(total.data, heaviest.data, spec.num_parts, spec.eps_data)};
  return IdVector<PartId, HyperWeight>(IdRange<PartId>(spec.num_parts), capacity);
}

}  // namespace contextile
