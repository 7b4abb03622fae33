// Runs the ranks of a plan on tensors of the whole batch. The plan need not be verified: checked
// runs execute it and then compare the results. The engine of InprocAttention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/transport.h"
#include "contextile/inproc_attention.h"
#include "contextile/plan.h"
#include "kernel/row_memory.h"

namespace contextile {

// One rank's part of a call.
struct RankCall {
  ExecutionStats stats;
  std::int64_t sent_bytes = 0;  // as the transport counted
};

// A plan with at least one round, the ranks that this process drives and their executors, prepared:
// all ranks, a thread each, or one rank of a group of processes that make the same calls. Every
// process holds the inputs of the whole batch. Results are whole on the process of rank 0; other
// processes have the rows of their own rank. Masks are indices.
class PlanRanks {
 public:
  // The kernel and transports that the ranks run on. Everything it names must outlive the object.
  struct RunOn {
    const AttentionKernel& kernel;
    InprocOptions transport = {};  // of ranks in this process
    // The one rank that this process drives; null: all of them, in process.
    Transport* rank = nullptr;
    // Gives ranks of this process their kernels, and transports if it drives all; null: not used.
    RankHost* host = nullptr;
  };

  // Throws InvalidPlan when the programs do not fit together. With `rank` set it is collective, as
  // are forward and backward; it then also throws InvalidArgument when the size of the group
  // differs from the plan's. A failure of one rank ends the group (TransportError on the others).
  PlanRanks(std::shared_ptr<const Plan> plan, const RunOn& run_on,
            const ExecutorOptions& executor_options = {});

  [[nodiscard]] const Plan& plan() const { return *plan_; }
  // The same as InprocAttention's. Rows that the plan leaves out are NaN.
  [[nodiscard]] AttentionOutput forward(std::size_t mask, const AttentionInputs& inputs);
  [[nodiscard]] AttentionGradients backward(std::size_t mask, const AttentionInputs& inputs,
                                            const AttentionOutput& output,
                                            const TensorView& dout_THD);

  // By rank; every process has the values of all ranks.
  [[nodiscard]] const std::vector<RankCall>& last_calls() const { return calls_; }
  [[nodiscard]] const std::vector<ExecutorMemory>& memory() const { return memory_; }

 private:
  using Body = std::function<void(Transport&, Executor&)>;
  void start();
  void prepare();
  void stop() noexcept;
  void run(const Body& body);
  // Runs one call of an executor when all ranks have reached this point, and measures it.
  template <typename Call>
  void measure(Transport& transport, Executor& executor, const Call& call);
  void deliver(Transport& transport, const TensorView& batch, const HostTensor& local) const;
  void share_sink(Transport& transport, std::vector<std::vector<float>>& by_rank) const;
  void check_direction(std::size_t mask, Direction direction) const;

  // Gives every rank the items of all ranks; `mine` is the item of a rank in this process.
  template <typename Item>
  void share(Transport& transport, const Item& mine, std::vector<Item>& by_rank) const;

  [[nodiscard]] const AttentionKernel& kernel(Rank rank) const;

  const std::shared_ptr<const Plan> plan_;
  const RunOn run_on_;
  const ExecutorOptions executor_options_;
  Transport* const mine_;                          // null: all ranks are in this process
  std::vector<std::unique_ptr<Transport>> group_;  // of all ranks; empty after a failed call
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<RankCall> calls_;
  std::vector<ExecutorMemory> memory_;
  // Memory for the tensors of calls, by rank, if that is not this process's memory.
  struct TensorPlaces {
    std::deque<RowBuffer> forward;
    std::deque<RowBuffer> backward;
  };
  std::vector<TensorPlaces> places_;
};

}  // namespace contextile
