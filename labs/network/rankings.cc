#include "labs/network/rankings.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace contextile {
namespace {

constexpr double kSame = 1 + 1e-9;

}  // namespace

void OrderChanges::add(std::span<const double> predicted_us, std::span<const double> drawn_us) {
  CONTEXTILE_CHECK(!predicted_us.empty() && predicted_us.size() == drawn_us.size(),
                   "rankings: expected as many drawn as predicted times, found {} and {}",
                   drawn_us.size(), predicted_us.size());
  ++draws;
  const double predicted_best_us = std::ranges::min(predicted_us);
  const double drawn_best_us = std::ranges::min(drawn_us);
  double winner_us = 0;  // the predicted winner's drawn time
  for (std::size_t i = 0; i < drawn_us.size(); ++i) {
    if (predicted_us[i] > predicted_best_us * kSame) continue;
    winner_us = winner_us == 0 ? drawn_us[i] : std::min(winner_us, drawn_us[i]);
  }
  if (winner_us > drawn_best_us * kSame) ++other_winners;
  losses.push_back(winner_us / drawn_best_us - 1);
  for (std::size_t i = 0; i < predicted_us.size(); ++i) {
    for (std::size_t j = 0; j < predicted_us.size(); ++j) {
      const bool flips = drawn_us[i] > drawn_us[j];
      for (std::size_t g = 0; g < kPairGaps.size(); ++g) {
        if (predicted_us[j] <= predicted_us[i] * (1 + kPairGaps[g])) continue;
        ++flipped[g].pairs;
        flipped[g].flipped += flips ? 1 : 0;
      }
    }
  }
}

void OrderChanges::add(const OrderChanges& others) {
  draws += others.draws;
  other_winners += others.other_winners;
  losses.insert(losses.end(), others.losses.begin(), others.losses.end());
  for (std::size_t g = 0; g < kPairGaps.size(); ++g) {
    flipped[g].pairs += others.flipped[g].pairs;
    flipped[g].flipped += others.flipped[g].flipped;
  }
}

double OrderChanges::mean_loss() const {
  return losses.empty() ? 0
                        : std::accumulate(losses.begin(), losses.end(), 0.0) /
                              static_cast<double>(losses.size());
}

double OrderChanges::worst_loss() const { return losses.empty() ? 0 : std::ranges::max(losses); }

}  // namespace contextile
