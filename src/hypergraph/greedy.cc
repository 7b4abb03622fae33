#include <cstddef>
#include <utility>
#include <vector>

#include "base/fast_random.h"
#include "hypergraph/anneal.h"

namespace contextile {
namespace {

constexpr int kMaxRounds = 12;
// Pins of larger nets are not woken by a move: it rarely changes what is best for them.
constexpr std::size_t kLargestWakingNet = 64;
// Gains below this share of the score are rounding of the traffic penalty.
constexpr double kLeastGain = 1e-9;

class Greedy {
 public:
  Greedy(HyperState& state, std::uint64_t seed)
      : state_(state), level_(state.level()), random_(seed), affinity_(state.problem().num_parts) {}

  void run() {
    const auto num_vertices = static_cast<std::size_t>(level_.num_vertices());
    std::vector<std::int32_t> now;
    for (std::int32_t v = 0; v < level_.num_vertices(); ++v) {
      if (level_.movable(v)) now.push_back(v);
    }
    for (int round = 0; round < kMaxRounds && !now.empty(); ++round) {
      if (state_.problem().traffic_weight > 0) least_gain_ = kLeastGain * state_.score();
      shuffle(now);
      waiting_.assign(num_vertices, false);
      next_.clear();
      for (const std::int32_t v : now) {
        const std::int32_t to = best_part(v);
        if (to < 0) continue;
        state_.move(v, to);
        wake_neighbours(v);
      }
      std::swap(now, next_);
    }
  }

 private:
  void shuffle(std::vector<std::int32_t>& list) {
    for (std::size_t i = list.size(); i > 1; --i) {
      const auto j = static_cast<std::size_t>(random_.below(static_cast<std::int32_t>(i)));
      std::swap(list[i - 1], list[j]);
    }
  }

  // The part that lowers the score most, -1 when none does.
  std::int32_t best_part(std::int32_t v) {
    affinity_.measure(state_, v);
    std::int32_t best = -1;
    double best_cost = -least_gain_;
    for (const std::int32_t p : affinity_.parts()) {
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

  void wake_neighbours(std::int32_t v) {
    for (const std::int32_t e : level_.nets_of(v)) {
      const auto pins = level_.graph.pins_of(e);
      if (pins.size() > kLargestWakingNet) continue;
      for (const std::int32_t u : pins) {
        if (waiting_[static_cast<std::size_t>(u)] || !level_.movable(u)) continue;
        waiting_[static_cast<std::size_t>(u)] = true;
        next_.push_back(u);
      }
    }
  }

  HyperState& state_;
  const HyperLevel& level_;
  FastRandom random_;
  Affinity affinity_;
  std::vector<std::int32_t> next_;
  std::vector<bool> waiting_;
  double least_gain_ = 0;
};

}  // namespace

void refine_greedily(HyperState& state, std::uint64_t seed) { Greedy(state, seed).run(); }

}  // namespace contextile
