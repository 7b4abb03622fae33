#include "contextile/inproc_attention.h"

#include <utility>

#include "base/check.h"
#include "contextile/extend/kernel.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "runtime/executor/check_program.h"
#include "runtime/executor/machine_memory.h"
#include "runtime/executor/plan_ranks.h"

namespace contextile {
namespace {

void check_plan(const Plan& plan) {
  check_structure(plan);
  if (plan.rounds.empty()) fail_plan("attention: expected a plan with a round, found none");
  const VerifyReport report = verify(plan, {.max_shown = 1});
  if (report.ok()) return;
  fail_plan("attention: expected a plan that verifies, found {} violations, the first: {}",
            report.num_violations, report.violations.front());
}

}  // namespace

InprocAttention::InprocAttention(std::shared_ptr<const Plan> plan,
                                 const InprocAttentionOptions& options) {
  CONTEXTILE_CHECK(plan != nullptr, "attention: expected a plan, found none");
  const AttentionKernel& kernel = find_kernel(options.kernel, plan->shape.dtype);
  check_plan(*plan);
  check_machine_memory("attention", *plan, inproc_bytes(*plan, statistics(*plan)));
  ranks_ = std::make_unique<PlanRanks>(
      std::move(plan),
      PlanRanks::RunOn{.kernel = kernel, .transport = {.timeout = options.timeout}});
}
InprocAttention::~InprocAttention() = default;
InprocAttention::InprocAttention(InprocAttention&&) noexcept = default;
InprocAttention& InprocAttention::operator=(InprocAttention&&) noexcept = default;

AttentionOutput InprocAttention::forward(const AttentionInputs& inputs, std::string_view mask) {
  return ranks_->forward(find_mask(ranks_->plan(), mask), inputs);
}

AttentionGradients InprocAttention::backward(const AttentionInputs& inputs,
                                             const AttentionOutput& output,
                                             const TensorView& dout_THD) {
  return ranks_->backward(find_mask(ranks_->plan(), output.mask), inputs, output, dout_THD);
}

std::vector<ExecutionStats> InprocAttention::last_stats() const {
  std::vector<ExecutionStats> stats;
  for (const RankCall& call : ranks_->last_calls()) stats.push_back(call.stats);
  return stats;
}

}  // namespace contextile
