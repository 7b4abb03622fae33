#include "serving/engine/step_times.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace contextile {
namespace {

constexpr double kForget = 0.9;          // weight of the steps so far when one is added
constexpr std::size_t kMostDecodes = 9;  // steps without prompts that count
constexpr double kSingular = 1e-6;       // of the fit's determinant, relative

}  // namespace

std::int64_t StepLimit::tokens(std::int64_t position) const {
  if (std::isinf(prompts_s)) return kUnlimited;
  // a·n + b·(n·position + n²/2) = s
  const double linear = token_s + pair_s * static_cast<double>(position);
  double most = static_cast<double>(kLeast);
  if (pair_s > 0) {
    most = (std::sqrt(linear * linear + 2 * pair_s * prompts_s) - linear) / pair_s;
  } else if (linear > 0) {
    most = prompts_s / linear;
  }
  return std::clamp(static_cast<std::int64_t>(std::min(most, 1e9)), kLeast, kUnlimited);
}

void StepTimes::add(double seconds, const StepContents& contents) {
  // Steps of few tokens of prompts are hardly longer than those without.
  if (contents.prompt_tokens == 0 ||
      (decode_s_ == 0 && contents.prompt_tokens <= StepLimit::kLeast)) {
    add_decode(seconds);
  }
  if (contents.prompt_tokens == 0) return;
  const auto tokens = static_cast<double>(contents.prompt_tokens);
  const auto pairs = static_cast<double>(contents.prompt_pairs);
  const double more_s = std::max(0.0, seconds - decode_s_);
  tokens_tokens_ = kForget * tokens_tokens_ + tokens * tokens;
  tokens_pairs_ = kForget * tokens_pairs_ + tokens * pairs;
  pairs_pairs_ = kForget * pairs_pairs_ + pairs * pairs;
  tokens_s_ = kForget * tokens_s_ + tokens * more_s;
  pairs_s_ = kForget * pairs_s_ + pairs * more_s;
}

// A median, because a step that the machine held up says little.
void StepTimes::add_decode(double seconds) {
  if (decodes_s_.size() == kMostDecodes) decodes_s_.erase(decodes_s_.begin());
  decodes_s_.push_back(seconds);
  std::vector<double> sorted = decodes_s_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  decode_s_ = *middle;
}

StepLimit StepTimes::limit(double pace) const {
  if (pace == 0) return {};
  StepLimit limit;
  limit.prompts_s = (pace - 1) * decode_s_;
  if (tokens_tokens_ == 0 || decode_s_ == 0) {
    limit.prompts_s = 0;  // the next step with prompts shows
    return limit;
  }
  const double determinant = tokens_tokens_ * pairs_pairs_ - tokens_pairs_ * tokens_pairs_;
  if (determinant > kSingular * tokens_tokens_ * pairs_pairs_) {
    limit.token_s = (tokens_s_ * pairs_pairs_ - pairs_s_ * tokens_pairs_) / determinant;
    limit.pair_s = (pairs_s_ * tokens_tokens_ - tokens_s_ * tokens_pairs_) / determinant;
  }
  // Steps too much alike to tell the two apart, or noise: all of the time is that of one of them.
  if (limit.token_s <= 0) {
    limit.token_s = 0;
    limit.pair_s = pairs_s_ / pairs_pairs_;
  }
  if (limit.pair_s < 0 || determinant <= kSingular * tokens_tokens_ * pairs_pairs_) {
    limit.pair_s = 0;
    limit.token_s = tokens_s_ / tokens_tokens_;
  }
  return limit;
}

}  // namespace contextile
