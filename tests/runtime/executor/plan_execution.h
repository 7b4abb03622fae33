// Executing a plan in tests: every rank a thread, results of the whole batch in one place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/transport.h"

namespace contextile {

struct ExecutionOptions {
  InprocOptions transport;
  std::uint64_t seed = 0;  // of the inputs
  bool poison = true;      // fill slots, accumulators and pack buffers with NaN first
  const AttentionKernel* kernel = nullptr;  // null: the preferred one for its dtype
  // The part that each rank prepares instead of the whole plan; unset: all prepare the whole plan.
  std::function<std::shared_ptr<const Plan>(Rank)> plan_of = {};
};

// The inputs that run_plan would draw for the plan.
[[nodiscard]] BatchTensors inputs_of(const Plan& plan, std::uint64_t seed);

// The bands of one of the plan's masks, all rounds together.
[[nodiscard]] Mask whole_mask(const Plan& plan, std::size_t mask);

// Forward and backward of one mask, if the plan has them; arrays of a missing direction stay NaN.
// Without a forward, backward starts from the oracle's output.
[[nodiscard]] OracleResult execute(const std::shared_ptr<const Plan>& plan, std::size_t mask,
                                   const ExecutionOptions& options = {});

// Empty if both hold the same bits, else the first array that differs.
[[nodiscard]] std::string first_difference(const OracleResult& a, const OracleResult& b);

// Every error of a report on a line, for failure messages.
[[nodiscard]] std::string report_text(const RunReport& report);

}  // namespace contextile
