#include "support/device_under_test.h"

#include <cstdlib>
#include <memory>
#include <vector>

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

std::span<const AttentionKernel* const> staged_kernels() {
  using cuda::Program;
  static const StagedKernel kMma(device_under_test(), Program::kMma);
  static const StagedKernel kWgmma(device_under_test(), Program::kWgmma);
  static const std::vector<const AttentionKernel*> kAll = [] {
    std::vector<const AttentionKernel*> all = {&kMma};
    if (device_under_test().has_module(module_of(Program::kWgmma))) all.push_back(&kWgmma);
    return all;
  }();
  return kAll;
}

}  // namespace contextile
