#include "support/staged_paged_kernel.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernel/tensor.h"
#include "support/device_under_test.h"
#include "support/host_driver.h"

namespace contextile {
namespace {

// A copy of some memory on the device.
class Copy {
 public:
  Copy(const cuda::RankStreams& streams, const void* here, std::int64_t bytes)
      : streams_(streams),
        here_(static_cast<std::byte*>(const_cast<void*>(here)), static_cast<std::size_t>(bytes)),
        there_(streams.driver, streams.compute, bytes) {
    streams.driver.write(streams.compute, there_.data(), here_);
  }
  [[nodiscard]] std::byte* data() const { return there_.data(); }
  void bring_back() const { streams_.driver.read(streams_.compute, here_, there_.data()); }

 private:
  const cuda::RankStreams& streams_;
  std::span<std::byte> here_;
  cuda::StreamMemory there_;
};

std::int64_t bytes_of(const TensorView& view) {
  return ((view.tokens - 1) * view.token_stride + (view.heads - 1) * view.head_stride + view.dim) *
         bytes_per_element(view.dtype);
}

// The range up to the last page of any table, which is whole.
std::int64_t bytes_of(const PagedTensor& tensor, KvDtype dtype,
                      std::span<const PagedRequest> requests) {
  std::int32_t last = -1;
  for (const PagedRequest& request : requests) {
    for (const PageId page : request.table) last = std::max(last, page.value);
  }
  return (last + 1) * tensor.page_stride * bytes_per_element(dtype);
}

}  // namespace

void StagedPagedKernel::attend(const PagedParams& params, const PagedKv& kv,
                               const TensorView& q_NHD, std::span<const PagedRequest> requests,
                               const PartialOutput& out) const {
  const TensorView lse = as_tensor(out.lse_NH, out.o_NHD.tokens, out.o_NHD.heads);
  const Copy q(streams_, q_NHD.data, bytes_of(q_NHD));
  const Copy o(streams_, out.o_NHD.data, bytes_of(out.o_NHD));
  const Copy stats(streams_, lse.data, bytes_of(lse));
  const Copy k(streams_, kv.k.data, bytes_of(kv.k, kv.dtype, requests));
  const Copy v(streams_, kv.v.data, bytes_of(kv.v, kv.dtype, requests));
  PagedKv kv_there = kv;
  kv_there.k.data = k.data();
  kv_there.v.data = kv.v.data == kv.k.data ? k.data() : v.data();
  TensorView q_there = q_NHD;
  q_there.data = q.data();
  PartialOutput there = out;
  there.o_NHD.data = o.data();
  there.lse_NH.data = reinterpret_cast<float*>(stats.data());
  inner_.run(params, kv_there, q_there, requests, there);
  o.bring_back();
  stats.bring_back();
}

const PagedKernel& staged_paged_kernel() {
  static const StagedPagedKernel kKernel(device_under_test());
  return kKernel;
}

const PagedKernel& host_paged_kernel() {
  static cuda::HostDriver driver(cuda::HostDriver::Mode::kAtOnce);
  static const cuda::RankStreams kStreams(driver);
  static const cuda::DevicePagedKernel kKernel(kStreams);
  return kKernel;
}

}  // namespace contextile
