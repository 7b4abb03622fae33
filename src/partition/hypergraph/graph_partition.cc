// The driver of the partitioner: it coarsens the hypergraph, partitions the coarsest level from
// several starts, refines on the way back up, and repeats this once inside the parts found (a
// V-cycle).
#include <tbb/info.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "base/parallel_for.h"
#include "contextile/extend/hypergraph.h"
#include "partition/hypergraph/balance.h"
#include "partition/hypergraph/bisect.h"
#include "partition/hypergraph/coarsen.h"
#include "partition/hypergraph/graph_anneal.h"
#include "partition/hypergraph/graph_level.h"
#include "partition/hypergraph/graph_starts.h"
#include "partition/hypergraph/graph_state.h"
#include "partition/hypergraph/pair.h"

namespace contextile {
namespace {

// Annealing steps at effort 1, in multiples of a level's vertices.
constexpr double kStartSteps = 20;
constexpr double kCycleSteps = 100;
constexpr double kFineSteps = 40;
constexpr double kLeastStartSteps = 8000;
constexpr double kLeastFineSteps = 1000;
constexpr double kMostSteps = 1e15;

// Temperatures warm enough to move clusters between settled parts, or cold enough to only polish.
constexpr double kCycleTemperature = 0.08;
constexpr double kFineTemperature = 0.05;
constexpr double kLastTemperature = 0.01;

// A part of the coarsest level has about this many vertices, fewer if there are many parts.
constexpr std::int64_t kVerticesPerPart = 100;
constexpr std::int64_t kFewVerticesPerPart = 24;
constexpr std::int64_t kSmallestCoarseLevel = 400;
constexpr std::int64_t kLargestCoarseLevel = 40'000;

std::int64_t coarse_target(std::int32_t num_parts) {
  return std::max({kSmallestCoarseLevel, kFewVerticesPerPart * num_parts,
                   std::min(kLargestCoarseLevel, kVerticesPerPart * num_parts)});
}

struct Candidate {
  IdVector<VertexId, PartId> parts;
  double overload = 0;
  double objective = 0;

  [[nodiscard]] bool better_than(const Candidate& other) const {
    return std::pair(overload, objective) < std::pair(other.overload, other.objective);
  }
};

Candidate candidate_of(const HyperState& state) {
  return {state.parts(), state.overload(), state.objective()};
}

std::int64_t scaled_steps(double effort, double per_vertex, double least, const HyperLevel& level) {
  return static_cast<std::int64_t>(
      std::min(kMostSteps, effort * std::max(least, per_vertex * level.num_vertices())));
}

class Multilevel {
 public:
  Multilevel(const HyperProblem& problem, const HypergraphSpec& spec)
      : problem_(problem), spec_(spec) {}

  // Partitions from nothing.
  [[nodiscard]] Candidate from_starts(const HyperLevel& finest) const {
    const std::vector<HyperStep> steps =
        coarsen(finest, problem_, coarse_target(spec_.num_parts), spec_.seed);
    const HyperLevel& coarsest = steps.empty() ? finest : steps.back().coarse;
    return refine_up(finest, steps, best_start(coarsest));
  }

  // Improves finest.start. The result is never worse.
  [[nodiscard]] Candidate from_partition(const HyperLevel& finest, std::uint64_t seed) const {
    Candidate given = candidate_of(HyperState(finest, problem_, finest.start));
    const std::vector<HyperStep> steps =
        coarsen(finest, problem_, coarse_target(spec_.num_parts), seed);
    const HyperLevel& coarsest = steps.empty() ? finest : steps.back().coarse;
    HyperState state(coarsest, problem_, coarsest.start);
    Candidate found = refine_up(finest, steps,
                                improved(state, {.steps = scaled_steps(spec_.effort, kCycleSteps,
                                                                       kLeastStartSteps, coarsest),
                                                 .first_temperature = kCycleTemperature,
                                                 .last_temperature = kLastTemperature,
                                                 .seed = seed}));
    return found.better_than(given) ? found : given;
  }

  // Ignores nets for the packing that is most likely to fit, then improves it as far as it can.
  [[nodiscard]] Candidate from_packing(const HyperLevel& finest) const {
    HyperState state(finest, problem_, pack(finest, problem_));
    return improved(state, fine_annealing(finest, spec_.seed));
  }

 private:
  [[nodiscard]] HyperAnnealing fine_annealing(const HyperLevel& level, std::uint64_t seed) const {
    return {.steps = scaled_steps(spec_.effort, kFineSteps, kLeastFineSteps, level),
            .first_temperature = kFineTemperature,
            .last_temperature = kLastTemperature,
            .seed = seed};
  }

  [[nodiscard]] static Candidate improved(HyperState& state, const HyperAnnealing& annealing) {
    FastRandom random(annealing.seed);
    repair(state, random);
    refine_greedily(state, annealing.seed);
    const Candidate before = candidate_of(state);
    anneal(state, annealing);
    refine_pairs(state, annealing.seed + 1);
    refine_greedily(state, annealing.seed + 1);
    Candidate after = candidate_of(state);
    // Annealing follows the smooth traffic penalty, which may end on a busier busiest part.
    return before.better_than(after) ? before : after;
  }

  [[nodiscard]] Candidate best_start(const HyperLevel& coarsest) const {
    std::vector<Candidate> candidates(static_cast<std::size_t>(spec_.num_starts));
    const auto run = [&](std::int32_t index) {
      const std::uint64_t seed = spec_.seed + static_cast<std::uint64_t>(index);
      HyperState state(coarsest, problem_,
                       bisect_recursively(coarsest, problem_, spec_.effort, seed));
      candidates[index] = improved(
          state, {.steps = scaled_steps(spec_.effort, kStartSteps, kLeastStartSteps, coarsest),
                  .first_temperature = kCycleTemperature,
                  .last_temperature = kLastTemperature,
                  .seed = seed});
    };
    const int most = tbb::info::default_concurrency();
    tbb::task_arena arena(spec_.max_threads == 0 ? most : std::min(most, spec_.max_threads));
    arena.execute([&] { parallel_for(std::int32_t{0}, spec_.num_starts, run); });
    std::size_t best = 0;  // the first of equals, so that the result does not depend on threads
    for (std::size_t i = 1; i < candidates.size(); ++i) {
      if (candidates[i].better_than(candidates[best])) best = i;
    }
    return std::move(candidates[best]);
  }

  // Refines `coarse`, a partition of the coarsest level, level by level.
  [[nodiscard]] Candidate refine_up(const HyperLevel& finest, const std::vector<HyperStep>& steps,
                                    Candidate coarse) const {
    for (std::size_t i = steps.size(); i-- > 0;) {
      const HyperLevel& level = i == 0 ? finest : steps[i - 1].coarse;
      HyperState state(level, problem_, projected(coarse.parts, steps[i].cluster));
      coarse = improved(state, fine_annealing(level, spec_.seed + i));
    }
    return coarse;
  }

  const HyperProblem& problem_;
  const HypergraphSpec& spec_;
};

HyperProblem problem_of(const Hypergraph& hypergraph, const HypergraphSpec& spec) {
  HyperProblem problem;
  problem.num_parts = spec.num_parts;
  problem.capacity = part_capacities(hypergraph, spec);
  problem.traffic_weight = spec.traffic_weight;
  HyperWeight total;
  for (const HyperWeight& weight : hypergraph.vertex_weights) total = total + weight;
  const auto per = [&](std::int64_t sum) {
    return spec.num_parts / static_cast<double>(std::max<std::int64_t>(sum, 1));
  };
  problem.per_compute = per(total.compute);
  problem.per_data = per(total.data);
  return problem;
}

}  // namespace

HypergraphPartition partition_hypergraph(const Hypergraph& hypergraph, const HypergraphSpec& spec) {
  check_hypergraph(hypergraph);
  const HyperProblem problem = problem_of(hypergraph, spec);
  if (hypergraph.num_vertices() == 0 || spec.num_parts == 1) {
    return {IdVector<VertexId, PartId>(hypergraph.vertices(), PartId{0})};
  }
  const Multilevel multilevel(problem, spec);
  HyperLevel finest = finest_level(hypergraph, spec);
  std::optional<Candidate> from_start;
  if (!spec.start.empty()) from_start = multilevel.from_partition(finest, spec.seed);
  finest.start.clear();
  Candidate best = multilevel.from_starts(finest);
  if (from_start && !best.better_than(*from_start)) best = std::move(*from_start);
  // Packing without nets is the last resort for capacities that are hard to meet.
  if (best.overload > 0) {
    Candidate packed = multilevel.from_packing(finest);
    if (packed.better_than(best)) best = std::move(packed);
  }
  finest.start = best.parts;
  best = multilevel.from_partition(finest, spec.seed + 1);
  return {std::move(best.parts)};
}

}  // namespace contextile
