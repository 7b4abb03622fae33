// A plan that runs with a kernel works on rows with that kernel's operations and no others.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "contextile/advanced/oracle.h"
#include "contextile/extend/kernel.h"
#include "contextile/plan.h"
#include "kernel/cpu/reference_rows.h"
#include "kernel/row_ops.h"
#include "runtime/check/single_device.h"
#include "runtime/executor/plan_execution.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

struct Calls {
  std::int64_t merges = 0;
  std::int64_t sums = 0;
  std::int64_t deltas = 0;
  std::int64_t converts = 0;
  std::int64_t finishes = 0;
  bool operator==(const Calls&) const = default;
};

// Counts the calls of all threads, and leaves the work to the reference.
class CountingRows : public RowOps {
 public:
  [[nodiscard]] std::string_view name() const override { return "counting"; }
  void merge(const PartialOutput& dst, std::span<const PartialOutput> srcs) const override {
    ++merges_;
    reference_rows().merge(dst, srcs);
  }
  void sum(const TensorView& dst, std::span<const TensorView> srcs) const override {
    ++sums_;
    reference_rows().sum(dst, srcs);
  }
  void delta(const TensorView& dout_NHD, const TensorView& out_NHD,
             const RowStats& delta_NH) const override {
    ++deltas_;
    reference_rows().delta(dout_NHD, out_NHD, delta_NH);
  }
  void convert(const TensorView& dst, const TensorView& src) const override {
    ++converts_;
    reference_rows().convert(dst, src);
  }
  void finish(const PartialOutput& accumulated, std::span<const float> sink_H,
              const TensorView& out_NHD, const RowStats& lse_NH) const override {
    ++finishes_;
    reference_rows().finish(accumulated, sink_H, out_NHD, lse_NH);
  }
  [[nodiscard]] Calls calls() const { return {merges_, sums_, deltas_, converts_, finishes_}; }

 private:
  mutable std::atomic<std::int64_t> merges_ = 0;
  mutable std::atomic<std::int64_t> sums_ = 0;
  mutable std::atomic<std::int64_t> deltas_ = 0;
  mutable std::atomic<std::int64_t> converts_ = 0;
  mutable std::atomic<std::int64_t> finishes_ = 0;
};

// The preferred kernel with row operations that count.
class CountingKernel : public AttentionKernel {
 public:
  [[nodiscard]] std::string_view name() const override { return "counting"; }
  [[nodiscard]] const RowOps& row_ops() const override { return rows_; }
  void forward(const KernelParams& params, std::span<const ForwardTile> tiles) const override {
    if (!tiles.empty()) preferred_kernel(tiles[0].q_NHD.dtype).forward(params, tiles);
  }
  void backward(const KernelParams& params, std::span<const BackwardTile> tiles) const override {
    if (!tiles.empty()) preferred_kernel(tiles[0].q_NHD.dtype).backward(params, tiles);
  }
  [[nodiscard]] Calls calls() const { return rows_.calls(); }

 private:
  CountingRows rows_;
};

std::int64_t num_parts(Kind kind) { return kind == Kind::kO || kind == Kind::kDkv ? 2 : 1; }

std::int64_t num_converted(const std::vector<TransferEnd>& ends) {
  std::int64_t parts = 0;
  for (const TransferEnd& end : ends) {
    if (is_result(end.kind) && end.wire != Dtype::kF32) parts += num_parts(end.kind);
  }
  return parts;
}

// Counts the row operations of a kernel that the programs of a direction need.
void count(const Program& program, Calls& calls) {
  for (const Instruction& instruction : program.instructions) {
    if (const auto* reduce = std::get_if<ReduceOp>(&instruction)) {
      (reduce->kind == Kind::kO ? calls.merges : calls.sums) +=
          reduce->kind == Kind::kO ? 1 : num_parts(reduce->kind);
    } else if (const auto* copy = std::get_if<CopyOp>(&instruction)) {
      calls.converts += copy->kind == Kind::kDo ? 3 : num_parts(copy->kind);
      if (copy->kind == Kind::kKv) ++calls.converts;
    } else if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
      calls.converts += num_converted(launch->sends) + num_converted(launch->recvs);
    }
  }
}

// Parts that forward keeps for backward have two copies each, out of their slots and back.
std::int64_t num_kept(const ProgramPair& pair) {
  if (!pair.forward) return 0;
  std::int64_t parts = 0;
  for (const Retain& retain : pair.forward->retain) parts += retain.kind == Kind::kKv ? 2 : 1;
  return pair.backward ? 2 * parts : parts;
}

// Around the programs there are one delta and one finished output per block of queries, and one
// rounding of every gradient.
Calls expected_calls(const Plan& plan, std::size_t mask) {
  Calls calls;
  for (const PlanRound& round : plan.rounds) {
    const bool has_forward = round.devices[0].programs[mask].forward.has_value();
    const bool has_backward = round.devices[0].programs[mask].backward.has_value();
    for (const DeviceProgram& device : round.devices) {
      const ProgramPair& pair = device.programs[mask];
      if (pair.forward) count(*pair.forward, calls);
      if (pair.backward) count(*pair.backward, calls);
      calls.converts += num_kept(pair);
    }
    for (std::size_t b = 0; b < static_cast<std::size_t>(round.blocks.num_blocks()); ++b) {
      const Role role = round.blocks.role(BlockId{static_cast<std::int32_t>(b)});
      if (has_forward && role_has(role, Kind::kO)) ++calls.finishes;
      if (!has_backward) continue;
      if (role_has(role, Kind::kDo)) ++calls.deltas;
      if (role_has(role, Kind::kDq)) ++calls.converts;
      if (role_has(role, Kind::kDkv)) calls.converts += 2;
    }
  }
  return calls;
}

TEST(KernelChoice, EveryRowOperationOfAPlanIsOneOfItsKernel) {
  Calls all;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance);
    for (NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(batch.text + ": " + named.name);
      const auto plan = std::make_shared<const Plan>(std::move(named.plan));
      const CountingKernel kernel;
      ExecutionOptions options;
      options.kernel = &kernel;
      const OracleResult found = execute(plan, 0, options);
      const Calls expected = expected_calls(*plan, 0);
      EXPECT_EQ(kernel.calls().merges, expected.merges);
      EXPECT_EQ(kernel.calls().sums, expected.sums);
      EXPECT_EQ(kernel.calls().deltas, expected.deltas);
      EXPECT_EQ(kernel.calls().converts, expected.converts);
      EXPECT_EQ(kernel.calls().finishes, expected.finishes);
      EXPECT_EQ(first_difference(found, execute(plan, 0)), "");  // the same bits
      all.merges += expected.merges;
      all.sums += expected.sums;
    }
  }
  EXPECT_GT(all.merges, 20);
  EXPECT_GT(all.sums, 20);
}

TEST(KernelChoice, OneDeviceUsesTheRowOperationsOfItsKernel) {
  const Plan plan = example_plan();
  const CountingKernel kernel;
  static_cast<void>(run_single_device(inputs_of(plan, 0), plan.shape, whole_mask(plan, 0), kernel,
                                      Passes::kForwardBackward));
  EXPECT_EQ(kernel.calls(), (Calls{0, 0, 1, 3, 1}));
}

TEST(KernelChoice, EveryKernelHasTheRowOperationsOfItsInstructionSet) {
  for (const AttentionKernel* kernel : kernels()) {
    const std::string name(kernel->name());
    const std::string set = name.starts_with("simd:amx") || name.starts_with("simd:avx512")
                                ? "avx512"
                                : name.substr(name.find(':') + 1);
    EXPECT_EQ(kernel->row_ops().name(), set) << name;
    EXPECT_EQ(&kernel->row_ops(), &find_kernel(name).row_ops());
  }
  EXPECT_EQ(&find_kernel("reference").row_ops(), &reference_rows());
}

}  // namespace
}  // namespace contextile
