// A device's attention to keys in pages, on memory of this process: every call copies its tensors
// there and back. The tests of a CPU's kernels can thus test a device's.
#pragma once

#include <span>
#include <string_view>

#include "contextile/extend/paged_attention.h"
#include "gpu/driver.h"
#include "kernel/cuda/paged_kernel.h"

namespace contextile {

class StagedPagedKernel : public PagedKernel {
 public:
  // The driver must outlive it. Calls come one after another.
  explicit StagedPagedKernel(cuda::Driver& driver) : streams_(driver), inner_(streams_) {}

  [[nodiscard]] std::string_view name() const override { return inner_.name(); }
  [[nodiscard]] Dtype weight_dtype(Dtype queries) const override {
    return inner_.weight_dtype(queries);
  }

 protected:
  void attend(const PagedParams& params, const PagedKv& kv, const TensorView& q_NHD,
              std::span<const PagedRequest> requests, const PartialOutput& out) const override;

 private:
  cuda::RankStreams streams_;
  cuda::DevicePagedKernel inner_;
};

// "cuda:paged" of the device that tests judge (device_under_test.h).
[[nodiscard]] const PagedKernel& staged_paged_kernel();
// Runs every CTA of its launches by HostCta, on memory of this process.
[[nodiscard]] const PagedKernel& host_paged_kernel();

}  // namespace contextile
