#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/serving/prefill.h"
#include "serving/cache/error_of.h"
#include "serving/prefill/prefill_batch.h"

namespace contextile {
namespace {

AttentionShape shape_of(Dtype dtype) {
  return {.q_heads = 8, .kv_heads = 4, .head_dim = 16, .value_dim = 12, .dtype = dtype};
}

PlannedBatch plan_of(const TestBatch& test, const std::string& strategy) {
  const Cluster cluster = load_cluster(fmt::format("dgx-h200:1x{}", test.batch().layout.num_ranks));
  return plan_batch(prefill_workload(test.batch(), test.shape()), cluster, {strategy},
                    {.backward = false});
}

TestBatch::Result run(const TestBatch& test, const PlannedBatch& planned) {
  TestBatch::Result result = empty_result(test);
  const AttentionShape& shape = test.shape();
  run_inproc(test.batch().layout.num_ranks, [&](Transport& transport) {
    const RankInputs in = test.inputs(transport.rank());
    HostTensor out(Dtype::kF32, in.q.tokens(), shape.q_heads, shape.value_dim);
    HostTensor lse(Dtype::kF32, in.q.tokens(), shape.q_heads, 1);
    PlannedPrefill prefill(transport, preferred_kernel(shape.dtype));
    prefill.prepare(planned.plan, test.batch());
    for (int layer = 0; layer < 2; ++layer) {
      prefill.attend(in.q.view(), in.k.view(), in.v.view(), in.pages.kv(),
                     {out.view(), lse.stats()});
    }
    put_result(test, transport.rank(), out, lse, result);
  });
  return result;
}

// Cached tokens have only keys and lie where the pages are: no plan gives them another owner.
void check_owners(const TestBatch& test, const Plan& plan) {
  const KvLayout& layout = test.batch().layout;
  for (std::int32_t r = 0; r < layout.num_ranks; ++r) {
    for (const TokenPosition& at : positions(plan, Rank(r))) {
      const auto sequence = static_cast<std::size_t>(at.sequence);
      if (at.position < test.batch().sequences[sequence].cached_tokens) {
        EXPECT_EQ(layout.owner(at.position), Rank(r));
      }
    }
  }
}

TEST(PrefillPlan, EveryStrategyIsAttentionOnOneDevice) {
  const std::vector<CachedAndNew> lengths = {{0, 37}, {70, 20}, {5, 3}, {131, 50}};
  for (const std::int32_t ranks : {1, 4}) {
    const TestBatch test({ranks, 4, 4}, shape_of(Dtype::kF32), lengths);
    const TestBatch::Result expected = test.expected();
    std::size_t planned_ones = 0;
    for (const Strategy* strategy : strategies()) {
      const std::string name(strategy->name());
      SCOPED_TRACE(fmt::format("{} on {} ranks", name, ranks));
      const Workload workload = prefill_workload(test.batch(), test.shape());
      const Cluster cluster = load_cluster(fmt::format("dgx-h200:1x{}", ranks));
      if (unsupported_reason(workload, cluster, {name}, {.backward = false})) continue;
      const PlannedBatch planned = plan_of(test, name);
      ASSERT_TRUE(planned.verified.ok()) << planned.verified.violations[0];
      check_owners(test, *planned.plan);
      EXPECT_LT(difference(run(test, planned), expected), 2e-6);
      ++planned_ones;
    }
    EXPECT_EQ(planned_ones, strategies().size());
  }
}

TEST(PrefillPlan, EveryInterleaveAndBothKindsOfChunks) {
  for (const std::int32_t ranks : {2, 3, 8}) {
    for (const std::int32_t interleave : {1, 2, 4}) {
      for (const PrefillChunks chunks : {PrefillChunks::kEven, PrefillChunks::kCeil}) {
        const TestBatch test({ranks, interleave, 4}, shape_of(Dtype::kF32), kUnevenLengths,
                             "lambda:2,21", chunks);
        const PlannedBatch planned = plan_of(test, "fcp");
        ASSERT_TRUE(planned.verified.ok()) << planned.verified.violations[0];
        EXPECT_LT(difference(run(test, planned), test.expected()), 2e-6);
      }
    }
  }
}

TEST(PrefillPlan, RoundsOutputsToTheDtype) {
  const TestBatch test({4, 4, 4}, shape_of(Dtype::kBf16), {{70, 20}, {0, 9}});
  EXPECT_LT(difference(run(test, plan_of(test, "dcp")), test.expected()), 0.02);
}

TEST(PrefillPlan, RefusesAPlanOfAnotherBatch) {
  const TestBatch test({2, 4, 4}, shape_of(Dtype::kF32), {{70, 20}});
  const auto error_with = [&](const TestBatch& other) {
    std::string error;
    run_inproc(2, [&](Transport& transport) {
      PlannedPrefill prefill(transport, preferred_kernel(Dtype::kF32));
      const std::string mine =
          error_of([&] { prefill.prepare(plan_of(test, "ring").plan, other.batch()); });
      if (transport.rank() == Rank(0)) error = mine;
    });
    return error;
  };
  EXPECT_EQ(error_with(test.with_lengths({{71, 19}})),
            "prefill plan: expected the home layout of the batch, found another one");
  EXPECT_EQ(error_with(test.with_lengths({{70, 19}})),
            "prefill plan: expected 1 sequences of 89 tokens, as the batch has, found 1 of 90");
}

}  // namespace
}  // namespace contextile
