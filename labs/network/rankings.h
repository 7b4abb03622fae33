// How an order of plans by predicted time changes when the times do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace contextile {

// Gaps between two predicted times, from which on a pair counts.
inline constexpr std::array<double, 3> kPairGaps = {0.02, 0.05, 0.10};

// Pairs whose predicted times differ by more than a gap, and how many are in the other order.
struct FlippedPairs {
  std::int64_t pairs = 0;
  std::int64_t flipped = 0;

  [[nodiscard]] double share() const {
    return pairs == 0 ? 0 : static_cast<double>(flipped) / static_cast<double>(pairs);
  }
};

// Counts how a predicted order fares in other draws of times.
struct OrderChanges {
  std::int64_t draws = 0;
  std::int64_t other_winners = 0;  // draws in which another plan than the predicted one is fastest
  // How much longer than the fastest one the predicted winner takes: 0.1 is a tenth longer.
  std::vector<double> losses;
  std::array<FlippedPairs, kPairGaps.size()> flipped;  // by gap

  // `predicted_us` and `drawn_us` are times of the same plans. Plans with equal predicted times,
  // up to a billionth, win together. Throws InvalidArgument unless both have as many times, at
  // least one.
  void add(std::span<const double> predicted_us, std::span<const double> drawn_us);
  void add(const OrderChanges& others);

  [[nodiscard]] double mean_loss() const;
  [[nodiscard]] double worst_loss() const;
};

}  // namespace contextile
