#include "support/cuda_host_kernel.h"

#include "kernel/cuda/device_kernel.h"
#include "support/host_driver.h"

namespace contextile {
namespace {

using cuda::Program;

template <Program kProgram>
class CudaHostKernel : public cuda::DeviceKernel {
 public:
  explicit CudaHostKernel(const cuda::RankStreams& streams) : DeviceKernel(streams, kProgram) {}
  [[nodiscard]] std::string_view name() const override {
    return kProgram == Program::kMma ? "cuda:host" : "cuda:host_wgmma";
  }
};

template <Program kProgram>
const AttentionKernel& host_kernel() {
  static cuda::HostDriver driver(cuda::HostDriver::Mode::kAtOnce);
  static const cuda::RankStreams kStreams(driver);
  static const CudaHostKernel<kProgram> kKernel(kStreams);
  return kKernel;
}

}  // namespace

const AttentionKernel& cuda_host_kernel() { return host_kernel<Program::kMma>(); }
const AttentionKernel& wgmma_host_kernel() { return host_kernel<Program::kWgmma>(); }

}  // namespace contextile
