// Drafts that a smaller model chooses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/serving/engine.h"

namespace contextile {

// The draft model computes every token that the model computes, in the same step and at the same
// places of its own pages. So whatever the cache remembers, shares or forgets holds for both, and
// there is nothing else to keep.
class ModelDrafts {
 public:
  explicit ModelDrafts(const DraftModel& draft)
      : model_(*draft.rank), max_length_(draft.config.max_length) {}

  // Computes the tokens of a step, after `copies`, and adds drafts to the parts that may have some.
  // Collective: logits, and so the drafts, are equal on all ranks.
  void add_to(std::span<ScheduledTokens> step, std::span<const PageCopy> copies,
              Scheduler& scheduler);

 private:
  // A part whose last tokens the draft model has still to compute.
  struct Behind {
    ScheduledTokens* part = nullptr;
    std::vector<std::int32_t> tokens;
    std::int64_t most = 0;  // drafts in this step

    [[nodiscard]] bool wants_draft() const { return std::ssize(part->drafts) < most; }
  };
  // Computes these tokens, and keeps the parts that got a draft, with it as their token.
  void advance(std::vector<Behind>& parts, Scheduler& scheduler);
  [[nodiscard]] bool draft(Behind& its, std::span<const float> logits, Scheduler& scheduler);

  DecoderRank& model_;
  std::int64_t max_length_;
};

}  // namespace contextile
