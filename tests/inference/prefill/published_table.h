// The published measurements of passing keys and values or queries, and what is predicted of them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "contextile/prefill_choice.h"

namespace contextile {

// arXiv 2411.01783: time to first token of Llama 3 405B, ms, on 4 hosts of 8 H100, each host a rank
// of 8 tensor-parallel GPUs.
struct PublishedPrefill {
  std::int64_t new_tokens;
  std::int64_t cached_tokens;
  double pass_kv_ms;
  double pass_q_ms;

  [[nodiscard]] double ms(PrefillMode mode) const {
    return mode == PrefillMode::kPassKv ? pass_kv_ms : pass_q_ms;
  }
  [[nodiscard]] PrefillMode faster() const {
    return pass_kv_ms <= pass_q_ms ? PrefillMode::kPassKv : PrefillMode::kPassQ;
  }
};
inline constexpr std::array<PublishedPrefill, 4> kPublishedPrefills = {{{1280, 126720, 1023, 899},
                                                                        {3200, 124800, 1110, 1046},
                                                                        {12800, 115200, 2081, 2205},
                                                                        {128000, 0, 11462, 12361}}};
inline constexpr std::array<PrefillMode, 2> kRingModes = {PrefillMode::kPassKv,
                                                          PrefillMode::kPassQ};

// One GPU's share of a layer: 16 of 128 query heads, one of 8 KV heads of 128.
inline constexpr AttentionShape kPublishedShape = {.q_heads = 16, .kv_heads = 1};
inline constexpr int kPublishedLayers = 126;
inline constexpr std::int32_t kPublishedRanks = 4;

// C is assumed, of bf16 attention on an H100. BW: the 400 Gb/s of a GPU's network, and what makes
// the simulated difference of the modes at 1% new tokens the published one.
inline constexpr PrefillRates kNominalRates = {500e12, 50e9, 0};
inline constexpr PrefillRates kCalibratedRates = {500e12, 32e9, 0};

// Attention of all layers, simulated, ms.
inline double simulated_ms(const PublishedPrefill& row, PrefillMode mode,
                           const PrefillRates& rates) {
  const PrefillSequence sequence = {row.cached_tokens, row.new_tokens, {}};
  const PrefillWork work =
      prefill_work({.layout = {.num_ranks = kPublishedRanks}, .sequences = {&sequence, 1}});
  return 1e3 * kPublishedLayers *
         simulate_prefill_s(mode, work, kPublishedShape, rates, Dtype::kBf16);
}

// The same with all else a model does, taken as a + b·T: a and b make the first and the last row
// of pass-KV exact; the others are predicted.
inline double predicted_ms(const PublishedPrefill& row, PrefillMode mode,
                           const PrefillRates& rates) {
  const PublishedPrefill& first = kPublishedPrefills.front();
  const PublishedPrefill& last = kPublishedPrefills.back();
  const auto rest = [&](const PublishedPrefill& of) {
    return of.pass_kv_ms - simulated_ms(of, PrefillMode::kPassKv, rates);
  };
  const double slope =
      (rest(last) - rest(first)) / static_cast<double>(last.new_tokens - first.new_tokens);
  return rest(first) + slope * static_cast<double>(row.new_tokens - first.new_tokens) +
         simulated_ms(row, mode, rates);
}

// New tokens of the rows in which a choice is not the faster mode.
inline std::vector<std::int64_t> missed_rows(const auto& choose) {
  std::vector<std::int64_t> missed;
  for (const PublishedPrefill& row : kPublishedPrefills) {
    if (choose(row) != row.faster()) missed.push_back(row.new_tokens);
  }
  return missed;
}

}  // namespace contextile
