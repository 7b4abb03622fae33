// Failures of the executor: different or broken plans, wrong tensors, ranks that fail.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "kernel/host_tensor.h"
#include "runtime/check/layer_tensors.h"
#include "runtime/executor/plan_execution.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using PlanPtr = std::shared_ptr<const Plan>;

PlanPtr shared(Plan plan) { return std::make_shared<const Plan>(std::move(plan)); }

// --------------------------------------------------------------------------------- failures

// The error in which the run of `body` on two ranks ends.
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

TEST(Executor, DifferentPlansAreNamedOnEveryRankThoughEachGivesUpAtOnce) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<std::string> messages(4);
    const auto prepare = [&](Transport& transport) {
      Plan plan = example_plan();
      plan.digest = transport.rank() == Rank{2} ? 0x2222 : 0x1111;
      Executor executor(transport, *kernels().front());
      try {
        executor.prepare(shared(plan));
      } catch (const std::exception& error) {
        messages[transport.rank().index()] = error.what();
        transport.abort(error.what());
      }
    };
    run_inproc(4, prepare, {.max_delay_us = 2000, .delay_seed = seed});
    EXPECT_THAT(messages,
                Each("prepare: expected one plan on all ranks, found digest 0000000000001111 on "
                     "rank 0 and 0000000000002222 on rank 2"));
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

// A plan of two masks on four ranks, each of which sends to another one.
Plan ring_plan() {
  const std::vector<std::int64_t> lengths = {40, 24};
  const AttentionShape shape = {.q_heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 4};
  const std::vector<MaskUse> masks = {parse_mask_use("causal"), parse_mask_use("lambda:4,8")};
  const Cluster cluster = load_cluster("dgx-h200:1x4");
  return *plan_batch(make_workload(lengths, shape, masks), cluster, {"ring"}).plan;
}

// The errors in which four ranks end when each checks its call and runs a forward.
std::vector<std::string> ends_of_calls(const std::function<SharedCall(Rank)>& call_of,
                                       const InprocOptions& options = {}) {
  const PlanPtr plan = shared(ring_plan());
  std::vector<std::string> ends(4);
  const auto body = [&](Transport& transport) {
    const Rank rank = transport.rank();
    Executor executor(transport, *kernels().front());
    executor.prepare(plan);
    LayerTensors layer(inputs_of(*plan, 0), plan->shape, local_tokens(*plan, rank));
    try {
      executor.check_same_call(call_of(rank));
      static_cast<void>(executor.forward(0, layer.forward()));
    } catch (const std::exception& error) {
      ends[rank.index()] = error.what();
    }
  };
  run_inproc(4, body, options);
  return ends;
}

TEST(Executor, RanksInTheSameCallGoOn) {
  EXPECT_THAT(ends_of_calls([](Rank) { return SharedCall{Direction::kForward, 0, 7}; }), Each(""));
  // A rank without a number for the call agrees with any rank that has one.
  EXPECT_THAT(ends_of_calls([](Rank rank) {
                return SharedCall{Direction::kForward, 0, rank == Rank{2} ? 0 : 7};
              }),
              Each(""));
}

TEST(Executor, ACallThatOneRankMakesOtherwiseIsReportedOnEveryRank) {
  const SharedCall same = {Direction::kForward, 0, 7};
  ScoreTerms terms;
  terms.dropout = 0.1;
  const std::vector<float> sinks = {0.5F, -1};
  const std::vector<std::pair<SharedCall, std::string>> others = {
      {{Direction::kBackward, 0, 7}, "in backward 7 of plan "},
      {{Direction::kForward, 0, 7, terms}, ", bias and dropout of digest "},
      {{Direction::kForward, 0, 7, {}, sinks}, ", sinks of digest "},
      {{Direction::kForward, 1, 7}, ", mask 1"},
      {{Direction::kForward, 0, 8}, "in forward 8 of plan "}};
  for (const auto& [other, text] : others) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      EXPECT_THAT(
          ends_of_calls([&](Rank rank) { return rank == Rank{2} ? other : same; },
                        {.max_delay_us = 1000, .delay_seed = seed}),
          Each(AllOf(HasSubstr("call: expected all ranks in the same one, found rank "),
                     HasSubstr("in forward 7 of plan "), HasSubstr(", mask 0"), HasSubstr(text))));
    }
  }
}

// The errors in which two ranks end that do different things, both prepared for the plan.
std::vector<std::string> ends_of(const PlanPtr& plan,
                                 const std::function<void(Executor&, LayerTensors&, Rank)>& body) {
  std::vector<std::string> ends(2);
  run_inproc(2, [&](Transport& transport) {
    const Rank rank = transport.rank();
    Executor executor(transport, *kernels().front());
    executor.prepare(plan);
    LayerTensors layer(inputs_of(*plan, 0), plan->shape, local_tokens(*plan, rank));
    try {
      body(executor, layer, rank);
    } catch (const InvalidArgument& error) {
      ends[rank.index()] = error.what();
    }
  });
  return ends;
}

TEST(Executor, ARankInPrepareAndOneInACallSayWhichEachIsIn) {
  const PlanPtr plan = shared(example_plan());
  EXPECT_THAT(ends_of(plan,
                      [&](Executor& executor, LayerTensors&, Rank rank) {
                        if (rank == Rank{0}) {
                          executor.prepare(plan);
                        } else {
                          executor.check_same_call({Direction::kBackward, 0, 7});
                        }
                      }),
              Each(AllOf(HasSubstr("expected all ranks in the same one, found rank "),
                         HasSubstr("rank 0 in prepare of plan "),
                         HasSubstr("rank 1 in backward 7 of plan "))));
}

// Messages of other sizes fail in the transport, which knows no calls.
TEST(Executor, CallsWithMessagesOfOtherSizesSayWhichEachRankIsIn) {
  EXPECT_THAT(
      ends_of(shared(example_plan()),
              [](Executor& executor, LayerTensors& layer, Rank rank) {
                if (rank == Rank{0}) {
                  static_cast<void>(executor.finish(executor.begin_forward(0, layer.forward(), 7)));
                  return;
                }
                std::vector<std::byte> saved(static_cast<std::size_t>(executor.saved_bytes(0)));
                BackwardTensors tensors = layer.backward();
                tensors.saved = saved;
                static_cast<void>(executor.finish(executor.begin_backward(0, tensors, Saved(), 5)));
              }),
      Each(AllOf(HasSubstr("rank 0 in forward 7 of plan "),
                 HasSubstr("rank 1 in backward 5 of plan "))));
}

TEST(Executor, ACallIsComparedOnlyOnceThereIsAPlan) {
  const std::string message = failure_of<InvalidArgument>(
      [](Transport& transport) {
        Executor executor(transport, *kernels().front());
        executor.check_same_call({});
      },
      1);
  EXPECT_THAT(message, HasSubstr("expected prepare before a call"));
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
                executor.finish(std::move(second));
              }),
              HasSubstr("expected the handle begun as number 0, found number 1"));
  EXPECT_THAT(run([](Executor& executor, LayerTensors& layer) {
                { const Executor::Handle dropped = executor.begin_forward(0, layer.forward()); }
                static_cast<void>(executor.forward(0, layer.forward()));
              }),
              HasSubstr("a handle was dropped"));
}

TEST(Executor, RanksThatBeginDifferentCallsNoticeBeforeTheyAreDone) {
  const std::string found = failure_of<Error>([&](Transport& transport) {
    const PlanPtr plan = shared(example_plan());
    Executor executor(transport, *kernels().front());
    executor.prepare(plan);
    LayerTensors layer(inputs_of(*plan, 0), plan->shape, local_tokens(*plan, transport.rank()));
    const std::int64_t number = transport.rank().value == 1 ? 8 : 7;
    Executor::Handle handle = executor.begin_forward(0, layer.forward(), number);
    executor.advance(handle);
  });
  EXPECT_THAT(found, HasSubstr("expected all ranks in the same one, found rank"));
  EXPECT_THAT(found, HasSubstr("forward 8 of plan"));
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
