#include <algorithm>
#include <cmath>
#include <limits>
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

struct Candidate {
  float logit;
  std::int32_t token;
  double weight;

  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  }
};

// Tokens and their weights, from which one is drawn. Tokens are ordered by likelihood, the
// likeliest first, and equally likely ones by id. The order is never made as a whole: every
// question is answered by partial selection, in time linear in the number of tokens.
class Candidates {
 public:
  // `scratch` holds the candidates; reusing it saves the faults of new pages for every token.
  Candidates(std::span<const float> logits, double most, double temperature,
             std::vector<Candidate>& scratch)
      : all_(scratch) {
    all_.clear();
    all_.reserve(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const float logit = logits[i];
      if (!(logit > -std::numeric_limits<float>::infinity())) continue;
      const double weight = std::exp((static_cast<double>(logit) - most) / temperature);
      all_.push_back({logit, static_cast<std::int32_t>(i), weight});
    }
  }

  // Keeps the `count` likeliest.
  void keep(std::size_t count) {
    if (count >= all_.size()) return;
    std::nth_element(all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(count), all_.end());
    all_.resize(count);
  }
  // Keeps the likeliest ones whose weights reach this share of all together, at least one.
  void keep_share(double share) {
    // Slightly less, so that a sum that equals the share is enough.
    keep(place_of(std::nextafter(share * total(), 0.0)) + 1);
  }
  // The token at which the sum of the weights, the likeliest first, passes `uniform` of all.
  [[nodiscard]] std::int32_t draw(double uniform) {
    return all_[place_of(uniform * total())].token;
  }

 private:
  [[nodiscard]] double sum(std::size_t begin, std::size_t end) const {
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += all_[i].weight;
    return sum;
  }
  [[nodiscard]] double total() const { return sum(0, all_.size()); }

  // Returns the place, in order, of the candidate with which the sum of weights reaches
  // `sum_wanted`. Halves the range in which it is, so that the whole takes twice the time of the
  // first selection. Leaves that candidate at its place, and before it those that come first.
  [[nodiscard]] std::size_t place_of(double sum_wanted) {
    std::size_t begin = 0;
    std::size_t end = all_.size();
    while (end - begin > 1) {
      const std::size_t middle = begin + (end - begin) / 2;
      const auto at = [&](std::size_t i) { return all_.begin() + static_cast<std::ptrdiff_t>(i); };
      std::nth_element(at(begin), at(middle), at(end));
      const double first_half = sum(begin, middle);
      if (sum_wanted < first_half) {
        end = middle;
      } else {
        sum_wanted -= first_half;
        begin = middle;
      }
    }
    return begin;
  }

  std::vector<Candidate>& all_;
};

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
  // So close to 0 that the weights of all other tokens are 0.
  constexpr double kLeastTemperature = 1e-6;
  if (params.temperature > kLeastTemperature) {
    // Numbers of one request are drawn from generators of their own, so none depends on how many
    // were drawn before.
    Rng random(params.seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(number));
    thread_local std::vector<Candidate> scratch;
    Candidates candidates(logits, most, params.temperature, scratch);
    if (params.top_k > 0) candidates.keep(static_cast<std::size_t>(params.top_k));
    if (params.top_p < 1) candidates.keep_share(params.top_p);
    token = candidates.draw(random.uniform());
  }
  const double logprob = logits[static_cast<std::size_t>(token)] - log_total;
  return {token, static_cast<float>(logprob)};
}

}  // namespace contextile
