// A partition of one level. All quantities that a move changes are kept up to date.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "partition/hypergraph/graph_level.h"
#include "partition/hypergraph/graph_problem.h"

namespace contextile {

// Number of pins of each net in each part. A net that is large compared with the number of parts
// has an array over all parts, a small one a list of the parts it touches. Memory is O(pins) for
// any number of parts.
class NetCounts {
 public:
  NetCounts(const Hypergraph& graph, std::int32_t num_parts);

  // Returns the number of parts that hold a pin of the net.
  [[nodiscard]] std::int32_t lambda(NetId net) const { return lambda_[net]; }
  [[nodiscard]] std::int32_t count(NetId net, PartId part) const {
    const Cells cells = cells_of(net);
    if (cells.dense) return data_[cells.begin + part.index()];
    for (std::size_t i = cells.begin; i < cells.begin + 2 * cells.touched; i += 2) {
      if (data_[i] == part.value) return data_[i + 1];
    }
    return 0;
  }
  void add(NetId net, PartId part);
  void remove(NetId net, PartId part);  // the net must have a pin there

  template <typename Visit>  // calls visit(part) for every part with a pin of the net
  void for_each_part(NetId net, Visit visit) const {
    const Cells cells = cells_of(net);
    if (cells.dense) {
      for (const PartId p : IdRange<PartId>(num_parts_)) {
        if (data_[cells.begin + p.index()] > 0) visit(p);
      }
      return;
    }
    for (std::size_t i = cells.begin; i < cells.begin + 2 * cells.touched; i += 2) {
      visit(PartId{data_[i]});
    }
  }

 private:
  struct Cells {
    std::size_t begin;
    std::size_t touched;
    bool dense;
  };
  [[nodiscard]] Cells cells_of(NetId net) const {
    return {static_cast<std::size_t>(offsets_[net] >> 1), static_cast<std::size_t>(lambda_[net]),
            (offsets_[net] & 1) != 0};
  }

  std::int32_t num_parts_;
  IdVector<NetId, std::int64_t> offsets_;  // 2 · first cell + (1 if dense)
  IdVector<NetId, std::int32_t> lambda_;
  std::vector<std::int32_t> data_;  // dense: one count per part; else pairs of part and count
};

// Changes that moving a vertex would make.
struct HyperDelta {
  std::int64_t connectivity = 0;
  double traffic = 0;  // of the traffic penalty

  [[nodiscard]] double total() const { return static_cast<double>(connectivity) + traffic; }
};

class HyperState;

// Weight that a vertex shares with the parts around it. One walk over its nets gives the exact
// connectivity cost of moving it to any part.
class Affinity {
 public:
  explicit Affinity(const HyperProblem& problem) : shared_(problem.parts(), 0) {}

  void measure(const HyperState& state, VertexId vertex);
  // Returns the parts that share a cut net with the vertex last measured. Its own may be among
  // them.
  [[nodiscard]] const std::vector<PartId>& parts() const { return parts_; }
  // Returns HyperDelta::connectivity of moving the vertex to another part.
  [[nodiscard]] std::int64_t cost(PartId to) const { return cost_of_strange_part_ - shared_[to]; }

 private:
  IdVector<PartId, std::int64_t> shared_;  // weight of its nets that touch a part; 0 outside parts_
  std::vector<PartId> parts_;
  std::int64_t cost_of_strange_part_ = 0;
};

// A partition of a level. During a search, the busiest part counts through the smooth penalty
//   traffic_weight · sum over parts of x · (x / mean)^3,
// where x is a part's traffic and mean the mean traffic when the state was assigned. The penalty is
// exact for each move, and the busiest parts dominate it.
class HyperState {
 public:
  // `level` and `problem` must outlive the state. `parts` has one part per vertex.
  HyperState(const HyperLevel& level, const HyperProblem& problem,
             IdVector<VertexId, PartId> parts);

  [[nodiscard]] const HyperLevel& level() const { return *level_; }
  [[nodiscard]] const HyperProblem& problem() const { return *problem_; }
  [[nodiscard]] const IdVector<VertexId, PartId>& parts() const { return parts_; }
  [[nodiscard]] PartId part(VertexId vertex) const { return parts_[vertex]; }
  [[nodiscard]] HyperWeight part_weight(PartId part) const { return weights_[part]; }
  [[nodiscard]] const NetCounts& counts() const { return counts_; }
  [[nodiscard]] std::int64_t connectivity() const { return connectivity_; }
  [[nodiscard]] std::int64_t traffic(PartId part) const { return traffic_[part]; }

  // Returns connectivity plus traffic penalty.
  [[nodiscard]] double score() const;
  // Returns the same as HypergraphQuality::objective.
  [[nodiscard]] double objective() const;
  // Returns the sum over parts, in fair shares; exactly 0 if every part fits.
  [[nodiscard]] double overload() const;

  // O(nets of the vertex) each, times the parts of nets that are small compared with the number of
  // parts.
  [[nodiscard]] HyperDelta delta(VertexId vertex, PartId to) const;
  void move(VertexId vertex, PartId to);
  // Returns the change of overload().
  [[nodiscard]] double overload_delta(VertexId vertex, PartId to) const;
  // Returns true if `to` still fits with the vertex in it.
  [[nodiscard]] bool has_room(VertexId vertex, PartId to) const {
    return fits(part_weight(to) + level_->weight(vertex), problem_->room_of(to));
  }

 private:
  [[nodiscard]] double penalty(std::int64_t traffic) const;

  const HyperLevel* level_;
  const HyperProblem* problem_;
  IdVector<VertexId, PartId> parts_;
  NetCounts counts_;
  IdVector<PartId, HyperWeight> weights_;
  IdVector<PartId, std::int64_t> traffic_;
  std::int64_t connectivity_ = 0;
  double per_mean_traffic_ = 0;
};

}  // namespace contextile
