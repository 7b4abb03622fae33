// The published measurements of passing keys and values or queries, and the predictions of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "contextile/serving/prefill.h"

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
// Table 4.
inline constexpr std::array<PublishedPrefill, 14> kPublishedPrefills = {
    {{1280, 126720, 1023.39, 898.71},
     {3200, 124800, 1110.18, 1046.43},
     {4160, 123840, 1298.92, 1280.10},
     {6400, 121600, 1305.56, 1302.01},
     {12800, 115200, 2080.67, 2205.27},
     {25600, 102400, 3353.02, 3617.02},
     {38400, 89600, 4629.23, 4922.52},
     {51200, 76800, 5745.08, 6217.83},
     {64000, 64000, 6845.21, 7367.99},
     {76800, 51200, 7890.35, 8468.66},
     {89600, 38400, 8697.27, 9666.62},
     {102400, 25600, 10105.78, 10652.39},
     {115200, 12800, 11136.40, 11571.62},
     {128000, 0, 11462.15, 12360.57}}};
inline constexpr std::array<PrefillMode, 2> kRingModes = {PrefillMode::kPassKv,
                                                          PrefillMode::kPassQ};

// One GPU's share of a layer: 16 of 128 query heads, one of 8 KV heads of 128.
inline constexpr AttentionShape kPublishedShape = {.q_heads = 16, .kv_heads = 1};
inline constexpr int kPublishedLayers = 126;
inline constexpr std::int32_t kPublishedRanks = 4;

// Table 5's times of a ring's step at 2.5% and 10% new tokens, in microseconds: C is the FLOPs of
// attention, BW the bytes of a rank's keys and values, over these. The other rates: C as assumed of
// bf16 attention on an H100, BW the 400 Gb/s of a GPU's network.
struct PublishedStep {
  std::int64_t new_tokens;
  double send_kv_us;
  double send_q_us;
  double attention_us;
  double all_to_all_us;  // once, behind the ring of queries
};
inline constexpr std::array<PublishedStep, 2> kPublishedSteps = {
    {{3200, 627, 166, 414, 424}, {12800, 631, 544, 1608, 1023}}};
inline constexpr PrefillRates kPublishedRates = {507e12, 26.1e9, 0};
inline constexpr PrefillRates kNominalRates = {500e12, 50e9, 0};

// Attention of all layers, simulated, ms.
inline double simulated_ms(const PublishedPrefill& row, PrefillMode mode,
                           const PrefillRates& rates) {
  const PrefillSequence sequence = {row.cached_tokens, row.new_tokens, {}};
  const PrefillWork work =
      prefill_work({.layout = {.num_ranks = kPublishedRanks}, .sequences = {&sequence, 1}});
  return 1e3 * kPublishedLayers *
         simulate_prefill_s(mode, work, kPublishedShape, rates, Dtype::kBf16);
}

// The same in the paper's schedule: an all-to-all of results after the ring of queries, whereas the
// library sends each result when it is there.
inline double scheduled_ms(const PublishedPrefill& row, PrefillMode mode,
                           const PrefillRates& rates) {
  if (mode == PrefillMode::kPassKv) return simulated_ms(row, mode, rates);
  constexpr double kDim = kPublishedShape.head_dim;
  const double rows = static_cast<double>(row.new_tokens) / kPublishedRanks;
  const double pairs = static_cast<double>(row.new_tokens) *
                       (static_cast<double>(row.cached_tokens) + (row.new_tokens + 1) / 2.0);
  const double attention_s = 4 * kDim * kPublishedShape.q_heads * pairs /
                             (kPublishedRanks * kPublishedRanks) / rates.flops_per_s;
  const double send_s = 2 * kDim * kPublishedShape.q_heads * rows / rates.bytes_per_s;
  const double results_s = (2 * kDim + 4) * kPublishedShape.q_heads * rows / rates.bytes_per_s;
  constexpr int kPeers = kPublishedRanks - 1;
  return 1e3 * kPublishedLayers *
         (attention_s + kPeers * (std::max(attention_s, send_s) + results_s));
}

// The same with everything else that a model does, taken as a + b·T. a and b make the first and the
// last row of pass-KV exact; the others are predicted.
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
         scheduled_ms(row, mode, rates);
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
