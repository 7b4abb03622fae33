// The times that steps took, and the time that the next one would take.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/serving/engine.h"

namespace contextile {

// The tokens of a step.
struct StepContents {
  std::int64_t prompt_tokens = 0;  // all but the next token of a request that decodes
  std::int64_t prompt_pairs = 0;   // of these and all tokens up to them in their requests

  void add(Range tokens) {
    prompt_tokens += tokens.size();
    prompt_pairs += tokens.size() * tokens.begin + tokens.size() * (tokens.size() + 1) / 2;
  }
};

// A fit of step times: time = decoding + a · tokens + b · pairs, over recent steps.
class StepTimes {
 public:
  void add(double seconds, const StepContents& contents);
  // Returns the limit under which a step takes about `pace` times one without prompts.
  [[nodiscard]] StepLimit limit(double pace) const;

 private:
  void add_decode(double seconds);

  std::vector<double> decodes_s_;  // of the last steps without prompts
  double decode_s_ = 0;            // their median; 0: none was seen
  // Sums of the fit, in which older steps weigh less.
  double tokens_tokens_ = 0;
  double tokens_pairs_ = 0;
  double pairs_pairs_ = 0;
  double tokens_s_ = 0;
  double pairs_s_ = 0;
};

}  // namespace contextile
