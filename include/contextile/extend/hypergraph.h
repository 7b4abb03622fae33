// Partitions any hypergraph whose vertices weigh in two dimensions, and reads and writes the text
// files of such problems. The engine for attention itself, which knows grids of tiles, is in
// contextile/extend/partition.h.
//
//   Hypergraph graph;
//   const std::vector<VertexId> pins = {graph.add_vertex({.compute = 3, .data = 1}),
//                                       graph.add_vertex({.compute = 2, .data = 1})};
//   graph.add_net(pins, 10);
//   const HypergraphPartition partition = partition_hypergraph(graph, {.num_parts = 2});
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// The weight of a vertex, the load of a part, or its capacity. The two dimensions are independent:
// a vertex that is pure computation has no data, and a block of data has no computation.
struct HyperWeight {
  std::int64_t compute = 0;
  std::int64_t data = 0;

  friend constexpr bool operator==(const HyperWeight&, const HyperWeight&) = default;
};

using VertexId = Id<struct VertexTag>;  // 0 … num_vertices()-1
using NetId = Id<struct NetTag>;        // 0 … num_nets()-1
using PartId = Id<struct PartTag>;      // 0 … num_parts-1

inline constexpr std::int32_t kMaxParts = 1 << 16;
// Limit of every sum of weights: over vertices in either dimension, and over nets times their pins.
inline constexpr std::int64_t kMaxTotalWeight = std::int64_t{1} << 60;

// A hypergraph, in which nets connect vertices. Net e has the pins [net_offsets[e], net_offsets[e +
// 1]), at least one, each vertex at most once. Weights are not negative.
struct Hypergraph {
  std::vector<std::int64_t> net_offsets{0};
  std::vector<VertexId> pins;
  IdVector<NetId, std::int64_t> net_weights;
  IdVector<VertexId, HyperWeight> vertex_weights;

  [[nodiscard]] std::int32_t num_vertices() const {
    return static_cast<std::int32_t>(vertex_weights.size());
  }
  [[nodiscard]] std::int32_t num_nets() const {
    return static_cast<std::int32_t>(net_weights.size());
  }
  [[nodiscard]] IdRange<VertexId> vertices() const { return vertex_weights.ids(); }
  [[nodiscard]] IdRange<NetId> nets() const { return net_weights.ids(); }
  [[nodiscard]] std::span<const VertexId> pins_of(NetId net) const {
    return {pins.data() + net_offsets[net.index()], pins.data() + net_offsets[net.index() + 1]};
  }
  VertexId add_vertex(HyperWeight weight) { return vertex_weights.push_back(weight); }
  NetId add_net(std::span<const VertexId> pins_of_net, std::int64_t weight);

  friend bool operator==(const Hypergraph&, const Hypergraph&) = default;
};

// Throws InvalidArgument, naming the net or vertex, unless everything stated above holds. O(pins).
void check_hypergraph(const Hypergraph& hypergraph, std::string_view where = "hypergraph");

struct HypergraphSpec {
  std::int32_t num_parts = 2;  // 1 … kMaxParts

  // A part may hold (1 + eps) · mean in each dimension, or the heaviest vertex if that is more.
  double eps_compute = 0.03;
  double eps_data = 0.03;
  // If not empty: the capacity of every part, instead of the eps.
  IdVector<PartId, HyperWeight> capacities = {};

  // The part that every vertex must be in; invalid: the vertex is free. Empty: all are free.
  IdVector<VertexId, PartId> fixed = {};
  // A partition to improve on: if it is feasible, the result is never worse or infeasible. Empty:
  // none. It must agree with `fixed`.
  IdVector<VertexId, PartId> start = {};

  double traffic_weight = 0;     // weight of the busiest part's traffic in the objective
  double effort = 1;             // annealing steps, in multiples of the default; > 0
  std::int32_t num_starts = 4;   // initial partitions tried at the coarsest level; >= 1
  std::int32_t max_threads = 0;  // 0: all hardware threads; never changes the result
  std::uint64_t seed = 1;
};

struct HypergraphPartition {
  IdVector<VertexId, PartId> part;  // of every vertex, all valid
};

// The cost of a partition, recomputed from the assignment alone. lambda(e) is the number of parts
// that hold a pin of net e.
struct HypergraphQuality {
  std::int64_t connectivity = 0;      // sum of w(e) · (lambda(e) - 1)
  std::int64_t cut_nets = 0;          // nets with lambda > 1
  std::int64_t max_part_traffic = 0;  // largest sum of w(e) over the cut nets that touch one part
  double objective = 0;         // connectivity + traffic_weight · num_parts · max_part_traffic
  double compute_overload = 0;  // max / mean - 1; 0 when nothing weighs anything
  double data_overload = 0;
  bool feasible = false;  // no part above its capacity in either dimension
};

// Splits the vertices into num_parts parts that respect the capacities and keep nets together.
// Deterministic by seed, effort and num_starts, on any number of threads. If no feasible partition
// was found, the result is the least overloaded one; evaluate_hypergraph tells. Throws
// InvalidArgument on a broken hypergraph or spec. Memory is linear in pins.
//
// Multilevel: vertices cluster by heavy-edge rating sum w(e) / (|e| - 1) (Karypis et al., hMETIS;
// Catalyurek and Aykanat, PaToH) until a part has a few dozen. Packings and greedy growings are
// annealed there with exact deltas from per-net part counts. The best one is refined on the way
// back up.
[[nodiscard]] HypergraphPartition partition_hypergraph(const Hypergraph& hypergraph,
                                                       const HypergraphSpec& spec);

// The functions below throw InvalidArgument when the partition does not fit the hypergraph.
[[nodiscard]] std::int64_t connectivity(const Hypergraph& hypergraph, std::int32_t num_parts,
                                        const HypergraphPartition& partition);
[[nodiscard]] IdVector<PartId, HyperWeight> part_weights(const Hypergraph& hypergraph,
                                                         std::int32_t num_parts,
                                                         const HypergraphPartition& partition);
[[nodiscard]] HypergraphQuality evaluate_hypergraph(const Hypergraph& hypergraph,
                                                    const HypergraphSpec& spec,
                                                    const HypergraphPartition& partition);
// Returns the capacity of every part: spec.capacities, or the capacities that the eps give.
[[nodiscard]] IdVector<PartId, HyperWeight> part_capacities(const Hypergraph& hypergraph,
                                                            const HypergraphSpec& spec);

// ------------------------------------------------------------------------- files

// Reads the hMETIS format: a header `nets vertices [fmt [dimensions]]`, then one line of 1-based
// pins per net (its weight first when fmt is 1 or 11), then with fmt 10 or 11 one line of weights
// per vertex. Lines that begin with % are comments. The fourth header field is an extension: with
// 2, a vertex line holds compute and data weight; otherwise its one weight is compute. Without
// vertex weights every vertex has compute 1. Throws IoError, and InvalidArgument with file and line
// on anything else; `where` names the source in messages.
[[nodiscard]] Hypergraph read_hgr(const std::string& path);
[[nodiscard]] Hypergraph parse_hgr(std::string_view text, std::string_view where);
// Returns the shortest form that reads back as the same hypergraph.
[[nodiscard]] std::string format_hgr(const Hypergraph& hypergraph);
void write_hgr(const Hypergraph& hypergraph, const std::string& path);

// Partition files: one line per vertex with its part, counted from 0.
[[nodiscard]] HypergraphPartition read_partition(const std::string& path, std::int32_t num_vertices,
                                                 std::int32_t num_parts);
[[nodiscard]] HypergraphPartition parse_partition(std::string_view text, std::int32_t num_vertices,
                                                  std::int32_t num_parts, std::string_view where);
[[nodiscard]] std::string format_partition(const HypergraphPartition& partition);
void write_partition(const HypergraphPartition& partition, const std::string& path);

// hMETIS's fix file: one line per vertex with its part or -1. For HypergraphSpec::fixed.
[[nodiscard]] IdVector<VertexId, PartId> read_fixed(const std::string& path,
                                                    std::int32_t num_vertices,
                                                    std::int32_t num_parts);
[[nodiscard]] IdVector<VertexId, PartId> parse_fixed(std::string_view text,
                                                     std::int32_t num_vertices,
                                                     std::int32_t num_parts,
                                                     std::string_view where);

}  // namespace contextile
