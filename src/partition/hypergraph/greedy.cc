#include <cstddef>
#include <utility>
#include <vector>

#include "base/fast_random.h"
#include "partition/hypergraph/graph_anneal.h"

namespace contextile {
namespace {

constexpr int kMaxRounds = 12;
// A move does not wake the pins of larger nets, because it rarely changes what is best for them.
constexpr std::size_t kLargestWakingNet = 64;
// Gains below this share of the score are rounding of the traffic penalty.
constexpr double kLeastGain = 1e-9;

class Greedy {
 public:
  Greedy(HyperState& state, std::uint64_t seed)
      : state_(state), level_(state.level()), random_(seed), affinity_(state.problem()) {}

  void run() {
    std::vector<VertexId> now;
    for (const VertexId v : level_.vertices()) {
      if (level_.movable(v)) now.push_back(v);
    }
    for (int round = 0; round < kMaxRounds && !now.empty(); ++round) {
      if (state_.problem().traffic_weight > 0) least_gain_ = kLeastGain * state_.score();
      random_.shuffle(now);
      waiting_.assign(level_.vertices(), false);
      next_.clear();
      for (const VertexId v : now) {
        const PartId to = best_part(v);
        if (!to.valid()) continue;
        state_.move(v, to);
        wake_neighbours(v);
      }
      std::swap(now, next_);
    }
  }

 private:
  // Returns the part that lowers the score most, or an invalid one if none does.
  PartId best_part(VertexId v) {
    affinity_.measure(state_, v);
    PartId best;
    double best_cost = -least_gain_;
    for (const PartId p : affinity_.parts()) {
      if (p == state_.part(v) || !state_.has_room(v, p)) continue;
      const double cost = state_.problem().traffic_weight > 0
                              ? state_.delta(v, p).total()
                              : static_cast<double>(affinity_.cost(p));
      if (cost >= best_cost) continue;
      best = p;
      best_cost = cost;
    }
    return best;
  }

  void wake_neighbours(VertexId v) {
    for (const NetId e : level_.nets_of(v)) {
      const auto pins = level_.graph.pins_of(e);
      if (pins.size() > kLargestWakingNet) continue;
      for (const VertexId u : pins) {
        if (waiting_[u] || !level_.movable(u)) continue;
        waiting_[u] = true;
        next_.push_back(u);
      }
    }
  }

  HyperState& state_;
  const HyperLevel& level_;
  FastRandom random_;
  Affinity affinity_;
  std::vector<VertexId> next_;
  IdVector<VertexId, bool> waiting_;
  double least_gain_ = 0;
};

}  // namespace

void refine_greedily(HyperState& state, std::uint64_t seed) { Greedy(state, seed).run(); }

}  // namespace contextile
