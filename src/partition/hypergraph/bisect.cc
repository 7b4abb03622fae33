#include "partition/hypergraph/bisect.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "base/fast_random.h"
#include "base/interrupt.h"
#include "partition/hypergraph/balance.h"
#include "partition/hypergraph/coarsen.h"
#include "partition/hypergraph/graph_starts.h"
#include "partition/hypergraph/graph_state.h"
#include "partition/hypergraph/pair.h"

namespace contextile {
namespace {

constexpr std::int64_t kCoarseVertices = 160;
constexpr double kTries = 16;  // at effort 1
constexpr double kMostTries = 1000;
constexpr std::uint64_t kSeedStride = 97;
// Share of a half's slack that its first split may use up; the rest is for the splits within.
constexpr double kSlackForOneSplit = 0.4;

class Bisection {
 public:
  // Vertices of the whole level, indexed by their id inside a half.
  using Members = IdVector<VertexId, VertexId>;

  Bisection(const HyperLevel& level, const HyperProblem& problem, double effort, std::uint64_t seed)
      : level_(level),
        problem_(problem),
        tries_(static_cast<std::int32_t>(std::clamp(kTries * effort, 2.0, kMostTries))),
        seed_(seed),
        parts_(level.vertices(), PartId{0}),
        net_here_(level.graph.nets()) {}

  IdVector<VertexId, PartId> run() {
    Members all(level_.vertices());
    for (const VertexId v : level_.vertices()) all[v] = v;
    split(all, 0, problem_.num_parts);
    return parts_;
  }

 private:
  // Spreads the vertices over parts first … first + count - 1. The recursion is log2(count) deep.
  void split(const Members& vertices, std::int32_t first, std::int32_t count) {
    if (count == 1 || vertices.empty()) {
      for (const VertexId v : vertices) parts_[v] = PartId{first};
      return;
    }
    const std::int32_t left = (count + 1) / 2;
    const HypergraphSpec fixed = sides_fixed(vertices, first + left);
    const HyperLevel here = finest_level(induced(vertices), fixed);
    const HyperProblem halves = halves_of(here, first, left, count);
    const std::uint64_t seed = seed_ + static_cast<std::uint64_t>(first);
    const IdVector<VertexId, PartId> side_of = halve(here, halves, seed);
    std::array<Members, 2> sides;
    for (const VertexId i : vertices.ids()) sides[side_of[i].index()].push_back(vertices[i]);
    split(sides[0], first, left);
    split(sides[1], first + left, count - left);
  }

  // Returns the best of several tries on a coarse level, refined on the way back up.
  [[nodiscard]] IdVector<VertexId, PartId> halve(const HyperLevel& finest,
                                                 const HyperProblem& halves,
                                                 std::uint64_t seed) const {
    const std::vector<HyperStep> steps = coarsen(finest, halves, kCoarseVertices, seed);
    const HyperLevel& coarsest = steps.empty() ? finest : steps.back().coarse;
    FastRandom random(seed);
    IdVector<VertexId, PartId> best;
    std::pair<double, double> best_rank;
    for (std::int32_t i = 0; i < tries_; ++i) {
      check_interrupt();
      IdVector<VertexId, PartId> sides = first_sides(coarsest, halves, i, seed, random);
      refine_pair(coarsest, halves, sides, random);
      const HyperState state(coarsest, halves, sides);
      const std::pair<double, double> rank = {state.overload(), state.score()};
      if (!best.empty() && rank >= best_rank) continue;
      best = std::move(sides);
      best_rank = rank;
    }
    for (std::size_t i = steps.size(); i-- > 0;) {
      best = projected(best, steps[i].cluster);
      refine_pair(i == 0 ? finest : steps[i - 1].coarse, halves, best, random);
    }
    return best;
  }

  // Returns the start of a try. Tries start in different ways, because none is the best for every
  // hypergraph.
  [[nodiscard]] static IdVector<VertexId, PartId> first_sides(const HyperLevel& level,
                                                              const HyperProblem& halves,
                                                              std::int32_t index,
                                                              std::uint64_t seed,
                                                              FastRandom& random) {
    constexpr std::array kStarts = {StartKind::kGrowing, StartKind::kNeighbourOrder,
                                    StartKind::kVertexOrder};
    const auto kind = static_cast<std::size_t>(index) % (kStarts.size() + 1);
    if (kind < kStarts.size()) {
      HyperState state(level, halves,
                       make_start(level, halves, kStarts[kind],
                                  seed + kSeedStride * static_cast<std::uint64_t>(index)));
      repair(state, random);
      return state.parts();
    }
    // All vertices except a random one are on one side. Refinement, which removes overload first of
    // all, lets the other side grow from there, cheapest vertices first.
    IdVector<VertexId, PartId> sides = level.fixed;
    for (PartId& side : sides) side = std::max(side, PartId{0});
    const VertexId seedling{random.below(level.num_vertices())};
    if (level.movable(seedling)) sides[seedling] = PartId{1};
    return sides;
  }

  // Returns the side of every fixed vertex: that of its part.
  [[nodiscard]] HypergraphSpec sides_fixed(const Members& vertices, std::int32_t middle) const {
    HypergraphSpec spec;
    for (const VertexId v : vertices) {
      const PartId part = level_.fixed[v];
      spec.fixed.push_back(part.valid() ? PartId{part.value < middle ? 0 : 1} : PartId{});
    }
    return spec;
  }

  // Returns the subgraph of the vertices, renumbered in order, with the pins that nets have among
  // them.
  [[nodiscard]] Hypergraph induced(const Members& vertices) {
    Hypergraph graph;
    IdVector<NetId, NetId> nets;
    IdVector<NetId, std::vector<VertexId>> pins;
    for (const VertexId i : vertices.ids()) {
      graph.add_vertex(level_.weight(vertices[i]));
      for (const NetId e : level_.nets_of(vertices[i])) {
        NetId& here = net_here_[e];
        if (!here.valid()) {
          here = nets.push_back(e);
          pins.emplace_back();
        }
        pins[here].push_back(i);
      }
    }
    for (const NetId i : nets.ids()) {
      graph.add_net(pins[i], level_.net_weight(nets[i]));
      net_here_[nets[i]] = NetId{};
    }
    return graph;
  }

  // Returns the problem of one split: a half may hold its share of the weight and some of the
  // common slack of its parts.
  [[nodiscard]] HyperProblem halves_of(const HyperLevel& here, std::int32_t first,
                                       std::int32_t left, std::int32_t count) const {
    HyperWeight total;
    for (const HyperWeight& weight : here.graph.vertex_weights) total = total + weight;
    HyperProblem halves;
    halves.num_parts = 2;
    halves.traffic_weight = 0;
    halves.per_compute = 2 / static_cast<double>(std::max<std::int64_t>(total.compute, 1));
    halves.per_data = 2 / static_cast<double>(std::max<std::int64_t>(total.data, 1));
    const auto capacity = [&](std::int64_t HyperWeight::*dimension, std::int32_t begin,
                              std::int32_t end) {
      const auto weight = static_cast<double>(total.*dimension);
      const double mine = room(dimension, begin, end);
      const double all = room(dimension, first, first + count);
      const double fair = all > 0 ? weight * (mine / all) : 0;
      const double slack = std::max(mine - fair, 0.0);
      const double may = end - begin == 1 ? mine : fair + kSlackForOneSplit * slack;
      return static_cast<std::int64_t>(std::min(may, weight));
    };
    for (const auto& [begin, end] :
         {std::pair(first, first + left), std::pair(first + left, first + count)}) {
      halves.capacity.push_back(
          {capacity(&HyperWeight::compute, begin, end), capacity(&HyperWeight::data, begin, end)});
    }
    return halves;
  }

  [[nodiscard]] double room(std::int64_t HyperWeight::*dimension, std::int32_t begin,
                            std::int32_t end) const {
    double sum = 0;
    for (PartId p{begin}; p.value < end; ++p.value) {
      sum += static_cast<double>(problem_.room_of(p).*dimension);
    }
    return sum;
  }

  const HyperLevel& level_;
  const HyperProblem& problem_;
  std::int32_t tries_;
  std::uint64_t seed_;
  IdVector<VertexId, PartId> parts_;
  IdVector<NetId, NetId> net_here_;  // scratch: a net's id in the current half
};

}  // namespace

IdVector<VertexId, PartId> bisect_recursively(const HyperLevel& level, const HyperProblem& problem,
                                              double effort, std::uint64_t seed) {
  return Bisection(level, problem, effort, seed).run();
}

}  // namespace contextile
