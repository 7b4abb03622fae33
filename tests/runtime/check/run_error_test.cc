// The errors that a run may have: the bounds by dtype and by the precision of a kernel's weights.

#include "runtime/check/run_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/plan_build.h"
#include "contextile/planner.h"
#include "runtime/check/single_device.h"
#include "runtime/executor/plan_execution.h"
#include "support/batches.h"
#include "support/bf16_kernels.h"
#include "support/cuda_host_kernel.h"

namespace contextile {
namespace {

constexpr std::array<const char*, 8> kMasks = {
    "causal",      "full",      "sliding_window:3",       "lambda:2,5",
    "prefix_lm:3", "chunked:5", "causal_blockwise:3,1,1", "shared_question:0.3,3"};
constexpr std::array<const char*, 4> kStrategies = {"zigzag", "dcp", "all_gather", "double_ring"};

std::shared_ptr<const Plan> plan_of(const std::string& strategy, std::int64_t tokens,
                                    const std::string& mask, Dtype dtype, std::int32_t dim = 32) {
  AttentionShape shape{
      .q_heads = 4, .kv_heads = 2, .head_dim = dim, .value_dim = dim, .dtype = dtype};
  shape.sink = tokens % 3 == 0;
  const Workload workload = batch_of({tokens}, mask, shape);
  const Cluster cluster = cluster_of(1, 2);
  return std::make_shared<const Plan>(
      build_plan(workload, cluster, find_strategy(strategy).arrange(workload, cluster, {})));
}

// A plan's results by a kernel, compared with the oracle's and one device's.
class Judged {
 public:
  Judged(std::shared_ptr<const Plan> plan, const AttentionKernel& kernel, std::uint64_t seed)
      : plan_(std::move(plan)), kernel_(kernel), batch_(inputs_of(*plan_, seed)) {
    const Mask mask = whole_mask(*plan_, 0);
    truth_ = oracle(batch_, plan_->shape, mask, Passes::kForwardBackward);
    single_device_ =
        run_single_device(batch_, plan_->shape, mask, kernel, Passes::kForwardBackward);
    ExecutionOptions options;
    options.kernel = &kernel;
    options.seed = seed;
    found = execute(plan_, 0, options);
  }

  [[nodiscard]] std::vector<RunError> errors() const {
    return compare(wire_rounding(*plan_, 0), kernel_.weight_dtype(plan_->shape.dtype));
  }
  // The errors if nothing were rounded on its way between ranks.
  [[nodiscard]] std::vector<RunError> errors_with(Dtype weights) const {
    return compare({}, weights);
  }
  [[nodiscard]] const OracleResult& truth() const { return truth_; }

  OracleResult found;

 private:
  [[nodiscard]] std::vector<RunError> compare(const WireRounding& wire, Dtype weights) const {
    return compare_results({batch_, plan_->shape, truth_, found, single_device_, wire, weights});
  }

  std::shared_ptr<const Plan> plan_;
  const AttentionKernel& kernel_;
  BatchTensors batch_;
  OracleResult truth_;
  OracleResult single_device_;
};

void expect_within(const std::vector<RunError>& errors) {
  for (const RunError& error : errors) {
    EXPECT_LE(error.error, error.bound)
        << error.array << ", one device " << error.single_device_error;
  }
}

// The emulated kernels, those of this machine, and the program of the CUDA kernels.
std::vector<const AttentionKernel*> kernels_of_both_kinds() {
  std::vector<const AttentionKernel*> all(kernels().begin(), kernels().end());
  all.insert(all.end(), emulated_bf16_kernels().begin(), emulated_bf16_kernels().end());
  all.push_back(&cuda_host_kernel());
  return all;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

TEST(RunError, TinyBatchesOfBothKindsOfKernelsStayWithinTheirBound) {
  for (const AttentionKernel* kernel : kernels_of_both_kinds()) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
      for (std::int64_t tokens = 1; tokens <= 16; ++tokens) {
        for (std::size_t mask = 0; mask < kMasks.size(); ++mask) {
          const std::size_t way = (mask + static_cast<std::size_t>(tokens)) % kStrategies.size();
          SCOPED_TRACE(std::string(kernel->name()) + ", " + std::string(to_string(dtype)) + ", " +
                       std::to_string(tokens) + " tokens, " + kMasks[mask] + ", " +
                       kStrategies[way]);
          const Judged judged(plan_of(kStrategies[way], tokens, kMasks[mask], dtype), *kernel,
                              static_cast<std::uint64_t>(tokens));
          expect_within(judged.errors());
        }
      }
    }
  }
}

TEST(RunError, LongerBatchesOfRoundedWeightsStayWithinTheirBound) {
  for (const AttentionKernel* kernel : emulated_bf16_kernels()) {
    for (const char* mask : kMasks) {
      SCOPED_TRACE(std::string(kernel->name()) + ", " + mask);
      expect_within(Judged(plan_of("dcp", 300, mask, Dtype::kBf16), *kernel, 1).errors());
    }
  }
}

// Every mask with either head dim, each dtype with half of them.
TEST(RunError, PlansByTheProgramOfTheCudaKernelsStayWithinTheirBound) {
  for (const std::int32_t dim : {64, 128}) {
    for (std::size_t mask = 0; mask < kMasks.size(); ++mask) {
      const Dtype dtype =
          (mask / 4 + static_cast<std::size_t>(dim / 64)) % 2 == 0 ? Dtype::kBf16 : Dtype::kF16;
      const char* const strategy = kStrategies[mask % kStrategies.size()];
      SCOPED_TRACE(std::string(to_string(dtype)) + ", " + std::to_string(dim) + ", " +
                   kMasks[mask] + ", " + strategy);
      const Judged judged(plan_of(strategy, 300, kMasks[mask], dtype, dim), cuda_host_kernel(), 1);
      expect_within(judged.errors());
    }
  }
}

// The bound before kernels declared the precision of their weights.
TEST(RunError, WeightsThatAreNotRoundedChangeNoBound) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    const Judged judged(plan_of("zigzag", 12, "causal", dtype), find_kernel("simd:portable"), 1);
    const std::vector<RunError> errors =
        judged.errors_with(find_kernel("simd:portable").weight_dtype(dtype));
    ASSERT_EQ(errors.size(), 6);
    for (const RunError& error : errors) {
      SCOPED_TRACE(error.array + " of " + std::string(to_string(dtype)));
      const double least = error.array == "out" || error.array == "lse" ? 2e-6 : 1e-5;
      const double of_one_device = dtype == Dtype::kF32 ? 0 : 1.5 * error.single_device_error;
      EXPECT_EQ(error.bound, std::max(least, of_one_device));
    }
  }
}

TEST(RunError, RoundedWeightsMayAddTheirPrecisionAndNoMore) {
  const Judged judged(plan_of("zigzag", 12, "causal", Dtype::kBf16), find_kernel("reference"), 1);
  const std::vector<RunError> exact = judged.errors_with(Dtype::kF32);
  for (const Dtype weights : {Dtype::kBf16, Dtype::kF16}) {
    const double rounding = weights == Dtype::kBf16 ? 0x1p-7 : 0x1p-10;
    const std::vector<RunError> rounded = judged.errors_with(weights);
    ASSERT_EQ(rounded.size(), exact.size());
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      SCOPED_TRACE(rounded[i].array + ", weights of " + std::string(to_string(weights)));
      EXPECT_EQ(rounded[i].error, exact[i].error);
      if (rounded[i].array == "lse") {
        EXPECT_EQ(rounded[i].bound, 0x1p-18);  // its sum is not rounded
      } else if (rounded[i].array == "out" || rounded[i].array == "dv") {
        EXPECT_EQ(rounded[i].bound, std::max(exact[i].bound, rounding));
      } else {  // the terms that cancel count half
        EXPECT_GE(rounded[i].bound, std::max(exact[i].bound, rounding));
        EXPECT_LE(rounded[i].bound, std::max(exact[i].bound, 4 * rounding));
      }
    }
  }
}

TEST(RunError, AWrongResultFailsWhateverTheWeights) {
  for (const AttentionKernel* kernel : emulated_bf16_kernels()) {
    SCOPED_TRACE(kernel->name());
    const Judged good(plan_of("dcp", 60, "causal", Dtype::kBf16), *kernel, 1);
    expect_within(good.errors());
    using Array = std::vector<double> OracleResult::*;
    const std::vector<std::pair<std::string, Array>> arrays = {
        {"out", &OracleResult::out}, {"lse", &OracleResult::lse}, {"dq", &OracleResult::dq},
        {"dk", &OracleResult::dk},   {"dv", &OracleResult::dv},   {"dsink", &OracleResult::dsink}};
    for (const auto& [name, array] : arrays) {
      SCOPED_TRACE(name);
      Judged wrong = good;
      wrong.found.*array = wrong.truth().*array;
      (wrong.found.*array)[5 % (wrong.found.*array).size()] +=
          0x1p-5 * largest(good.truth().*array);
      for (const RunError& error : wrong.errors()) {
        EXPECT_EQ(error.error > error.bound, error.array == name)
            << error.array << " " << error.error << " " << error.bound;
      }
    }
  }
}

}  // namespace
}  // namespace contextile
