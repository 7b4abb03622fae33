// Prefill by a plan of any strategy: the batch as a workload, and a rank's part of executing it.
//
//   const Workload workload = prefill_workload(batch, shape);
//   const PlannedBatch planned = plan_batch(workload, cluster, {"auto"}, {.backward = false});
//   PlannedPrefill prefill(transport, find_kernel(""));
//   prefill.prepare(planned.plan, batch);             // once a batch
//   prefill.attend(q, k, v, kv, {out.view(), lse.stats()});  // every layer
#pragma once

#include <memory>
#include <span>

#include "contextile/executor.h"
#include "contextile/plan.h"
#include "contextile/prefill.h"
#include "contextile/workload.h"

namespace contextile {

// The batch: of every sequence its cached tokens, which have keys alone, then its new ones. Home
// layout: cached tokens on the ranks whose pages hold them, new ones where prefill_rows deals them.
// So a plan owns every token where it lies; what moves is what its statistics count: keys and
// values (and queries) that a strategy computes elsewhere, and outputs home. Ranges of the home
// layout end with every turn of the cache, so a small interleave makes large plans. Throws as
// prefill_work does, and where there is no token.
[[nodiscard]] Workload prefill_workload(const PrefillBatch& batch, const AttentionShape& shape);

// One rank. Collective, one thread at a time.
class PlannedPrefill {
 public:
  PlannedPrefill(Transport& transport, const AttentionKernel& kernel);
  ~PlannedPrefill();
  PlannedPrefill(PlannedPrefill&&) noexcept;
  PlannedPrefill& operator=(PlannedPrefill&&) noexcept;

  // A plan of the batch's workload with one mask. Throws InvalidArgument where the plan owns a
  // token elsewhere than the batch has it, and as Executor::prepare does.
  void prepare(std::shared_ptr<const Plan> plan, const PrefillBatch& batch);

  // As PrefillGroup::attend, but that O is rounded to the plan's dtype on its way into `out`.
  void attend(const TensorView& q_THD, const TensorView& k_THD, const TensorView& v_THD,
              const PagedKv& kv, const PartialOutput& out, std::span<const float> sink_H = {});

  [[nodiscard]] ExecutionStats last_stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contextile
