// Bias and dropout of whole plans, compared with one tile of the reference kernel, which computes
// in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/executor.h"
#include "contextile/plan.h"
#include "kernel/cpu/reference_kernel.h"
#include "kernel/host_tensor.h"
#include "kernel/row_ops.h"
#include "runtime/check/layer_tensors.h"
#include "runtime/check/run_error.h"
#include "runtime/executor/executor_testing.h"
#include "runtime/executor/plan_execution.h"
#include "runtime/executor/unit_view.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using PlanPtr = std::shared_ptr<const Plan>;

struct Terms {
  std::vector<float> slopes, table;
  std::vector<std::int32_t> buckets;
  double dropout = 0;

  [[nodiscard]] ScoreTerms view() const {
    ScoreTerms terms;
    terms.slopes_H = slopes;
    terms.table_HB = table;
    terms.num_buckets = 3;
    terms.buckets = buckets;
    terms.first_offset = -4;
    terms.dropout = dropout;
    terms.dropout_seed = 99;
    return terms;
  }
};

Terms random_terms(Chance& chance, std::int32_t q_heads) {
  Terms terms;
  if (chance.one_in(2)) {
    for (std::int32_t h = 0; h < q_heads; ++h) {
      terms.slopes.push_back(static_cast<float>(chance.between(-8, 8)) / 16);
    }
  }
  if (chance.one_in(2) || terms.slopes.empty()) {
    for (std::int32_t i = 0; i < 3 * q_heads; ++i) {
      terms.table.push_back(static_cast<float>(chance.between(-16, 16)) / 8);
    }
    terms.buckets = {0, 0, 1, 1, 2, 2, 1};
  }
  if (chance.one_in(2)) terms.dropout = 0.25;
  return terms;
}

struct Result {
  OracleResult arrays;
  std::vector<double> dtable;
};

std::vector<TokenPlace> places_of(const Plan& plan) {
  std::vector<TokenPlace> places(static_cast<std::size_t>(plan.num_tokens()));
  for (std::int32_t rank = 0; rank < plan.num_devices(); ++rank) {
    for (const TokenPosition& token : positions(plan, Rank{rank})) {
      places[static_cast<std::size_t>(token.token)] = {static_cast<std::int32_t>(token.token),
                                                       static_cast<std::int32_t>(token.position)};
    }
  }
  return places;
}

Result on_one_tile(const Plan& plan, std::size_t mask, const Terms& terms) {
  const AttentionShape& shape = plan.shape;
  const BatchTensors batch = inputs_of(plan, 0);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(batch.tokens));
  std::iota(tokens.begin(), tokens.end(), std::int64_t{0});
  LayerTensors layer(batch, shape, tokens);
  Result result{empty_result(batch.tokens, shape), std::vector<double>(terms.table.size())};
  const AttentionKernel& kernel = reference_kernel();
  const std::vector<TokenPlace> places = places_of(plan);
  const Mask whole = whole_mask(plan, mask);
  const ScoreTerms view = terms.view();
  KernelParams params = kernel_params(shape, 1);
  params.terms = &view;
  params.dtable_HB = result.dtable;
  HostTensor o(Dtype::kF32, batch.tokens, shape.q_heads, shape.value_dim);
  HostTensor lse(Dtype::kF32, batch.tokens, shape.q_heads, 1);
  HostTensor delta(Dtype::kF32, batch.tokens, shape.q_heads, 1);
  const ForwardTile forward{layer.q.view(), layer.k.view(), layer.v.view(),
                            o.view(),       lse.stats(),    whole.bands,
                            true,           nullptr,        {0, places, places}};
  kernel.forward(params, {&forward, 1});
  kernel.row_ops().finish({o.view(), lse.stats()}, layer.sink, layer.out.view(), layer.lse.stats());
  kernel.row_ops().delta(layer.dout.view(), layer.out.view(), delta.stats());
  const BackwardTile backward{layer.q.view(),
                              layer.k.view(),
                              layer.v.view(),
                              layer.dout.view(),
                              layer.lse.stats(),
                              delta.stats(),
                              layer.dq.view(),
                              layer.dk.view(),
                              layer.dv.view(),
                              whole.bands,
                              true,
                              true,
                              nullptr,
                              {0, places, places}};
  kernel.backward(params, {&backward, 1});
  layer.put_forward(result.arrays);
  layer.put_backward(result.arrays);
  return result;
}

Result by_plan(const PlanPtr& plan, std::size_t mask, const Terms& terms) {
  const BatchTensors batch = inputs_of(*plan, 0);
  Result result{empty_result(batch.tokens, plan->shape), std::vector<double>(terms.table.size())};
  std::vector<std::vector<float>> shares(static_cast<std::size_t>(plan->num_devices()));
  run_inproc(plan->num_devices(), [&](Transport& transport) {
    Executor executor(transport, preferred_kernel(plan->shape.dtype));
    ExecutorTesting::poison_buffers(executor);
    executor.prepare(plan);
    LayerTensors layer(batch, plan->shape, local_tokens(*plan, transport.rank()));
    layer.poison_outputs();
    ForwardTensors forward = layer.forward();
    forward.terms = terms.view();
    const Saved saved = executor.forward(mask, forward);
    BackwardTensors backward = layer.backward();
    backward.terms = terms.view();
    std::vector<float>& share = shares[transport.rank().index()];
    share.assign(terms.table.size(), std::numeric_limits<float>::quiet_NaN());
    backward.dtable_HB = share;
    executor.backward(mask, backward, saved);
    layer.put_forward(result.arrays);
    layer.put_backward(result.arrays);
  });
  for (const std::vector<float>& share : shares) {
    for (std::size_t i = 0; i < share.size(); ++i) result.dtable[i] += double{share[i]};
  }
  return result;
}

TEST(ScoreTerms, OfEveryStrategyEqualThoseOfOneTile) {
  int executed = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Chance chance(seed);
    RandomBatch batch = random_batch_of(chance);
    batch.workload.shape.dtype = Dtype::kF32;
    for (NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ": " + batch.text);
      const PlanPtr plan = std::make_shared<const Plan>(std::move(named.plan));
      const ProgramPair& pair = plan->rounds[0].devices[0].programs[0];
      if (!pair.forward || !pair.backward || plan->partial_wire != Dtype::kF32) continue;
      ++executed;
      const Terms terms = random_terms(chance, plan->shape.q_heads);
      const Result found = by_plan(plan, 0, terms);
      const Result expected = on_one_tile(*plan, 0, terms);
      EXPECT_LE(relative_error(found.arrays.out, expected.arrays.out, 0.1), 1e-5);
      EXPECT_LE(relative_error(found.arrays.lse, expected.arrays.lse, 1), 1e-5);
      EXPECT_LE(relative_error(found.arrays.dq, expected.arrays.dq, 1), 1e-5);
      EXPECT_LE(relative_error(found.arrays.dk, expected.arrays.dk, 1), 1e-5);
      EXPECT_LE(relative_error(found.arrays.dv, expected.arrays.dv, 1), 1e-5);
      EXPECT_LE(relative_error(found.dtable, expected.dtable, 1), 1e-5);
    }
  }
  EXPECT_GT(executed, 30);
}

// A kernel that declares no terms.
class PlainKernel : public AttentionKernel {
 public:
  [[nodiscard]] std::string_view name() const override { return "plain"; }
  void forward(const KernelParams& /*params*/,
               std::span<const ForwardTile> /*tiles*/) const override {}
  void backward(const KernelParams& /*params*/,
                std::span<const BackwardTile> /*tiles*/) const override {}
};

TEST(ScoreTerms, AreRefusedIfTheyDoNotFit) {
  const PlanPtr plan = std::make_shared<const Plan>(example_plan());
  const auto message_of = [&](const AttentionKernel& kernel, const auto& change) {
    std::string message;
    run_inproc(plan->num_devices(), [&](Transport& transport) {
      Executor executor(transport, kernel);
      executor.prepare(plan);
      const BatchTensors batch = inputs_of(*plan, 0);
      LayerTensors layer(batch, plan->shape, local_tokens(*plan, transport.rank()));
      ForwardTensors forward = layer.forward();
      change(forward.terms);
      try {
        static_cast<void>(executor.forward(0, forward));
      } catch (const Error& error) {
        if (transport.rank() == Rank{0}) message = error.what();
      }
    });
    return message;
  };
  const auto expect_message = [&](const std::string& expected, const auto& change) {
    const std::string found = message_of(preferred_kernel(plan->shape.dtype), change);
    EXPECT_NE(found.find(expected), std::string::npos) << found;
  };
  const auto drop = [](ScoreTerms& terms) { terms.dropout = 0.5; };
  EXPECT_NE(
      message_of(PlainKernel(), drop).find("expected no dropout, which kernel plain does not"),
      std::string::npos);
  expect_message("below 1, found 1", [](ScoreTerms& terms) { terms.dropout = 1; });
  static const std::vector<float> kNumbers(5, 1);
  expect_message("a slope for each of", [](ScoreTerms& terms) { terms.slopes_H = kNumbers; });
  expect_message("biases in the table, found 5",
                 [](ScoreTerms& terms) { terms.table_HB = kNumbers; });
}

}  // namespace
}  // namespace contextile
