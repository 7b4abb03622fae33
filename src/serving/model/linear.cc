#include "serving/model/linear.h"

#include <cblas.h>

#include <algorithm>

#include "base/parallel_for.h"

namespace contextile {
namespace {

constexpr std::int64_t kOutputsOfRun = 128;

// NOTE: this holds for the whole process. OpenBLAS's threads for several ranks, in addition to
// oneTBB's, would only wait for each other.
void use_one_thread_a_call() {
  static const bool done = (openblas_set_num_threads(1), true);
  static_cast<void>(done);
}

}  // namespace

WeightsView weights_view(std::span<const float> values_OI, std::int64_t inputs) {
  return {values_OI.data(), static_cast<std::int64_t>(values_OI.size()) / inputs, inputs, inputs};
}

void multiply(std::span<const float> x_NI, const WeightsView& weights, std::span<float> y_NO) {
  if (weights.inputs == 0) {
    std::fill(y_NO.begin(), y_NO.end(), 0.0F);
    return;
  }
  const std::int64_t rows = static_cast<std::int64_t>(x_NI.size()) / weights.inputs;
  if (rows == 0 || weights.outputs == 0) return;
  use_one_thread_a_call();
  const std::int64_t runs = (weights.outputs + kOutputsOfRun - 1) / kOutputsOfRun;
  parallel_for(std::int64_t{0}, runs, [&](std::int64_t run) {
    const std::int64_t first = run * kOutputsOfRun;
    const std::int64_t count = std::min(kOutputsOfRun, weights.outputs - first);
    const float* part = weights.data + first * weights.stride;
    const auto k = static_cast<blasint>(weights.inputs);
    const auto n = static_cast<blasint>(count);
    const auto stride = static_cast<blasint>(weights.stride);
    if (rows == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, n, k, 1, part, stride, x_NI.data(), 1, 0,
                  y_NO.data() + first, 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(rows), n, k, 1,
                  x_NI.data(), k, part, stride, 0, y_NO.data() + first,
                  static_cast<blasint>(weights.outputs));
    }
  });
}

}  // namespace contextile
