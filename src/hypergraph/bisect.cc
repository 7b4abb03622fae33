#include "hypergraph/bisect.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/fast_random.h"
#include "hypergraph/balance.h"
#include "hypergraph/coarsen.h"
#include "hypergraph/pair.h"
#include "hypergraph/starts.h"
#include "hypergraph/state.h"

namespace contextile {
namespace {

constexpr std::int64_t kCoarseVertices = 160;
constexpr double kTries = 16;  // at effort 1
constexpr double kMostTries = 1000;
constexpr std::uint64_t kSeedStride = 97;
// How much of a half's slack its first split may use up; the rest is for the splits within.
constexpr double kSlackForOneSplit = 0.4;

class Bisection {
 public:
  Bisection(const HyperLevel& level, const HyperProblem& problem, double effort, std::uint64_t seed)
      : level_(level),
        problem_(problem),
        tries_(static_cast<std::int32_t>(std::clamp(kTries * effort, 2.0, kMostTries))),
        seed_(seed),
        parts_(static_cast<std::size_t>(level.num_vertices()), 0),
        net_here_(static_cast<std::size_t>(level.graph.num_nets()), -1) {}

  std::vector<std::int32_t> run() {
    std::vector<std::int32_t> all(parts_.size());
    std::iota(all.begin(), all.end(), 0);
    split(all, 0, problem_.num_parts);
    return parts_;
  }

 private:
  // Spreads the vertices over parts first … first + count - 1. Recursion as deep as log2(count).
  void split(const std::vector<std::int32_t>& vertices, std::int32_t first, std::int32_t count) {
    if (count == 1 || vertices.empty()) {
      for (const std::int32_t v : vertices) parts_[static_cast<std::size_t>(v)] = first;
      return;
    }
    const std::int32_t left = (count + 1) / 2;
    const HypergraphSpec fixed = sides_fixed(vertices, first + left);
    const HyperLevel here = finest_level(induced(vertices), fixed);
    const HyperProblem halves = halves_of(here, first, left, count);
    const std::uint64_t seed = seed_ + static_cast<std::uint64_t>(first);
    const std::vector<std::int32_t> side_of = halve(here, halves, seed);
    std::array<std::vector<std::int32_t>, 2> sides;
    for (std::size_t i = 0; i < vertices.size(); ++i) {
      sides[static_cast<std::size_t>(side_of[i])].push_back(vertices[i]);
    }
    split(sides[0], first, left);
    split(sides[1], first + left, count - left);
  }

  // The best of several tries on a coarse level, refined on the way back up.
  [[nodiscard]] std::vector<std::int32_t> halve(const HyperLevel& finest,
                                                const HyperProblem& halves,
                                                std::uint64_t seed) const {
    const std::vector<HyperStep> steps = coarsen(finest, halves, kCoarseVertices, seed);
    const HyperLevel& coarsest = steps.empty() ? finest : steps.back().coarse;
    FastRandom random(seed);
    std::vector<std::int32_t> best;
    std::pair<double, double> best_rank;
    for (std::int32_t i = 0; i < tries_; ++i) {
      std::vector<std::int32_t> sides = first_sides(coarsest, halves, i, seed, random);
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

  // Tries differ in how they begin: no way is the best for every hypergraph.
  [[nodiscard]] static std::vector<std::int32_t> first_sides(const HyperLevel& level,
                                                             const HyperProblem& halves,
                                                             std::int32_t index, std::uint64_t seed,
                                                             FastRandom& random) {
    constexpr std::array<std::int32_t, 3> kStarts = {0, 2, 3};  // of make_start
    const auto kind = static_cast<std::size_t>(index) % (kStarts.size() + 1);
    if (kind < kStarts.size()) {
      HyperState state(level, halves,
                       make_start(level, halves, kStarts[kind],
                                  seed + kSeedStride * static_cast<std::uint64_t>(index)));
      repair(state, random);
      return state.parts();
    }
    // All on one side but a random vertex: refinement, which first of all removes overload, lets
    // the other side grow from there, cheapest vertices first.
    std::vector<std::int32_t> sides = level.fixed;
    for (std::int32_t& side : sides) side = std::max(side, 0);
    const std::int32_t seedling = random.below(level.num_vertices());
    if (level.movable(seedling)) sides[static_cast<std::size_t>(seedling)] = 1;
    return sides;
  }

  // Fixed vertices by the side their part is on.
  [[nodiscard]] HypergraphSpec sides_fixed(const std::vector<std::int32_t>& vertices,
                                           std::int32_t middle) const {
    HypergraphSpec spec;
    for (const std::int32_t v : vertices) {
      const std::int32_t part = level_.fixed[static_cast<std::size_t>(v)];
      spec.fixed.push_back(part < 0 ? -1 : (part < middle ? 0 : 1));
    }
    return spec;
  }

  // The vertices, renumbered in order, with what their nets have among them.
  [[nodiscard]] Hypergraph induced(const std::vector<std::int32_t>& vertices) {
    Hypergraph graph;
    std::vector<std::int32_t> nets;
    std::vector<std::vector<std::int32_t>> pins;
    for (std::size_t i = 0; i < vertices.size(); ++i) {
      graph.vertex_weights.push_back(level_.weight(vertices[i]));
      for (const std::int32_t e : level_.nets_of(vertices[i])) {
        std::int32_t& here = net_here_[static_cast<std::size_t>(e)];
        if (here < 0) {
          here = static_cast<std::int32_t>(nets.size());
          nets.push_back(e);
          pins.emplace_back();
        }
        pins[static_cast<std::size_t>(here)].push_back(static_cast<std::int32_t>(i));
      }
    }
    for (std::size_t i = 0; i < nets.size(); ++i) {
      graph.add_net(pins[i], level_.net_weight(nets[i]));
      net_here_[static_cast<std::size_t>(nets[i])] = -1;
    }
    return graph;
  }

  // A half may hold its share of the weight and some of the slack its parts have together.
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
    for (std::int32_t p = begin; p < end; ++p) {
      sum += static_cast<double>(problem_.room_of(p).*dimension);
    }
    return sum;
  }

  const HyperLevel& level_;
  const HyperProblem& problem_;
  std::int32_t tries_;
  std::uint64_t seed_;
  std::vector<std::int32_t> parts_;
  std::vector<std::int32_t> net_here_;  // scratch: number of a net in the half at hand, -1
};

}  // namespace

std::vector<std::int32_t> bisect_recursively(const HyperLevel& level, const HyperProblem& problem,
                                             double effort, std::uint64_t seed) {
  return Bisection(level, problem, effort, seed).run();
}

}  // namespace contextile
