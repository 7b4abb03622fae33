// Execution by ranks that know only their own slices of the plan.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/inproc_attention.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "runtime/check/layer_tensors.h"
#include "runtime/executor/plan_execution.h"
#include "support/message_of.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using PlanPtr = std::shared_ptr<const Plan>;

// The example as it is kept.
Plan example() {
  Plan plan = example_plan();
  plan.digest = compute_digest(plan);
  return plan;
}

std::vector<PlanPtr> slices_of(const Plan& plan) {
  std::vector<PlanPtr> slices;
  for (const auto& bytes : serialize_slices(plan)) {
    slices.push_back(std::make_shared<const Plan>(deserialize_slice(bytes, "memory")));
  }
  return slices;
}

TEST(Slices, OfEveryStrategyGiveTheBitsOfTheWholePlan) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.ranks = {1, 2, 3, 4}});
    for (NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ": " + batch.text);
      const auto plan = std::make_shared<const Plan>(std::move(named.plan));
      const std::vector<PlanPtr> slices = slices_of(*plan);
      ExecutionOptions options;
      options.plan_of = [&](Rank rank) { return slices[rank.index()]; };
      for (std::size_t mask = 0; mask < plan->rounds[0].masks.size(); ++mask) {
        EXPECT_EQ(first_difference(execute(plan, mask), execute(plan, mask, options)), "");
      }
      // One rank has the whole plan.
      options.plan_of = [&](Rank rank) { return rank == Rank{0} ? plan : slices[rank.index()]; };
      EXPECT_EQ(first_difference(execute(plan, 0), execute(plan, 0, options)), "");
    }
  }
}

TEST(Slices, LetTwoCallsBeInFlight) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.ranks = {2, 3, 4}});
    for (NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ": " + batch.text);
      const auto plan = std::make_shared<const Plan>(std::move(named.plan));
      if (!plan->rounds[0].devices[0].programs[0].forward) continue;
      const std::vector<PlanPtr> slices = slices_of(*plan);
      const BatchTensors first = inputs_of(*plan, 0);
      const BatchTensors second = inputs_of(*plan, 1);
      OracleResult found_first = empty_result(first.tokens, plan->shape);
      OracleResult found_second = empty_result(first.tokens, plan->shape);
      run_inproc(plan->num_devices(),
                 [&](Transport& transport) {
                   Executor executor(transport, preferred_kernel(plan->shape.dtype));
                   executor.prepare(slices[transport.rank().index()]);
                   const auto tokens = local_tokens(*plan, transport.rank());
                   LayerTensors a(first, plan->shape, tokens);
                   LayerTensors b(second, plan->shape, tokens);
                   Executor::Handle forward_a = executor.begin_forward(0, a.forward());
                   Executor::Handle forward_b = executor.begin_forward(0, b.forward());
                   static_cast<void>(executor.finish(std::move(forward_a)));
                   static_cast<void>(executor.finish(std::move(forward_b)));
                   a.put_forward(found_first);
                   b.put_forward(found_second);
                 },
                 {.max_delay_us = 200, .delay_seed = seed});
      EXPECT_EQ(found_first.out, execute(plan, 0).out);
      ExecutionOptions seed_one;
      seed_one.seed = 1;
      EXPECT_EQ(found_second.out, execute(plan, 0, seed_one).out);
    }
  }
}

TEST(Slices, OfAnotherRankOrPlanAreRefused) {
  const Plan plan = example();
  const std::vector<PlanPtr> slices = slices_of(plan);
  const auto message_with = [&](const PlanPtr& of_0, const PlanPtr& of_1) {
    return message_of<InvalidPlan>([&] {
      run_inproc(2, [&](Transport& transport) {
        Executor executor(transport, *kernels().front());
        executor.prepare(transport.rank() == Rank{0} ? of_0 : of_1);
      });
      return 0;
    });
  };
  EXPECT_EQ(message_with(slices[1], slices[1]),
            "prepare: expected the slice of rank 0 on rank 0, found that of rank 1");
  Plan other = plan;
  other.strategy = "another";
  other.digest = compute_digest(other);
  EXPECT_NE(message_with(slices[0], slices_of(other)[1]).find("expected one plan on all ranks"),
            std::string::npos);
  EXPECT_EQ(message_with(slices[0], slices[1]), "no error");
}

TEST(Slices, AreNoPlanForAllRanks) {
  EXPECT_THROW(InprocAttention attention(slices_of(example())[0]), InvalidPlan);
}

}  // namespace
}  // namespace contextile
