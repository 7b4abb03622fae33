#include "support/cuda_host_kernel.h"

#include "kernel/cuda/device_kernel.h"
#include "support/host_driver.h"

namespace contextile {
namespace {

class CudaHostKernel : public cuda::DeviceKernel {
 public:
  using DeviceKernel::DeviceKernel;
  [[nodiscard]] std::string_view name() const override { return "cuda:host"; }
};

}  // namespace

const AttentionKernel& cuda_host_kernel() {
  static cuda::HostDriver driver(cuda::HostDriver::Mode::kAtOnce);
  static const cuda::RankStreams kStreams(driver);
  static const CudaHostKernel kKernel(kStreams);
  return kKernel;
}

}  // namespace contextile
