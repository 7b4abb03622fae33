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

void multiply(std::span<const float> x_NI, std::span<const float> weights_OI, std::int64_t inputs,
              std::span<float> y_NO) {
  const std::int64_t outputs = static_cast<std::int64_t>(weights_OI.size()) / inputs;
  const std::int64_t rows = static_cast<std::int64_t>(x_NI.size()) / inputs;
  if (rows == 0 || outputs == 0) return;
  use_one_thread_a_call();
  const std::int64_t runs = (outputs + kOutputsOfRun - 1) / kOutputsOfRun;
  parallel_for(std::int64_t{0}, runs, [&](std::int64_t run) {
    const std::int64_t first = run * kOutputsOfRun;
    const std::int64_t count = std::min(kOutputsOfRun, outputs - first);
    const float* weights = weights_OI.data() + first * inputs;
    const auto k = static_cast<blasint>(inputs);
    const auto n = static_cast<blasint>(count);
    if (rows == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, n, k, 1, weights, k, x_NI.data(), 1, 0,
                  y_NO.data() + first, 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(rows), n, k, 1,
                  x_NI.data(), k, weights, k, 0, y_NO.data() + first,
                  static_cast<blasint>(outputs));
    }
  });
}

}  // namespace contextile
