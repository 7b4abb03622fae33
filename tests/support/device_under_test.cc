#include "support/device_under_test.h"

#include <cstdlib>
#include <memory>

#include "runtime/cuda/gpu_driver.h"
#include "support/host_driver.h"
#include "support/staged_kernel.h"

namespace contextile {

cuda::Driver& device_under_test() {
  static const std::unique_ptr<cuda::Driver> kDriver = []() -> std::unique_ptr<cuda::Driver> {
    const char* const gpu = std::getenv("CONTEXTILE_TEST_GPU");
    if (gpu != nullptr) return cuda::open_gpu_driver({.ordinal = std::atoi(gpu)});
    return std::make_unique<cuda::HostDriver>(cuda::HostDriver::Mode::kAtOnce);
  }();
  return *kDriver;
}

const AttentionKernel& staged_kernel() {
  static const StagedKernel kKernel(device_under_test());
  return kKernel;
}

}  // namespace contextile
