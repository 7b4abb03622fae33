// Executes plans in one thread on doubles and compares them with dense attention: slow, simple, and
// independent of the runtime.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contextile/plan.h"
#include "support/toy_attention.h"

namespace contextile {

// The batch a plan is for, with random inputs and the dense results of every mask.
class ToyBatch {
 public:
  ToyBatch(const Plan& plan, std::uint64_t seed);

  // Runs every round, mask and direction of the plan. Returns nothing if all results are those of
  // dense attention under the masks of the plan this batch was made of; else the first error. Needs
  // programs of the same directions.
  [[nodiscard]] std::optional<std::string> difference(const Plan& plan) const;

 private:
  AttentionShape shape_;
  std::int64_t num_tokens_ = 0;
  ToyInputs inputs_;
  std::vector<ToyResults> expected_;  // of every mask
  std::vector<bool> has_backward_;    // of every mask
};

}  // namespace contextile
