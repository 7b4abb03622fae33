// Errors of a run against the oracle, and their bounds.
#pragma once

#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/plan.h"

namespace contextile {

// Largest number of times a unit of each kind is rounded to less than fp32 while its partial result
// travels (0: fp32 wire). A finished result in the activation dtype is rounded to the dtype that it
// ends in anyway and counts only if a sink still rescales it.
struct WireRounding {
  int o = 0;
  int dq = 0;
  int dkv = 0;
  double step = 0;  // bound of one rounding, relative to the largest result
};
[[nodiscard]] WireRounding wire_rounding(const Plan& plan, std::size_t mask);

struct ResultComparison {
  const BatchTensors& batch;
  const AttentionShape& shape;
  const OracleResult& truth;
  const OracleResult& found;
  const OracleResult& single_device;
  WireRounding rounding;
  Dtype weight_dtype = Dtype::kF32;  // of the kernel, for the shape's dtype
  bool with_forward = true;
  bool with_backward = true;
};

// Error of an array: max|x - ref| / max|ref|; infinite when anything is NaN or only one side is
// -inf. If the true result cancels to (almost) nothing, the terms that cancel are the measure:
//   - LSE is compared to at least 1.
//   - dq (dk) is compared to at least 1/64 of scale · max|delta| · max|k| (max|q|).
//   - dsink is compared to at least 1/64 of the largest sum of its absolute terms.
//
// Bounds: f32: 2e-6 for out and lse, 1e-5 for gradients. bf16 and f16: 1.5 x the error of one
// device with the same kernel, at least the f32 bound. A kernel that rounds its weights has at
// least 2^-7 (bf16 weights) or 2^-10 (f16) of the largest output, in dq, dk and dsink of at least
// half the terms that cancel; lse 2^-18. A narrower wire adds `step` for each rounding on the way:
// 2^-8 for bf16, 2^-11 for f16. This is twice half a unit in the last place, because a partial
// result may exceed the sum. The gradients dq, dk and dsink depend on out through delta and add
// 2 steps for each rounding of o.
[[nodiscard]] std::vector<RunError> compare_results(const ResultComparison& comparison);

// Error of one array; `floor` is the least denominator.
[[nodiscard]] double relative_error(std::span<const double> found, std::span<const double> truth,
                                    double floor);

}  // namespace contextile
