// Attention on whole tensors: it has the same bits as executors driven by hand, is right by the
// oracle, and reports clearly what does not fit.

#include "contextile/inproc_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/extend/kernel.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "kernel/host_tensor.h"
#include "runtime/check/run_error.h"
#include "runtime/check/single_device.h"
#include "runtime/executor/plan_execution.h"
#include "support/batches.h"
#include "support/message_of.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using PlanPtr = std::shared_ptr<const Plan>;

// The arrays of a user: contiguous, in the plan's dtype.
struct Arrays {
  HostTensor q, k, v, dout;
  std::vector<float> sink;

  [[nodiscard]] AttentionInputs inputs() const { return {q.view(), k.view(), v.view(), sink}; }
};

Arrays arrays_of(const BatchTensors& batch, const AttentionShape& shape) {
  const auto make = [&](const std::vector<double>& array, std::int32_t heads, std::int32_t dim) {
    return tensor_of(array, shape.dtype, batch.tokens, heads, dim);
  };
  return {make(batch.q, shape.q_heads, shape.head_dim),
          make(batch.k, shape.kv_heads, shape.head_dim),
          make(batch.v, shape.kv_heads, shape.value_dim),
          make(batch.dout, shape.q_heads, shape.value_dim),
          {batch.sink.begin(), batch.sink.end()}};
}

OracleResult result_of(const AttentionOutput& output, const AttentionGradients& gradients) {
  return {doubles_of(output.out_THD),   {output.lse_TH.begin(), output.lse_TH.end()},
          doubles_of(gradients.dq_THD), doubles_of(gradients.dk_THD),
          doubles_of(gradients.dv_THD), {gradients.dsink_H.begin(), gradients.dsink_H.end()}};
}

// Checks every error against the bound that run_plan holds plans to.
void expect_right(const Plan& plan, std::size_t m, const BatchTensors& batch,
                  const OracleResult& found) {
  const Mask mask = whole_mask(plan, m);
  const AttentionKernel& kernel = preferred_kernel(plan.shape.dtype);
  const OracleResult truth = oracle(batch, plan.shape, mask, Passes::kForwardBackward);
  const OracleResult single =
      run_single_device(batch, plan.shape, mask, kernel, Passes::kForwardBackward);
  for (const RunError& error :
       compare_results({batch, plan.shape, truth, found, single, wire_rounding(plan, m),
                        kernel.weight_dtype(plan.shape.dtype), true, true})) {
    EXPECT_LE(error.error, error.bound) << error.array;
  }
}

struct Seen {
  std::set<std::string> strategies;
  std::set<Dtype> dtypes;
  int several_rounds = 0;
  int head_groups = 0;
  int empty_ranks = 0;
  int sinks = 0;
};

void note(const NamedPlan& named, Seen& seen) {
  const Plan& plan = named.plan;
  seen.strategies.insert(plan.strategy);
  seen.dtypes.insert(plan.shape.dtype);
  if (plan.rounds.size() > 1) ++seen.several_rounds;
  if (plan.rounds[0].head_groups > 1) ++seen.head_groups;
  if (plan.shape.sink) ++seen.sinks;
  for (std::int32_t r = 0; r < plan.num_devices(); ++r) {
    if (num_local_tokens(plan, Rank{r}) == 0) ++seen.empty_ranks;
  }
}

// Executors driven by hand, which share no scattering and no gathering with the tested class.
void expect_same_as_executors(const PlanPtr& plan) {
  const BatchTensors batch = inputs_of(*plan, 0);
  const Arrays arrays = arrays_of(batch, plan->shape);
  InprocAttention attention(plan);
  for (std::size_t m = 0; m < plan->rounds[0].masks.size(); ++m) {
    const AttentionOutput output =
        attention.forward(arrays.inputs(), plan->rounds[0].masks[m].name);
    const AttentionGradients gradients =
        attention.backward(arrays.inputs(), output, arrays.dout.view());
    const OracleResult found = result_of(output, gradients);
    OracleResult by_hand = execute(plan, m);
    for (double& share : by_hand.dsink) share = static_cast<float>(share);
    EXPECT_EQ(first_difference(found, by_hand), "");
    expect_right(*plan, m, batch, found);
  }
}

TEST(InprocAttention, EqualsExecutorsAndTheOracleForEveryStrategy) {
  Seen seen;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    Chance chance(seed);
    BatchLimits limits;
    limits.homes = true;
    RandomBatch batch = random_batch_of(chance, limits);
    AttentionShape& shape = batch.workload.shape;
    shape.head_dim = 32;
    shape.value_dim = chance.one_in(3) ? 16 : 32;
    shape.dtype = std::array{Dtype::kF32, Dtype::kBf16, Dtype::kF16}[seed % 3];
    shape.sink = chance.one_in(3);
    for (NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ": " + batch.text);
      const ProgramPair& pair = named.plan.rounds[0].devices[0].programs[0];
      if (!pair.forward || !pair.backward) continue;
      note(named, seen);
      expect_same_as_executors(std::make_shared<const Plan>(std::move(named.plan)));
    }
  }
  for (const Strategy* strategy : strategies()) {
    EXPECT_TRUE(seen.strategies.contains(std::string(strategy->name()))) << strategy->name();
  }
  EXPECT_EQ(seen.dtypes.size(), 3);
  EXPECT_GT(seen.several_rounds, 0);
  EXPECT_GT(seen.head_groups, 0);
  EXPECT_GT(seen.empty_ranks, 0);
  EXPECT_GT(seen.sinks, 0);
}

// ------------------------------------------------------------------------- a plan of two masks

AttentionShape small_shape(Dtype dtype = Dtype::kF32) {
  return {.q_heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 8, .dtype = dtype};
}

PlannedBatch plan_of_two_masks(const PlanOptions& options = {}) {
  const std::vector<std::int64_t> lengths = {37, 5, 22};
  const std::vector<MaskUse> masks = {parse_mask_use("causal"), parse_mask_use("near=full")};
  return plan_batch(make_workload(lengths, small_shape(), masks), cluster_of(1, 3), {"zigzag"},
                    options);
}

struct TwoMasks {
  PlanPtr plan = plan_of_two_masks().plan;
  BatchTensors batch = inputs_of(*plan, 3);
  Arrays arrays = arrays_of(batch, plan->shape);
};

TEST(InprocAttention, AMaskIsChosenByItsName) {
  const TwoMasks two;
  InprocAttention attention(two.plan);
  for (const std::size_t m : {1U, 0U}) {
    const std::string name = two.plan->rounds[0].masks[m].name;
    const AttentionOutput output = attention.forward(two.arrays.inputs(), name);
    EXPECT_EQ(output.mask, name);
    const AttentionGradients gradients =
        attention.backward(two.arrays.inputs(), output, two.arrays.dout.view());
    expect_right(*two.plan, m, two.batch, result_of(output, gradients));
  }
  EXPECT_EQ(find_mask(*two.plan, "near"), 1);
  EXPECT_THAT(message_of([&] { return attention.forward(two.arrays.inputs()).mask; }),
              HasSubstr("one of the plan's (causal, near), found ''"));
  EXPECT_THAT(message_of([&] { return attention.forward(two.arrays.inputs(), "neat").mask; }),
              AllOf(HasSubstr("found 'neat'"), HasSubstr("did you mean 'near'?")));
}

TEST(InprocAttention, CallsOfManyLayersDoNotMixAndOutputsMayBeHeld) {
  const TwoMasks two;
  const BatchTensors other = inputs_of(*two.plan, 4);
  const Arrays others = arrays_of(other, two.plan->shape);
  InprocAttention attention(two.plan);
  const AttentionOutput first = attention.forward(two.arrays.inputs(), "causal");
  const AttentionOutput second = attention.forward(others.inputs(), "near");
  InprocAttention moved(std::move(attention));
  const AttentionGradients of_second = moved.backward(others.inputs(), second, others.dout.view());
  const AttentionGradients of_first =
      moved.backward(two.arrays.inputs(), first, two.arrays.dout.view());
  expect_right(*two.plan, 0, two.batch, result_of(first, of_first));
  expect_right(*two.plan, 1, other, result_of(second, of_second));
}

TEST(InprocAttention, TakesAnyArrayAndAnyStrides) {
  const auto plan = std::make_shared<const Plan>(example_plan());  // bf16: q [8, 2, 4], k [8, 1, 4]
  const BatchTensors batch = inputs_of(*plan, 0);
  const Arrays arrays = arrays_of(batch, plan->shape);
  InprocAttention attention(plan);
  const AttentionOutput expected = attention.forward(arrays.inputs());
  std::vector<Bf16> q;
  for (const double value : batch.q) q.emplace_back(static_cast<float>(value));
  std::vector<std::uint16_t> wide(8 * 10);  // rows of k and v side by side, and two more
  for (std::size_t t = 0; t < 8; ++t) {
    for (std::size_t d = 0; d < 4; ++d) {
      wide[t * 10 + d] = Bf16(static_cast<float>(batch.k[t * 4 + d])).bits;
      wide[t * 10 + 4 + d] = Bf16(static_cast<float>(batch.v[t * 4 + d])).bits;
    }
  }
  const TensorView k = {wide.data(), Dtype::kBf16, 8, 1, 4, 10, 4};
  const TensorView v = {wide.data() + 4, Dtype::kBf16, 8, 1, 4, 10, 4};
  const AttentionOutput found = attention.forward({view_of(q, 8, 2, 4), k, v});
  EXPECT_EQ(doubles_of(found.out_THD), doubles_of(expected.out_THD));
  EXPECT_EQ(found.lse_TH, expected.lse_TH);
}

TEST(InprocAttention, CountsTheBytesOfTheLastCallByRank) {
  const TwoMasks two;
  InprocAttention attention(two.plan);
  const auto sent = [&] {
    std::int64_t bytes = 0;
    for (const ExecutionStats& stats : attention.last_stats()) bytes += stats.sent_bytes;
    return bytes;
  };
  EXPECT_EQ(attention.last_stats().size(), 3);
  EXPECT_EQ(sent(), 0);
  const RunReport run = run_plan(two.plan);
  const AttentionOutput output = attention.forward(two.arrays.inputs(), "near");
  EXPECT_GT(sent(), 0);
  EXPECT_EQ(sent(), run.masks[1].predicted_bytes_forward);
  static_cast<void>(attention.backward(two.arrays.inputs(), output, two.arrays.dout.view()));
  EXPECT_EQ(sent(), run.masks[1].predicted_bytes_backward);
}

// ---------------------------------------------------------------------------- what is refused

TEST(InprocAttention, InputsThatDoNotFitThePlanAreNamed) {
  const TwoMasks two;
  InprocAttention attention(two.plan);
  const auto refusal = [&](const std::function<void(AttentionInputs&)>& change) {
    AttentionInputs inputs = two.arrays.inputs();
    change(inputs);
    return message_of([&] { return attention.forward(inputs, "causal").mask; });
  };
  EXPECT_EQ(refusal([](AttentionInputs&) {}), "no error");
  EXPECT_THAT(refusal([](AttentionInputs& x) { std::swap(x.q_THD, x.k_THD); }),
              HasSubstr("forward: expected q of shape [64, 4, 8], found [64, 2, 8]"));
  EXPECT_THAT(refusal([](AttentionInputs& x) { x.v_THD.tokens = 63; }),
              HasSubstr("expected v of shape [64, 2, 8], found [63, 2, 8]"));
  EXPECT_THAT(refusal([](AttentionInputs& x) { x.k_THD.dtype = Dtype::kBf16; }),
              HasSubstr("expected k as f32, found bf16"));
  EXPECT_THAT(refusal([](AttentionInputs& x) { x.q_THD.data = nullptr; }),
              HasSubstr("expected data of q, found none"));
  const std::vector<float> sink(4);
  EXPECT_THAT(refusal([&](AttentionInputs& x) { x.sink_H = sink; }),
              HasSubstr("expected 0 values of sink, found 4"));
}

TEST(InprocAttention, WhatBackwardIsGivenMustBeOfThatForward) {
  const TwoMasks two;
  InprocAttention attention(two.plan);
  const auto refusal = [&](const std::function<void(AttentionOutput&, TensorView&)>& change) {
    AttentionOutput output = attention.forward(two.arrays.inputs(), "causal");
    TensorView dout = two.arrays.dout.view();
    change(output, dout);
    return message_of(
        [&] { return attention.backward(two.arrays.inputs(), output, dout).dq_THD.tokens(); });
  };
  EXPECT_EQ(refusal([](AttentionOutput&, TensorView&) {}), "no error");
  EXPECT_THAT(refusal([](AttentionOutput&, TensorView& dout) { dout.heads = 2; }),
              HasSubstr("backward: expected dout of shape [64, 4, 8], found [64, 2, 8]"));
  EXPECT_THAT(refusal([](AttentionOutput& o, TensorView&) { o.out_THD = HostTensor(); }),
              HasSubstr("expected out of shape [64, 4, 8], found [0, 0, 0]"));
  EXPECT_THAT(refusal([](AttentionOutput& o, TensorView&) { o.lse_TH.pop_back(); }),
              HasSubstr("lse of [64, 4], found 255 values"));
  EXPECT_THAT(refusal([](AttentionOutput& o, TensorView&) { o.saved.pop_back(); }),
              HasSubstr("saved on 3 ranks, found 2"));
  EXPECT_THAT(refusal([](AttentionOutput& o, TensorView&) { o.mask = "far"; }),
              HasSubstr("(causal, near), found 'far'"));
}

TEST(InprocAttention, BackwardAsksForTheInputsThatForwardKept) {
  const auto plan = std::make_shared<const Plan>(example_plan());  // retains a query
  const Arrays arrays = arrays_of(inputs_of(*plan, 0), plan->shape);
  InprocAttention attention(plan);
  AttentionOutput output = attention.forward(arrays.inputs());
  output.saved.clear();
  const auto backward = [&] {
    return attention.backward(arrays.inputs(), output, arrays.dout.view()).dq_THD.tokens();
  };
  EXPECT_THAT(message_of(backward), HasSubstr("expected the 16 bytes that forward"));
  // And the ranks work again after a call that failed on them.
  output = attention.forward(arrays.inputs());
  EXPECT_EQ(backward(), 8);
}

TEST(InprocAttention, ADirectionThePlanLacksIsRefused) {
  const TwoMasks two;
  const PlanPtr forward_only = plan_of_two_masks({.backward = false}).plan;
  InprocAttention attention(forward_only);
  const AttentionOutput output = attention.forward(two.arrays.inputs(), "near");
  EXPECT_THAT(message_of([&] {
                return attention.backward(two.arrays.inputs(), output, two.arrays.dout.view())
                    .dq_THD.tokens();
              }),
              HasSubstr("expected a plan with a backward of mask 'near', found none"));
}

TEST(InprocAttention, ABackwardWithoutAForwardTakesAnOutputMadeByHand) {
  const TwoMasks two;
  Plan plan = *two.plan;
  for (DeviceProgram& device : plan.rounds[0].devices) {
    for (ProgramPair& pair : device.programs) {
      ASSERT_TRUE(pair.forward->retain.empty());
      pair.forward.reset();
    }
  }
  const Mask mask = whole_mask(plan, 0);
  const OracleResult truth = oracle(two.batch, plan.shape, mask, Passes::kForwardBackward);
  const AttentionOutput output = {"causal",
                                  tensor_of(truth.out, Dtype::kF32, 64, 4, 8),
                                  {truth.lse.begin(), truth.lse.end()},
                                  {}};
  InprocAttention attention(std::make_shared<const Plan>(plan));
  const AttentionGradients gradients =
      attention.backward(two.arrays.inputs(), output, two.arrays.dout.view());
  expect_right(*two.plan, 0, two.batch, result_of(output, gradients));
  EXPECT_THAT(message_of([&] { return attention.forward(two.arrays.inputs(), "causal").mask; }),
              HasSubstr("expected a plan with a forward of mask 'causal', found none"));
}

TEST(InprocAttention, APlanThatDoesNotVerifyIsNotExecuted) {
  const auto refusal = [](const PlanPtr& plan) {
    try {
      const InprocAttention attention(plan);
    } catch (const InvalidPlan& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  Plan plan = example_plan();
  EXPECT_EQ(refusal(std::make_shared<const Plan>(plan)), "no error");
  for (Instruction& instruction : plan.rounds[0].devices[1].programs[0].forward->instructions) {
    // The remote partial is forgotten: it would run, and be wrong.
    if (auto* reduce = std::get_if<ReduceOp>(&instruction)) reduce->srcs.pop_back();
  }
  const std::string message = refusal(std::make_shared<const Plan>(plan));
  EXPECT_THAT(message, AllOf(HasSubstr("a plan that verifies, found "),
                             HasSubstr(" violations, the first: ")));
  plan = example_plan();
  plan.rounds[0].devices.pop_back();
  EXPECT_THAT(refusal(std::make_shared<const Plan>(plan)), HasSubstr("2 devices, found 1"));
  plan.rounds.clear();
  EXPECT_THAT(refusal(std::make_shared<const Plan>(plan)), HasSubstr("a plan with a round"));
  EXPECT_THROW(InprocAttention(nullptr), InvalidArgument);
  EXPECT_THROW(InprocAttention(std::make_shared<const Plan>(example_plan()), {.kernel = "none"}),
               InvalidArgument);
}

TEST(InprocAttention, APlanLargerThanThisMachineIsRefusedBeforeAnythingIsAllocated) {
  const std::vector<std::int64_t> lengths = {std::int64_t{1} << 24};
  AttentionShape huge;
  huge.q_heads = huge.kv_heads = 1 << 12;  // 2^24 tokens x 2^13 heads x 256 x 2 bytes x 4
  const PlannedBatch planned =
      plan_batch(make_workload(lengths, huge), cluster_of(1, 2), {"zigzag"});
  ASSERT_TRUE(planned.verified.ok());
  EXPECT_THAT(message_of([&] { return InprocAttention(planned.plan).last_stats().size(); }),
              AllOf(HasSubstr("attention: expected a batch that fits this machine's"),
                    HasSubstr("found 16777216 tokens")));
}

}  // namespace
}  // namespace contextile
