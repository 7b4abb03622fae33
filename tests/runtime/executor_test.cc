// The executor against the oracle, plans by hand, calls in flight, and everything that can go
// wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "contextile/runtime.h"
#include "runtime/begin_cut.h"
#include "runtime/executor_testing.h"
#include "runtime/host_tensor.h"
#include "runtime/plan_execution.h"
#include "runtime/run_error.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using PlanPtr = std::shared_ptr<const Plan>;

PlanPtr shared(Plan plan) { return std::make_shared<const Plan>(std::move(plan)); }

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
      oracle(inputs_of(*plan, 0), plan->shape, whole_mask(*plan, mask), true);
  EXPECT_LE(relative_error(found.out, truth.out, 0), bound);
  EXPECT_LE(relative_error(found.lse, truth.lse, 1), 2e-6);
  EXPECT_LE(relative_error(found.dq, truth.dq, 0.1), bound);
  EXPECT_LE(relative_error(found.dk, truth.dk, 0.1), bound);
  EXPECT_LE(relative_error(found.dv, truth.dv, 0), bound);
}

TEST(Executor, RunsTheExamplePlanExactly) {
  expect_equals_oracle(shared(example_in_f32()), 0, 2e-6);
  expect_equals_oracle(shared(example_plan()), 0, 1e-2);
}

TEST(Executor, GivesTheSameBitsForAnyStridesOfTheCallersTensors) {
  // q and dout head-major (a token's heads far apart), k inside rows that are too wide.
  const PlanPtr plan = shared(example_in_f32());
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
      copy_tensor(strided, view);
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
    layer.scatter_forward(found);
    layer.scatter_backward(found);
  });
  EXPECT_EQ(first_difference(found, execute(plan, 0)), "");
}

// ---------------------------------------------------------------------------- roles, no work

// Every tile where its queries live, after all its keys and values have been fetched.
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
  return shared(build_plan(workload, cluster, arrangement));
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
  const PlanPtr small = shared(example_in_f32());
  const PlanPtr other = plan_with_roles(false);
  Plan two_ranks = *other;  // the same work on the devices that have any
  two_ranks.devices_per_node = 2;
  two_ranks.rounds[0].devices.pop_back();
  const PlanPtr large = shared(two_ranks);
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
        layer.scatter_forward(again);
        layer.scatter_backward(again);
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
      const PlanPtr plan = shared(std::move(named.plan));
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
            Executor executor(transport, *kernels().front());
            ExecutorTesting::poison_buffers(executor);
            executor.prepare(plan);
            const std::vector<std::int64_t> tokens = local_tokens(*plan, transport.rank());
            LayerTensors a(first, plan->shape, tokens);
            LayerTensors b(second, plan->shape, tokens);
            Executor::Handle forward_a = executor.begin_forward(0, a.forward());
            Executor::Handle forward_b = executor.begin_forward(0, b.forward());
            const Saved saved_a = executor.finish(std::move(forward_a));
            Executor::Handle backward_a = executor.begin_backward(0, a.backward(), saved_a);
            const Saved saved_b = executor.finish(std::move(forward_b));
            static_cast<void>(executor.finish(std::move(backward_a)));
            executor.backward(0, b.backward(), saved_b);
            a.scatter_forward(found_first);
            a.scatter_backward(found_first);
            b.scatter_forward(found_second);
            b.scatter_backward(found_second);
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
  // Rank 1 waits for rank 2 before it takes rank 0's second message, so rank 0 may begin one only;
  // and then rank 3 must not begin to receive what rank 0 sends it after that.
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
  const PlanPtr plan = shared(example_plan());
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
    EXPECT_EQ(executor.memory().packing_bytes, larger.packing_bytes);
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

// --------------------------------------------------------------------------------- failures

// What the run of `body` on two ranks ends in.
template <typename Exception>
std::string failure_of(const std::function<void(Transport&)>& body, std::int32_t num_ranks = 2) {
  try {
    run_inproc(num_ranks, body);
  } catch (const Exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Executor, DifferentPlansAreNamedOnEveryRank) {
  Plan a = example_plan();
  a.digest = 0x1111;
  Plan b = example_plan();
  b.digest = 0x2222;
  std::vector<std::string> messages(2);
  run_inproc(2, [&](Transport& transport) {
    Executor executor(transport, *kernels().front());
    try {
      executor.prepare(shared(transport.rank().value == 0 ? a : b));
    } catch (const InvalidPlan& error) {
      messages[transport.rank().index()] = error.what();
    }
    executor.prepare(shared(a));  // and the group still works
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("0000000000001111 on rank 0"),
                               HasSubstr("0000000000002222 on rank 1")));
  }
}

TEST(Executor, APlanForAnotherNumberOfRanksIsRefused) {
  const std::string message = failure_of<InvalidPlan>(
      [](Transport& transport) {
        Executor executor(transport, *kernels().front());
        executor.prepare(shared(example_plan()));
      },
      3);
  EXPECT_THAT(message, AllOf(HasSubstr("3 ranks"), HasSubstr("one for 2")));
}

TEST(Executor, ACallBeforePrepareIsRefused) {
  const std::string message = failure_of<InvalidArgument>(
      [](Transport& transport) {
        Executor executor(transport, *kernels().front());
        static_cast<void>(executor.forward(0, {}));
      },
      1);
  EXPECT_THAT(message, HasSubstr("expected prepare before a call"));
}

// Prepares the example, lets `change` spoil the call on rank 1, and returns the InvalidArgument.
std::string failure_of_call(const std::function<void(ForwardTensors&, std::size_t& mask)>& change) {
  return failure_of<InvalidArgument>([&](Transport& transport) {
    const PlanPtr plan = shared(example_plan());
    Executor executor(transport, *kernels().front());
    executor.prepare(plan);
    LayerTensors layer(inputs_of(*plan, 0), plan->shape, local_tokens(*plan, transport.rank()));
    ForwardTensors tensors = layer.forward();
    std::size_t mask = 0;
    if (transport.rank().value == 1) change(tensors, mask);
    static_cast<void>(executor.forward(mask, tensors));
  });
}

TEST(Executor, TensorsOfTheWrongShapeAreNamedAndNobodyHangs) {
  EXPECT_THAT(failure_of_call([](ForwardTensors& t, std::size_t&) { t.q_THD.tokens = 3; }),
              AllOf(HasSubstr("rank 1, forward"), HasSubstr("q of shape [4, 2, 4]"),
                    HasSubstr("found [3, 2, 4]")));
  EXPECT_THAT(failure_of_call([](ForwardTensors& t, std::size_t&) { t.k_THD.heads = 2; }),
              HasSubstr("k of shape [4, 1, 4]"));
  EXPECT_THAT(failure_of_call([](ForwardTensors& t, std::size_t&) { t.v_THD.dtype = Dtype::kF16; }),
              HasSubstr("v as bf16, found f16"));
  EXPECT_THAT(failure_of_call([](ForwardTensors& t, std::size_t&) { t.out_THD.data = nullptr; }),
              HasSubstr("data of out"));
  EXPECT_THAT(failure_of_call([](ForwardTensors& t, std::size_t&) { t.lse_TH.data = nullptr; }),
              HasSubstr("data of lse"));
  const std::vector<float> sink(2);
  EXPECT_THAT(failure_of_call([&](ForwardTensors& t, std::size_t&) { t.sink_H = sink; }),
              HasSubstr("0 values of sink, found 2"));
  EXPECT_THAT(failure_of_call([](ForwardTensors&, std::size_t& mask) { mask = 1; }),
              HasSubstr("a mask below 1, found 1"));
}

TEST(Executor, BackwardNeedsWhatForwardSaved) {
  const std::string message = failure_of<InvalidArgument>([](Transport& transport) {
    const PlanPtr plan = shared(example_plan());
    Executor executor(transport, *kernels().front());
    executor.prepare(plan);
    LayerTensors layer(inputs_of(*plan, 0), plan->shape, local_tokens(*plan, transport.rank()));
    static_cast<void>(executor.forward(0, layer.forward()));
    executor.backward(0, layer.backward(), Saved());
  });
  EXPECT_THAT(message, AllOf(HasSubstr("16 bytes that forward"), HasSubstr("found none")));
}

TEST(Executor, ADirectionThePlanLacksIsRefused) {
  Plan plan = example_plan();
  for (DeviceProgram& device : plan.rounds[0].devices) device.programs[0].backward.reset();
  const std::string message = failure_of<InvalidArgument>([&](Transport& transport) {
    const PlanPtr forward_only = shared(plan);
    Executor executor(transport, *kernels().front());
    executor.prepare(forward_only);
    LayerTensors layer(inputs_of(plan, 0), plan.shape, local_tokens(plan, transport.rank()));
    const Saved saved = executor.forward(0, layer.forward());
    executor.backward(0, layer.backward(), saved);
  });
  EXPECT_THAT(message, HasSubstr("a backward program for mask 0"));
}

class ThrowingKernel : public AttentionKernel {
 public:
  explicit ThrowingKernel(int calls) : calls_left_(calls) {}
  [[nodiscard]] std::string_view name() const override { return "throwing"; }
  void forward(const KernelParams& params, std::span<const ForwardTile> tiles) const override {
    if (calls_left_-- == 0) throw std::runtime_error("the device fell off the bus");
    kernels().front()->forward(params, tiles);
  }
  void backward(const KernelParams&, std::span<const BackwardTile>) const override {}

 private:
  mutable int calls_left_;
};

TEST(Executor, ARankThatFailsInTheMiddleEndsTheCallOnEveryRank) {
  for (const int calls : {0, 1}) {  // before and after the first transfer
    int echoes = 0;
    const std::string message = failure_of<std::runtime_error>([&](Transport& transport) {
      const PlanPtr plan = shared(example_plan());
      const ThrowingKernel throwing(calls);
      const bool fails = transport.rank().value == 0;
      Executor executor(transport, fails ? throwing : *kernels().front());
      executor.prepare(plan);
      LayerTensors layer(inputs_of(*plan, 0), plan->shape, local_tokens(*plan, transport.rank()));
      try {
        static_cast<void>(executor.forward(0, layer.forward()));
      } catch (const TransportError& error) {
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("rank 0 gave up"), HasSubstr("fell off the bus")));
        ++echoes;  // on rank 1 only
        throw;
      }
    });
    EXPECT_EQ(message, "the device fell off the bus");
    EXPECT_EQ(echoes, 1);
  }
}

TEST(Executor, HandlesAreFinishedInOrderAndNeverDropped) {
  const auto run = [](const std::function<void(Executor&, LayerTensors&)>& body) {
    return failure_of<Error>([&](Transport& transport) {
      const PlanPtr plan = shared(example_plan());
      Executor executor(transport, *kernels().front());
      executor.prepare(plan);
      LayerTensors layer(inputs_of(*plan, 0), plan->shape, local_tokens(*plan, transport.rank()));
      body(executor, layer);
    });
  };
  EXPECT_THAT(run([](Executor& executor, LayerTensors& layer) {
                Executor::Handle first = executor.begin_forward(0, layer.forward());
                Executor::Handle second = executor.begin_forward(0, layer.forward());
                static_cast<void>(executor.finish(std::move(second)));
              }),
              HasSubstr("expected the handle begun as number 0, found number 1"));
  EXPECT_THAT(run([](Executor& executor, LayerTensors& layer) {
                { const Executor::Handle dropped = executor.begin_forward(0, layer.forward()); }
                static_cast<void>(executor.forward(0, layer.forward()));
              }),
              HasSubstr("a handle was dropped"));
}

// ------------------------------------------------------------------------------ broken plans

std::string failure_of_plan(const std::function<void(Plan&)>& change) {
  Plan plan = example_plan();
  change(plan);
  return failure_of<InvalidPlan>([&](Transport& transport) {
    Executor executor(transport, *kernels().front());
    executor.prepare(shared(plan));
  });
}

Program& program_of(Plan& plan, std::size_t rank, Direction direction) {
  ProgramPair& pair = plan.rounds[0].devices[rank].programs[0];
  return direction == Direction::kForward ? *pair.forward : *pair.backward;
}
template <typename Op>
Op& first_op(Program& program) {
  for (Instruction& instruction : program.instructions) {
    if (auto* op = std::get_if<Op>(&instruction)) return *op;
  }
  throw std::logic_error("the program has no such instruction");
}
template <typename Op>
Op& forward_op(Plan& plan, std::size_t rank) {
  return first_op<Op>(program_of(plan, rank, Direction::kForward));
}

TEST(Executor, RefusesPlansThatWouldTouchForeignMemory) {
  const auto tile = [](Plan& plan) -> TileOp& { return forward_op<AttentionOp>(plan, 1).tiles[0]; };
  EXPECT_THAT(failure_of_plan([&](Plan& p) { tile(p).q = SlotId{2}; }),
              AllOf(HasSubstr("round 0 mask 0 forward rank 1 instruction 1 (attention)"),
                    HasSubstr("a slot of q among 0 … 1, found 2")));
  EXPECT_THAT(failure_of_plan([&](Plan& p) { tile(p).kv_block = BlockId{9}; }),
              HasSubstr("a block among 0 … 2, found 9"));
  EXPECT_THAT(failure_of_plan([&](Plan& p) { tile(p).group = GroupId{1}; }),
              HasSubstr("a head group among 0 … 0, found 1"));
  EXPECT_THAT(failure_of_plan([&](Plan& p) { tile(p).q = SlotId{1}; }),
              HasSubstr("block 2 group 0 in q[1], found block 1 group 0"));
  EXPECT_THAT(failure_of_plan([&](Plan& p) { tile(p).pairs = 2; }),
              HasSubstr("1 pairs under the mask, found 2"));
  EXPECT_THAT(failure_of_plan([](Plan& p) {
                program_of(p, 0, Direction::kForward).staging[0][0].capacity_tokens = 0;
              }),
              HasSubstr("a unit of at most 0 tokens in q[1], found block 1 of 1 tokens"));
  EXPECT_THAT(failure_of_plan([](Plan& p) {
                program_of(p, 0, Direction::kForward).staging[0][0].offset_tokens = -1;
              }),
              HasSubstr("found offset -1"));
  EXPECT_THAT(
      failure_of_plan([](Plan& p) { forward_op<LaunchOp>(p, 0).recvs[0].slot = SlotId{0}; }),
      HasSubstr("block 0 group 0 in q[0], found block 1"));
  EXPECT_THAT(failure_of_plan([](Plan& p) { p.rounds[0].devices[0].local_blocks[0] = BlockId{7}; }),
              HasSubstr("local blocks among 0 … 2, found 7"));
  EXPECT_THAT(failure_of_plan([](Plan& p) {
                program_of(p, 0, Direction::kForward).retain[0].backward_slot = SlotId{5};
              }),
              HasSubstr("a slot of q among 0 … 1, found 5"));
  EXPECT_THAT(failure_of_plan([](Plan& p) {
                p.sequences = {{0, 5}};
              }),
              HasSubstr("tokens among 0 … 4, found [5, 8)"));
}

TEST(Executor, RefusesPlansThatWouldWaitForever) {
  EXPECT_THAT(failure_of_plan([](Plan& p) { forward_op<WaitOp>(p, 0).id = 7; }),
              HasSubstr("a launch under way, found 7"));
  EXPECT_THAT(failure_of_plan([](Plan& p) { forward_op<LaunchOp>(p, 0).id = 1; }),
              HasSubstr("a launch under way, found 0"));
  EXPECT_THAT(failure_of_plan([](Plan& p) {
                program_of(p, 1, Direction::kBackward).instructions.pop_back();
                program_of(p, 1, Direction::kBackward).instructions.pop_back();
              }),
              HasSubstr("a wait for launch 1, found none"));
  EXPECT_THAT(failure_of_plan([](Plan& p) { forward_op<LaunchOp>(p, 1).sends[0].peer = Rank{1}; }),
              HasSubstr("a peer among 0 … 1 other than 1, found 1"));
  EXPECT_THAT(
      failure_of_plan([](Plan& p) { forward_op<LaunchOp>(p, 1).sends[0].wire = Dtype::kF16; }),
      HasSubstr("q to travel as bf16, found f16"));
}

TEST(Executor, RefusesPlansWhoseTablesDoNotFit) {
  EXPECT_THAT(failure_of_plan([](Plan& p) { p.rounds[0].devices.pop_back(); }),
              HasSubstr("2 devices, found 1"));
  EXPECT_THAT(failure_of_plan([](Plan& p) { p.rounds[0].devices[1].programs.clear(); }),
              HasSubstr("a program for each of 1 masks, found 0"));
  EXPECT_THAT(failure_of_plan([](Plan& p) { p.rounds[0].head_groups = 3; }),
              HasSubstr("head groups that divide 1 kv heads, found 3"));
  EXPECT_THAT(failure_of_plan([](Plan& p) { p.rounds[0].devices[1].programs[0].backward.reset(); }),
              HasSubstr("the directions rank 0 has"));
  EXPECT_THAT(failure_of_plan([](Plan& p) { p.shape.head_dim = 0; }), HasSubstr("plan: "));
}

TEST(Executor, APlanThatComputesTheWrongThingIsFoundOut) {
  Plan wrong = example_plan();
  forward_op<ReduceOp>(wrong, 1).srcs.pop_back();  // the remote partial is forgotten
  const RunReport report = run_plan(shared(wrong));
  EXPECT_FALSE(report.ok()) << report_text(report);
}

}  // namespace
}  // namespace contextile
