#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "contextile/serving/engine.h"

namespace contextile {
namespace {

// Natural logarithm of the sum of exp(logits).
double log_sum(std::span<const float> logits, double most) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return most + std::log(sum);
}

// The tokens among which one is drawn, the likeliest first and of equally likely ones the first,
// and what each weighs.
struct Candidates {
  std::vector<std::int32_t> tokens;
  std::vector<double> weights;
};

Candidates candidates(std::span<const float> logits, double most, const SamplingParams& params) {
  Candidates found;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -std::numeric_limits<float>::infinity()) {
      found.tokens.push_back(static_cast<std::int32_t>(i));
    }
  }
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::sort(found.tokens.begin(), found.tokens.end(), before);
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < found.tokens.size()) {
    found.tokens.resize(static_cast<std::size_t>(params.top_k));
  }
  double total = 0;
  for (const std::int32_t token : found.tokens) {
    const double logit = logits[static_cast<std::size_t>(token)];
    found.weights.push_back(std::exp((logit - most) / params.temperature));
    total += found.weights.back();
  }
  double sum = 0;
  std::size_t count = 0;
  while (count < found.weights.size() && sum < params.top_p * total) sum += found.weights[count++];
  count = std::max<std::size_t>(count, 1);
  found.tokens.resize(count);
  found.weights.resize(count);
  return found;
}

std::int32_t draw(const Candidates& candidates, double uniform) {
  double rest =
      uniform * std::accumulate(candidates.weights.begin(), candidates.weights.end(), 0.0);
  for (std::size_t i = 0; i < candidates.tokens.size(); ++i) {
    rest -= candidates.weights[i];
    if (rest < 0) return candidates.tokens[i];
  }
  return candidates.tokens.back();
}

}  // namespace

void check_sampling(const SamplingParams& params) {
  CONTEXTILE_CHECK(params.temperature >= 0 && params.temperature <= 100,
                   "sampling, temperature: expected 0 to 100, found {}", params.temperature);
  CONTEXTILE_CHECK(params.top_p > 0 && params.top_p <= 1,
                   "sampling, top_p: expected more than 0, at most 1, found {}", params.top_p);
  CONTEXTILE_CHECK(params.top_k >= 0, "sampling, top_k: expected at least 0, found {}",
                   params.top_k);
}

SampledToken sample(std::span<const float> logits, const SamplingParams& params,
                    std::int64_t number) {
  const auto best = std::max_element(logits.begin(), logits.end());
  const double most = best == logits.end() ? 0 : *best;
  const double log_total = log_sum(logits, most);
  CONTEXTILE_CHECK(std::isfinite(log_total),
                   "sampling: expected {} logits, none NaN or +inf, found a sum of {}",
                   logits.size(), log_total);
  auto token = static_cast<std::int32_t>(best - logits.begin());
  // So close to 0 that weights of all others are.
  constexpr double kLeastTemperature = 1e-6;
  if (params.temperature > kLeastTemperature) {
    // Numbers of one request are drawn from generators of their own, so none depends on how many
    // were drawn before.
    Rng random(params.seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(number));
    token = draw(candidates(logits, most, params), random.uniform());
  }
  const double logprob = logits[static_cast<std::size_t>(token)] - log_total;
  return {token, static_cast<float>(logprob)};
}

}  // namespace contextile
