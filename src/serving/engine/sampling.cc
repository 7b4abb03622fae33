#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "contextile/serving/engine.h"

namespace contextile {
namespace {

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

  // Keeps those of at least this weight; the likeliest has 1.
  void keep_heavy(double least) {
    std::erase_if(all_, [&](const Candidate& candidate) { return candidate.weight < least; });
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
  CONTEXTILE_CHECK(params.min_p >= 0 && params.min_p <= 1,
                   "sampling, min_p: expected 0 to 1, found {}", params.min_p);
  CONTEXTILE_CHECK(params.repetition_penalty >= 0.01 && params.repetition_penalty <= 100,
                   "sampling, repetition_penalty: expected 0.01 to 100, found {}",
                   params.repetition_penalty);
  CONTEXTILE_CHECK(std::abs(params.presence_penalty) <= 2,
                   "sampling, presence_penalty: expected -2 to 2, found {}",
                   params.presence_penalty);
  CONTEXTILE_CHECK(std::abs(params.frequency_penalty) <= 2,
                   "sampling, frequency_penalty: expected -2 to 2, found {}",
                   params.frequency_penalty);
  for (const TokenBias& its : params.logit_bias) {
    CONTEXTILE_CHECK(its.token >= 0 && std::abs(its.bias) <= 100,
                     "sampling, logit_bias: expected tokens and biases of -100 to 100, found {} "
                     "and {}",
                     its.token, its.bias);
  }
}

TokenLogprobs::TokenLogprobs(std::span<const float> logits) : logits_(logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  const double most = best == logits.end() ? 0 : *best;
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  log_total_ = most + std::log(sum);
  CONTEXTILE_CHECK(std::isfinite(log_total_),
                   "sampling: expected {} logits, none NaN or +inf, found a sum of {}",
                   logits.size(), log_total_);
}

float TokenLogprobs::of(std::int32_t token) const {
  return static_cast<float>(logits_[static_cast<std::size_t>(token)] - log_total_);
}

// Keeps the likeliest so far in a heap whose first one is the least likely of them.
std::vector<TokenLogprob> TokenLogprobs::likeliest(std::int32_t count) const {
  std::vector<TokenLogprob> top;
  if (count <= 0) return top;
  const auto is_likelier = [&](const TokenLogprob& a, const TokenLogprob& b) {
    const float logit_a = logits_[static_cast<std::size_t>(a.token)];
    const float logit_b = logits_[static_cast<std::size_t>(b.token)];
    return logit_a != logit_b ? logit_a > logit_b : a.token < b.token;
  };
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    const TokenLogprob token = {static_cast<std::int32_t>(i), 0};
    if (std::ssize(top) == count) {
      if (!is_likelier(token, top.front())) continue;
      std::pop_heap(top.begin(), top.end(), is_likelier);
      top.pop_back();
    }
    top.push_back(token);
    std::push_heap(top.begin(), top.end(), is_likelier);
  }
  std::sort_heap(top.begin(), top.end(), is_likelier);
  for (TokenLogprob& token : top) token.logprob = of(token.token);
  return top;
}

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0 || !params.logit_bias.empty();
}

std::vector<float> penalized(std::span<const float> logits, const SamplingParams& params,
                             std::span<const std::int32_t> tokens, std::size_t num_prompt) {
  std::vector<float> changed(logits.begin(), logits.end());
  for (const TokenBias& its : params.logit_bias) {
    CONTEXTILE_CHECK(its.token >= 0 && static_cast<std::size_t>(its.token) < changed.size(),
                     "logit_bias: expected tokens of 0 to {}, found {}", changed.size() - 1,
                     its.token);
    changed[static_cast<std::size_t>(its.token)] += its.bias;
  }
  const auto penalty = static_cast<float>(params.repetition_penalty);
  std::vector<std::int32_t> counts(changed.size());  // in the output; -1: in the prompt alone
  for (std::size_t i = tokens.size(); i-- > 0;) {
    std::int32_t& count = counts[static_cast<std::size_t>(tokens[i])];
    if (i >= num_prompt) ++count;
    if (i < num_prompt && count == 0) count = -1;
  }
  for (std::size_t i = 0; i < changed.size(); ++i) {
    if (counts[i] == 0) continue;
    float& logit = changed[i];
    logit = logit > 0 ? logit / penalty : logit * penalty;
    if (counts[i] < 0) continue;
    logit -= static_cast<float>(params.presence_penalty + params.frequency_penalty * counts[i]);
  }
  return changed;
}

std::vector<float> only(std::span<const float> logits, const TokenSet& tokens) {
  std::vector<float> changed(logits.size(), -std::numeric_limits<float>::infinity());
  bool is_any = false;
  for (std::size_t i = 0; i < std::min(changed.size(), 32 * tokens.size()); ++i) {
    if ((tokens[i / 32] >> (i % 32) & 1) == 0) continue;
    changed[i] = logits[i];
    is_any = true;
  }
  CONTEXTILE_CHECK(is_any, "request: expected a token that may come next, found none of {}",
                   logits.size());
  return changed;
}

SampledToken sample(std::span<const float> logits, const SamplingParams& params,
                    std::int64_t number) {
  const TokenLogprobs logprobs(logits);
  const auto best = std::max_element(logits.begin(), logits.end());
  auto token = static_cast<std::int32_t>(best - logits.begin());
  // So close to 0 that the weights of all other tokens are 0.
  constexpr double kLeastTemperature = 1e-6;
  if (params.temperature > kLeastTemperature) {
    // Numbers of one request are drawn from generators of their own, so none depends on how many
    // were drawn before.
    Rng random(params.seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(number));
    thread_local std::vector<Candidate> scratch;
    Candidates candidates(logits, *best, params.temperature, scratch);
    if (params.min_p > 0) candidates.keep_heavy(params.min_p);
    if (params.top_k > 0) candidates.keep(static_cast<std::size_t>(params.top_k));
    if (params.top_p < 1) candidates.keep_share(params.top_p);
    token = candidates.draw(random.uniform());
  }
  return {token, logprobs.of(token)};
}

}  // namespace contextile
