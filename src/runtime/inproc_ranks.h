// The engine of InprocAttention, for plans nobody has verified, too: checked runs execute by it
// what they then find right or wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "contextile/executor.h"
#include "contextile/inproc_attention.h"
#include "contextile/kernel.h"
#include "contextile/plan.h"
#include "contextile/transport.h"

namespace contextile {

// One rank's part of a call.
struct RankCall {
  ExecutionStats stats;
  std::int64_t sent_bytes = 0;  // as the transport counted
};

// A plan with at least one round, its group and its executors, prepared. Masks are indices.
class InprocRanks {
 public:
  // Throws InvalidPlan when the programs do not hold together.
  InprocRanks(std::shared_ptr<const Plan> plan, const AttentionKernel& kernel,
              const InprocOptions& options);

  [[nodiscard]] const Plan& plan() const { return *plan_; }
  // As InprocAttention's. Rows that the plan leaves out are NaN.
  [[nodiscard]] AttentionOutput forward(std::size_t mask, const AttentionInputs& inputs);
  [[nodiscard]] AttentionGradients backward(std::size_t mask, const AttentionInputs& inputs,
                                            const AttentionOutput& output,
                                            const TensorView& dout_THD);

  // By rank.
  [[nodiscard]] const std::vector<RankCall>& last_calls() const { return calls_; }
  [[nodiscard]] std::vector<ExecutorMemory> memory() const;

 private:
  using Body = std::function<void(Transport&, Executor&)>;
  void start();
  void stop() noexcept;
  void run(const Body& body);
  // Runs one call of an executor when all ranks have come so far, and measures it.
  template <typename Call>
  void measure(Transport& transport, const Executor& executor, const Call& call);
  void check_direction(std::size_t mask, Direction direction) const;

  const std::shared_ptr<const Plan> plan_;
  const AttentionKernel& kernel_;
  const InprocOptions options_;
  std::vector<std::unique_ptr<Transport>> group_;  // empty after a call that failed
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<RankCall> calls_;
};

}  // namespace contextile
