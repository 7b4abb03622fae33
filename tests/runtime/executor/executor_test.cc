// The executor, compared with the oracle, plans by hand, calls in flight, and everything that can
// go wrong.

#include "contextile/advanced/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "kernel/cpu/reference_rows.h"
#include "kernel/host_tensor.h"
#include "runtime/check/layer_tensors.h"
#include "runtime/check/run_error.h"
#include "runtime/executor/begin_cut.h"
#include "runtime/executor/executor_testing.h"
#include "runtime/executor/plan_execution.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using PlanPtr = std::shared_ptr<const Plan>;

PlanPtr shared_plan(Plan plan) { return std::make_shared<const Plan>(std::move(plan)); }

Plan example_in_f32() {
  Plan plan = example_plan();
  plan.shape.dtype = Dtype::kF32;
  for (DeviceProgram& device : plan.rounds[0].devices) {
    for (Program* program : {&*device.programs[0].forward, &*device.programs[0].backward}) {
      for (Instruction& instruction : program->instructions) {
        auto* launch = std::get_if<LaunchOp>(&instruction);
        if (launch == nullptr) continue;
        for (TransferEnd& end : launch->sends) end.wire = Dtype::kF32;
        for (TransferEnd& end : launch->recvs) end.wire = Dtype::kF32;
      }
    }
  }
  return plan;
}

void expect_equals_oracle(const PlanPtr& plan, std::size_t mask, double bound) {
  const OracleResult found = execute(plan, mask);
  const OracleResult truth =
      oracle(inputs_of(*plan, 0), plan->shape, whole_mask(*plan, mask), Passes::kForwardBackward);
  EXPECT_LE(relative_error(found.out, truth.out, 0), bound);
  EXPECT_LE(relative_error(found.lse, truth.lse, 1), 2e-6);
  EXPECT_LE(relative_error(found.dq, truth.dq, 0.1), bound);
  EXPECT_LE(relative_error(found.dk, truth.dk, 0.1), bound);
  EXPECT_LE(relative_error(found.dv, truth.dv, 0), bound);
}

TEST(Executor, RunsTheExamplePlanExactly) {
  expect_equals_oracle(shared_plan(example_in_f32()), 0, 2e-6);
  expect_equals_oracle(shared_plan(example_plan()), 0, 1e-2);
}

TEST(Executor, GivesTheSameBitsForAnyStridesOfTheCallersTensors) {
  // q and dout head-major (a token's heads far apart), k inside rows that are too wide.
  const PlanPtr plan = shared_plan(example_in_f32());
  const BatchTensors batch = inputs_of(*plan, 0);
  OracleResult found = empty_result(batch.tokens, plan->shape);
  run_inproc(2, [&](Transport& transport) {
    Executor executor(transport, *kernels().front());
    executor.prepare(plan);
    LayerTensors layer(batch, plan->shape, local_tokens(*plan, transport.rank()));
    const auto rows = static_cast<std::int64_t>(layer.tokens.size());
    std::vector<std::vector<float>> memory;
    const auto restride = [&](HostTensor& tensor, std::int64_t token_stride,
                              std::int64_t head_stride) {
      TensorView view = tensor.view();
      memory.emplace_back(static_cast<std::size_t>(token_stride * rows + head_stride * view.heads));
      TensorView strided = view;
      strided.data = memory.back().data();
      strided.token_stride = token_stride;
      strided.head_stride = head_stride;
      reference_rows().convert(strided, view);
      return strided;
    };
    ForwardTensors forward = layer.forward();
    forward.q_THD = restride(layer.q, 4, 4 * rows);
    forward.k_THD = restride(layer.k, 11, 4);
    const Saved saved = executor.forward(0, forward);
    BackwardTensors backward = layer.backward();
    backward.q_THD = forward.q_THD;
    backward.k_THD = forward.k_THD;
    backward.dout_THD = restride(layer.dout, 4, 4 * rows);
    executor.backward(0, backward, saved);
    layer.put_forward(found);
    layer.put_backward(found);
  });
  EXPECT_EQ(first_difference(found, execute(plan, 0)), "");
}

// ---------------------------------------------------------------------------- roles, no work

// Every tile runs at the owner of its queries, after all its keys and values have been fetched.
ArrangedDirection gather_keys(const ArrangedRound& round, Direction direction) {
  ArrangedDirection arranged;
  std::vector<std::pair<BlockId, Rank>> fetched;
  for (const Tile& tile : TileIndex(round.masks[0], round.blocks).tiles()) {
    const Rank device = round.owners[tile.q_block.index()];
    const Rank owner = round.owners[tile.kv_block.index()];
    arranged.tiles.push_back({tile.q_block, tile.kv_block, GroupId{0}, device, 1, tile.pairs});
    const std::pair<BlockId, Rank> unit{tile.kv_block, device};
    if (owner == device || std::find(fetched.begin(), fetched.end(), unit) != fetched.end()) {
      continue;
    }
    fetched.push_back(unit);
    arranged.transfers.push_back({Kind::kKv, tile.kv_block, GroupId{0}, owner, device, 0, 1});
    if (direction == Direction::kBackward) {
      arranged.transfers.push_back({Kind::kDkv, tile.kv_block, GroupId{0}, device, owner, 2, 3});
    }
  }
  return arranged;
}

PlanPtr plan_with_roles(bool with_sink) {
  Workload workload;
  workload.sequences = {{0, 15}};
  workload.shape = {
      .q_heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 8, .dtype = Dtype::kF32};
  workload.shape.sink = with_sink;
  // Tokens 0 … 4 are a cached prefix, 5 … 8 ordinary, 9 … 11 queries only; row 11 attends nothing,
  // and the block of 12 … 14 neither attends nor is attended.
  workload.masks = {{"cached", 1, Mask{{{{5, 9}, {0, 9}, -kUnbounded, 0}, {{9, 11}, {2, 9}}}}}};
  workload.roles = {{{0, 5}, Role::kKvOnly}, {{9, 12}, Role::kQOnly}};
  workload.positions = {{{0, 15}, 0, 0}};
  Cluster cluster;
  cluster.devices_per_node = 3;  // rank 2 owns nothing
  ArrangedRound round;
  round.blocks.add({0, 5}, Role::kKvOnly);
  round.blocks.add({5, 9});
  round.blocks.add({9, 12}, Role::kQOnly);
  round.blocks.add({12, 15});
  round.owners = {Rank{0}, Rank{1}, Rank{0}, Rank{1}};
  round.masks = {workload.masks[0].mask};
  round.programs.push_back(
      {gather_keys(round, Direction::kForward), gather_keys(round, Direction::kBackward), {}});
  Arrangement arrangement;
  arrangement.strategy = "roles";
  arrangement.rounds.push_back(round);
  return shared_plan(build_plan(workload, cluster, arrangement));
}

TEST(Executor, BlocksWithoutQueriesKeysOrTilesComeOutEmpty) {
  for (const bool with_sink : {false, true}) {
    SCOPED_TRACE(with_sink ? "with sink" : "without sink");
    const PlanPtr plan = plan_with_roles(with_sink);
    expect_equals_oracle(plan, 0, 2e-6);
    const OracleResult found = execute(plan, 0);
    const BatchTensors batch = inputs_of(*plan, 0);
    for (const std::size_t token : {0U, 4U, 11U, 12U, 14U}) {
      for (std::size_t h = 0; h < 4; ++h) {
        EXPECT_EQ(found.lse[token * 4 + h],
                  with_sink ? batch.sink[h] : -std::numeric_limits<double>::infinity());
        EXPECT_EQ(found.out[(token * 4 + h) * 8], 0);
        EXPECT_EQ(found.dq[(token * 4 + h) * 8], 0);
      }
    }
    for (const std::size_t token : {9U, 11U, 12U, 14U}) EXPECT_EQ(found.dk[token * 2 * 8], 0);
    const RunReport report = run_plan(plan);
    EXPECT_TRUE(report.ok()) << report_text(report);
  }
}

// ------------------------------------------------------------------------------ many calls

TEST(Executor, ServesManyCallsAndPlansOneAfterAnother) {
  const PlanPtr small = shared_plan(example_in_f32());
  const PlanPtr other = plan_with_roles(false);
  Plan two_ranks = *other;  // the same work on the devices that have any
  two_ranks.devices_per_node = 2;
  two_ranks.rounds[0].devices.pop_back();
  const PlanPtr large = shared_plan(two_ranks);
  for (const PlanPtr& plan : {small, large}) {
    const OracleResult alone = execute(plan, 0);
    const BatchTensors batch = inputs_of(*plan, 0);
    OracleResult again = empty_result(batch.tokens, plan->shape);
    run_inproc(2, [&](Transport& transport) {
      Executor executor(transport, *kernels().front());
      for (const PlanPtr& current : {small, large, small, plan}) {
        executor.prepare(current);
        LayerTensors layer(inputs_of(*current, 0), current->shape,
                           local_tokens(*current, transport.rank()));
        for (int call = 0; call < 2; ++call) {
          const Saved saved = executor.forward(0, layer.forward());
          executor.backward(0, layer.backward(), saved);
        }
        if (current != plan) continue;
        layer.put_forward(again);
        layer.put_backward(again);
      }
    });
    EXPECT_EQ(first_difference(again, alone), "");
  }
}

TEST(Executor, TwoCallsInFlightGiveTheSameBitsAsOneAfterAnother) {
  int executed = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Chance chance(seed);
    BatchLimits limits;
    limits.ranks = {2, 3, 4};
    const RandomBatch batch = random_batch_of(chance, limits);
    for (NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ": " + batch.text);
      const PlanPtr plan = shared_plan(std::move(named.plan));
      const ProgramPair& pair = plan->rounds[0].devices[0].programs[0];
      if (!pair.forward || !pair.backward) continue;
      ++executed;
      const BatchTensors first = inputs_of(*plan, 0);
      const BatchTensors second = inputs_of(*plan, 1);
      OracleResult found_first = empty_result(first.tokens, plan->shape);
      OracleResult found_second = empty_result(first.tokens, plan->shape);
      InprocOptions options;
      options.max_delay_us = 200;
      options.delay_seed = seed;
      run_inproc(
          plan->num_devices(),
          [&](Transport& transport) {
            Executor executor(transport, preferred_kernel(plan->shape.dtype));
            ExecutorTesting::poison_buffers(executor);
            executor.prepare(plan);
            const std::vector<std::int64_t> tokens = local_tokens(*plan, transport.rank());
            LayerTensors a(first, plan->shape, tokens);
            LayerTensors b(second, plan->shape, tokens);
            // With a number the ranks compare their calls; one that is advanced has sent all.
            Executor::Handle forward_a = executor.begin_forward(0, a.forward(), 7);
            Executor::Handle forward_b = executor.begin_forward(0, b.forward());
            if (seed % 2 == 0) executor.advance(forward_a);
            if (seed % 3 == 0) executor.advance(forward_b);
            const Saved saved_a = executor.finish(std::move(forward_a));
            Executor::Handle backward_a = executor.begin_backward(0, a.backward(), saved_a);
            if (seed % 2 == 0) executor.advance(backward_a);
            const Saved saved_b = executor.finish(std::move(forward_b));
            static_cast<void>(executor.finish(std::move(backward_a)));
            executor.backward(0, b.backward(), saved_b);
            a.put_forward(found_first);
            a.put_backward(found_first);
            b.put_forward(found_second);
            b.put_backward(found_second);
          },
          options);
      ExecutionOptions alone;
      EXPECT_EQ(first_difference(found_first, execute(plan, 0, alone)), "");
      alone.seed = 1;
      EXPECT_EQ(first_difference(found_second, execute(plan, 0, alone)), "");
    }
  }
  EXPECT_GT(executed, 30);
}

// A program of launches (send to or receive from one peer) and waits.
struct Step {
  enum class What { kSend, kReceive, kWait } what;
  std::int32_t peer_or_id;
};
Program program_of_steps(const std::vector<Step>& steps) {
  Program program;
  std::int32_t id = 0;
  for (const Step& step : steps) {
    if (step.what == Step::What::kWait) {
      program.instructions.emplace_back(WaitOp{step.peer_or_id});
      continue;
    }
    LaunchOp launch;
    launch.id = id++;
    TransferEnd end;
    end.peer = Rank{step.peer_or_id};
    (step.what == Step::What::kSend ? launch.sends : launch.recvs).push_back(end);
    program.instructions.emplace_back(launch);
  }
  return program;
}

TEST(BeginCut, BeginsNoMessageWhoseOtherEndComesAfterAWait) {
  using enum Step::What;
  PlanRound round;
  const auto add_rank = [&](const std::vector<Step>& steps) {
    round.devices.push_back({{}, {ProgramPair{program_of_steps(steps), std::nullopt}}});
  };
  // Rank 1 waits for rank 2 before it takes rank 0's second message, so rank 0 may begin only one.
  // Then rank 3 must not begin to receive what rank 0 sends it after that.
  add_rank({{kSend, 1}, {kSend, 1}, {kSend, 3}, {kWait, 0}, {kWait, 1}, {kWait, 2}});
  add_rank({{kReceive, 0}, {kReceive, 2}, {kWait, 1}, {kReceive, 0}, {kWait, 0}, {kWait, 2}});
  add_rank({{kSend, 1}, {kWait, 0}});
  add_rank({{kReceive, 0}, {kWait, 0}});
  const auto cut = [&](std::int32_t rank) {
    return begin_cut(round, 0, Direction::kForward, Rank{rank});
  };
  EXPECT_EQ(cut(0), 1);
  EXPECT_EQ(cut(1), 2);
  EXPECT_EQ(cut(2), 1);
  EXPECT_EQ(cut(3), 0);
  EXPECT_EQ(begin_cut(round, 0, Direction::kBackward, Rank{0}), 0);
}

TEST(Executor, CountsBytesAndMemory) {
  const PlanPtr plan = shared_plan(example_plan());
  run_inproc(2, [&](Transport& transport) {
    const Rank rank = transport.rank();
    Executor executor(transport, *kernels().front());
    EXPECT_EQ(executor.memory().staging_bytes, 0);
    executor.prepare(plan);
    const DeviceMemory forward = device_memory(*plan, 0, 0, Direction::kForward, rank);
    const DeviceMemory backward = device_memory(*plan, 0, 0, Direction::kBackward, rank);
    const DeviceMemory& larger =
        forward.total_bytes() > backward.total_bytes() ? forward : backward;
    EXPECT_EQ(executor.memory().staging_bytes, larger.staging_bytes);
    EXPECT_EQ(executor.memory().accumulator_bytes, larger.accumulator_bytes);
    EXPECT_EQ(executor.memory().conversion_bytes, larger.conversion_bytes);
    EXPECT_GT(executor.memory().workspace_bytes, 0);
    LayerTensors layer(inputs_of(*plan, 0), plan->shape, local_tokens(*plan, rank));
    const Saved saved = executor.forward(0, layer.forward());
    EXPECT_EQ(saved.size_bytes(), rank.value == 0 ? 2 * 4 * 2 : 0);  // one token's query, bf16
    const std::int64_t query = 2 * 4 * 2;
    const std::int64_t output = 2 * (4 * 4 + 4);
    EXPECT_EQ(executor.last_stats().sent_bytes, rank.value == 0 ? output : query);
    EXPECT_EQ(executor.last_stats().received_bytes, rank.value == 0 ? query : output);
    EXPECT_GT(executor.last_stats().total_s, 0);
    executor.backward(0, layer.backward(), saved);
    EXPECT_EQ(executor.last_stats().sent_bytes, rank.value == 0 ? 2 * 4 * 4 : 2 * (4 * 2 + 8));
  });
}

TEST(Executor, SaysThatAnotherThreadIsInACall) {
  const auto group = make_inproc_group(2);
  const auto plan = std::make_shared<const Plan>(example_plan());
  std::vector<Executor> executors;
  for (const auto& end : group) executors.emplace_back(*end, *kernels().front());
  std::atomic<int> num_refused = 0;
  std::string message;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {  // one waits for rank 1, whichever came first
    threads.emplace_back([&] {
      try {
        executors[0].prepare(plan);
      } catch (const InvalidArgument& error) {
        message = error.what();
        num_refused = 1;
      }
    });
  }
  while (num_refused == 0) std::this_thread::yield();
  executors[1].prepare(plan);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(message,
            "rank 0, prepare: expected one call at a time, found a call of another thread under "
            "way on this transport");
}

TEST(Executor, ThreadsOfARankMayTakeTurns) {
  const auto plan = std::make_shared<const Plan>(example_plan());
  run_inproc(2, [&](Transport& transport) {
    Executor executor(transport, *kernels().front());
    executor.prepare(plan);
    std::thread([&] { executor.prepare(plan); }).join();
    executor.prepare(plan);
  });
}

}  // namespace
}  // namespace contextile
